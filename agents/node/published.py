"""Raised chips as published in the device information, and their release by an operator.

Keys ``ManuallySeparateNPU`` and ``UpgradeFaultReason`` of the device information are the memory of upgrades: they are
read back after a restart of the agent, and a name that an operator removes from the first ends that chip's isolation.
The agent reads both keys before it writes them. A copy on disk protects the node while the API server is away.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from belay.agents.node.policy import DiskCache
from belay.agents.node.settings import MAX_TEXT
from belay.agents.node.state import NodeState
from belay.engine.model.chip_masks import ids_of
from belay.engine.wire import deviceinfo
from belay.engine.wire.deviceinfo import MANUAL_KEY, UPGRADES_KEY
from belay.engine.wire.errors import WireError
from belay.engine.wire.gojson import go_json
from belay.engine.wire.names import DEVICE_NAMESPACE, DEVICE_PREFIX

#: Seconds between two readings of the key while it names a chip, so that a name taken out counts within five.
MANUAL_SECONDS: Final = 4.0
_PROBLEM: Final = "upgrades"


class PublishedUpgrades:
    """Compare the ConfigMap with the agent's upgrades."""

    def __init__(self, shelf: DiskCache) -> None:
        self._shelf = shelf
        self._read = False
        self._kept = 0
        self._manual: frozenset[int] = frozenset()
        self.writes = 0

    def remember(self, state: NodeState, now_ms: int) -> None:
        """Load the upgrades from the copy on disk."""
        try:
            kept = self._shelf.get(_PROBLEM)
            if kept is not None:
                manual, upgraded = deviceinfo.manual_and_upgrades(kept, state.machine.prefix)
                state.judge.upgrades.restore(upgraded, ids_of(manual), now_ms)
        except WireError as error:
            state.problems[_PROBLEM] = f"{_PROBLEM} kept on disk are ignored: {error}"[:MAX_TEXT]
        self.wrote(state)
        self._kept = state.judge.upgrades.changed

    def keep(self, state: NodeState) -> None:
        """Write the copy on disk again if anything has changed."""
        upgrades = state.judge.upgrades
        if upgrades.changed == self._kept:
            return
        self._kept = upgrades.changed
        data = {
            MANUAL_KEY: ",".join(state.name(chip) for chip in upgrades.manual),
            UPGRADES_KEY: go_json(upgrades.published(state.name)),
        }
        metadata = {"namespace": DEVICE_NAMESPACE, "name": DEVICE_PREFIX + state.node}
        try:
            self._shelf.put(_PROBLEM, {"metadata": metadata, "data": data})
            state.problems.pop(f"{_PROBLEM} copy", None)
        except OSError as error:
            state.problems[f"{_PROBLEM} copy"] = f"{_PROBLEM} cannot be kept on disk: {error.strerror}"

    def must_compare(self, state: NodeState) -> bool:
        """Whether the ConfigMap has to be read before it is written."""
        return not self._read or bool(self._manual or state.judge.upgrades.manual)

    def compare(self, state: NodeState, live: Mapping[str, Any] | None, now_ms: int) -> None:
        """Apply the ConfigMap: all of it at first, later only names that an operator removed."""
        upgrades = state.judge.upgrades
        try:
            manual, upgraded = (
                deviceinfo.manual_and_upgrades(live, state.machine.prefix) if live is not None else (0, ())
            )
        except WireError as error:
            state.problems[_PROBLEM] = f"what was published is ignored: {error}"[:MAX_TEXT]
            self._read = True
            return
        state.problems.pop(_PROBLEM, None)
        if live is not None:
            upgrades.release(self._manual - set(ids_of(manual)))
            if not self._read:
                upgrades.restore(upgraded, [chip for chip in ids_of(manual) if chip in state.ids], now_ms)
        self._read = True

    def wrote(self, state: NodeState) -> None:
        """Record that the ConfigMap now matches the agent's state."""
        self._manual = frozenset(state.judge.upgrades.manual)
        self.writes += 1

    def edited(self, state: NodeState, live: Mapping[str, Any] | None) -> bool:
        """Whether another hand has changed the key since the agent wrote it."""
        data = (live or {}).get("data") or {}
        return data.get(MANUAL_KEY) != ",".join(state.name(chip) for chip in sorted(self._manual))

    @property
    def names_chips(self) -> bool:
        """Whether the ConfigMap, as the agent wrote it, names chips that an operator may take out."""
        return self._read and bool(self._manual)
