"""``belay-pass``: the last completed pass of a shard, and what hinders the next one; for people and their tools."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from belay.engine.model.freshness import LastPass
from belay.engine.model.labels import ABOUT_LABEL
from belay.engine.model.times import parse_rfc3339, rfc3339
from belay.engine.wire.names import MAIN_SHARD, PASS, SYSTEM, bounded

ABOUT: Final = "pass"
_LONGEST: Final = 512


def name_of(shard: str) -> str:
    """``belay-pass`` of the main shard, ``belay-pass.<shard>`` of another shard."""
    return PASS if shard == MAIN_SHARD else bounded(f"{PASS}.{shard}")


def build(last: LastPass) -> dict[str, Any]:
    """The ConfigMap after a completed pass; it holds no hindrance."""
    data = {
        "shard": last.shard,
        "pass": last.identifier,
        "time": rfc3339(float(int(last.time))),
        "revision": last.revision,
        "every": f"{last.every:g}",
        "reason": "",
        "problem": "",
        "said": "",
        "by": last.by,
    }
    metadata = {"name": name_of(last.shard), "namespace": SYSTEM, "labels": {ABOUT_LABEL: ABOUT}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def hindrance(shard: str, reason: str, problem: str, said: float, by: str) -> dict[str, Any]:
    """A merge patch that says why no pass comes; what the last one was stays."""
    told = {"reason": reason, "problem": problem[:_LONGEST], "said": rfc3339(float(int(said))), "by": by}
    metadata = {"name": name_of(shard), "namespace": SYSTEM, "labels": {ABOUT_LABEL: ABOUT}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"shard": shard, **told}}


def parse(config_map: Mapping[str, Any]) -> LastPass:
    """The last pass; what cannot be read counts as long ago."""
    data = config_map.get("data")
    values = {str(key): str(value) for key, value in data.items()} if isinstance(data, Mapping) else {}
    return LastPass(
        shard=values.get("shard") or MAIN_SHARD,
        identifier=values.get("pass", ""),
        time=_time(values.get("time", "")),
        revision=values.get("revision", ""),
        every=_seconds(values.get("every", "")),
        reason=values.get("reason", ""),
        problem=values.get("problem", "")[:_LONGEST],
        said=_time(values.get("said", "")),
        by=values.get("by", ""),
    )


def _time(text: str) -> float:
    try:
        return parse_rfc3339(text)
    except ValueError:
        return 0.0


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        return 10.0
    return seconds if math.isfinite(seconds) and seconds > 0 else 10.0
