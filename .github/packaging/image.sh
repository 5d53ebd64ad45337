#!/bin/sh
# Runs the Dockerfile's steps in new Debian systems, without a container engine: says how large both
# images are, and tries what is in them. Needs root and mmdebstrap. Argument: the release (bookworm).
set -eu

# What is mounted here ends with this process, however that ends.
[ -n "${IN_NAMESPACE-}" ] || exec env IN_NAMESPACE=1 unshare --mount --propagation private "$0" "$@"

suite=${1:-bookworm}
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
cleanup() {
    for root in "$work"/*/; do
        for each in proc sys dev; do umount --recursive --lazy "$root$each" 2>/dev/null || true; done
    done
    rm -rf --one-file-system "$work"
}
trap cleanup EXIT
trap 'exit 1' INT TERM

steps() { # steps STAGE: the commands of the Dockerfile's stage, 1 to 3
    awk -v stage="$1" '/^FROM/ { n++ } n == stage' .github/packaging/Dockerfile |
        sed -e ':a' -e '/\\$/N; s/\\\n//; ta' | sed -n 's/^RUN //p'
}
inside() { # inside ROOT COMMAND...
    root=$work/$1
    shift
    env -i PATH=/opt/tracelloc/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
        PIP_CERT=/root/authorities.crt PIP_DISABLE_PIP_VERSION_CHECK=1 \
        DEBIAN_FRONTEND=noninteractive chroot "$root" "$@"
}
begin() { # begin NAME: a new Debian, as debian:SUITE-slim is
    mkdir "$work/$1"
    tar -xf "$work/base.tar" -C "$work/$1"
    for each in proc sys dev; do mount --rbind "/$each" "$work/$1/$each"; done
    cp /etc/resolv.conf "$work/$1/etc/"
    cp /etc/ssl/certs/ca-certificates.crt "$work/$1/root/authorities.crt" # this machine's, too
}
size() { # size NAME: its bytes, compressed as registries keep them
    tar -C "$work/$1" --one-file-system --exclude=./proc --exclude=./sys --exclude=./dev \
        --exclude=./var/cache/apt --exclude=./root/authorities.crt -cf - . |
        gzip | wc -c
}

mmdebstrap --quiet --mode=root --variant=minbase \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    "$suite" "$work/base.tar" "${MIRROR:-http://deb.debian.org/debian}"
begin build
mkdir -p "$work/build/src"
git archive HEAD pyproject.toml README.md LICENSE filters.toml .github/packaging probes ui tracelloc |
    tar -xf - -C "$work/build/src"
inside build sh -euc "$(steps 1)" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
for stage in small:2 whole:3; do
    name=${stage%:*}
    begin "$name"
    inside "$name" sh -euc "$(steps "${stage#*:}")" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
    cp -a "$work/build/opt/tracelloc" "$work/$name/opt/"
    inside "$name" tracelloc --version >/dev/null
    echo "$suite, $name: $(($(size "$name") >> 20)) MiB compressed"
done
gcc -O1 -g -fno-optimize-sibling-calls -pthread -o "$work/small/opt/leaky" tests/targets/leaky.c
cp "$work/small/opt/leaky" "$work/whole/opt/"
expect() { # expect STATUS WORDS ROOT COMMAND...: it ends so, and says this
    status=$1 words=$2 ended=0
    shift 2
    inside "$@" >"$work/log" 2>&1 || ended=$?
    [ $ended = "$status" ] && grep -q "$words" "$work/log" || {
        echo "status $ended: $*" && cat "$work/log" && exit 1
    } >&2
}
for name in small whole; do
    expect 3 record_request "$name" tracelloc run -- /opt/leaky 3
    expect 0 record_request "$name" tracelloc --preload on --text --top 9 -- /opt/leaky 3
    expect 0 anonymous "$name" tracelloc top --count 1
done
few="setpriv --bounding-set=-all,+bpf,+perfmon,+sys_ptrace --inh-caps=-all"
for rights in env "$few"; do
    # shellcheck disable=SC2086
    expect 0 record_request whole $rights tracelloc --text --top 9 --duration 3s -- /opt/leaky 9
done
expect 1 "bcc is not installed" small tracelloc -p 1 --preload off
echo "$suite: both run; the whole one traces, also with CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE alone"
