"""A controller with all its procedures. Pure."""

from __future__ import annotations

from belay.agents.training.compat.tft import elastic_states, final_states, repair_states, training_states
from belay.agents.training.compat.tft.controller import Controller
from belay.agents.training.compat.tft.controller_commands import ControllerSettings
from belay.agents.training.compat.tft.registry import register


def controller(settings: ControllerSettings, now: float) -> Controller:
    """Create and start a controller."""
    made = Controller(settings, now)
    made.run(
        training_states.PROCEDURES | repair_states.PROCEDURES | elastic_states.PROCEDURES | final_states.PROCEDURES,
        register,
    )
    return made
