#!/bin/sh
# Runs the tests of what is compiled with AddressSanitizer, UndefinedBehaviorSanitizer and
# Cython's checks of bounds, in a copy of the sources. Arguments: the copy's folder, Python.
set -eu
copy=$1
python=$2

rm -rf "$copy"
mkdir -p "$copy"
cp -rp .github tracelloc ui probes tests filters.toml pyproject.toml README.md LICENSE "$copy"
find "$copy/tracelloc" -name '*.so' -delete
find "$copy/tracelloc" -name '*.pyx' -exec sed -i \
    's/boundscheck=False, wraparound=False/boundscheck=True, wraparound=False/' {} +
cd "$copy"
# Compiling takes longer than the tests.
sed -i 's/"-O2", "-g0"/"-O0", "-g"/' pyproject.toml
CFLAGS="-fsanitize=address,undefined -fno-sanitize-recover=undefined" \
LDFLAGS="-fsanitize=address,undefined" PYTHONPATH=.github/packaging \
    "$python" -c 'import setuptools; setuptools.setup()' -q build_ext --inplace --parallel 2 >build.log 2>&1 || {
    cat build.log >&2
    exit 1
}
# Python itself does not free all that it allocates. What the other tests share loads a library
# in a way that sanitizers can't follow.
ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD=$(gcc -print-file-name=libasan.so) \
    "$python" -m pytest -q -s -p no:cacheprovider --noconftest --numprocesses 2 \
    tests/unit/heap/test_table.py tests/unit/heap/test_short_lives.py tests/unit/heap/test_lives.py \
    tests/unit/heap/test_cohorts.py tests/unit/heap/test_earlier_table.py tests/unit/record/reachability/test_wordlog.py \
    tests/unit/record/heapwalk/test_heapwalk.py tests/unit/record/reachability/test_structures.py \
    tests/unit/record/reachability/test_reachability.py tests/unit/record/sources/preloaded/test_preloaded.py \
    tests/unit/heap/test_fork.py tests/unit/record/kernel/test_ring.py tests/unit/heap/test_sampling.py \
    tests/unit/verdict/test_survival.py tests/unit/record/test_drain.py tests/unit/record/unwinding/test_rowtable.py \
    tests/unit/files/cfi/test_cfi_programs.py tests/unit/files/cfi/test_cfi_rows.py \
    tests/unit/files/cfi/test_cfi_damage.py::test_fuzzed_sections \
    tests/unit/files/cfi/test_cfi_damage.py::test_functions_that_share_bytes_or_cies \
    tests/unit/files/cfi/test_cfi_files.py::test_calls_in_any_bytes \
    tests/unit/files/cfi/test_cfi_walk.py::test_walks_by_hand \
    tests/unit/files/cfi/test_cfi_walk.py::test_pages_that_were_not_copied \
    tests/unit/files/cfi/test_cfi_walk.py::test_expressions tests/unit/files/cfi/test_cfi_walk.py::test_fuzzed_expressions
