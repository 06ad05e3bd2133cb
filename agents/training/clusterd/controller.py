"""The training controller that carries out signals: MindIO's (`mindio_ttp.controller_ttp`) where it is installed.

Names and parameters are those of mindio_ttp 7.3.0 (component/mindio/tft, Python API).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol


class TrainingController(Protocol):
    """A training controller; every method returns 0 on success."""

    def dump(self) -> int:
        """Save a last checkpoint and leave."""

    def stop_train(self, fault_ranks: Mapping[int, int], stop_type: str, timeout: int | None) -> int:
        """Stop, or pause, the step loop."""

    def on_global_rank(self, fault_ranks: Mapping[int, int], timeout: int | None) -> int:
        """Report all faulty ranks of the job."""

    def change_strategy(self, strategy: str, params: str) -> int:
        """Recover as decided."""

    def prepare_action(self, action: str, fault_ranks: Mapping[int, int]) -> int:
        """Prepare, or call off, a hot switch."""

    def destroy(self) -> int:
        """End the controller."""


class MindIO:
    """mindio_ttp. Raises ImportError that says what to install."""

    def __init__(self) -> None:
        try:
            self._ttp: Any = importlib.import_module("mindio_ttp.controller_ttp")
        except ImportError as error:
            raise ImportError(
                "mindio_ttp is not installed in this image; install MindIO TFT, or pass another controller"
            ) from error

    def begin(self, world: int, address: str, port: int, *, arf: bool, zit: bool) -> None:
        """Start as TaskD does: rank -1, no local copy, no TLS. Raises what mindio_ttp raises."""
        self._ttp.tft_init_controller(-1, world, False, arf, zit)
        self._ttp.tft_start_controller(address, port, False, "")

    def high_availability(self) -> bool:
        """tft_query_high_availability_switch: whether a training process has joined."""
        return bool(self._ttp.tft_query_high_availability_switch())

    def register_callbacks(self, callbacks: Mapping[str, Callable[..., int]]) -> None:
        """Register the callbacks of the controller (report_fault_ranks, report_stop_complete, …)."""
        for action, function in callbacks.items():
            self._ttp.tft_register_mindx_callback(action, function)

    def dump(self) -> int:
        """Call ``tft_notify_controller_dump``."""
        return int(self._ttp.tft_notify_controller_dump() or 0)

    def stop_train(self, fault_ranks: Mapping[int, int], stop_type: str, timeout: int | None) -> int:
        """Call ``tft_notify_controller_stop_train``."""
        more = () if timeout is None else (timeout,)
        return int(self._ttp.tft_notify_controller_stop_train(dict(fault_ranks), stop_type, *more) or 0)

    def on_global_rank(self, fault_ranks: Mapping[int, int], timeout: int | None) -> int:
        """Call ``tft_notify_controller_on_global_rank``."""
        more = () if timeout is None else (timeout,)
        return int(self._ttp.tft_notify_controller_on_global_rank(dict(fault_ranks), *more) or 0)

    def change_strategy(self, strategy: str, params: str) -> int:
        """Call ``tft_notify_controller_change_strategy``."""
        more = (params,) if params else ()
        return int(self._ttp.tft_notify_controller_change_strategy(strategy, *more) or 0)

    def prepare_action(self, action: str, fault_ranks: Mapping[int, int]) -> int:
        """Call ``tft_notify_controller_prepare_action``."""
        return int(self._ttp.tft_notify_controller_prepare_action(action, dict(fault_ranks)) or 0)

    def destroy(self) -> int:
        """Call ``tft_destroy_controller``."""
        return int(self._ttp.tft_destroy_controller() or 0)
