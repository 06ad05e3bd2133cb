"""Times of the optimizer's update, and whether a memory error at such a time can be repaired."""

from belay.agents.training.compat.mindio.update_times import can_repair as tft_can_do_uce_repair
from belay.agents.training.compat.mindio.update_times import error_time as get_l2_hbm_error_time
from belay.agents.training.compat.mindio.update_times import set_end as tft_set_update_end_time
from belay.agents.training.compat.mindio.update_times import set_start as tft_set_update_start_time

__all__ = [
    "get_l2_hbm_error_time", "tft_can_do_uce_repair", "tft_set_update_end_time", "tft_set_update_start_time",
]  # fmt: skip
