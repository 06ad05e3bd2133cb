"""Programs of a site that take part in resets: before one, after the driver has answered, and when it is over.

MindCluster compiles such plugins into its device plugin (docs/zh/scheduling/05_developer_guide/
02_dp_hot_reset_plugin_development.md). Here a plugin is a folder of programs named after its hooks,
``<folder>/<pluginName>/PreReset``, ``CustomReset`` and ``AfterReset``, each of which may be missing. The names, their
input, their times and the file that switches them on are MindCluster's:

- every hook reads a JSON list of the ring's chips from its standard input (`Device`);
- ``CustomReset`` reads what went wrong so far from ``HOT_RESET_ERROR``, empty for nothing. It answers with its exit
  code: 0 when the chips are well now, else the first line of its standard error is the error. The next plugin, in
  the order of the configuration, gets that error;
- failures of ``PreReset`` and ``AfterReset`` are reported and change nothing else.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from belay.agents.common.log import Log
from belay.agents.common.processes import kill_session
from belay.agents.drivers.base import DriverError
from belay.agents.drivers.dcmi.library import trusted
from belay.agents.node.settings import MAX_TEXT

FOLDER: Final = Path("/usr/local/hotResetPlugins")
Hook = Literal["PreReset", "CustomReset", "AfterReset"]
#: Seconds that a program may take.
SECONDS: Final[dict[Hook, float]] = {"PreReset": 10.0, "CustomReset": 300.0, "AfterReset": 10.0}
ERROR: Final = "HOT_RESET_ERROR"
MAX_PLUGINS: Final = 8
MAX_OUTPUT: Final = 65_536
PASSED_ON: Final = ("PATH", "LD_LIBRARY_PATH", "NODE_NAME")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_log = Log("agent")


class Device(msgspec.Struct, frozen=True):
    """One chip of the ring as hooks read it; ``tokens_left``: resets that its group has left, -1 unknown."""

    logic: int = msgspec.field(name="LogicID")
    card: int = msgspec.field(name="CardID")
    device: int = msgspec.field(name="DeviceID")
    phy: int = msgspec.field(name="PhyID")
    card_type: str = msgspec.field(name="CardType")
    faulty: bool = msgspec.field(name="IsFaultDev")
    tokens_left: int = msgspec.field(name="TokensLeft")


class HookError(Exception):
    """A hook failed; the text names the hook and the cause."""


class Hooks:
    """Runs hooks. ``trouble`` collects failures other than the reset's own, until it is read."""

    def __init__(self, folder: Path | None, owners: frozenset[int] | None = None) -> None:
        self._folder = folder
        # the agent's user may own the programs too; other users may not write them
        self._owners = frozenset({0, os.getuid()}) if owners is None else owners
        self.trouble = ""

    async def run(self, hook: Hook, plugins: Sequence[str], ring: Sequence[Device]) -> None:
        """Run a hook of every plugin that has it. Never raises."""
        for name in plugins[:MAX_PLUGINS]:
            try:
                await self._call(name, hook, ring, {})
            except HookError as error:
                self._record(str(error))

    async def custom(self, plugins: Sequence[str], ring: Sequence[Device], error: str) -> str:
        """Let every plugin try; what is wrong in the end, empty for nothing. ``error`` is what is wrong now."""
        for name in plugins[:MAX_PLUGINS]:
            try:
                if await self._call(name, "CustomReset", ring, {ERROR: error}):
                    error = ""
            except HookError as answer:
                error = str(answer)
        return error

    def taken(self) -> str:
        """The failures since the last call."""
        trouble, self.trouble = self.trouble, ""
        return trouble

    def _record(self, text: str) -> None:
        _log.warning("a reset's plugin failed", reason=text)
        self.trouble = self.trouble or text[:MAX_TEXT]

    def _program(self, name: str, hook: Hook) -> Path | None:
        if self._folder is None:
            return None
        if not _NAME.fullmatch(name):
            raise HookError(f"{name[:64]!r} cannot name a plugin")
        folder = self._folder / name
        if not folder.is_dir():
            raise HookError(f"plugin {name} is on, but there is no folder {folder}")
        program = folder / hook
        if not program.exists():
            return None
        try:
            trusted(program, self._owners)
        except (DriverError, OSError) as error:
            raise HookError(f"plugin {name}: {error}") from error
        return program

    async def _call(self, name: str, hook: Hook, ring: Sequence[Device], env: dict[str, str]) -> bool:
        """Run one; False when the plugin has no such hook. Raises HookError."""
        program = self._program(name, hook)
        if program is None:
            return False
        _log.info("a reset's plugin runs", plugin=name, hook=hook)
        passed = {key: os.environ[key] for key in PASSED_ON if key in os.environ}
        try:
            process = await asyncio.create_subprocess_exec(
                program, cwd="/", env=passed | env, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise HookError(f"plugin {name}: {program} cannot be run: {error.strerror}") from error
        try:
            async with asyncio.timeout(SECONDS[hook]):
                said, _ = await asyncio.gather(_bounded(process), _send_input(process, msgspec.json.encode(ring)))
                code = await process.wait()
        except TimeoutError:
            raise HookError(f"plugin {name}: {hook} did not end in {SECONDS[hook]:g} s and was killed") from None
        finally:
            await kill_session(process)
        if code:
            first = said.decode("utf-8", "replace").strip().partition("\n")[0].strip()
            raise HookError(f"plugin {name}: {first or f'{hook} ended with code {code}'}"[:MAX_TEXT])
        return True


async def _send_input(process: asyncio.subprocess.Process, data: bytes) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(data)
        await process.stdin.drain()
    except (BrokenPipeError, ConnectionResetError):
        # the program did not read its input
        return
    finally:
        process.stdin.close()


async def _bounded(process: asyncio.subprocess.Process) -> bytes:
    """Read the program's output and keep its beginning; the rest is discarded so that the program never blocks."""
    assert process.stderr is not None
    kept = b""
    while part := await process.stderr.read(4096):
        kept = (kept + part)[:MAX_OUTPUT]
    return kept
