"""What the agent has published about raised chips, and what people make of it.

Keys ``ManuallySeparateNPU`` and ``UpgradeFaultReason`` of the device information are the memory of upgrades: they are
read back after a restart of the agent, and a name that a person takes out of the first ends that chip's isolation.
Nothing is written over them before they were read. A copy on disk protects the node while the API server is away.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from agents.node.policy import Shelf
from agents.node.settings import MAX_TEXT
from agents.node.state import NodeState
from engine.model.cluster import ids_of
from engine.wire import deviceinfo
from engine.wire.errors import WireError
from engine.wire.gojson import go_json
from engine.wire.names import DEVICE_NAMESPACE, DEVICE_PREFIX

#: Seconds between two looks at the key while it names a chip.
MANUAL_SECONDS: Final = 30.0
_PROBLEM: Final = "upgrades"


class Published:
    """Compares what stands in the ConfigMap with what the agent means."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._read = False
        self._kept = 0
        self._told: frozenset[int] = frozenset()

    def remember(self, state: NodeState, now_ms: int) -> None:
        """Take the copy on disk."""
        try:
            kept = self._shelf.get(_PROBLEM)
            if kept is not None:
                manual, told = deviceinfo.raised(kept, state.machine.prefix)
                state.judge.upgrades.restore(told, ids_of(manual), now_ms)
        except WireError as error:
            state.problems[_PROBLEM] = f"{_PROBLEM} kept on disk are ignored: {error}"[:MAX_TEXT]
        self.wrote(state)
        self._kept = state.judge.upgrades.changed

    def keep(self, state: NodeState) -> None:
        """Write the copy on disk anew where something has changed."""
        upgrades = state.judge.upgrades
        if upgrades.changed == self._kept:
            return
        self._kept = upgrades.changed
        data = {
            "ManuallySeparateNPU": ",".join(state.name(chip) for chip in upgrades.manual),
            "UpgradeFaultReason": go_json(upgrades.published(state.name)),
        }
        metadata = {"namespace": DEVICE_NAMESPACE, "name": DEVICE_PREFIX + state.node}
        try:
            self._shelf.put(_PROBLEM, {"metadata": metadata, "data": data})
            state.problems.pop(f"{_PROBLEM} copy", None)
        except OSError as error:
            state.problems[f"{_PROBLEM} copy"] = f"{_PROBLEM} cannot be kept on disk: {error.strerror}"

    def must_look(self, state: NodeState) -> bool:
        """Whether the ConfigMap has to be read before it is written."""
        return not self._read or bool(self._told or state.judge.upgrades.manual)

    def compare(self, state: NodeState, live: Mapping[str, Any] | None, now_ms: int) -> None:
        """Take what stands in the ConfigMap: all of it at first, later only names that a person took out."""
        upgrades = state.judge.upgrades
        try:
            manual, told = deviceinfo.raised(live, state.machine.prefix) if live is not None else (0, ())
        except WireError as error:
            state.problems[_PROBLEM] = f"what was published is ignored: {error}"[:MAX_TEXT]
            self._read = True
            return
        state.problems.pop(_PROBLEM, None)
        if live is not None:
            upgrades.release(self._told - set(ids_of(manual)))
            if not self._read:
                upgrades.restore(told, [chip for chip in ids_of(manual) if chip in state.ids], now_ms)
        self._read = True

    def wrote(self, state: NodeState) -> None:
        """What stands in the ConfigMap now is what the agent means."""
        self._told = frozenset(state.judge.upgrades.manual)

    def period(self, state: NodeState, seconds: float) -> float:
        """After how long to look again: only while a chip is isolated by hand it is worth it."""
        return seconds if self.must_look(state) else float("inf")


__all__ = ["MANUAL_SECONDS", "Published"]
