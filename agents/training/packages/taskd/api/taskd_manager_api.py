"""The manager: init with the job, start blocks."""

from belay.agents.training.compat.manager.api import init_taskd_manager, start_taskd_manager

__all__ = ["init_taskd_manager", "start_taskd_manager"]
