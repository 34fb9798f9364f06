# SPDX-License-Identifier: GPL-2.0
"""Machines on `heddle sim`, with `heddle sm` or OpenSM, instead of fabric.py."""
import collections
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import guests

PARTITION = 0x0123
MANAGER = "host-00001"


class HeddleFabric(guests.Fabric):
    """Machine I is a function of the host that follows the manager's, or each `per_port` machines are."""

    stand_in = False

    def __init__(self, heddle, scratch, run, count, modules, per_port=1, manager="heddle"):
        self.heddle, self.per_port, self.kind = os.path.abspath(heddle), per_port, manager
        self.manager = None
        super().__init__(scratch, run, count, modules, per_port)

    def tool(self, *arguments):
        done = subprocess.run([self.heddle, *map(str, arguments)], cwd=self.run, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def control(self, *arguments):
        return self.tool("sim-ctl", "./sim.sock", *arguments)

    def background(self, *command, **more):
        return subprocess.Popen(["nice", "-n", "10", *map(str, command)], cwd=self.run, stdin=subprocess.DEVNULL, stdout=self.log,
                                stderr=self.log, **more)

    def through_umad(self, node):
        """The environment in which stock programs run on a node."""
        preload = pathlib.Path(self.heddle).with_name("libheddle_umad.so")
        assert preload.exists(), f"{preload} is not built"
        return os.environ | {"LD_PRELOAD": str(preload), "HEDDLE_SOCKET": str(self.run / "fabric.sock"), "SIM_HOST": node,
                             "OSM_CACHE_DIR": str(self.run), "OSM_TMP_DIR": str(self.run)}

    def start(self, count, _):
        # Two leaves with two hosts each, and two links from each leaf to the spine. The manager is on the first leaf.
        self.tool("topology", "generate", "fat-tree", "--hosts", 4, "--radix", 4, "-o", "net.topo")
        text = (self.run / "net.topo").read_text()
        # Links that fail on purpose are to be used again.
        (self.run / "link-health.toml").write_text("flaps = 0\nlink_recoveries = 0\nlink_downed = 0\nsymbol_errors = 0\n")
        self.ports = [f"0x{int(guid, 16):016x}" for guid in re.findall(r"^Ca.*\n\[1\]\(([0-9a-f]+)\)", text, re.M)]
        self.place = [1 + number // self.per_port for number in range(count)]
        self.write_intent()
        for name in ("sim.sock", "fabric.sock", "fabric.json"):
            (self.run / name).unlink(missing_ok=True)
        self.process = self.background(self.heddle, "sim", "net.topo", "--name", f"test-{os.getpid()}", "--socket", "fabric.sock",
                                       "--control", "sim.sock")
        while not (self.run / "fabric.sock").exists():
            time.sleep(0.1)
        self.manage(self.kind)
        if self.kind == "opensm":
            self.claim()
        for number in range(count):
            self.attach(number)

    def write_intent(self):
        """The partition of the machines and their aliases, for the manager."""
        used = sorted({self.ports[place] for place in self.place})
        (self.run / "partitions.conf").write_text(
            "Default=0x7fff, ipoib : ALL=limited, SELF=full;\n"
            f"red={PARTITION:#06x}, ipoib : " + ", ".join(f"{port}=full" for port in used) + ", SELF=full;\n")
        (self.run / "aliases.toml").write_text("".join(
            f'[[alias]]\nport = "{self.ports[place]}"\nindex = {1 + number % self.per_port}\nguid = "{self.guid(number)}"\n'
            f'partitions = [{PARTITION:#06x}, 0x7fff]\n' for number, place in enumerate(self.place)))

    def function(self, number):
        """Host, port and function of a machine."""
        return f"host-{self.place[number] + 1:05}", 1, 1 + number % self.per_port

    def attach(self, number):
        self.control("attach-adapter", *self.function(number),
                     "--guid", self.guid(number), "--pkey", f"{0x8000 | PARTITION:#x}", "--pkey", "0x7fff",
                     "--guest", self.run / f"guest{number + 1}", "--fabric", self.run / f"fabric{number + 1}")

    def move(self, number, place):
        """A machine becomes a function of another host; it keeps its GUID."""
        self.control("detach", *self.function(number))
        self.place[number] = place
        self.write_intent()
        self.manager.send_signal(signal.SIGHUP)
        self.attach(number)

    def manage(self, kind):
        """Ends the manager, if there is one, and starts another; returns when the subnet is up."""
        if self.manager:
            self.manager.terminate()
            self.manager.wait()
        output = self.run / f"{kind}.log"
        output.unlink(missing_ok=True)
        if kind == "opensm":
            self.manager = self.background("opensm", "-d", "2", "-f", output, "-P", "partitions.conf", env=self.through_umad(MANAGER))
            up = "SUBNET UP"
        else:
            with open(output, "w") as file:
                # --adopt: after OpenSM, LIDs stay.
                self.manager = subprocess.Popen(
                    ["nice", "-n", "10", self.heddle, "sm", "--device", f"heddle:fabric.sock@{MANAGER}", "--partitions",
                     "partitions.conf", "--aliases", "aliases.toml", "--state", "fabric.json",
                     "--link-health", "link-health.toml", *(["--adopt", "--apply"] if self.kind == "opensm" else [])],
                    cwd=self.run, stdout=file, stderr=self.log)
            up = "up: "
        end = time.monotonic() + 60
        while not (output.exists() and up in output.read_text(errors="replace")):
            assert time.monotonic() < end and self.manager.poll() is None, f"{kind} is not up: see {output}"
            time.sleep(0.2)

    def leaf(self, machine):
        """The switch of a machine; machines of `start` are counted from 0."""
        return f"leaf-{1 + self.place[machine] // 2:02}"

    def exit_to(self, machine):
        """Where packets to one of the first two machines leave the switch of the other: the switch and its port."""
        lid = json.loads(self.control("counters", f"host-{self.place[machine] + 1:05}", 1))["lid"]
        switch = self.leaf(1 - machine)
        return switch, json.loads(self.control("tables", switch))["linear_forwarding"][str(lid)]

    def loss_on_links(self, probability):
        """Loss of data packets on every link."""
        for switch in ("leaf-01", "leaf-02"):
            for port in range(1, 5):
                self.control("loss", probability, switch, port, "--data")

    def drops(self):
        """Packets that the emulation dropped, by reason."""
        fabric = json.loads(self.control("status"))["fabric"]
        return collections.Counter(fabric["drops"]) + collections.Counter(fabric["frames"]["drops"])

    def claim(self):
        """The hosts ask OpenSM for the aliases; `heddle sm` has them from its plan."""
        for place in sorted(set(self.place)):
            words = [word for number, at in enumerate(self.place) if at == place
                     for word in (str(1 + number % self.per_port), self.guid(number))]
            subprocess.run([sys.executable, guests.HERE / "claim.py", *words], env=self.through_umad(f"host-{place + 1:05}"), check=True,
                           stdout=self.log)

    @staticmethod
    def guid(number):
        return f"0x{0x0002_C903_0010_00A1 + number:016x}"

    def command(self, *words):
        if words == ("count",):
            print(self.control("adapters"))

    def stop(self):
        super().stop()
        self.manager.terminate()
        self.manager.wait()
