"""Registration with kubelet: one server per resource, registered again whenever kubelet has restarted.

Source: component/ascend-device-plugin/pkg/server/{manager,server}.go.
"""

from __future__ import annotations

import asyncio
import os
import random
import stat
from collections.abc import Callable, Mapping
from typing import Final, Generic, TypeVar

from belay.agents.common.clock import Clock
from belay.agents.common.log import Log
from belay.agents.kubelet.server import KUBELET_SOCKET, ResourceServer
from belay.agents.kubelet.settings import PluginSettings
from belay.agents.node.settings import MAX_TEXT
from belay.agents.node.state import NodeState

#: Seconds within which kubelet calls ListAndWatch of a registered server; then it is registered again.
LISTENS: Final = 15.0
#: After so many registrations without a call the process ends, so that its supervisor restarts it.
GIVE_UP: Final = 15
_BACKOFF_CEILING: Final = 30.0
_log = Log("kubelet")


Offered = TypeVar("Offered")


class Registrar(Generic[Offered]):
    """Keep ``servers`` (resource → server) in line with ``offers`` and with the running kubelet. ``end`` ends the
    process."""

    def __init__(
        self,
        node: str,
        settings: PluginSettings,
        clock: Clock,
        chance: random.Random,
        offers: Callable[[], Mapping[str, Offered]],
        make: Callable[[Offered], ResourceServer],
        end: Callable[[], None],
    ) -> None:
        self._node, self._settings, self._clock, self._chance = node, settings, clock, chance
        self._offers, self._make, self._end = offers, make, end
        self._again = asyncio.Event()
        self._kubelet: tuple[int, int] | None = None
        self._forced = False
        self._vain = 0
        self.servers: dict[str, ResourceServer] = {}

    def check_soon(self) -> None:
        """Check without delay whether every offer is registered."""
        self._again.set()

    def register_again(self) -> None:
        """Restart and register all servers."""
        self._forced = True
        self._again.set()

    async def close(self) -> None:
        """Stop serving."""
        await asyncio.gather(*(server.stop() for server in self.servers.values()), return_exceptions=True)
        self.servers.clear()

    async def run(self, state: NodeState) -> None:
        """Check kubelet's socket periodically. Never returns."""
        failures = 0
        while True:
            try:
                await self._check()
                failures = 0
                state.problems.pop("kubelet", None)
            except OSError as error:
                failures += 1
                self._forced = True
                state.problems["kubelet"] = f"kubelet: {error.strerror or error}"[:MAX_TEXT]
                if failures in (1, 10, 100):
                    _log.warning("kubelet cannot be reached", node=self._node, attempt=failures, error=error)
            pause = self._clock.due(self._settings.watch) - self._clock.monotonic()
            if failures:
                pause = self._settings.watch
                pause = self._chance.uniform(pause, min(_BACKOFF_CEILING, pause * 2.0 ** min(failures, 8)))
            await self._clock.wait(self._again, pause)

    async def _check(self) -> None:
        identity = self._kubelet_socket()
        wanted = self._offers()
        # cleared before the first await, so that a request that arrives meanwhile is not lost
        new, self._forced = self._forced or identity != self._kubelet, False
        for resource in [resource for resource in self.servers if resource not in wanted]:
            # kubelet keeps counting devices that it has received; an empty list withdraws them
            self.servers[resource].changed()
        for resource, offer in wanted.items():
            server = self.servers.get(resource)
            if server is None:
                server = self.servers[resource] = self._make(offer)
            now = self._clock.monotonic()
            silent = not server.connected and now - server.registered_at > LISTENS
            if new or silent or not server.listening:
                if silent and server.registered_at:
                    self._count_vain()
                await server.start()
                await server.register()
            elif server.connected:
                self._vain = 0
        self._kubelet = identity

    def _count_vain(self) -> None:
        self._vain += 1
        if self._vain >= GIVE_UP:
            _log.error("kubelet does not listen to what it registers; the agent ends", node=self._node)
            self._end()

    def _kubelet_socket(self) -> tuple[int, int]:
        """Return the socket's identity: a restarted kubelet creates a new one. Raises OSError."""
        folder, path = self._settings.folder, self._settings.folder / KUBELET_SOCKET
        for one in (folder, path):
            found = one.lstat()
            if stat.S_ISLNK(found.st_mode):
                raise OSError(None, f"{one} is a symbolic link")
            if found.st_uid not in (0, os.getuid()):
                raise OSError(None, f"{one} belongs to user {found.st_uid}, not to root")
        if not stat.S_ISSOCK(found.st_mode):
            raise OSError(None, f"{path} is not a socket")
        return found.st_ino, found.st_ctime_ns
