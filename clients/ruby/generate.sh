#!/bin/sh
# Writes the stubs of the public protos into lib/ beside this file, or into the folder given.
# Needs grpc_tools_ruby_protoc (gem grpc-tools; Debian: ruby-grpc-tools).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here/lib}
protos=$here/../../protos
mkdir -p "$out"
grpc_tools_ruby_protoc -I"$protos" -I"$protos/third_party" --ruby_out="$out" --grpc_out="$out" \
  pagewire/v1/generation.proto pagewire/v1/model.proto
