"""Functions that adaptations of frameworks import from this module."""

from agents.training.mindio.framework_api import (
    get_device,
    set_mindio_export_version,
    tft_exception_handler,
    tft_report_error,
    tft_report_load_ckpt_step,
    tft_wait_next_action,
    tft_wait_repair_action,
)

__all__ = [
    "get_device", "set_mindio_export_version", "tft_exception_handler", "tft_report_error",
    "tft_report_load_ckpt_step", "tft_wait_next_action", "tft_wait_repair_action",
]  # fmt: skip
