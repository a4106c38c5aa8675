#!/bin/sh
# Builds in BUILD_DIR and runs the tests against the live server that PAGEWIRE_TARGET names.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=${BUILD_DIR:-$(mktemp -d)}
cmake -S "$here" -B "$build" -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0
cmake --build "$build" --parallel 2
ctest --test-dir "$build" --output-on-failure
