"""Two hosts in network namespaces with a cable between them, each with four ranks of one job: what the soak hurts."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

from tests import netns
from tests.training.launched import Job, Step, agent_of, descendants, signalled

NODES, NPROC = 2, 4
RANKS = NODES * NPROC
"""Of a soak; a test may have fewer."""
PORT = 29511
LED = re.compile(r"runs the coordinator \(term (\d+)\)")


class Cable:
    """Two namespaces joined by a pair of virtual interfaces."""

    def __init__(self, number: int) -> None:
        self.names = tuple(f"bt{os.getpid()}x{number}{side}" for side in "ab")
        first = netns.RANGE + (1 << 16) + 4 * (os.getpid() % 4096 * 4 + number)
        self.addresses = tuple(
            ".".join(str(first + 1 + side >> shift & 255) for shift in (24, 16, 8, 0)) for side in (0, 1)
        )
        for name in self.names:
            netns.run("ip", "netns", "add", name)
        one, other = self.names
        netns.run("ip", "-n", one, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", other)
        for name, address in zip(self.names, self.addresses, strict=True):
            netns.run("ip", "-n", name, "address", "add", f"{address}/30", "dev", "eth0")
            netns.run("ip", "-n", name, "link", "set", "eth0", "up")
            netns.run("ip", "-n", name, "link", "set", "lo", "up")
            netns.run(*self.inside(name), "nft", "add", "table", "inet", "wall")

    @staticmethod
    def inside(name: str) -> tuple[str, ...]:
        """The command that runs another one in a namespace."""
        return ("ip", "netns", "exec", name)

    def holds(self, pid: int) -> bool:
        """Whether a process runs in one of the namespaces."""
        try:
            found = os.stat(f"/proc/{pid}/ns/net").st_ino
        except OSError:
            return False
        return found in {os.stat(f"/run/netns/{name}").st_ino for name in self.names}

    def unplug(self, side: int) -> None:
        """Take the interface of one side down: the other one loses its carrier too."""
        netns.run("ip", "-n", self.names[side], "link", "set", "eth0", "down")

    def deaf(self, side: int) -> None:
        """One-way loss: nothing reaches this side any more, what it sends arrives."""
        rule = '{ type filter hook input priority 0; policy accept; iifname "eth0" drop; }'
        netns.run(*self.inside(self.names[side]), "nft", "add", "chain", "inet", "wall", "input", rule)

    def slow(self, side: int) -> None:
        """Packets of this side queue at 2 Mbit/s, for up to 0.4 s, and are dropped beyond that."""
        shape = ("rate", "2mbit", "burst", "16k", "latency", "400ms")
        netns.run("tc", "-n", self.names[side], "qdisc", "replace", "dev", "eth0", "root", "tbf", *shape)

    def mend(self) -> None:
        """Undo every cut."""
        for name in self.names:
            netns.run("ip", "-n", name, "link", "set", "eth0", "up")
            netns.run(*self.inside(name), "nft", "delete", "table", "inet", "wall")
            netns.run(*self.inside(name), "nft", "add", "table", "inet", "wall")
            subprocess.run(["tc", "-n", name, "qdisc", "del", "dev", "eth0", "root"], capture_output=True, check=False)

    def close(self) -> None:
        """Remove both hosts."""
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


class TwoHosts:
    """The job: a launcher on each host, ranks 0 to 3 and 4 to 7. ``elected``: they are given each other's addresses
    instead of a coordinator."""

    def __init__(
        self, folder: Path, number: int, steps: int, pause: float, every: int, elected: bool, nproc: int = NPROC
    ) -> None:
        self.folder, self.cable = folder, Cable(number)
        self._arguments = (steps, pause, 32, every)
        self._elected = elected
        self.nproc, self.ranks = nproc, NODES * nproc
        self.launchers = [self._launch(node) for node in range(NODES)]
        self.reader = Job.reader(folder)

    def _launch(self, node: int) -> Job:
        addresses = self.cable.addresses
        options = ("--nproc", str(self.nproc), "--master-port", str(PORT), "--quiet-limit", "2")
        given = ("--nnodes", str(NODES), "--node-rank", str(node), "--master-addr", addresses[0])
        where = ("--nodes", ",".join(addresses)) if self._elected else given
        inside = self.cable.inside(self.cable.names[node])
        return Job(self.folder, "ddp.py", *self._arguments, options=(*options, *where), inside=inside)

    def steps(self, rank: int) -> list[Step]:
        """What a rank wrote so far."""
        return self.reader.steps(rank)

    def newest(self) -> int:
        """The highest step that a rank has written; -1 before the first."""
        return max((one.step for rank in range(self.ranks) for one in self.steps(rank)[-1:]), default=-1)

    def trained(self, at: float, beyond: int, seconds: float) -> float | None:
        """Seconds from ``at`` until every rank has finished a step after ``at`` and ``beyond``; None when the job does
        not within ``seconds``."""
        while time.monotonic() < at + seconds:
            firsts = [
                next((one.at for one in reversed(self.steps(rank)) if one.at > at and one.step > beyond), None)
                for rank in range(self.ranks)
            ]
            found = [one for one in firsts if one is not None]
            if len(found) == self.ranks:
                return max(
                    0.0,
                    max(min(x.at for x in self.steps(r) if x.at > at and x.step > beyond) for r in range(self.ranks))
                    - at,
                )
            if any(one.process.poll() not in (None, 0) for one in self.launchers):
                return None
            time.sleep(0.02)
        return None

    def kill(self, *ranks: int, number: int = signal.SIGKILL) -> None:
        """Signal the processes of ranks, those that still run: the number of an ended one may be another's by now."""
        for pid in [steps[-1].pid for rank in ranks if (steps := self.steps(rank))]:
            if self.cable.holds(pid):
                signalled(pid, number)

    def kill_helpers(self, node: int, number: int = signal.SIGKILL) -> None:
        """Signal spares and warm processes of a host."""
        known = {steps[-1].pid for rank in range(self.ranks) if (steps := self.steps(rank))}
        known |= {self.launchers[node].process.pid, agent_of(self.launchers[node])}
        for pid in descendants(self.launchers[node].process.pid):
            if pid not in known:
                signalled(pid, number)

    def leader(self) -> int:
        """The host whose agent runs the coordinator."""
        terms = [
            (int(found.group(1)), node)
            for node, job in enumerate(self.launchers)
            for found in LED.finditer(job.everything())
        ]
        return max(terms)[1] if terms else 0

    def kill_agent(self, node: int, number: int = signal.SIGKILL) -> None:
        """Signal the node agent; on one host it holds the coordinator, which is the job's manager."""
        signalled(agent_of(self.launchers[node]), number)

    def lose(self, node: int) -> None:
        """Kill everything of a host at once, and start its launcher again."""
        old = self.launchers[node]
        for pid in [old.process.pid, *descendants(old.process.pid)]:
            signalled(pid)
        old.process.wait()
        self.launchers[node] = self._launch(node)

    def errors(self) -> str:
        """What both launchers and their ranks printed last."""
        return "\n".join(f"host {node}:\n{job.errors()}" for node, job in enumerate(self.launchers))

    def end(self, seconds: float) -> list[int | None]:
        """The exit codes of the launchers; None for one that has not ended."""
        codes: list[int | None] = []
        until = time.monotonic() + seconds
        for job in self.launchers:
            try:
                codes.append(job.process.wait(max(0.1, until - time.monotonic())))
            except subprocess.TimeoutExpired:
                codes.append(None)
        return codes

    def left(self, seconds: float) -> list[str]:
        """Processes in the namespaces that still run after ``seconds``."""
        until = time.monotonic() + seconds
        while True:
            pids = [pid for name in self.cable.names for pid in netns.run("ip", "netns", "pids", name).split()]
            if not pids or time.monotonic() > until:
                return pids
            time.sleep(0.02)

    def close(self) -> None:
        """End and remove everything."""
        for job in self.launchers:
            for pid in [job.process.pid, *descendants(job.process.pid)]:
                if job.process.poll() is None:
                    signalled(pid)
            job.close()
        for pid in self.left(5):
            signalled(int(pid))
        self.cable.close()
