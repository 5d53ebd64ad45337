#!/bin/sh
# Traces the sample program until its leak is proven. Arguments: the program, tracelloc, the
# file for the flame graph, a recording of the program.
set -eu

seconds=$DEMO_SECONDS
page=$3
recording=$4
# It is ended here, however long tracelloc takes to start.
"$1" $((seconds + 900)) >/dev/null 2>&1 </dev/null &
target=$!
trap 'kill $target 2>/dev/null || true' EXIT INT TERM

status=0
"$2" -p "$target" --text --interval 5 --duration "$seconds" --fail-if leak -o "$page" || status=$?
echo
case $status in
    3) echo "The leak is proven: nothing in the program points to these blocks any more." ;;
    0) echo "$seconds s are too short for a verdict (make demo DEMO_SECONDS=90)." ;;
    *) exit "$status" ;;
esac
echo "This is the end of a recording of the same program, three minutes long:"
echo
"$2" report "$recording" --top 1 | sed -n '1,8p'
echo
echo "The recording on a screen, with a time line: $2 open $recording"
echo "Live memory as a flame graph, to be opened in a browser: $(pwd)/$page"
