#!/bin/sh
# Makes the wheels, the source distribution and the .deb files in dist/, and checks each. Debian 12's
# releases and later ones can use what is made on Debian 12. Arguments: releases to check on.
# The wheel for 64-bit Arm is not installed anywhere: `make kernels KERNELS=arm64` runs its parts.
set -eu
cd "$(dirname "$0")/../.."
sudo=
[ "$(id -u)" = 0 ] || sudo=sudo

tools=.venv/release
[ -x $tools/bin/twine ] || {
    python3 -m venv $tools
    $tools/bin/pip install --quiet --disable-pip-version-check abi3audit auditwheel build twine
}
rm -rf dist build
export DIST_EXTRA_CONFIG="$PWD/.venv/build.cfg"
$tools/bin/python -m build --outdir dist .
.github/packaging/cross.sh $tools/bin/python -m build --wheel --outdir dist \
    --config-setting=--build-option=--plat-name=manylinux_2_34_aarch64 .
wheel=$(echo dist/*_x86_64.whl)
for each in dist/*.whl; do
    case $each in
    *-cp311-abi3-*) ;;
    *) echo "$each is not for all versions of Python" >&2 && exit 1 ;;
    esac
    $tools/bin/abi3audit --strict "$each"
    $tools/bin/auditwheel show "$each"
done
$tools/bin/auditwheel show dist/*_aarch64.whl | grep -q '"manylinux_2_34_aarch64"' || {
    echo "the wheel for 64-bit Arm is not what its name says" >&2 && exit 1
}
# The wheel for 64-bit Arm has all compiled parts.
parts() { $tools/bin/python -m zipfile -l "$1" | grep -o 'tracelloc/.*\.so' | sort; }
parts "$wheel" >build/parts
parts dist/*_aarch64.whl | diff build/parts -
$tools/bin/twine check --strict dist/*
for each in dist/*.whl; do PYTHON=$tools/bin/python .github/packaging/deb.sh "$each" dist; done
for each in dist/*.deb; do # as the wheels
    dpkg-deb -c "$each" | grep -o 'tracelloc/tracelloc/.*\.so' | cut -d/ -f2- | sort | diff build/parts -
done
for suite in "$@"; do
    # shellcheck disable=SC2086
    $sudo ${MIRROR:+env MIRROR=$MIRROR} .github/packaging/check.sh "$suite" dist
done
ls -l dist
