#!/bin/sh
# Sets up what the benchmark compares with, on Debian and Ubuntu. What can't be had is
# left out of the comparison, so nothing in here is an error.
set -u

missing=
need() { # need PACKAGE COMMAND
    command -v "$2" >/dev/null || missing="$missing $1"
}

PATH=$PATH:/usr/sbin:/sbin
need bpfcc-tools memleak-bpfcc
need bpftrace bpftrace
need heaptrack heaptrack
need valgrind valgrind
need redis-server redis-server
need redis-tools redis-benchmark
need perl perl

# memleak is compiled with kernel headers, and looks for those of the running kernel.
# It uses no kernel structure but the registers, so another version's serve as well.
kernel=/lib/modules/$(uname -r)
[ -e "$kernel/build" ] || [ -e /sys/kernel/kheaders.tar.xz ] || missing="$missing linux-headers-amd64"

if [ -n "$missing" ] && command -v apt-get >/dev/null; then
    echo "installing$missing"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq || true
    for package in $missing; do
        apt-get install -y -qq --no-install-recommends "$package" >/dev/null 2>&1 ||
            echo "could not install $package"
    done
fi

if ! [ -e "$kernel/build" ] && ! [ -e /sys/kernel/kheaders.tar.xz ]; then
    for other in /lib/modules/*/build; do
        [ -e "$other" ] || continue
        echo "memleak gets the headers in ${other%/build}"
        mkdir -p "$kernel"
        # Debian's headers are two trees: build is made from source.
        for tree in build source; do
            [ ! -e "${other%/build}/$tree" ] ||
                ln -sfn "$(readlink -f "${other%/build}/$tree")" "$kernel/$tree"
        done
        break
    done
fi
exit 0
