"""Links between inference clusters on a node: the agent passes orders to processes and reads their answers.

A process with registered memory runs in a container and reaches no API server. It shares a folder of the host with the
agent, ``<root>/<namespace>.<pod>`` (a pod mounts it with ``subPathExpr: $(POD_NAMESPACE).$(POD_NAME)``) or
``<root>/cluster-<number>``: there the agent puts ``links.json``, and the process (``belay.agents.datadist``) answers
with ``report.json`` while it holds the lock of the folder. Without an API server the files stay unchanged.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import random
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from belay.agents.common import hostfiles
from belay.agents.common.client import ApiServer
from belay.agents.common.clock import Clock
from belay.agents.common.log import Log
from belay.agents.node.link_trust import LinkTrust
from belay.agents.node.publisher import Publisher
from belay.engine.model.links import EndOrders, EndReport
from belay.engine.wire import links as wire
from belay.engine.wire.errors import WireError
from belay.engine.wire.names import SYSTEM

ROOT: Final = Path("/run/belay/links")
PERIOD: Final = 1.0
"""Seconds between two looks at what processes answer."""
RESEND: Final = 600.0
"""Seconds after which an unchanged report is written again, in case it was removed."""
FOLDER_MODE: Final = 0o1777
"""Any user of a container may write the answer; only the agent may change the orders."""
_log = Log("links")


class LinkFolders:
    """The folders under one root. Raises OSError for what the disk or a hostile link does not allow."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root

    def order(self, end: EndOrders) -> bool:
        """Write one process' orders; False when the file has them already."""
        self._root.mkdir(parents=True, exist_ok=True)
        folder = self._root / end.holder
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
        handle = hostfiles.open_folder(folder)
        try:
            os.fchmod(handle, FOLDER_MODE)
            text = wire.end_text(end).encode()
            if hostfiles.read(handle, wire.ORDERS_FILE, wire.MAX_FILE) == text:
                return False
            hostfiles.replace(handle, wire.ORDERS_FILE, text, durable=False)
        finally:
            os.close(handle)
        return True

    def report(self, end: EndOrders) -> EndReport:
        """One process' answer, including its problem."""
        silent = EndReport(end.cluster, end.holder, alive=False)
        try:
            handle = hostfiles.open_folder(self._root / end.holder)
            try:
                if not _held(handle):
                    return silent
                content = hostfiles.read(handle, wire.REPORT_FILE, wire.MAX_FILE)
            finally:
                os.close(handle)
            if content is None:
                return EndReport(end.cluster, end.holder, alive=True)
            if len(content) > wire.MAX_FILE:
                raise OSError(errno.EFBIG, "is too long", wire.REPORT_FILE)
            answer = wire.parse_end_report(end.holder, content.decode())
        except (OSError, WireError, UnicodeDecodeError) as error:
            return EndReport(end.cluster, end.holder, alive=False, problem=f"its answer cannot be read: {error}")
        return EndReport(end.cluster, end.holder, True, answer.links, answer.problem)

    def withdraw(self, holder: str) -> None:
        """Nothing is ordered there any more: the process, if there is one, ends what it made."""
        folder = self._root / holder
        try:
            handle = hostfiles.open_folder(folder)
        except FileNotFoundError:
            return
        try:
            hostfiles.remove(handle, wire.ORDERS_FILE)
            if _held(handle):
                return
            for name in (wire.REPORT_FILE, wire.LOCK_FILE):
                hostfiles.remove(handle, name)
        finally:
            os.close(handle)
        with contextlib.suppress(OSError):
            folder.rmdir()  # what others put there stays

    def standing(self) -> list[str]:
        """Holders that have a folder, including those of an earlier agent process."""
        try:
            with os.scandir(self._root) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except FileNotFoundError:
            return []


class LinkPart:
    """Hands a node's orders for links to its processes and reports the state of the links. Runs beside the agent.

    ``trust`` says which orders are believed; without it all are.
    """

    def __init__(
        self,
        node: str,
        cluster: ApiServer,
        root: Path,
        clock: Clock | None = None,
        chance: random.Random | None = None,
        trust: LinkTrust | None = None,
    ) -> None:
        self._trust = trust
        self._refused = ""
        self._node, self._cluster, self._clock = node, cluster, clock or Clock()
        self._folders = LinkFolders(root)
        self._wanted: dict[str, EndOrders] | None = None
        self._ends: tuple[EndReport, ...] = ()
        self._changed = asyncio.Event()
        self._failing: dict[str, str] = {}
        self._publisher = Publisher(
            f"links of {node}",
            build=self._body,
            write=cluster.put_config_map,
            period=lambda: RESEND,
            spacing=1.0,
            clock=self._clock,
            chance=chance or random.Random(),
        )

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow())
            publishing: asyncio.Task[None] | None = None
            while True:
                if self._wanted is not None:
                    self._ends = await asyncio.to_thread(self._reports, self._wanted)
                    # a node that never had links gets no ConfigMap for them
                    if self._ends or publishing is not None:
                        self._publisher.update(self._ends)
                        publishing = publishing or group.create_task(self._publisher.run())
                await self._clock.wait(self._changed, PERIOD if self._wanted else 60 * PERIOD)

    async def _follow(self) -> None:
        async for body in self._cluster.config_map(SYSTEM, wire.name_of(self._node)):
            self._take(body)

    def _take(self, body: Mapping[str, Any] | None) -> None:
        if self._trust is not None and (problem := self._trust.problem(body)):
            _log.warning("orders for links are refused, the last good ones stay", node=self._node, reason=problem)
            self._refused = f"its orders are refused: {problem}"
            self._changed.set()
            return
        try:
            ends = wire.parse_orders(body)[1] if body is not None else ()
        except WireError as error:
            _log.warning("orders for links are ignored, the last good ones stay", node=self._node, error=error)
            return
        self._refused = ""
        self._wanted = {end.holder: end for end in ends}
        self._changed.set()

    def _reports(self, wanted: Mapping[str, EndOrders]) -> tuple[EndReport, ...]:
        """Write the orders, remove others, and read the answers."""
        standing: list[str] = []
        self._try("the root folder", lambda: standing.extend(self._folders.standing()))
        for holder in standing:
            if holder not in wanted:
                self._try(holder, partial(self._folders.withdraw, holder))
        ends = []
        for holder, end in sorted(wanted.items()):
            problem = self._try(holder, partial(self._folders.order, end)) or self._refused
            report = self._folders.report(end)
            if problem:
                report = EndReport(end.cluster, holder, report.alive, report.links, problem)
            ends.append(report)
        return tuple(ends)

    def _try(self, holder: str, act: Callable[[], object]) -> str:
        """Do something in a folder; the first of consecutive failures is logged. Returns the problem."""
        try:
            act()
        except OSError as error:
            problem = f"its folder cannot be used: {error.strerror or error}"
            if self._failing.get(holder) != problem:
                self._failing[holder] = problem
                _log.warning("folder for links cannot be used", holder=holder, error=error)
            return problem
        self._failing.pop(holder, None)
        return ""

    def _body(self) -> dict[str, Any]:
        return wire.report_map(self._node, self._ends)


def _held(handle: int) -> bool:
    """Whether a process keeps the links of an open folder: it holds the lock for as long as it lives."""
    try:
        number = os.open(wire.LOCK_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=handle)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(number)
    return False
