"""``belay-orders-<node>`` and ``belay-report-<node>``: the desired state of a node's chips, and its agent's report.

Orders are a desired state, not a queue; destructive orders carry an epoch per chip that only grows. Chips are named by
device name (``Ascend910-4``) in the ConfigMaps and by physical id in the model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeVar

import msgspec

from belay.engine.model.actions import ResetChips
from belay.engine.model.cluster import AgentChip, AgentReport, AgentVNPU, InPlaceReset, Orders, ResetOrder
from belay.engine.model.labels import FORMAT_ANNOTATION, MANAGED_BY
from belay.engine.model.seals import Warrant
from belay.engine.wire import formats
from belay.engine.wire.errors import WireError
from belay.engine.wire.gojson import read_object
from belay.engine.wire.names import NODES, ORDERS_PREFIX, REPORT_PREFIX, SYSTEM
from belay.engine.wire.seals import covered, digests, seal_of

ORDERS_KEY = "orders.json"
REPORT_KEY = "report.json"
MAX_ERRORS = 20
#: Chips that the reset groups of a report name, at most.
MAX_GROUPED = 1024
Count = Annotated[int, msgspec.Meta(ge=0, le=2**52)]
"""A count, a completed epoch or a time in ms from a node's report: below the largest integer that JSON holds exactly,
so that a next epoch exists.
"""
Epoch = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""The epoch of an order."""

_T = TypeVar("_T")
_NAME = re.compile(r"^([A-Za-z][A-Za-z0-9]*-)(\d{1,4})$")


class _InPlaceReset(msgspec.Struct, rename="camel"):
    pod: str
    uid: str
    policy: str
    heal_seconds: int = 15
    boot_seconds: int = 150


class _Reset(msgspec.Struct, rename="camel"):
    epoch: Epoch
    group: list[str]
    reason: str = ""
    not_before: int = 0
    left: int | msgspec.UnsetType = msgspec.UNSET
    online: _InPlaceReset | msgspec.UnsetType = msgspec.UNSET


class _ChipOrder(msgspec.Struct, rename="camel"):
    isolate: str | None = None
    reset: _Reset | None = None


class _Layout(msgspec.Struct, rename="camel"):
    epoch: Epoch = 0
    layout: dict[str, list[str]] = {}


class _Orders(msgspec.Struct, rename="camel"):
    node: str
    generation: int = 0
    revision: str = ""
    policy_digest: str = ""
    issued: int = 0
    not_after: int = 0
    chips: dict[str, _ChipOrder] = {}
    vnpu: _Layout | None = None
    pool: str | msgspec.UnsetType = msgspec.UNSET
    warrants: dict[str, Warrant] | msgspec.UnsetType = msgspec.UNSET


class _ChipReport(msgspec.Struct, rename="camel"):
    serial: str = ""
    processes: Count = 0
    idle_since: Count | None = None
    reset_epoch_done: Count = 0
    reset_result: str = ""
    reset_stage: str | msgspec.UnsetType = msgspec.UNSET


class _VNPUReport(msgspec.Struct, rename="camel"):
    id: int
    chip: str
    template: str
    used_by: str | None = None


class _VNPUs(msgspec.Struct, rename="camel"):
    epoch_done: Count = 0
    result: str = ""
    devices: list[_VNPUReport] = []


#: Seconds for which chips are idle before a reset, where a report does not say otherwise.
IDLE_WAIT: Final = 60.0


#: Most letters of a chip's model that are kept.
_CHIP_NAME_LENGTH: Final = 40


class _Report(msgspec.Struct, rename="camel"):
    node: str
    boot: str = ""
    seq: Count = 0
    time: Count = 0
    orders_seen: Count = 0
    driver: dict[str, Any] = {}
    chips: dict[str, _ChipReport] = {}
    vnpu: _VNPUs | None = None
    errors: list[str] = []
    orders_trust: str | msgspec.UnsetType = msgspec.UNSET
    idle_wait: float | msgspec.UnsetType = msgspec.UNSET
    reset_groups: list[list[str]] | msgspec.UnsetType = msgspec.UNSET


def chip_number(name: str) -> int:
    """``Ascend910-4`` → 4.

    Raises:
        ValueError: not a device name.
    """
    match = _NAME.match(name)
    if match is None:
        raise ValueError(f"{name!r} is not a device name such as Ascend910-0")
    return int(match.group(2))


def parse_orders(config_map: Mapping[str, Any]) -> Orders:
    """Read an orders ConfigMap.

    Raises:
        WireError: not valid, or its ``node`` differs from its name.
    """
    where, node, text, version = _open(config_map, ORDERS_PREFIX, ORDERS_KEY)
    raw = _convert(where, ORDERS_KEY, text, _Orders)
    seal = seal_of(config_map)
    _same_node(where, ORDERS_KEY, raw.node, node)
    try:
        isolate = {chip_number(c): o.isolate for c, o in sorted(raw.chips.items()) if o.isolate}
        resets = {
            chip_number(c): ResetOrder(
                epoch=o.reset.epoch,
                group=tuple(sorted(chip_number(g) for g in o.reset.group)),
                reason=o.reset.reason,
                not_before_ms=o.reset.not_before,
                left=-1 if o.reset.left is msgspec.UNSET else o.reset.left,
                online=None
                if o.reset.online is msgspec.UNSET
                else InPlaceReset(*msgspec.structs.astuple(o.reset.online)),
            )
            for c, o in sorted(raw.chips.items())
            if o.reset
        }
        vnpu = raw.vnpu or _Layout()
        layout = {chip_number(c): tuple(templates) for c, templates in sorted(vnpu.layout.items())}
    except ValueError as error:
        raise WireError(where, f"data.{ORDERS_KEY}.chips", str(error)) from error
    return Orders(
        node=node,
        resource_version=version,
        generation=raw.generation,
        revision=raw.revision,
        policy_digest=raw.policy_digest,
        issued_ms=raw.issued,
        not_after_ms=raw.not_after,
        isolate=isolate,
        resets=resets,
        vnpu_epoch=vnpu.epoch,
        vnpu_layout=layout,
        pool="" if raw.pool is msgspec.UNSET else raw.pool,
        warrants={} if raw.warrants is msgspec.UNSET else raw.warrants,
        seal=seal,
        digests=digests(covered(config_map)) if seal is not None else {},
    )


def build_orders(orders: Orders, prefix: str) -> dict[str, Any]:
    """The ConfigMap for ``orders``; ``prefix`` is the node's device name prefix (``Ascend910-``)."""
    chips: dict[str, _ChipOrder] = {}
    for index in sorted({*orders.isolate, *orders.resets}):
        reset = orders.resets.get(index)
        chips[f"{prefix}{index}"] = _ChipOrder(
            isolate=orders.isolate.get(index),
            reset=_reset(reset, prefix) if reset else None,
        )
    body = _Orders(
        node=orders.node,
        generation=orders.generation,
        revision=orders.revision,
        policy_digest=orders.policy_digest,
        issued=orders.issued_ms,
        not_after=orders.not_after_ms,
        chips=chips,
        vnpu=_Layout(orders.vnpu_epoch, {f"{prefix}{c}": list(t) for c, t in sorted(orders.vnpu_layout.items())}),
        pool=orders.pool or msgspec.UNSET,
        warrants=orders.warrants or msgspec.UNSET,
    )
    return _config_map(SYSTEM, ORDERS_PREFIX + orders.node, ORDERS_KEY, body)


def _reset(reset: ResetOrder, prefix: str) -> _Reset:
    return _Reset(
        reset.epoch,
        [f"{prefix}{g}" for g in reset.group],
        reset.reason,
        reset.not_before_ms,
        reset.left if reset.left >= 0 else msgspec.UNSET,
        _InPlaceReset(*msgspec.structs.astuple(reset.online)) if reset.online is not None else msgspec.UNSET,
    )


def reset_order(action: ResetChips, now_ms: int, left: int = -1) -> ResetOrder:
    """The order of an action at ``now_ms`` (Unix ms) for a group with ``left`` resets left, -1 if not counted."""
    return ResetOrder(
        epoch=action.epoch,
        group=tuple(sorted(map(chip_number, action.chips))),
        reason=action.reason,
        not_before_ms=action.not_before or now_ms,
        left=left,
        online=action.online,
    )


def parse_report(config_map: Mapping[str, Any]) -> AgentReport:
    """Read an agent's report.

    Raises:
        WireError: not valid, or its ``node`` differs from its name.
    """
    where, node, text, _version = _open(config_map, REPORT_PREFIX, REPORT_KEY)
    raw = _convert(where, REPORT_KEY, text, _Report)
    _same_node(where, REPORT_KEY, raw.node, node)
    vnpu = raw.vnpu or _VNPUs()
    try:
        chips = {
            chip_number(name): AgentChip(
                serial=chip.serial,
                processes=chip.processes,
                idle_since_ms=chip.idle_since,
                reset_epoch_done=chip.reset_epoch_done,
                reset_result=chip.reset_result,
                reset_stage="" if chip.reset_stage is msgspec.UNSET else chip.reset_stage,
            )
            for name, chip in sorted(raw.chips.items())
        }
        devices = tuple(
            AgentVNPU(id=d.id, chip=chip_number(d.chip), template=d.template, used_by=d.used_by or "")
            for d in sorted(vnpu.devices, key=lambda d: (d.chip, d.id))
        )
        groups = [] if raw.reset_groups is msgspec.UNSET else raw.reset_groups
        if sum(map(len, groups)) > MAX_GROUPED:
            raise ValueError(f"resetGroups must name at most {MAX_GROUPED} chips")
        reset_groups = tuple(sorted(tuple(sorted(map(chip_number, group))) for group in groups))
    except ValueError as error:
        raise WireError(where, f"data.{REPORT_KEY}", str(error)) from error
    return AgentReport(
        node=node,
        boot=raw.boot,
        seq=raw.seq,
        time_ms=raw.time,
        orders_seen=raw.orders_seen,
        chips=chips,
        vnpu_epoch_done=vnpu.epoch_done,
        vnpu_result=vnpu.result,
        vnpus=devices,
        errors=tuple(e[:200] for e in raw.errors[:MAX_ERRORS]),
        orders_trust="" if raw.orders_trust is msgspec.UNSET else raw.orders_trust[:20],
        idle_wait=IDLE_WAIT if raw.idle_wait is msgspec.UNSET else max(0.0, raw.idle_wait),
        chip_name=_chip_name(raw.driver),
        reset_groups=reset_groups,
    )


def _chip_name(driver: Mapping[str, Any]) -> str:
    """The model of the chips as the driver names it; empty if the report has none."""
    name = driver.get("chip")
    return name[:_CHIP_NAME_LENGTH] if isinstance(name, str) else ""


def build_report(report: AgentReport, prefix: str, driver: Mapping[str, Any]) -> dict[str, Any]:
    """The ConfigMap as an agent writes it; ``driver`` describes the driver (name, version)."""
    body = _Report(
        node=report.node,
        boot=report.boot,
        seq=report.seq,
        time=report.time_ms,
        orders_seen=report.orders_seen,
        driver=dict(driver),
        chips={
            f"{prefix}{index}": _ChipReport(
                serial=chip.serial,
                processes=chip.processes,
                idle_since=chip.idle_since_ms,
                reset_epoch_done=chip.reset_epoch_done,
                reset_result=chip.reset_result,
                reset_stage=chip.reset_stage or msgspec.UNSET,
            )
            for index, chip in sorted(report.chips.items())
        },
        vnpu=_VNPUs(
            report.vnpu_epoch_done,
            report.vnpu_result,
            [_VNPUReport(d.id, f"{prefix}{d.chip}", d.template, d.used_by or None) for d in report.vnpus],
        ),
        errors=[e[:200] for e in report.errors[:MAX_ERRORS]],
        orders_trust=report.orders_trust or msgspec.UNSET,
        idle_wait=msgspec.UNSET if report.idle_wait == IDLE_WAIT else report.idle_wait,
        reset_groups=[[f"{prefix}{chip}" for chip in group] for group in report.reset_groups] or msgspec.UNSET,
    )
    config_map = _config_map(NODES, REPORT_PREFIX + report.node, REPORT_KEY, body)
    # always named: a write of the agent leaves annotations of others, and a newer agent's would stay after a downgrade
    config_map["metadata"]["annotations"] = {FORMAT_ANNOTATION: str(formats.NEWEST[REPORT_PREFIX])}
    return config_map


def _open(config_map: Mapping[str, Any], prefix: str, key: str) -> tuple[str, str, object, str]:
    metadata = config_map.get("metadata") or {}
    name = str(metadata.get("name", ""))
    where = f"ConfigMap/{metadata.get('namespace', '')}/{name}"
    if not name.startswith(prefix) or len(name) == len(prefix):
        raise WireError(where, "metadata.name", f"must be {prefix}<node>")
    if prefix in formats.NEWEST:
        formats.check(config_map, prefix)
    data = config_map.get("data")
    text = data.get(key) if isinstance(data, dict) else None
    return where, name.removeprefix(prefix), text, str(metadata.get("resourceVersion", ""))


def _convert(where: str, key: str, text: object, shape: type[_T]) -> _T:
    value = read_object(where, f"data.{key}", text)
    try:
        return msgspec.convert(value, shape)
    except msgspec.ValidationError as error:
        raise WireError(where, f"data.{key}", str(error)) from error


def _same_node(where: str, key: str, claimed: str, node: str) -> None:
    if claimed != node:
        raise WireError(
            where, f"data.{key}.node", f"says {claimed!r} but the object belongs to node {node!r}; it is ignored"
        )


def _config_map(namespace: str, name: str, key: str, body: msgspec.Struct) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace, "labels": {MANAGED_BY: "belay"}},
        "data": {key: msgspec.json.encode(body, order="deterministic").decode()},
    }
