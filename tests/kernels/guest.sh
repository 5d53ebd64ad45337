#!/usr/bin/env bash
# Runs a command in a virtual machine with one of Debian's kernels.
#
#   tests/kernels/guest.sh KERNEL[/SUITE] COMMAND...
#
# KERNEL  a Debian package and its suite, such as linux-image-rt-amd64/trixie
# COMMAND is run by root in a copy of the work tree, whose .venv is there; its exit status is
#         ours, or 125 if the guest never came to its end. An oops ends the guest at once.
#         What the command leaves in $OUT comes back to LAB_OUT, beside .dmesg and .console.
#
# Environment: LAB (cache of some GB; ~/.cache/tracelloc-kernels), LAB_USERLAND (bookworm or
# trixie), LAB_CPUS (2), LAB_MEMORY (3G), LAB_APPEND (kernel parameters, such as preempt=full),
# LAB_TIMEOUT (900 s), LAB_OUT, LAB_CACHE (a file that is .lab-cache.tar in the work tree).
#
# Needs root (mmdebstrap, mke2fs -d keep owners), and from Debian: qemu-system-x86 mmdebstrap
# busybox-static cpio zstd xz-utils e2fsprogs debian-archive-keyring.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0" >&2; exit 64; }
kernel=$1
shift
LAB=${LAB:-${XDG_CACHE_HOME:-$HOME/.cache}/tracelloc-kernels}
userland=${LAB_USERLAND:-bookworm}
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
apt_own() { # apt-get or apt-cache with lists of our own: the machine's sources stay as they are
    local tool=$1
    shift
    "$tool" -qq -o Dir::Etc::sourcelist="$LAB/apt/sources.list" -o Dir::Etc::sourceparts=/nonexistent \
        -o Dir::State::lists="$LAB/apt/lists" -o Dir::Cache="$LAB/apt/cache" \
        -o APT::Sandbox::User=root "$@"
}

# What leads to the root disk, each after what it needs.
modules=(crc16 libcrc32c crc32c_generic crc32c-intel mbcache jbd2 ext4 virtio virtio_ring
    virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk)

fetch_kernel() { # fetch_kernel PACKAGE[/SUITE] DIRECTORY
    local suite package deb packages=("$1")
    if ! [ -e "$LAB/apt/sources.list" ]; then
        mkdir -p "$LAB/apt/lists/partial" "$LAB/apt/cache/archives/partial"
        for suite in bullseye bookworm bookworm-backports trixie trixie-backports sid; do
            echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main"
        done >"$LAB/apt/sources.list.new"
        mv "$LAB/apt/sources.list.new" "$LAB/apt/sources.list"
        apt_own apt-get update
    fi
    suite=${1##"${1%%/*}"}
    mkdir -p "$2" "$run/deb"
    while [ ${#packages[@]} -gt 0 ]; do # some packages only name another, or are in pieces
        package=${packages[0]}
        packages=("${packages[@]:1}")
        (cd "$run/deb" && apt_own apt-get download "$package")
        deb=$(ls "$run"/deb/*.deb)
        dpkg-deb --fsys-tarfile "$deb" | tar -C "$2" -x --wildcards --no-anchored \
            'vmlinuz*' 'config-*' "${modules[@]/%/.ko*}" 2>/dev/null || true # no piece has all
        for package in $(dpkg-deb -f "$deb" Depends | tr ',|' '\n\n' | grep -oE 'linux-(image|binary|modules)-[^ ]+' || true); do
            packages+=("$package$suite")
        done
        rm "$deb"
    done
}

make_initramfs() { # make_initramfs KERNEL_DIRECTORY
    local file module number=100 root=$run/initramfs
    mkdir -p "$root"/{bin,m,root,dev}
    cp "$(command -v busybox)" "$root/bin/busybox"
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

pack_tree() { # tracked files as they are now
    # What is compiled fits all versions of Python, and all newer C libraries.
    (cd "$tree" && { git ls-files -z && printf '%s\0' tracelloc/*/*.so; } | tar --null -T - --ignore-failed-read -cf -)
}

flock 9
unpacked=$LAB/kernel-${kernel//\//-}
if ! [ -e "$unpacked/initramfs" ]; then
    rm -rf "$unpacked"
    fetch_kernel "$kernel" "$unpacked"
    make_initramfs "$unpacked"
fi
made_of=$(cat "$tree/pyproject.toml" "$tree/tests/kernels/image.sh" | sha256sum | cut -c1-12)
image=$LAB/rootfs-$userland-$made_of.ext4
[ -e "$image" ] || rm -f "$LAB/rootfs-$userland"-*.ext4
# In a mount namespace of its own: whatever ends it, none of its mounts are left.
[ -e "$image" ] || unshare --mount "$tree/tests/kernels/image.sh" "$userland" "$image" "$mirror"
flock -u 9

# --- run it ---
printf '%s\0' "$@" >"$run/.lab-command"
pack_tree >"$run/tree.tar"
tar -C "$run" -rf "$run/tree.tar" .lab-command
if [ -e "${LAB_CACHE:-}" ]; then
    cp "$LAB_CACHE" "$run/.lab-cache.tar"
    tar -C "$run" -rf "$run/tree.tar" .lab-cache.tar
fi
truncate -s 256M "$run/out.tar"
# A /dev/kvm without vmx or svm (kvm_pvm) runs kernels made for it only, Debian's are not.
accelerator="-accel tcg,thread=multi,tb-size=512 -cpu ${LAB_CPU:-Nehalem}"
# QEMU 7.2 emulates cmpxchg16b wrongly now and then, which breaks the kernel (double faults in
# __kmalloc): the kernel is told that there is none (clearcpuid), programs that ask may have it.
if [ -w /dev/kvm ] && grep -qwE 'vmx|svm' /proc/cpuinfo; then accelerator="-accel kvm -cpu host"; fi
drive() { echo "-drive file=$1,format=raw,if=virtio,cache=unsafe"; }
# shellcheck disable=SC2046,SC2086
timeout -k 10 "${LAB_TIMEOUT:-900}" qemu-system-x86_64 $accelerator -smp "${LAB_CPUS:-2}" \
    -m "${LAB_MEMORY:-3G}" -display none -monitor none -no-reboot -nic none \
    -kernel "$(find "$unpacked" -name 'vmlinuz*' -type f | head -1)" -initrd "$unpacked/initramfs" \
    -append "console=ttyS0 quiet panic=-1 oops=panic clearcpuid=141 mitigations=off no_timer_check cryptomgr.notests apparmor=0 audit=0 ${LAB_APPEND:-}" \
    $(drive "$image"),snapshot=on $(drive "$run/tree.tar") $(drive "$run/out.tar") \
    -serial "file:$run/console" -serial stdio </dev/null > >(exec sed -u 's/\r$//') &
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
