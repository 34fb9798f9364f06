#!/usr/bin/env bash
# Demo of the emulated fabric and of the subnet manager, checked with unmodified InfiniBand tools. Every step is checked;
# the exit status is 0 only if all checks passed. The output of the tools is saved in target/fabric-demo/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# InfiniBand tools are in sbin, which is not in the PATH of every user.
export PATH="$PATH:/usr/sbin:/sbin" LC_ALL=C

readonly target=${CARGO_TARGET_DIR:-target}
readonly heddle=$(realpath -m "$target/release/heddle")
readonly evidence=$(realpath -m "$target/fabric-demo")
readonly name=demo-$$             # name of the emulation, unique so that demos can run concurrently
readonly m_key=0x00c0ffee5eed0042 # arbitrary
readonly first=host-00001         # first and last host of the tree
readonly last=host-00016
readonly tool_seconds=30          # longer than any tool takes, even on a busy machine
readonly wait_seconds=30

# ---- cleanup: stops the processes that were started here, by id, however the demo ends

scratch=$(mktemp -d)
sim_pid='' opensm_pid='' manager_pid='' tool_pid=''

end_process() { # pid
    if [[ -n $1 ]] && kill -TERM "$1" 2>/dev/null; then
        wait "$1" 2>/dev/null || true
    fi
}

clean_up() {
    local status=$?
    trap - EXIT INT TERM
    end_process "$tool_pid"
    end_process "$opensm_pid"
    end_process "$manager_pid"
    end_process "$sim_pid"
    if [[ $status != 0 ]]; then
        printf '\ndemo: stopped early. Output of the tools: %s\n' "$evidence" >&2
    fi
    rm -rf "$scratch"
    exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# ---- steps and checks

step_count=0

step() { # title
    step_count=$((step_count + 1))
    printf '\n%d. %s\n' "$step_count" "$1"
}

show() { # indents standard input
    sed 's/^/     /'
}

took() { # start: the time since then, as text; start is a result of now()
    local micros=$((${EPOCHREALTIME/./} - $1))
    printf '%d.%03d s' $((micros / 1000000)) $((micros / 1000 % 1000))
}

now() {
    printf '%s' "${EPOCHREALTIME/./}"
}

held() { # description: a check that passed
    printf '   ok: %s\n' "$1"
}

fail() { # description: a check that failed; ends the demo
    printf '   FAILED: %s\n' "$1" >&2
    exit 1
}

expect() { # pattern file description: the pattern must occur in the file
    grep -Eq -- "$1" "$2" || fail "$3 (see $2)"
    held "$3"
}

# Runs a stock tool on the emulated fabric, as if on the first host. Saves its output under a name and returns its status.
# Each tool has its own working directory: libumad2sim writes there.
tool() { # evidence-name command ...
    local kept=$evidence/$1.txt status=0
    shift
    printf '$ %s\n' "$*" >"$kept"
    (
        cd "$(mktemp -d -p "$scratch")"
        exec timeout "$tool_seconds" env IBSIM_SOCKNAME="$name" SIM_HOST="$first" LD_PRELOAD="$preload" "$@"
    ) >>"$kept" 2>&1 &
    tool_pid=$!
    wait "$tool_pid" || status=$?
    tool_pid=''
    printf '(exit status %d)\n' "$status" >>"$kept"
    return "$status"
}

# Runs opensm, as a daemon or once (option -o); its log is part of the evidence.
opensm_command() { # log option ...
    local log=$1
    shift
    mkdir -p "$scratch/opensm"
    cd "$scratch/opensm"
    exec env OSM_CACHE_DIR="$scratch/opensm" OSM_TMP_DIR="$scratch/opensm" IBSIM_SOCKNAME="$name" \
        SIM_HOST="$first" LD_PRELOAD="$preload" opensm -f "$log" "$@"
}

wait_for() { # pid file pattern description: waits until the pattern occurs in the file
    local deadline=$((SECONDS + wait_seconds))
    until grep -Eq -- "$3" "$2" 2>/dev/null; do
        kill -0 "$1" 2>/dev/null || fail "$4: the process exited (see $2)"
        ((SECONDS < deadline)) || fail "$4: not within $wait_seconds s (see $2)"
        sleep 0.01
    done
}

# ---- preparation

preload=$(dpkg -L libumad2sim0 2>/dev/null | grep '/libumad2sim\.so$' | head -n 1) || true
[[ -n $preload ]] || fail "libumad2sim.so not found: run scripts/setup.sh"
for program in opensm ibnetdiscover iblinkinfo smpquery ibtracert saquery; do
    command -v "$program" >/dev/null || fail "$program not found: run scripts/setup.sh"
done

echo "Building (cargo build --release) ..."
cargo build --release --quiet
rm -rf "$evidence"
mkdir -p "$evidence"
demo_start=$(now)

# ---- the demo

step "Generate a fat tree: 16 hosts, 4 leaf switches, 2 spine switches"
"$heddle" topology generate fat-tree --hosts 16 --radix 8 -o "$evidence/fabric.topo"
"$heddle" topology show "$evidence/fabric.topo" | tee "$evidence/fabric.txt" | show
"$heddle" topology show "$evidence/fabric.topo" --format svg -o "$evidence/fabric.svg"
expect '^links +32,' "$evidence/fabric.txt" "the topology has 32 links"
expect '</svg>' "$evidence/fabric.svg" "fabric.svg shows a diagram of it"

step "Emulate it with heddle sim"
start=$(now)
"$heddle" sim "$evidence/fabric.topo" --name "$name" >"$evidence/sim.txt" 2>&1 &
sim_pid=$!
wait_for "$sim_pid" "$evidence/sim.txt" '^ready ' "heddle sim is ready"
held "ready after $(took "$start")"

step "Discover it with ibnetdiscover"
start=$(now)
tool ibnetdiscover ibnetdiscover || fail "ibnetdiscover failed (see $evidence/ibnetdiscover.txt)"
duration=$(took "$start")
"$heddle" topology show "$evidence/ibnetdiscover.txt" >"$evidence/discovered.txt"
diff "$evidence/fabric.txt" "$evidence/discovered.txt" >&2 || fail "the discovered topology differs from the generated one"
held "discovered in $duration; nodes, links, rates and tiers are those of the generated topology"

step "Configure it with opensm: LIDs, routes, active links"
start=$(now)
(opensm_command "$evidence/opensm-once.log" -o) >"$evidence/opensm-once.txt" 2>&1 &
opensm_pid=$!
wait "$opensm_pid" || fail "opensm failed (see $evidence/opensm-once.txt)"
opensm_pid=''
duration=$(took "$start")
expect 'SUBNET UP' "$evidence/opensm-once.log" "SUBNET UP; opensm started, configured the fabric and exited in $duration"
! grep -q ' ERR ' "$evidence/opensm-once.log" || fail "opensm reports errors (see $evidence/opensm-once.log)"
tool iblinkinfo iblinkinfo -l || fail "iblinkinfo failed (see $evidence/iblinkinfo.txt)"
grep '" *leaf-01".*==>' "$evidence/iblinkinfo.txt" | tr -s ' ' | sed -n 's, (Could.*,,;1p;$p' | show
ends=$(grep -c 'Active/ *LinkUp' "$evidence/iblinkinfo.txt") || true
[[ $ends == 64 ]] || fail "$ends of 64 link ends are active (see $evidence/iblinkinfo.txt)"
held "iblinkinfo: all 32 links are active at both ends"

step "Reach hosts by LID"
lid_of() { # description
    sed -n "s/^[^\"]*\" *$1\" *\([0-9]*\) .*==>.*/\1/p" "$evidence/iblinkinfo.txt" | head -n 1
}
first_lid=$(lid_of "$first")
last_lid=$(lid_of "$last")
[[ -n $first_lid && -n $last_lid ]] || fail "iblinkinfo shows no LIDs (see $evidence/iblinkinfo.txt)"
tool smpquery smpquery nodedesc "$last_lid" || fail "smpquery failed (see $evidence/smpquery.txt)"
expect 'host-00016' "$evidence/smpquery.txt" "smpquery reads the NodeDescription of host-00016"
tool ibtracert ibtracert "$first_lid" "$last_lid" || fail "ibtracert failed (see $evidence/ibtracert.txt)"
grep -E '^(From|\[|To)' "$evidence/ibtracert.txt" | show
expect '^\[[0-9]+\] -> ca port.*"host-00016"' "$evidence/ibtracert.txt" "ibtracert follows the route to host-00016"
expect '^\[[5-8]\] -> switch port.*"spine-0' "$evidence/ibtracert.txt" "the route passes a spine switch"

step "Protect all nodes with an M_Key, set by opensm (protection level 2: reading needs the key, too)"
cat >"$evidence/opensm.conf" <<END
m_key $m_key
m_key_protection_level 2
force_log_flush TRUE
END
start=$(now)
(opensm_command "$evidence/opensm.log" -F "$evidence/opensm.conf") >"$evidence/opensm.txt" 2>&1 &
opensm_pid=$!
wait_for "$opensm_pid" "$evidence/opensm.log" 'SUBNET UP' "opensm is up"
held "SUBNET UP after $(took "$start"); opensm keeps running and answers queries"
if tool smpquery-without-key smpquery nodedesc "$last_lid"; then fail "smpquery works without the M_Key"; fi
expect 'failed' "$evidence/smpquery-without-key.txt" "smpquery without the M_Key gets no answer"
if tool smpquery-wrong-key smpquery -y 0x1 nodedesc "$last_lid"; then fail "smpquery works with a wrong M_Key"; fi
expect 'failed' "$evidence/smpquery-wrong-key.txt" "smpquery with a wrong M_Key gets no answer"
tool smpquery-with-key smpquery -y "$m_key" nodedesc "$last_lid" || fail "smpquery -y failed"
expect 'host-00016' "$evidence/smpquery-with-key.txt" "smpquery -y with the M_Key gets an answer"
"$heddle" sim-ctl "$name" counters host-00016 1 >"$evidence/violations.json"
expect '"m_key_violations": [1-9]' "$evidence/violations.json" "host-00016 counted the violations"
wait_for "$opensm_pid" "$evidence/opensm.log" 'Bad M_Key' "opensm logs the trap"
held "host-00016 reported them: opensm received trap 256, Bad M_Key"

step "Query the subnet administration"
tool saquery-node saquery NR "$first_lid" || fail "saquery failed (see $evidence/saquery-node.txt)"
expect 'NodeDescription\.+host-00001' "$evidence/saquery-node.txt" "saquery: LID $first_lid is $first"
tool saquery-path saquery PR --slid "$first_lid" --dlid "$last_lid" ||
    fail "saquery failed (see $evidence/saquery-path.txt)"
expect 'dgid\.+fe80::2:c903:10:f1' "$evidence/saquery-path.txt" "saquery: there is a path to $last"

step "Pull a cable; opensm routes around it"
tool ibtracert-before ibtracert -y "$m_key" "$first_lid" "$last_lid" || fail "ibtracert failed"
exit_port=$(sed -n 's/^\[\([0-9]*\)\] -> switch port.*"spine-.*/\1/p' "$evidence/ibtracert-before.txt" | head -n 1)
[[ -n $exit_port ]] || fail "the route passes no spine switch (see $evidence/ibtracert-before.txt)"
sweeps=$(grep -c 'SUBNET UP' "$evidence/opensm.log")
start=$(now)
"$heddle" sim-ctl "$name" link down leaf-01 "$exit_port" >"$evidence/link-down.txt"
wait_for "$opensm_pid" "$evidence/opensm.log" 'Link state change' "opensm logs the link state change"
deadline=$((SECONDS + wait_seconds))
until (($(grep -c 'SUBNET UP' "$evidence/opensm.log") > sweeps)); do
    ((SECONDS < deadline)) || fail "no new routes within $wait_seconds s (see $evidence/opensm.log)"
    sleep 0.01
done
held "the cable at leaf-01 port $exit_port is unplugged; trap 128 received, new routes after $(took "$start")"
tool ibtracert-after ibtracert -y "$m_key" "$first_lid" "$last_lid" || fail "ibtracert failed"
grep -E '^(From|\[|To)' "$evidence/ibtracert-after.txt" | show
expect '-> ca port.*"host-00016"' "$evidence/ibtracert-after.txt" "host-00016 is still reachable"
! grep -Eq "^\[$exit_port\] -> switch port.*\"spine-" <(sed -n '/"leaf-01"/{n;p;}' "$evidence/ibtracert-after.txt") ||
    fail "the route uses the unplugged cable (see $evidence/ibtracert-after.txt)"
held "the route avoids that cable"

step "Read the counters of the emulation"
"$heddle" sim-ctl "$name" status >"$evidence/status.json"
sed -n '/"drops"/,/}/p;/"traps"/,/}/p' "$evidence/status.json" | show
expect '"management_key": [1-9]' "$evidence/status.json" "datagrams that were refused because of their M_Key are counted"

step "Configure a new emulation with heddle sm: every node has its own M_Key"
kill -TERM "$opensm_pid"
wait "$opensm_pid" || fail "opensm exited with an error"
opensm_pid=''
kill -TERM "$sim_pid"
wait "$sim_pid" || fail "heddle sim exited with an error"
sim_pid=''
"$heddle" sim "$evidence/fabric.topo" --name "$name" >"$evidence/sim-2.txt" 2>&1 &
sim_pid=$!
wait_for "$sim_pid" "$evidence/sim-2.txt" '^ready' "a new emulation is ready"
(umask 077 && head -c 32 /dev/urandom >"$scratch/site.secret")
printf 'blue=0x123 : 0x0002c90300100001=full, 0x0002c903001000f1=full;\n' >"$evidence/partitions.conf"
manager() { # output file: starts heddle sm as a daemon and waits until the fabric is up
    "$heddle" sm --device "ibsim:$name@$first" --state "$scratch/fabric.json" --secret "$scratch/site.secret" \
        --partitions "$evidence/partitions.conf" --control "$scratch/sm.sock" >"$1" 2>&1 &
    manager_pid=$!
    wait_for "$manager_pid" "$1" '^up:' "heddle sm reports that the fabric is up"
    grep '^up:' "$1" | show
}
manager "$evidence/sm.txt"
if tool sm-without-key smpquery -t 100 -D nodedesc 0,1,2; then fail "a node answers without its M_Key"; fi
expect 'failed' "$evidence/sm-without-key.txt" "smpquery without an M_Key gets no answer"
other_key=$("$heddle" node-key 0x0002c90300200000 --secret "$scratch/site.secret")
if tool sm-other-key smpquery -t 100 -y "$other_key" -D nodedesc 0,1,2; then fail "a node answers with the M_Key of another node"; fi
expect 'failed' "$evidence/sm-other-key.txt" "smpquery with the M_Key of another node gets no answer"
own_key=$("$heddle" node-key 0x0002c90300100010 --secret "$scratch/site.secret")
tool sm-own-key smpquery -y "$own_key" -D nodedesc 0,1,2 || fail "host-00002 does not answer with its own M_Key"
expect 'host-00002' "$evidence/sm-own-key.txt" "smpquery with the M_Key of host-00002 gets an answer"

step "Query paths: the subnet administration returns only paths within a common partition"
tool sm-path saquery PR --slid 1 --dlid 16 || fail "saquery failed (see $evidence/sm-path.txt)"
expect 'pkey\.+0x8123' "$evidence/sm-path.txt" "the path from $first to $last has the P_Key of their partition"
tool sm-hidden env SIM_HOST=host-00002 saquery PR --slid 2 --dlid 16 || true
! grep -q 'dgid' "$evidence/sm-hidden.txt" || fail "host-00002 gets a path to $last (see $evidence/sm-hidden.txt)"
held "host-00002 gets no path to $last"

step "Kill heddle sm and restart it: it writes nothing; then remove a partition"
kill -KILL "$manager_pid"
wait "$manager_pid" 2>/dev/null || true
manager "$evidence/sm-again.txt"
expect '^up:.* 0 Sets ' "$evidence/sm-again.txt" "0 Sets after the restart"
printf '# no partitions\n' >"$evidence/partitions.conf"
"$heddle" sm reload --control "$scratch/sm.sock" >"$evidence/sm-reload.txt" || fail "heddle sm reload failed (see $evidence/sm-reload.txt)"
expect '^up:.* 4 Sets ' "$evidence/sm-reload.txt" "two ports leave a partition with 4 Sets: two adapter ports and their switch ports"

step "Stop all processes"
kill -TERM "$manager_pid"
wait "$manager_pid" || fail "heddle sm exited with an error"
manager_pid=''
kill -TERM "$sim_pid"
wait "$sim_pid" || fail "heddle sim exited with an error"
sim_pid=''
held "opensm, heddle sm and heddle sim exited with status 0"

printf '\nAll checks passed in %s. Output of the tools and the diagram fabric.svg: %s\n' \
    "$(took "$demo_start")" "$evidence"
