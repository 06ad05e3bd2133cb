"""The default process group of each generation: formed in a thread that can be abandoned, while the main thread still
leaves the old group, and installed by the main thread.
"""

from __future__ import annotations

import datetime
import functools
import os
import sys
import threading
import time
from collections import deque
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from belay.agents.training.train.native.gloo import Sockets
from belay.agents.training.train.native.kinds import device_for
from belay.agents.training.train.native.lost_waits import LostWaits
from belay.agents.training.train.worker.control import Control
from belay.agents.training.train.worker.interruption import Interrupted
from belay.agents.training.train.worker.store import CoordinatorStore, FormingStore

KEPT, KEPT_SECONDS = 8, 5.0
"""Number of generations whose groups stay referenced, and for how long: an old group may still write into its tensors
while it ends, and its destructor may wait for that. Three threads of each wake a hundred times a second."""


class Groups:
    """Forms and retires process groups. ``rank``: of the whole job; in a group of fewer ranks it has another number.
    ``address``: this node's address for other nodes."""

    def __init__(self, control: Control, rank: int, address: str, timeout: float) -> None:
        self.control, self.rank, self.address = control, rank, address
        self.timeout = datetime.timedelta(seconds=timeout)
        self.sockets = Sockets()
        self._lost_waits = LostWaits()
        self._forming: dict[int, _Forming] = {}
        self._abandoned: list[threading.Thread] = []
        """What connects groups of ended generations, and may wait for ranks that are gone."""
        # the listening thread begins a group, the main thread asks for it
        self._form_lock = threading.Lock()
        self._retired: deque[tuple[float, list[Any]]] = deque()
        """When groups were left, and they."""
        self._made = c10d.ProcessGroupGloo
        self._hook: Any = None
        """``sys.excepthook`` as PyTorch has set it for the present group, around the inner one."""
        self._inner_hook: Any = sys.excepthook
        self._ready: Any = None
        c10d.ProcessGroupGloo = _stand_in(self._made, self._gloo)
        control.freeing.append(self.sockets.shut)
        control.ended.append(self._ended)
        self.device = device_for(accelerator())
        """What stops and restarts this rank's accelerator; None on CPU."""
        if self.device is not None:
            device = self.device
            control.freeing.append(lambda _: device.free())
        control.called.append(self.form)

    def form(self, generation: int) -> _Forming:
        """Start to connect the gloo group of a generation, unless it is being connected."""
        with self._form_lock:
            if generation not in self._forming:
                for old in [number for number in self._forming if number < generation]:
                    self._abandoned.append(self._forming[old].thread)
                    self._retired.append((time.monotonic(), [self._forming.pop(old)]))
                self._forming[generation] = _Forming(self, generation)
            return self._forming[generation]

    def install(self, generation: int, backend: str | None) -> None:
        """Install the group of ``generation`` as the default group. Raises ``Interrupted`` when the generation ends."""
        if self.device is not None:
            self.device.leave()
        self.retire()
        forming = self.form(generation)
        forming.wait()
        if forming.error is not None:
            self.control.check(generation)
            raise Interrupted(f"the group of generation {generation} could not be formed: {forming.error}")
        self._ready = forming.group
        # PyTorch puts a hook of its own around the present one each time: one is enough
        if sys.excepthook is self._hook:
            sys.excepthook = self._inner_hook
        self._inner_hook = sys.excepthook
        try:
            dist.init_process_group(
                backend=backend,
                store=dist.PrefixStore(f"generation/{generation}", forming.store),
                rank=forming.rank,
                world_size=forming.world,
                timeout=self.timeout,
            )
        finally:
            self._ready, self._hook = None, sys.excepthook
        if self.device is not None:
            self.device.made()

    def meet(self, generation: int) -> None:
        """Wait until every rank has come here. Raises ``RuntimeError`` when one was lost."""
        self.form(generation).group.barrier().wait()

    def retire(self) -> None:
        """Drop the default group and all others without waiting for them."""
        world = c10d._world
        if world.pg_map:
            self._retired.append((time.monotonic(), [*world.pg_map, *world.pg_map.values()]))
        c10d._update_default_pg(None)
        for table in (
            world.pg_map,
            world.pg_names,
            world.pg_group_ranks,
            world.pg_backend_config,
            world.pg_to_tag,
            world.tags_to_pg,
            world.pg_coalesce_state,
        ):
            table.clear()
        c10d._unregister_all_process_groups()
        world.group_count = 0
        # of each generation its groups, and what formed the first of them
        with self._form_lock:
            while len(self._retired) > 2 * KEPT:
                _, oldest = self._retired.popleft()
                threading.Thread(target=oldest.clear, name="belay-retire", daemon=True).start()
                del oldest

    def _ended(self, generation: int, left: bool) -> None:
        """Leave nothing behind of the groups before ``generation``: no wait for a lost message, no thread that spins,
        in the end no thread at all."""
        self._lost_waits.end(generation, left, self.sockets.closed(generation))
        with self._form_lock:
            self._abandoned = [thread for thread in self._abandoned if thread.is_alive()]
            connecting = [thread.native_id for thread in self._abandoned if thread.native_id and _connects(thread)]
        if not left and _connects(threading.main_thread()):
            # a further group of the script: one of its ranks died before it came. The kernel's number of the main
            # thread is that of the process; Python's is stale after a fork
            connecting.append(os.getpid())
        self._lost_waits.unconnected(connecting)
        if left:
            self.sockets.quiet()
        while (oldest := self._left_long_ago()) is not None:
            oldest.clear()
        self.sockets.forget()

    def _left_long_ago(self) -> list[Any] | None:
        """The oldest groups, once they need not be kept."""
        with self._form_lock:
            if not self._retired or time.monotonic() - self._retired[0][0] < KEPT_SECONDS:
                return None
            return self._retired.popleft()[1]

    def _gloo(self, store: Any, rank: int, size: int, *args: Any, **kwargs: Any) -> Any:
        """Replaces ``ProcessGroupGloo``: returns the default group, which exists already; makes others on this node's
        address."""
        ready, self._ready = self._ready, None
        return ready if ready is not None else self.make(store, rank, size, self.control.joined)

    def make(self, store: Any, rank: int, size: int, generation: int) -> Any:
        """Return a connected gloo group of these ranks."""
        options = self._made._Options()
        device = functools.partial(self._made.create_device, hostname=self.address, lazy_init=False)
        options._devices = [self.sockets.device(generation, device)]
        options._timeout = self.timeout
        made = self._made(store, rank, size, options)
        self.sockets.connected(generation)
        return made


def _stand_in(made: Any, make: Any) -> Any:
    """A class that replaces ``made``: calling it makes a group, and groups are instances of it."""

    class StandIn(type):
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return make(*args, **kwargs)

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, made)

        def __getattr__(cls, name: str) -> Any:
            return getattr(made, name)

    return StandIn("ProcessGroupGloo", (), {})


class _Forming:
    """A group that is being connected in a thread."""

    def __init__(self, groups: Groups, generation: int) -> None:
        active = groups.control.active(generation)
        self.rank, self.world = active.index(groups.rank), len(active)
        self.store = CoordinatorStore(groups.control, generation)
        self.group: Any = None
        self.error: str | None = None
        self._generation = generation
        self._control = groups.control
        self._groups = groups
        self._done = threading.Event()
        self.thread = threading.Thread(target=self._make, name=f"belay-form-{generation}", daemon=True)
        self.thread.start()

    def wait(self) -> None:
        """Wait until it is connected or has failed. Raises ``Interrupted`` when its generation ends, abandoning the
        thread."""
        while not self._done.wait(0.01):
            self._control.check(self._generation)
        self._control.check(self._generation)

    def _make(self) -> None:
        groups = self._groups
        try:
            store = FormingStore(self._control, self._generation, self.rank, self.world)
            prefixed = dist.PrefixStore(f"gloo/{self._generation}", store)
            self.group = groups.make(prefixed, self.rank, self.world, self._generation)
        except BaseException as error:
            # not the exception: its frames hold the device of the group, and this object holds it
            self.error = f"{type(error).__name__}: {error}"
        finally:
            self._done.set()


def _connects(thread: threading.Thread) -> bool:
    """Whether a thread connects a group inside of gloo, and does not ask the store for addresses."""
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and frame.f_code is Groups.make.__code__


def devices(model_device: str) -> str | None:
    """The backend for a kind of device: gloo plus the accelerator's own, so that state can be sent by either."""
    return {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl", "npu": "cpu:gloo,npu:hccl"}.get(model_device)


def accelerator() -> str:
    """The kind of accelerator of this machine; cpu without one."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found.type if found is not None else "cpu"
