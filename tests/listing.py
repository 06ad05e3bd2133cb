"""Clusters as `kubectl get … -o json` prints them, and what `belay plan --explain -o json` makes of such a file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from belay.engine import cli
from belay.engine.wire import deviceinfo
from tests import worlds

POLICY = "huawei.com/schedule_policy"
STAMP = "2026-09-01T07:00:00Z"
NOW_TEXT = "2026-09-01T08:00:00Z"
Item = dict[str, Any]


def node(
    name: str,
    *,
    kind: str = "Ascend910",
    chips: int = 8,
    address: str = "",
    labels: Mapping[str, str] | None = None,
    taints: Sequence[Mapping[str, str]] = (),
    unschedulable: bool = False,
    sizes: Mapping[str, str] | None = None,
    devices: Mapping[str, Any] | None = None,
) -> Item:
    """A ready node that offers ``chips`` chips."""
    resource = f"huawei.com/{kind}"
    base = {f"{kind}-{i}": {"IP": f"192.168.{i}.1", "SuperDeviceID": i} for i in range(chips)}
    amounts = {"cpu": "192", "memory": "768Gi", "pods": "110", "ephemeral-storage": "800Gi", resource: str(chips)}
    amounts |= dict(sizes or {})
    spec: Item = {"taints": [dict(taint) for taint in taints]} if taints else {}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "uid": f"u-{name}",
            "resourceVersion": "1",
            "creationTimestamp": STAMP,
            "labels": {"kubernetes.io/hostname": name, "accelerator": f"huawei-{kind}", **(labels or {})},
            "annotations": {"baseDeviceInfos": json.dumps(base if devices is None else devices)},
        },
        "spec": spec | ({"unschedulable": True} if unschedulable else {}),
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": STAMP}],
            "addresses": [{"type": "InternalIP", "address": address or f"10.0.0.{sum(name.encode()) % 250}"}],
        },
    }


def report(
    name: str,
    *,
    kind: str = "Ascend910",
    chips: int = 8,
    busy: Iterable[int] = (),
    unhealthy: Iterable[int] = (),
    network: Iterable[int] | None = (),
    recovering: Iterable[int] = (),
    super_pod: int = -1,
    index: int = 0,
    rack: int | None = None,
    at: float = worlds.NOW,
) -> Item:
    """The device plugin's report just before ``at``; ``network=None`` leaves the key out."""
    resource, out = f"huawei.com/{kind}", {*busy, *unhealthy}
    names = {tail: ",".join(f"{kind}-{i}" for i in sorted(ids)) for tail, ids in (
        ("Unhealthy", set(unhealthy)), ("NetworkUnhealthy", set(network or ())), ("Recovering", set(recovering)),
    )}  # fmt: skip
    if network is None:
        del names["NetworkUnhealthy"]
    faults = [
        deviceinfo.fault_element("CardUnhealthy", f"{kind}-{i}", {"80C98001": (0, "SeparateNPU")}, "SeparateNPU")
        for i in sorted(set(unhealthy))
    ]
    lists = {resource: ",".join(f"{kind}-{i}" for i in range(chips) if i not in out)}
    lists |= {f"{resource}-{tail}": text for tail, text in names.items()}
    lists[f"{resource}-Fault"] = json.dumps(faults, separators=(",", ":"))
    made = deviceinfo.build(
        name, device_list=lists, update_time=int(at) - 2, super_pod_id=super_pod, server_index=index,
        rack_id=rack,
    )  # fmt: skip
    made["metadata"]["resourceVersion"] = "7"
    return made


def pod(
    name: str,
    *,
    namespace: str = "train",
    kind: str = "Ascend910",
    count: int = 0,
    on: str = "",
    chips: Iterable[int] = (),
    group: str = "",
    labels: Mapping[str, str] | None = None,
    notes: Mapping[str, str] | None = None,
    requests: Mapping[str, str] | None = None,
    spec: Mapping[str, Any] | None = None,
) -> Item:
    """A pod: running on a node with chips, or pending with a request for ``count``."""
    held = list(chips)
    resource = f"huawei.com/{kind}"
    amount = dict(requests or {}) | ({resource: str(count or len(held))} if count or held else {})
    annotations = dict(notes or {}) | ({"scheduling.k8s.io/group-name": group} if group else {})
    if held:
        annotations[resource] = ",".join(f"{kind}-{i}" for i in held)
    body: Item = {
        "schedulerName": "volcano",
        "containers": [{"name": "ascend", "image": "i", "resources": {"requests": amount, "limits": amount}}],
        **(spec or {}),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": namespace,
            "name": name,
            "uid": f"u-{namespace}-{name}",
            "resourceVersion": "1",
            "creationTimestamp": STAMP,
            "labels": dict(labels or {}),
            "annotations": annotations,
        },
        "spec": body | ({"nodeName": on} if on else {}),
        "status": {"phase": "Running" if on else "Pending"},
    }


def group(
    name: str,
    count: int,
    each: int,
    *,
    kind: str = "Ascend910",
    policy: str = "",
    notes: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    least: int | None = None,
) -> Item:
    """A PodGroup of ``count`` pods with ``each`` chips."""
    annotations = dict(notes or {}) | ({POLICY: policy} if policy else {})
    spec: Item = {"minMember": count if least is None else least}
    if each:
        spec["minResources"] = {f"huawei.com/{kind}": str(count * each)}
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {
            "namespace": "train", "name": name, "uid": f"u-{name}", "creationTimestamp": STAMP,
            "annotations": annotations, "labels": dict(labels or {}),
        },
        "spec": spec,
    }  # fmt: skip


def job(name: str, count: int, each: int, *, kind: str = "Ascend910", **more: Any) -> list[Item]:
    """A PodGroup and its pending pods, ranked in order; ``spec`` and ``requests`` are those of the pods."""
    pods = {key: more.pop(key) for key in ("spec", "requests") if key in more}
    ranked = [
        pod(
            f"{name}-{rank}", kind=kind, count=each, group=name,
            notes={"hccl/rankIndex": str(rank), "volcano.sh/task-spec": "worker"}, **pods,
        )
        for rank in range(count)
    ]  # fmt: skip
    return [group(name, count, each, kind=kind, **more), *ranked]


def params(**arguments: str) -> Item:
    """The scheduler's own configuration with these ``init-params``; ``_`` in a key stands for ``-``."""
    rows = "".join(f"    {key.replace('_', '-')}: '{value}'\n" for key, value in arguments.items())
    conf = f"actions: allocate\nconfigurations:\n- name: init-params\n  arguments:\n{rows}"
    return config_map("volcano-system", "volcano-scheduler-configmap", {"volcano-scheduler.conf": conf})


def config_map(namespace: str, name: str, data: Mapping[str, str]) -> Item:
    """A ConfigMap."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"namespace": namespace, "name": name, "resourceVersion": "1"},
        "data": dict(data),
    }


class Answer:
    """The JSON that `belay plan` printed."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.body = body

    @property
    def nodes(self) -> dict[str, str]:
        """The node of every bound pod, by name."""
        return {name: action["node"] for name, action in self.bound.items()}

    @property
    def bound(self) -> dict[str, dict[str, Any]]:
        """BindPod actions by pod name."""
        return {action["pod"]: action for action in self.body["actions"] if action["kind"] == "BindPod"}

    @property
    def pending(self) -> dict[str, Any]:
        """The one pending entry."""
        (entry,) = self.body["pending"]
        return dict(entry)

    def chips(self, name: str) -> list[int]:
        """Chip ids of a bound pod."""
        return [int(chip.rpartition("-")[2]) for chip in self.bound[name]["chips"]]

    def scores(self, name: str) -> dict[str, float]:
        """Raw scores of a pod's candidates."""
        return dict(self.body["scores"][f"train/{name}"])


def plan(items: Iterable[Item], folder: Path, *options: str) -> Answer:
    """What the command prints for a List of these objects."""
    file = folder / "cluster.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(items)}))
    arguments = ["plan", "--cluster", str(file), "--now", NOW_TEXT, "--explain", "--now-only", "-o", "json", *options]
    result = CliRunner().invoke(cli.main, arguments)
    assert result.exit_code == 0, result.output
    return Answer(json.loads(result.stdout))
