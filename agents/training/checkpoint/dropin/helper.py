"""``CheckpointHelper``: Megatron's saves overlapped with computing (MindIO ACP, ``CheckpointHelper``)."""

from __future__ import annotations

import inspect
import logging
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import torch

from agents.training.checkpoint import durable
from agents.training.checkpoint.dropin import api, checker
from agents.training.checkpoint.errors import CheckpointError
from agents.training.checkpoint.saver import Pending

log = logging.getLogger("belay.checkpoint")

TRACKER_S = 300
_NOTIFY = "notify_callback"


class CheckpointHelper:
    """One instance per process: the first ``rank`` counts."""

    _only: CheckpointHelper | None = None

    def __new__(cls, rank: int) -> Self:
        if cls._only is None:
            cls._only = super().__new__(cls)
            cls._only._begin(rank)
        return cls._only  # type: ignore[return-value]

    def _begin(self, rank: int) -> None:
        self.rank = rank
        self._guard = threading.Lock()
        self._copies: list[Pending] = []
        self._works: list[Future[Any]] = []
        self._told: list[threading.Event] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint-helper")
        self._stream: Any = None

    def save_model_checkpoint(self, name: str | list[str], state: Mapping[str, Any]) -> None:
        """Save under one or several names, while the caller continues; see :meth:`wait_d2h_finished`.

        Raises ``ValueError`` for names over 1024 characters, ``TypeError`` for anything else.
        """
        paths = [api.path_of(one) for one in (name if isinstance(name, list) else [name])]
        if not paths or any(len(str(path)) > api.PATH_LIMIT for path in paths):
            raise ValueError(f"between one name and names of at most {api.PATH_LIMIT} characters are needed")
        pending = api.saver_of_process().save_async(state, paths[0], paths[1:])
        with self._guard:
            self._copies.append(pending)

    def save_optimizer_checkpoint(self, name: str, get_parameter_state: Callable[..., Any]) -> None:
        """Save what ``get_parameter_state`` returns, called by another thread. A parameter ``notify_callback``
        is to be called as soon as the device's memory may change again.

        Raises ``ValueError`` for a function with other parameters.
        """
        target = api.path_of(name)
        if len(str(target)) > api.PATH_LIMIT:
            raise ValueError(f"the name has {len(str(target))} characters; {api.PATH_LIMIT} are allowed")
        names = list(inspect.signature(get_parameter_state).parameters)
        if names not in ([], [_NOTIFY]):
            raise ValueError(f"the function takes {names}; it may take nothing, or {_NOTIFY}")
        freed = threading.Event()

        def work() -> None:
            try:
                state = get_parameter_state(notify_callback=freed.set) if names else get_parameter_state()
                if state is not None:
                    api.saver_of_process().save(state, target)
            finally:
                freed.set()

        with self._guard:
            self._told.append(freed)
            self._works.append(self._thread.submit(work))

    def wait_d2h_finished(self) -> None:
        """Wait until everything queued has been copied, then for all ranks; call it before the optimizer's next step.

        A failed save is logged; training continues.
        """
        if self.wait_copied():
            _barrier()

    def wait_copied(self) -> bool:
        """Wait for this rank's copies only; whether there were any."""
        with self._guard:
            copies, self._copies = self._copies, []
            freed, self._told = self._told, []
            done = [work for work in self._works if work.done()]
            self._works = [work for work in self._works if not work.done()]
        for event in freed:
            event.wait()
        for pending in copies:
            try:
                pending.copied()
            except Exception as error:
                log.error("a checkpoint of rank %s was not saved: %s", self.rank, error)
        for work in done:
            if reason := work.exception():
                log.error("an optimizer checkpoint of rank %s was not saved: %s", self.rank, reason)
        return bool(copies or freed)

    def async_write_tracker_file(
        self,
        iteration: int,
        folder: str,
        count: int,
        tracker: str,
        callback: Callable[[int, Any], object] | None = None,
    ) -> int | None:
        """Write ``iteration`` to the file ``tracker`` once ``folder`` holds ``count`` complete files, within 300 s.

        ``callback(result, iteration)`` is called in either case. ``None`` for wrong arguments, else 1.
        """

        def found(result: int, context: Any) -> None:
            if result == 0:
                durable.write(Path(tracker), memoryview(bytearray(str(iteration).encode())), mode=0o644)
            else:
                log.error("iteration %s is not written to %s: %s", iteration, tracker, os.strerror(-result))
            if callback:
                callback(result, context)

        if not checker.accepts(found, {folder: count}, TRACKER_S):
            return None
        checker.start(found, {Path(os.path.realpath(folder)): count}, iteration, TRACKER_S)
        return 1

    def load_model_checkpoint(self, name: str, load_rank: int, process_group: Any = None) -> Any:
        """Rank ``load_rank`` of the group reads the file, the others get its content. Raises the errors of ``load``
        at every rank.
        """
        if not _distributed():
            return api.load(name)
        box: list[Any] = [None, None]
        if torch.distributed.get_rank() == load_rank:
            try:
                box[0] = api.load(name)
            except Exception as error:
                box[1] = f"rank {load_rank} could not read {name}: {type(error).__name__}: {error}"
        torch.distributed.broadcast_object_list(box, src=load_rank, group=process_group)
        if box[1]:
            raise CheckpointError(box[1])
        return box[0]

    def async_save_checkpoint(self, func: Callable[..., Any], kwargs: Mapping[str, Any]) -> None:
        """Call ``func(**kwargs)`` in the saving thread, after the queued saves."""
        with self._guard:
            self._works.append(self._thread.submit(func, **dict(kwargs)))

    def async_checkpoint_count(self) -> int:
        """Number of saves that are queued or being copied."""
        with self._guard:
            return sum(not work.done() for work in self._works) + sum(not one.copied(0) for one in self._copies)

    def get_checkpoint_copy_stream(self) -> Any:
        """The device's stream for copies in parallel to computing; ``None`` on a host without a device."""
        if self._stream is None and torch.accelerator.is_available():
            self._stream = torch.Stream(torch.accelerator.current_accelerator())
        return self._stream


def _distributed() -> bool:
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())


def _barrier() -> None:
    if _distributed():
        torch.distributed.barrier()
