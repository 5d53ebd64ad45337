#!/bin/sh
# Installs what is missing of the system's packages. Argument: run, demo, test, long, nightly, cross,
# kernels or release.
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
test | long | nightly)
    need gcc has gcc
    need g++ has g++
    need libc6-dev test -e /usr/include/stdlib.h
    libraries=/usr/lib/x86_64-linux-gnu
    need libjemalloc2 is_there "$libraries/libjemalloc.so.2"
    need_any "libtcmalloc-minimal4 libtcmalloc-minimal4t64" \
        is_there "$libraries/libtcmalloc_minimal.so.*"
    need_any "libmimalloc2.0 libmimalloc3 libmimalloc2" is_there "$libraries/libmimalloc.so.*"
    need musl-tools has musl-gcc
    need strace has strace
    need redis-server has redis-server
    need sqlite3 has sqlite3
    need jq has jq
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
    need debuginfod has debuginfod
    need_any "libpython3.11 libpython3.12 libpython3.13 libpython3.14" \
        is_there "$libraries/libpython3.*.so.1.0"
    need_any "libssl3 libssl3t64" is_there "$libraries/libcrypto.so.3"
    need_any "libllvm14 libllvm18 libllvm19" is_there "$libraries/libLLVM-1*.so*"
    ;;
esac
case $1 in
long | nightly) # compilers and programs of some size
    need gcc-multilib sh -c 'echo "int main(void) { return 0; }" | gcc -m32 -x c -o /dev/null -'
    need rustc has rustc
    need golang-go has go
    need nodejs has node
    need php-cli has php
    need bpftrace has bpftrace
    need graphviz has dot
    need_cross # the preloaded library, for emulated programs
    need qemu-user has qemu-aarch64
    need debian-archive-keyring test -e /usr/share/keyrings/debian-archive-keyring.gpg
    need_any "chromium-headless-shell chromium" \
        sh -c 'command -v chromium-headless-shell || command -v chromium'
    ;;
esac
case $1 in
nightly)
    need prometheus has promtool
    need cmake has ctest
    need meson has meson
    need automake has automake
    need cargo has cargo
    need ruby has ruby
    need_any "postgresql-15 postgresql-17 postgresql" is_there "/usr/lib/postgresql/*/bin/postgres"
    need erlang-base has erl
    need_any "openjdk-17-jdk-headless openjdk-21-jdk-headless default-jdk-headless" has javac
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
if [ "$(id -u)" = 0 ]; then
    SUDO=
elif [ -z "${SUDO-sudo}" ]; then
    # Only probes need bcc.
    only_bcc=$([ "$missing" != " python3-bpfcc" ] || echo "there are no probes without bcc; ")
    echo "${only_bcc}ask an administrator for: apt install --no-install-recommends$missing" >&2
    [ -n "$only_bcc" ]
    exit
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() { # apt ARGUMENT...: apt-get, with what it says in the log
    ${SUDO-sudo} env DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 \
        apt-get -q --no-install-recommends "$@" >"$log" 2>&1
}
lines() { grep -c "^$1" "$log" || true; } # lines START: how many the log has
# Package lists are fetched only if what there is does not lead to the packages.
# shellcheck disable=SC2086
apt --simulate install $missing || {
    echo "fetching package lists"
    apt update
    apt --simulate install $missing || { cat "$log" >&2; exit 1; }
}
count=$(lines "Inst ")
# shellcheck disable=SC2086
apt --assume-no install $missing || true
echo "installing$missing"
grep -e '^Need to get' -e '^After this' "$log" || true
# shellcheck disable=SC2086
apt -y install $missing &
said=
while kill -0 $! 2>/dev/null; do
    sleep 2
    now="$(lines Get:) of $count packages fetched, $(lines "Setting up") set up"
    [ "$now" = "$said" ] || echo "$now"
    said=$now
done
wait $! || { cat "$log" >&2; exit 1; }
