#!/bin/sh
# Generates the stubs into BUILD_DIR and runs the tests against the live server that PAGEWIRE_TARGET names.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=${BUILD_DIR:-$(mktemp -d)}
"$here/generate.sh" "$build/stubs"
exec ruby -w -W:no-deprecated -I"$here/lib" -I"$build/stubs" "$here/test/client_test.rb"
