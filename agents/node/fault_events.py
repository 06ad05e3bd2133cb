"""Kubernetes Events for faults that come and go, in the device plugin's wording.

Message grammar, names, types and limits follow component/ascend-device-plugin/pkg/kubeclient and pkg/common (at most
ten events a minute, a hundred waiting): ``Warning``/``Occur`` for a fault, ``Normal``/``Recovery`` for its end,
``Normal``/``Notice`` for a fault without an end. The time in name and message is when the Event is written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from belay.agents.drivers.base import Chip, Plane
from belay.agents.node.faults import Present
from belay.agents.node.notices import Notice
from belay.agents.node.state import NodeState
from belay.engine.model.generations import LOGICAL_PREFIXES
from belay.engine.model.times import rfc3339
from belay.engine.wire.names import DEVICE_NAMESPACE

COMPONENT: Final = "device-plugin"
PER_MINUTE: Final = 10
MAX_WAITING: Final = 100
OCCUR, RECOVERY, NOTICE = "Occur", "Recovery", "Notice"
_MINUTE_MS: Final = 60_000


class Change(msgspec.Struct, frozen=True):
    """A code that came or went on a chip; ``level`` is that of the code's own table entry."""

    chip: Chip
    code: str
    level: str
    assertion: str


class FaultEvents:
    """Compares present with earlier faults, and limits the rate of Events to protect the API server."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, Plane, str], Present] = {}
        self._waiting: deque[Change | Notice] = deque(maxlen=MAX_WAITING)
        self._written: deque[int] = deque(maxlen=PER_MINUTE)

    def refresh(self, state: NodeState) -> bool:
        """Record changes since the last call, including all faults present at the agent's start. Returns whether there
        are any.
        """
        now = {(c.id, e.plane, e.code): e for c in state.chips for e in state.book.chip(c.id)}
        before = self._seen
        chips = {chip.id: chip for chip in state.chips}
        for key in sorted(before.keys() - now.keys()):
            if not before[key].once:
                self._record(state, chips[key[0]], before[key], RECOVERY)
        for key in sorted(now.keys() - before.keys()):
            self._record(state, chips[key[0]], now[key], NOTICE if now[key].once else OCCUR)
        changed, self._seen = before.keys() != now.keys(), now
        return changed

    def due(self, now_ms: int) -> Change | Notice | None:
        """Return the next change that may be reported now; None without one or when the minute is full."""
        if not self._waiting:
            return None
        if len(self._written) == PER_MINUTE and now_ms - self._written[0] < _MINUTE_MS:
            return None
        self._written.append(now_ms)
        return self._waiting.popleft()

    def wait(self, now_ms: int) -> float:
        """Return seconds until the next change may be reported; infinity when none waits."""
        if not self._waiting:
            return float("inf")
        full = len(self._written) == PER_MINUTE
        return max(0.0, (self._written[0] + _MINUTE_MS - now_ms) / 1000) if full else 0.0

    def add(self, notice: Notice) -> None:
        """Queue a report other than a fault; when too many wait, the oldest is dropped."""
        self._waiting.append(notice)

    def _record(self, state: NodeState, chip: Chip, entry: Present, assertion: str) -> None:
        self._waiting.append(Change(chip, entry.code, state.judge.level(entry), assertion))


def event(change: Change | Notice, node: str, pod: str, prefix: str, now_ms: int) -> Mapping[str, Any]:
    """Return the Event (core/v1) for a change; ``pod`` is the agent's own, ``prefix`` that of device names."""
    if isinstance(change, Notice):
        of_node = change.about == "Node"
        reporter = node if of_node else pod
        return _body(
            name=f"{reporter}.{change.name}", subject="" if of_node else pod, node=node, reporter=reporter,
            warns=change.warns, reason=change.reason, action=change.reason, message=change.message, now_ms=now_ms,
        )  # fmt: skip
    chip = change.chip
    where = f"logicID:{chip.logic_id}" if prefix in LOGICAL_PREFIXES else f"cardID:{chip.card}, deviceID:{chip.die}"
    written = datetime.fromtimestamp(now_ms / 1000).strftime("%Y-%m-%d %H:%M:%S")
    message = (
        f"device fault, nodeName:{node}, assertion:{change.assertion}, {where}, faultCodes:{change.code}, "
        f"faultLevelName:{change.level}, alarmRaisedTime:{written}"
    )
    return _body(
        name=f"{pod}.{now_ms}{chip.logic_id}", subject=pod, node=node, reporter=pod, warns=change.assertion == OCCUR,
        reason=change.assertion, action=change.level, message=message, now_ms=now_ms,
    )  # fmt: skip


def _body(
    *, name: str, subject: str, node: str, reporter: str, warns: bool, reason: str, action: str, message: str,
    now_ms: int,
) -> Mapping[str, Any]:  # fmt: skip
    """One Event; ``subject`` is the pod it is about, empty for the node."""
    moment = rfc3339(now_ms // 1000)
    about = (
        {"apiVersion": "v1", "kind": "Pod", "namespace": DEVICE_NAMESPACE, "name": subject}
        if subject
        else {"apiVersion": "v1", "kind": "Node", "name": node}
    )
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": DEVICE_NAMESPACE},
        "involvedObject": about,
        "type": "Warning" if warns else "Normal",
        "reason": reason,
        "action": action,
        "message": message,
        "source": {"component": COMPONENT, "host": node},
        "reportingComponent": COMPONENT,
        "reportingInstance": reporter,
        "eventTime": datetime.fromtimestamp(now_ms / 1000, tz=UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
    }
