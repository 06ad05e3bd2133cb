"""The controller's functions (docs/zh/scheduling, 06_api/09_mindio): TaskD calls them, or rank 0's script."""

from belay.agents.training.compat.mindio.controller_api import (
    tft_destroy_controller,
    tft_init_controller,
    tft_notify_controller_change_strategy,
    tft_notify_controller_dump,
    tft_notify_controller_on_global_rank,
    tft_notify_controller_prepare_action,
    tft_notify_controller_stop_train,
    tft_query_high_availability_switch,
    tft_register_mindx_callback,
    tft_start_controller,
)

from . import ttp_logger

__all__ = [
    "tft_destroy_controller", "tft_init_controller", "tft_notify_controller_change_strategy",
    "tft_notify_controller_dump", "tft_notify_controller_on_global_rank", "tft_notify_controller_prepare_action",
    "tft_notify_controller_stop_train", "tft_query_high_availability_switch", "tft_register_mindx_callback",
    "tft_start_controller", "ttp_logger",
]  # fmt: skip
