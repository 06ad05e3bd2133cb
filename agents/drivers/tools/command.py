"""Run a program of the driver, bounded in time and in output."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Final

from agents.drivers.base import DriverError
from agents.processes import kill_session

LIMIT: Final = 1 << 20
"""Maximum bytes of output; more is an error (component/ascend-common/devmanager/hccn)."""

SECONDS: Final = 10.0
AT_ONCE: Final = 4
"""Programs that run at the same time."""

PASSED_ON: Final = ("PATH", "LD_LIBRARY_PATH")
"""Variables passed to the program; the rest of the agent's environment is not."""

_SHOWN: Final = 200


class Runner:
    """Run one program with arguments. Raises DriverError: absent, failed, too slow, or too much output."""

    def __init__(
        self, program: str, *, seconds: float = SECONDS, limit: int = LIMIT, env: Mapping[str, str] | None = None
    ) -> None:
        self.program = program
        self._seconds, self._limit = seconds, limit
        given = os.environ if env is None else env
        self._env = {name: given[name] for name in PASSED_ON if name in given}
        self._free = asyncio.Semaphore(AT_ONCE)

    async def run(self, arguments: Sequence[str]) -> str:
        """Return the program's output as text."""
        async with self._free:
            try:
                process = await asyncio.create_subprocess_exec(
                    self.program, *arguments, env=self._env, stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
                    start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                raise DriverError(f"{self.program}: cannot be run: {error.strerror}") from error
            try:
                async with asyncio.timeout(self._seconds):
                    output = await self._read(process)
                    code = await process.wait()
            except TimeoutError:
                raise DriverError(f"{self._said(arguments)}: no answer in {self._seconds:g} s") from None
            finally:
                await kill_session(process)
        text = output.decode("utf-8", "replace")
        if code != 0:
            raise DriverError(f"{self._said(arguments)}: exit code {code}: {' '.join(text.split())[:_SHOWN]}")
        return text

    async def _read(self, process: asyncio.subprocess.Process) -> bytes:
        assert process.stdout is not None
        parts, size = [], 0
        while part := await process.stdout.read(65_536):
            size += len(part)
            if size > self._limit:
                raise DriverError(f"{self.program}: printed more than {self._limit} bytes")
            parts.append(part)
        return b"".join(parts)

    def _said(self, arguments: Sequence[str]) -> str:
        return " ".join((self.program, *arguments))[:_SHOWN]


def pairs(text: str) -> dict[str, str]:
    """Parse ``key : value`` lines into a dictionary; other lines are skipped, the first of equal keys counts."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon and key.strip():
            found.setdefault(key.strip(), value.strip())
    return found


def tables(text: str) -> list[list[list[str]]]:
    """Parse tables drawn with ``|`` and ``+--+`` into rows of cells; a line outside a table ends it."""
    found: list[list[list[str]]] = []
    inside = False
    for raw in text.splitlines():
        line = raw.strip()
        if line.startswith("|") and line.endswith("|") and len(line) > 1:
            if not inside:
                found.append([])
                inside = True
            found[-1].append([cell.strip() for cell in line[1:-1].split("|")])
        elif not line.startswith("+"):
            inside = False
    return found


__all__ = ["AT_ONCE", "LIMIT", "Runner", "pairs", "tables"]
