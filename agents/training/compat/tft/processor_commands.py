"""Settings of a processor, and its commands to the process that hosts it. Data only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from belay.agents.training.compat.tft.messages import Message


@dataclass(frozen=True)
class ProcessorSettings:
    """Settings of one rank's processor. Times in seconds."""

    rank: int
    world: int
    session: str
    job: str = ""
    local_copy: bool = False
    uce: bool = True
    arf: bool = False
    zit: bool = False
    controller: str = ""
    addresses: tuple[str, ...] = ()
    action_limit: float = 180.0
    retry_wait: float = 1.0


@dataclass(frozen=True)
class SendToController:
    """Send ``message`` to the controller."""

    message: Message


@dataclass(frozen=True)
class Connect:
    """Connect to ``address`` after ``wait`` seconds."""

    address: str
    wait: float


@dataclass(frozen=True)
class RunCallback:
    """Call back the framework and answer by `Processor.finished` with ``token``; a token of an older generation need
    not be answered."""

    token: int
    callback: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class ExitProcess:
    """End this process with ``code``; ``reason`` says why."""

    code: int
    reason: str


ProcessorCommand = SendToController | Connect | RunCallback | ExitProcess
