"""Ascend NPU (torch_npu, HCCL): the device is stopped, its links are dropped, and it is started again.

``torch_npu.npu.stop_device(id)`` clears what has not run and answers 0; what is called afterwards raises
``FORCE STOP``. ``restart_device(id)`` makes it usable, and ``torch_npu.distributed.reinit_process_group(group, True)``
drops the links of a group, which would keep device memory and the key of its root in the store (API reference of
Ascend Extension for PyTorch, 7.2).
"""

from __future__ import annotations

import importlib
import threading
from typing import Any

import torch

from belay.agents.training.train.native.devices import LEAVE, backends


class Npu:
    """The NPU of this rank. Raises ``ImportError`` without torch_npu."""

    def __init__(self) -> None:
        self._torch_npu: Any = importlib.import_module("torch_npu")
        self._index = 0
        self._stop: threading.Thread | None = None
        self._problem = ""

    def made(self) -> None:
        """Remember the device: threads have a current device of their own."""
        self._index = int(self._torch_npu.npu.current_device())

    def free(self) -> None:
        """Stop the device, once until it is started again."""
        if self._stop is None and backends("npu"):
            self._stop = threading.Thread(target=self._stop_device, name="belay-stop", daemon=True)
            self._stop.start()

    def _stop_device(self) -> None:
        try:
            # None in older versions, which raise instead
            if self._torch_npu.npu.stop_device(self._index) not in (0, None):
                self._problem = "stop_device did not succeed"
        except RuntimeError as error:
            self._problem = f"stop_device: {error}"

    def leave(self) -> None:
        """Start the device again and drop the links of its groups. Raises ``RuntimeError``."""
        stop, self._stop = self._stop, None
        if stop is None:
            return
        stop.join(LEAVE)
        problem, self._problem = self._problem, ""
        if stop.is_alive() or problem:
            raise RuntimeError(f"NPU {self._index} was not stopped: {problem or f'no answer for {LEAVE:g} s'}")
        self._torch_npu.npu.restart_device(self._index)
        for group, _ in backends("npu"):
            self._torch_npu.distributed.reinit_process_group(group, True)

    def settle(self) -> None:
        """Wait for all streams of the device."""
        torch.npu.synchronize()
