"""Annotations, names and quantities of pods and nodes."""

from __future__ import annotations

from typing import Any, Final

import orjson

from belay.engine.model import faults, public_faults, quantities, times
from belay.engine.wire import objects as wire_objects
from belay.engine.wire import parts, podannotations
from belay.engine.wire.errors import WireError
from tests.fuzz.harness import Form, Harness, objects, text


def _annotations(obj: Any) -> None:
    found = (obj.get("metadata") or {}).get("annotations")
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        return
    for resource in ("huawei.com/Ascend910", "huawei.com/npu", "huawei.com/Ascend310P"):
        podannotations.chip_names(found, resource)
        parts.parse_share(found, resource)
        wire_objects.held_chips(found, resource)
    podannotations.rank_index(found)
    podannotations.configuration(found)
    if (pod := wire_objects.chips_only(obj)) is not None:
        podannotations.is_allocated(pod)


def _node(obj: Any) -> None:
    try:
        node = wire_objects.node(obj)
    except (TypeError, AttributeError, ValueError):
        return  # the observer names the field
    podannotations.physical_names(node.base_devices)
    podannotations.devices_of(node)
    wire_objects.check_devices(node)


def _names(found: str) -> None:
    parts.parse_cores(found)
    parts.vgroup(found)
    parts.chip_of(found)
    quantities.parse(found)
    quantities.whole(found)
    quantities.total([found, "1"])
    faults.parse_filters(found, found)
    try:
        times.parse_rfc3339(found)
    except ValueError:
        return


def _public_fault(data: bytes) -> None:
    try:
        body = orjson.loads(data)
    except ValueError:
        return
    if isinstance(body, dict):
        public_faults.read(body)


HARNESSES: Final = (
    Harness(
        "pod-annotations",
        objects(_annotations),
        ("engine/wire/podannotations.py", "engine/wire/parts.py"),
        (ValueError,),
    ),
    Harness(
        "node-annotations", objects(_node), ("engine/wire/podannotations.py", "engine/wire/objects.py"), (WireError,)
    ),
    Harness(
        "names",
        text(_names),
        ("engine/wire/parts.py", "engine/model/quantities.py", "engine/model/times.py", "engine/model/faults.py"),
        form=Form.TEXT,
    ),
    Harness("public-faults", _public_fault, ("engine/model/public_faults.py",)),
)
