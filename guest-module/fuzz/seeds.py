#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Writes the seed corpus: a message with each kind of packet, a port and a hello.

usage: seeds.py DIRECTORY
"""
import pathlib
import struct
import sys

# Length of the headers between BTH and payload, and the payload.
OPCODES = {
    0x00: (0, 256), 0x01: (0, 256), 0x02: (0, 3), 0x03: (4, 5), 0x04: (0, 10), 0x05: (4, 0), 0x06: (16, 256), 0x07: (0, 256),
    0x08: (0, 4), 0x09: (4, 1), 0x0A: (16, 7), 0x0B: (20, 9), 0x0C: (16, 0), 0x0D: (4, 256), 0x0E: (0, 256), 0x0F: (4, 2),
    0x10: (4, 8), 0x11: (4, 0), 0x12: (12, 0), 0x13: (28, 0), 0x14: (28, 0), 0x16: (4, 6), 0x17: (4, 3), 0x64: (8, 256),
    0x65: (12, 13),
}


def packet(opcode, extension, payload, is_global, pkey=0x8001, dlid=5):
    padding = -payload % 4
    transport = struct.pack(">BBHII", opcode, 0x40 | padding << 4, pkey, 0x080012, 1 << 31 | 77)
    transport += bytes(range(1, extension + 1)) + bytes(payload + padding) + bytes(4)
    grh = b""
    if is_global:
        gids = struct.pack(">QQQQ", 0xFE80 << 48, 1, 0xFE80 << 48, 2)
        grh = struct.pack(">IHBB", 6 << 28 | 0x12345, len(transport), 0x1B, 64) + gids
    words = (8 + len(grh) + len(transport)) // 4
    return struct.pack(">BBHHH", 0, 5 << 4 | (3 if is_global else 2), dlid, words, 16) + grh + transport


def port(first_qp=1 << 19, qp_count=1 << 19):
    body = bytearray(456)
    struct.pack_into(">QQQQ", body, 0, 1, 2, 1, 0xFE80 << 48)
    struct.pack_into(">IIIII", body, 32, 0x02510A68, 3, first_qp, qp_count, 9)
    struct.pack_into(">HHBBBBBBBBHBB", body, 52, 17, 1, 0, 0, 4, 5, 5, 5, 2, 18, 32, 1, 2)
    struct.pack_into(">Q", body, 72, 1)
    struct.pack_into(">HH", body, 200, 0xFFFF, 0x8001)
    return bytes(body)


def main():
    directory = pathlib.Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)

    def write(name, kind, body):
        (directory / name).write_bytes(struct.pack(">BBH", kind, 1, len(body)) + body)

    for opcode, (extension, payload) in OPCODES.items():
        for is_global in (False, True):
            name = f"packet-{opcode:02x}-{'global' if is_global else 'local'}"
            write(name, 1, packet(opcode, extension, payload, is_global))
    # The largest, and one that is too long.
    write("packet-largest", 1, packet(0x64, 8, 4096, True))
    write("packet-too-long", 1, packet(0x64, 8, 8160, True))
    write("packet-multicast", 1, packet(0x64, 8, 64, True, dlid=0xC001))
    write("packet-permissive", 1, packet(0x64, 8, 256, False, dlid=0xFFFF))
    for pkey in (0, 0x7FFF, 0x8000, 0xFFFF):
        write(f"packet-pkey-{pkey:04x}", 1, packet(0x04, 0, 16, False, pkey=pkey))
    write("port", 2, port())
    write("port-only-qp0-and-qp1", 2, port(0, 2))
    write("port-of-few", 2, port(1, 2))
    write("hello", 3, struct.pack(">II", 7, 1) + b"n1 heddle0".ljust(72, b"\0"))


if __name__ == "__main__":
    main()
