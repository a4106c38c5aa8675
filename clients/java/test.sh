#!/bin/sh
# Generates, compiles and tests in BUILD_DIR with the libraries of the system (Debian: libgrpc-java libnetty-java libperfmark-java
# libprotobuf-java protobuf-compiler-grpc-java-plugin). PAGEWIRE_TARGET names a live server.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=${BUILD_DIR:-$(mktemp -d)}
protos=$here/../../protos
mkdir -p "$build/stubs" "$build/classes"
protoc -I"$protos" -I"$protos/third_party" --java_out="$build/stubs" \
  --plugin=protoc-gen-grpc="$(command -v grpc_java_plugin)" --grpc_out="$build/stubs" \
  pagewire/v1/generation.proto pagewire/v1/model.proto \
  google/rpc/status.proto google/rpc/error_details.proto google/api/annotations.proto google/api/http.proto
jars=/usr/share/java
classpath=$build/classes
for jar in protobuf guava failureaccess jsr305 geronimo-annotation-1.3-spec error_prone_annotations perfmark-api perfmark grpc-api grpc-context grpc-core \
  grpc-netty grpc-protobuf grpc-protobuf-lite grpc-stub netty-all netty-buffer netty-codec netty-codec-http netty-codec-http2 \
  netty-common netty-handler netty-handler-proxy netty-resolver netty-transport netty-transport-native-unix-common gson; do
  [ -f "$jars/$jar.jar" ] && classpath=$classpath:$jars/$jar.jar
done
find "$build/stubs" "$here/src" -name '*.java' >"$build/sources"
javac -nowarn -proc:none -d "$build/classes" -cp "$classpath" @"$build/sources"
exec java -ea -cp "$classpath" dev.pagewire.client.ClientTest
