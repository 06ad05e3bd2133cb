"""NCCL: communicators are aborted, which ends their kernels, and made again for the next generation.

``ProcessGroupNCCL.abort`` (``torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp``) calls ``ncclCommAbort``. Several of
them stand between ``_group_start`` and ``_group_end``, or their aborts wait for each other, as in torch's own
``_abort_process_group``; its documentation asks for TORCH_NCCL_ASYNC_ERROR_HANDLING=0, or the watchdog ends the
process.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

import torch

from belay.agents.training.train.native.devices import LEAVE, backends


class Nccl:
    """The GPU of this rank."""

    def __init__(self) -> None:
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
        self._index = 0
        self._aborted: weakref.WeakSet[Any] = weakref.WeakSet()
        self._aborts: list[threading.Thread] = []
        self._errors: list[BaseException] = []

    def made(self) -> None:
        """Remember the device: threads have a current device of their own."""
        self._index = torch.accelerator.current_device_index()

    def free(self) -> None:
        """Abort the communicators of all groups that are there now."""
        found = [(group, backend) for group, backend in backends("cuda") if group not in self._aborted]
        if not found:
            return
        for group, _ in found:
            self._aborted.add(group)
        thread = threading.Thread(
            target=self._abort, args=([one for _, one in found],), name="belay-abort", daemon=True
        )
        self._aborts.append(thread)
        thread.start()

    def _abort(self, found: list[Any]) -> None:
        try:
            torch.accelerator.set_device_index(self._index)
            found[0]._group_start()
            try:
                for backend in found:
                    backend.abort()
            finally:
                found[0]._group_end()
        except RuntimeError as error:
            self._errors.append(error)

    def leave(self) -> None:
        """Wait for the aborts and for the kernels that they end. Raises ``RuntimeError``."""
        aborts, self._aborts = self._aborts, []
        errors, self._errors = self._errors, []
        for thread in aborts:
            thread.join(LEAVE)
            if thread.is_alive():
                raise RuntimeError(f"the communicators of GPU {self._index} were not aborted within {LEAVE:g} s")
        if errors or self._errors:
            raise RuntimeError(
                f"the communicators of GPU {self._index} cannot be aborted: {(errors + self._errors)[0]}"
            )
        if aborts:
            # an error of the device itself is raised here
            torch.accelerator.synchronize(self._index)

    def settle(self) -> None:
        """Wait for the stream of collectives."""
        torch.accelerator.synchronize(self._index)
