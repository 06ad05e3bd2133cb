"""The agent's settings, in seconds; `scaled` shortens waits for hardware and people in the sandbox."""

from __future__ import annotations

from typing import Final

import msgspec


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Defaults are MindCluster's where it has the number (component/ascend-device-plugin/pkg/common/constants.go) and
    Belay's contract where not.

    `pod` is the agent's own pod, which Events name.
    `rank_root` is the folder for rank tables as files, empty for none (simulated nodes share this machine's disk).
    `reset_root` and `trace_root` are those of what training managers read (`jobfiles`).
    `order_trust` is the folder of the keys that must have sealed orders (`trust`), empty for none.
    Without `resets` every order to reset is refused; with `own_resets` the agent also resets while no engine decides.
    With `cluster_tables` it reads the cluster's own fault tables.
    `third_party_delay` after a failed reset that a tool outside may make good, the driver looks for the chips again.
    `cards_timeout`: so long the start waits for cards that the driver counts and does not name yet, those in a reset;
    then it goes on without them.
    `scale` multiplies idle, boot, heartbeat, report and grace times; the least distance between two writes of one
    object (`spacing`) and the deadline of a driver call are not scaled, they protect the API server and the agent.
    """

    pool: str = "default"
    pod: str = ""
    scale: float = 1.0
    idle: float = 60.0
    boot_timeout: float = 180.0
    cards_timeout: float = 600.0
    boot_poll: float = 1.0
    third_party_delay: float = 300.0
    heartbeat: float = 60.0
    heartbeat_spread: float = 0.2
    device_period: float = 300.0
    order_life: float = 900.0
    in_use_grace: float = 5.0
    poll: float = 5.0
    recover_delay: float = 1.0
    spacing: float = 1.0
    tick: float = 1.0
    driver_timeout: float = 30.0
    max_errors: int = 20
    resets: bool = True
    own_resets: bool = False
    cluster_tables: bool = False
    rank_root: str = ""
    reset_root: str = ""
    trace_root: str = ""
    order_trust: str = ""

    def __post_init__(self) -> None:
        if not 0.001 <= self.scale <= 10:
            raise ValueError(f"scale {self.scale} is out of range; use 0.001 to 10")

    def scaled(self, seconds: float) -> float:
        """Return a duration scaled for this agent."""
        return seconds * self.scale


MAX_TEXT: Final = 160
"""Longest result or error text in a report, in characters."""
