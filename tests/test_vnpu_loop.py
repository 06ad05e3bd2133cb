"""From a layout in Git to a pod on its vNPU: planner, real agent on a simulated driver, the kubelet's device half.

The API server is a dict, time is virtual; orders, reports and device information travel in their real formats.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from belay.agents.drivers.server_models import SERVER_MODELS
from belay.engine.documents import Desired
from belay.engine.load import load
from belay.engine.model.actions import BindPod, PartitionChip
from belay.engine.model.plan import Plan
from belay.engine.observe.observed import observe
from belay.engine.plan import plan
from belay.engine.sandbox.nodes_devices import Devices, PodRejection, allocate, held
from belay.engine.sandbox.nodes_shape import Shape
from tests.agent_world import NODE, World, play
from tests.vnpusim import LAYOUT

RESOURCE = "huawei.com/Ascend310P"
ROW = SERVER_MODELS["atlas-300i-pro"]
SUFFIXES = {t.name: t.suffix for t in load({}).desired.families["Ascend310P"].spec.templates}
SHAPE = Shape(RESOURCE, "Ascend310P-", ROW.chips, {})


class Loop:
    """One node under the whole loop."""

    def __init__(self, world: World, desired: Desired) -> None:
        self.world, self.desired = world, desired
        self.pods: dict[str, dict[str, Any]] = {}

    def ask(self, name: str, suffix: str) -> None:
        """A pod of a Deployment wants a size by name."""
        limits = {f"{RESOURCE}-{suffix}": "1"}
        self.pods[name] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "uid": f"u-{name}", "annotations": {}},
            "spec": {"schedulerName": "volcano", "containers": [{"name": "c", "resources": {"limits": limits}}]},
            "status": {"phase": "Pending"},
        }

    def end(self, name: str) -> None:
        del self.pods[name]
        self.tell()

    @property
    def devices(self) -> Devices:
        return Devices(shape=SHAPE, vnpus=self.world.report.vnpus, suffixes=SUFFIXES)

    def step(self) -> Plan:
        """One pass on what there is; its orders and bindings are carried out."""
        node = self.world.cluster.nodes[NODE]
        capacity, allocatable = self.devices.counts()
        base = {"cpu": "64", "memory": "512Gi", "pods": "110"}
        status = {
            "capacity": base | {key: str(count) for key, count in capacity.items()},
            "allocatable": base | {key: str(count) for key, count in allocatable.items()},
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-08-01T00:00:00Z"}],
        }
        items = [{"apiVersion": "v1", "kind": "Node", "metadata": node["metadata"], "status": status}]
        items += [*self.world.cluster.maps.values(), *self.pods.values()]
        result = plan(self.desired, observe(items), self.world.clock.now())
        cuts = [action for action in result.actions if isinstance(action, PartitionChip)]
        if cuts:
            standing = {v.chip: [] for v in self.world.report.vnpus} | {
                int(a.chip[-1]): list(a.templates) for a in cuts
            }
            for vnpu in self.world.report.vnpus:
                if all(int(a.chip[-1]) != vnpu.chip for a in cuts):
                    standing[vnpu.chip].append(vnpu.template)
            self.world.order(layout=standing, layout_epoch=cuts[0].epoch)
        for action in result.actions:
            if isinstance(action, BindPod):
                self.bind(action)
        return result

    def bind(self, action: BindPod) -> None:
        """The kubelet takes the pod and its device plugin gives it a device."""
        pod = self.pods[action.pod]
        running = [one for one in self.pods.values() if one["status"]["phase"] == "Running"]
        given = allocate(pod, [pod, *running], self.devices, held(running), "10.0.0.1", "s")
        assert not isinstance(given, PodRejection), given
        pod["spec"]["nodeName"] = action.node
        pod["metadata"]["annotations"] |= action.annotations | given
        pod["status"] = {"phase": "Running", "startTime": "2026-09-01T08:00:00Z"}
        self.tell()

    def tell(self) -> None:
        self.world.cluster.set_pods(pod for pod in self.pods.values() if pod["spec"].get("nodeName"))


def run(tmp_path: Path, story: Any, layout: bytes = LAYOUT) -> None:
    async def whole() -> None:
        world = World(tmp_path, ROW)
        await world.start(70)
        await story(Loop(world, load({"desired/layout.yaml": layout}, revision="r1").desired))
        await world.kill()

    play(whole)


def test_a_chip_is_cut_by_the_agent_for_the_pod_that_asks_and_the_pod_gets_it(tmp_path: Path) -> None:
    async def story(loop: Loop) -> None:
        loop.ask("p", "4c")
        (cut,) = loop.step().actions
        assert isinstance(cut, PartitionChip) and cut.templates == ("vir04",)
        waits = loop.step()
        assert waits.actions == () and waits.pending[0].name == "p"
        await loop.world.run(90)
        assert [(v.template, v.used_by) for v in loop.world.report.vnpus] == [("vir04", "")]
        (bound,) = loop.step().actions
        assert isinstance(bound, BindPod) and bound.pod == "p"
        assert loop.pods["p"]["metadata"]["annotations"]["huawei.com/AscendReal"] == "Ascend310P-4c-100-0"
        await loop.world.run(90)
        assert [v.used_by for v in loop.world.report.vnpus] == ["default/p"]
        assert loop.step().actions == ()

    run(tmp_path, story)


def test_idle_vnpus_are_cut_for_other_pods_and_used_ones_stay(tmp_path: Path) -> None:
    layout = LAYOUT + b"  chips: [{chips: [0, 1]}]\n"

    async def story(loop: Loop) -> None:
        for name in ("a", "b"):
            loop.ask(name, "4c")
        for _ in range(6):
            loop.step()
            await loop.world.run(90)
        assert sorted(v.used_by for v in loop.world.report.vnpus) == ["default/a", "default/b"]
        loop.ask("c", "2c")
        full = loop.step()
        assert full.actions == () and full.pending[0].name == "c", "both chips are in use"
        loop.end("a")
        await loop.world.run(90)
        (cut,) = loop.step().actions
        assert isinstance(cut, PartitionChip) and cut.destroy == () and sorted(cut.templates) == ["vir02", "vir04"]
        for _ in range(3):
            await loop.world.run(90)
            loop.step()
        assert {p: pod["status"]["phase"] for p, pod in loop.pods.items()} == {"b": "Running", "c": "Running"}
        users = {v.used_by: v.template for v in loop.world.report.vnpus if v.used_by}
        assert users == {"default/b": "vir04", "default/c": "vir02"}

    run(tmp_path, story, layout)


def test_a_static_layout_pushed_to_git_serves_its_pods(tmp_path: Path) -> None:
    layout = LAYOUT.replace(b"mode: dynamic", b"mode: static\n  chips: [{chips: [0], templates: [vir02, vir01]}]")

    async def story(loop: Loop) -> None:
        loop.ask("p", "2c")
        first = loop.step()
        assert [type(a).__name__ for a in first.actions] == ["PartitionChip"]
        await loop.world.run(90)
        assert sorted(v.template for v in loop.world.report.vnpus) == ["vir01", "vir02"]
        (bound,) = loop.step().actions
        assert isinstance(bound, BindPod)
        await asyncio.sleep(0)
        loop.ask("q", "2c")
        more = loop.step()
        assert more.actions == () and "would free enough; with a VNPULayout in mode dynamic" in (
            more.pending[0].unblock or ""
        )

    run(tmp_path, story, layout)
