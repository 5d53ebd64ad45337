#!/bin/sh
# Runs a command that compiles extension modules, so that it compiles them for 64-bit Arm.
#
#   .github/packaging/cross.sh .venv/bin/python -m build --wheel
#
# clang is the compiler, since Debian's gcc for it conflicts with gcc-multilib, which tests need.
# Install what it takes by `tests/system-packages.sh cross`.
set -eu
cd "$(dirname "$0")/../.."
# Debian's pyconfig.h includes one by the machine compiled for, here that of this machine: they
# differ, but not in what the limited API uses.
mkdir -p build/cross-headers
ln -sfn /usr/include/x86_64-linux-gnu build/cross-headers/aarch64-linux-gnu
export CC="clang --target=aarch64-linux-gnu -mno-outline-atomics -I$PWD/build/cross-headers" _PYTHON_HOST_PLATFORM=linux-aarch64
exec "$@"
