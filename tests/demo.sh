#!/bin/sh
# Traces the sample program until its leak is proven: by probes where they work, else by the
# library. Arguments: the program, tracelloc, the file for the flame graph. DEMO_SECONDS: at most.
set -eu

if [ "$1" = end ]; then # the leak is found: ends the program, which standard input names
    kill "$(sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' | head -n 1)"
    exit
fi

program=$1 page=$3 seconds=${DEMO_SECONDS:-120} target='' stopped=''
status=$(mktemp)
trap 'rm -f "$status"; kill $target 2>/dev/null || true' EXIT
trap stopped=yes INT # tracelloc ends by it as well, and writes what it has found
trap 'exit 143' TERM

# Prints messages, a line per report and, at the end, the call stack that leaks with its proof.
shorten() {
    trap '' INT
    awk '/^tracelloc: / || / live=.* lost=/ { print; fflush(); is_proof = 0 }
         /^==>/ || /^$/ || / suspect=/ { is_proof = 0 }
         / suspect=leaking / { proof = "\n"; is_proof = 1 }
         is_proof { proof = proof $0 "\n" }
         END { printf "%s", proof }'
}

echo "leaky, a small server, loses 160 bytes per request."
set -- "$2" --text --interval 10 --duration "$seconds" --fail-if leak -o "$page"
sudo=
[ "$(id -u)" = 0 ] || ! sudo -n true 2>/dev/null || sudo=sudo
if $sudo "$1" doctor 2>/dev/null | grep -q '^yes  *attach by probes'; then
    echo "It runs already. Probes work here, so tracelloc attaches to it:"
    "$program" $((seconds + 900)) >/dev/null 2>&1 </dev/null &
    target=$!
    set -- $sudo "$@" -p "$target"
else
    echo "Probes are refused here (tracelloc doctor says why), so it is started with the library:"
    set -- "$@" --on-leak "'$(realpath "$0")' end" -- "$program" "$seconds"
fi
{ "$@" 2>&1 || echo $? >"$status"; } | shorten
result=$(cat "$status")

echo
case $stopped$result in
    yes*) echo "Stopped." ;;
    3) echo "The leak is proven: nothing in the program points to these blocks any more." ;;
    '') echo "$seconds s were too short for a verdict (make demo DEMO_SECONDS=120)." ;;
    *) exit "$result" ;;
esac
echo "Live memory as a flame graph, for a browser: $(realpath "$page")"
