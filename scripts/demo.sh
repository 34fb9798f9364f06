#!/usr/bin/env bash
# Unattended demo: builds Heddle, starts a site on this machine, creates two tenants with one virtual cluster each, runs MPI
# in both clusters, once over Ethernet cards and once over InfiniBand adapters, checks that neither reaches the other, resizes
# one cluster, deletes both, and checks that nothing is left. Every step is checked; the exit status is 0 only if all checks passed.
#
#   target/demo/report.md     report with steps, results and durations
#   target/demo/evidence/     output of the tools, one file per command
#
# Needs root (for libvirt), or sudo. HEDDLE_DEMO_KEEP=1 leaves the site running at the end; HEDDLE_BIN names a directory
# with binaries, and nothing is built then.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# InfiniBand tools and libvirtd are in sbin, which is not in the PATH of every user.
export PATH="$PATH:/usr/sbin:/sbin" LC_ALL=C

if [[ $EUID != 0 ]]; then
    exec sudo --preserve-env=PATH,CARGO_HOME,CARGO_TARGET_DIR,RUSTUP_HOME,HOME,HEDDLE_IMAGES,HEDDLE_DEMO_KEEP,HEDDLE_BIN "$0" "$@"
fi

readonly target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
readonly heddle=${HEDDLE_BIN:-$target/release}/heddle
readonly results=$(realpath -m target/demo)
readonly evidence=$results/evidence
readonly draft=$results/report.draft
readonly tool_seconds=660   # longer than any command takes; most have a shorter limit of their own
readonly ready_seconds=180  # limit for the start of the site
readonly cluster_limit=10m  # limit for each change of a cluster
readonly mpi_seconds=90      # goal on an idle machine, from the creation of both clusters to MPI in both
readonly listen_seconds=6   # how long nodes listen for frames that must not arrive
readonly marked=20          # frames sent in each attempt

# ---- cleanup: everything that was started here is stopped, however the demo ends

scratch=$(mktemp -d /tmp/heddle-demo.XXXXXX)
chmod 711 "$scratch" # QEMU runs as another user and must be able to enter it
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
        printf '\ndemo: stopped early. Output of the tools: %s\n' "$evidence" >&2
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

# ---- steps, checks, report

step_count=0 kept_count=0 step_start=0 step_title=''

now() { printf '%s' "${EPOCHREALTIME/./}"; }

seconds() { # start: seconds since then; start is a result of now()
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

held() { # description [evidence file]: a check that passed
    printf '   ok: %s\n' "$1"
    printf -- '- %s%s\n' "$1" "${2:+ ([evidence](evidence/$2))}" >>"$draft"
}

fail() { # description: a check that failed; ends the demo
    printf '   FAILED: %s\n' "$1" >&2
    printf -- '- **FAILED: %s**\n' "$1" >>"$draft"
    exit 1
}

timing() { # name value [unit]: a row of the report's table of durations
    printf '| %s | %s%s |\n' "$1" "$2" "${3- s}" >>"$results/timings"
}

# Runs a command, saves its output under a name, and returns its status. $kept is the name of the file.
keep() { # name command ...
    local status=0
    kept_count=$((kept_count + 1))
    kept=$(printf '%02d-%s.txt' "$kept_count" "$1")
    shift
    # Management keys must not appear in the evidence.
    printf '$ %s\n' "$*" | sed -E 's/ -y 0x[0-9a-f]+/ -y KEY/' >"$evidence/$kept"
    # Through a shell, which inherits the functions exported here.
    timeout "$tool_seconds" bash -c '"$@"' keep "$@" >>"$evidence/$kept" 2>&1 </dev/null || status=$?
    printf '(exit status %d)\n' "$status" >>"$evidence/$kept"
    return "$status"
}

must() { # name command ...: as keep, but the command must succeed
    keep "$@" || fail "$1 failed (see $evidence/$kept)"
}

expect() { # pattern description: the pattern must occur in the output saved last
    grep -Eq -- "$1" "$evidence/$kept" || fail "$2 (see $evidence/$kept)"
    held "$2" "$kept"
}

# Repeats a command until its output has the pattern, for at most a minute; a check must follow.
wait_for() { # pattern name command ...
    local pattern=$1
    shift
    for _ in $(seq 60); do
        must "$@"
        ! grep -Eq -- "$pattern" "$evidence/$kept" || return 0
        sleep 1
    done
}

# Extracts values from JSON on standard input: evaluates a Python expression in which `it` is the document.
pick() { # expression
    python3 -c 'import json, sys; it = json.load(sys.stdin); print(eval(sys.argv[1]))' "$1"
}

by() { # tenant command ...: runs heddle with the token of a tenant
    local tenant=$1
    shift
    HEDDLE_TOKEN_FILE=$scratch/$tenant.token "$heddle" "$@"
}
export -f by
export heddle scratch

# Runs a stock tool on the emulated fabric, as if on a host. Each has its own working directory: libumad2sim writes there.
stock() { # host command ...
    local host=$1
    shift
    cd "$(mktemp -d -p "$scratch")" &&
        exec env IBSIM_SOCKNAME="$fabric_name" SIM_HOST="$host" LD_PRELOAD="$preload" "$@"
}
export -f stock

in_node() { # tenant cluster node command ...: runs a command in a VM
    local tenant=$1 cluster=$2 node=$3
    shift 3
    by "$tenant" cluster exec "$cluster" --node "$node" -- "$@" </dev/null
}
export -f in_node

# ---- the same guests without Heddle, for comparison

# Saves the seeds and MAC addresses of the running guests.
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

# Boots the saved guests with plain QEMU, all at once, and waits until each reports on its console that it is ready.
boot_plain_guests() {
    local id mac began=$1 line
    line="$(pick 'it["command_line"]' <"$image/image.json") console=ttyS0 init=/sbin/heddle-guest"
    cd "$scratch/plain"
    while read -r id mac; do
        qemu-img create -q -f qcow2 -b "$image/root.ext4" -F raw "$id.qcow2"
        # The peer of this network does not exist: -nic and similar options would connect the guest to the outside.
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
            (($(now) - began < 600000000)) || fail "a guest of plain QEMU did not become ready within 600 s (see $scratch/plain)"
            sleep 0.05
        done
    done <guests
    cd - >/dev/null
}

# ---- preparation

rm -rf "$results"
mkdir -p "$evidence"
: >"$results/timings"
: >"$draft"
demo_start=$(now)
preload=$(dpkg -L libumad2sim0 2>/dev/null | grep '/libumad2sim\.so$' | head -n 1) || true
[[ -n $preload ]] || fail "libumad2sim.so not found: run scripts/setup.sh"
export preload

step "Build Heddle and the VM images"
start=$(now)
# With cargo's progress: the first build takes minutes.
[[ -n ${HEDDLE_BIN:-} ]] || cargo build --release -p heddle -p node-agent -p umad-preload
[[ -x $heddle && -x $(dirname "$heddle")/heddle-agent ]] || fail "heddle or heddle-agent is missing in $(dirname "$heddle")"
held "heddle and heddle-agent built in $(seconds "$start") s"
start=$(now)
scripts/image.sh | tee "$evidence/00-image.txt" | sed 's/^/     /'
image=$(tail -n 1 "$evidence/00-image.txt")
[[ -f $image/image.json ]] || fail "scripts/image.sh did not print the path of the image (see $evidence/00-image.txt)"
held "image $(basename "$image") ready in $(seconds "$start") s" 00-image.txt
start=$(now)
scripts/image.sh evaluation | tee "$evidence/00-evaluation.txt" | sed 's/^/     /'
evaluation=$(tail -n 1 "$evidence/00-evaluation.txt")
[[ -f $evaluation/image.json ]] || fail "scripts/image.sh did not print the path of the image (see $evidence/00-evaluation.txt)"
held "image $(basename "$evaluation") ready in $(seconds "$start") s: the same with perftest, ucx_perftest, rping" 00-evaluation.txt

step "Start a site with heddle up: a fabric of 16 hosts, its subnet manager, a controller and an agent"
start=$(now)
# One core per host: every VM has a port of its own, so the output of stock tools about a port concerns one VM.
"$heddle" up --dir "$site" --host-cores 1 --image "debian-mpi=$image" >"$evidence/up.txt" 2>&1 &
up_pid=$!
until grep -q '^ready in' "$evidence/up.txt"; do
    kill -0 "$up_pid" 2>/dev/null || { up_pid=''; fail "heddle up exited (see $evidence/up.txt)"; }
    (($(now) - start < ready_seconds * 1000000)) || fail "the site was not ready within $ready_seconds s (see $evidence/up.txt)"
    sleep 0.05
done
timing "site ready" "$(seconds "$start")"
held "$(grep '^ready in' "$evidence/up.txt" | cut -d ';' -f 1)" up.txt
must status "$heddle" status
fabric_name=$("$heddle" status -o json | pick 'it["ibsim_name"]')
export fabric_name
must hosts "$heddle" host list
[[ $(grep -c ' up ' "$evidence/$kept") == 16 ]] || fail "not all 16 hosts are up (see $evidence/$kept)"
held "all 16 hosts are up" "$kept"
must image-add "$heddle" image add debian-evaluation "$evaluation"

step "Create two tenants with a token each"
for tenant in acme umbra; do
    must "tenant-$tenant" "$heddle" tenant create "$tenant"
    must "token-$tenant" "$heddle" token create --tenant "$tenant" --save "$scratch/$tenant.token"
done
must tokens "$heddle" token list
held "tenants acme and umbra exist; their tokens are in files that only the owner can read" "$kept"

step "Create a cluster of two VMs for each tenant, at the same time"
start=$(now)
create_cluster() { # tenant cluster option ...
    by "$1" cluster create "$2" --nodes 2 --cores 1 --memory 384M --wait --timeout "$cluster_limit" "${@:3}"
}
# One has guarantees of bandwidth and latency, the other is best effort.
create_cluster acme blue --adapter ethernet --bandwidth 500M --latency 1ms >"$evidence/create-blue.txt" 2>&1 &
blue_pid=$!
create_cluster umbra green --adapter ethernet >"$evidence/create-green.txt" 2>&1 &
green_pid=$!
wait "$blue_pid" || fail "cluster blue did not become ready (see $evidence/create-blue.txt)"
wait "$green_pid" || fail "cluster green did not become ready (see $evidence/create-green.txt)"
held "$(tail -n 1 "$evidence/create-blue.txt")" create-blue.txt
held "$(tail -n 1 "$evidence/create-green.txt")" create-green.txt
with_heddle=$(seconds "$start")
timing "4 VMs, from the request to ready" "$with_heddle"
save_guests
must clusters "$heddle" cluster list
must show-blue "$heddle" cluster show blue --tenant acme
must show-green "$heddle" cluster show green --tenant umbra

step "Run MPI in both clusters: a ring and a ping-pong"
ring() { # the result of mpi-ring in the output saved last
    grep '^ring:.*: ok' "$evidence/$kept" || fail "mpi-ring did not report success (see $evidence/$kept)"
}
for pair in acme:blue umbra:green; do
    tenant=${pair%:*} cluster=${pair#*:}
    must "ring-$cluster" by "$tenant" cluster exec "$cluster" -- mpirun -np 2 mpi-ring
    held "$cluster: $(ring)" "$kept"
done
request_to_mpi=$(seconds "$start")
timing "4 VMs, from the request to finished MPI runs in both clusters" "$request_to_mpi"
held "from the request to a finished MPI ring in both clusters: $request_to_mpi s (goal on an idle machine: $mpi_seconds s)"
for pair in acme:blue umbra:green; do
    tenant=${pair%:*} cluster=${pair#*:}
    must "pingpong-$cluster" by "$tenant" cluster exec "$cluster" -- mpirun -np 2 mpi-pingpong 65536
    grep -q '^pingpong: ok' "$evidence/$kept" || fail "mpi-pingpong did not report success (see $evidence/$kept)"
    held "$cluster: $(awk '$1 == 1 { half = $3 } $1 == 65536 { rate = $4 } END {
        printf "ping-pong: half a round trip %.1f ms, 64 KiB at %.1f MB/s", half / 1000, rate }' "$evidence/$kept")" "$kept"
done

step "Two clusters with InfiniBand adapters: IP over ib0, MPI over RDMA, and nothing between them"
start=$(now)
create_cluster acme copper --adapter infiniband --image debian-evaluation >"$evidence/create-copper.txt" 2>&1 &
copper_pid=$!
create_cluster umbra tin --adapter infiniband --image debian-evaluation >"$evidence/create-tin.txt" 2>&1 &
tin_pid=$!
wait "$copper_pid" || fail "cluster copper did not become ready (see $evidence/create-copper.txt)"
wait "$tin_pid" || fail "cluster tin did not become ready (see $evidence/create-tin.txt)"
held "$(tail -n 1 "$evidence/create-copper.txt")" create-copper.txt
held "$(tail -n 1 "$evidence/create-tin.txt")" create-tin.txt
timing "4 VMs with InfiniBand adapters, from the request to ready" "$(seconds "$start")"
adapter_packets() { # tenant cluster node: packets that the adapter of a node has sent, as its driver counts them
    in_node "$1" "$2" "$3" cat /sys/class/infiniband/heddle0/ports/1/hw_counters/tx_packets | tr -d '\r\n'
}
host_of() { # tenant cluster node
    "$heddle" cluster show "$2" --tenant "$1" -o json | pick "it['nodes'][$3 - 1]['host']"
}
port_packets() { # host: packets that the port of a host has sent, as the emulated fabric counts them
    "$heddle" sim-ctl "$site/run/sim-control.sock" counters "$1" 1 | pick 'it["counters"]["transmit_packets"]'
}
for pair in acme:copper umbra:tin; do
    tenant=${pair%:*} cluster=${pair#*:}
    must "ibstat-$cluster" in_node "$tenant" "$cluster" 1 ibstat
    grep -q 'State: Active' "$evidence/$kept" || fail "the port of $cluster-1 is not Active (see $evidence/$kept)"
    expect 'Link layer: InfiniBand' "$cluster-1: the kernel sees an active InfiniBand port"
    must "ping-$cluster" in_node "$tenant" "$cluster" 1 ping -I ib0 -c 3 -W 5 "$cluster-2"
    expect ' 0% packet loss' "$cluster-1 reaches $cluster-2 over ib0"
    host=$(host_of "$tenant" "$cluster" 1)
    adapter_before=$(adapter_packets "$tenant" "$cluster" 1) port_before=$(port_packets "$host")
    must "rdma-ring-$cluster" by "$tenant" cluster exec "$cluster" -- mpirun -x UCX_LOG_LEVEL=info -np 2 mpi-ring
    grep -q 'rc_verbs/heddle0' "$evidence/$kept" || fail "UCX does not use reliable connections of heddle0 (see $evidence/$kept)"
    held "$cluster: $(ring), by reliable connections of heddle0 (UCX rc_verbs)" "$kept"
    must "rdma-pingpong-$cluster" by "$tenant" cluster exec "$cluster" -- mpirun -np 2 mpi-pingpong 65536
    grep -q '^pingpong: ok' "$evidence/$kept" || fail "mpi-pingpong did not report success (see $evidence/$kept)"
    held "$cluster: $(awk '$1 == 1 { half = $3 } $1 == 65536 { rate = $4 } END {
        printf "ping-pong over RDMA: half a round trip %.1f ms, 64 KiB at %.1f MB/s", half / 1000, rate }' "$evidence/$kept")" "$kept"
    adapter_sent=$(($(adapter_packets "$tenant" "$cluster" 1) - adapter_before))
    port_sent=$(($(port_packets "$host") - port_before))
    must "perfquery-$cluster" in_node "$tenant" "$cluster" 1 perfquery -x
    # 9 sizes of messages, 52 rounds of most; TCP over ib0 would make far fewer packets of other kinds.
    ((adapter_sent > 400)) || fail "heddle0 of $cluster-1 sent $adapter_sent packets only during both runs"
    # What goes to the network view of the cluster does not leave through the port.
    ((10 * port_sent >= 9 * adapter_sent)) ||
        fail "the port of $host sent $port_sent packets, far fewer than the $adapter_sent of heddle0"
    held "$cluster: during both runs heddle0 of $cluster-1 sent $adapter_sent packets (hw_counters), and its port on the fabric $port_sent" "$kept"
    wait_for "^Ca.*\"$cluster-2\"" "tools-$cluster" in_node "$tenant" "$cluster" 1 sh -c 'ibnetdiscover 2>&1 || true'
    expect "^Ca.*\"$cluster-2\"" "ibnetdiscover in $cluster-1, without a wrapper: the network view of its cluster"
    [[ $(grep -c '^Ca' "$evidence/$kept") == 2 ]] || fail "ibnetdiscover in $cluster-1 shows others (see $evidence/$kept)"
done
adapters() { "$heddle" sim-ctl "$site/run/sim-control.sock" adapters; }
export -f adapters
export site
dropped() { # key [reason,reason]: packets of the functions with this P_Key that did not get through
    adapters | pick 'sum(n for f in it if f["pkeys"][0] == int("'"$1"'", 16) for r, n in f["packets"]["drops"].items() if not "'"${2:-}"'" or r in "'"${2:-}"'".split(","))'
}
copper_key=$(in_node acme copper 1 cat /sys/class/infiniband/heddle0/ports/1/pkeys/0 | tr -d '\r\n')
listens() { # file: whether a listener has said so, in a whole line
    [[ $(sed -n '/^listening/p' "$1" 2>/dev/null | wc -l) != 0 ]] && [[ $(tail -c 1 "$1" | wc -l) == 1 ]]
}
datagrams() { # mark [--gid]: copper-1 sends to tin-1; then, as the control, to copper-2
    local mark=$1 pair tenant node file lid qpn gid deadline
    for pair in umbra:tin:1 acme:copper:2; do
        IFS=: read -r tenant cluster node <<<"$pair"
        file=$scratch/ud-$cluster
        in_node "$tenant" "$cluster" "$node" ud-count --mark "$mark" --seconds "$listen_seconds" >"$file" 2>&1 &
        local listener=$!
        deadline=$((SECONDS + 60))
        until listens "$file"; do
            ((SECONDS < deadline)) || fail "$cluster-$node did not start to listen within 60 s (see $file)"
            sleep 0.05
        done
        read -r _ _ lid _ qpn _ gid < <(tr -d '\r' <"$file")
        [[ ${2:-} == --gid ]] || gid=''
        must "ud-send-$mark-$cluster" in_node acme copper 1 ud-send --lid "$lid" --qpn "$qpn" --count "$marked" --mark "$mark" ${gid:+--gid "$gid"}
        wait "$listener" || fail "ud-count failed on $cluster-$node (see $file)"
        cat "$file" >>"$evidence/$kept"
    done
    [[ $(sed -n 's/.* marked \([0-9]*\).*/\1/p' "$scratch/ud-tin") == 0 ]] || fail "tin-1 received datagrams of copper-1 (see $evidence/$kept)"
    heard=$(sed -n 's/.* marked \([0-9]*\).*/\1/p' "$scratch/ud-copper")
    ((heard > 0)) || fail "control: copper-2 received nothing (see $evidence/$kept)"
}
before=$(dropped "$copper_key")
datagrams lid
held "$marked datagrams to the LID, queue pair and Q_Key of tin-1: none arrived; copper-2 got $heard of $marked" "$kept"
datagrams gid --gid
held "$marked datagrams with the GID of tin-1: none arrived; copper-2 got $heard of $marked" "$kept"
must adapters adapters
after=$(dropped "$copper_key")
((after - before >= 2 * marked)) || fail "only $((after - before)) of $((2 * marked)) datagrams are counted as dropped (see $evidence/$kept)"
held "heddle sim-ctl adapters counts $((after - before)) dropped packets of acme, with their reason" "$kept"

# Raw packets: what a modified driver could send. Both nodes of umbra and the other one of acme listen for whatever arrives.
address_of() { # tenant cluster node: prints "lid 3 first-qpn 524288 gid fe80::..."
    in_node "$1" "$2" "$3" packet-count --mark none --seconds 1 | tr -d '\r' | sed -n 's/^listening //p'
}
value() { # name words: the word behind a name
    sed -n "s/.* $1 \([^ ]*\).*/\1/p" <<<" $2"
}
tin_1=$(address_of umbra tin 1) copper_1=$(address_of acme copper 1) copper_2=$(address_of acme copper 2)
tin_lid=$(value lid "$tin_1") tin_qpn=$(($(value first-qpn "$tin_1") + 5)) tin_key=$(value pkey "$tin_1") tin_gid=$(value gid "$tin_1")
own_lid=$(value lid "$copper_1") peer_lid=$(value lid "$copper_2") peer_qpn=$(($(value first-qpn "$copper_2") + 5))
[[ -n $tin_gid && -n $own_lid && -n $peer_lid ]] || fail "packet-count does not say the addresses of nodes: '$tin_1', '$copper_1', '$copper_2'"
declare -A listeners_of=()
listen_raw() { # mark seconds: all but copper-1 listen
    local mark=$1 pair tenant cluster node deadline
    for pair in umbra:tin:1 umbra:tin:2 acme:copper:2; do
        IFS=: read -r tenant cluster node <<<"$pair"
        in_node "$tenant" "$cluster" "$node" packet-count --mark "$mark" --seconds "$2" >"$scratch/raw-$cluster-$node" 2>&1 &
        listeners_of[$cluster-$node]=$!
    done
    for pair in "${!listeners_of[@]}"; do
        deadline=$((SECONDS + 60))
        until listens "$scratch/raw-$pair"; do
            ((SECONDS < deadline)) || fail "$pair did not start to listen within 60 s (see $scratch/raw-$pair)"
            sleep 0.05
        done
    done
}
attack_count=0
attack() { # name description reasons option ...: copper-1 sends packets that must be dropped for one of these reasons
    local name=$1 what=$2 reasons=$3 before after sent deadline
    shift 3
    before=$(dropped "$copper_key" "$reasons")
    must "raw-$name" in_node acme copper 1 packet-send --count "$marked" --mark "raw-$name" "$@"
    sent=$(sed -n 's/^sent \([0-9]*\).*/\1/p' "$evidence/$kept" | tr -d '\r')
    # The fabric reads them a moment later.
    deadline=$((SECONDS + 10))
    until after=$(dropped "$copper_key" "$reasons") && ((after - before >= sent)); do
        ((SECONDS < deadline)) || fail "$what: $((after - before)) of $sent are counted as dropped for $reasons (see $evidence/$kept)"
        sleep 0.2
    done
    attack_count=$((attack_count + sent))
    held "$what: $sent sent, $((after - before)) dropped and counted (${reasons//,/, })" "$kept"
}
# Names of devices and their tables, as the fabric has them.
"$heddle" fabric show --format ibnetdiscover >"$evidence/fabric.ibnetdiscover"
tin_host=$(host_of umbra tin 1) copper_host=$(host_of acme copper 1)
physical_state() {
    local node
    for node in "$tin_host" "$copper_host" manager; do
        "$heddle" sim-ctl "$site/run/sim-control.sock" tables "$node"
        "$heddle" sim-ctl "$site/run/sim-control.sock" counters "$node" 1 |
            pick '{k: it[k] for k in ("guid", "lid", "lmc", "state", "m_key_set", "m_key_protection", "m_key_violations")}'
    done
}
physical_state >"$scratch/physical-before"
listen_raw raw- 90
readonly partitions=partition_at_switch,partition_at_receiver
attack plain "raw packets to tin-1 with the own P_Key" "$partitions" --dlid "$tin_lid" --qpn "$tin_qpn"
attack slid "raw packets to tin-1 with the SLID of tin-1" "$partitions" --dlid "$tin_lid" --qpn "$tin_qpn" --slid "$tin_lid"
attack pkey "raw packets with the P_Key of umbra" partition_at_sender --dlid "$tin_lid" --qpn "$tin_qpn" --pkey "$tin_key"
attack guid "raw packets with a GRH that names tin-1 as their source" spoofed --dlid "$tin_lid" --qpn "$tin_qpn" --sgid "$tin_gid" --dgid "$tin_gid"
attack own-guid "the same to copper-2" spoofed --dlid "$peer_lid" --qpn "$peer_qpn" --sgid "$tin_gid"
# Functions of other ports may have the same numbers: the bit above makes it the number of another function of this port.
attack qpn "raw packets that name a queue pair of another function as their source" spoofed --dlid "$peer_lid" --qpn "$peer_qpn" \
    --sqp $((peer_qpn ^ (1 << 23)))
attack write "raw RDMA writes to a connection of tin-1" "$partitions" --dlid "$tin_lid" --qpn "$tin_qpn" --opcode 0x0a
attack cut "truncated packets" malformed --dlid "$peer_lid" --qpn "$peer_qpn" --cut 40
attack long "packets longer than the MTU" too_large --dlid "$peer_lid" --qpn "$peer_qpn" --bytes 4200
# The last one is the control: all listeners still listened while the others were sent.
must raw-control in_node acme copper 1 packet-send --count "$marked" --mark raw-own --dlid "$peer_lid" --qpn "$peer_qpn" --slid "$tin_lid"
wait "${listeners_of[@]}" || fail "packet-count failed in a node (see $scratch/raw-*)"
for node in tin-1 tin-2 copper-2; do
    { echo "$node:" && tr -d '\r' <"$scratch/raw-$node"; } >>"$evidence/$kept"
done
for node in tin-1 tin-2; do
    grep -Eq '^packets [0-9]+ marked 0' "$scratch/raw-$node" || fail "$node received raw packets of copper-1 (see $evidence/$kept)"
done
held "of $attack_count raw packets none arrived at tin-1 or tin-2" "$kept"
arrived=$(tr -d '\r' <"$scratch/raw-copper-2" | grep '^mark ' || true)
[[ $arrived =~ ^"mark raw-own packets "[0-9]+" slids $own_lid"$ ]] ||
    fail "control: copper-2 should receive raw packets of copper-1 with SLID $own_lid and no others, got '$arrived' (see $evidence/$kept)"
held "control: copper-2 received those with a forged SLID, $tin_lid, and sees the true one: ${arrived#mark raw-own }" "$kept"
sm_lid=$(value sm-lid "$copper_1")
must raw-path in_node acme copper 1 packet-send --mad paths --dgid "$tin_gid" --dlid "$sm_lid" --seconds 3
! grep -Eq 'status 0x0000 records [1-9]' "$evidence/$kept" || fail "copper-1 gets a path to tin-1 (see $evidence/$kept)"
held "subnet administration gives copper-1 no path to tin-1" "$kept"
must raw-path-control in_node acme copper 1 packet-send --mad paths --dgid "$(value gid "$copper_2")" --dlid "$sm_lid" --seconds 3
expect 'status 0x0000 records [1-9]' "control: it gives a path to copper-2"
must raw-join in_node acme copper 1 packet-send --mad join --pkey "$tin_key" --dlid "$sm_lid" --seconds 3
! grep -Eq 'status 0x0000' "$evidence/$kept" || fail "copper-1 joined a group of umbra (see $evidence/$kept)"
held "subnet administration does not let copper-1 join the broadcast group of tin" "$kept"
must raw-join-control in_node acme copper 1 packet-send --mad join --pkey "$copper_key" --dlid "$sm_lid" --seconds 3
expect 'status 0x0000' "control: it lets copper-1 join that of copper"

# IP over InfiniBand and rdma_cm. Both clusters have the same addresses, so tin-1 and copper-2 get further ones, in the same network.
for pair in umbra:tin:1:10.128.9.1 acme:copper:2:10.128.9.2; do
    IFS=: read -r tenant cluster node address <<<"$pair"
    must "address-$cluster" in_node "$tenant" "$cluster" "$node" ip address add "$address/16" dev ib0
    in_node "$tenant" "$cluster" "$node" timeout 120 rping -s -a "$address" -v >"$scratch/rping-$cluster" 2>&1 &
    listeners_of[rping-$cluster]=$!
done
hardware_address() { # tenant cluster node
    in_node "$1" "$2" "$3" cat /sys/class/net/ib0/address | tr -d '\r\n'
}
across() { # title command ...: fails towards tin-1, and succeeds towards copper-2
    local title=$1
    shift
    if keep "across-$title" in_node acme copper 1 "${@//ADDRESS/10.128.9.1}"; then fail "$title: copper-1 reached tin-1 (see $evidence/$kept)"; fi
    must "within-$title" in_node acme copper 1 "${@//ADDRESS/10.128.9.2}"
    held "$title: copper-1 does not reach tin-1; control: it reaches copper-2" "$kept"
}
across ping ping -I ib0 -c 3 -W 3 ADDRESS
for pair in umbra:tin:1:10.128.9.1 acme:copper:2:10.128.9.2; do
    IFS=: read -r tenant cluster node address <<<"$pair"
    must "neighbour-$cluster" in_node acme copper 1 ip neighbour replace "$address" \
        lladdr "$(hardware_address "$tenant" "$cluster" "$node")" nud permanent dev ib0
done
across ping-neighbour ping -I ib0 -c 3 -W 3 ADDRESS
across rping timeout 30 rping -c -a ADDRESS -C 5 -v
for process in rping-tin rping-copper; do
    kill "${listeners_of[$process]}" 2>/dev/null || true
    wait "${listeners_of[$process]}" || true
done
must check-copper by acme cluster check copper
expect ' 0 failed' "heddle cluster check: $(grep -E '^[0-9]+ passed' "$evidence/$kept")"
must raw-nodes in_node acme copper 1 packet-send --mad node-info --dlid 1-40 --mark raw-smp --seconds 3
! sed -n 's/^answer .* guid 0x\([0-9a-f]*\).*/\1/p' "$evidence/$kept" | grep -qFf - "$evidence/fabric.ibnetdiscover" ||
    fail "a device of the fabric answered a Get of NodeInfo (see $evidence/$kept)"
held "40 Gets of NodeInfo to QP0 of the LIDs 1 to 40: no device of the fabric answered" "$kept"
must raw-set in_node acme copper 1 packet-send --mad set-port-info --m-key 0x1 --dlid 1-40 --mark raw-smp --seconds 3
physical_state >"$scratch/physical-after"
diff "$scratch/physical-before" "$scratch/physical-after" >>"$evidence/$kept" || fail "the tables of devices have changed (see $evidence/$kept)"
held "40 Sets of PortInfo with a guessed M_Key: LIDs, tables and counters of wrong keys are unchanged on the fabric" "$kept"
must delete-copper by acme cluster delete copper --timeout "$cluster_limit"
must delete-tin by umbra cluster delete tin --timeout "$cluster_limit"
[[ $(adapters | pick 'len(it)') == 0 ]] || fail "adapters are left on the fabric"
held "both clusters are deleted, and no adapter is left on the fabric"

step "Check isolation: no frame sent by a VM of acme reaches a VM of umbra"
mac_of() { # tenant cluster node
    in_node "$1" "$2" "$3" cat /sys/class/net/eth0/address | tr -d '\r\n'
}
blue_2=$(mac_of acme blue 2)
green_1=$(mac_of umbra green 1)
green_2=$(mac_of umbra green 2)
must ping-blue in_node acme blue 1 ping -c 3 -W 5 blue-2
expect ' 0% packet loss' "control: blue-1 reaches blue-2"
count_frames() { # tenant cluster node mark file: counts frames in the background
    in_node "$1" "$2" "$3" frame-count --mark "$4" --seconds "$listen_seconds" >"$5" 2>&1 &
    listeners+=($!)
}
marked_in() { # file: the number of frames with the mark that arrived
    sed -n 's/^frames [0-9]* marked \([0-9]*\)$/\1/p' "$1"
}
attempt() { # mark description destination source|-: blue-1 sends; blue-2 and both VMs of umbra listen
    local mark=$1 what=$2 source=()
    [[ $4 == - ]] || source=(--src "$4")
    listeners=()
    count_frames acme blue 2 "$mark" "$scratch/heard-blue"
    count_frames umbra green 1 "$mark" "$scratch/heard-green-1"
    count_frames umbra green 2 "$mark" "$scratch/heard-green-2"
    local file deadline=$((SECONDS + 60))
    for file in blue green-1 green-2; do
        until grep -qs '^listening' "$scratch/heard-$file"; do
            ((SECONDS < deadline)) || fail "$file did not start to listen within 60 s"
            sleep 0.05
        done
    done
    must "send-$mark" in_node acme blue 1 frame-send --dst "$3" "${source[@]}" --count "$marked" --mark "$mark"
    wait "${listeners[@]}" || fail "frame-count failed on a listening VM"
    { echo "blue-2: $(cat "$scratch/heard-blue")" &&
        echo "green-1: $(cat "$scratch/heard-green-1")" &&
        echo "green-2: $(cat "$scratch/heard-green-2")"; } >>"$evidence/$kept"
    heard_blue=$(marked_in "$scratch/heard-blue")
    local green
    for green in 1 2; do
        [[ $(marked_in "$scratch/heard-green-$green") == 0 ]] || fail "green-$green received $what (see $evidence/$kept)"
    done
    rm -f "$scratch"/heard-*
}
attempt own "frames to a node of its own cluster" "$blue_2" -
((heard_blue > 0)) || fail "control: blue-2 received nothing (see $evidence/$kept)"
held "control: frames to blue-2: blue-2 received $heard_blue of $marked, umbra none" "$kept"
attempt broadcast "broadcast frames" ff:ff:ff:ff:ff:ff -
((heard_blue > 0)) || fail "control: blue-2 received no broadcast (see $evidence/$kept)"
held "broadcast frames: blue-2 received $heard_blue of $marked, umbra none" "$kept"
attempt foreign "frames to the address of green-1" "$green_1" -
held "frames to the MAC address of green-1: umbra received none" "$kept"
attempt multicast "multicast frames" 33:33:00:00:00:01 -
held "multicast frames: umbra received none" "$kept"
attempt forged "frames with a forged source address" "$green_1" "$green_2"
held "frames to green-1 with the source address of green-2: umbra received none" "$kept"
attempt forged-broadcast "broadcast frames with a forged source address" ff:ff:ff:ff:ff:ff "$green_2"
((heard_blue == 0)) || fail "blue-2 received frames with a forged source address (see $evidence/$kept)"
held "frames with a forged source address are not even delivered inside the cluster" "$kept"
must functions "$heddle" sim-ctl "$site/run/sim-control.sock" functions
expect 'spoofed' "the fabric counted the frames with a forged source address"

step "Check paths, P_Key tables and lanes with stock InfiniBand tools"
"$heddle" fabric show -o json >"$evidence/fabric.json"
members() { # cluster field: that field of each member
    pick "' '.join(str(m['$2']) for p in it['partitions'] if p['cluster'] == '$1' for m in p['members'])" \
        <"$evidence/fabric.json"
}
read -r -a blue_hosts <<<"$(members blue host)"
read -r -a blue_lids <<<"$(members blue lid)"
read -r -a green_lids <<<"$(members green lid)"
# From the host of the subnet manager: saquery sends with the P_Key at index 0, which on a host of a cluster is the cluster's.
must path-within stock manager saquery PR --slid "${blue_lids[0]}" --dlid "${blue_lids[1]}"
expect 'dgid' "saquery: there is a path between two hosts of blue"
keep path-between stock manager saquery PR --slid "${blue_lids[0]}" --dlid "${green_lids[0]}" || true
! grep -q 'dgid' "$evidence/$kept" || fail "saquery returns a path from blue to green (see $evidence/$kept)"
held "saquery: there is no path from blue to green" "$kept"
key_file() { # guid: a file with the M_Key of a node, for option -z (every user can read command-line arguments)
    "$heddle" node-key "$1" --secret "$site/site.secret" --config "$scratch/key-$1.conf" && echo "$scratch/key-$1.conf"
}
key_of() { # host: the same for the adapter of a host
    local guid
    guid=$("$heddle" fabric show --format ibnetdiscover | awk -v host="\"$1\"" '
        /^caguid=/ { guid = substr($1, 8) } /^Ca/ && index($0, host) { print guid; exit }')
    key_file "$guid"
}
# Lists every port of every switch: a host near the switch, the directed route from there, GUID, port, and the host behind
# the port or "-".
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
keys_in() { # file: the P_Keys of clusters in the output of smpquery
    grep -E '^ *[0-9]+: 0x' "$1" | grep -oE '0x[0-9a-f]{4}' | grep -v -e 0x0000 -e 0x7fff -e 0xffff | sort | tr '\n' ' ' || true
}
check_tables() { # description: every port must hold exactly the expected P_Keys
    local host path guid port table expected switch_count=0
    local -A keys=()
    for host in $("$heddle" host list -o json | pick '" ".join(h["name"] for h in it)'); do
        expected=$(pick "' '.join(sorted('%#06x' % (p['number'] | 0x8000) for p in it['partitions'] for m in p['members'] if m['host'] == '$host'))" <"$evidence/fabric.json")
        must "pkeys-$host" stock "$host" smpquery -z "$(key_of "$host")" -D pkeys 0 1
        table=$(keys_in "$evidence/$kept")
        [[ ${table% } == "$expected" ]] || fail "$host holds the P_Keys '$table', expected '$expected' (see $evidence/$kept)"
        keys[$host]=$expected
    done
    kept_count=$((kept_count + 1))
    kept=$(printf '%02d-pkeys-switches.txt' "$kept_count")
    while read -r from path guid port host; do
        printf '== smpquery -z KEY -D pkeys %s %s (switch %s; behind it: %s)\n' "$path" "$port" "$guid" "$host"
        (stock "$from" smpquery -z "$(key_file "$guid")" -D pkeys "$path" "$port") \
            >"$scratch/pkeys" 2>&1 </dev/null || fail "cannot read the P_Keys of port $port of switch $guid (see $evidence/$kept)"
        cat "$scratch/pkeys"
        table=$(keys_in "$scratch/pkeys") expected=${keys[$host]:-}
        [[ ${table% } == "$expected" ]] || fail "port $port of switch $guid holds the P_Keys '$table', expected '$expected'"
        switch_count=$((switch_count + 1))
    done < <(switch_ports) >"$evidence/$kept"
    held "smpquery pkeys, with the M_Key of each node: $1 (${#keys[@]} ports of hosts, $switch_count of switches)" "$kept"
}
check_tables "every port holds exactly the P_Keys of the clusters behind it"
if keep pkeys-without-key stock "${blue_hosts[0]}" smpquery -t 200 -D pkeys 0 1; then fail "smpquery reads P_Keys without the M_Key (see $evidence/$kept)"; fi
held "smpquery pkeys without the M_Key gets no answer" "$kept"
if keep guarantee-too-large by acme cluster create vast --nodes 2 --memory 384M --bandwidth 10000G; then
    fail "a guarantee of 10000G was admitted (see $evidence/$kept)"
fi
expect 'too little capacity left for this guarantee' "a guarantee beyond the capacity of the links is refused, without numbers about other tenants"
must guarantee "$heddle" cluster show blue --tenant acme
expect '0.5 Gb/s guaranteed, 1000 µs at most' "blue has its guarantee"
read -r from path guid port _ < <(switch_ports | awk -v host="${blue_hosts[0]}" '$5 == host')
switch_key=$(key_file "$guid")
must lanes-of-blue stock "$from" smpquery -z "$switch_key" -D sl2vl "$path" "$port"
grep -Eq 'out +[0-9]+: \| 0\| *[1-9]\|' "$evidence/$kept" || fail "no hop maps to the lane of blue (see $evidence/$kept)"
[[ $(grep -Ec 'out +[0-9]+: \| 0\|15\|15\|' "$evidence/$kept") -ge 2 ]] || fail "hops from other inputs carry the service level of blue (see $evidence/$kept)"
held "smpquery sl2vl: the service level of blue has a lane on inputs from blue, and is discarded from all others" "$kept"
must weights-of-blue stock "$from" smpquery -z "$switch_key" -D vlarb "$path" "$port"
# smpquery prints lanes in one line and their weights in the line below.
grep -A2 '^# Low' "$evidence/$kept" | awk -F'|' '
    /^VL/ { for (i = 2; i < NF; i++) lane[i] = $i }
    /^WEIGHT/ { for (i = 2; i < NF; i++) if (lane[i] !~ /0x0 *$/ && $i !~ /0x0 *$/) found = 1 }
    END { exit !found }' || fail "the lane of blue has no weight (see $evidence/$kept)"
held "smpquery vlarb: the lane of blue has a weight in the low-priority table" "$kept"
must verify "$heddle" fabric verify
held "heddle fabric verify: no violations" "$kept"

step "Use stock tools in the network view of a cluster: from this machine, inside a VM, and with opensm as its manager"
must view-map by acme view map blue
held "heddle view map shows the network of blue under aliases" "$kept"
must view-here by acme view exec blue -- ibnetdiscover
grep -q '"blue-1' "$evidence/$kept" && grep -q '"blue-2' "$evidence/$kept" || fail "the view of blue lacks its nodes (see $evidence/$kept)"
! grep -Eq 'green|host-' "$evidence/$kept" || fail "the view of blue shows other nodes (see $evidence/$kept)"
held "ibnetdiscover on this machine: blue-1, blue-2, and no nodes of others" "$kept"
must view-inside in_node acme blue 2 in-view ibnetdiscover
diff <(grep -E '^(Switch|Ca)' "$evidence/$kept" | sort) <(grep -hE '^(Switch|Ca)' "$evidence"/*-view-here.txt | sort) >/dev/null ||
    fail "ibnetdiscover inside blue-2 shows another network (see $evidence/$kept)"
held "ibnetdiscover inside blue-2: the same network" "$kept"
blue_2=$(by acme view map blue -o json | pick 'it["nodes"][1]["lid"]')
must view-path by acme view exec blue -- saquery PR --slid 1 --dlid "$blue_2"
expect "dlid\\.+$blue_2" "saquery on this machine: the path from blue-1 to blue-2"
must view-opensm in_node acme blue 1 sh -c 'sleep 100 | timeout 100 in-view opensm -d 2 -f /tmp/opensm.log >/dev/null 2>&1 &
    sm=$!
    for try in $(seq 90); do ! grep -q "SUBNET UP" /tmp/opensm.log 2>/dev/null || break; sleep 1; done
    grep "SUBNET UP" /tmp/opensm.log && in-view sminfo && kill $sm'
expect 'SUBNET UP' "opensm inside blue-1 manages the view of its cluster"
expect 'sm lid 1 .*SMINFO_MASTER' "sminfo: this opensm is the master"
! by umbra view map blue >/dev/null 2>&1 || fail "umbra has access to the view of blue"
must view-control by umbra view map green
held "umbra has access to the view of green, but not to that of blue" "$kept"

step "Drift: remove one P_Key entry and one route without the subnet manager; it repairs both"
device=heddle:$site/run/sim.sock@manager
guid_of() { # description
    "$heddle" fabric show --format ibnetdiscover | awk -v name="\"$1\"" '
        /^(ca|switch)guid=/ { split($1, part, /[=(]/); guid = part[2] }
        /^(Ca|Switch)/ && index($0, name) { print guid; exit }'
}
# Pings for longer than the sweep interval: only a sweep detects a change without a trap.
drill() { # name description command ...: pings while a command removes an entry
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
    [[ -n $lost && $lost != 0 ]] || fail "$what: no ping was lost, so the entry had no effect (see $evidence/$kept)"
    grep -q ' 0% packet loss' "$scratch/ping-control" || fail "$what: umbra lost frames, too (see $evidence/$kept)"
    grep -q 'icmp_seq=25[0-9]' "$scratch/ping" || fail "$what: the manager did not repair it (see $evidence/$kept)"
    held "$what: acme lost $lost % of its pings until the repair; umbra lost none" "$kept"
}
blue_key=$(pick "'%#06x' % (next(p['number'] for p in it['partitions'] if p['cluster'] == 'blue') | 0x8000)" <"$evidence/fabric.json")
must tables-before "$heddle" sim-ctl "$site/run/sim-control.sock" tables "${blue_hosts[1]}"
key_index=$(stock "${blue_hosts[1]}" smpquery -z "$(key_of "${blue_hosts[1]}")" -D pkeys 0 1 2>/dev/null |
    grep -E '^ *[0-9]+: 0x' | grep -oE '0x[0-9a-f]{4}' | grep -n "$blue_key" | cut -d : -f 1 | head -n 1)
[[ -n $key_index ]] || fail "${blue_hosts[1]} does not hold P_Key $blue_key"
drill pkey "P_Key of ${blue_hosts[1]} removed" "$heddle" smp --device "$device" --secret "$site/site.secret" \
    set-pkey "$(guid_of "${blue_hosts[1]}")" "${blue_lids[1]}" --index $((key_index - 1))
leaf=$("$heddle" fabric show --format ibnetdiscover | awk -v host="\"${blue_hosts[1]}\"" '
    /^Ca/ && index($0, host) { getline; print; exit }' | sed -n 's/.*lmc 0 "\([^"]*\)".*/\1/p')
# The LID of a switch is the one that it forwards to its port 0.
leaf_lid=$("$heddle" sim-ctl "$site/run/sim-control.sock" tables "$leaf" |
    pick 'next(lid for lid, port in it["linear_forwarding"].items() if port == 0)')
[[ -n $leaf && -n $leaf_lid ]] || fail "cannot find the switch of ${blue_hosts[1]}"
drill route "route to ${blue_hosts[1]} removed at $leaf" "$heddle" smp --device "$device" \
    --secret "$site/site.secret" set-lft "$(guid_of "$leaf")" "$leaf_lid" --to "${blue_lids[1]}"

step "Resize blue to three nodes, divide it into partitions by command and by opensm inside it, and shrink it again"
start=$(now)
must grow by acme cluster resize blue --nodes 3 --wait --timeout "$cluster_limit"
timing "a third node, from the request to ready" "$(seconds "$start")"
held "$(grep '^cluster blue' "$evidence/$kept")" "$kept"
must ring-3 by acme cluster exec blue -- mpirun -np 3 mpi-ring
held "MPI with three ranks: $(ring)" "$kept"
must hostnames by acme cluster exec blue --all -- hostname
expect 'blue-3 +\| blue-3' "all three nodes answer with their names"
must partition by acme cluster partition blue --set io=1-2 --set work=3 --timeout "$cluster_limit"
must inside in_node acme blue 1 ping -c 5 -i 0.2 -W 2 blue-2
held "blue-1 and blue-2 are in the same partition inside blue and reach each other" "$kept"
! keep across in_node acme blue 1 ping -c 5 -i 0.2 -W 1 blue-3 || fail "blue-1 still reaches blue-3 (see $evidence/$kept)"
expect '100% packet loss' "blue-3 is in another partition: all five pings are lost"
must verify-partitions "$heddle" fabric verify
held "heddle fabric verify: no violations with partitions inside blue" "$kept"
must unpartition by acme cluster partition blue --clear --timeout "$cluster_limit"
must together in_node acme blue 1 ping -c 5 -i 0.2 -W 2 blue-3
held "after the partitions are removed, blue-1 reaches blue-3 again" "$kept"
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
expect '0x0002' "opensm inside blue-1 creates partitions, which have other numbers on the wire"
wait_for 'in force +change' view-status by acme view status blue
expect 'in force +change' "the tables that opensm wrote are in force"
must view-classes by acme view map blue
expect 'SERVICE LEVELS HERE' "its two traffic classes have one service level each on the wire, inside the guarantee of blue"
wait_for '"classes"' view-context in_node acme blue 2 cat /etc/heddle/context.json
expect '"classes"' "the context file of blue-2 lists these service levels for applications"
must verify-view "$heddle" fabric verify
held "heddle fabric verify: no violations with the tables that opensm wrote" "$kept"
must view-beside in_node acme blue 1 ping -c 5 -i 0.2 -W 2 blue-2
held "blue-1, a full member of the default partition, reaches blue-2" "$kept"
! keep view-across in_node acme blue 2 ping -c 5 -i 0.2 -W 1 blue-3 || fail "blue-2 still reaches blue-3 (see $evidence/$kept)"
expect '100% packet loss' "blue-2 and blue-3 are in different partitions: all five pings are lost"
must view-end in_node acme blue 1 sh -c 'kill $(cat /tmp/divide.pid)'
wait_for 'in force +default' view-default by acme view status blue
expect 'in force +default' "after opensm ended, the default configuration is in force again"
must view-together in_node acme blue 2 ping -c 5 -i 0.2 -W 2 blue-3
held "blue-2 reaches blue-3 again" "$kept"
start=$(now)
must shrink by acme cluster resize blue --nodes 2 --wait --timeout "$cluster_limit"
timing "removing the third node" "$(seconds "$start")"
must ring-2 by acme cluster exec blue -- mpirun -np 2 mpi-ring
held "MPI with two ranks: $(ring)" "$kept"

step "Delete both clusters and check that nothing is left"
start=$(now)
must delete-blue by acme cluster delete blue --timeout "$cluster_limit"
must delete-green by umbra cluster delete green --timeout "$cluster_limit"
timing "both clusters deleted" "$(seconds "$start")"
[[ $("$heddle" cluster list -o json | pick 'len(it)') == 0 ]] || fail "clusters are left: heddle cluster list is not empty"
held "no cluster is left"
must functions-after "$heddle" sim-ctl "$site/run/sim-control.sock" functions
! grep -q '"mac"' "$evidence/$kept" || fail "virtual functions are left on the fabric (see $evidence/$kept)"
held "no virtual function is left on the fabric" "$kept"
keep disks find "$site/agent/vms" -mindepth 1 -not -path "$site/agent/vms/resting*" || true
! grep -q "^$site" "$evidence/$kept" || fail "disks or seeds are left (see $evidence/$kept)"
held "no disk or seed of a running VM is left" "$kept"
keep resting find "$site/agent/vms/resting" -type f -perm /077 -o -name seed.iso || true
! grep -q "^$site" "$evidence/$kept" || fail "retained disks are readable for others, or seeds were retained (see $evidence/$kept)"
held "disks are retained for a day, readable for the agent only; no seed is retained" "$kept"
instance=$(cat "$site/agent/instance")
must domains virsh -c qemu:///system list --all --name
! grep -q "$instance" "$evidence/$kept" || fail "VMs are left in libvirt (see $evidence/$kept)"
held "no VM is left in libvirt" "$kept"
# The brackets keep pgrep from finding its own command line.
if keep processes pgrep -af "guest=[h]eddle-$instance"; then fail "QEMU processes are left (see $evidence/$kept)"; fi
held "no QEMU process is left" "$kept"
keep sockets find "/run/heddle/$instance" -type s || true
! grep -q '^/run' "$evidence/$kept" || fail "sockets of VMs are left (see $evidence/$kept)"
held "no socket of a VM is left" "$kept"
"$heddle" fabric show -o json >"$evidence/fabric.json"
[[ $(pick 'len(it["partitions"])' <"$evidence/fabric.json") == 0 ]] || fail "partitions are left (see $evidence/fabric.json)"
check_tables "no port holds the P_Key of a cluster"
must events "$heddle" event list

if [[ -n ${HEDDLE_DEMO_KEEP:-} ]]; then
    step "The site keeps running: HEDDLE_HOME=$site, process $up_pid; stop it with heddle down --dir $site"
    trap - EXIT
else
    step "Stop the site with heddle down"
    pids=$(cat "$site"/run/*.pid)
    must down "$heddle" down --dir "$site"
    wait "$up_pid" || fail "heddle up exited with an error (see $evidence/up.txt)"
    up_pid=''
    held "$(grep '^stopped' "$evidence/$kept")" "$kept"
    for pid in $pids; do
        ! kill -0 "$pid" 2>/dev/null || fail "process $pid is still running"
    done
    held "no process of the site is left"
    sockets=$(find "$site" -type s)
    [[ -z $sockets ]] || fail "sockets are left: $sockets"
    held "no socket is left"
fi

if [[ -z ${HEDDLE_DEMO_KEEP:-} ]]; then
    step "For comparison, boot the same four guests with plain QEMU"
    start=$(now)
    boot_plain_guests "$start"
    plain=$(seconds "$start")
    stop_plain_guests
    cat "$scratch"/plain/*.console >"$evidence/plain-consoles.txt"
    timing "the same 4 guests with plain QEMU, from start to ready" "$plain"
    ratio=$(python3 -c 'import sys; print("%.2f" % (float(sys.argv[1]) / float(sys.argv[2])))' "$with_heddle" "$plain")
    timing "Heddle compared with plain QEMU" "$ratio" " times as long"
    held "plain QEMU took $plain s; Heddle took $with_heddle s from the request to ready, $ratio times as long" plain-consoles.txt
fi
end_step
timing "the whole demo" "$(seconds "$demo_start")"

# ---- the report

{
    cat <<END
# Demo: two tenants on one emulated fabric

Written by \`make demo\`. Every line below is a check that passed; the output of the tools is in \`evidence/\`.

| | |
|---|---|
| date | $(date -u '+%Y-%m-%d %H:%M UTC') |
| commit | $(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)$([[ -z $(git status --porcelain 2>/dev/null) ]] || echo ' with local changes') |
| machine | $(nproc) cores, $(awk '/^MemTotal/ { printf "%.1f", $2 / 1048576 }' /proc/meminfo) GiB, $(uname -sr) |
| QEMU | $(qemu-system-x86_64 --version | head -n 1 | sed 's/.*version //') |

## Durations

| | |
|---|---|
END
    cat "$results/timings"
    cat "$draft"
} >"$results/report.md"
rm -f "$draft" "$results/timings"
printf '\nAll checks passed in %s s. Report: %s\n' "$(seconds "$demo_start")" "$results/report.md"
