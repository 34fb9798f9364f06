#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Asks subnet administration for alias GUIDs of the own port, as drivers of adapters with functions do (mlx4).

usage: LD_PRELOAD=libheddle_umad.so HEDDLE_SOCKET=SOCKET SIM_HOST=NODE claim.py INDEX GUID [INDEX GUID]...

`heddle sm` grants what its plan gives the port, OpenSM whatever is asked for. The status is 1 if it is refused.
"""
import ctypes
import pathlib
import struct
import sys

SET, GUID_INFO_RECORD = 2, 0x30
MAD_LEN, SA_DATA = 256, 56
QP1, QP1_QKEY = 1, 0x80010000
ENTRIES = 8


def number(directory, name):
    return int((directory / name).read_text(), 0)


def request(lid, block, guids):
    """Set of a block; `guids` by index within it."""
    mask = 0b11 | sum(1 << 4 + index for index in guids)
    mad = struct.pack(">BBBBHHQHHI", 1, 3, 2, SET, 0, 0, 0x4711, GUID_INFO_RECORD, 0, 0)
    mad += bytes(20) + struct.pack(">HHQ", 9, 0, mask)
    mad += struct.pack(">HBx4x8Q", lid, block, *(guids.get(index, 0) for index in range(ENTRIES)))
    return mad.ljust(MAD_LEN, b"\0")


def exchange(umad, mad, sm_lid):
    """Sends a request to the manager; returns its response."""
    port = umad.umad_open_port(None, 0)
    assert port >= 0, "no port"
    agent = umad.umad_register(port, 3, 2, 0, None)
    assert agent >= 0, "no agent"
    head = umad.umad_size()
    buffer = ctypes.create_string_buffer(head + MAD_LEN)
    ctypes.memmove(ctypes.addressof(buffer) + head, mad, MAD_LEN)
    umad.umad_set_addr(buffer, sm_lid, QP1, 0, QP1_QKEY)
    assert umad.umad_send(port, agent, buffer, MAD_LEN, 2000, 5) == 0, "cannot send"
    length = ctypes.c_int(MAD_LEN)
    assert umad.umad_recv(port, buffer, ctypes.byref(length), 60000) == agent, "no answer"
    assert umad.umad_status(buffer) == 0, "no answer"
    return buffer.raw[head:]


def main():
    wanted = dict(zip((int(word, 0) for word in sys.argv[1::2]), (int(word, 0) for word in sys.argv[2::2])))
    umad = ctypes.CDLL("libibumad.so.3")
    umad.umad_init()
    name = ctypes.create_string_buffer(20)
    assert umad.umad_get_cas_names(name, 1) == 1, "no device"
    directory = pathlib.Path("/sys/class/infiniband", name.value.decode(), "ports/1")
    lid, sm_lid = number(directory, "lid"), number(directory, "sm_lid")
    for block in sorted({index // ENTRIES for index in wanted}):
        guids = {index % ENTRIES: guid for index, guid in wanted.items() if index // ENTRIES == block}
        answer = exchange(umad, request(lid, block, guids), sm_lid)
        status = struct.unpack_from(">H", answer, 4)[0]
        granted = struct.unpack_from(">8Q", answer, SA_DATA + 8)
        print(f"block {block}: status {status:#06x}, {' '.join(f'{guid:#x}' for guid in granted if guid)}")
        if status or any(granted[index] != guid for index, guid in guids.items()):
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
