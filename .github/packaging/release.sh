#!/bin/sh
# Makes the wheel, the source distribution and the .deb in dist/, and checks each. Debian 12's
# releases and later ones can use what is made on Debian 12. Arguments: releases to check on.
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
DIST_EXTRA_CONFIG=$PWD/.venv/build.cfg $tools/bin/python -m build --outdir dist .
wheel=$(echo dist/*.whl)
case $wheel in
*-cp311-abi3-*) ;;
*) echo "$wheel is not for all versions of Python" >&2 && exit 1 ;;
esac
$tools/bin/abi3audit --strict "$wheel"
$tools/bin/auditwheel show "$wheel"
$tools/bin/twine check --strict dist/*
PYTHON=$tools/bin/python .github/packaging/deb.sh "$wheel" dist
for suite in "$@"; do
    # shellcheck disable=SC2086
    $sudo ${MIRROR:+env MIRROR=$MIRROR} .github/packaging/check.sh "$suite" dist
done
ls -l dist
