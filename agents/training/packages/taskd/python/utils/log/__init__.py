"""The log of TaskD: folder, levels and terminal by the variables TASKD_LOG_PATH, TASKD_FILE_LOG_LEVEL and so on."""

from belay.agents.training.compat import logs

run_log = logs.to_file("taskd.log")

__all__ = ["run_log"]
