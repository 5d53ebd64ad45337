#!/bin/sh
# Makes tracelloc_VERSION_amd64.deb or tracelloc_VERSION_arm64.deb from a wheel. Arguments: the wheel,
# the folder for the package.
# One package serves all releases of Debian from 12 on: what is compiled in it uses only Python's
# stable ABI.
set -eu

wheel=$(realpath "$1")
out=$(realpath "$2")
version=$(basename "$wheel" | cut -d- -f2)
arch=amd64 platforms=
case $wheel in
*_aarch64.whl) # packages with code for it that Debian 12 can use
    arch=arm64
    for glibc in $(seq 17 36); do platforms="$platforms --platform manylinux_2_${glibc}_aarch64"; done
    ;;
esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
lib=$root/usr/lib/tracelloc
doc=$root/usr/share/doc/tracelloc
mkdir -p "$lib" "$doc/examples" "$root/DEBIAN" "$root/usr/bin" "$root/usr/share/man/man1" \
    "$root/usr/share/bash-completion/completions"
chmod 755 "$work"

# Debian's numpy and zstandard serve, because these are compiled for one version of Python. The
# others are too old there, or missing.
python3 - "$wheel" >"$work/requirements" <<'END'
import email, sys, zipfile

with zipfile.ZipFile(sys.argv[1]) as wheel:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = email.message_from_bytes(wheel.read(name))
for need in metadata.get_all("Requires-Dist", []):
    if "extra ==" not in need and not need.startswith(("numpy", "zstandard")):
        print(need)
END
pip() { # pip ARGUMENT...: install into the package
    # shellcheck disable=SC2086
    "${PYTHON:-python3}" -m pip install --quiet --disable-pip-version-check --no-compile \
        --only-binary :all: $platforms --target "$lib" "$@"
}
pip --requirement "$work/requirements"
pip --no-deps "$wheel"
for file in $(find "$lib" -name '*.cpython-*'); do
    echo "$file is for one version of Python only" >&2
    exit 1
done
rm -rf "$lib/bin" "$lib/capstone/include"

gzip -9n <"$lib/share/man/man1/tracelloc.1" >"$root/usr/share/man/man1/tracelloc.1.gz"
rm -r "$lib/share"
gzip -9n <CHANGELOG.md >"$doc/changelog.gz"
cp LICENSE "$doc/copyright"
cp README.md "$doc/"
cp .github/packaging/tracelloc@.service "$doc/examples/"

# -I: neither the current folder nor variables nor the user's packages decide what root runs.
cat >"$root/usr/bin/tracelloc" <<'END'
#!/usr/bin/python3 -I
import sys

sys.path.insert(0, "/usr/lib/tracelloc")

from tracelloc.__main__ import main

sys.exit(main())
END
PYTHONPATH=$lib PYTHONDONTWRITEBYTECODE=1 python3 -m tracelloc completion bash \
    >"$root/usr/share/bash-completion/completions/tracelloc"

cat >"$root/DEBIAN/control" <<END
Package: tracelloc
Version: $version
Architecture: $arch
Maintainer: tracelloc maintainers
Installed-Size: $(du -sk "$root/usr" | cut -f1)
Depends: python3 (>= 3.11), python3-bpfcc, python3-numpy (>= 1:1.24), python3-zstandard, libc6 (>= 2.34)
Section: devel
Priority: optional
Description: live heap profiler for running, unmodified Linux programs, by eBPF
 tracelloc shows which call stacks of a running process allocate memory that is never
 freed, and tells leaks from caches, pools and start-up memory. It attaches to unmodified
 programs, needs no restart, and counts every allocation and free.
END
# Else root's first run would write files that no package owns.
cat >"$root/DEBIAN/postinst" <<'END'
#!/bin/sh
set -e
[ "$1" != configure ] || py3compile -p tracelloc /usr/lib/tracelloc
END
cat >"$root/DEBIAN/prerm" <<'END'
#!/bin/sh
set -e
py3clean -p tracelloc
END
chmod 755 "$root/usr/bin/tracelloc" "$root/DEBIAN/postinst" "$root/DEBIAN/prerm"
chmod -R u=rwX,go=rX "$root"
dpkg-deb --build --root-owner-group "$root" "$out/tracelloc_${version}_$arch.deb"
