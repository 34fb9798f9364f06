#!/usr/bin/env bash
# From a clone to a report without a hand: a site on this machine, two tenants, a virtual cluster of each, MPI in both,
# proof that neither reaches the other, growing, shrinking, and nothing left behind. Every step is checked; the status is
# 0 only if all of them held.
#
#   target/demo/report.md     what was done, seen and how long it took
#   target/demo/evidence/     what the tools printed, a file for each
#
# Needs root (libvirt), or sudo. HEDDLE_DEMO_KEEP=1 leaves the site running at the end; HEDDLE_BIN names a directory with
# programs that are built already.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# InfiniBand tools and libvirtd live in sbin, which is not in everybody's path.
export PATH="$PATH:/usr/sbin:/sbin" LC_ALL=C

if [[ $EUID != 0 ]]; then
    exec sudo --preserve-env=PATH,CARGO_HOME,CARGO_TARGET_DIR,RUSTUP_HOME,HOME,HEDDLE_IMAGES,HEDDLE_DEMO_KEEP,HEDDLE_BIN "$0" "$@"
fi

readonly target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
readonly heddle=${HEDDLE_BIN:-$target/release}/heddle
readonly results=$(realpath -m target/demo)
readonly evidence=$results/evidence
readonly draft=$results/report.draft
readonly tool_seconds=660   # longer than anything takes; commands have limits of their own
readonly ready_seconds=180  # for the site
readonly cluster_limit=10m  # for a cluster; the promise is checked apart
readonly promised_seconds=90
readonly listen_seconds=6   # how long nodes listen for frames that must not come
readonly marked=20          # frames of each attempt

# ---- what was started here is stopped, however the demo ends

scratch=$(mktemp -d /tmp/heddle-demo.XXXXXX)
chmod 711 "$scratch" # QEMU runs as another user and passes through
readonly site=$scratch/site
export HEDDLE_HOME=$site
unset HEDDLE_URL HEDDLE_TOKEN HEDDLE_TOKEN_FILE HEDDLE_TENANT
up_pid=''

stop_site() {
    [[ -n $up_pid ]] || return 0
    if kill -TERM "$up_pid" 2>/dev/null; then wait "$up_pid" 2>/dev/null || true; fi
    up_pid=''
}

clean_up() {
    local status=$?
    trap - EXIT INT TERM
    if [[ $status != 0 ]]; then
        printf '\ndemo: stopped before its end. What the tools said: %s\n' "$evidence" >&2
        [[ ! -d $site/log ]] || cp -r "$site/log" "$results/log" 2>/dev/null || true
    fi
    stop_plain_guests
    stop_site
    rm -rf "$scratch"
    exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# ---- telling, checking, reporting

step_count=0 kept_count=0 step_start=0 step_title=''

now() { printf '%s' "${EPOCHREALTIME/./}"; }

seconds() { # since a time of now()
    local micros=$(($(now) - $1))
    printf '%d.%d' $((micros / 1000000)) $((micros / 100000 % 10))
}

end_step() {
    [[ $step_count == 0 ]] || printf '\n_%s s_\n' "$(seconds "$step_start")" >>"$draft"
}

step() { # title
    end_step
    step_count=$((step_count + 1))
    step_title=$1
    step_start=$(now)
    printf '\n%d. %s\n' "$step_count" "$1"
    printf '\n## %d. %s\n\n' "$step_count" "$1" >>"$draft"
}

held() { # what was checked
    printf '   ok: %s\n' "$1"
    printf -- '- %s%s\n' "$1" "${2:+ ([evidence](evidence/$2))}" >>"$draft"
}

fail() { # what did not hold
    printf '   FAILED: %s\n' "$1" >&2
    printf -- '- **FAILED: %s**\n' "$1" >>"$draft"
    exit 1
}

timing() { # what value [unit]
    printf '| %s | %s%s |\n' "$1" "$2" "${3- s}" >>"$results/timings"
}

# Runs a command, keeps what it printed under a name, and returns its status. The file's name is in $kept.
keep() { # name command ...
    local status=0
    kept_count=$((kept_count + 1))
    kept=$(printf '%02d-%s.txt' "$kept_count" "$1")
    shift
    # Management keys are nobody's evidence.
    printf '$ %s\n' "$*" | sed -E 's/ -y 0x[0-9a-f]+/ -y KEY/' >"$evidence/$kept"
    # By a shell, which knows the functions of this one.
    timeout "$tool_seconds" bash -c '"$@"' keep "$@" >>"$evidence/$kept" 2>&1 </dev/null || status=$?
    printf '(exit status %d)\n' "$status" >>"$evidence/$kept"
    return "$status"
}

must() { # name command ...
    keep "$@" || fail "$1 failed (see $evidence/$kept)"
}

expect() { # pattern what: in what was kept last
    grep -Eq -- "$1" "$evidence/$kept" || fail "$2 (see $evidence/$kept)"
    held "$2" "$kept"
}

# Asks again until it is so, for a minute.
wait_for() { # pattern name command ...
    local pattern=$1
    shift
    for _ in $(seq 60); do
        must "$@"
        ! grep -Eq -- "$pattern" "$evidence/$kept" || return 0
        sleep 1
    done
}

# Picks values out of JSON: an expression of Python about `it`.
pick() { # expression
    python3 -c 'import json, sys; it = json.load(sys.stdin); print(eval(sys.argv[1]))' "$1"
}

by() { # tenant command ...: heddle as a tenant
    local tenant=$1
    shift
    HEDDLE_TOKEN_FILE=$scratch/$tenant.token "$heddle" "$@"
}
export -f by
export heddle scratch

# A stock tool on the emulated fabric, as if it sat on a host. Each has a directory of its own: libumad2sim writes there.
stock() { # host command ...
    local host=$1
    shift
    cd "$(mktemp -d -p "$scratch")" &&
        exec env IBSIM_SOCKNAME="$fabric_name" SIM_HOST="$host" LD_PRELOAD="$preload" "$@"
}
export -f stock

in_node() { # tenant cluster node command ...
    local tenant=$1 cluster=$2 node=$3
    shift 3
    by "$tenant" cluster exec "$cluster" --node "$node" -- "$@" </dev/null
}
export -f in_node

# ---- the same guests without Heddle

# Keeps what the guests that run now were started from: their seeds, and the addresses these are for.
save_guests() {
    local id mac
    mkdir "$scratch/plain"
    "$heddle" sim-ctl "$site/run/sim-control.sock" functions |
        pick '"\n".join(f["guest"].split("/")[-2] + " " + f["mac"] for f in it)' >"$scratch/plain/guests"
    while read -r id mac; do
        cp "$site/agent/vms/$id/seed.iso" "$scratch/plain/$id.iso"
    done <"$scratch/plain/guests"
}

plain_pids=()
stop_plain_guests() {
    local pid
    for pid in "${plain_pids[@]}"; do
        if kill -TERM "$pid" 2>/dev/null; then wait "$pid" 2>/dev/null || true; fi
    done
    plain_pids=()
}

# Boots the guests that were kept by QEMU alone, all at once, until each has said on its console that it is ready.
boot_plain_guests() {
    local id mac began=$1 line
    line="$(pick 'it["command_line"]' <"$image/image.json") console=ttyS0 init=/sbin/heddle-guest"
    cd "$scratch/plain"
    while read -r id mac; do
        qemu-img create -q -f qcow2 -b "$image/root.ext4" -F raw "$id.qcow2"
        # -nic and friends would give it a way out; this peer does not exist.
        qemu-system-x86_64 -accel tcg,thread=multi,tb-size=128 -cpu max -M q35 -smp 1 -m 384 -nodefaults -nographic \
            -bios qboot.rom -kernel "$image/vmlinux" -initrd "$image/initrd.cpio.gz" -append "$line" \
            -serial "file:$id.console" -drive "if=virtio,file=$id.qcow2,format=qcow2,cache=unsafe" \
            -drive "if=virtio,file=$id.iso,format=raw,readonly=on" \
            -netdev "dgram,id=net,local.type=unix,local.path=$id.nic,remote.type=unix,remote.path=$id.nobody" \
            -device "virtio-net-pci,netdev=net,romfile=,mac=$mac" -device virtio-rng-pci </dev/null >"$id.log" 2>&1 &
        plain_pids+=($!)
    done <guests
    while read -r id mac; do
        until grep -q '^heddle-guest: ready' "$id.console" 2>/dev/null; do
            (($(now) - began < 600000000)) || fail "a guest of plain QEMU did not become ready (see $scratch/plain)"
            sleep 0.05
        done
    done <guests
    cd - >/dev/null
}

# ---- before the start

rm -rf "$results"
mkdir -p "$evidence"
: >"$results/timings"
: >"$draft"
demo_start=$(now)
preload=$(dpkg -L libumad2sim0 2>/dev/null | grep '/libumad2sim\.so$' | head -n 1) || true
[[ -n $preload ]] || fail "there is no libumad2sim.so: run scripts/setup.sh"
export preload

step "Build, and make the image"
start=$(now)
[[ -n ${HEDDLE_BIN:-} ]] || cargo build --release --quiet -p heddle -p node-agent
[[ -x $heddle && -x $(dirname "$heddle")/heddle-agent ]] || fail "there is no heddle or heddle-agent beside $heddle"
held "heddle and heddle-agent are built in $(seconds "$start") s"
start=$(now)
scripts/image.sh | tee "$evidence/00-image.txt" | sed 's/^/     /'
image=$(tail -n 1 "$evidence/00-image.txt")
[[ -f $image/image.json ]] || fail "scripts/image.sh did not say where the image is"
held "the image is $(basename "$image"), in $(seconds "$start") s" 00-image.txt

step "heddle up: a fabric of 16 hosts, its manager, a controller and an agent"
start=$(now)
# A core for each host: every virtual machine has a port of its own, so that what stock tools say of ports is said of it.
"$heddle" up --dir "$site" --host-cores 1 --image "debian-mpi=$image" >"$evidence/up.txt" 2>&1 &
up_pid=$!
until grep -q '^ready in' "$evidence/up.txt"; do
    kill -0 "$up_pid" 2>/dev/null || { up_pid=''; fail "heddle up ended (see $evidence/up.txt)"; }
    (($(now) - start < ready_seconds * 1000000)) || fail "not ready within $ready_seconds s (see $evidence/up.txt)"
    sleep 0.05
done
timing "site ready" "$(seconds "$start")"
held "$(grep '^ready in' "$evidence/up.txt" | cut -d ';' -f 1)" up.txt
must status "$heddle" status
fabric_name=$("$heddle" status -o json | pick 'it["ibsim_name"]')
export fabric_name
must hosts "$heddle" host list
[[ $(grep -c ' up ' "$evidence/$kept") == 16 ]] || fail "not all hosts are up (see $evidence/$kept)"
held "16 hosts are up" "$kept"

step "Two tenants, each with a token"
for tenant in acme umbra; do
    must "tenant-$tenant" "$heddle" tenant create "$tenant"
    must "token-$tenant" "$heddle" token create --tenant "$tenant" --save "$scratch/$tenant.token"
done
must tokens "$heddle" token list
held "acme and umbra; secrets are in files only their owner reads" "$kept"

step "A cluster of two virtual machines for each, ordered at the same time"
start=$(now)
order() { # tenant cluster option ...
    by "$1" cluster create "$2" --nodes 2 --cores 1 --memory 384M --image debian-mpi --wait --timeout "$cluster_limit" "${@:3}"
}
# One is promised a rate and a latency, the other nothing.
order acme blue --bandwidth 500M --latency 1ms >"$evidence/create-blue.txt" 2>&1 &
blue_pid=$!
order umbra green >"$evidence/create-green.txt" 2>&1 &
green_pid=$!
wait "$blue_pid" || fail "blue did not become ready (see $evidence/create-blue.txt)"
wait "$green_pid" || fail "green did not become ready (see $evidence/create-green.txt)"
held "$(tail -n 1 "$evidence/create-blue.txt")" create-blue.txt
held "$(tail -n 1 "$evidence/create-green.txt")" create-green.txt
with_heddle=$(seconds "$start")
timing "4 virtual machines from order to ready" "$with_heddle"
save_guests
must clusters "$heddle" cluster list
must show-blue "$heddle" cluster show blue --tenant acme
must show-green "$heddle" cluster show green --tenant umbra

step "MPI in both: a ring and a ping-pong"
ring() { # what the ring said, in what was kept last
    grep '^ring:.*: ok' "$evidence/$kept" || fail "the ring did not end well (see $evidence/$kept)"
}
for pair in acme:blue umbra:green; do
    tenant=${pair%:*} cluster=${pair#*:}
    must "ring-$cluster" by "$tenant" cluster exec "$cluster" -- mpirun -np 2 mpi-ring
    held "$cluster: $(ring)" "$kept"
done
order_to_mpi=$(seconds "$start")
timing "4 virtual machines from order to MPI done in both" "$order_to_mpi"
((${order_to_mpi%.*} < promised_seconds)) || fail "order to MPI took $order_to_mpi s, promised are $promised_seconds s"
held "from order to a ring in both clusters: $order_to_mpi s (promised: $promised_seconds s)"
for pair in acme:blue umbra:green; do
    tenant=${pair%:*} cluster=${pair#*:}
    must "pingpong-$cluster" by "$tenant" cluster exec "$cluster" -- mpirun -np 2 mpi-pingpong 65536
    grep -q '^pingpong: ok' "$evidence/$kept" || fail "the ping-pong did not end well (see $evidence/$kept)"
    held "$cluster: $(awk '$1 == 1 { half = $3 } $1 == 65536 { rate = $4 } END {
        printf "ping-pong: half a round trip %.1f ms, 64 KiB at %.1f MB/s", half / 1000, rate }' "$evidence/$kept")" "$kept"
done

step "No frame that a machine of acme can send reaches one of umbra"
mac_of() { # tenant cluster node
    in_node "$1" "$2" "$3" cat /sys/class/net/eth0/address | tr -d '\r\n'
}
blue_2=$(mac_of acme blue 2)
green_1=$(mac_of umbra green 1)
green_2=$(mac_of umbra green 2)
must ping-blue in_node acme blue 1 ping -c 3 -W 5 blue-2
expect ' 0% packet loss' "control: blue-1 reaches blue-2"
count_frames() { # tenant cluster node mark file: listens in the background
    in_node "$1" "$2" "$3" frame-count --mark "$4" --seconds "$listen_seconds" >"$5" 2>&1 &
    listeners+=($!)
}
marked_in() { # file: how many frames with the mark arrived
    sed -n 's/^frames [0-9]* marked \([0-9]*\)$/\1/p' "$1"
}
attempt() { # mark what destination source|-: blue-1 sends, blue-2 and both of umbra listen
    local mark=$1 what=$2 source=()
    [[ $4 == - ]] || source=(--src "$4")
    listeners=()
    count_frames acme blue 2 "$mark" "$scratch/heard-blue"
    count_frames umbra green 1 "$mark" "$scratch/heard-green-1"
    count_frames umbra green 2 "$mark" "$scratch/heard-green-2"
    local file deadline=$((SECONDS + 60))
    for file in blue green-1 green-2; do
        until grep -qs '^listening' "$scratch/heard-$file"; do
            ((SECONDS < deadline)) || fail "$file does not listen"
            sleep 0.05
        done
    done
    must "send-$mark" in_node acme blue 1 frame-send --dst "$3" "${source[@]}" --count "$marked" --mark "$mark"
    wait "${listeners[@]}" || fail "a listener failed"
    { echo "blue-2: $(cat "$scratch/heard-blue")" &&
        echo "green-1: $(cat "$scratch/heard-green-1")" &&
        echo "green-2: $(cat "$scratch/heard-green-2")"; } >>"$evidence/$kept"
    heard_blue=$(marked_in "$scratch/heard-blue")
    local green
    for green in 1 2; do
        [[ $(marked_in "$scratch/heard-green-$green") == 0 ]] || fail "green-$green heard $what (see $evidence/$kept)"
    done
    rm -f "$scratch"/heard-*
}
attempt own "frames to a node of its own cluster" "$blue_2" -
((heard_blue > 0)) || fail "control: blue-2 heard nothing (see $evidence/$kept)"
held "control: to blue-2, which heard $heard_blue of $marked; umbra heard none" "$kept"
attempt broadcast "broadcasts" ff:ff:ff:ff:ff:ff -
((heard_blue > 0)) || fail "control: blue-2 heard no broadcast (see $evidence/$kept)"
held "broadcasts: blue-2 heard $heard_blue of $marked, umbra none" "$kept"
attempt foreign "frames to its address" "$green_1" -
held "to the address of green-1: umbra heard none" "$kept"
attempt multicast "multicasts" 33:33:00:00:00:01 -
held "multicast: umbra heard none" "$kept"
attempt forged "frames with a forged source" "$green_1" "$green_2"
held "to green-1, with the address of green-2 as its source: umbra heard none" "$kept"
attempt forged-broadcast "broadcasts with a forged source" ff:ff:ff:ff:ff:ff "$green_2"
((heard_blue == 0)) || fail "a forged source got as far as blue-2 (see $evidence/$kept)"
held "a forged source gets nowhere, not even inside the cluster" "$kept"
must functions "$heddle" sim-ctl "$site/run/sim-control.sock" functions
expect 'spoofed' "the fabric has counted the attempts"

step "Stock InfiniBand tools agree: who has a path, who has which key"
"$heddle" fabric show -o json >"$evidence/fabric.json"
members() { # cluster field: of each member
    pick "' '.join(str(m['$2']) for p in it['partitions'] if p['cluster'] == '$1' for m in p['members'])" \
        <"$evidence/fabric.json"
}
read -r -a blue_hosts <<<"$(members blue host)"
read -r -a blue_lids <<<"$(members blue lid)"
read -r -a green_lids <<<"$(members green lid)"
must path-within stock "${blue_hosts[0]}" saquery PR --slid "${blue_lids[0]}" --dlid "${blue_lids[1]}"
expect 'dgid' "saquery: there is a path within blue"
keep path-between stock "${blue_hosts[0]}" saquery PR --slid "${blue_lids[0]}" --dlid "${green_lids[0]}" || true
! grep -q 'dgid' "$evidence/$kept" || fail "saquery tells a path from blue to green (see $evidence/$kept)"
held "saquery: there is none from blue to green" "$kept"
key_file() { # guid: a file with the management key of a node, for option -z; what is in arguments, everybody reads
    "$heddle" node-key "$1" --secret "$site/site.secret" --config "$scratch/key-$1.conf" && echo "$scratch/key-$1.conf"
}
key_of() { # host: the same for its node
    local guid
    guid=$("$heddle" fabric show --format ibnetdiscover | awk -v host="\"$1\"" '
        /^caguid=/ { guid = substr($1, 8) } /^Ca/ && index($0, host) { print guid; exit }')
    key_file "$guid"
}
# Every port of every switch, as a host reaches it: host, directed route, GUID, port, and the host behind it or "-".
switch_ports() {
    "$heddle" fabric show --format ibnetdiscover | python3 -c '
import re, sys
nodes, node = {}, None
for line in sys.stdin:
    if head := re.match(r"(Switch|Ca)\t\d+ \"(\S+)\"\s+# \"([^\"]+)\"", line):
        node = nodes[head[2]] = {"kind": head[1], "name": head[3], "ports": {}}
    elif link := re.match(r"\[(\d+)\](?:\(\S+\))?\s+\"(\S+)\"\[\d+\]", line):
        node["ports"][int(link[1])] = link[2]
hosts = [it for it in nodes.values() if it["kind"] == "Ca" and it["name"] != "manager"]
paths = {}
for host in hosts:
    paths.setdefault(host["ports"][1], (host["name"], "0,1"))
for leaf, (host, path) in list(paths.items()):
    for port, peer in nodes[leaf]["ports"].items():
        if nodes[peer]["kind"] == "Switch":
            paths.setdefault(peer, (host, f"{path},{port}"))
for switch, (host, path) in sorted(paths.items()):
    for port, peer in sorted(nodes[switch]["ports"].items()):
        behind = nodes[peer]
        is_host = behind["kind"] == "Ca" and behind["name"] != "manager"
        print(host, path, "0x" + switch[2:], port, behind["name"] if is_host else "-")
'
}
keys_in() { # file: the keys of clusters in what smpquery printed
    grep -E '^ *[0-9]+: 0x' "$1" | grep -oE '0x[0-9a-f]{4}' | grep -v -e 0x0000 -e 0x7fff -e 0xffff | sort | tr '\n' ' ' || true
}
check_tables() { # what: every port holds exactly the keys it should
    local host path guid port table expected switch_count=0
    local -A keys=()
    for host in $("$heddle" host list -o json | pick '" ".join(h["name"] for h in it)'); do
        expected=$(pick "' '.join(sorted('%#06x' % (p['number'] | 0x8000) for p in it['partitions'] for m in p['members'] if m['host'] == '$host'))" <"$evidence/fabric.json")
        must "pkeys-$host" stock "$host" smpquery -z "$(key_of "$host")" -D pkeys 0 1
        table=$(keys_in "$evidence/$kept")
        [[ ${table% } == "$expected" ]] || fail "$host holds '$table', not '$expected' (see $evidence/$kept)"
        keys[$host]=$expected
    done
    kept_count=$((kept_count + 1))
    kept=$(printf '%02d-pkeys-switches.txt' "$kept_count")
    while read -r from path guid port host; do
        printf '== smpquery -z KEY -D pkeys %s %s (switch %s; behind it: %s)\n' "$path" "$port" "$guid" "$host"
        (stock "$from" smpquery -z "$(key_file "$guid")" -D pkeys "$path" "$port") \
            >"$scratch/pkeys" 2>&1 </dev/null || fail "a port of switch $guid does not tell its keys (see $evidence/$kept)"
        cat "$scratch/pkeys"
        table=$(keys_in "$scratch/pkeys") expected=${keys[$host]:-}
        [[ ${table% } == "$expected" ]] || fail "port $port of switch $guid holds '$table', not '$expected'"
        switch_count=$((switch_count + 1))
    done < <(switch_ports) >"$evidence/$kept"
    held "smpquery pkeys, with each node's key: $1 (${#keys[@]} of hosts, $switch_count of switches)" "$kept"
}
check_tables "every port holds exactly the keys of the clusters behind it"
if keep pkeys-without-key stock "${blue_hosts[0]}" smpquery -t 200 -D pkeys 0 1; then fail "a port tells its keys to everybody"; fi
held "without the node's key nothing is told" "$kept"
if keep promise-too-large by acme cluster create vast --nodes 2 --memory 384M --bandwidth 10000G; then fail "anything is promised"; fi
expect 'too little left to guarantee' "a promise that the links cannot keep is refused; a tenant learns no numbers of others"
must promise-kept "$heddle" cluster show blue --tenant acme
expect '0.5 Gb/s guaranteed, 1000 µs at most' "blue has a promise"
read -r from path guid port _ < <(switch_ports | awk -v host="${blue_hosts[0]}" '$5 == host')
switch_key=$(key_file "$guid")
must lanes-of-blue stock "$from" smpquery -z "$switch_key" -D sl2vl "$path" "$port"
grep -Eq 'out +[0-9]+: \| 0\| *[1-9]\|' "$evidence/$kept" || fail "no turn leads into blue's lane (see $evidence/$kept)"
[[ $(grep -Ec 'out +[0-9]+: \| 0\|15\|15\|' "$evidence/$kept") -ge 2 ]] || fail "other turns are open (see $evidence/$kept)"
held "smpquery sl2vl: blue's service level has a lane from where blue is, and is discarded from everywhere else" "$kept"
must weights-of-blue stock "$from" smpquery -z "$switch_key" -D vlarb "$path" "$port"
# Lanes stand in one line, their weights below them.
grep -A2 '^# Low' "$evidence/$kept" | awk -F'|' '
    /^VL/ { for (i = 2; i < NF; i++) lane[i] = $i }
    /^WEIGHT/ { for (i = 2; i < NF; i++) if (lane[i] !~ /0x0 *$/ && $i !~ /0x0 *$/) found = 1 }
    END { exit !found }' || fail "blue's lane has no weight (see $evidence/$kept)"
held "smpquery vlarb: blue's lane has its weight in the low-priority table" "$kept"
must verify "$heddle" fabric verify
held "heddle fabric verify: sound" "$kept"

step "The network of a cluster, by stock tools: from here, from inside a machine, and managed by opensm there"
must view-map by acme view map blue
held "blue's network under names of its own" "$kept"
must view-here by acme view exec blue -- ibnetdiscover
grep -q '"blue-1' "$evidence/$kept" && grep -q '"blue-2' "$evidence/$kept" || fail "blue's nodes are not in its network (see $evidence/$kept)"
! grep -Eq 'green|host-' "$evidence/$kept" || fail "blue's network shows something else (see $evidence/$kept)"
held "ibnetdiscover from here: blue-1, blue-2, and nothing of anybody else" "$kept"
must view-inside in_node acme blue 2 in-view ibnetdiscover
diff <(grep -E '^(Switch|Ca)' "$evidence/$kept" | sort) <(grep -hE '^(Switch|Ca)' "$evidence"/*-view-here.txt | sort) >/dev/null ||
    fail "inside blue-2 the network is another one (see $evidence/$kept)"
held "ibnetdiscover inside blue-2: the same network" "$kept"
blue_2=$(by acme view map blue -o json | pick 'it["nodes"][1]["lid"]')
must view-path by acme view exec blue -- saquery PR --slid 1 --dlid "$blue_2"
expect "dlid\\.+$blue_2" "saquery from here: the path from blue-1 to blue-2"
must view-opensm in_node acme blue 1 sh -c 'sleep 100 | timeout 100 in-view opensm -d 2 -f /tmp/opensm.log >/dev/null 2>&1 &
    sm=$!
    for try in $(seq 90); do ! grep -q "SUBNET UP" /tmp/opensm.log 2>/dev/null || break; sleep 1; done
    grep "SUBNET UP" /tmp/opensm.log && in-view sminfo && kill $sm'
expect 'SUBNET UP' "opensm inside blue-1 manages the network of its cluster"
expect 'sm lid 1 .*SMINFO_MASTER' "sminfo: it is the master"
! by umbra view map blue >/dev/null 2>&1 || fail "umbra sees the network of blue"
must view-control by umbra view map green
held "umbra sees the network of green, and not that of blue" "$kept"

step "Drift: one P_Key entry, then one route is removed behind the manager's back, and it repairs both"
device=heddle:$site/run/sim.sock@manager
guid_of() { # description
    "$heddle" fabric show --format ibnetdiscover | awk -v name="\"$1\"" '
        /^(ca|switch)guid=/ { split($1, part, /[=(]/); guid = part[2] }
        /^(Ca|Switch)/ && index($0, name) { print guid; exit }'
}
# Longer than the manager's sweep, by which it finds what no trap told.
drill() { # name what command ...: pings while something is broken
    local name=$1 what=$2 ping_pid lost
    shift 2
    in_node acme blue 1 ping -i 0.1 -c 260 -W 1 blue-2 >"$scratch/ping" 2>&1 &
    ping_pid=$!
    in_node umbra green 1 ping -i 0.1 -c 260 -W 1 green-2 >"$scratch/ping-control" 2>&1 &
    local control_pid=$!
    sleep 4
    must "drift-$name" "$@"
    wait "$ping_pid" || true
    wait "$control_pid" || true
    { cat "$scratch/ping" && echo '--- control: umbra' && tail -n 3 "$scratch/ping-control"; } >>"$evidence/$kept"
    lost=$(grep -oE '[0-9.]+% packet loss' "$scratch/ping" | cut -d % -f 1)
    [[ -n $lost && $lost != 0 ]] || fail "$what: nothing was lost, so nothing was shown (see $evidence/$kept)"
    grep -q ' 0% packet loss' "$scratch/ping-control" || fail "$what: umbra lost frames too (see $evidence/$kept)"
    grep -q 'icmp_seq=25[0-9]' "$scratch/ping" || fail "$what: not repaired (see $evidence/$kept)"
    held "$what: acme lost $lost % of its pings, then they flowed again; umbra lost none" "$kept"
}
blue_key=$(pick "'%#06x' % (next(p['number'] for p in it['partitions'] if p['cluster'] == 'blue') | 0x8000)" <"$evidence/fabric.json")
must tables-before "$heddle" sim-ctl "$site/run/sim-control.sock" tables "${blue_hosts[1]}"
key_index=$(stock "${blue_hosts[1]}" smpquery -z "$(key_of "${blue_hosts[1]}")" -D pkeys 0 1 2>/dev/null |
    grep -E '^ *[0-9]+: 0x' | grep -oE '0x[0-9a-f]{4}' | grep -n "$blue_key" | cut -d : -f 1 | head -n 1)
[[ -n $key_index ]] || fail "${blue_hosts[1]} does not hold $blue_key"
drill pkey "the key of ${blue_hosts[1]} removed" "$heddle" smp --device "$device" --secret "$site/site.secret" \
    set-pkey "$(guid_of "${blue_hosts[1]}")" "${blue_lids[1]}" --index $((key_index - 1))
leaf=$("$heddle" fabric show --format ibnetdiscover | awk -v host="\"${blue_hosts[1]}\"" '
    /^Ca/ && index($0, host) { getline; print; exit }' | sed -n 's/.*lmc 0 "\([^"]*\)".*/\1/p')
# The LID that a switch takes for itself.
leaf_lid=$("$heddle" sim-ctl "$site/run/sim-control.sock" tables "$leaf" |
    pick 'next(lid for lid, port in it["linear_forwarding"].items() if port == 0)')
[[ -n $leaf && -n $leaf_lid ]] || fail "cannot tell which switch ${blue_hosts[1]} is at"
drill route "the route to ${blue_hosts[1]} removed at $leaf" "$heddle" smp --device "$device" \
    --secret "$site/site.secret" set-lft "$(guid_of "$leaf")" "$leaf_lid" --to "${blue_lids[1]}"

step "Blue grows to three nodes, is divided into partitions of its own, also by opensm inside it, and shrinks again"
start=$(now)
must grow by acme cluster resize blue --nodes 3 --wait --timeout "$cluster_limit"
timing "a third node, from order to ready" "$(seconds "$start")"
held "$(grep '^cluster blue' "$evidence/$kept")" "$kept"
must ring-3 by acme cluster exec blue -- mpirun -np 3 mpi-ring
held "three ranks: $(ring)" "$kept"
must hostnames by acme cluster exec blue --all -- hostname
expect 'blue-3 +\| blue-3' "all three answer by their names"
must partition by acme cluster partition blue --set io=1-2 --set work=3 --timeout "$cluster_limit"
must inside in_node acme blue 1 ping -c 5 -i 0.2 -W 2 blue-2
held "blue-1 and blue-2 are in a partition inside blue, and reach each other" "$kept"
! keep across in_node acme blue 1 ping -c 5 -i 0.2 -W 1 blue-3 || fail "blue-1 still reaches blue-3 (see $evidence/$kept)"
expect '100% packet loss' "blue-3 is in another one: nothing of five pings comes through"
must verify-partitions "$heddle" fabric verify
held "heddle fabric verify: sound with the partitions inside" "$kept"
must unpartition by acme cluster partition blue --clear --timeout "$cluster_limit"
must together in_node acme blue 1 ping -c 5 -i 0.2 -W 2 blue-3
held "without them, blue-1 reaches blue-3 again" "$kept"
by acme view map blue -o json >"$evidence/view.json"
guid_in_view() { pick "it['nodes'][$1]['port_guid']" <"$evidence/view.json"; }
must view-divide in_node acme blue 1 sh -c "printf '%s\n' 'Default=0x7fff : ALL=limited, SELF=full;' \
    'one=0x1 : $(guid_in_view 1)=full;' 'two=0x2 : $(guid_in_view 2)=full;' >/tmp/partitions.conf
    printf '%s\n' 'qos TRUE' 'qos_max_vls 2' 'qos_high_limit 0' 'qos_vlarb_high 0:0' 'qos_vlarb_low 0:128,1:128' \
        'qos_sl2vl 0,1,0,0,0,0,0,0,0,0,0,0,0,0,0,0' >/tmp/qos.conf
    setsid sh -c 'sleep 600 | timeout 600 in-view opensm -d 2 -F /tmp/qos.conf -P /tmp/partitions.conf -f /tmp/divide.log \
        >/dev/null 2>&1 &
        echo \$! >/tmp/divide.pid'
    for try in \$(seq 90); do ! grep -q 'SUBNET UP' /tmp/divide.log 2>/dev/null || break; sleep 1; done
    grep 'SUBNET UP' /tmp/divide.log"
wait_for '0x0002' view-divided by acme view map blue
expect '0x0002' "opensm inside blue-1 divides its network; the partitions have numbers of their own on the wire"
wait_for 'in force +wish' view-status by acme view status blue
expect 'in force +wish' "what it wrote is in force"
must view-classes by acme view map blue
expect 'SERVICE LEVELS HERE' "its two classes of packets have a level each on the wire, inside what blue was promised"
wait_for '"classes"' view-context in_node acme blue 2 cat /etc/heddle/context.json
expect '"classes"' "blue-2 is told of these levels, for its applications"
must verify-view "$heddle" fabric verify
held "heddle fabric verify: sound with what opensm wrote" "$kept"
must view-beside in_node acme blue 1 ping -c 5 -i 0.2 -W 2 blue-2
held "blue-1, a full member, reaches blue-2" "$kept"
! keep view-across in_node acme blue 2 ping -c 5 -i 0.2 -W 1 blue-3 || fail "blue-2 still reaches blue-3 (see $evidence/$kept)"
expect '100% packet loss' "blue-2 and blue-3 are in different ones: nothing of five pings comes through"
must view-end in_node acme blue 1 sh -c 'kill $(cat /tmp/divide.pid)'
wait_for 'in force +the default' view-default by acme view status blue
expect 'in force +the default' "opensm has ended, and the default returns"
must view-together in_node acme blue 2 ping -c 5 -i 0.2 -W 2 blue-3
held "blue-2 reaches blue-3 again" "$kept"
start=$(now)
must shrink by acme cluster resize blue --nodes 2 --wait --timeout "$cluster_limit"
timing "back to two nodes" "$(seconds "$start")"
must ring-2 by acme cluster exec blue -- mpirun -np 2 mpi-ring
held "two ranks again: $(ring)" "$kept"

step "Deleted, and nothing is left"
start=$(now)
must delete-blue by acme cluster delete blue --timeout "$cluster_limit"
must delete-green by umbra cluster delete green --timeout "$cluster_limit"
timing "both clusters deleted" "$(seconds "$start")"
[[ $("$heddle" cluster list -o json | pick 'len(it)') == 0 ]] || fail "clusters are left"
held "no cluster"
must functions-after "$heddle" sim-ctl "$site/run/sim-control.sock" functions
! grep -q '"mac"' "$evidence/$kept" || fail "virtual functions are left on the fabric (see $evidence/$kept)"
held "no virtual function on the fabric" "$kept"
keep disks find "$site/agent/vms" -mindepth 1 -not -path "$site/agent/vms/resting*" || true
! grep -q "^$site" "$evidence/$kept" || fail "disks or seeds are left (see $evidence/$kept)"
held "no overlay, no seed" "$kept"
keep resting find "$site/agent/vms/resting" -type f -perm /077 -o -name seed.iso || true
! grep -q "^$site" "$evidence/$kept" || fail "others can read what rests, or seeds rest (see $evidence/$kept)"
held "overlays rest for a day, for the agent alone, and no seed" "$kept"
instance=$(cat "$site/agent/instance")
must domains virsh -c qemu:///system list --all --name
! grep -q "$instance" "$evidence/$kept" || fail "virtual machines are left (see $evidence/$kept)"
held "no virtual machine in libvirt" "$kept"
# The brackets keep it from finding itself.
if keep processes pgrep -af "guest=[h]eddle-$instance"; then fail "processes of QEMU are left (see $evidence/$kept)"; fi
held "no process of QEMU" "$kept"
keep sockets find "/run/heddle/$instance" -type s || true
! grep -q '^/run' "$evidence/$kept" || fail "sockets of virtual machines are left (see $evidence/$kept)"
held "no socket of a virtual machine" "$kept"
"$heddle" fabric show -o json >"$evidence/fabric.json"
[[ $(pick 'len(it["partitions"])' <"$evidence/fabric.json") == 0 ]] || fail "partitions are left (see $evidence/fabric.json)"
check_tables "no port holds the key of a cluster"
must events "$heddle" event list

if [[ -n ${HEDDLE_DEMO_KEEP:-} ]]; then
    step "The site stays: HEDDLE_HOME=$site, process $up_pid; heddle down --dir $site stops it"
    trap - EXIT
else
    step "heddle down: the site stops"
    pids=$(cat "$site"/run/*.pid)
    must down "$heddle" down --dir "$site"
    wait "$up_pid" || fail "heddle up did not end well (see $evidence/up.txt)"
    up_pid=''
    held "$(grep '^stopped' "$evidence/$kept")" "$kept"
    for pid in $pids; do
        ! kill -0 "$pid" 2>/dev/null || fail "process $pid is left"
    done
    held "none of its processes is left"
    sockets=$(find "$site" -type s)
    [[ -z $sockets ]] || fail "sockets are left: $sockets"
    held "no socket is left"
fi

if [[ -z ${HEDDLE_DEMO_KEEP:-} ]]; then
    step "The same four guests, by QEMU alone"
    start=$(now)
    boot_plain_guests "$start"
    plain=$(seconds "$start")
    stop_plain_guests
    cat "$scratch"/plain/*.console >"$evidence/plain-consoles.txt"
    timing "the same 4 guests by QEMU alone, from start to ready" "$plain"
    ratio=$(python3 -c 'import sys; print("%.2f" % (float(sys.argv[1]) / float(sys.argv[2])))' "$with_heddle" "$plain")
    timing "Heddle next to QEMU alone" "$ratio" " times as long"
    held "$plain s; with Heddle, from order to ready, $with_heddle s: $ratio times as long" plain-consoles.txt
fi
end_step
timing "all of it" "$(seconds "$demo_start")"

# ---- the report

{
    cat <<END
# Demo: two tenants on one emulated fabric

Written by \`make demo\`. Every line below was checked while it ran; what the tools printed is in \`evidence/\`.

| | |
|---|---|
| date | $(date -u '+%Y-%m-%d %H:%M UTC') |
| commit | $(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)$([[ -z $(git status --porcelain 2>/dev/null) ]] || echo ' with local changes') |
| machine | $(nproc) cores, $(awk '/^MemTotal/ { printf "%.1f", $2 / 1048576 }' /proc/meminfo) GiB, $(uname -sr) |
| QEMU | $(qemu-system-x86_64 --version | head -n 1 | sed 's/.*version //') |

## How long it took

| | |
|---|---|
END
    cat "$results/timings"
    cat "$draft"
} >"$results/report.md"
rm -f "$draft" "$results/timings"
printf '\nEverything held, in %s s. The report: %s\n' "$(seconds "$demo_start")" "$results/report.md"
