"""Communication groups of a process, written for slow-node detection."""

from belay.agents.training.compat.taskd.group_info import dump_group_info

__all__ = ["dump_group_info"]
