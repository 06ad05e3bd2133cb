"""Builders of job objects, and a small world in which plans are applied pass by pass."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from belay.engine.act.permitted import check
from belay.engine.documents import Desired, Manifest
from belay.engine.model.actions import (
    AnyAction,
    CreateObject,
    CreatePod,
    DeleteObject,
    EvictPod,
    PatchObject,
    WriteRankTable,
)
from belay.engine.model.diagnostics import ObjectKey, Origin
from belay.engine.model.history import History
from belay.engine.model.times import rfc3339
from belay.engine.observe.observed import key_of, observe
from belay.engine.simulate import merged as merge
from belay.engine.wire import rankfile
from tests.steps import Steps

NOW = 1788249600.0
Raw = dict[str, Any]

POD_GROUP_CRD: Raw = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "podgroups.scheduling.volcano.sh"},
    "spec": {"group": "scheduling.volcano.sh", "names": {"kind": "PodGroup"}},
}


def template(
    chips: int = 8,
    *,
    resource: str = "huawei.com/Ascend910",
    container: str = "ascend",
    env: Iterable[Raw] = (),
    image: str = "train:1",
    **spec: Any,
) -> Raw:
    """A pod template with one container."""
    row: Raw = {"name": container, "image": image}
    if chips:
        row["resources"] = {"requests": {resource: chips}, "limits": {resource: chips}}
    if list(env):
        row["env"] = list(env)
    return {"metadata": {"labels": {"app": "train"}}, "spec": {"containers": [row], **spec}}


def replica(count: int | None = 1, pod: Raw | None = None, restart: str | None = "Never") -> Raw:
    """One replica spec."""
    out: Raw = {"template": pod or template()}
    if count is not None:
        out["replicas"] = count
    if restart:
        out["restartPolicy"] = restart
    return out


def ascend_job(
    name: str = "train",
    *,
    framework: str | None = "pytorch",
    workers: int = 1,
    replicas: Raw | None = None,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    policy: Raw | None = None,
    uid: str = "job-uid",
    namespace: str = "vision",
    **spec: Any,
) -> Raw:
    """A 2×8 PyTorch job by default."""
    leader = {"pytorch": "Master", "mindspore": "Scheduler", "tensorflow": "Chief"}.get(framework or "", "Master")
    specs = replicas if replicas is not None else {leader: replica(), "Worker": replica(workers)}
    marks = {**({"framework": framework} if framework else {}), **(labels or {})}
    return {
        "apiVersion": "mindxdl.gitee.com/v1",
        "kind": "AscendJob",
        "metadata": {
            "name": name, "namespace": namespace, "uid": uid, "resourceVersion": "1", "labels": marks,
            "annotations": annotations or {}, "creationTimestamp": rfc3339(NOW - 60),
        },
        "spec": {"replicaSpecs": specs, **({"runPolicy": policy} if policy else {}), **spec},
    }  # fmt: skip


def volcano_job(
    name: str = "vc",
    *,
    tasks: list[Raw] | None = None,
    policies: list[Raw] | None = None,
    uid: str = "vc-uid",
    namespace: str = "vision",
    **spec: Any,
) -> Raw:
    """Two pods of eight chips in one task."""
    rows = tasks or [{"name": "worker", "replicas": 2, "template": template(container="main")}]
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {
            "name": name, "namespace": namespace, "uid": uid, "resourceVersion": "1",
            "labels": {"ring-controller.atlas": "ascend-910b"}, "creationTimestamp": rfc3339(NOW - 60),
        },
        "spec": {"tasks": rows, **({"policies": policies} if policies else {}), **spec},
    }  # fmt: skip


def config_map(name: str, data: dict[str, str], *, namespace: str = "vision") -> Raw:
    """A ConfigMap."""
    meta = {"name": name, "namespace": namespace, "uid": f"uid-{name}"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}


def manifest(body: Raw, file: str = "desired/jobs/job.yaml", line: int = 1) -> Manifest:
    """What the loader makes of a document in Git."""
    clean = copy.deepcopy(body)
    for field in ("uid", "resourceVersion", "creationTimestamp"):
        clean["metadata"].pop(field, None)
    digest = hashlib.sha256(json.dumps(clean, sort_keys=True).encode()).hexdigest()
    return Manifest(key_of(clean), clean, Origin(file, line), digest)


class World:
    """Objects and memory, moved on by plans of the passes sync, gangs and expand."""

    def __init__(self, *objects: Raw, desired: Desired | None = None) -> None:
        self.objects: dict[ObjectKey, Raw] = {}
        self.history = History()
        self.desired = desired or Desired(has_git=False)
        self.now = NOW
        self.inventory: tuple[ObjectKey, ...] | None = None
        self.log: list[str] = []
        self.diagnostics: list[str] = []
        self.evicting: set[str] = set()
        self.shard = "main"
        self._serial = 0
        for body in objects:
            self.put(body)

    def put(self, body: Raw) -> Raw:
        """Store an object as the API server would: with a uid, and services with an address."""
        stored = copy.deepcopy(body)
        self._serial += 1
        meta = stored["metadata"]
        meta.setdefault("uid", f"uid-{self._serial}")
        meta["resourceVersion"] = str(self._serial)
        meta.setdefault("creationTimestamp", rfc3339(self.now))
        if stored["kind"] == "Service" and "clusterIP" not in stored.setdefault("spec", {}):
            stored["spec"]["clusterIP"] = f"10.96.0.{self._serial}"
        if stored["kind"] == "Pod":
            stored.setdefault("status", {"phase": "Pending"})
        self.objects[key_of(stored)] = stored
        return stored

    def scope(self) -> Steps:
        """The scope of the next pass."""
        seen = observe(copy.deepcopy(list(self.objects.values())))
        seen = msgspec.structs.replace(seen, history=self.history, inventory=self.inventory)
        return Steps(self.desired, seen, self.now, self.shard)

    def plan(self) -> list[AnyAction]:
        """What the next pass wants, without applying it."""
        scope = self.scope()
        scope.run("grouping", "sync")
        scope.evicting.update(self.evicting)
        scope.run("expand")
        self.diagnostics = [f"{d.severity} {d.object} {d.field}: {d.message}" for d in scope.diagnostics]
        self._next = scope.memory.frozen("")
        for action in scope.actions:
            check(action)  # what a plan contains is on the closed list of what may be carried out
        return scope.actions

    def step(self, *, after: float = 10.0, skip: Callable[[AnyAction], bool] = lambda _: False) -> list[AnyAction]:
        """One pass and its effects; ``skip`` names actions that a budget keeps back."""
        self.now += after
        actions = self.plan()
        self.history = self._next
        for action in actions:
            if not skip(action):
                self.apply(action)
        return actions

    def settle(self, limit: int = 12) -> None:
        """Passes until nothing is left to do."""
        for _ in range(limit):
            if not self.step():
                return
        raise AssertionError(f"no fixed point after {limit} passes: {self.log[-5:]}")

    def apply(self, action: AnyAction) -> None:
        """The effect of one action."""
        match action:
            case CreateObject():
                self.log.append(f"create {action.object_kind} {action.name} ({action.reason})")
                self.put(action.object)
                if action.generate is not None:  # act makes the keys, then marks the job
                    mark = {"metadata": {"annotations": {"belay.dev/ssh-keys": action.name}}}
                    owner = action.generate.owner
                    key = ObjectKey(owner.api_version, owner.kind, action.namespace, owner.name)
                    self.objects[key] = merge(self.objects[key], mark)
                    self._touch(self.objects[key])
            case CreatePod():
                self.log.append(f"create Pod {action.pod} ({action.reason})")
                assert ObjectKey("v1", "Pod", action.namespace, action.pod) not in self.objects
                self.put(action.object)
            case PatchObject():
                self._patch(action)
            case DeleteObject():
                self.log.append(f"delete {action.object_kind} {action.name} ({action.reason})")
                del self.objects[ObjectKey(action.api_version, action.object_kind, action.namespace, action.name)]
            case EvictPod():
                self.log.append(f"evict Pod {action.pod} ({action.reason})")
                self.pod(action.pod)["metadata"]["deletionTimestamp"] = rfc3339(self.now)
            case WriteRankTable():
                self.log.append(f"write rank table {action.name} {action.table['status']}")
                if action.file is not None:
                    self.put(rankfile.build(rankfile.of(action)))
                    return
                body = self.find("ConfigMap", action.config_map)
                body.setdefault("data", {})["hccl.json"] = json.dumps(action.table)
                body["data"]["version"] = action.version
            case _:
                raise AssertionError(action)

    def _patch(self, action: PatchObject) -> None:
        key = ObjectKey(action.api_version, action.object_kind, action.namespace, action.name)
        body = self.objects[key]
        state = "" if "status" not in action.patch else " status"
        self.log.append(f"patch {action.object_kind} {action.name}{state} ({action.reason})")
        self._serial += 1
        merged = merge(body, action.patch)
        merged["metadata"]["resourceVersion"] = str(self._serial)
        self.objects[key] = merged

    def edit(self, kind: str, name: str, change: Callable[[Raw], object]) -> None:
        """Replace an object by a changed copy: snapshots handed out before keep the old one."""
        body = copy.deepcopy(self.find(kind, name))
        change(body)
        self.objects[key_of(body)] = body
        self._touch(body)

    def find(self, kind: str, name: str) -> Raw:
        """The object of that kind and name."""
        return next(body for key, body in self.objects.items() if (key.kind, key.name) == (kind, name))

    def kinds(self, kind: str) -> list[str]:
        """Names of the objects of a kind."""
        return sorted(key.name for key in self.objects if key.kind == kind)

    def pod(self, name: str) -> Raw:
        """A pod by name."""
        return self.find("Pod", name)

    def pods(self) -> list[str]:
        """Names of all pods."""
        return self.kinds("Pod")

    def bind(self, name: str, node: str, chips: Iterable[int] = range(8), ip: str = "") -> None:
        """Place a pod and let it run, as scheduler, kubelet and device plugin would."""
        body = self.pod(name)
        notes = body["metadata"].setdefault("annotations", {})
        devices = [{"device_id": str(i), "device_ip": f"192.168.{i}.{node[-1]}"} for i in chips]
        host = f"10.0.0.{node[-1]}"
        notes["ascend.kubectl.kubernetes.io/ascend-910-configuration"] = json.dumps(
            {"pod_name": name, "server_id": body["metadata"]["uid"], "host_ip": host, "devices": devices}
        )
        body["spec"]["nodeName"] = node
        body["status"] = {"phase": "Running", "podIP": ip or f"172.16.0.{self._serial}"}
        self._touch(body)

    def run_all(self) -> None:
        """Every pending pod is placed on a node of its own and runs."""
        for i, name in enumerate(self.pods()):
            if self.pod(name)["status"]["phase"] == "Pending":
                self.bind(name, f"node{i}")

    def end(self, name: str, phase: str = "Succeeded", code: int = 0, container: str = "ascend") -> None:
        """A pod's container ends."""
        body = self.pod(name)
        status = body["status"] = {**body["status"], "phase": phase}
        status["containerStatuses"] = [{"name": container, "state": {"terminated": {"exitCode": code}}}]
        self._touch(body)

    def vanish(self, name: str) -> None:
        """A pod is gone."""
        self.objects.pop(ObjectKey("v1", "Pod", "vision", name))

    def bury(self) -> None:
        """Pods that are being deleted are gone."""
        for name in self.pods():
            if "deletionTimestamp" in self.pod(name)["metadata"]:
                self.vanish(name)

    def _touch(self, body: Raw) -> None:
        self._serial += 1
        body["metadata"]["resourceVersion"] = str(self._serial)

    def job(self, name: str = "train") -> Raw:
        """The job's object."""
        kind = "AscendJob" if any(k.kind == "AscendJob" and k.name == name for k in self.objects) else "Job"
        return self.find(kind, name)

    def state(self, name: str = "train") -> str:
        """What kubectl shows as the job's state."""
        status = self.job(name).get("status") or {}
        if "state" in status:
            return str(status["state"]["phase"])
        conditions = status.get("conditions") or []
        return str(conditions[-1]["type"]) if conditions else ""

    def message(self, name: str = "train") -> str:
        """The newest condition's reason and message."""
        last = self.job(name)["status"]["conditions"][-1]
        return f"{last['reason']}: {last['message']}"


def env_of(pod: Raw, container: str = "ascend") -> dict[str, Any]:
    """Variables of a container: plain values, or the path of a field reference."""
    row = next(c for c in pod["spec"]["containers"] if c["name"] == container)
    out = {}
    for entry in row.get("env", []):
        assert entry["name"] not in out, f"{entry['name']} twice"
        source = entry.get("valueFrom") or {}
        out[entry["name"]] = entry["value"] if "value" in entry else source.get("fieldRef", source)
    return {
        name: value["fieldPath"] if isinstance(value, dict) and "fieldPath" in value else value
        for name, value in out.items()
    }
