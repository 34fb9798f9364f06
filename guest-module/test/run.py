#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Boots guests with the module, and runs stock programs of InfiniBand between them.

usage: run.py SCRATCH MODULE... [-g GUESTS] [-f FUNCTIONS_PER_PORT] [-k WORD] [-r RUN] [--flood COUNT]
       [--heddle BINARY [--manager heddle|opensm] [--trouble loss|links]]

SCRATCH was filled by make-disk.sh, MODULE... are heddle_hca.ko for its kernel,
and heddle_verbs_test.ko to test what consumers in the kernel use. With --heddle BINARY the
fabric is `heddle sim` with `heddle sm`, or with OpenSM through the libheddle_umad.so beside BINARY;
tests that need commands of fabric.py are skipped. --trouble loss drops 1 % of the data packets
on every link while tests run, --trouble links lets links between switches fail under clients
(and lets programs run longer); programs that a lost datagram stops are then skipped. -k runs only tests whose names
contain WORD. --flood COUNT sends COUNT damaged packets to each of two machines. Prints a line for each test; the status is 1 if any failed.
GUEST_KERNEL_ARGS in the environment are added to the guests' command lines; commands get PATIENCE times their time.
"""
import argparse
import re
import sys
import time
import traceback

import guests
import heddle
import trouble

TESTS = []
TROUBLE = trouble.Quiet()
FLOOD = 0


def test(function):
    TESTS.append(function)
    return function


class Skipped(Exception):
    pass


def stand_in(fabric):
    """Skips what needs commands of fabric.py."""
    if not fabric.stand_in:
        raise Skipped("with the stand-in only")


def each_datagram_counts():
    """Skips programs that wait for every datagram: nobody sends one again."""
    if TROUBLE.loses:
        raise Skipped("a lost datagram stops it")


def no_trouble():
    """Skips what is tested by itself, or has nothing to do with links."""
    if TROUBLE.loses:
        raise Skipped("by itself only")


class Failed(Exception):
    pass


def check(condition, output):
    if not condition:
        raise Failed(output)


def ok(guest, command, seconds=60):
    """Runs a command that has to succeed; returns what it prints."""
    status, output = guest.sh(command, seconds)
    check(status == 0, f"{command}: status {status}\n{output}")
    return output


def pair(fabric, server, client, seconds=90, wait=2.5):
    """A server in the first guest, a client in the second; returns what both print."""
    first, second = fabric.guests[:2]
    limit = round(guests.PATIENCE * seconds)
    first.start(f"timeout {limit} {longer(server)}")
    time.sleep(guests.PATIENCE * wait)
    second.start(f"timeout {limit} {longer(client)}")
    TROUBLE.client_runs()
    client_status, client_output = second.end(seconds + 30)
    server_status, server_output = first.end(seconds + 30)
    check(client_status == 0 and server_status == 0,
          f"server {server_status}:\n{server_output}\nclient {client_status}:\n{client_output}")
    return server_output, client_output


def longer(command):
    """With more iterations, so that something can go wrong under them."""
    return re.sub(r"(?<= -[nC] )\d+", lambda count: str(int(count.group()) * TROUBLE.longer), command)


def figure(pattern, text):
    found = re.search(pattern, text)
    return found.group(0).strip() if found else ""


def counter(guest, name):
    return int(ok(guest, f"cat /sys/class/infiniband/heddle0/ports/1/hw_counters/{name}"))


def counters(guest):
    return ok(guest, "cd /sys/class/infiniband/heddle0/ports/1/hw_counters; grep -v '^0$' $(ls | grep -v lifespan)").split()


# ---- the device

@test
def device_is_seen(fabric):
    for guest in fabric.guests:
        output = ok(guest, "ibstat && ibv_devinfo && ls /dev/infiniband")
        for word in ("Link layer: InfiniBand", "State: Active", "PORT_ACTIVE", "uverbs0", "umad0", "issm0"):
            check(word in output, output)


@test
def saquery_answers(fabric):
    return figure(r"NodeDescription[^\n]*", ok(fabric.guests[0], "saquery NR"))


# ---- IPoIB

def ping(guest, options):
    """Some answers have to come, and all if nothing is lost."""
    TROUBLE.client_runs()
    output = ok(guest, longer(f"ping {options}"), 90)
    check(TROUBLE.loses or " 0% packet loss" in output, output)
    return f"{figure(r'[0-9.]+% packet loss', output)}, {figure(r'rtt.*', output)}"


@test
def ipoib_datagram_ping(fabric):
    return ping(fabric.guests[0], "-c 10 -i 0.3 10.7.0.2")


@test
def ipoib_ipv6_ping(fabric):
    addresses = re.findall(r"inet6 (\S+)/", ok(fabric.guests[1], "ip -o -6 addr show ib0"))
    check(addresses, "no address")
    address = addresses[0]
    return ping(fabric.guests[0], f"-c 5 -i 0.3 {address}%ib0")


@test
def ipoib_connected_ping(fabric):
    for guest in fabric.guests:
        ok(guest, "echo connected >/sys/class/net/ib0/mode && ip link set ib0 mtu 65520")
    try:
        return ping(fabric.guests[0], "-c 10 -i 0.3 -s 30000 -w 60 10.7.0.2")
    finally:
        for guest in fabric.guests:
            ok(guest, "echo datagram >/sys/class/net/ib0/mode; ip link set ib0 mtu 2044")


@test
def ipoib_child_of_another_partition(fabric):
    stand_in(fabric)
    for guest in fabric.guests:
        ok(guest, f"""echo 0x8123 >/sys/class/net/ib0/create_child
            ip addr add 10.8.0.{guest.number}/24 dev ib0.8123 && ip link set ib0.8123 up; sleep 1""")
    output = ok(fabric.guests[0], "ping -c 5 -i 0.3 -w 15 10.8.0.2")
    fabric.command("pkeys", 1, "0xffff")
    time.sleep(2)
    status, gone = fabric.guests[0].sh("ping -c 2 -w 3 10.8.0.2")
    check(status != 0, gone)
    fabric.command("pkeys", 1, "0xffff", "0x8123")
    time.sleep(3)
    ok(fabric.guests[0], "ping -c 3 -w 15 10.8.0.2")
    for guest in fabric.guests:
        ok(guest, "echo 0x8123 >/sys/class/net/ib0/delete_child")
    return figure(r"rtt.*", output)


@test
def port_goes_down_and_comes_back(fabric):
    stand_in(fabric)
    first = fabric.guests[0]
    fabric.command("state", 1, 1)
    time.sleep(1)
    check("State: Down" in ok(first, "ibstat"), "not Down")
    check("NO-CARRIER" in ok(first, "ip link show ib0"), "ib0 has carrier")
    fabric.command("state", 1, 4)
    time.sleep(3)
    ok(first, "ping -c 3 -w 15 10.7.0.2")


@test
def clients_register_again(fabric):
    stand_in(fabric)
    fabric.command("register", 1)
    time.sleep(3)
    # Broadcast has to reach it again.
    ok(fabric.guests[1], "ip neigh flush dev ib0; ping -c 3 -w 15 10.7.0.1")


# ---- rdma_cm

@test
def multicast_of_rdma_cm(fabric):
    each_datagram_counts()
    pair(fabric, "mckey -m 239.1.2.3 -b 10.7.0.1", "mckey -m 239.1.2.3 -s -b 10.7.0.2", wait=4)


@test
def rping_works(fabric):
    pair(fabric, "rping -s -a 10.7.0.1 -C 20 -v -S 4000", "rping -c -a 10.7.0.1 -C 20 -S 4000")


@test
def ucmatose_works(fabric):
    pair(fabric, "ucmatose -b 10.7.0.1", "ucmatose -s 10.7.0.1")


@test
def udaddy_works(fabric):
    each_datagram_counts()
    pair(fabric, "udaddy -b 10.7.0.1", "udaddy -s 10.7.0.1")


@test
def rstream_works(fabric):
    return figure(r"\n64k_lat.*", pair(fabric, "rstream -T s -S all -C 10", "rstream -T s -s 10.7.0.1 -S all -C 10", 120)[1])


# ibacm answers by multicast groups of its own, and `-v` compares its answer with that of subnet administration.
IBACM = """mkdir -p /etc/rdma && cd /etc/rdma && { [ -e ibacm_opts.cfg ] || ib_acme -D . -O; } >/dev/null
    pgrep -x ibacm >/dev/null || { rm -f /run/ibacm-unix.sock; ibacm -P </dev/null >/tmp/ibacm.out 2>&1 & }
    for i in $(seq 60); do [ -S /run/ibacm-unix.sock ] && exit 0; sleep 1; done; exit 1"""


@test
def ibacm_resolves_paths(fabric):
    for guest in fabric.guests[:2]:
        ok(guest, f"({IBACM})", 90)
    TROUBLE.client_runs()
    try:
        for _ in range(4 * TROUBLE.longer):
            output = ok(fabric.guests[1], "ib_acme -f i -d 10.7.0.1 -v -P 2>&1; cat /var/log/ibacm.log /tmp/ibacm.out | tail -20")
            check("Path information" in output and "failed" not in output, output)
    finally:
        for guest in fabric.guests[:2]:
            guest.sh("killall ibacm")
    return figure(r"Path information[^$]*?dlid:[^\n]*", output)


@test
def ibsrpdm_finds_no_targets(fabric):
    """managers.py compares what it is told with what OpenSM tells."""
    if fabric.stand_in:
        raise Skipped("the stand-in knows no PortInfoRecord")
    TROUBLE.client_runs()
    for _ in range(3 * TROUBLE.longer):
        output = ok(fabric.guests[0], "ibsrpdm -v && srp_daemon -o -c -n -v -i heddle0 -p 1")
        check("Advanced SM" in output and "Query did not find any targets" in output, output)
    return "no device management agents"


# ---- verbs

@test
def rc_pingpong(fabric):
    return figure(r"\d+ iters.*", pair(fabric, "ibv_rc_pingpong -c", "ibv_rc_pingpong -c 10.7.0.1")[1])


@test
def rc_pingpong_with_events_and_grh(fabric):
    return figure(r"\d+ iters.*", pair(fabric, "ibv_rc_pingpong -e -g 0 -n 300", "ibv_rc_pingpong -e -g 0 -n 300 10.7.0.1")[1])


@test
def ud_pingpong(fabric):
    each_datagram_counts()
    return figure(r"\d+ iters.*", pair(fabric, "ibv_ud_pingpong -n 300", "ibv_ud_pingpong -n 300 10.7.0.1")[1])


@test
def srq_pingpong(fabric):
    return figure(r"\d+ iters.*", pair(fabric, "ibv_srq_pingpong -n 300", "ibv_srq_pingpong -n 300 10.7.0.1")[1])


PERFTEST = [
    ("ib_send_lat", "-n 500"), ("ib_send_lat", "-n 300 -c UD"), ("ib_write_lat", "-n 500"), ("ib_read_lat", "-n 300"),
    ("ib_atomic_lat", "-n 300 -A FETCH_AND_ADD"), ("ib_atomic_lat", "-n 300 -A CMP_AND_SWAP"),
    ("ib_send_bw", "-n 300 -s 65536"), ("ib_send_bw", "-n 300 -c UD -s 2048"), ("ib_write_bw", "-n 300 -s 65536"),
    ("ib_read_bw", "-n 300 -s 65536"), ("ib_write_bw", "-n 20 -s 4194304"), ("ib_read_bw", "-n 20 -s 4194304"),
    ("ib_atomic_bw", "-n 300"), ("ib_send_bw", "-n 300 -s 4096 -b"), ("ib_send_lat", "-n 200 -R"),
    ("ib_write_lat", "-n 300 -s 200 -I 200"), ("ib_send_bw", "-n 300 -s 65536 -r 16 --use-srq"),
]


def perftest(fabric, program, options, seconds=90):
    if "UD" in options:
        each_datagram_counts()
    _, output = pair(fabric, f"{program} {options}", f"{program} {options} 10.7.0.1", seconds)
    lines = [line.split() for line in output.splitlines() if re.match(r"\s*\d+\s+\d+\s+[\d.]+", line)]
    return " ".join(lines[-1]) if lines else ""


for program, options in PERFTEST:
    def one(fabric, program=program, options=options):
        return perftest(fabric, program, options)
    one.__name__ = f"{program} {options}"
    test(one)


def kernel_verbs(guest, times):
    status, _ = guest.sh("ls /run/heddle_verbs_test.ko")
    if status:
        return "no heddle_verbs_test.ko: not run"
    status, output = guest.sh(f"""(for i in $(seq {times}); do
        insmod /run/heddle_verbs_test.ko && rmmod heddle_verbs_test || exit 1; done); dmesg | tail -3""", 120)
    check(status == 0 and "passed" in output, guest.sh("dmesg | tail")[1])
    return f"{times} times"


@test
def verbs_of_kernel_consumers(fabric):
    return kernel_verbs(fabric.guests[0], 3)


NVME_TARGET = """modprobe -a loop nvmet nvmet-rdma; mount -t configfs c /sys/kernel/config 2>/dev/null
    truncate -s 64M /tmp/disk && losetup /dev/loop0 /tmp/disk && cd /sys/kernel/config/nvmet &&
    mkdir subsystems/t && echo 1 >subsystems/t/attr_allow_any_host && mkdir subsystems/t/namespaces/1 &&
    echo /dev/loop0 >subsystems/t/namespaces/1/device_path && echo 1 >subsystems/t/namespaces/1/enable &&
    mkdir ports/1 && cd ports/1 && echo rdma >addr_trtype && echo ipv4 >addr_adrfam && echo 10.7.0.1 >addr_traddr &&
    echo 4420 >addr_trsvcid && ln -s ../../subsystems/t subsystems/t"""
NVME_END = """cd /sys/kernel/config/nvmet && rm ports/1/subsystems/t && rmdir ports/1 subsystems/t/namespaces/1 subsystems/t
    losetup -d /dev/loop0; rm /tmp/disk; modprobe -r nvmet-rdma || grep -q /nvmet-rdma /lib/modules/$(uname -r)/modules.builtin"""
NVME_HOST = """modprobe nvme-rdma; cd /tmp; dd if=/dev/urandom of=x bs=64k count=64 status=none
    echo nqn=t,transport=rdma,traddr=10.7.0.1,trsvcid=4420,nr_io_queues=1 >/dev/nvme-fabrics || exit 1
    for i in $(seq 50); do [ -b /dev/nvme0n1 ] && break; sleep 0.1; done
    dd if=x of=/dev/nvme0n1 bs=64k oflag=direct 2>&1 | tail -1; dd if=/dev/nvme0n1 bs=64k count=64 iflag=direct 2>/dev/null | cmp - x
    status=$?; echo 1 >/sys/class/nvme/nvme0/delete_controller; modprobe -r nvme-rdma; [ $status = 0 ]"""


@test
def nvme_over_rdma(fabric):
    first, second = fabric.guests[:2]
    ok(first, NVME_TARGET)
    TROUBLE.client_runs()
    try:
        return ok(second, f"({NVME_HOST})", 90).strip()
    finally:
        ok(first, NVME_END)


# ---- loss

@test
def nvme_over_rdma_with_loss(fabric):
    return with_loss(fabric, lambda: nvme_over_rdma(fabric))


@test
def verbs_of_kernel_consumers_with_loss(fabric):
    return with_loss(fabric, lambda: kernel_verbs(fabric.guests[0], 10))


def with_loss(fabric, run, percent=1):
    stand_in(fabric)
    before = [counter(guest, "rc_resent") for guest in fabric.guests[:2]]
    fabric.command("loss", percent)
    try:
        result = run()
    finally:
        fabric.command("loss", 0)
    resent = sum(counter(guest, "rc_resent") for guest in fabric.guests[:2]) - sum(before)
    return f"{resent} packets sent again; {result}"


LOSSY = [
    ("ibv_rc_pingpong", "-c -n 500"), ("ib_send_bw", "-n 200 -s 65536"), ("ib_write_bw", "-n 200 -s 65536"),
    ("ib_read_bw", "-n 200 -s 65536"), ("ib_atomic_bw", "-n 500 -A FETCH_AND_ADD"), ("ib_send_lat", "-n 300"),
]
for program, options in LOSSY:
    def lossy(fabric, program=program, options=options):
        if program == "ibv_rc_pingpong":
            return with_loss(fabric, lambda: figure(
                r"\d+ iters.*", pair(fabric, f"{program} {options}", f"{program} {options} 10.7.0.1", 150)[1]))
        return with_loss(fabric, lambda: perftest(fabric, program, options, 150))
    lossy.__name__ = f"1 % loss: {program} {options}"
    test(lossy)


@test
def loss_rping(fabric):
    return with_loss(fabric, lambda: pair(fabric, "rping -s -a 10.7.0.1 -C 50 -V -S 20000",
                                          "rping -c -a 10.7.0.1 -C 50 -V -S 20000", 150) and "")


@test
def ipoib_connected_lives_through_loss(fabric):
    """IPoIB asks for no retries: it loses the connection and makes another."""
    stand_in(fabric)
    for guest in fabric.guests:
        ok(guest, "echo connected >/sys/class/net/ib0/mode && ip link set ib0 mtu 65520")
    result = with_loss(fabric, lambda: figure(r"\d+ packets transmitted.*", fabric.guests[0].sh(
        "ping -c 20 -i 0.3 -s 30000 10.7.0.2 -w 20")[1]))
    output = ok(fabric.guests[0], "sleep 2; ping -c 5 -i 0.3 -s 30000 10.7.0.2 -w 20")
    for guest in fabric.guests:
        ok(guest, "echo datagram >/sys/class/net/ib0/mode; ip link set ib0 mtu 2044")
    check(" 0% packet loss" in output, output)
    return result


# ---- damaged packets

NOISY = [("ibv_rc_pingpong", "-n 300"), ("ibv_ud_pingpong", "-n 200"), ("ib_send_bw", "-n 100 -s 65536"),
         ("ib_write_bw", "-n 100 -s 65536"), ("ib_read_bw", "-n 100 -s 65536"), ("ib_atomic_bw", "-n 300"),
         ("ibv_srq_pingpong", "-n 100")]


@test
def damaged_packets_do_no_harm(fabric):
    """Connections may break, as the ICRC is not checked; the kernel goes on."""
    stand_in(fabric)
    first, second = fabric.guests[:2]
    broken = 0
    fabric.command("noise", 5)
    for program, options in NOISY:
        first.start(f"timeout -s KILL 15 {program} {options}")
        time.sleep(2.5)
        broken += second.sh(f"timeout -s KILL 12 {program} {options} 10.7.0.1", 40)[0] != 0
        first.end(40)
    second.sh("ping -c 10 -i 0.2 -w 5 10.7.0.1")
    fabric.command("noise", 0)
    ok(second, "sleep 1; ping -c 3 -w 15 10.7.0.1")
    pair(fabric, "ibv_rc_pingpong -n 100", "ibv_rc_pingpong -n 100 10.7.0.1")
    return f"{broken} of {len(NOISY)} programs ended with an error"


@test
def flood_of_damaged_packets(fabric):
    """FLOOD packets to each of two machines while programs run."""
    stand_in(fabric)
    if not FLOOD:
        raise Skipped("needs --flood")
    pairs = fabric.guests[:2]
    received = lambda guest: counter(guest, "rx_packets") + counter(guest, "rx_malformed")
    before = [received(guest) for guest in pairs]
    for guest in pairs:
        fabric.command("flood", guest.number, FLOOD)
    began, runs = time.monotonic(), 0
    while any(received(guest) < start + FLOOD for guest, start in zip(pairs, before)):
        check(time.monotonic() < began + 7200, "the flood does not arrive")
        program, options = NOISY[runs % len(NOISY)]
        pairs[0].start(f"timeout -s KILL 10 {program} {options}")
        time.sleep(1.5)
        pairs[1].sh(f"timeout -s KILL 8 {program} {options} 10.7.0.1", 60)
        pairs[0].end(60)
        runs += 1
    counts = [f"{counter(guest, 'rx_packets')} packets and {counter(guest, 'rx_malformed')} malformed" for guest in pairs]
    for guest in pairs:
        fabric.command("register", guest.number)
    fabric.up()
    ok(pairs[1], "sleep 3; ping -c 3 -w 30 10.7.0.1", 90)
    pair(fabric, "ibv_rc_pingpong -n 100", "ibv_rc_pingpong -n 100 10.7.0.1")
    return f"received by the machines: {', '.join(counts)}; {runs} programs meanwhile"


# ---- moves

@test
def machine_moves_to_another_port(fabric):
    """Its GUID and addresses stay, its LID does not; both machines send pings all the time."""
    no_trouble()
    if fabric.stand_in or fabric.kind != "heddle" or fabric.per_port > 1:
        raise Skipped("with heddle sm, and a machine for each port")
    pairs, home = fabric.guests[:2], fabric.place[1]
    seen = []
    for place in (fabric.place[0] + 2, home):
        lid = ok(pairs[1], "cat /sys/class/infiniband/heddle0/ports/1/lid")
        for guest in pairs:
            guest.start(f"ping -D -i 0.2 -w 40 10.7.0.{3 - guest.number}")
        time.sleep(5)
        fabric.move(1, place)
        printed = [guest.end(90)[1] for guest in pairs]
        check(ok(pairs[1], "cat /sys/class/infiniband/heddle0/ports/1/lid") != lid, "the LID is the same")
        for output in printed:
            times = [float(at) for at in re.findall(r"^\[([0-9.]+)\].*icmp_seq", output, re.M)]
            gaps = [after - before for before, after in zip(times, times[1:])]
            check(len(times) > 60 and sum(gaps) > 38, output)
            seen.append(f"{max(gaps):.1f}")
        pair(fabric, "ibv_rc_pingpong -c -n 200", "ibv_rc_pingpong -c -n 200 10.7.0.1")
    return f"longest times without an answer: {', '.join(seen)} s"


# ---- the end

@test
def peer_that_vanishes_is_noticed(fabric):
    no_trouble()
    first, second = fabric.guests[:2]
    first.start("timeout -s KILL 8 ib_send_bw -n 1000000 -s 4096 -D 60")
    time.sleep(3)
    second.start("timeout 60 ib_send_bw -n 1000000 -s 4096 -D 60 10.7.0.1")
    first.end(30)
    status, output = second.end(90)
    check(status != 0 and "Completion with error" in output, output)
    return figure(r"Failed status \d+", output)


@test
def module_leaves_under_use_and_comes_back(fabric):
    no_trouble()
    first, second = fabric.guests[:2]
    second.start("timeout 40 ibv_rc_pingpong -n 1000000")
    first.sh("sleep 1; ibv_asyncwatch >/tmp/events 2>&1 & (timeout 30 ibv_rc_pingpong -n 1000000 10.7.0.2 >/tmp/pp 2>&1 &)")
    time.sleep(5)
    output = ok(first, "time rmmod heddle_hca && ! ls /sys/class/infiniband/heddle0 2>/dev/null; cat /tmp/events", 60)
    check("FATAL" in output, output)
    second.end(90)
    ok(first, "killall ibv_asyncwatch ibv_rc_pingpong 2>/dev/null; insmod /run/heddle_hca.ko; sleep 1; ibstat | grep Active")
    fabric.up()
    time.sleep(2)
    ok(first, "ping -c 3 -w 15 10.7.0.2")
    return figure(r"real.*", output)


@test
def wire_goes_away(fabric):
    no_trouble()
    last = fabric.guests[-1]
    ok(last, "ip link set eth0 down; sleep 0.5; ibstat | grep -q 'State: Down'")
    ok(last, "ip link set eth0 up; sleep 2; ibstat | grep -q 'State: Active'")
    ok(last, "echo virtio2 >/sys/bus/virtio/drivers/virtio_net/unbind; sleep 0.5; ibstat | grep -q 'State: Down'")
    ok(last, "echo virtio2 >/sys/bus/virtio/drivers/virtio_net/bind; sleep 2; ibstat | grep -q 'State: Active'")
    ok(last, "ping -c 3 -w 20 10.7.0.1")


# Prints memory that the module allocated and lost, if the kernel looks for it. An object counts when it is 5 s old.
KMEMLEAK = """mount -t debugfs d /sys/kernel/debug 2>/dev/null; leaks=/sys/kernel/debug/kmemleak; ! [ -e $leaks ] ||
    { sleep 6; echo scan >$leaks; sleep 1; echo scan >$leaks; cat $leaks; }"""


@test
def kernel_logs_are_quiet(fabric):
    for guest in fabric.guests:
        # The console has what the kernel's buffer has no room for, from KERN_WARNING on.
        output = ok(guest, "dmesg") + guest.console.read_text(errors="replace")
        found = re.findall(r".*(?:\bBUG\b|WARNING|Oops|Call Trace|UBSAN|ODEBUG|overrun|is full|not become free|hung task|blocked for).*", output)
        check(not found, "\n".join(found) + output[-3000:])
        leaks = ok(guest, KMEMLEAK, 600)
        check("heddle" not in leaks, leaks)
    return "; ".join(f"guest {guest.number}: {' '.join(counters(guest))}" for guest in fabric.guests)


DEBUG_REPORTS = ("BUG: KASAN: slab-out-of-bounds in heddle_debug_control", "BUG: sleeping function called from invalid context",
                 "possible circular locking dependency detected", "unreferenced object")


@test
def debug_kernel_reports_defects(fabric):
    """A control of the test before it: the kernel reports defects of a module that has some. The machine's locks are not checked after it."""
    for guest in fabric.guests:
        if guest.sh("ls /run/heddle_debug_control.ko && uname -r | grep debug")[0]:
            raise Skipped("needs a debug kernel and heddle_debug_control.ko")
        output = ok(guest, f"insmod /run/heddle_debug_control.ko; dmesg; {KMEMLEAK}", 600)
        for report in DEBUG_REPORTS:
            check(report in output, f"no report of {report!r}:\n{output[-3000:]}")


def in_trouble(fabric, function):
    TROUBLE.begin(fabric)
    try:
        result = function(fabric) or ""
    except BaseException:
        TROUBLE.end()
        raise
    return TROUBLE.end() + result


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("scratch")
    parser.add_argument("modules", nargs="+")
    parser.add_argument("-g", type=int, default=2)
    parser.add_argument("-f", type=int, default=1)
    parser.add_argument("-k", default="")
    parser.add_argument("--heddle", default="")
    parser.add_argument("--manager", choices=("heddle", "opensm"), default="heddle")
    parser.add_argument("--trouble", choices=trouble.KINDS, default="nothing")
    parser.add_argument("--flood", type=int, default=0)
    parser.add_argument("-r", default="run-tests")
    arguments = parser.parse_args()
    if arguments.trouble != "nothing" and not arguments.heddle:
        parser.error("--trouble needs --heddle")
    global TROUBLE, FLOOD
    FLOOD = arguments.flood
    TROUBLE = trouble.KINDS[arguments.trouble]()
    began = time.monotonic()
    place = (arguments.scratch, arguments.r, arguments.g, arguments.modules, arguments.f)
    fabric = heddle.HeddleFabric(arguments.heddle, *place, manager=arguments.manager) if arguments.heddle else guests.Fabric(*place)
    failed = 0
    try:
        fabric.boot()
        fabric.up()
        time.sleep(2)
        print(f"guests are up after {time.monotonic() - began:.0f} s, kernel {ok(fabric.guests[0], 'uname -r').strip()}", flush=True)
        for function in TESTS:
            if arguments.k and not re.search(arguments.k, function.__name__):
                continue
            start = time.monotonic()
            try:
                result = in_trouble(fabric, function)
                print(f"ok      {function.__name__:45} {time.monotonic() - start:5.1f} s  {result}", flush=True)
            except Skipped as reason:
                print(f"skipped {function.__name__:45} {reason}", flush=True)
            except (Failed, TimeoutError, AssertionError) as error:
                failed += 1
                print(f"FAILED  {function.__name__:45} {time.monotonic() - start:5.1f} s\n{error}", flush=True)
                if isinstance(error, TimeoutError):
                    traceback.print_exc()
                    break
    finally:
        fabric.command("count")
        time.sleep(0.2)
        fabric.stop()
    print(f"{failed} failed, {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
