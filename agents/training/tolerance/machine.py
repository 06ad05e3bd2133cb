"""A controller with all its procedures. Pure."""

from __future__ import annotations

from agents.training.tolerance import elastic_states, final_states, repair_states, training_states
from agents.training.tolerance.controller import Controller
from agents.training.tolerance.controller_commands import ControllerSettings
from agents.training.tolerance.registry import register


def controller(settings: ControllerSettings, now: float) -> Controller:
    """Create and start a controller."""
    made = Controller(settings, now)
    made.run(
        training_states.PROCEDURES | repair_states.PROCEDURES | elastic_states.PROCEDURES | final_states.PROCEDURES,
        register,
    )
    return made
