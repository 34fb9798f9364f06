#!/usr/bin/env bash
# Lets applications in virtual machines feel guarantees: two clusters with guarantees of 3:1 and an attacker share one emulated
# link that has a rate. Prints what arrives in the machines, next to what was promised, with lanes and on one lane.
#
#   scripts/guarantee-drill.sh [SECONDS]      length of each measurement, by default 30
#
# Two switches with one cable between them. Each cluster has a machine at either side, and sends from the first switch to the
# second: a and b by MPI over RDMA, the attacker by UDP over ib0 as fast as it can. All links have a part of their rate
# (`heddle up --link-rate`), so that guests under emulation can fill them, and guarantees shrink alike.
#
# Needs root and the image of scripts/image.sh. HEDDLE_BIN names a directory with binaries (default: target/debug, as
# `cargo build --workspace --bins` makes them), IMAGE the directory of an image. LINK_DIVISOR (default 10000) divides the rates of
# links; on a busy machine use a larger one, and more LEAD, the seconds until the programs are measured. Results go to target/guarantee/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PATH:/usr/sbin:/sbin" LC_ALL=C

readonly seconds=${1:-30}
readonly divisor=${LINK_DIVISOR:-10000}
readonly link_bits=100000000000 # EDR
readonly bandwidth_a=${BANDWIDTH_A:-45G} bandwidth_b=${BANDWIDTH_B:-15G}
readonly heddle=$(realpath "${HEDDLE_BIN:-target/debug}")/heddle
readonly results=$(realpath -m target/guarantee)
readonly lead=${LEAD:-25} # from the start of a program until it is measured
mkdir -p "$results"

scratch=$(mktemp -d /tmp/hg-XXXXXX)
chmod 711 "$scratch" # QEMU runs as another user
export HEDDLE_HOME=$scratch/site HEDDLE_TENANT=acme
unset HEDDLE_URL HEDDLE_TOKEN HEDDLE_TOKEN_FILE
up_pid=''

clean_up() {
    local status=$?
    trap - EXIT INT TERM
    [[ ! -d $HEDDLE_HOME/log ]] || cp -r "$HEDDLE_HOME/log" "$results/" 2>/dev/null || true
    if [[ -n $up_pid ]] && kill -TERM "$up_pid" 2>/dev/null; then wait "$up_pid" || true; fi
    rm -rf "$scratch"
    exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

fail() {
    printf 'FAILED: %s\n' "$1" >&2
    exit 1
}

note() { printf '%s  %s\n' "$(date +%T)" "$1" >&2; }

pick() { # expression over `it`, the JSON document on standard input
    python3 -c 'import json, sys; it = json.load(sys.stdin); print(eval(sys.argv[1]))' "$1"
}

in_node() { # cluster node command ...
    timeout 900 "$heddle" cluster exec "$1" --node "$2" -- "${@:3}"
}

# ---- a site whose links have a part of their rate

image=${IMAGE:-$(scripts/image.sh | tail -n 1)}
"$heddle" topology generate mesh --dimensions 2 --hosts-per-switch 4 --radix 8 -o "$scratch/fabric.topo"
note "starting a site; links have 1/$divisor of $((link_bits / 1000000000)) Gb/s"
rm -f "$results/up.txt"
: >"$results/up.txt"
"$heddle" up --dir "$HEDDLE_HOME" --topology "$scratch/fabric.topo" --host-cores 1 --image "debian-mpi=$image" \
    --link-rate "1/$divisor" --link-latency 50us >"$results/up.txt" 2>&1 &
up_pid=$!
until grep -q '^ready in' "$results/up.txt"; do
    kill -0 "$up_pid" 2>/dev/null || { up_pid=''; fail "heddle up exited (see $results/up.txt)"; }
    sleep 0.2
done
"$heddle" tenant create acme --exclusive-share 100 >/dev/null

# The first adapter is that of the manager. A cluster gets the hosts that the site has at that time.
declare -A guid
while read -r name port; do guid[$name]=$port; done < <("$heddle" host list -o json | pick '"\n".join(h["name"] + " " + h["port_guid"] for h in it)')
for host in "${!guid[@]}"; do "$heddle" host remove "$host" >/dev/null; done

create() { # cluster host host option ...
    local cluster=$1
    for host in "$2" "$3"; do
        "$heddle" host add "$host" --guid "${guid[$host]}" --agent "$HEDDLE_HOME/run/agent.sock" --cores 1 --memory 4G >/dev/null
    done
    for _ in $(seq 100); do
        [[ $("$heddle" host list -o json | pick 'sum(h["state"] == "up" for h in it) == len(it)') == True ]] && break
        sleep 0.2
    done
    "$heddle" cluster create "$cluster" --nodes 2 --cores 1 --memory 384M --image debian-mpi --adapter infiniband \
        --no-wait "${@:4}" >/dev/null
    for _ in $(seq 100); do
        [[ $("$heddle" cluster show "$cluster" -o json | pick 'all(n.get("host") for n in it["nodes"])') == True ]] && break
        sleep 0.2
    done
}

note "creating a ($bandwidth_a), b ($bandwidth_b) and the attacker (best effort)"
create a host-00002 host-00005 --bandwidth "$bandwidth_a"
create b host-00003 host-00006 --bandwidth "$bandwidth_b"
create x host-00004 host-00007
declare -A sender receiver
for cluster in a b x; do
    for _ in $(seq 900); do
        [[ $("$heddle" cluster show "$cluster" -o json | pick 'it["phase"]') == ready ]] && break
        sleep 1
    done
    "$heddle" cluster show "$cluster" -o json >"$results/cluster-$cluster.json"
    [[ $(pick 'it["phase"]' <"$results/cluster-$cluster.json") == ready ]] || fail "cluster $cluster is not ready (see $results/cluster-$cluster.json)"
    # The node at the first switch sends.
    sender[$cluster]=$(pick '1 + [n["host"] in ("host-00002", "host-00003", "host-00004") for n in it["nodes"]].index(True)' <"$results/cluster-$cluster.json")
    receiver[$cluster]=$((3 - sender[$cluster]))
done
note "ready; compiling the programs in the machines"

for cluster in a b; do
    for node in 1 2; do
        tar c -C scripts/guarantee stream.c | in_node "$cluster" "$node" tar x -C /root
        in_node "$cluster" "$node" mpicc -O1 -o /root/stream /root/stream.c &
    done
done
for node in 1 2; do
    tar c -C scripts/guarantee flood.c | in_node x "$node" tar x -C /root
    in_node x "$node" gcc -O1 -o /root/flood /root/flood.c &
done
for job in $(jobs -p); do [[ $job == "$up_pid" ]] || wait "$job"; done
for cluster in a b x; do
    for node in 1 2; do
        printf '%s-%s: clock differs by %s s\n' "$cluster" "$node" "$(($(in_node "$cluster" "$node" date +%s </dev/null) - $(date +%s)))"
    done
done | tee "$results/clocks.txt" >&2

# ---- measurements

# Messages are sent without a rendezvous, which would let the lane run empty in between.
stream() { # cluster begin service level: what arrives, in bytes/s
    local hosts="$1-${sender[$1]}:1,$1-${receiver[$1]}:1" level=()
    [[ -z $3 ]] || level=(-x "UCX_IB_SL=$3")
    in_node "$1" "${sender[$1]}" mpirun -np 2 --host "$hosts" -x UCX_RC_TIMEOUT=4s -x UCX_RNDV_THRESH=inf "${level[@]}" /root/stream "$2" "$seconds" </dev/null
}

flood() { # begin: what arrives, in bytes/s
    in_node x "${sender[x]}" /root/flood "x-${receiver[x]}" "$1" "$seconds" </dev/null >"$results/flood-sent.txt" 2>&1 &
    in_node x "${receiver[x]}" /root/flood - "$1" "$seconds" </dev/null
    wait $!
}

# Runs programs at the same time. `name what ...`, each of `what` is a, b or x. `level` is the service level, empty for that of the cluster.
measure() {
    local name=$1 begin
    shift
    begin=$(($(date +%s) + lead))
    local running=()
    for cluster in "$@"; do
        if [[ $cluster == x ]]; then
            flood "$begin" >"$results/$name-$cluster.txt" 2>&1 &
        else
            stream "$cluster" "$begin" "${level:-}" >"$results/$name-$cluster.txt" 2>&1 &
        fi
        running+=($!)
    done
    sleep $((lead + seconds / 2))
    "$heddle" sim-ctl "$HEDDLE_HOME/run/sim-control.sock" link-model >"$results/$name-load.json"
    for job in "${running[@]}"; do wait "$job" || note "a program of $name failed"; done
    local row=''
    for cluster in a b x; do
        local rate='-'
        [[ ! -f $results/$name-$cluster.txt ]] || rate=$(sed -n 's/^\(stream\|flood\): \([0-9]*\) bytes.*/\2/p' "$results/$name-$cluster.txt")
        row+=" $(awk -v rate="${rate:-none}" 'BEGIN { if (rate + 0 > 0) printf "%.2f", rate * 8 / 1e6; else print rate }') |"
    done
    printf '| %s |%s\n' "$name" "$row" | tee -a "$results/table.md"
}

rm -f "$results"/*-[abx].txt
part() { awk -v rate="${1%G}" -v divisor="$divisor" 'BEGIN { printf "%.2f", rate * 1000 / divisor }'; }
{
    printf '| Mb/s that arrive | a | b | attacker |\n|---|---|---|---|\n'
    printf '| promised, of %s | %s | %s | none |\n' "$(part 100G)" "$(part "$bandwidth_a")" "$(part "$bandwidth_b")"
} | tee "$results/table.md"
measure 'a alone' a
measure 'b alone' b
measure 'a and b, lanes' a b
measure 'a, b and attacker, lanes' a b x
level=0 measure 'a and b, one lane' a b
level=0 measure 'a, b and attacker, one lane' a b x
# The control: the same without rates of links.
"$heddle" sim-ctl "$HEDDLE_HOME/run/sim-control.sock" link-model off >/dev/null
measure 'links without a rate' a b x
