# SPDX-License-Identifier: GPL-2.0
"""Machines on `heddle sim`, with `heddle sm`, instead of fabric.py."""
import os
import re
import subprocess
import time

import guests

PARTITION = 0x0123


class HeddleFabric(guests.Fabric):
    """Machine I is a function of the host that follows the manager's, or each `per_port` machines are."""

    stand_in = False

    def __init__(self, heddle, scratch, run, count, modules, per_port=1):
        self.heddle, self.per_port = os.path.abspath(heddle), per_port
        super().__init__(scratch, run, count, modules, per_port)

    def tool(self, *arguments):
        done = subprocess.run([self.heddle, *map(str, arguments)], cwd=self.run, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def background(self, *arguments):
        return subprocess.Popen(["nice", "-n", "10", self.heddle, *map(str, arguments)], cwd=self.run, stdout=self.log, stderr=self.log)

    def start(self, count, _):
        self.tool("topology", "generate", "fat-tree", "--hosts", 4, "-o", "net.topo")
        text = (self.run / "net.topo").read_text()
        ports = [f"0x{int(guid, 16):016x}" for guid in re.findall(r"^Ca.*\n\[1\]\(([0-9a-f]+)\)", text, re.M)]
        self.place = [1 + number // self.per_port for number in range(count)]
        used = sorted({ports[place] for place in self.place})
        (self.run / "partitions.conf").write_text(
            "Default=0x7fff, ipoib : ALL=limited, SELF=full;\n"
            f"red={PARTITION:#06x}, ipoib : " + ", ".join(f"{port}=full" for port in used) + ", SELF=full;\n")
        (self.run / "aliases.toml").write_text("".join(
            f'[[alias]]\nport = "{ports[place]}"\nindex = {1 + number % self.per_port}\nguid = "{self.guid(number)}"\n'
            f'partitions = [{PARTITION:#06x}, 0x7fff]\n' for number, place in enumerate(self.place)))
        for name in ("sim.sock", "fabric.sock", "fabric.json"):
            (self.run / name).unlink(missing_ok=True)
        self.process = self.background("sim", "net.topo", "--socket", "fabric.sock", "--control", "sim.sock")
        while not (self.run / "fabric.sock").exists():
            time.sleep(0.1)
        self.manager = self.background("sm", "--device", "heddle:fabric.sock@host-00001", "--partitions", "partitions.conf",
                                       "--aliases", "aliases.toml", "--state", "fabric.json")
        time.sleep(2)
        for number, place in enumerate(self.place):
            self.tool("sim-ctl", "./sim.sock", "attach-adapter", f"host-{place + 1:05}", 1, 1 + number % self.per_port,
                      "--guid", self.guid(number), "--pkey", f"{0x8000 | PARTITION:#x}", "--pkey", "0x7fff",
                      "--guest", self.run / f"guest{number + 1}", "--fabric", self.run / f"fabric{number + 1}")

    @staticmethod
    def guid(number):
        return f"0x{0x0002_C903_0010_00A1 + number:016x}"

    def command(self, *words):
        if words == ("count",):
            print(self.tool("sim-ctl", "./sim.sock", "adapters"))

    def stop(self):
        super().stop()
        self.manager.terminate()
        self.manager.wait()
