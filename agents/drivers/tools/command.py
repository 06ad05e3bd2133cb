"""Run a program of the driver, bounded in time and in output."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Final

from belay.agents.common.processes import DRAIN_SECONDS
from belay.agents.drivers.base import DriverError

LIMIT: Final = 1 << 20
"""Maximum bytes of output; more is an error (component/ascend-common/devmanager/hccn)."""

SECONDS: Final = 10.0
AT_ONCE: Final = 4
"""Programs that run at the same time."""

PASSED_ON: Final = ("PATH", "LD_LIBRARY_PATH")
"""Variables passed to the program; the rest of the agent's environment is not."""

_SHOWN: Final = 200
_PART: Final = 65_536
_LOOK: Final = 0.02


class Runner:
    """Run one program with arguments. Raises DriverError: absent, failed, too slow, or too much output.

    An exporter runs some fifty programs a minute, so each is followed by the loop itself: asyncio's own subprocesses
    take several wake-ups more, and up to Python 3.11 a thread, for every one.
    """

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
                process = subprocess.Popen(
                    [self.program, *arguments], env=self._env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT, bufsize=0, start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                raise DriverError(f"{self.program}: cannot be run: {error.strerror}") from error
            assert process.stdout is not None
            try:
                async with asyncio.timeout(self._seconds):
                    output = await self._read(process.stdout.fileno())
                    code = await _ended(process)
            except TimeoutError:
                raise DriverError(f"{self._said(arguments)}: no answer in {self._seconds:g} s") from None
            finally:
                with process.stdout:
                    await _kill(process)
        text = output.decode("utf-8", "replace")
        if code != 0:
            raise DriverError(f"{self._said(arguments)}: exit code {code}: {' '.join(text.split())[:_SHOWN]}")
        return text

    async def _read(self, pipe: int) -> bytes:
        """All that is written into the pipe, until the last writer has closed it."""
        loop = asyncio.get_running_loop()
        parts, size, whole = list[bytes](), 0, loop.create_future()
        os.set_blocking(pipe, False)

        def take() -> None:
            nonlocal size
            with contextlib.suppress(BlockingIOError):
                part = os.read(pipe, _PART)
                parts.append(part)
                size += len(part)
                if (not part or size > self._limit) and not whole.done():
                    whole.set_result(None)

        loop.add_reader(pipe, take)
        try:
            await whole
        finally:
            loop.remove_reader(pipe)
        if size > self._limit:
            raise DriverError(f"{self.program}: printed more than {self._limit} bytes")
        return b"".join(parts)

    def _said(self, arguments: Sequence[str]) -> str:
        return " ".join((self.program, *arguments))[:_SHOWN]


async def _ended(process: subprocess.Popen[bytes]) -> int:
    """The exit code, once there is one. A program that has closed its output has mostly ended with it."""
    code = process.poll()
    if code is not None:
        return code
    loop = asyncio.get_running_loop()
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:  # a sandbox may forbid the call
        while (code := process.poll()) is None:
            await asyncio.sleep(_LOOK)
        return code
    gone = loop.create_future()

    def take() -> None:
        if not gone.done():
            gone.set_result(None)

    loop.add_reader(handle, take)
    try:
        await gone
    finally:
        loop.remove_reader(handle)
        os.close(handle)
    return process.wait()


async def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a program that has not ended, with its children. Its end is waited for within bounds: a program in an
    uninterruptible call outlives SIGKILL."""
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            await _ended(process)


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
