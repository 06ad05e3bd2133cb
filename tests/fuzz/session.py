"""The process that feeds harnesses: `python -m tests.fuzz.session FOLDER SEED SECONDS TRIES NAME...` (0: no limit).

Before each input it writes the input to ``FOLDER/NAME/current``, so that what ends the process can be found. It leaves
``FOLDER/NAME/result.json``, and one ``findings/*.input`` with its ``.txt`` per distinct finding. Inputs that reach new
lines join the population, and ``kept`` for the next run.
"""

from __future__ import annotations

import hashlib
import mmap
import random
import resource
import sys
import time
from pathlib import Path
from typing import Final

import msgspec

from tests.fuzz.execution import BELAY, Execution, Finding
from tests.fuzz.harness import Harness
from tests.fuzz.harnesses import HARNESSES
from tests.fuzz.mutator import LARGEST, Mutator

MEMORY: Final = 3 << 30
"""Address space that the parsers may add to what the process had at its start, in bytes."""
MAX_POPULATION: Final = 400
MAX_FINDINGS: Final = 40
CURRENT_BYTES: Final = 64 << 20


class Report(msgspec.Struct):
    """The result of a session."""

    name: str
    runs: int = 0
    seeds: int = 0
    lines: int = 0
    population: int = 0
    longest: float = 0.0
    """Longest time of one input in seconds, for information."""
    files: list[str] = []
    findings: dict[str, str] = {}
    """File name of the input by what went wrong."""


class Session:
    """Feeds seeds, then mutated inputs."""

    def __init__(self, harness: Harness, folder: Path, seed: int) -> None:
        self._harness = harness
        self._folder = folder
        self._execution = Execution(harness)
        self._dice = random.Random(f"{harness.name} {seed}")
        self._population: list[bytes] = []
        self._known: set[int] = set()
        self.report = Report(harness.name)
        (folder / "findings").mkdir(parents=True, exist_ok=True)
        (folder / "kept").mkdir(exist_ok=True)
        with (folder / "current").open("w+b") as file:
            file.truncate(CURRENT_BYTES)
            self._current = mmap.mmap(file.fileno(), CURRENT_BYTES)

    def run(self, seconds: float, tries: int) -> None:
        """Feed seeds and kept inputs, then mutations until the time or the number of tries is up."""
        seeds = self._harness.corpus(large=not tries)
        for data in seeds:
            self._feed(data)
        self.report.seeds = len(seeds)
        self._population += [data for data in seeds if len(data) <= LARGEST and data not in self._population]
        for file in sorted((self._folder / "kept").iterdir()):
            self._feed(file.read_bytes())
        mutator = Mutator(self._harness.form, self._harness.words, self._dice)
        end = time.monotonic() + seconds if seconds else float("inf")
        limit = tries or sys.maxsize
        while limit and time.monotonic() < end and len(self.report.findings) < MAX_FINDINGS:
            limit -= 1
            data = mutator.next(self._population)
            if self._feed(data):
                (self._folder / "kept" / _name(data)).write_bytes(data)

    def _feed(self, data: bytes) -> bool:
        """Whether the input reached lines that none before did."""
        size = min(len(data), CURRENT_BYTES - 8)
        self._current[:8] = size.to_bytes(8, "little")
        self._current[8 : 8 + size] = data[:size]
        self.report.runs += 1
        begin = time.process_time()
        try:
            reached = self._execution.run(data)
        except Finding as found:
            self._record(found, data)
            return False
        finally:
            self.report.longest = max(self.report.longest, time.process_time() - begin)
        new = not reached <= self._known
        if new:
            self._known |= reached
            if len(data) <= LARGEST:
                self._population.append(data)
            if len(self._population) > MAX_POPULATION:
                del self._population[self._dice.randrange(MAX_POPULATION // 2)]
        return new

    def _record(self, found: Finding, data: bytes) -> None:
        if found.where in self.report.findings:
            return
        file = self._folder / "findings" / _name(data)
        file.with_suffix(".input").write_bytes(data)
        file.with_suffix(".txt").write_text(f"{self._harness.name}: {found.where}\n{found.text}\n", errors="replace")
        self.report.findings[found.where] = file.with_suffix(".input").name

    def save(self) -> None:
        """Write the report."""
        self.report.lines, self.report.population = len(self._known), len(self._population)
        self.report.files = sorted(file.removeprefix(f"{BELAY}/") for file in self._execution.files)
        (self._folder / "result.json").write_bytes(msgspec.json.encode(self.report))


def _name(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def main(folder: str, seed: str, seconds: str, tries: str, *names: str) -> int:
    """Run one session after the other; 0 also with findings."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name in names:
        harness = HARNESSES[name]
        session = Session(harness, Path(folder) / name, int(seed))
        harness.prepare()
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))
        session.run(float(seconds), int(int(tries) * harness.tries))
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        session.save()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
