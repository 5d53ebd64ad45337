#!/bin/sh
# What is run in each virtual machine: the demo, then the selected tests. Results go to $OUT.
# Argument: the tests' list. (The library's has a demo of its own: root's compiles probes for minutes.)
# Compiled probes come from .lab-cache.tar, if it is there, and go to $OUT/cache.tar.
echo "running on $(uname -r)"
case $(uname -v) in
*PREEMPT_RT*) echo rt ;;
*PREEMPT_DYNAMIC*) sed 's/.*(\(.*\)).*/\1/' /sys/kernel/debug/sched/preempt ;;
*) echo "none or voluntary" ;;
esac >"$OUT/preemption"
touch .venv/.installed # the files just unpacked are newer
mkdir -p /mnt # where tests of other users find the work tree
export TEST_PATIENCE_S=900 TEST_CACHE=/tmp/cache DEMO_SECONDS=10
mkdir -p "$TEST_CACHE/tracelloc"
[ ! -e .lab-cache.tar ] || tar -C "$TEST_CACHE/tracelloc" -xf .lab-cache.tar
case $1 in
*library*) ;;
*)
    XDG_CACHE_HOME="$TEST_CACHE" timeout 900 make -s demo CC=gcc >"$OUT/demo.txt" 2>&1
    echo "demo ended with status $?" | tee -a "$OUT/demo.txt"
    ;;
esac
.venv/bin/python -m pytest -p no:cacheprovider --color=no --durations=5 --timeout=2400 --numprocesses 2 \
    --dist worksteal -v --junitxml="$OUT/tests.xml" @"$1"
status=$?
tar -C "$TEST_CACHE/tracelloc" -cf "$OUT/cache.tar" probes
exit $status
