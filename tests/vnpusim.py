"""A simulated cluster whose device plugins cut chips: on demand at Allocate, or as the agent's orders say.

What hardware refuses fails the test: a template that does not fit beside the others, a vNPU in use that is destroyed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from belay.engine.load import load
from belay.engine.model.cluster import AgentVNPU
from belay.engine.model.vnpu import unfit
from belay.engine.wire.parts import parse_cores
from tests.simworld import INFER, Node, World

CORE = "huawei.com/npu-core"
FAMILY = load({}).desired.families["Ascend310P"]
TOTALS = FAMILY.totals("310P3").totals
GROUPS = range(4)
ON_DEMAND = b"""
apiVersion: belay.dev/v1alpha1
kind: SchedulingSettings
metadata: {name: on-demand}
spec: {initParams: {presetVirtualDevice: false}}
"""


class VNPUWorld(World):
    """Servers with 310P chips; those named in ``on_demand`` offer AI cores, the others chips and cut vNPUs."""

    def __init__(
        self, files: Mapping[str, bytes], chips: Mapping[str, int], *, on_demand: Iterable[str] = (), seed: int = 0
    ) -> None:
        self.on_demand = frozenset(on_demand)
        self.groups: dict[tuple[str, int], int] = {}
        self.cuts = 0
        nodes = [Node(name, chips=count, kind="Ascend310P", labels=INFER) for name, count in sorted(chips.items())]
        super().__init__(files, nodes, seed=seed)

    def push(self, files: Mapping[str, bytes], *, broken: bool = False) -> None:
        """A new revision, with the settings that nodes which offer AI cores need."""
        settled = any(b"SchedulingSettings" in data for data in files.values())
        lacks = self.on_demand and not settled
        super().push({**files, "policies/on-demand.yaml": ON_DEMAND} if lacks else files, broken=broken)

    def move(self) -> None:
        """The faked rest; then kubelets offer what there is."""
        super().move()
        for node in self.nodes.values():
            self._release(node)
            self._offer(node)

    def _register(self, node: Node) -> None:
        super()._register(node)
        self._offer(node)

    def _offer(self, node: Node) -> None:
        live = next(o for k, o in self.objects.items() if k.kind == "Node" and k.name == node.name)
        counts = {"cpu": "192", "memory": "1536Gi", "pods": "110"}
        if node.name in self.on_demand:
            counts[CORE] = str(node.chips * TOTALS.aicore)
        else:
            counts[node.resource] = str(node.chips - len({vnpu.chip for vnpu in node.vnpus}))
            for vnpu in node.vnpus:
                name = f"{node.resource}-{FAMILY.by_name[vnpu.template].suffix}"
                counts[name] = str(int(counts.get(name, "0")) + 1)
        if live["status"]["allocatable"] != counts:
            body = copy.deepcopy(live)
            body["status"]["allocatable"] = body["status"]["capacity"] = counts
            self.put(body)

    def _kubelet(self) -> None:
        """Device plugins serve the pods that wait, then pods run."""
        for key in sorted(k for k in self.objects if k.kind == "Pod"):
            pod = self.objects[key]
            waits = pod["spec"].get("nodeName") and pod["status"]["phase"] == "Pending"
            if waits and not pod["metadata"].get("deletionTimestamp"):
                self._allocate(pod)
        super()._kubelet()

    def _allocate(self, pod: dict[str, Any]) -> None:
        node = self.nodes[pod["spec"]["nodeName"]]
        self._release(node)
        user = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        limits = pod["spec"]["containers"][0]["resources"]["limits"]
        (resource,) = [name for name in limits if name.startswith("huawei.com/")]
        notes = pod["metadata"].get("annotations") or {}
        if resource == CORE:
            real = self._cut(node, user, notes[CORE], int(limits[CORE]))
        elif resource == node.resource:
            return
        else:
            template = FAMILY.by_suffix[resource.removeprefix(f"{node.resource}-")].name
            free = next((v for v in node.vnpus if v.template == template and not v.used_by), None)
            assert free is not None, f"{node.name} has no idle {template} for {user}"
            node.vnpus[node.vnpus.index(free)] = AgentVNPU(free.id, free.chip, template, user)
            real = self._name(node, free)
        body = copy.deepcopy(pod)
        body["metadata"].setdefault("annotations", {})["huawei.com/AscendReal"] = real
        self.put(body)

    def _cut(self, node: Node, user: str, text: str, cores: int) -> str:
        held = parse_cores(text)
        assert held is not None, text
        node.vnpus = [vnpu for vnpu in node.vnpus if vnpu.used_by]
        if not held.template:
            assert not {vnpu.chip for vnpu in node.vnpus} & set(held.chips), f"{user} got cut chips {text}"
            assert cores == len(held.chips) * TOTALS.aicore
            return ",".join(node.device_name(chip) for chip in held.chips)
        (chip,) = held.chips
        assert FAMILY.by_name[held.template].aicore == cores
        there = [FAMILY.by_name[v.template].size(8) for v in node.vnpus if v.chip == chip]
        why = unfit(TOTALS, [*there, FAMILY.by_name[held.template].size(8)])
        assert why is None, f"{held.template} for {user} does not fit on {node.name} chip {chip}: {why}"
        number = next(i for i in range(100, 1000) if all(vnpu.id != i for vnpu in node.vnpus))
        vnpu = AgentVNPU(number, chip, held.template, user)
        self.groups[node.name, number] = self._group(node, chip, cores)
        node.vnpus.append(vnpu)
        self.cuts += 1
        return self._name(node, vnpu)

    def _group(self, node: Node, chip: int, cores: int) -> int:
        """vNPUs of one core share a group two by two; the others have one of their own."""
        used: dict[int, list[int]] = {}
        for vnpu in node.vnpus:
            if vnpu.chip == chip:
                group = self.groups[node.name, vnpu.id]
                used.setdefault(group, []).append(FAMILY.by_name[vnpu.template].aicore)
        shared = next((group for group, sizes in sorted(used.items()) if sizes == [1]), None)
        if cores == 1 and shared is not None:
            return shared
        free = [group for group in GROUPS if group not in used]
        assert free, f"{node.name} chip {chip} has no vGroup left for {cores} cores: {used}"
        return free[0]

    def _name(self, node: Node, vnpu: AgentVNPU) -> str:
        suffix = FAMILY.by_name[vnpu.template].suffix
        tail = f"_{self.groups[node.name, vnpu.id]}" if node.name in self.on_demand else ""
        return f"Ascend310P-{suffix}-{vnpu.id}-{vnpu.chip}{tail}"

    def _release(self, node: Node) -> None:
        """vNPUs whose pod is gone are idle again; one whose pod is there must be there too."""
        live: dict[int, str] = {}
        for pod in self.pods().values():
            real = (pod["metadata"].get("annotations") or {}).get("huawei.com/AscendReal", "")
            if real.count("-") == 3 and pod["spec"].get("nodeName") == node.name:
                live[int(real.split("-")[2])] = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        gone = sorted(set(live) - {vnpu.id for vnpu in node.vnpus})
        assert not gone, f"vNPU {gone} of {node.name} was destroyed under {live[gone[0]]}"
        node.vnpus = [AgentVNPU(v.id, v.chip, v.template, live.get(v.id, "")) for v in node.vnpus]

    def check_world(self) -> None:
        """Every chip holds what fits on it, and no chip is had whole and in parts."""
        super().check_world()
        for node in self.nodes.values():
            for chip in node.ids:
                sizes = [FAMILY.by_name[v.template].size(8) for v in node.vnpus if v.chip == chip]
                assert unfit(TOTALS, sizes) is None, (node.name, chip, node.vnpus)
            whole = {name for name in self.owners(node.name) if name.count("-") == 1}
            assert not whole & {node.device_name(v.chip) for v in node.vnpus if v.used_by}

    def serves(self, name: str) -> int:
        """How many running pods a Deployment has."""
        return sum(
            1
            for key, pod in self.pods().items()
            if key.rsplit("-", 2)[0] == name and pod["status"]["phase"] == "Running"
        )


def deployment(
    name: str, resource: str, count: int = 1, *, replicas: int = 1, labels: Mapping[str, str] | None = None
) -> bytes:
    """A Deployment that serves pod by pod."""
    more = "".join(f"\n        {key}: {value}" for key, value in (labels or {}).items())
    return f"""\
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}, namespace: default}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata:
      annotations: {{huawei.com/schedule_minAvailable: "1"}}
      labels:
        app: {name}
        ring-controller.atlas: ascend-310P{more}
    spec:
      schedulerName: volcano
      terminationGracePeriodSeconds: 5
      containers:
        - name: {name}
          image: docker.io/library/busybox:local
          resources:
            requests: {{{resource}: {count}}}
            limits: {{{resource}: {count}}}
""".encode()


LAYOUT = b"""\
apiVersion: belay.dev/v1alpha1
kind: VNPULayout
metadata: {name: inference}
spec:
  selector: {matchLabels: {accelerator: huawei-Ascend310P}}
  mode: dynamic
"""
