#!/bin/sh
# Writes the stubs of the public protos into pagewirev1/ beside this file, or below the folder given.
# Needs protoc, protoc-gen-go and protoc-gen-go-grpc.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here}
protos=$here/../../protos
mapping=""
for name in generation model; do
  mapping="$mapping,Mpagewire/v1/$name.proto=pagewire.dev/client/pagewirev1"
done
mkdir -p "$out"
protoc -I"$protos" -I"$protos/third_party" \
  --go_out="$out" --go_opt="module=pagewire.dev/client$mapping" \
  --go-grpc_out="$out" --go-grpc_opt="module=pagewire.dev/client$mapping" \
  pagewire/v1/generation.proto pagewire/v1/model.proto
