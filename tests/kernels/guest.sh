#!/usr/bin/env bash
# Runs a command in a virtual machine with one of Debian's kernels.
#
#   tests/kernels/guest.sh KERNEL[/SUITE] COMMAND...
#
# KERNEL  a Debian package and its suite, such as linux-image-rt-amd64/trixie; one for arm64 gets
#         a 64-bit Arm machine, and the compiled parts are compiled for that first
# COMMAND is run by root in a copy of the work tree, whose .venv is there; its exit status is
#         ours, or 125 if the guest never came to its end. An oops ends the guest at once.
#         What the command leaves in $OUT comes back to LAB_OUT, beside .dmesg and .console.
#
# Environment: LAB (cache of some GB; ~/.cache/tracelloc-kernels), LAB_USERLAND (bookworm or
# trixie), LAB_CPUS (2), LAB_MEMORY (3G), LAB_APPEND (kernel parameters, such as preempt=full),
# LAB_TIMEOUT (900 s), LAB_OUT, LAB_CACHE (a file that is .lab-cache.tar in the work tree).
#
# Needs root (mmdebstrap, mke2fs -d keep owners), the work tree's .venv, and what
# tests/system-packages.sh installs for kernels.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0" >&2; exit 64; }
kernel=$1
shift
LAB=${LAB:-${XDG_CACHE_HOME:-$HOME/.cache}/tracelloc-kernels}
userland=${LAB_USERLAND:-bookworm}
case $kernel in *arm64*) machine=arm64 disk=arm64-$userland ;; *) machine=amd64 disk=$userland ;; esac
tree=$(realpath "$(dirname "$0")/../..")
# The mirror that this machine's own sources name.
mirror=${LAB_MIRROR:-$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | grep -v '^ *#' |
    grep -oE 'https?://[^ ]+/debian/?( |$)' | head -1 | tr -d ' ' || true)}
mkdir -p "$LAB"
LAB=$(realpath "$LAB")
run=$(mktemp -d "$LAB/run.XXXXXX")
qemu=
trap '[ -z "$qemu" ] || kill "$qemu" 2>/dev/null || true; rm -rf --one-file-system "$run"' EXIT
trap 'exit 130' INT TERM HUP
exec 9>"$LAB/lock" # one builds, the others wait

# --- the kernel: unpacked, with an initramfs of the few modules that lead to the root disk ---
apt=$LAB/apt-$machine
apt_own() { # apt-get with lists of our own: the machine's sources stay as they are
    apt-get -qq -o APT::Architecture=$machine -o APT::Architectures=$machine \
        -o Dir::Etc::sourcelist="$apt/sources.list" -o Dir::Etc::sourceparts=/nonexistent \
        -o Dir::State::lists="$apt/lists" -o Dir::State::status=/dev/null \
        -o Dir::Cache="$apt/cache" -o APT::Sandbox::User=root "$@"
}

# What leads to the root disk, each after what it needs.
modules=(crc16 libcrc32c crc32c_generic crc32c-intel mbcache jbd2 ext4 virtio virtio_ring
    virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk)

fetch_kernel() { # fetch_kernel PACKAGE[/SUITE] DIRECTORY
    local suite package deb packages=("$1")
    if ! [ -e "$apt/sources.list" ]; then
        mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
        for suite in bullseye bookworm bookworm-backports trixie trixie-backports sid; do
            echo "deb [arch=$machine signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main"
        done >"$apt/sources.list.new"
        mv "$apt/sources.list.new" "$apt/sources.list"
        apt_own update
    fi
    suite=${1##"${1%%/*}"}
    mkdir -p "$2" "$run/deb"
    while [ ${#packages[@]} -gt 0 ]; do # some packages only name another, or are in pieces
        package=${packages[0]}
        packages=("${packages[@]:1}")
        (cd "$run/deb" && apt_own download "$package")
        deb=$(ls "$run"/deb/*.deb)
        dpkg-deb --fsys-tarfile "$deb" | tar -C "$2" -x --wildcards --no-anchored \
            'vmlinuz*' 'config-*' "${modules[@]/%/.ko*}" 2>/dev/null || true # no piece has all
        for package in $(dpkg-deb -f "$deb" Depends | tr ',|' '\n\n' | grep -oE 'linux-(image|binary|modules)-[^ ]+' || true); do
            packages+=("$package$suite")
        done
        rm "$deb"
    done
    (cd "$run/deb" && apt_own download busybox-static/trixie)
    dpkg-deb --fsys-tarfile "$run"/deb/*.deb | tar -C "$2" -x --wildcards --transform 's|.*/||' '*/bin/busybox'
}

make_initramfs() { # make_initramfs KERNEL_DIRECTORY
    local file module number=100 root=$run/initramfs
    mkdir -p "$root"/{bin,m,root,dev}
    cp "$1/busybox" "$root/bin/busybox"
    for module in "${modules[@]}"; do
        file=$(find "$1" -name "$module.ko*" | head -1)
        [ -n "$file" ] || continue # built in, or not of this kernel
        number=$((number + 1))
        case $file in
        *.xz) xz -dc "$file" ;;
        *.zst) zstd -qdc "$file" ;;
        *) cat "$file" ;;
        esac >"$root/m/$number-$module.ko"
    done
    cat >"$root/init" <<'END'
#!/bin/busybox sh
for module in /m/*; do /bin/busybox insmod "$module" 2>/dev/null; done
/bin/busybox mount -t devtmpfs none /dev
until [ -b /dev/vda ]; do /bin/busybox usleep 20000; done
/bin/busybox mount -t ext4 /dev/vda /root
exec /bin/busybox switch_root /root /lab-init
END
    chmod +x "$root/init"
    (cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) >"$1/initramfs"
    rm -rf "$root"
}

pack_tree() { # pack_tree ARCHIVE: tracked files as they are now, and what is compiled
    # What is compiled fits all versions of Python, and all newer C libraries.
    (cd "$tree" && git ls-files -z | tar --null -T - --ignore-failed-read -cf "$1")
    (cd "$compiled" && find tracelloc -name '*.abi3.so' -print0 | tar --null -T - -rf "$1")
}

flock 9
unpacked=$LAB/kernel-${kernel//\//-}
if ! [ -e "$unpacked/initramfs" ]; then
    rm -rf "$unpacked"
    fetch_kernel "$kernel" "$unpacked"
    make_initramfs "$unpacked"
fi
made_of=$(cat "$tree/pyproject.toml" "$tree/tests/kernels/image.sh" | sha256sum | cut -c1-12)
image=$LAB/rootfs-$disk-$made_of.ext4
[ -e "$image" ] || rm -f "$LAB/rootfs-$disk"-*.ext4
# In a mount namespace of its own: whatever ends it, none of its mounts are left.
[ -e "$image" ] || unshare --mount "$tree/tests/kernels/image.sh" $machine "$userland" "$image" "$mirror"
compiled=$tree
if [ $machine = arm64 ]; then
    compiled=$tree/build/arm64
    (cd "$tree" && DIST_EXTRA_CONFIG=.venv/build.cfg .github/packaging/cross.sh \
        env PYTHONPATH=.github/packaging .venv/bin/python -c 'import setuptools; setuptools.setup()' build_ext --build-lib "$compiled") \
        >"$run/compiler.log" 2>&1 || { cat "$run/compiler.log" >&2; exit 1; }
fi
flock -u 9

# --- run it ---
printf '%s\0' "$@" >"$run/.lab-command"
pack_tree "$run/tree.tar"
tar -C "$run" -rf "$run/tree.tar" .lab-command
if [ -e "${LAB_CACHE:-}" ]; then
    cp "$LAB_CACHE" "$run/.lab-cache.tar"
    tar -C "$run" -rf "$run/tree.tar" .lab-cache.tar
fi
truncate -s 256M "$run/out.tar"
tcg="-accel tcg,thread=multi,tb-size=512"
case $machine in
amd64)
    # A /dev/kvm without vmx or svm (kvm_pvm) runs kernels made for it only, Debian's are not.
    emulator="qemu-system-x86_64 $tcg -cpu ${LAB_CPU:-Nehalem}"
    if [ -w /dev/kvm ] && grep -qwE 'vmx|svm' /proc/cpuinfo; then
        emulator="qemu-system-x86_64 -accel kvm -cpu host"
    fi
    # QEMU 7.2 emulates cmpxchg16b wrongly now and then, which breaks the kernel (double faults in
    # __kmalloc): the kernel is told that there is none (clearcpuid), programs that ask may have it.
    parameters="console=ttyS0 LAB_TTY=/dev/ttyS1 clearcpuid=141 no_timer_check"
    second_console="-serial stdio"
    ;;
arm64)
    # Kernels of 2026 hang at once with the 52-bit addresses of QEMU 7.2 (lpa2).
    emulator="qemu-system-aarch64 -M virt,gic-version=3 $tcg -cpu ${LAB_CPU:-max,lpa2=off,pauth-impdef=on}"
    parameters="console=ttyAMA0 LAB_TTY=/dev/hvc0"
    second_console="-device virtio-serial-pci -chardev stdio,id=out -device virtconsole,chardev=out"
    ;;
esac
drive() { echo "-drive file=$1,format=raw,if=virtio,cache=unsafe"; }
# shellcheck disable=SC2046,SC2086
timeout -k 10 "${LAB_TIMEOUT:-900}" $emulator -smp "${LAB_CPUS:-2}" \
    -m "${LAB_MEMORY:-3G}" -display none -monitor none -no-reboot -nic none \
    -kernel "$(find "$unpacked" -name 'vmlinuz*' -type f | head -1)" -initrd "$unpacked/initramfs" \
    -append "quiet panic=-1 oops=panic $parameters mitigations=off cryptomgr.notests apparmor=0 audit=0 ${LAB_APPEND:-}" \
    $(drive "$image"),snapshot=on $(drive "$run/tree.tar") $(drive "$run/out.tar") \
    -serial "file:$run/console" $second_console </dev/null > >(exec sed -u 's/\r$//') &
qemu=$!
wait "$qemu" || true
out=${LAB_OUT:-$run/out}
mkdir -p "$out"
rm -f "$out/.status"
tar -C "$out" -xf "$run/out.tar" 2>/dev/null || true
cp "$run/console" "$out/.console"
if ! [ -e "$out/.status" ]; then
    echo "the guest never came to the end of the command; its console:" >&2
    tail -60 "$run/console" >&2
    exit 125
fi
exit "$(cat "$out/.status")"
