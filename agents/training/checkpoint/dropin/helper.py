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

from belay.agents.training.checkpoint import durable
from belay.agents.training.checkpoint.dropin import api, process
from belay.agents.training.checkpoint.errors import CheckpointError
from belay.agents.training.checkpoint.saver import Pending

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

    def save_model_checkpoint(self, checkpoint_name: str | list[str], model: Mapping[str, Any]) -> None:
        """Save under one or several names, while the caller continues; see :meth:`wait_d2h_finished`.

        Raises ``ValueError`` for names over 1024 characters, ``TypeError`` for anything else.
        """
        paths = _names(checkpoint_name)
        pending = api.saver_of_process().save_async(model, paths[0], paths[1:])
        with self._guard:
            self._copies.append(pending)

    def save_optimizer_checkpoint(
        self, checkpoint_name: str | list[str], get_parameter_state_func: Callable[..., Any]
    ) -> None:
        """Save what ``get_parameter_state_func`` returns, called by another thread; nothing when that is ``None``. A
        parameter ``notify_callback`` is to be called as soon as the device's memory may change again.

        Raises ``ValueError`` for a function with other parameters, and for names over 1024 characters.
        """
        paths = _names(checkpoint_name)
        names = list(inspect.signature(get_parameter_state_func).parameters)
        if names not in ([], [_NOTIFY]):
            raise ValueError(f"the function takes {names}; it may take nothing, or {_NOTIFY}")
        freed = threading.Event()

        def work() -> None:
            try:
                given = {_NOTIFY: freed.set} if names else {}
                if (state := get_parameter_state_func(**given)) is not None:
                    api.saver_of_process().save(state, paths[0], paths[1:])
            finally:
                freed.set()

        with self._guard:
            self._told.append(freed)
            self._works.append(self._thread.submit(work))

    def async_save_model_checkpoint(self, checkpoint_name: str | list[str], model: Mapping[str, Any]) -> None:
        """The same as :meth:`save_model_checkpoint`, which adaptations also call by this name."""
        self.save_model_checkpoint(checkpoint_name, model)

    def async_save_optimizer_checkpoint(
        self, checkpoint_name: str | list[str], get_parameter_state_func: Callable[..., Any], has_sig_para: bool = False
    ) -> None:
        """The same as :meth:`save_optimizer_checkpoint`; whether the function takes ``notify_callback`` is asked of the
        function."""
        self.save_optimizer_checkpoint(checkpoint_name, get_parameter_state_func)

    def rapid_load_model_checkpoint(self, checkpoint_name: str, load_rank: int, process_group: Any) -> Any:
        """The same as :meth:`load_model_checkpoint`."""
        return self.load_model_checkpoint(checkpoint_name, load_rank, process_group)

    def try_notify(self) -> None:
        """Let optimizer saves that were asked to say when the device's memory may change again say it now."""
        with self._guard:
            told = list(self._told)
        for event in told:
            event.set()

    def wait_d2h_checkpoint_finished(self) -> None:
        """The same as :meth:`wait_d2h_finished`."""
        self.wait_d2h_finished()

    def wait_d2h_finished(self) -> None:
        """Wait until everything queued has been copied, then for all ranks; call it before the optimizer's next step,
        in every rank: also those that saved nothing take part.

        A failed save is logged; training continues.
        """
        self.wait_copied()
        if _distributed():
            torch.distributed.barrier()

    def wait_copied(self) -> None:
        """Wait for this rank's copies only, which is all that it needs before it changes its own memory."""
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

    def async_write_tracker_file(
        self,
        iteration: int,
        iteration_dir: str,
        total_file_count: int,
        tracker_filename: str,
        callback: Callable[[int, int], object] | None = None,
    ) -> int | None:
        """Write ``iteration`` to the file ``tracker_filename`` once ``iteration_dir`` holds ``total_file_count``
        complete files, within 300 s; ``callback(iteration, result)`` is called in either case, 0 being success.

        ``None`` for a count below 1, else 1. Raises ``ValueError`` for paths over 1024 characters and for what is no
        folder.
        """
        if len(iteration_dir) > api.PATH_LIMIT or len(tracker_filename) > api.PATH_LIMIT:
            raise ValueError(f"a path exceeds {api.PATH_LIMIT} characters")
        if not os.path.isdir(iteration_dir):
            raise ValueError(f"{iteration_dir} is not a directory")
        tracker = Path(os.path.realpath(tracker_filename))

        def found(result: int, _: Any) -> None:
            if result == 0:
                durable.write(tracker, memoryview(bytearray(str(iteration).encode())), mode=0o644)
            else:
                log.error("iteration %s is not written to %s: %s", iteration, tracker, os.strerror(-result))
            if callback:
                callback(iteration, result)

        return process.register_checker(found, {iteration_dir: total_file_count}, iteration, TRACKER_S)

    def load_model_checkpoint(self, checkpoint_name: str, load_rank: int, process_group: Any = None) -> Any:
        """With a group, its rank ``load_rank`` (a global one) reads the file and the others get its content; without
        one, this rank reads the file itself.

        Raises the errors of ``load`` at every rank, ``ValueError`` for a name over 1024 characters or a negative rank.
        """
        if len(checkpoint_name) > api.PATH_LIMIT:
            raise ValueError(f"the name has {len(checkpoint_name)} characters; {api.PATH_LIMIT} are allowed")
        if load_rank < 0:
            raise ValueError(f"load_rank is {load_rank}; it must not be negative")
        if process_group is None or not _distributed():
            return api.load(checkpoint_name)
        box: list[Any] = [None, None]
        if torch.distributed.get_rank() == load_rank:
            try:
                box[0] = api.load(checkpoint_name)
            except Exception as error:
                box[1] = f"rank {load_rank} could not read {checkpoint_name}: {type(error).__name__}: {error}"
        torch.distributed.broadcast_object_list(box, src=load_rank, group=process_group)
        if box[1]:
            raise CheckpointError(box[1])
        return box[0]

    def async_save_checkpoint(self, thread_func: Callable[..., Any], kwargs: Mapping[str, Any]) -> None:
        """Call ``thread_func(kwargs)`` in the saving thread, after the queued saves; ``thread_func(**kwargs)`` when
        its parameters have those names.
        """

        def work() -> None:
            try:
                if _takes(thread_func, kwargs):
                    thread_func(**kwargs)
                else:
                    thread_func(kwargs)
            except Exception as error:
                log.error("saving in the background failed in rank %s: %s", self.rank, error)

        with self._guard:
            self._works.append(self._thread.submit(work))

    def async_checkpoint_count(self) -> int:
        """Number of saves that are queued or being copied."""
        with self._guard:
            return sum(not work.done() for work in self._works) + sum(not one.copied(0) for one in self._copies)

    def get_checkpoint_copy_stream(self) -> Any:
        """The device's stream for copies in parallel to computing; ``None`` on a host without a device."""
        if self._stream is None and torch.accelerator.is_available():
            self._stream = torch.Stream(torch.accelerator.current_accelerator())
        return self._stream


def _names(given: str | list[str]) -> list[Path]:
    """The paths of a save. Raises ``ValueError`` without one and for one that is too long."""
    paths = [process.path_of(one) for one in (given if isinstance(given, list) else [given])]
    if not paths or any(len(str(path)) > api.PATH_LIMIT for path in paths):
        raise ValueError(f"between one name and names of at most {api.PATH_LIMIT} characters are needed")
    return paths


def _takes(func: Callable[..., Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the parameters of ``func`` have the names in ``kwargs``."""
    try:
        inspect.signature(func).bind(**kwargs)
    except TypeError:
        return False
    return True


def _distributed() -> bool:
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())
