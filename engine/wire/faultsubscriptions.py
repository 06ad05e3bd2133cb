"""``belay-fault-subscribers``: the inference services whose controllers are subscribed to faults; written by the server
that serves, read by passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from belay.engine.model.fault_subscriptions import FaultSubscriptions
from belay.engine.model.labels import ABOUT_LABEL
from belay.engine.wire.errors import WireError
from belay.engine.wire.names import FAULT_SUBSCRIBERS, SYSTEM

KEY: Final = "subscribers.json"
MOST: Final = 5_000
"""Most services: a name has at most 63 characters, as the value of a label, so they stay below 400 KiB."""
_LONGEST: Final = 63
_LONGEST_SERVER: Final = 253


class _Record(msgspec.Struct):
    time: int
    epoch: int
    server: str = ""
    services: tuple[str, ...] = ()


def parse(config_map: Mapping[str, Any]) -> FaultSubscriptions:
    """The record.

    Raises:
        WireError: it cannot be read.
    """
    try:
        record = msgspec.json.decode((config_map.get("data") or {}).get(KEY) or "", type=_Record)
    except (msgspec.DecodeError, RecursionError, TypeError, AttributeError, UnicodeError) as error:
        where = f"ConfigMap/{SYSTEM}/{FAULT_SUBSCRIBERS}"
        raise WireError(where, f"data.{KEY}", f"is not a record of subscribers: {error}; delete it") from error
    services = frozenset(record.services[:MOST])
    return FaultSubscriptions(services, record.time, record.epoch, record.server[:_LONGEST_SERVER])


def build(subscriptions: FaultSubscriptions) -> dict[str, Any]:
    """The ConfigMap; equal records give equal text. Names that no label can hold are no services."""
    services = tuple(sorted(name for name in subscriptions.services if 0 < len(name) <= _LONGEST)[:MOST])
    record = _Record(subscriptions.time_ms, subscriptions.epoch, subscriptions.server[:_LONGEST_SERVER], services)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": FAULT_SUBSCRIBERS, "namespace": SYSTEM, "labels": {ABOUT_LABEL: "fault-subscribers"}},
        "data": {KEY: msgspec.json.encode(record).decode()},
    }


__all__ = ["KEY", "MOST", "build", "parse"]
