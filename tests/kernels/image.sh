#!/usr/bin/env bash
# Makes the root disk of a virtual machine: Debian with what the tests need, and the project's
# .venv in it, made as users make it. Run by guest.sh, in a mount namespace of its own.
#
#   image.sh SUITE IMAGE MIRROR
set -euo pipefail
cd "$(dirname "$0")/../.."
suite=$1 image=$2 mirror=$3
work=$(mktemp -d "$image.XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT
root=$work/root
mkdir "$root"
case $suite in
bookworm) more=libtcmalloc-minimal4,libmimalloc2.0,libpython3.11,libssl3,libllvm14 ;;
*) more=libtcmalloc-minimal4t64,libmimalloc3,libpython3.13,libssl3t64,libllvm19 ;;
esac
mmdebstrap --quiet --mode=root --variant=minbase --include="ca-certificates,make,git,gcc,g++,\
libc6-dev,gcc-multilib,python3-bpfcc,python3-dev,python3-venv,procps,iproute2,kmod,util-linux,strace,binutils,\
libseccomp-dev,libc6-dbg,rustc,musl-tools,sqlite3,nodejs,redis-server,llvm,libjemalloc2,$more" "$suite" "$root" "$mirror"
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
cp /etc/resolv.conf "$root/etc/resolv.conf"
mkdir "$root/p"
git ls-files -z | tar --null -T - --ignore-failed-read -cf - | tar -C "$root/p" -xf -
export PIP_CERT=/etc/ssl/certs/ca-certificates.crt
unset PIP_FIND_LINKS PIP_EXTRA_INDEX_URL PIP_CONSTRAINT
# The environment is made in the guest's own userland; only pip needs the network.
mount --bind /proc "$root/proc"
chroot "$root" sh -c 'cd /p && make -s .venv/.developer && .venv/bin/python -m compileall -q tracelloc tests'
umount "$root/proc"
cat >"$root/lab-init" <<'END'
#!/bin/bash
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev 2>/dev/null
mkdir -p /dev/pts /dev/shm
mount -t devpts none /dev/pts
mount -t tmpfs none /dev/shm
mount -t tmpfs none /run
mount -t tmpfs -o size=60% none /tmp
mount -t tracefs none /sys/kernel/tracing
mount -t debugfs none /sys/kernel/debug 2>/dev/null
mount -t cgroup2 none /sys/fs/cgroup
ln -sfn /proc/self/fd /dev/fd
hostname lab
ip link set lo up
mkdir -p /out
tar -C /p -xf /dev/vdb
export OUT=/out HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export LANG=C.UTF-8 TERM=xterm
mapfile -d '' -t command </p/.lab-command
cd /p
setsid -w "${command[@]}" </dev/null >/dev/ttyS1 2>&1
echo $? >/out/.status
dmesg >/out/.dmesg
tar -cf /dev/vdc -C /out .
sync
echo o >/proc/sysrq-trigger
sleep 60
END
chmod +x "$root/lab-init"
truncate -s 12G "$work/ext4"
mke2fs -q -t ext4 -O ^metadata_csum_seed,^orphan_file -d "$root" "$work/ext4" 2>/dev/null ||
    mke2fs -q -t ext4 -d "$root" "$work/ext4"
mv "$work/ext4" "$image"
