"""The functions of training scripts and of adaptations of frameworks (docs/zh/scheduling, 06_api/09_mindio)."""

from belay.agents.training.compat.mindio.controller_api import (
    tft_destroy_controller,
    tft_init_controller,
    tft_query_high_availability_switch,
    tft_register_mindx_callback,
    tft_start_controller,
)
from belay.agents.training.compat.mindio.framework_api import (
    get_device as get_device,
)
from belay.agents.training.compat.mindio.framework_api import (
    set_mindio_export_version as set_mindio_export_version,
)
from belay.agents.training.compat.mindio.framework_api import (
    tft_destroy_processor as tft_destroy_processor,
)
from belay.agents.training.compat.mindio.framework_api import (
    tft_end_updating_os,
    tft_exception_handler,
    tft_get_reboot_type,
    tft_get_repair_step,
    tft_get_repair_type,
    tft_init_processor,
    tft_is_reboot_node,
    tft_pause_train,
    tft_register_clean_handler,
    tft_register_decrypt_handler,
    tft_register_exception_handler,
    tft_register_exit_handler,
    tft_register_rebuild_group_handler,
    tft_register_rename_handler,
    tft_register_repair_handler,
    tft_register_rollback_handler,
    tft_register_save_ckpt_handler,
    tft_register_stop_handler,
    tft_register_stream_sync_handler,
    tft_register_zit_downgrade_rebuild_handler,
    tft_register_zit_upgrade_rebuild_handler,
    tft_register_zit_upgrade_repair_handler,
    tft_register_zit_upgrade_rollback_handler,
    tft_report_error,
    tft_report_load_ckpt_step,
    tft_reset_limit_step,
    tft_set_dp_group_info,
    tft_set_optimizer_replica,
    tft_set_step_args,
    tft_start_copy_os,
    tft_start_updating_os,
    tft_wait_next_action,
)
from belay.agents.training.compat.mindio.framework_api import (
    tft_start_processor as tft_start_processor,
)
from belay.agents.training.compat.mindio.framework_api import (
    tft_wait_repair_action as tft_wait_repair_action,
)
from belay.agents.training.compat.mindio.update_times import can_repair as tft_can_do_uce_repair
from belay.agents.training.compat.tft.constants import Action, OptimizerType, RepairType, ReportState

# importable as well, though not listed: set_mindio_export_version, tft_wait_repair_action, get_device
__all__ = [
    "tft_init_controller",
    "tft_start_controller",
    "tft_destroy_controller",
    "tft_query_high_availability_switch",
    "tft_register_mindx_callback",
    "tft_init_processor",
    "tft_start_processor",
    "tft_destroy_processor",
    "tft_start_updating_os",
    "tft_start_copy_os",
    "tft_end_updating_os",
    "tft_set_optimizer_replica",
    "tft_set_dp_group_info",
    "tft_set_step_args",
    "tft_exception_handler",
    "tft_pause_train",
    "tft_report_load_ckpt_step",
    "tft_reset_limit_step",
    "tft_wait_next_action",
    "tft_get_repair_step",
    "tft_get_repair_type",
    "tft_is_reboot_node",
    "tft_get_reboot_type",
    "tft_report_error",
    "tft_register_rename_handler",
    "tft_register_save_ckpt_handler",
    "tft_register_exit_handler",
    "tft_register_stop_handler",
    "tft_register_clean_handler",
    "tft_register_rebuild_group_handler",
    "tft_register_repair_handler",
    "tft_register_rollback_handler",
    "tft_register_stream_sync_handler",
    "tft_register_zit_downgrade_rebuild_handler",
    "tft_register_zit_upgrade_rebuild_handler",
    "tft_register_zit_upgrade_repair_handler",
    "tft_register_zit_upgrade_rollback_handler",
    "tft_register_exception_handler",
    "tft_register_decrypt_handler",
    "tft_can_do_uce_repair",
    "Action",
    "OptimizerType",
    "RepairType",
    "ReportState",
]
