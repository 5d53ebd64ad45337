#!/bin/sh
# Installs what is missing of the system's packages. Argument: run, demo, test, cross, kernels or
# release.
set -eu

missing=
need() { # need PACKAGE CHECK...: the package, unless the check succeeds
    package=$1
    shift
    "$@" >/dev/null 2>&1 || missing="$missing $package"
}

need_any() { # need_any "PACKAGE..." CHECK...: the first package that there is
    names=$1
    shift
    "$@" >/dev/null 2>&1 && return
    for package in $names; do
        if apt-cache show "$package" 2>/dev/null | grep -q .; then
            missing="$missing $package"
            return
        fi
    done
    missing="$missing ${names%% *}"
}

is_there() { # is_there PATTERN: whether any file matches
    for file in $1; do [ -e "$file" ] && return; done
    return 1
}

has() { command -v "$1"; }

need_cross() { # what compiles for 64-bit Arm (cross.sh)
    need clang has clang
    need binutils-aarch64-linux-gnu has aarch64-linux-gnu-ld
    need libc6-dev-arm64-cross is_there "/usr/aarch64-linux-gnu/lib/libc.so"
    need_any "libgcc-12-dev-arm64-cross libgcc-13-dev-arm64-cross libgcc-14-dev-arm64-cross" \
        is_there "/usr/lib/gcc-cross/aarch64-linux-gnu/*/libgcc.a"
}

case $1 in
run)
    need python3-bpfcc /usr/bin/python3 -c 'import bcc; bcc.BPF'
    need python3-venv /usr/bin/python3 -c 'import ensurepip'
    need gcc has gcc
    need libc6-dev test -e /usr/include/stdlib.h
    need python3-dev is_there "/usr/include/python3.*/Python.h"
    ;;
demo)
    need gcc has gcc
    need libc6-dev test -e /usr/include/stdlib.h
    ;;
test)
    need gcc has gcc
    need g++ has g++
    need libc6-dev test -e /usr/include/stdlib.h
    need gcc-multilib sh -c 'echo "int main(void) { return 0; }" | gcc -m32 -x c -o /dev/null -'
    need rustc has rustc
    libraries=/usr/lib/x86_64-linux-gnu
    need libjemalloc2 is_there "$libraries/libjemalloc.so.2"
    need_any "libtcmalloc-minimal4 libtcmalloc-minimal4t64" \
        is_there "$libraries/libtcmalloc_minimal.so.*"
    need_any "libmimalloc2.0 libmimalloc3 libmimalloc2" is_there "$libraries/libmimalloc.so.*"
    need musl-tools has musl-gcc
    need strace has strace
    need bpftrace has bpftrace
    need redis-server has redis-server
    need sqlite3 has sqlite3
    need jq has jq
    need php-cli has php
    need perl perl -Mthreads -e 1
    need git has git
    need tmux has tmux
    need util-linux has setpriv
    need systemd has systemd-analyze
    need binutils has addr2line
    # Files of another processor, as data. (A compiler for it would conflict with gcc-multilib.)
    need binutils-aarch64-linux-gnu has aarch64-linux-gnu-objdump
    need libc6-dev-arm64-cross is_there "/usr/aarch64-linux-gnu/lib/libc.so"
    need libstdc++6-arm64-cross is_there "/usr/aarch64-linux-gnu/lib/libstdc++.so.6"
    need libhwasan0-arm64-cross is_there "/usr/aarch64-linux-gnu/lib/libhwasan.so.0"
    need llvm has llvm-symbolizer
    need libc6-dbg is_there "/usr/lib/debug/.build-id/*/*.debug"
    need nodejs has node
    need golang-go has go
    need graphviz has dot
    need debuginfod has debuginfod
    need prometheus has promtool
    need_any "chromium-headless-shell chromium" \
        sh -c 'command -v chromium-headless-shell || command -v chromium'
    need_any "libpython3.11 libpython3.12 libpython3.13 libpython3.14" \
        is_there "$libraries/libpython3.*.so.1.0"
    need_any "libssl3 libssl3t64" is_there "$libraries/libcrypto.so.3"
    need_any "libllvm14 libllvm18 libllvm19" is_there "$libraries/libLLVM-1*.so*"
    ;;
cross) need_cross ;;
kernels)
    need_cross
    need qemu-system-x86 has qemu-system-x86_64
    need qemu-system-arm has qemu-system-aarch64
    need mmdebstrap has mmdebstrap
    need cpio has cpio
    need zstd has zstd
    need xz-utils has xz
    need e2fsprogs has mke2fs
    need debian-archive-keyring test -e /usr/share/keyrings/debian-archive-keyring.gpg
    ;;
release)
    need_cross
    need mmdebstrap has mmdebstrap
    need debian-archive-keyring test -e /usr/share/keyrings/debian-archive-keyring.gpg
    need git has git
    ;;
esac

[ -n "$missing" ] || exit 0
if ! has apt-get >/dev/null; then
    echo "please install the equivalents of these Debian packages:$missing" >&2
    exit 1
fi
sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
echo "installing$missing"
export DEBIAN_FRONTEND=noninteractive
# Package lists are fetched only if what there is does not lead to the packages.
# shellcheck disable=SC2086
$sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null 2>&1 || {
    $sudo apt-get update -qq
    $sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null
}
