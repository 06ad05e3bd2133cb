"""A running `belay up` for benchmarks: when it was ready, what memory it takes, and that it ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench.measure import ROOT, Skipped

READY = "Ctrl-C ends everything"
BELAY = Path(sys.executable).with_name("belay")


class Up:
    """One `belay up`, started as a person starts it; ``seconds`` is how long it took until it said that it is ready."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.data = folder / "data"
        self.kubeconfig = self.data / "kubeconfig"
        self.lines: list[str] = []
        self._ready = threading.Event()
        begin = time.perf_counter()
        self.process = subprocess.Popen(
            [str(BELAY), "up", "--nodes", str(nodes), "--data", str(self.data)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._ready.wait(120)
        self.seconds = time.perf_counter() - begin
        if not any(READY in line for line in self.lines):
            self.end()
            raise RuntimeError("`belay up` did not come up:\n" + "\n".join(self.lines))

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if READY in line:
                self._ready.set()
        self._ready.set()

    def end(self) -> None:
        """Ctrl-C; a second later than 30 s everything is killed, for the kernel ends the children with it."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._reader.join(5)


@contextmanager
def up(nodes: int) -> Iterator[Up]:
    """`belay up` on a folder of its own that is removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="belay-bench-"))
    try:
        running = Up(folder, nodes)
        try:
            yield running
        finally:
            running.end()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def memory(pid: int) -> float:
    """MiB of a process and all that descend from it: the sum of the proportional set sizes, so that pages which
    several share count once.
    """
    return sum(_pss(one) for one in tree(pid)) / 1024


def tree(pid: int) -> list[int]:
    """A process and its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue  # it has ended meanwhile
            children.setdefault(parent, []).append(int(entry.name))
    found, todo = [], [pid]
    while todo:
        one = todo.pop()
        found.append(one)
        todo.extend(children.get(one, ()))
    return found


def resident(pid: int) -> float:
    """MiB of one process (RSS). Raises RuntimeError when it has ended."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} ended")


def cpu_seconds(pid: int, *, waited: bool = False) -> float:
    """CPU time of one process so far; ``waited``: and of those that it waited for. Raises OSError when it is gone."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11 : 15 if waited else 13])) / os.sysconf("SC_CLK_TCK")


def _pss(pid: int) -> int:
    """KiB."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def kubectl() -> str:
    """The kubectl on PATH.

    Raises:
        Skipped: there is none.
    """
    found = shutil.which("kubectl")
    if found is None:
        raise Skipped("kubectl is not on PATH")
    return found


def environment(kubeconfig: Path) -> dict[str, str]:
    """This environment with another cluster."""
    return {**os.environ, "KUBECONFIG": str(kubeconfig)}
