"""Derives the levels of faults from the policy in force, without the engine.

The newest policy and the newest orders are kept on disk: when Git, Redis, the API server or the controller is away,
also across a restart of the agent, chips stay as protected as they were. The planner's own functions derive
the meaning of a code.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from belay.agents.node.faults import Present
from belay.agents.node.upgrades import Key, Upgrades
from belay.engine.model import faults
from belay.engine.model.faults import CARD, NETWORK, CodeRules
from belay.engine.model.history import CodeMemory
from belay.engine.model.levels import IN_SERVICE, worst
from belay.engine.wire.errors import WireError
from belay.engine.wire.policy import NodePolicy

_KINDS: Final = {"chip": CARD, "network": NETWORK}


class FaultLevels:
    """Derive levels from present codes, and count how often and how long codes were present (in memory only: frequency
    counters do not survive a restart, as in MindCluster; the `upgrades` that they caused do)."""

    def __init__(self, policy: NodePolicy) -> None:
        self.policy = policy
        self.upgrades = Upgrades()
        self._seen: dict[Key, CodeMemory] = {}

    @property
    def rules(self) -> CodeRules:
        """The rules in force."""
        return self.policy.rules

    def level(self, entry: Present) -> str:
        """Return the level of one present code alone."""
        return faults.level_of(self.rules, _KINDS[entry.plane], entry.code, "", severity=entry.severity)[0]

    def observe(
        self, chips: Mapping[int, Sequence[Present]], now_ms: int, again: Sequence[tuple[int, Present]] = ()
    ) -> None:
        """Count the present codes. Call it once per change of `PresentFaults` and per poll.

        ``again``: events that reported a code again while it was present; each counts as an occurrence of its own.
        """
        there: set[Key] = set()
        told: dict[Key, list[int]] = {}
        for chip, entry in again:
            told.setdefault((chip, entry.plane, faults.code_key(entry.code)), []).append(entry.since_ms)
        for chip, entries in chips.items():
            for entry in entries:
                key: Key = (chip, entry.plane, faults.code_key(entry.code))
                there.add(key)
                for at in (entry.since_ms, *told.get(key, ())):
                    self._seen[key] = faults.present(self._seen.get(key), at, now_ms, self.rules, entry.code)
                self._upgrade(key, now_ms)
        for gone in [known for known in self._seen if known not in there]:
            before = self._seen[gone]
            after = faults.absent(before, now_ms, self.rules, gone[2])
            if after is None and self.upgrades.holds(gone):
                # its upgrade ends so long after the recovery, so the recovery is remembered as long as the upgrade
                recovered = now_ms if before.present else before.recovered
                after = msgspec.structs.replace(before, present=False, recovered=recovered)
            if after is None:
                del self._seen[gone]
            else:
                self._seen[gone] = after
        self.upgrades.settle(self._seen, self.rules, now_ms)

    def local_level(self, chip: int, entries: Sequence[Present]) -> str:
        """Return the chip's level with durations and frequencies, as far as this agent has seen them: what protects the
        chip from new work while the engine does not decide."""
        levels = [self.level(entry) for entry in entries if entry.plane == "chip"]
        return worst(self.upgrades.level(chip, "chip"), *levels)

    def healthy(self, entries: Sequence[Present]) -> bool:
        """Return whether no code of the chip itself takes it out of service, so that a reset is not needed."""
        return all(self.level(entry) in IN_SERVICE for entry in entries if entry.plane == "chip")

    def _upgrade(self, key: Key, now_ms: int) -> None:
        rule, seen = self.rules.frequency.get(key[2]), self._seen[key]
        if rule is not None and faults.too_often(seen, rule, now_ms):
            if not self.upgrades.holds(key):
                self.upgrades.raised(key, rule.level, now_ms)
            # the next upgrade needs as many new occurrences, also where it would come on top of one that stands: who
            # ends that by hand must not find the chip raised again at once
            self._seen[key] = msgspec.structs.replace(seen, occurrences=())


class DiskCache:
    """Small files that outlive the process, each replaced as a whole."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, name: str, config_map: Mapping[str, Any]) -> None:
        """Keep a ConfigMap's name and data. Raises OSError."""
        metadata = config_map.get("metadata") or {}
        kept = {
            "metadata": {key: metadata.get(key, "") for key in ("name", "namespace")},
            "data": config_map.get("data") or {},
        }
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._folder / f"{name}.json"
        fresh = path.with_suffix(".new")
        with fresh.open("wb") as file:
            file.write(msgspec.json.encode(kept))
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)

    def get(self, name: str) -> dict[str, Any] | None:
        """Return the stored data, None without any. Raises WireError when it cannot be read."""
        path = self._folder / f"{name}.json"
        try:
            value = msgspec.json.decode(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise WireError(str(path), "", f"cannot be read: {error}") from error
        return value if isinstance(value, dict) else None

    def drop(self, name: str) -> None:
        """Delete the stored data. Raises OSError."""
        (self._folder / f"{name}.json").unlink(missing_ok=True)
