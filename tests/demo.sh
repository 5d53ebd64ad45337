#!/bin/sh
# Traces the sample program for a while. Arguments: the program, tracelloc, the file
# for the flame graph, a recording of the program.
set -eu

seconds=$DEMO_SECONDS
report=$3
recording=$4
# It is ended here, however long tracelloc takes to start.
"$1" $((seconds + 900)) >/dev/null 2>&1 </dev/null &
target=$!
trap 'kill $target 2>/dev/null || true' EXIT INT TERM

"$2" -p "$target" --text --interval 5 --duration "$seconds" -o "$report"
echo
echo "A leak is called growing at first; a verdict takes minutes (make demo DEMO_SECONDS=330)."
echo "This is one, from a recording of the same program over eight minutes:"
echo
"$2" report "$recording" --top 1 | sed -n '1,6p'
echo
echo "The recording on a screen, with a time line: $2 open $recording"
echo "Live memory as a flame graph, to be opened in a browser: $(pwd)/$report"
