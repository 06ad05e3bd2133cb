"""The devices that ResourceSlices offer: of the newest generation of each pool, once all of its slices are there.

Source: resource.k8s.io/v1 (ResourceSlice, ResourcePool); v1beta2 is equal, v1beta1 wraps a device in ``basic``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import partial
from itertools import chain
from typing import Any, Final

import msgspec

from engine.model import quantities
from engine.model.diagnostics import ObjectKey
from engine.model.plan_cache import CacheKey, Memo, PlanCache
from engine.plan.claims.cel import Amount, CelError, Domains, version
from engine.wire.dra import DRIVER, PHYSICAL_ID, TYPE, VERSIONS, VNPU

APIS: Final = tuple(f"resource.k8s.io/{version}" for version in VERSIONS)
_MAX_CHIP: Final = 255
#: Devices of slices, while the slices stay what they are.
_DEVICES: Final = CacheKey("devices of resource slices", Memo[tuple["ClaimDevice", ...]], limit=32768)


class ClaimDevice(msgspec.Struct, frozen=True):
    """One device of a node: its name in the pool, its chip (physical id; None: not said), whether it is a part of it.

    ``values`` are its attributes by full name, for constraints; ``seen`` is what selectors see of it; ``taints`` are
    those that keep claims off.
    """

    name: str
    pool: str
    chip: int | None
    part: bool
    values: Mapping[str, Any]
    seen: Mapping[str, Any]
    taints: tuple[Mapping[str, Any], ...]


def devices(objects: Mapping[ObjectKey, Mapping[str, Any]], cache: PlanCache) -> dict[str, tuple[ClaimDevice, ...]]:
    """The devices of the driver by node, in the order of their names."""
    pools: dict[tuple[str, str], list[tuple[ObjectKey, Mapping[str, Any]]]] = {}
    for key, raw in newest(objects, "ResourceSlice").items():
        spec = part(raw, "spec")
        node, pool = spec.get("nodeName"), part(spec, "pool")
        if spec.get("driver") == DRIVER and isinstance(node, str) and node:
            pools.setdefault((node, str(pool.get("name"))), []).append((key, spec))
    read = cache[_DEVICES]
    out: dict[str, list[tuple[ClaimDevice, ...]]] = {}
    for (node, name), slices in sorted(pools.items(), key=lambda row: row[0]):
        latest = max(_number(part(spec, "pool").get("generation")) for _, spec in slices)
        current = [row for row in slices if _number(part(row[1], "pool").get("generation")) == latest]
        # while a driver replaces its slices, only some of the new ones are there
        if len(current) < max(_number(part(spec, "pool").get("resourceSliceCount")) for _, spec in current):
            continue
        for key, spec in current:
            out.setdefault(node, []).append(read.of(key, spec, partial(_read, name, spec)))
    return {node: found[0] if len(found) == 1 else _in_order(chain(*found)) for node, found in out.items()}


def _read(pool: str, spec: Mapping[str, Any]) -> tuple[ClaimDevice, ...]:
    return _in_order(_devices(pool, rows(spec, "devices")))


def _in_order(found: Iterable[ClaimDevice]) -> tuple[ClaimDevice, ...]:
    return tuple(sorted(found, key=lambda one: (one.pool, one.name)))


def newest(objects: Mapping[ObjectKey, Mapping[str, Any]], kind: str) -> dict[ObjectKey, Mapping[str, Any]]:
    """The objects of a kind, each in the newest version that it was read in."""
    found: dict[tuple[str, str], ObjectKey] = {}
    for key in objects:
        if key.kind == kind and key.api_version in APIS:
            name = (key.namespace, key.name)
            before = found.get(name)
            if before is None or APIS.index(key.api_version) < APIS.index(before.api_version):
                found[name] = key
    return {key: objects[key] for key in sorted(found.values())}


def part(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A field that is an object; empty where it is none."""
    value = raw.get(name)
    return value if isinstance(value, Mapping) else {}


def rows(raw: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """A field that is a list of objects; anything else in it is left out."""
    value = raw.get(name)
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []


def _devices(pool: str, found: Iterable[Mapping[str, Any]]) -> Iterable[ClaimDevice]:
    for raw in found:
        basic = part(raw, "basic") or raw
        values = {
            _full(name): _value(one) for name, one in part(basic, "attributes").items() if isinstance(one, Mapping)
        }
        sizes = {
            _full(name): Amount(quantities.parse(str(one.get("value"))) or Fraction(0))
            for name, one in part(basic, "capacity").items()
            if isinstance(one, Mapping)
        }
        chip = values.get(f"{DRIVER}/{PHYSICAL_ID}")
        known = isinstance(chip, int) and not isinstance(chip, bool) and 0 <= chip <= _MAX_CHIP
        # partitions of a device that is shared by counters are not counted here, so none of them is given
        if rows(basic, "consumesCounters") or basic.get("allNodes") or basic.get("nodeSelector"):
            continue
        yield ClaimDevice(
            name=str(raw.get("name")),
            pool=pool,
            chip=chip if known else None,
            part=values.get(f"{DRIVER}/{TYPE}") == VNPU,
            values=values,
            seen={
                "driver": DRIVER,
                "attributes": _by_domain(values),
                "capacity": _by_domain(sizes),
                "allowMultipleAllocations": False,
            },
            taints=tuple(row for row in rows(basic, "taints") if row.get("effect") in ("NoSchedule", "NoExecute")),
        )


def _full(name: object) -> str:
    """The full name of an attribute; without a domain it belongs to the driver's."""
    text = str(name)
    return text if "/" in text else f"{DRIVER}/{text}"


def _by_domain(values: Mapping[str, Any]) -> Domains:
    out: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        domain, _, own = name.partition("/")
        out.setdefault(domain, {})[own] = value
    return Domains(out)


def _value(raw: Mapping[str, Any]) -> Any:
    for kind in ("int", "bool", "string"):
        if raw.get(kind) is not None:
            return raw[kind]
    try:
        return version(str(raw.get("version")))
    except CelError:
        return None


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


__all__ = ["APIS", "ClaimDevice", "devices", "newest", "part", "rows"]
