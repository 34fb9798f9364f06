#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Runs stock clients of subnet administration in a machine, first under OpenSM and then under `heddle sm`, and compares.

usage: managers.py SCRATCH MODULE --heddle BINARY [-r RUN]

The fabric is `heddle sim`. OpenSM brings it up, the hosts ask it for the alias GUIDs of the machines, and the clients run;
then `heddle sm` adopts the fabric, so that LIDs stay, and they run again. What they print has to be the same, and so has
every answer of subnet administration that they received through umad, byte by byte, but for the capabilities of the manager. No port
of the emulation has a device management agent, so no targets are found; `saquery NR` is a query with records. libheddle_umad.so
has to stand beside BINARY. The transcripts are in RUN. The status is 1 if anything differs.
"""
import argparse
import difflib
import re
import struct
import sys
import time

import heddle
from run import ok

# Commands and how long they run; 0: until they end. srp_daemon subscribes to reports of ports that come, and scans again.
CLIENTS = {"ibsrpdm": 0, "ibsrpdm -v": 0, "ibsrpdm -c": 0, "srp_daemon -o -c -n -v -i heddle0 -p 1": 0,
           "srp_daemon -c -n -v -R 3 -i heddle0 -p 1": 10, "saquery NR": 0}

# What differs between two runs: addresses, keys and process numbers.
FREE = re.compile(r"addr=0x[0-9a-f]+|lkey=0x[0-9a-f]+|QP number=0x[0-9a-f]+|Current pid.*")

# Reads and writes of a umad file, as strace shows them.
CALL = re.compile(r'(read|write)\(\d+, "((?:\\x[0-9a-f]{2})*)"')
SA_CLASS = 3
ATTRIBUTES = {0x01: "ClassPortInfo", 0x03: "InformInfo", 0x11: "NodeRecord", 0x12: "PortInfoRecord", 0x33: "PKeyTableRecord",
              0x35: "PathRecord"}


def messages(trace):
    """Management datagrams of a trace: (direction, bytes)."""
    for call in CALL.finditer(trace):
        data = bytes.fromhex(call.group(2).replace("\\x", ""))
        for head in (64, 56):
            if len(data) >= head + 56 and data[head] == 1 and data[head + 1] in (SA_CLASS, 6):
                yield call.group(1), data[head:]
                break


def told(direction, mad):
    """A line for a datagram, without what the client chooses anew in each run."""
    _, management_class, _, method, status, _, _, attribute, _, modifier = struct.unpack_from(">BBBBHHQHHI", mad)
    name = ATTRIBUTES.get(attribute, f"{attribute:#06x}") if management_class == SA_CLASS else f"class {management_class} {attribute:#06x}"
    line = f"{direction:5} method {method:#04x} {name} modifier {modifier} status {status:#06x}"
    if management_class == SA_CLASS:
        data = mad[56:]
        if attribute == 0x01 and method == 0x81 and len(data) >= 8:
            # Version and capabilities are each manager's own; clients of SRP ask for one: PortInfo by capability mask.
            data = struct.pack(">H", struct.unpack_from(">H", data, 2)[0] & 1 << 13) + data[8:]
        line += f" offset {struct.unpack_from('>H', mad, 44)[0]} mask {mad[48:56].hex()} {len(data)} bytes {data.hex()}"
    return line


def transcript(guest):
    """What the clients print, and the datagrams of each; and a count of answers."""
    lines, answers = [], 0
    for client, seconds in CLIENTS.items():
        _, output = guest.sh("rm -f /tmp/trace; strace -f -xx -s 100000 -o /tmp/trace -e trace=read,write "
                             f"timeout {seconds or 60} {client}; status=$?; [ $status = {124 if seconds else 0} ] || echo status $status", 120)
        lines += [f"$ {client}", *(FREE.sub("...", line) for line in output.splitlines())]
        found = [told(*message) for message in messages(ok(guest, "cat /tmp/trace"))]
        answers += sum(line.startswith("read") for line in found)
        lines += found
    return lines, answers


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("scratch")
    parser.add_argument("module")
    parser.add_argument("--heddle", required=True)
    parser.add_argument("-r", default="run-managers")
    arguments = parser.parse_args()
    fabric = heddle.HeddleFabric(arguments.heddle, arguments.scratch, arguments.r, 2, [arguments.module], manager="opensm")
    try:
        fabric.boot()
        fabric.up()
        found = {}
        for manager in ("opensm", "heddle"):
            if manager != fabric.kind:
                fabric.manage(manager)
            time.sleep(3)
            ok(fabric.guests[0], "ping -c 3 -w 30 10.7.0.2", 90)
            found[manager], answers = transcript(fabric.guests[0])
            (fabric.run / f"transcript-{manager}").write_text("\n".join(found[manager]) + "\n")
            print(f"{manager}: {len(CLIENTS)} clients, {answers} answers; ib0 works", flush=True)
            assert answers, "no answers: the clients asked nothing"
    finally:
        fabric.stop()
    differences = list(difflib.unified_diff(found["opensm"], found["heddle"], "opensm", "heddle", lineterm="", n=0))
    print("\n".join(differences) or "the same")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
