"""One node's agent over hardware that is a file: ``python -m tests.chaos.node NODE --hardware FOLDER --state DIR``.

What the hardware is outlives the agent: ``NODE.json`` holds its faults (the shape of ``SimulatedDriver.apply``), and a
reset takes those away that it heals. Every reset adds a line to ``NODE.resets`` before it happens: when (monotonic
seconds, which no jump of a clock changes), which chips, the epoch that the agent's journal says has begun, and the
pods that live on these chips by the API server's word.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from belay.agents.common.log import JsonLines
from belay.agents.common.stopping import stop_on_signals
from belay.agents.daemon.fleet import without
from belay.agents.daemon.run import run_agent
from belay.agents.drivers.base import Code, Event
from belay.agents.drivers.simulated import SimulatedDriver
from belay.agents.node.settings import Settings
from belay.engine.sandbox.reader import ApiReader
from tests.chaos.live import on_chips

POLL = 0.2


class Hardware:
    """The file that says what is broken, and the one that says what was reset."""

    def __init__(self, folder: Path, node: str) -> None:
        self._file, self._lock, self._resets = (folder / f"{node}{end}" for end in (".json", ".lock", ".resets"))

    def read(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self._file.read_text()))
        except FileNotFoundError:
            return {}

    @contextmanager
    def changed(self) -> Iterator[dict[str, Any]]:
        """The content, to be changed by one process at a time."""
        with self._lock.open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            content = self.read()
            yield content
            fresh = self._file.with_suffix(".new")
            fresh.write_text(json.dumps(content))
            fresh.replace(self._file)

    def record(self, row: dict[str, Any]) -> None:
        descriptor = os.open(self._resets, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, (json.dumps(row) + "\n").encode())
        finally:
            os.close(descriptor)

    def resets(self) -> list[dict[str, Any]]:
        try:
            return [json.loads(line) for line in self._resets.read_text().splitlines()]
        except FileNotFoundError:
            return []


class HardwareDriver(SimulatedDriver):
    """The simulated driver over such a file."""

    def __init__(self, node: str, hardware: Hardware, state: Path, api: ApiReader, scale: float) -> None:
        super().__init__(
            node, scale=scale, now_ms=lambda: int(time.time() * 1000), sleep=asyncio.sleep, healed=self._mend
        )
        self._hardware, self._journal, self._api = hardware, state / "journal", api
        self._read_at: tuple[int, int] = (0, 0)
        self._look()

    def _look(self) -> None:
        self.apply(self._hardware.read())

    def _mend(self, chips: Sequence[int]) -> None:
        healed = {self.device(chip): self.described(chip) for chip in chips}
        with self._hardware.changed() as content:
            after = without(content, healed)
            content.clear()
            content.update(after)

    async def events(self) -> Sequence[Event]:
        while not self._events:
            await asyncio.sleep(POLL)
            self._look()
        return await super().events()

    async def faults(self) -> dict[int, Sequence[Code]]:
        self._look()
        return dict(await super().faults())

    async def reset(self, chips: Sequence[int], *, out_of_band: bool = True) -> None:
        names = sorted(self.device(chip) for chip in chips)
        used = await asyncio.to_thread(self._used, names)
        self._hardware.record({"at": time.monotonic(), "chips": names, "epoch": self._epoch(names), "used": used})
        await super().reset(chips, out_of_band=out_of_band)

    def _used(self, names: list[str]) -> list[str]:
        pods = self._api.list(f"/api/v1/pods?fieldSelector=spec.nodeName%3D{self._node}")
        return sorted({pod for name in names for pod in on_chips(pods).get(f"{self._node}/{name}", ())})

    def _epoch(self, names: list[str]) -> int:
        """The epoch that was begun last for these chips; 0 when the journal says nothing of it."""
        begun = 0
        for line in self._journal.read_bytes().splitlines():
            record = json.loads(line.partition(b" ")[2])
            if record["kind"] == "begin" and set(record["keys"]) & set(names):
                begun = record["epoch"]
        return begun


async def _run(options: argparse.Namespace) -> None:
    hardware = Hardware(options.hardware, options.node)
    driver = HardwareDriver(options.node, hardware, options.state, ApiReader(options.direct), options.scale)
    await run_agent(
        options.node,
        journal_dir=options.state,
        driver=driver,
        kubeconfig=options.kubeconfig,
        settings=Settings(scale=options.scale),
        stop=stop_on_signals(),
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.node", description=__doc__)
    parser.add_argument("node")
    parser.add_argument("--hardware", type=Path, required=True)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--kubeconfig", required=True, help="the agent's way to the API server")
    parser.add_argument("--direct", type=Path, required=True, help="the way that nothing disturbs")
    parser.add_argument("--scale", type=float, default=0.05)
    options = parser.parse_args()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level="INFO", handlers=[handler], force=True)
    asyncio.run(_run(options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
