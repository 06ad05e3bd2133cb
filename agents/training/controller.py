"""The training controller that signals are handed to: MindIO's (`mindio_ttp.controller_ttp`) where it is installed.

Names and parameters are those of mindio_ttp 7.3.0 (component/mindio/tft, Python API).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol


class Controller(Protocol):
    """What a controller must do; every method answers 0 when it did."""

    def dump(self) -> int:
        """Save a last checkpoint and leave."""

    def stop_train(self, fault_ranks: Mapping[int, int], stop_type: str, timeout: int | None) -> int:
        """Stop, or pause, the step loop."""

    def on_global_rank(self, fault_ranks: Mapping[int, int], timeout: int | None) -> int:
        """Tell every rank which ones are faulty."""

    def change_strategy(self, strategy: str, params: str) -> int:
        """Recover as decided."""

    def prepare_action(self, action: str, fault_ranks: Mapping[int, int]) -> int:
        """Prepare, or call off, a hot switch."""

    def destroy(self) -> int:
        """End for good."""


class MindIO:
    """mindio_ttp. Raises ImportError that says what to install."""

    def __init__(self) -> None:
        try:
            self._ttp: Any = importlib.import_module("mindio_ttp.controller_ttp")
        except ImportError as error:
            raise ImportError(
                "mindio_ttp is not installed in this image; install MindIO TFT, or pass another controller"
            ) from error

    def register_callbacks(self, callbacks: Mapping[str, Callable[..., int]]) -> None:
        """Let the controller report through these (report_fault_ranks, report_stop_complete, …)."""
        for action, function in callbacks.items():
            self._ttp.tft_register_mindx_callback(action, function)

    def dump(self) -> int:
        """tft_notify_controller_dump."""
        return int(self._ttp.tft_notify_controller_dump() or 0)

    def stop_train(self, fault_ranks: Mapping[int, int], stop_type: str, timeout: int | None) -> int:
        """tft_notify_controller_stop_train."""
        more = () if timeout is None else (timeout,)
        return int(self._ttp.tft_notify_controller_stop_train(dict(fault_ranks), stop_type, *more) or 0)

    def on_global_rank(self, fault_ranks: Mapping[int, int], timeout: int | None) -> int:
        """tft_notify_controller_on_global_rank."""
        more = () if timeout is None else (timeout,)
        return int(self._ttp.tft_notify_controller_on_global_rank(dict(fault_ranks), *more) or 0)

    def change_strategy(self, strategy: str, params: str) -> int:
        """tft_notify_controller_change_strategy."""
        more = (params,) if params else ()
        return int(self._ttp.tft_notify_controller_change_strategy(strategy, *more) or 0)

    def prepare_action(self, action: str, fault_ranks: Mapping[int, int]) -> int:
        """tft_notify_controller_prepare_action."""
        return int(self._ttp.tft_notify_controller_prepare_action(action, dict(fault_ranks)) or 0)

    def destroy(self) -> int:
        """tft_destroy_controller."""
        return int(self._ttp.tft_destroy_controller() or 0)


__all__ = ["Controller", "MindIO"]
