"""The plugin by which TaskD controls the processes of MindSpore's msrun."""

from belay.agents.training.compat.taskd.mindspore import MSRunPlugin

__all__ = ["MSRunPlugin"]
