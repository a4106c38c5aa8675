#!/bin/sh
# Generates, builds and tests in BUILD_DIR with the packages of the system (Debian: golang-google-grpc-dev) where there are some,
# else as a Go module. PAGEWIRE_TARGET names a live server.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=${BUILD_DIR:-$(mktemp -d)}
work=$build/src/pagewire.dev/client
mkdir -p "$work"
cp -r "$here/go.mod" "$here/pagewire" "$work/"
"$here/generate.sh" "$work"
cd "$work"
if [ -d /usr/share/gocode/src/google.golang.org/grpc ]; then
  export GO111MODULE=off GOPATH="$build:/usr/share/gocode"
else
  go mod tidy
fi
export GOCACHE="${GOCACHE:-$build/cache}" GOFLAGS="${GOFLAGS:-}"
go vet ./pagewire
go test -count=1 -v ./pagewire
