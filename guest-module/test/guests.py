# SPDX-License-Identifier: GPL-2.0
"""Virtual machines on the fabric of fabric.py, under QEMU without KVM."""
import os
import pathlib
import socket
import subprocess
import sys
import tarfile
import time

HERE = pathlib.Path(__file__).parent
# Factor for the time that commands have: more for kernels that check every access to memory.
PATIENCE = float(os.environ.get("PATIENCE", 1))


class Guest:
    def __init__(self, scratch, run, number, modules):
        self.number, self.run = number, run
        self.console = run / f"console{number}"
        disk, shell, extra = run / f"disk{number}.qcow2", run / f"shell{number}", run / f"modules{number}.tar"
        subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", "-b", (scratch / "root.ext4").resolve(), "-F", "raw", disk],
                       check=True)
        # The modules: a disk whose content is an archive.
        with tarfile.open(extra, "w") as archive:
            for module in modules:
                archive.add(module, pathlib.Path(module).name)
        for path in (run / f"guest{number}", shell):
            path.unlink(missing_ok=True)
        command = f"""nice -n 10 qemu-system-x86_64 -accel tcg,thread=multi -cpu max -M q35 -smp 1 -m 768 -nodefaults -nographic
            -kernel {scratch}/vmlinuz -initrd {scratch}/initrd.gz -serial file:{self.console}
            -drive if=none,id=d0,file={disk},format=qcow2,cache=unsafe -device virtio-blk-pci,drive=d0
            -drive if=none,id=d1,file={extra},format=raw,readonly=on -device virtio-blk-pci,drive=d1
            -netdev dgram,id=n0,local.type=unix,local.path={run}/guest{number},remote.type=unix,remote.path={run}/fabric{number}
            -device virtio-net-pci,netdev=n0,romfile=,mac=06:68:63:00:00:{number:02x}
            -device virtio-rng-pci -device virtio-serial-pci -chardev socket,id=c0,path={shell},server=on,wait=off
            -device virtserialport,chardev=c0,name=shell""".split()
        command += ["-append", "console=ttyS0 net.ifnames=0 loglevel=5 mitigations=off panic=-1 " + os.environ.get("GUEST_KERNEL_ARGS", "")]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        self.shell_path, self.socket, self.commands = shell, None, 0

    def connect(self, seconds=400):
        """Waits until the guest runs commands."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                if self.socket is None:
                    found = socket.socket(socket.AF_UNIX)
                    found.connect(str(self.shell_path))
                    self.socket = found
                if self.sh("true", 10)[0] == 0:
                    return
            except (OSError, TimeoutError):
                time.sleep(1)
        raise TimeoutError(f"guest {self.number} does not boot: see {self.console}")

    def start(self, command):
        """Begins a command; end() waits for it."""
        self.commands += 1
        self.mark = f"__end_{self.commands}_"
        self.socket.sendall(f"{{ {command}\n}} </dev/null 2>&1; echo {self.mark}$?\n".encode())

    def end(self, seconds=60):
        """The status and the output of the command that start() began."""
        data, end = b"", time.monotonic() + PATIENCE * seconds
        while True:
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"guest {self.number}: no end of the command; so far:\n{data.decode(errors='replace')[-2000:]}")
            self.socket.settimeout(left)
            data += self.socket.recv(65536)
            text = data.decode(errors="replace")
            if self.mark in text and text.endswith("\n"):
                output, _, status = text.rpartition(self.mark)
                return int(status), output

    def sh(self, command, seconds=60):
        self.start(command)
        return self.end(seconds)


class Fabric:
    """The process of fabric.py, and guests with the module loaded."""

    # Whether command() takes the commands of fabric.py.
    stand_in = True

    def __init__(self, scratch, run, guests, modules, per_port=1):
        self.run = pathlib.Path(run).resolve()
        self.run.mkdir(parents=True, exist_ok=True)
        self.log = open(self.run / "fabric.log", "w")
        self.start(guests, per_port)
        scratch = pathlib.Path(scratch).resolve()
        self.guests = [Guest(scratch, self.run, number, modules) for number in range(1, guests + 1)]

    def start(self, count, per_port):
        self.process = subprocess.Popen(["nice", "-n", "10", sys.executable, HERE / "fabric.py", self.run, str(count), str(per_port)],
                                        stdout=self.log, stderr=self.log)
        while not (self.run / "control").exists():
            time.sleep(0.1)

    def boot(self):
        for guest in self.guests:
            guest.connect()
            number = guest.number
            setup = f"""hostname n{number}; tar -C /run -xf /dev/vdb
                modprobe -a ib_core ib_uverbs ib_umad && insmod /run/heddle_hca.ko
                modprobe -a ib_ipoib rdma_ucm rdma_cm
                for i in 1 2 3 4; do echo 10.7.0.$i n$i; done >>/etc/hosts"""
            guest.start(setup)
        for guest in self.guests:
            status, output = guest.end(400)
            assert status == 0, output

    def up(self):
        """IP addresses on ib0."""
        for guest in self.guests:
            guest.start(f"ip addr replace 10.7.0.{guest.number}/24 dev ib0; ip link set ib0 up")
        for guest in self.guests:
            guest.end(30)

    def resent(self):
        """Packets that the first two machines sent again, so far."""
        return sum(int(guest.sh("cat /sys/class/infiniband/heddle0/ports/1/hw_counters/rc_resent")[1]) for guest in self.guests[:2])

    def command(self, *words):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as control:
            control.sendto(" ".join(map(str, words)).encode(), str(self.run / "control"))

    def stop(self):
        for process in [guest.process for guest in self.guests] + [self.process]:
            process.terminate()
            process.wait()
        for path in list(self.run.glob("disk*")) + [self.run / "control"]:
            path.unlink(missing_ok=True)
