# SPDX-License-Identifier: GPL-2.0
"""What goes wrong on the links of `heddle sim` while tests run: nothing, packets that are lost, or links that fail."""
import threading
import time


class Count:
    """Packets that were lost, by reason, and sent again, since it was made."""

    def __init__(self, fabric):
        self.fabric, self.resent, self.drops = fabric, fabric.resent(), fabric.drops()

    def __str__(self):
        drops = self.fabric.drops()
        drops.subtract(self.drops)
        words = [f"{count} {reason}" for reason, count in sorted(drops.items()) if count]
        return ", ".join([*words, f"{self.fabric.resent() - self.resent} sent again"]) + "; "


class Quiet:
    """Nothing goes wrong."""

    # Factor for the numbers of iterations of programs.
    longer = 1
    # Whether a program may lose datagrams.
    loses = False

    def begin(self, fabric):
        """Before a test."""

    def client_runs(self):
        """A client of the test has started."""

    def end(self):
        """After a test; returns what happened."""
        return ""


class Loss(Quiet):
    """Each link between two nodes loses 1 % of the data packets."""

    loses = True

    def begin(self, fabric):
        self.fabric = fabric
        self.count = Count(fabric)
        fabric.loss_on_links(0.01)

    def end(self):
        self.fabric.loss_on_links(0)
        return str(self.count)


class FailingLinks(Quiet):
    """The link between switches that packets of the first machine to the second take fails, again and again.

    It fails 0.3 s after a client has started. Once the manager has moved the route, and a moment later, the cable is plugged in again; then
    the next one fails, in the other direction.
    """

    longer = 10
    loses = True
    HOLD, PAUSE = 0.7, 1.0

    def begin(self, fabric):
        self.fabric, self.failures, self.slowest = fabric, 0, 0.0
        self.count = Count(fabric)
        self.client, self.stop, self.error = threading.Event(), threading.Event(), None
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def client_runs(self):
        self.client.set()

    def run(self):
        while not self.client.wait(0.1):
            if self.stop.is_set():
                return
        try:
            self.stop.wait(0.3)
            while not self.stop.is_set():
                self.fail_once(self.failures % 2)
        except AssertionError as error:
            self.error = error

    def fail_once(self, direction):
        switch, port = self.fabric.exit_to(direction)
        began = time.monotonic()
        self.fabric.control("link", "down", switch, port)
        try:
            while self.fabric.exit_to(direction) == (switch, port):
                assert time.monotonic() < began + 30, f"no other route than by {switch} port {port}"
                time.sleep(0.02)
            self.failures += 1
            self.slowest = max(self.slowest, time.monotonic() - began)
            self.stop.wait(self.HOLD)
        finally:
            self.fabric.control("link", "up", switch, port)
        self.stop.wait(self.PAUSE)

    def end(self):
        self.stop.set()
        self.thread.join()
        # Both cables are plugged in again; the next test begins when the manager uses them.
        time.sleep(1)
        assert not self.error, self.error
        assert self.failures or not self.client.is_set(), "no link failed while the client ran"
        if not self.failures:
            return ""
        return f"{self.failures} failures, routes moved within {self.slowest * 1000:.0f} ms, {self.count}"


KINDS = {"nothing": Quiet, "loss": Loss, "links": FailingLinks}
