#!/bin/sh
# Sets up what the benchmark compares with, on Debian and Ubuntu. What can't be had is
# left out of the comparison, so nothing in here is an error.
set -u

missing=
need() { # need PACKAGE COMMAND
    command -v "$2" >/dev/null || missing="$missing $1"
}

PATH=$PATH:/usr/sbin:/sbin
need bpftrace bpftrace
need heaptrack heaptrack
need valgrind valgrind
need redis-server redis-server
need redis-tools redis-benchmark
need perl perl

if [ -n "$missing" ] && command -v apt-get >/dev/null; then
    echo "installing$missing"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq || true
    for package in $missing; do
        apt-get install -y -qq --no-install-recommends "$package" >/dev/null 2>&1 ||
            echo "could not install $package"
    done
fi
exit 0
