"""The devices that ResourceSlices offer: of the newest generation of each pool, once all of its slices are there.

Devices that share a chip (partitionable devices, KEP-4815) say how much of the pool's counters they consume. A pool
with two devices of one name, or a device that names a counter which the pool lacks, offers nothing. Counters may stand
in the slices of the devices (Kubernetes 1.33, 1.34) or in slices of their own (since 1.35).

DeviceTaintRules add taints to devices, as if their driver had published these.

Source: resource.k8s.io/v1 (ResourceSlice, ResourcePool); v1beta2 is equal, v1beta1 wraps a device in ``basic``;
k8s.io/dynamic-resource-allocation/structured (which pools are complete and valid).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple

import msgspec

from belay.engine.model import quantities
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.plan_cache import CacheKey, Memo, PlanCache
from belay.engine.model.unstructured import nested_list, nested_map
from belay.engine.plan.claims.cel import Amount, CelError, Domains, Expression, holds, parse, version
from belay.engine.wire.dra import DRIVER, PHYSICAL_ID, TAINT_RULE_VERSIONS, TYPE, VERSIONS, VNPU

APIS: Final = tuple(f"resource.k8s.io/{version}" for version in VERSIONS)
_TAINT_RULES: Final = tuple(f"resource.k8s.io/{version}" for version in TAINT_RULE_VERSIONS)
_MAX_CHIP: Final = 255
#: Effects of taints that keep claims off; others only inform.
_KEEPING_OFF: Final = ("NoSchedule", "NoExecute")
#: Devices of nodes with the taints of rules, while both stay what they are.
_TAINTED: Final = CacheKey("devices with the taints of rules", Memo[tuple["ClaimDevice", ...]], limit=32768)
#: Devices and counters of slices, while the slices stay what they are.
_SLICES: Final = CacheKey("devices of resource slices", Memo["_Slice"], limit=32768)


class Counter(NamedTuple):
    """A counter that devices of a pool share: pool, counter set and name."""

    pool: str
    of: str
    name: str


#: Amounts by counter.
Amounts = Mapping[Counter, Fraction]


class ClaimDevice(msgspec.Struct, frozen=True):
    """One device of a node: its name in the pool, its chip (physical id; None: not said), whether it is a part of it.

    ``values`` are its attributes by full name, for constraints; ``seen`` is what selectors see of it; ``taints`` are
    those that keep claims off; ``consumes`` what it takes of shared counters, nothing for a device that shares none.
    """

    name: str
    pool: str
    chip: int | None
    part: bool
    values: Mapping[str, Any]
    seen: Mapping[str, Any]
    taints: tuple[Mapping[str, Any], ...]
    consumes: tuple[tuple[Counter, Fraction], ...] = ()


class Offer(NamedTuple):
    """What the driver offers: devices by node, in the order of their names, and the counters they share, by node."""

    devices: dict[str, tuple[ClaimDevice, ...]]
    counters: dict[str, dict[Counter, Fraction]]


class _Slice(NamedTuple):
    """One slice; ``problem``: why its pool offers nothing."""

    devices: tuple[ClaimDevice, ...]
    counters: Amounts
    problem: str = ""


def devices(objects: Mapping[ObjectKey, Mapping[str, Any]], cache: PlanCache) -> Offer:
    """The devices of the driver by node."""
    pools: dict[tuple[str, str], list[tuple[ObjectKey, Mapping[str, Any]]]] = {}
    for key, raw in newest(objects, "ResourceSlice").items():
        spec = nested_map(raw, "spec")
        node, pool = spec.get("nodeName"), nested_map(spec, "pool")
        if not node and nested_list(spec, "sharedCounters"):
            node = pool.get("name")  # the driver's pools are named after their nodes
        if spec.get("driver") == DRIVER and isinstance(node, str) and node:
            pools.setdefault((node, str(pool.get("name"))), []).append((key, spec))
    read = cache[_SLICES]
    out: dict[str, list[tuple[ClaimDevice, ...]]] = {}
    counters: dict[str, dict[Counter, Fraction]] = {}
    for (node, name), slices in sorted(pools.items(), key=lambda row: row[0]):
        latest = max(_number(nested_map(spec, "pool").get("generation")) for _, spec in slices)
        current = [row for row in slices if _number(nested_map(row[1], "pool").get("generation")) == latest]
        # while a driver replaces its slices, only some of the new ones are there
        if len(current) < max(_number(nested_map(spec, "pool").get("resourceSliceCount")) for _, spec in current):
            continue
        found = [read.of(key, spec, partial(_read, name, spec)) for key, spec in current]
        shared = _counters(found)
        if shared is None:
            continue
        out.setdefault(node, []).extend(one.devices for one in found)
        if shared:
            counters.setdefault(node, {}).update(shared)
    offered = {node: found[0] if len(found) == 1 else _in_order(chain(*found)) for node, found in out.items()}
    rules = tuple(_taint_rules(objects))
    if rules:
        with_taints = cache[_TAINTED]
        offered = {
            node: with_taints.of(node, (rules, found), partial(_with_taints, found, rules))
            for node, found in offered.items()
        }
    return Offer(offered, counters)


class _TaintRule(NamedTuple):
    """A DeviceTaintRule: the pool and device it names (None: any), its selectors (None: cannot be read), its taint."""

    pool: object
    device: object
    selectors: tuple[Expression | None, ...]
    taint: Mapping[str, Any]


def _taint_rules(objects: Mapping[ObjectKey, Mapping[str, Any]]) -> Iterable[_TaintRule]:
    """The rules that keep claims off devices of the driver; one that also names a DeviceClass
    (v1alpha3) counts as if it did not.
    """
    for raw in newest(objects, "DeviceTaintRule", _TAINT_RULES).values():
        taint = nested_map(raw, "spec", "taint")
        selector = nested_map(raw, "spec", "deviceSelector")
        if taint.get("effect") in _KEEPING_OFF and selector.get("driver") in (None, DRIVER):
            texts = (str(nested_map(row, "cel").get("expression") or "") for row in nested_list(selector, "selectors"))
            yield _TaintRule(selector.get("pool"), selector.get("device"), tuple(map(_expression, texts)), taint)


def _expression(text: str) -> Expression | None:
    try:
        return parse(text)
    except CelError:
        return None


def _with_taints(found: Sequence[ClaimDevice], rules: Sequence[_TaintRule]) -> tuple[ClaimDevice, ...]:
    return tuple(_tainted(one, rules) for one in found)


def _tainted(device: ClaimDevice, rules: Sequence[_TaintRule]) -> ClaimDevice:
    """The device with the taints of the rules that select it; those without a selector select every device."""
    found = tuple(
        rule.taint
        for rule in rules
        if rule.pool in (None, device.pool)
        and rule.device in (None, device.name)
        and all(_selected(device, selector) for selector in rule.selectors)
    )
    return msgspec.structs.replace(device, taints=(*device.taints, *found)) if found else device


def _selected(device: ClaimDevice, selector: Expression | None) -> bool:
    """Whether a selector of a rule takes a device (v1alpha3 only). One that cannot be read takes every device: a rule
    that is not understood must not put a chip into use.
    """
    if selector is None:
        return True
    try:
        return holds(selector, {"device": device.seen})
    except CelError:
        return False


def _read(pool: str, spec: Mapping[str, Any]) -> _Slice:
    found = _in_order(_devices(pool, nested_list(spec, "devices")))
    if len({one.name for one in found}) < len(found):
        return _Slice(found, {}, "two devices have one name")
    counters: dict[Counter, Fraction] = {}
    for row in nested_list(spec, "sharedCounters"):
        for name, one in nested_map(row, "counters").items():
            counter = Counter(pool, str(row.get("name")), str(name))
            if counter in counters:
                return _Slice(found, {}, "two counter sets have one name")
            counters[counter] = _amount(one) or Fraction(0)
    return _Slice(found, counters)


def _counters(found: list[_Slice]) -> dict[Counter, Fraction] | None:
    """The counters of a pool; None when the pool is not valid."""
    if any(one.problem for one in found):
        return None
    if len(found) > 1 and len({d.name for one in found for d in one.devices}) < sum(len(one.devices) for one in found):
        return None
    counters: dict[Counter, Fraction] = {}
    for one in found:
        if one.counters and {(c.pool, c.of) for c in one.counters} & {(c.pool, c.of) for c in counters}:
            return None
        counters.update(one.counters)
    consumed = (counter for one in found for device in one.devices for counter, _ in device.consumes)
    return None if any(counter not in counters for counter in consumed) else counters


def _amount(raw: object) -> Fraction | None:
    """The value of a counter; None where it cannot be read."""
    return quantities.parse(str(raw.get("value"))) if isinstance(raw, Mapping) else None


def _in_order(found: Iterable[ClaimDevice]) -> tuple[ClaimDevice, ...]:
    return tuple(sorted(found, key=lambda one: (one.pool, one.name)))


def newest(
    objects: Mapping[ObjectKey, Mapping[str, Any]], kind: str, apis: Sequence[str] = APIS
) -> dict[ObjectKey, Mapping[str, Any]]:
    """The objects of a kind, each in the newest of these versions that it was read in."""
    found: dict[tuple[str, str], ObjectKey] = {}
    for key in objects:
        if key.kind == kind and key.api_version in apis:
            name = (key.namespace, key.name)
            before = found.get(name)
            if before is None or apis.index(key.api_version) < apis.index(before.api_version):
                found[name] = key
    return {key: objects[key] for key in sorted(found.values())}


def _devices(pool: str, found: Iterable[Mapping[str, Any]]) -> Iterable[ClaimDevice]:
    for raw in found:
        basic = nested_map(raw, "basic") or raw
        values = {
            _full(name): _value(one)
            for name, one in nested_map(basic, "attributes").items()
            if isinstance(one, Mapping)
        }
        sizes = {
            _full(name): Amount(quantities.parse(str(one.get("value"))) or Fraction(0))
            for name, one in nested_map(basic, "capacity").items()
            if isinstance(one, Mapping)
        }
        chip = values.get(f"{DRIVER}/{PHYSICAL_ID}")
        known = isinstance(chip, int) and not isinstance(chip, bool) and 0 <= chip <= _MAX_CHIP
        if basic.get("allNodes") or basic.get("nodeSelector"):
            continue  # a chip is in one node
        consumes = []
        for row in nested_list(basic, "consumesCounters"):
            for counter, one in nested_map(row, "counters").items():
                consumes.append((Counter(pool, str(row.get("counterSet")), str(counter)), _amount(one)))
        known_amounts = tuple((counter, amount) for counter, amount in consumes if amount is not None)
        if len(known_amounts) < len(consumes):
            continue  # it would look as if it took nothing
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
            taints=tuple(row for row in nested_list(basic, "taints") if row.get("effect") in _KEEPING_OFF),
            consumes=known_amounts,
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


__all__ = ["APIS", "Amounts", "ClaimDevice", "Counter", "Offer", "devices", "newest"]
