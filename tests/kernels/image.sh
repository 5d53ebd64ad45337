#!/usr/bin/env bash
# Makes the root disk of a virtual machine: Debian with what the tests need, and the project's
# .venv in it, made as users make it. Run by guest.sh, in a mount namespace of its own.
#
#   image.sh MACHINE SUITE IMAGE MIRROR
#
# Nothing of another machine's can be run here: there, packages are only unpacked, and .venv has
# what pip would have written.
set -euo pipefail
cd "$(dirname "$0")/../.."
machine=$1 suite=$2 image=$3 mirror=$4
work=$(mktemp -d "$image.XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT
root=$work/root
mkdir "$root"
case $suite in
bookworm) libraries=libtcmalloc-minimal4,libmimalloc2.0,libpython3.11,libssl3,libllvm14 ;;
*) libraries=libtcmalloc-minimal4t64,libmimalloc3,libpython3.13,libssl3t64,libllvm19 ;;
esac
packages="ca-certificates,make,git,gcc,g++,libc6-dev,python3-bpfcc,python3-dev,python3-venv,procps,\
iproute2,kmod,util-linux,strace,binutils,libc6-dbg,musl-tools,sqlite3,libjemalloc2,$libraries"
case $machine in
amd64) options=(--variant=minbase "--include=gcc-multilib,libseccomp-dev,rustc,nodejs,redis-server,llvm") ;;
*) options=(--variant=extract --skip=check/qemu "--include=?essential" "--include=mount,hostname,mawk") ;;
esac
mmdebstrap --quiet --mode=root --architectures="$machine" "${options[@]}" --include="$packages" \
    "$suite" "$root" "$mirror"
mkdir "$root/p"

make_venv() { # in the guest's own userland; only pip needs the network
    cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
    cp /etc/resolv.conf "$root/etc/resolv.conf"
    git ls-files -z | tar --null -T - --ignore-failed-read -cf - | tar -C "$root/p" -xf -
    export PIP_CERT=/etc/ssl/certs/ca-certificates.crt
    unset PIP_FIND_LINKS PIP_EXTRA_INDEX_URL PIP_CONSTRAINT
    mount --bind /proc "$root/proc"
    chroot "$root" sh -c 'cd /p && make -s .venv/.developer && .venv/bin/python -m compileall -q tracelloc tests'
    umount "$root/proc"
}

write_venv() { # the same from wheels, for a machine whose programs can't be run
    local version venv=$root/p/.venv glibc platforms=()
    version=$(readlink "$root/usr/bin/python3") # python3.13
    mkdir -p "$venv/bin"
    ln -s /usr/bin/python3 "$venv/bin/python"
    printf 'home = /usr/bin\ninclude-system-site-packages = true\n' >"$venv/pyvenv.cfg"
    printf '#!/p/.venv/bin/python\nfrom tracelloc.__main__ import main\n\nraise SystemExit(main())\n' \
        >"$venv/bin/tracelloc"
    chmod +x "$venv/bin/tracelloc"
    for glibc in {17..36}; do platforms+=(--platform "manylinux_2_${glibc}_aarch64"); done
    .venv/bin/python -c "import tomllib; project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
        print(*project['dependencies'], *(need for need in project['optional-dependencies']['dev'] \
            if need.startswith(('opentelemetry', 'prometheus', 'protobuf', 'pytest'))), sep='\n')" >"$work/requirements"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --only-binary=:all: \
        "${platforms[@]}" --implementation cp --python-version "${version#python}" \
        --target "$venv/lib/$version/site-packages" --requirement "$work/requirements"
    echo /p >"$venv/lib/$version/site-packages/tracelloc.pth"
    # The package's entry points: pytest finds the plug-in by them.
    PYTHONPATH=.github/packaging .venv/bin/python -W ignore -c 'import setuptools; setuptools.setup()' \
        --quiet dist_info --output-dir "$venv/lib/$version/site-packages"
    # What the packages' scripts would have done.
    cp "$root/usr/share/base-passwd/passwd.master" "$root/etc/passwd"
    cp "$root/usr/share/base-passwd/group.master" "$root/etc/group"
    ln -sfn mawk "$root/usr/bin/awk"
    mkdir -p "$root/usr/aarch64-linux-gnu" # where tests find the files of the cross libraries
    ln -s ../lib/aarch64-linux-gnu "$root/usr/aarch64-linux-gnu/lib"
}

if [ "$machine" = amd64 ]; then make_venv; else write_venv; fi
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
[ -e /etc/ld.so.cache ] || ldconfig
ip link set lo up
mkdir -p /out
tar -C /p -xf /dev/vdb
export OUT=/out HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export LANG=C.UTF-8 TERM=xterm
mapfile -d '' -t command </p/.lab-command
cd /p
setsid -w "${command[@]}" </dev/null >"$LAB_TTY" 2>&1
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
