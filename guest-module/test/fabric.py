#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Stands in for the emulated fabric in tests of the guest module.

One switch, subnet administration that answers enough for IPoIB and rdma_cm, and
machines that are functions of ports: functions of a port share its LID and are
told apart by GUID and by numbers of queue pairs, as in decision 0041.

usage: fabric.py DIRECTORY MACHINES [FUNCTIONS_PER_PORT]

Machine I (from 1) has the datagram sockets DIRECTORY/guestI, which QEMU binds,
and DIRECTORY/fabricI, bound here. DIRECTORY/control takes commands:

    loss PERCENT            drop packets at random
    noise PERCENT           send damaged copies of packets, in front of them
    flood MACHINE COUNT     send as many damaged copies of packets that it got before and of the seeds of ../fuzz, and
                            now and then a damaged state of its port and the right one
    pkeys MACHINE KEY...    replace its P_Key table
    state MACHINE STATE     1 Down ... 4 Active
    register MACHINE        ask its clients to register again
    count                   print counters
"""
import collections
import os
import pathlib
import random
import selectors
import socket
import struct
import sys

sys.path.append(str(pathlib.Path(__file__).parents[1] / "fuzz"))
import seeds

ETHERTYPE = 0x88B5
PACKET, PORT, HELLO = 1, 2, 3
PREFIX = 0xFE80000000000000
SM_LID = 1
PKEYS = [0xFFFF, 0x8123]
MTU_4096, RATE_10 = 5, 3
BACKLOG_MAX = 512
# Packets that a machine got last, for floods; frames of a flood that wait; packets for each damaged state of the port.
RECENT_MAX, FLOOD_BACKLOG, FLOOD_PORTS = 256, 64, 5000
UD_SEND = 0x64

SA_CLASS = 3
GET, SET, GET_RESP, GET_TABLE, DELETE = 1, 2, 0x81, 0x12, 0x15
RESPONSE_OF = {GET: 0x81, SET: 0x81, GET_TABLE: 0x92, DELETE: 0x95}
CLASS_PORT_INFO, INFORM_INFO, NODE_RECORD = 0x01, 0x03, 0x11
SERVICE_RECORD, PATH_RECORD, MC_MEMBER_RECORD = 0x31, 0x35, 0x38
UNSUPPORTED, NO_RECORDS = 0x000C, 0x0300


def accepts(keys, key):
    """Whether a table accepts the P_Key of a packet."""
    return any(own & 0x7FFF and not (own ^ key) & 0x7FFF and (own | key) & 0x8000 for own in keys)


class Machine:
    def __init__(self, directory, number, per_port):
        self.number = number
        self.lid = 16 + (number - 1) // per_port
        self.function = 1 + (number - 1) % per_port
        self.guid = 0x0006_6863_0000_0000 + number
        self.gid = struct.pack(">QQ", PREFIX, self.guid)
        self.pkeys, self.state, self.registrations = list(PKEYS), 4, 0
        self.backlog, self.recent, self.flood = collections.deque(), collections.deque(maxlen=RECENT_MAX), 0
        self.guest = f"{directory}/guest{number}"
        own = f"{directory}/fabric{number}"
        if os.path.exists(own):
            os.unlink(own)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(own)
        self.socket.setblocking(False)

    def port_message(self, hello):
        body = bytearray(456)
        struct.pack_into(">QQQQ", body, 0, self.guid, 0x00066863FFFF0000 + self.lid, self.guid, PREFIX)
        struct.pack_into(">IIIII", body, 32, 0x02510A68, self.registrations, self.function << 19, 1 << 19, hello)
        physical = 5 if self.state > 1 else 2
        struct.pack_into(">HHBBBBBBBBH", body, 52, self.lid, SM_LID, 0, 0, self.state, physical,
                         MTU_4096, MTU_4096, 2, 18, 32)
        body[66], body[67] = 1, len(self.pkeys)
        struct.pack_into(">Q", body, 72, self.guid)
        struct.pack_into(f">{len(self.pkeys)}H", body, 200, *self.pkeys)
        return bytes(body)


class Fabric:
    def __init__(self, directory, machines, per_port):
        self.machines = [Machine(directory, number, per_port) for number in range(1, machines + 1)]
        self.groups = {}
        self.loss = self.noise = 0.0
        self.counters = collections.Counter()
        self.seeds = [seeds.packet(opcode, *lengths, is_global) for opcode, lengths in seeds.OPCODES.items() for is_global in (False, True)]
        path = f"{directory}/control"
        if os.path.exists(path):
            os.unlink(path)
        self.control = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.control.bind(path)

    # ---- frames

    def damaged(self, packet):
        """A packet with some bytes changed, or shortened; most keep a length that is right."""
        copy = bytearray(packet)
        for _ in range(random.randint(1, 3)):
            at = random.randrange(min(len(copy), random.choice([24, 100, 5000])))
            copy[at] = copy[at] ^ 1 << random.randrange(8) if random.random() < 0.5 else random.randrange(256)
        if random.random() < 0.3:
            del copy[random.randrange(24, len(copy) + 1) & ~3 :]
        if random.random() < 0.8:
            copy[0] &= 0xF0
            struct.pack_into(">H", copy, 4, len(copy) // 4)
            if copy[1] & 3 == 3 and len(copy) >= 64:
                struct.pack_into(">H", copy, 12, len(copy) - 48)
        self.counters["damaged"] += 1
        return bytes(copy)

    def send(self, machine, kind, body):
        if kind == PACKET:
            machine.recent.append(body)
            if random.random() * 100 < self.noise:
                self.frame(machine, kind, self.damaged(body))
        self.frame(machine, kind, body)

    def frame(self, machine, kind, body):
        frame = b"\xff" * 6 + b"\x06hc\xff\xff\xff" + struct.pack(">HBBH", ETHERTYPE, kind, 1, len(body)) + body
        if len(machine.backlog) >= BACKLOG_MAX:
            self.counters["backlog full"] += 1
            return
        machine.backlog.append(frame)
        self.flush(machine)

    def flood(self, machine):
        """Sends what a flood has left for now."""
        while machine.flood and len(machine.backlog) < FLOOD_BACKLOG:
            machine.flood -= 1
            packet = random.choice(random.choice((machine.recent, self.seeds)) or self.seeds)
            self.frame(machine, PACKET, self.damaged(packet))
            if machine.flood % FLOOD_PORTS == 0:
                port = bytearray(machine.port_message(0))
                for _ in range(random.randint(1, 3)):
                    port[random.randrange(len(port))] ^= 1 << random.randrange(8)
                self.frame(machine, PORT, bytes(port))
                self.frame(machine, PORT, machine.port_message(0))

    def flush(self, machine):
        while machine.backlog:
            try:
                machine.socket.sendto(machine.backlog[0], machine.guest)
            except BlockingIOError:
                return
            except OSError:
                self.counters["no machine"] += 1
            machine.backlog.popleft()

    def receive(self, machine):
        for _ in range(64):
            try:
                frame = machine.socket.recv(70000)
            except BlockingIOError:
                return
            if len(frame) < 18 or frame[12:14] != struct.pack(">H", ETHERTYPE):
                continue
            kind, version, length = struct.unpack_from(">BBH", frame, 14)
            body = frame[18 : 18 + length]
            if version != 1 or len(body) != length:
                self.counters["malformed"] += 1
            elif kind == HELLO and length >= 80:
                sequence, flags = struct.unpack_from(">II", body)
                print(f"hello of {machine.number}: {body[8:72].rstrip(bytes(1)).decode(errors='replace')}, flags {flags}",
                      flush=True)
                self.send(machine, PORT, machine.port_message(sequence))
            elif kind == PACKET:
                self.packet(machine, body)

    # ---- packets

    def packet(self, sender, raw):
        """Checks a packet as the emulation does, and hands it to its receivers."""
        self.counters["packets"] += 1
        if len(raw) < 24 or struct.unpack_from(">H", raw, 4)[0] * 4 != len(raw):
            self.counters["malformed"] += 1
            return
        dlid = struct.unpack_from(">H", raw, 2)[0]
        at, dgid = 8, None
        if raw[1] & 3 == 3:
            at, dgid = 48, raw[32:48]
            if raw[16:32] != sender.gid:
                self.counters["spoofed GID"] += 1
                return
        opcode, _, pkey, dest_qpn, _ = struct.unpack_from(">BBHII", raw, at)
        dest_qpn &= 0xFFFFFF
        if pkey not in sender.pkeys or sender.state != 4:
            self.counters["P_Key or state of the sender"] += 1
            return
        if opcode in (UD_SEND, UD_SEND + 1):
            source_qpn = struct.unpack_from(">I", raw, at + 16)[0]
            if source_qpn > 1 and source_qpn >> 19 != sender.function:
                self.counters["spoofed queue pair"] += 1
                return
        if random.random() * 100 < self.loss:
            self.counters["lost"] += 1
            return
        raw = raw[:6] + struct.pack(">H", sender.lid) + raw[8:]
        if dest_qpn == 0:
            self.counters["to QP0"] += 1
        elif dest_qpn == 1 and dlid == SM_LID and len(raw) >= at + 20 + 256:
            self.subnet_administration(sender, raw[at + 20 : at + 276], source_qpn, pkey)
        elif dlid >= 0xC000:
            members = {number for mlid, _, _, joined in self.groups.values() if mlid == dlid for number in joined}
            for machine in self.machines:
                if machine is not sender and machine.number in members and accepts(machine.pkeys, pkey):
                    self.send(machine, PACKET, raw)
        else:
            self.unicast(dlid, dgid, dest_qpn, pkey, raw)

    def unicast(self, dlid, dgid, dest_qpn, pkey, raw):
        for machine in self.machines:
            mine = machine.gid == dgid if dest_qpn == 1 else machine.function == dest_qpn >> 19
            if machine.lid == dlid and mine and machine.state == 4:
                if accepts(machine.pkeys, pkey):
                    self.send(machine, PACKET, raw)
                else:
                    self.counters["P_Key of the receiver"] += 1
                return
        self.counters["no receiver"] += 1

    def send_mad(self, machine, dest_qpn, pkey, mad):
        length = 8 + 12 + 8 + len(mad) + 4
        packet = struct.pack(">BBHHH", 0, 2, machine.lid, length // 4, SM_LID)
        packet += struct.pack(">BBHII", UD_SEND, 0x40, pkey, dest_qpn, 0)
        packet += struct.pack(">II", 0x80010000, 1) + bytes(mad) + bytes(4)
        self.send(machine, PACKET, packet)

    # ---- subnet administration

    def subnet_administration(self, sender, mad, source_qpn, pkey):
        method = mad[3]
        attribute = struct.unpack_from(">H", mad, 16)[0]
        if mad[1] != SA_CLASS or method not in RESPONSE_OF or (mad[24] == 1 and mad[25] not in (0, 1)):
            return
        self.counters["queries"] += 1
        mask = struct.unpack_from(">Q", mad, 48)[0]
        status, records = self.answer(sender, method, attribute, mask, mad[56:])
        header = bytearray(mad[:56])
        header[3] = RESPONSE_OF[method]
        header[24:36] = bytes(12)
        struct.pack_into(">H", header, 4, status)
        if method != GET_TABLE or status:
            data = records[0] if records else mad[56:]
            self.send_mad(sender, source_qpn, pkey, header + data[:200].ljust(200, b"\0"))
            return
        size = (max((len(record) for record in records), default=8) + 7) // 8 * 8
        whole = b"".join(record.ljust(size, b"\0") for record in records)
        struct.pack_into(">H", header, 44, size // 8)
        segments = max(1, (len(whole) + 199) // 200)
        for index in range(segments):
            part, last = whole[index * 200 : index * 200 + 200], index == segments - 1
            flags = 1 | (2 if index == 0 else 0) | (4 if last else 0)
            length = len(part) + 20 if last else segments * 20 + len(whole) if index == 0 else 0
            struct.pack_into(">BBBBII", header, 24, 1, 1, 0xF8 | flags, 0, index + 1, length)
            self.send_mad(sender, source_qpn, pkey, header + part.ljust(200, b"\0"))

    def answer(self, sender, method, attribute, mask, data):
        if attribute == CLASS_PORT_INFO:
            return 0, [struct.pack(">BBHI", 1, 2, 0x1A00, 18).ljust(72, b"\0")]
        if attribute == MC_MEMBER_RECORD:
            return self.multicast_member(sender, method, data)
        if attribute == PATH_RECORD:
            return self.path(sender, mask, data)
        if attribute == NODE_RECORD:
            return 0, [self.node(machine) for machine in self.machines]
        if attribute in (INFORM_INFO, SERVICE_RECORD):
            return 0, [bytes(data)]
        return UNSUPPORTED, []

    def multicast_member(self, sender, method, data):
        mgid = bytes(data[:16])
        if method == SET and mgid not in self.groups:
            qkey = struct.unpack_from(">I", data, 32)[0] or 0x0B1B
            pkey = struct.unpack_from(">H", data, 40)[0] or 0xFFFF
            self.groups[mgid] = (0xC000 + len(self.groups), qkey, pkey, set())
        if mgid not in self.groups:
            return NO_RECORDS, []
        mlid, qkey, pkey, members = self.groups[mgid]
        if method == SET:
            members.add(sender.number)
        elif method == DELETE:
            members.discard(sender.number)
        record = mgid + bytes(data[16:32]) + struct.pack(
            ">IHBBHBBIBBH", qkey, mlid, 0x80 | MTU_4096, 0, pkey, 0x80 | RATE_10, 0x80 | 18, 0, 0x20 | data[48] & 15, 0, 0)
        return 0, [record]

    def path(self, sender, mask, data):
        _, dgid, _, dlid = struct.unpack_from(">Q16s16sH", data)
        by_gid, by_lid = mask & 4, mask & 16
        pkey = struct.unpack_from(">H", data, 50)[0] if mask & 1 << 13 else 0xFFFF
        for machine in self.machines:
            if (by_gid and machine.gid == dgid) or (by_lid and machine.lid == dlid):
                if accepts(machine.pkeys, pkey) and accepts(sender.pkeys, pkey):
                    # Hop limit 1: paths to aliases carry a GRH.
                    return 0, [struct.pack(">8x16s16sHHIBBHHBBBB6x", machine.gid, sender.gid, machine.lid, sender.lid,
                                           1, 0, 0x81, pkey, 0, 0x80 | MTU_4096, 0x80 | RATE_10, 0x80 | 18, 0)]
        return NO_RECORDS, []

    def node(self, machine):
        info = struct.pack(">BBBBQQQHHIBBH", 1, 1, 1, 1, machine.guid, machine.guid, machine.guid, 128, 1, 1, 1, 6, 0x6863)
        return struct.pack(">HH", machine.lid, 0) + info + f"machine {machine.number}".encode().ljust(64, b"\0")

    # ---- commands

    def command(self, words):
        name, arguments = words[0], words[1:]
        if name == "loss":
            self.loss = float(arguments[0])
        elif name == "noise":
            self.noise = float(arguments[0])
        elif name == "count":
            print(dict(self.counters), flush=True)
        else:
            machine = self.machines[int(arguments[0]) - 1]
            if name == "pkeys":
                machine.pkeys = [int(key, 0) for key in arguments[1:]]
            elif name == "state":
                machine.state = int(arguments[1])
            elif name == "flood":
                machine.flood = int(arguments[1])
                return
            elif name == "register":
                machine.registrations += 1
                for *_, members in self.groups.values():
                    members.discard(machine.number)
            self.send(machine, PORT, machine.port_message(0))

    def run(self):
        selector = selectors.DefaultSelector()
        selector.register(self.control, selectors.EVENT_READ, None)
        for machine in self.machines:
            selector.register(machine.socket, selectors.EVENT_READ, machine)
        while True:
            for machine in self.machines:
                self.flood(machine)
            waiting = any(machine.backlog for machine in self.machines)
            for key, _ in selector.select(0.002 if waiting else None):
                if key.data:
                    self.receive(key.data)
                else:
                    self.command(self.control.recv(4096).decode().split())
            for machine in self.machines:
                self.flush(machine)


if __name__ == "__main__":
    Fabric(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 1).run()
