"""Settings of the sandbox: size, seed, and the scale of all waiting times."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

import msgspec

from belay.engine.errors import InputError

TIME_SCALE_ENV: Final = "BELAY_TIME_SCALE"
NODE_KEY: Final = "node.json"
"""Key of ConfigMap ``belay-sim-<node>`` with the injected state of the node."""


class SandboxSettings(msgspec.Struct, frozen=True):
    """Settings of a simulated world.

    ``time_scale`` multiplies idle, reset, report, grace and start times: 1 is real time, 0.05 a demo. Seconds below
    are unscaled unless they say otherwise.

    ``idle_seconds`` (how long chips are idle before a reset), ``reset_seconds``, ``alarms_every`` and ``use_every``
    (readings of boards and of busy chips) are a minute or so on servers; people who watch a sandbox need not wait.

    ``servers``: how many of which product, in this order, instead of ``nodes`` of ``product`` and one for inference.
    """

    nodes: int = 8
    product: str = "atlas-800t-a2"
    seed: int = 1
    time_scale: float = 1.0
    controllers: bool = True
    owner_gc: bool = False
    infer_node: bool = True
    servers: tuple[tuple[str, int], ...] = ()
    start_seconds: float = 4.0
    watch_lag: float = 2.0
    lease_seconds: float = 10.0
    silence_seconds: float = 40.0
    idle_seconds: float = 3.0
    reset_seconds: float = 4.0
    alarms_every: float = 2.0
    use_every: float = 2.0

    def scaled(self, seconds: float, least: float = 0.0) -> float:
        """``seconds`` under the time scale, never below ``least`` (itself unscaled)."""
        return max(least, seconds * self.time_scale)

    @property
    def lease_interval(self) -> float:
        """Seconds between two heartbeats of a node; bounded below so that many nodes do not flood the API server."""
        return self.scaled(self.lease_seconds, least=2.0)

    @property
    def silence(self) -> float:
        """Seconds of silence after which a node counts as gone; always four heartbeats or more."""
        return max(self.scaled(self.silence_seconds), 4 * self.lease_interval)


def time_scale(value: float | str | None, environment: Mapping[str, str] = os.environ) -> float:
    """The time scale given, else $BELAY_TIME_SCALE, else 1.

    Raises:
        InputError: not a number in (0, 10].
    """
    text = str(value) if value is not None else environment.get(TIME_SCALE_ENV, "1")
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0.0 < number <= 10.0:
        raise InputError(
            f"{text!r} is not a time scale",
            where=f"${TIME_SCALE_ENV}" if value is None else "--time-scale",
            hint="Give a number above 0 and at most 10; 1 is real time.",
        )
    return number
