"""``belay containers run`` and ``belay containers status``, as functions.

Flags and defaults: docs/zh/scheduling 05_developer_guide (container manager).
"""

from __future__ import annotations

import asyncio
import logging
import stat
import sys
import time
from pathlib import Path
from typing import Final, Literal, TextIO

import msgspec

from belay.agents.common.clock import Clock
from belay.agents.common.log import JsonLines, Log
from belay.agents.common.logfile import LogFile
from belay.agents.common.stopping import run_until, stop_on_signals
from belay.agents.containers import status
from belay.agents.containers.codes import Codes, custom, shipped
from belay.agents.containers.containerd import Containerd
from belay.agents.containers.docker import Docker
from belay.agents.containers.manager import Manager
from belay.agents.containers.runtime import Runtime
from belay.agents.containers.states import STRATEGIES, Strategy
from belay.agents.drivers.base import DriverError
from belay.agents.drivers.choice import make_driver

RuntimeName = Literal["docker", "containerd"]
SOCKETS: Final[dict[str, Path]] = {
    "docker": Path("/run/docker.sock"), "containerd": Path("/run/containerd/containerd.sock"),
}  # fmt: skip
LEVELS: Final = {-1: logging.DEBUG, 0: logging.INFO, 1: logging.WARNING, 2: logging.ERROR, 3: logging.CRITICAL}
_log = Log("containers")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The manager's options. An empty ``socket`` means the runtime's default; an empty ``log_file``, standard error."""

    driver: str = "dcmi"
    runtime: RuntimeName = "docker"
    socket: str = ""
    strategy: Strategy = "never"
    fault_config: str = ""
    state: str = str(status.FILE)
    log_file: str = ""
    log_level: int = 0
    log_days: int = 7
    log_backups: int = 30

    def __post_init__(self) -> None:
        if self.runtime not in SOCKETS:
            raise ValueError(f"runtime {self.runtime!r} is unknown; use docker or containerd")
        if self.strategy not in STRATEGIES:
            raise ValueError(f"strategy {self.strategy!r} is unknown; use one of {', '.join(STRATEGIES)}")
        for name, value, low, high in (
            ("log level", self.log_level, -1, 3), ("log days", self.log_days, 7, 700),
            ("log backups", self.log_backups, 1, 180),
        ):  # fmt: skip
            if not low <= value <= high:
                raise ValueError(f"{name} {value} is out of range; use {low} to {high}")


def run(options: Options) -> int:
    """Run until SIGINT or SIGTERM. Returns the exit code: 2 when it could not start."""
    try:
        _log_to(options)
        asyncio.run(_serve(options))
    except (DriverError, OSError, ValueError) as error:
        _log.error("container manager cannot start", error=error)
        return 2
    return 0


def show(file: Path, out: TextIO = sys.stdout) -> int:
    """Print the table of a state file. Returns 2 when there is none to read."""
    try:
        rows = status.read(file)
    except status.StatusError as error:
        sys.stderr.write(f"belay: {error}\n")
        return 2
    out.write(status.table(rows, time.time()))
    return 0


def checked_socket(options: Options) -> Path:
    """The runtime's socket. Raises ValueError when it is a link or not a socket."""
    socket = Path(options.socket) if options.socket else SOCKETS[options.runtime]
    try:
        mode = socket.lstat().st_mode
    except OSError as error:
        raise ValueError(f"socket {socket}: {error.strerror}; is {options.runtime} running?") from error
    if stat.S_ISLNK(mode):
        raise ValueError(f"socket {socket} is a link; name the socket itself")
    if not stat.S_ISSOCK(mode):
        raise ValueError(f"{socket} is not a socket")
    return socket


async def _serve(options: Options) -> None:
    codes: Codes = custom(Path(options.fault_config)) if options.fault_config else shipped()
    socket = checked_socket(options)
    runtime: Runtime = Docker(socket) if options.runtime == "docker" else Containerd(socket)
    driver = make_driver(options.driver, "host")
    manager = Manager(driver, runtime, codes, options.strategy, Clock(), file=Path(options.state))
    try:
        await run_until(stop_on_signals(), _work(manager))
    finally:
        await runtime.close()
        if (close := getattr(driver, "close", None)) is not None:
            await close()


async def _work(manager: Manager) -> None:
    await manager.prepare()
    await manager.run()


def _log_to(options: Options) -> None:
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if options.log_file:
        handler = LogFile(Path(options.log_file), backups=options.log_backups, days=options.log_days)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=LEVELS[options.log_level], handlers=[handler], force=True)
