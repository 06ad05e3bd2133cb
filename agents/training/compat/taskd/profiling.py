"""Profiling of one rank without MSPTI: steps, checkpoints, data, forward passes and collectives, by torch's hooks.

Records are markers in the JSON of the native library, a start and an end with one Id. A hook that is switched off costs
one comparison.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from belay.agents.training.compat.bus import codes
from belay.agents.training.compat.taskd.group_info import comm_name, dump_group_info
from belay.agents.training.compat.taskd.profiling_files import Records

log = logging.getLogger(__name__)

MARKER_KIND: Final = 1
START_FLAG, END_FLAG = 2, 4
DEFAULT, COMMUNICATION = "default", "communication"
GROUPS_AFTER: Final = 5
"""Steps after which the parallel groups are written: all of them exist by then."""
COLLECTIVES: Final = (
    "all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter",
    "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "barrier", "send", "recv", "isend", "irecv",
)  # fmt: skip


class Profiler:
    """The hooks of a process and their switches. ``default``: steps, checkpoints, data, forward passes."""

    def __init__(self, records: Records, device: int = 0) -> None:
        self.records, self._device = records, device
        self.default = self.communication = False
        self._ids = itertools.count(1)
        self._installed = False
        self._failed = False
        self._step_began = 0
        self._steps = 0

    def command(self, code: int) -> int:
        """Carry out a command 7xx; the resulting state 14xx. Raises ValueError for another command."""
        if code not in codes.PROFILING_COMMANDS:
            raise ValueError(f"{code} is not a command of profiling")
        self.default = code in (codes.PROFILING_DEFAULT, codes.PROFILING_ALL)
        self.communication = code in (codes.PROFILING_COMMUNICATION, codes.PROFILING_ALL)
        if self.default or self.communication:
            self._install()
            self.records.start()
        else:
            self._step_began = 0
            self.records.stop()
        bad = self._failed or bool(self.records.trouble)
        state = codes.PROFILING_STATE
        state += (20 if bad else 10) if self.default else 0
        return state + ((2 if bad else 1) if self.communication else 0)

    def _install(self) -> None:
        if self._installed:
            return
        self._installed = True
        if "torch" not in sys.modules:
            log.warning("profiling is on, but this process has not imported torch: there is nothing to record")
            self._failed = True
            return
        for hook in (self._hook_steps, self._hook_saves, self._hook_data, self._hook_forward, self._hook_collectives):
            try:
                hook()
            except (ImportError, AttributeError) as error:
                log.warning("%s: this version of torch cannot be hooked: %s", hook.__name__.strip("_"), error)
                self._failed = True

    def mark(self, name: str, domain: str, began: int, ended: int) -> None:
        """Record a span; times in nanoseconds since 1970."""
        found = next(self._ids)
        where = {
            "Pt": {"ProcessId": os.getpid(), "ThreadId": threading.get_native_id()},
            "Ds": {"DeviceId": self._device, "StreamId": 0},
        }
        for flag, at in ((START_FLAG, began), (END_FLAG, ended)):
            self.records.put({
                "Kind": MARKER_KIND, "Flag": flag, "SourceKind": 0, "Timestamp": at, "Id": found,
                "MsptiObjectId": where, "Name": name, "Domain": domain,
            })  # fmt: skip

    def _around(self, function: Callable[..., Any], name: str, domain: str) -> Callable[..., Any]:
        """The function, recorded while its domain is on."""
        if getattr(function, "_profiled", False):
            return function
        communication = domain == COMMUNICATION

        @functools.wraps(function)
        def recorded(*args: Any, **named: Any) -> Any:
            if not (self.communication if communication else self.default):
                return function(*args, **named)
            began = time.time_ns()
            try:
                return function(*args, **named)
            finally:
                shown = collective(name, named.get("group")) if communication else name
                self.mark(shown, domain, began, time.time_ns())

        recorded._profiled = True  # type: ignore[attr-defined]
        return recorded

    def _hook_steps(self) -> None:
        optimizer = importlib.import_module("torch.optim.optimizer")

        def stepped(*_: Any) -> None:
            if not self.default:
                return
            now = time.time_ns()
            if self._step_began:
                self._steps += 1
                self.mark(f"step {self._steps}", DEFAULT, self._step_began, now)
                if self.communication and self._steps == GROUPS_AFTER:
                    dump_group_info()
            self._step_began = now

        optimizer.register_optimizer_step_post_hook(stepped)

    def _hook_saves(self) -> None:
        torch: Any = importlib.import_module("torch")
        torch.save = self._around(torch.save, "save_checkpoint", DEFAULT)

    def _hook_data(self) -> None:
        base = importlib.import_module("torch.utils.data.dataloader")._BaseDataLoaderIter
        base.__next__ = self._around(base.__next__, "dataloader", DEFAULT)

    def _hook_forward(self) -> None:
        parallel = importlib.import_module("torch.nn.parallel").DistributedDataParallel
        parallel.forward = self._around(parallel.forward, "forward", DEFAULT)

    def _hook_collectives(self) -> None:
        dist = importlib.import_module("torch.distributed")
        c10d = importlib.import_module("torch.distributed.distributed_c10d")
        for name in COLLECTIVES:
            if hasattr(c10d, name):
                recorded = self._around(getattr(c10d, name), name, COMMUNICATION)
                setattr(c10d, name, recorded)
                if hasattr(dist, name):
                    setattr(dist, name, recorded)


def collective(name: str, group: Any) -> str:
    """The name of a collective's marker, as the native library writes it: operation and communicator in JSON, so that
    times can be summed by parallel group. ``group`` None: all ranks.
    """
    communicator = ""
    try:
        c10d = importlib.import_module("torch.distributed.distributed_c10d")
        chosen = c10d.GroupMember.WORLD if group is None else group
        communicator = comm_name(chosen, c10d.get_rank(chosen))
    except (ImportError, AttributeError, RuntimeError, ValueError):
        pass  # the group is gone, or of a kind without a name
    return json.dumps({"opName": name, "groupName": communicator}, separators=(",", ":"))
