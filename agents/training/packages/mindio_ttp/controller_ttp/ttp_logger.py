"""The log that adaptations of frameworks write to."""

from belay.agents.training.compat.mindio.environment import log as LOGGER

__all__ = ["LOGGER"]
