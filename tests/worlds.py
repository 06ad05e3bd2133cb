"""Builders for unit tests: small worlds of nodes, reports and pods without a cluster.

Every builder has defaults that make a plain healthy Atlas 800T A2 server, so a test names only what it is about.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from typing import Any

from belay.engine.documents import Desired
from belay.engine.load import load
from belay.engine.model.chip_masks import mask_of
from belay.engine.model.cluster import (
    AgentChip,
    AgentReport,
    ChipFault,
    Container,
    DeviceReport,
    Node,
    NodeDevice,
    NodeReport,
    Observed,
    Orders,
    Pod,
    ResetOrder,
    SwitchReport,
    Taint,
)
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.history import History
from belay.engine.wire import deviceinfo
from tests.steps import Steps

#: 2026-09-01T08:00:00Z, the time of most test worlds.
NOW = 1788249600.0
GIB = 1 << 30

A2_LABELS = {
    "accelerator": "huawei-Ascend910",
    "accelerator-type": "module-910b-8",
    "servertype": "Ascend910B-20",
    "host-arch": "huawei-arm",
    "node.kubernetes.io/npu.chip.name": "910B3",
}


def node(
    name: str,
    *,
    chips: int = 8,
    resource: str = "huawei.com/Ascend910",
    prefix: str = "Ascend910-",
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    ready: bool = True,
    ready_changed: float = NOW - 86400,
    created: float = NOW - 30 * 86400,
    unschedulable: bool = False,
    taints: Iterable[Taint] = (),
    allocatable: dict[str, int] | None = None,
    base: bool = True,
) -> Node:
    """A node; ``base=False`` leaves out annotation ``baseDeviceInfos``, ``chips=0`` makes a plain CPU node."""
    sizes = {"cpu": 192_000, "memory": 1536 * GIB, "pods": 110, "ephemeral-storage": 900 * GIB}
    if chips:
        sizes[resource] = chips
    sizes |= allocatable or {}
    merged = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "arm64"}
    merged |= (A2_LABELS if labels is None and chips else {}) | (labels or {})
    devices = {f"{prefix}{i}": {"IP": f"192.168.{i}.1", "SuperDeviceID": i} for i in range(chips)} if base else {}
    return Node(
        name=name,
        uid=f"uid-{name}",
        resource_version="1",
        labels=merged,
        annotations=annotations or {},
        created=created,
        ready=ready,
        ready_changed=ready_changed,
        unschedulable=unschedulable,
        taints=tuple(taints),
        capacity=dict(sizes),
        allocatable=sizes,
        internal_ip="10.0.0.1",
        base_chips=mask_of(list(range(chips))) if base else 0,
        base_devices=devices,
    )


def fault(
    chip: int,
    code: str = "80C98001",
    level: str = "RestartNPU",
    *,
    kind: str = "CardUnhealthy",
    at: float = NOW - 600,
) -> ChipFault:
    """One fault code of a report."""
    return ChipFault(kind=kind, chip=chip, code=code, level=level, time_ms=int(at * 1000))


def report(
    name: str,
    *,
    chips: int = 8,
    resource: str = "huawei.com/Ascend910",
    prefix: str = "Ascend910-",
    unhealthy: Iterable[int] | None = None,
    network: Iterable[int] | None = (),
    recovering: Iterable[int] = (),
    faults: Iterable[ChipFault] = (),
    manual: Iterable[int] = (),
    free: Iterable[int] | None = None,
    switch: SwitchReport | None = None,
    update_time: float = NOW - 2,
    version: str = "5000",
    super_pod_id: int = -2,
    server_index: int = -2,
    rack_id: int = -1,
) -> DeviceReport:
    """A verified device report. ``unhealthy`` defaults to the chips with a CardUnhealthy or PublicFault element
    whose level takes a chip out; ``network=None`` means that the key is missing."""
    faults = tuple(faults)
    out = {"NormalNPU", "NotHandleFault", "SubHealthFault"}
    if unhealthy is None:
        unhealthy = {f.chip for f in faults if f.chip >= 0 and f.kind != "CardNetworkUnhealthy" and f.level not in out}
    bad = mask_of(sorted(set(unhealthy)))
    full = mask_of(list(range(chips)))
    return DeviceReport(
        node=name,
        resource_version=version,
        resource=resource,
        prefix=prefix,
        listed=full,
        free=full & ~bad if free is None else mask_of(sorted(set(free))),
        unhealthy=bad,
        network_unhealthy=None if network is None else mask_of(sorted(set(network))),
        recovering=mask_of(sorted(set(recovering))),
        faults=faults,
        manual=mask_of(sorted(set(manual))),
        upgrades=(),
        switch=switch,
        update_time=update_time,
        super_pod_id=super_pod_id,
        server_index=server_index,
        rack_id=rack_id,
    )


def device_report(
    name: str, chips: int, bad: dict[int, tuple[str, str]], now: int, *, at: int = 0, super_pod: int = -2
) -> dict[str, Any]:
    """The report of a device plugin at ``now``: ``bad`` gives code and level of chips, faulty since ``at`` (ms)."""
    elements = [
        deviceinfo.fault_element("CardUnhealthy", f"Ascend910-{chip}", {code: (at, level)}, level)
        for chip, (code, level) in sorted(bad.items())
    ]
    lists = {
        "huawei.com/Ascend910": ",".join(f"Ascend910-{i}" for i in range(chips) if i not in bad),
        "huawei.com/Ascend910-Unhealthy": ",".join(f"Ascend910-{i}" for i in sorted(bad)),
        "huawei.com/Ascend910-NetworkUnhealthy": "",
        "huawei.com/Ascend910-Recovering": "",
        "huawei.com/Ascend910-Fault": json.dumps(elements),
    }
    return deviceinfo.build(name, device_list=lists, update_time=now, super_pod_id=super_pod)


def node_report(name: str, level: str = "SeparateFault", *, codes: Iterable[str] = ("00000011",)) -> NodeReport:
    """A NodeD report with one faulty device."""
    status = {"NotHandleFault": "Healthy", "PreSeparateFault": "PreSeparate"}.get(level, "UnHealthy")
    return NodeReport(node=name, devices=(NodeDevice("CPU", 1, tuple(codes), level),), status=status)


def switch(level: str = "Separate", *, codes: Iterable[str] = ("[0x00f1ff09,155912,cpu,na]",)) -> SwitchReport:
    """A switch report of an A3 node."""
    status = {"NotHandle": "Healthy", "SubHealthFault": "SubHealthy", "PreSeparate": "PreSeparate"}.get(
        level, "UnHealthy"
    )
    return SwitchReport(level=level, node_status=status, codes=tuple(codes), update_time=NOW - 2)


def pod(
    name: str,
    *,
    namespace: str = "train",
    node: str = "",
    chips: Iterable[int] = (),
    count: int | None = None,
    resource: str = "huawei.com/Ascend910",
    prefix: str = "Ascend910-",
    owner: tuple[str, str] | None = None,
    owner_api: str = "mindxdl.gitee.com/v1",
    owner_uid: str = "",
    phase: str = "",
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    deleting: float | None = None,
    grace_seconds: int = 30,
    created: float = NOW - 3600,
    scheduler: str = "volcano",
    priority: int = 0,
    requests: dict[str, int] | None = None,
    node_selector: dict[str, str] | None = None,
    exit_code: int | None = None,
    last_exit_code: int | None = None,
    rank: int | None = None,
    uid: str = "",
) -> Pod:
    """A pod; with ``node`` it runs there, without it is pending. ``owner`` is (kind, name)."""
    devices = tuple(f"{prefix}{i}" for i in sorted(chips))
    notes = dict(annotations or {})
    if devices:
        notes.setdefault("huawei.com/AscendReal", ",".join(devices))
        notes.setdefault(resource, ",".join(devices))
    if rank is not None:
        notes["hccl/rankIndex"] = str(rank)
    number = len(devices) if count is None else count
    wants = {"cpu": 1000, "memory": GIB} | ({resource: number} if number else {}) | (requests or {})
    state = phase or ("Running" if node else "Pending")
    return Pod(
        namespace=namespace,
        name=name,
        uid=uid or f"uid-{namespace}-{name}",
        resource_version="1",
        labels=labels or {},
        annotations=notes,
        owner_api=owner_api if owner else "",
        owner_kind=owner[0] if owner else "",
        owner_name=owner[1] if owner else "",
        owner_uid=(owner_uid or f"uid-{namespace}-{owner[1]}") if owner else "",
        node=node,
        phase=state,
        deleting=deleting,
        grace_seconds=grace_seconds,
        created=created,
        started=created if node else None,
        scheduler=scheduler,
        priority=priority,
        priority_class="",
        requests=wants,
        resource=resource if number else "",
        count=number,
        chips=devices,
        node_selector=node_selector or {},
        affinity={},
        tolerations=(),
        gates=(),
        pod_ip="172.16.0.1" if node else "",
        host_ip="10.0.0.1" if node else "",
        host_network=False,
        containers=(Container("main", state == "Running", exit_code, last_exit_code, 0),),
        volumes=(),
        reason="",
    )


def agent(
    name: str,
    *,
    chips: int = 8,
    processes: dict[int, int] | None = None,
    done: dict[int, tuple[int, str]] | None = None,
    orders_seen: int = 0,
    at: float = NOW - 5,
    chip_name: str = "",
) -> AgentReport:
    """A ``belay-report``; ``done`` maps a chip to (executed epoch, result)."""
    rows = {
        i: AgentChip(
            serial=f"{name}-{i}",
            processes=(processes or {}).get(i, 0),
            idle_since_ms=None if (processes or {}).get(i) else int((at - 3600) * 1000),
            reset_epoch_done=(done or {}).get(i, (0, ""))[0],
            reset_result=(done or {}).get(i, (0, ""))[1],
        )
        for i in range(chips)
    }
    return AgentReport(
        node=name, boot="boot-1", seq=1, time_ms=int(at * 1000), orders_seen=orders_seen, chips=rows,
        vnpu_epoch_done=0, vnpu_result="", vnpus=(), errors=(), chip_name=chip_name,
    )  # fmt: skip


def orders(
    name: str,
    *,
    generation: int = 1,
    isolate: dict[int, str] | None = None,
    resets: dict[int, ResetOrder] | None = None,
    issued: float = NOW - 60,
    not_after: float | None = None,
) -> Orders:
    """The standing orders of a node; ``notAfter`` defaults to 15 minutes after ``issued``."""
    end = issued + 900 if not_after is None else not_after
    return Orders(
        node=name, resource_version="7", generation=generation, revision="r1", policy_digest="",
        issued_ms=int(issued * 1000), not_after_ms=int(end * 1000), isolate=isolate or {}, resets=resets or {},
        vnpu_epoch=0, vnpu_layout={},
    )  # fmt: skip


def reset_order(epoch: int, group: Iterable[int], *, reason: str = "ChipFault") -> ResetOrder:
    """A reset order of one group."""
    return ResetOrder(epoch=epoch, group=tuple(group), reason=reason, not_before_ms=0)


def observed(
    nodes: Iterable[Node] = (),
    reports: Iterable[DeviceReport] = (),
    pods: Iterable[Pod] = (),
    *,
    node_reports: Iterable[NodeReport] = (),
    agents: Iterable[AgentReport] | None = None,
    standing: Iterable[Orders] = (),
    objects: Iterable[dict[str, Any]] = (),
    history: History | None = None,
    **more: Any,
) -> Observed:
    """A snapshot; ``objects`` are raw Kubernetes objects, ``more`` any other field of Observed.

    Without ``agents`` every node that reports has an agent, which wrote its report with the device report.
    """
    by_key: dict[ObjectKey, dict[str, Any]] = {}
    for item in objects:
        meta = item["metadata"]
        by_key[ObjectKey(item["apiVersion"], item["kind"], meta.get("namespace", ""), meta["name"])] = item
    reports = list(reports)
    if agents is None:
        agents = [agent(r.node, chips=r.listed.bit_length(), at=r.update_time) for r in reports]
    return Observed(
        nodes={n.name: n for n in nodes},
        reports={r.node: r for r in reports},
        node_reports={r.node: r for r in node_reports},
        agents={a.node: a for a in agents},
        orders={o.node: o for o in standing},
        pods={p.key: p for p in pods},
        objects=by_key,
        history=history or History(),
        newest_report=max((r.update_time for r in reports), default=0.0),
        **more,
    )


def document(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    """A Belay document as people write it (camelCase keys)."""
    return {"apiVersion": "belay.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def desired(*documents: dict[str, Any], shipped: bool = True, revision: str = "r1") -> Desired:
    """A compiled desired state: the shipped policies with these documents laid over them.

    Raises:
        AssertionError: a document is wrong.
    """
    if shipped and not documents and revision == "r1":
        return _shipped()
    files = {f"policies/{i:03d}.yaml": json.dumps(body).encode() for i, body in enumerate(documents)}
    loaded = load(files, revision=revision, shipped=None if shipped else {})
    problems = [str(d) for d in loaded.diagnostics if d.severity == "error"]
    assert not problems or not files, problems
    return loaded.desired


@cache
def _shipped() -> Desired:
    return load({}, revision="r1", has_git=False).desired


def decide(snapshot: Observed, declared: Desired | None = None, *, now: float = NOW, shard: str = "main") -> Steps:
    """The passes that deal with faults, in their order, without expansion and placement."""
    steps = Steps(declared if declared is not None else desired(), snapshot, now, shard)
    return steps.run("views", "grouping", "health", "recover", "reset", "safety")


def world(count: int = 2, *, prefix: str = "n", pods: Iterable[Pod] = (), **more: Any) -> Observed:
    """``count`` healthy 8-chip A2 nodes ``n0``, ``n1`` … with clean reports."""
    names = [f"{prefix}{i}" for i in range(count)]
    return observed([node(n) for n in names], [report(n) for n in names], pods, **more)
