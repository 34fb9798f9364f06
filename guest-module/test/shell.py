#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Runs a command in a guest that shell.py started.

usage: shell.py SCRATCH RUN MODULE start GUESTS [FUNCTIONS_PER_PORT]    boot, load the module, stay in the foreground
       shell.py RUN GUEST [-t SECONDS] COMMAND
"""
import pathlib
import signal
import socket
import sys
import time

import guests


def start(scratch, run, module, count, per_port):
    fabric = guests.Fabric(scratch, run, count, [module], per_port)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        fabric.boot()
        for guest in fabric.guests:
            guest.socket.close()
        print("ready", flush=True)
        while True:
            time.sleep(60)
    finally:
        fabric.stop()


def command(run, number, text, seconds):
    guest = guests.Guest.__new__(guests.Guest)
    guest.number, guest.commands = number, int(time.time())
    guest.socket = socket.socket(socket.AF_UNIX)
    guest.socket.connect(str(pathlib.Path(run) / f"shell{number}"))
    status, output = guest.sh(text, seconds)
    print(output, end="")
    return status


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if len(arguments) > 3 and arguments[3] == "start":
        start(*arguments[:3], int(arguments[4]), int(arguments[5]) if len(arguments) > 5 else 1)
    else:
        limit = 60
        if arguments[2] == "-t":
            limit = int(arguments[3])
            del arguments[2:4]
        sys.exit(command(arguments[0], int(arguments[1]), arguments[2], limit))
