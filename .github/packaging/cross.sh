#!/bin/sh
# Runs a command that compiles extension modules, so that it compiles them for 64-bit Arm.
#
#   .github/packaging/cross.sh .venv/bin/python -m build --wheel
#
# zig, which a package of PyPI holds, is the compiler, and brings the C library's headers and
# symbols. (Debian's cross compiler conflicts with gcc-multilib, which the tests need.)
set -eu
root=$(realpath "$(dirname "$0")/../..")
zig=$root/.venv/zig
[ -d "$zig" ] || {
    "$root/.venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        --target "$zig.part" ziglang==0.15.2
    mv "$zig.part" "$zig"
}
# Debian's pyconfig.h includes one by the machine compiled for and Python's version. The limited
# API asks it only for sizes, which the compiler knows.
version=$("$root/.venv/bin/python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
headers=$root/build/cross-headers
mkdir -p "$headers/aarch64-linux-gnu/$version"
cat >"$headers/aarch64-linux-gnu/$version/pyconfig.h" <<'END'
#define _GNU_SOURCE 1
#define HAVE_SSIZE_T 1
#define HAVE_STDDEF_H 1
#define HAVE_SYS_STAT_H 1
#define HAVE_SYS_TIME_H 1
#define HAVE_WCHAR_H 1
#define SIZEOF_INT __SIZEOF_INT__
#define SIZEOF_LONG __SIZEOF_LONG__
#define SIZEOF_LONG_LONG __SIZEOF_LONG_LONG__
#define SIZEOF_PID_T __SIZEOF_INT__
#define SIZEOF_SIZE_T __SIZEOF_SIZE_T__
#define SIZEOF_VOID_P __SIZEOF_POINTER__
#define SIZEOF_WCHAR_T __SIZEOF_WCHAR_T__
END
zig_cc="$zig/ziglang/zig cc -target aarch64-linux-gnu.2.28 -I$headers"
export CC="$zig_cc" LDSHARED="$zig_cc -shared"
export ZIG_GLOBAL_CACHE_DIR="$zig/cache" _PYTHON_HOST_PLATFORM=linux-aarch64
exec "$@"
