"""Settings of a controller, orders of ClusterD to it, and its commands to the process that hosts it. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from belay.agents.training.compat.tft.messages import Message


@dataclass(frozen=True)
class ControllerSettings:
    """Settings of a controller. Times in seconds; the defaults are MindIO's."""

    rank: int
    world: int
    job: str = ""
    local_copy: bool = False
    arf: bool = False
    zit: bool = False
    clusterd: bool = False
    backup: int = 0  # 0: the master; else its place among the backups
    wait_clusterd: float = 30.0
    action_limit: float = 180.0
    collect_limit: float = 5.0
    lock_limit: float = 30.0
    node_limit: float = 600.0
    dump_limit: float = 1800.0
    exit_limit: float = 5.0
    heartbeat: float = 2.0
    lost: float = 8.0
    stop_before_dump: bool = False
    shifted: bool = False


class SendTo(NamedTuple):
    """Send on ``link``. A tuple: an order to 10,000 ranks makes as many."""

    link: int
    message: Message


@dataclass(frozen=True)
class Close:
    """Close ``link`` after its messages have been sent."""

    link: int


@dataclass(frozen=True)
class Report:
    """Report to ClusterD by the callback of this name."""

    name: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class LogLine:
    """A line for the log."""

    text: str
    warning: bool = False


@dataclass(frozen=True)
class EndController:
    """The state machine has ended."""

    reason: str


ControllerCommand = SendTo | Close | Report | LogLine | EndController


@dataclass(frozen=True)
class Order:
    """An order of ClusterD, passed on by TaskD: stop, pause, global, strategy, prepare, dump, destroy."""

    kind: str
    faults: Mapping[int, int] = field(default_factory=dict)
    text: str = ""
    params: str = ""
    limit: float = 0.0
