"""Every product end to end: raw Kubernetes objects in, a whole plan out, the way `belay plan` works."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from belay.engine.model.actions import BindPod
from belay.engine.model.plan import Plan
from belay.engine.observe.observed import observe
from belay.engine.plan import plan
from belay.engine.wire import deviceinfo
from tests import placing, worlds

NOW = worlds.NOW
STAMP = "2026-09-01T07:00:00Z"


class Case(NamedTuple):
    """One product: what its node offers and runs, what a pod asks for, and what it must get."""

    kind: str
    chips: int
    busy: tuple[int, ...]
    want: int
    got: list[int]
    score: float | None
    policy: str = ""
    selector: str = ""
    labels: dict[str, str] = {}
    node_labels: dict[str, str] = {}
    super_pod: int = -1
    rack: int | None = None
    annotations: dict[str, str] = {}
    params: dict[str, str] = {}


WHOLE = 100_000_000
CASES = {
    "800-9000 ring server": Case("Ascend910", 8, (3, 4, 5, 6, 7), 2, [0, 1], 8 * (32 - 2) + 5, selector="module"),
    "ring server by default": Case("Ascend910", 8, (0, 1, 2), 1, [3], 8 * 32 + 3),
    "800-9000 half": Case("Ascend910", 4, (0,), 2, [1, 2], 397, policy="chip4-node4"),
    "300T": Case("Ascend910", 2, (), 2, [0, 1], 798, policy="chip1-node2"),
    "300T by selector": Case("Ascend910", 2, (0,), 1, [1], 799, selector="card"),
    "800T A2": Case("Ascend910", 8, (0, 5), 3, [1, 2, 3], 794, policy="chip8-node8"),
    "800T A2 by selector": Case("Ascend910", 8, (0, 5), 3, [1, 2, 3], 794, selector="module-910b-8"),
    "800I A2 card": Case("Ascend910", 8, (), 8, list(range(8)), 792, selector="card-910b-infer"),
    "A2 Box16": Case("Ascend910", 16, (), 10, [0, 1, 2, 3, 4, 8, 9, 10, 11, 12], 208, policy="chip8-node16"),
    "800T A3": Case("Ascend910", 16, (1, 4), 2, [2, 3], 16 * (32 - 12), policy="chip2-node16"),
    "800T A3 single die": Case("Ascend910", 16, (5,), 1, [4], 16 * (32 - 14), policy="module-a3-16"),
    "9000 A3": Case("Ascend910", 8, (), 4, [0, 1, 2, 3], 16 * 28, policy="chip2-node8"),
    "900 A3 super pod": Case("Ascend910", 16, (), 16, list(range(16)), WHOLE, policy="chip2-node16-sp", super_pod=3),
    "9000 A3 super pod": Case("Ascend910", 8, (), 8, list(range(8)), WHOLE, policy="chip2-node8-sp", super_pod=3),
    "A3 super pod by sp-block": Case(
        "Ascend910", 16, (), 2, [0, 1], WHOLE, super_pod=0, annotations={"sp-block": "2"}
    ),
    "300I card strategy": Case(
        "Ascend310", 8, (0, 4, 5), 1, [1], 8 * 3, labels={"npu-310-strategy": "card"}
    ),
    "300I chip strategy": Case("Ascend310", 8, (0, 4, 5), 3, [1, 6, 7], 6395),
    "300I Pro": Case("Ascend310P", 4, (0,), 2, [1, 2], 6397),
    "200I SoC A1": Case("Ascend310P", 1, (), 1, [0], 6399, node_labels={"servertype": "soc"}),
    "300I Duo card": Case(
        "Ascend310P", 8, (0,), 1, [1], 16, labels={"duo": "true", "npu-310-strategy": "card"},
        node_labels={"infer-card-type": "card-300i-duo"},
    ),
    "300I Duo chip": Case(
        "Ascend310P", 6, (1, 3), 3, [0, 2, 4], 0, labels={"duo": "true"},
        node_labels={"infer-card-type": "card-300i-duo"},
    ),
    "300I Duo spread": Case(
        "Ascend310P", 4, (2,), 3, [0, 1, 3], 120, labels={"duo": "true", "distributed": "true"},
        node_labels={"infer-card-type": "card-300i-duo"},
    ),
    "350, 8 chips": Case("npu", 8, (0,), 2, [1, 2], 793, policy="chip1-node8"),
    "350, 16 chips": Case("npu", 16, (0,), 2, [1, 2], 1585, policy="chip1-node16"),
    "350 4P, 8 chips": Case("npu", 8, (2, 3, 4, 5, 6, 7), 2, [0, 1], 256, policy="chip4-node8"),
    "350 4P, 16 chips": Case("npu", 16, (3, 4, 7, 11, 15), 2, [5, 6], 448, policy="chip4-node16"),
    "850": Case("npu", 8, (), 4, [0, 1, 2, 3], 792, policy="chip8-node8"),
    "850 super pod": Case("npu", 8, (), 8, list(range(8)), WHOLE, policy="chip8-node8-sp", super_pod=1),
    "950 super pod": Case(
        "npu", 8, (), 8, list(range(8)), WHOLE, policy="chip8-node8-ra64-sp", super_pod=1, rack=4,
        params={"super-pod-size": "64"},
    ),
    "multilevel": Case(
        "Ascend910", 16, (), 16, list(range(16)), WHOLE, policy="multilevel",
        annotations={"huawei.com/affinity-config": "level1=1"}, node_labels={"level": "a"},
        params={"resource-level-config": '{"default": {"level1": {"label": "level"}}}'},
    ),
}  # fmt: skip


def _node(case: Case) -> dict[str, Any]:
    prefix, resource = f"{case.kind}-", f"huawei.com/{case.kind}"
    base = {f"{prefix}{i}": {"IP": f"192.168.{i}.1", "SuperDeviceID": i} for i in range(case.chips)}
    size = {"cpu": "192", "memory": "768Gi", "pods": "110", resource: str(case.chips)}
    labels = {"accelerator": f"huawei-{case.kind}", "kubernetes.io/hostname": "n0", **case.node_labels}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": "n0", "uid": "u-n0", "resourceVersion": "1", "creationTimestamp": STAMP,
            "labels": labels | ({"accelerator-type": case.selector} if case.selector else {}),
            "annotations": {"baseDeviceInfos": json.dumps(base)},
        },
        "spec": {},
        "status": {
            "capacity": size, "allocatable": size,
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": STAMP}],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
        },
    }  # fmt: skip


def _report(case: Case) -> dict[str, Any]:
    resource = f"huawei.com/{case.kind}"
    free = [f"{case.kind}-{i}" for i in range(case.chips) if i not in case.busy]
    empty = {f"{resource}-{tail}": "" for tail in ("NetworkUnhealthy", "Unhealthy", "Recovering")}
    return deviceinfo.build(
        "n0",
        device_list={resource: ",".join(free), f"{resource}-Fault": "[]", **empty},
        update_time=int(NOW) - 2,
        super_pod_id=case.super_pod,
        server_index=0,
        rack_id=case.rack,
    )


def _pod(case: Case, name: str, chips: tuple[int, ...] = (), want: int = 0, group: str = "") -> dict[str, Any]:
    resource = f"huawei.com/{case.kind}"
    amount = {resource: str(want or len(chips))}
    notes = {"scheduling.k8s.io/group-name": group} if group else {}
    if chips:
        notes |= {resource: ",".join(f"{case.kind}-{i}" for i in chips)}
    spec: dict[str, Any] = {
        "schedulerName": "volcano",
        "containers": [{"name": "ascend", "image": "i", "resources": {"requests": amount, "limits": amount}}],
        "nodeSelector": {"accelerator-type": case.selector} if case.selector and want else {},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": "a", "name": name, "uid": f"u-{name}", "resourceVersion": "1", "creationTimestamp": STAMP,
            "labels": dict(case.labels) if want else {}, "annotations": notes,
        },
        "spec": spec | ({"nodeName": "n0"} if chips else {}),
        "status": {"phase": "Running" if chips else "Pending"},
    }  # fmt: skip


def _items(case: Case, want: int) -> list[dict[str, Any]]:
    notes = dict(case.annotations) | ({"huawei.com/schedule_policy": case.policy} if case.policy else {})
    group = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"namespace": "a", "name": "case", "uid": "u-g", "annotations": notes, "creationTimestamp": STAMP},
        "spec": {"minMember": 1, "minResources": {f"huawei.com/{case.kind}": str(want)}},
    }
    arguments = "".join(f"    {key}: '{value}'\n" for key, value in case.params.items())
    conf = f"configurations:\n- name: init-params\n  arguments:\n{arguments}" if arguments else "actions: allocate\n"
    settings = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"namespace": "volcano-system", "name": "volcano-scheduler-configmap"},
        "data": {"volcano-scheduler.conf": conf},
    }
    holders = [_pod(case, f"busy-{i}", chips=(i,)) for i in case.busy]
    return [_node(case), _report(case), group, settings, *holders, _pod(case, "case-0", want=want, group="case")]


def _plan(case: Case, want: int) -> Plan:
    return plan(placing.shipped(), observe(_items(case, want)), NOW)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_product(case: Case) -> None:
    found = _plan(case, case.want)
    bound = [action for action in found.actions if isinstance(action, BindPod)]
    assert [action.pod for action in bound] == ["case-0"], found.pending
    assert placing.chips_of(bound[0]) == case.got
    assert found.scores == ({"a/case-0": {"n0": case.score}} if case.score is not None else {})
    assert bound[0].annotations[f"huawei.com/{case.kind}"] == ",".join(f"{case.kind}-{i}" for i in case.got)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_too_large_a_request_waits_with_a_reason(case: Case) -> None:
    found = _plan(case, 65)
    assert not [action for action in found.actions if isinstance(action, BindPod)]
    (entry,) = found.pending
    assert entry.reason in ("InvalidRequest", "NPUResourceShortage", "TopologyNotMet") and entry.message
