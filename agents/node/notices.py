"""Kubernetes Events besides those of faults: resets that begin and end, upgrades that are over.

Names, types and messages follow component/ascend-device-plugin/pkg/plugin/builtin/reset_record_plugin.go and
pkg/kubeclient. They wait in the same bounded queue as fault events, so that no reset loop floods the API server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Final, Literal

import msgspec

from belay.agents.drivers.base import Chip
from belay.agents.node.upgrades import Reason, grouped
from belay.engine.wire.gojson import go_json

START, COMPLETE, FAILED = "HotResetStart", "HotResetComplete", "HotResetFailed"
RELEASE: Final = "EventReleaseUpgradeFault"
#: Longest message of an Event that the API server takes.
MAX_MESSAGE: Final = 1024


class Notice(msgspec.Struct, frozen=True):
    """An Event to write: ``name`` without the reporter's part, ``about`` the node or the agent's pod."""

    name: str
    reason: str
    message: str
    about: Literal["Node", "Pod"]
    warns: bool = False


def reset_started(node: str, ring: Sequence[Chip], faulty: Iterable[int], left: int, now_ms: int) -> Notice:
    """A reset of ``ring`` begins; ``faulty`` are chips by physical id, ``left`` the resets it still has (-1 unknown).

    Chips are named by logic id, as the original does.
    """
    bad = set(faulty)
    first = next((chip.logic_id for chip in ring if chip.id in bad), -1)
    text = f"nodeName:{node}, ringDevs:{_ids(ring)}, faultDev:{first}, tokensLeft:{left}, time:{_time(now_ms)}"
    return Notice(f"{now_ms}.reset.start", START, f"hot reset start, {text}", "Node", warns=True)


def reset_ended(node: str, ring: Sequence[Chip], result: str, now_ms: int) -> Notice:
    """A reset ended with ``result``: ``ok``, or ``failed: …`` with the reason."""
    where = f"nodeName:{node}, devices:{_ids(ring)}, time:{_time(now_ms)}"
    if result == "ok":
        return Notice(f"{now_ms}.reset.end", COMPLETE, f"hot reset complete, {where}", "Node")
    why = result.removeprefix("failed: ")
    message = f"hot reset failed, {where}, err:{why}"[:MAX_MESSAGE]
    return Notice(f"{now_ms}.reset.end", FAILED, message, "Node", warns=True)


def released(reasons: Iterable[Reason], name: Callable[[int], str], now_ms: int) -> Notice:
    """Upgrades ended; the message is the JSON of their reasons by device name."""
    text = go_json(dict(sorted(grouped(sorted(reasons), name).items())))
    return Notice(f"{RELEASE}.{now_ms}", RELEASE, text[:MAX_MESSAGE], "Pod")


def _ids(ring: Sequence[Chip]) -> str:
    return ",".join(str(chip.logic_id) for chip in ring)


def _time(now_ms: int) -> str:
    return datetime.fromtimestamp(now_ms / 1000).strftime("%Y-%m-%d %H:%M:%S")
