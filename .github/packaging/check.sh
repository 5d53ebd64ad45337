#!/bin/sh
# Installs each package in a new Debian and traces a program outside of it, and what needs no BPF there
# as root and as an ordinary user. Needs root. Arguments: the release (bookworm, trixie, ...), the
# folder of the packages.
set -eu

# What is mounted here ends with this process, however that ends.
[ -n "${IN_NAMESPACE-}" ] || exec env IN_NAMESPACE=1 unshare --mount --propagation private "$0" "$@"

suite=$1
dist=$(realpath "$2")
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
root=$work/root
target=
cleanup() {
    [ -z "$target" ] || kill "$target" 2>/dev/null || true
    for name in proc sys dev; do umount --recursive --lazy "$root/$name" 2>/dev/null || true; done
    rm -rf --one-file-system "$work"
}
trap cleanup EXIT
trap 'exit 1' INT TERM

started=$(date +%s)
step() { # step WORD...: say what was done, and how long it took
    echo "$suite: $*, $(($(date +%s) - started)) s"
    started=$(date +%s)
}
inside() { # inside COMMAND...: run in the new Debian, without what pip is told here
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
        PIP_CERT=/etc/ssl/certs/ca-certificates.crt PIP_DISABLE_PIP_VERSION_CHECK=1 \
        chroot "$root" "$@"
}
install() { # install PACKAGE...: by apt
    inside apt-get install -y -qq --no-install-recommends "$@" >"$work/log" 2>&1 || {
        cat "$work/log" >&2
        exit 1
    }
}
works() { # works PROGRAM: its version, its view of the machine, and a trace
    inside "$1" --version
    inside "$1" doctor >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
    inside "$1" -p "$target" --text --duration 5s >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
    # With its line: compressed debug information was read, too.
    grep -q 'record_request.*leaky\.c:' "$work/log" || { cat "$work/log" >&2; exit 1; }
}
without_probes() { # without_probes USER PROGRAM: all that this user can do without BPF
    as() { inside setpriv --reuid="$1" --regid="$1" --clear-groups env HOME="/home/$1" sh -euc "$2"; }
    rm -rf "$root/home/$1"
    command install -d -o "$1" -g "$1" "$root/home/$1"
    as "$1" "cd; tracelloc=$2"'
        expect() { # expect STATUS WORDS COMMAND...: it ends so, and says this
            status=$1 words=$2 ended=0
            shift 2
            "$@" >log 2>&1 || ended=$?
            [ $ended = $status ] && grep -q "$words" log || { echo "status $ended: $*"; cat log; exit 1; }
        }
        expect 0 "record_request" $tracelloc --preload on --text --top 9 -- /opt/leaky 3
        expect 0 "recorded .* snapshots" $tracelloc record --preload on -o a.rec -- /opt/leaky 3
        expect 0 "record_request" $tracelloc report --top 9 a.rec
        expect 3 "record_request" $tracelloc run -- /opt/leaky 3
        /opt/leaky 60 & pid=$!
        sleep 2
        expect 3 " lost, of " $tracelloc leaks $pid
        expect 0 " in use in " $tracelloc heap $pid
        expect 0 "" $tracelloc holders $pid
        expect 0 "leaky 60" $tracelloc top --count 1 --top 1000
        kill $pid' >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
}

gcc -O1 -g -fno-optimize-sibling-calls -pthread -o "$work/leaky" tests/targets/leaky.c
objcopy --compress-debug-sections=zstd "$work/leaky"
"$work/leaky" 3600 >/dev/null 2>&1 </dev/null &
target=$!

mmdebstrap --quiet --mode=root --variant=minbase --include=ca-certificates "$suite" "$root" \
    "${MIRROR:-http://deb.debian.org/debian}"
for name in proc sys dev; do mount --rbind "/$name" "$root/$name"; done
cp /etc/resolv.conf "$root/etc/"
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/" # this machine's own authorities, too
cp "$dist"/* "$root/root/"
inside apt-get update -qq
step "a new system"

install "/root/$(cd "$dist" && echo *_amd64.deb)"
step "the .deb is installed"
works tracelloc
step "it traces"
cp "$work/leaky" "$root/opt/"
without_probes 0 tracelloc
without_probes 1000 tracelloc
step "it works without probes, also for an ordinary user"
inside apt-get purge -y -qq tracelloc >/dev/null 2>&1
left=$(find "$root/usr" -path "*tracelloc*")
[ -z "$left" ] || { echo "left behind: $left" >&2; exit 1; }

install python3-venv
inside python3 -m venv /opt/plain
inside /opt/plain/bin/pip install --quiet "/root/$(cd "$dist" && echo *_x86_64.whl)"
without_probes 0 /opt/plain/bin/tracelloc
without_probes 1000 /opt/plain/bin/tracelloc
inside /opt/plain/bin/tracelloc -p "$target" >"$work/log" 2>&1 && exit 1
grep -q 'bcc is not installed.*python3-bpfcc' "$work/log" || { cat "$work/log" >&2; exit 1; }
step "the wheel works without bcc, also for an ordinary user"

install python3-bpfcc
for package in wheel source; do
    case $package in
    wheel) file=$(cd "$dist" && echo *_x86_64.whl) ;;
    source) file=$(cd "$dist" && echo *.tar.gz) && install gcc libc6-dev python3-dev ;;
    esac
    inside python3 -m venv --system-site-packages "/opt/$package"
    inside "/opt/$package/bin/pip" install --quiet "/root/$file"
    step "$file is installed"
    works "/opt/$package/bin/tracelloc"
    step "it traces"
done
