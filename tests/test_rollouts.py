"""Deployments and StatefulSets roll from one template to another that asks for other chips.

Kubernetes' own controllers (those of the sandbox) run beside the planner; a kubelet starts what is bound.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from belay.engine.model.actions import BindPod, CreateObject
from belay.engine.model.plan import Plan
from belay.engine.observe.observed import observe
from belay.engine.plan import plan
from belay.engine.workloads import objects
from belay.engine.workloads.writes import Json
from tests import controller_world, listing, placing
from tests.golden.stories import compare
from tests.jobs import POD_GROUP_CRD
from tests.simworld import INFER

POLICY = {"huawei.com/schedule_policy": "chip8-node8"}


class RollingWorld(controller_world.World):
    """The controllers' world with servers and the planner as its scheduler."""

    def __init__(self, servers: Iterable[Json], seed: int = 1, *, pod_groups: bool = True) -> None:
        super().__init__(seed)
        self.servers = [*servers, *([POD_GROUP_CRD] if pod_groups else [])]
        self.pending: list[str] = []
        self.story: list[str] = []

    def plan(self) -> Plan:
        """One pass of the planner."""
        reports = [thing for thing in self.servers if thing["kind"] == "ConfigMap"]
        for thing in reports:
            listing_now(thing, self.now)
        found = [copy.deepcopy(thing) for thing in (*self.servers, *self.things.values())]
        return plan(placing.shipped(), observe(found), self.now)

    def schedule(self) -> bool:
        """One pass and its bindings; whether it bound anything."""
        result = self.plan()
        self.pending = [f"{entry.kind} {entry.name}: {entry.reason}" for entry in result.pending]
        bound = [action for action in result.actions if isinstance(action, BindPod)]
        for action in bound:
            thing = self.things["Pod", action.pod]
            thing["spec"]["nodeName"] = action.node
            thing["metadata"].setdefault("annotations", {}).update(action.annotations)
            template = thing["spec"]["containers"][0]["resources"]["requests"]
            self.story.append(f"{shape_of(template)} to {action.node} {','.join(action.chips)}")
        for action in result.actions:
            if isinstance(action, CreateObject) and action.object_kind == "PodGroup":
                self.add(action.object)
        self.no_chip_twice()
        return bool(bound)

    def play_kubelet(self, share: float = 1.0) -> None:
        self.schedule()
        for pod in self.pods():
            if objects.deleting(pod):
                requests = pod["spec"]["containers"][0]["resources"]["requests"]
                self.story.append(f"{shape_of(requests)} leaves {pod['spec'].get('nodeName', 'the queue')}")
                del self.things["Pod", pod["metadata"]["name"]]
            elif objects.phase(pod) == "" or objects.phase(pod) == "Pending":
                started = bool(pod["spec"].get("nodeName"))
                pod["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]} if started \
                    else {"phase": "Pending"}  # fmt: skip

    def no_chip_twice(self) -> None:
        held: dict[tuple[str, str], str] = {}
        for pod in self.pods():
            node = pod["spec"].get("nodeName")
            for key, text in (pod["metadata"].get("annotations") or {}).items():
                if node and key in ("huawei.com/Ascend910", "huawei.com/Ascend310P"):
                    for chip in text.split(","):
                        other = held.setdefault((node, chip), pod["metadata"]["name"])
                        assert other == pod["metadata"]["name"], f"{chip} of {node} has two owners"

    def serving(self, template: Json) -> list[str]:
        """Names of the running pods of a template."""
        wanted = template["spec"]["containers"][0]["resources"]["requests"]
        return [
            pod["metadata"]["name"]
            for pod in self.pods()
            if objects.phase(pod) == "Running" and pod["spec"]["containers"][0]["resources"]["requests"] == wanted
        ]


def listing_now(report: Json, now: float) -> None:
    """Give a report the time of this moment, so that it never is stale."""
    name = report["metadata"]["name"].removeprefix("mindx-dl-deviceinfo-")
    kind = "Ascend310P" if "Ascend310P" in report["data"]["DeviceInfoCfg"] else "Ascend910"
    fresh = listing.report(name, kind=kind, at=now)
    report["data"] = fresh["data"]


def shape_of(requests: Json) -> str:
    return ",".join(f"{name.removeprefix('huawei.com/')}={amount}" for name, amount in sorted(requests.items()))


def template(resource: str, count: int, **annotations: str) -> Json:
    amount = {f"huawei.com/{resource}": str(count)}
    return {
        "metadata": {"labels": {"app": "chat"}, "annotations": {**POLICY, **annotations}},
        "spec": {
            "schedulerName": "volcano",
            "containers": [{"name": "main", "image": "i", "resources": {"requests": amount, "limits": amount}}],
        },
    }


def deployment(replicas: int, made_from: Json, **spec: Any) -> Json:
    return controller_world.workload("Deployment", "chat", replicas=replicas, template=made_from, **spec)


def infer_servers(count: int, **sizes: str) -> list[Json]:
    rows = []
    for index in range(1, count + 1):
        name = f"infer-{index}"
        rows += [
            listing.node(name, kind="Ascend310P", labels=INFER, sizes=sizes),
            listing.report(name, kind="Ascend310P"),
        ]
    return rows


VNPU = template("Ascend310P-4c.3cpu", 1)
CARD = template("Ascend310P", 1)


def test_a_deployment_rolls_from_vnpus_to_whole_cards(update_golden: bool) -> None:
    world = RollingWorld(infer_servers(2, **{"huawei.com/Ascend310P-4c.3cpu": "2"}))
    world.add(deployment(2, VNPU))
    world.settle()
    assert len(world.serving(VNPU)) == 2
    world.story.append("-- the template asks for one whole card")
    world.edit("Deployment", "chat", {"spec": {"template": CARD}})
    least = 2

    def keeps_serving() -> None:
        assert len(world.serving(VNPU)) + len(world.serving(CARD)) >= least

    world.settle(keeps_serving)
    assert len(world.serving(CARD)) == 2 and not world.serving(VNPU) and not world.pending
    world.story.append("-- and back")
    world.edit("Deployment", "chat", {"spec": {"template": VNPU}})
    world.settle(keeps_serving)
    assert len(world.serving(VNPU)) == 2 and not world.serving(CARD)
    compare("rollout", world.story, update_golden)


def test_a_template_that_waits_makes_way_for_one_that_fits() -> None:
    """Nothing of the old template ever ran, because no node has such vNPUs."""
    world = RollingWorld(infer_servers(1))
    world.add(deployment(2, VNPU))
    world.settle()
    assert not world.serving(VNPU) and len(world.pods()) == 2
    world.edit("Deployment", "chat", {"spec": {"template": CARD}})
    world.settle()
    assert len(world.serving(CARD)) == 2 and len(world.pods()) == 2


def test_a_stateful_set_rolls_although_its_group_was_made_from_the_old_template() -> None:
    world = RollingWorld(infer_servers(1, **{"huawei.com/Ascend310P-4c.3cpu": "3"}))
    world.add(controller_world.workload(
        "StatefulSet", "chat", replicas=3, template=VNPU, podManagementPolicy="Parallel", serviceName="chat"
    ))  # fmt: skip
    world.settle()
    assert len(world.serving(VNPU)) == 3
    world.edit("StatefulSet", "chat", {"spec": {"template": CARD}})
    world.settle()
    assert world.serving(CARD) == ["chat-0", "chat-1", "chat-2"]


def test_both_templates_that_wait_share_one_entry_which_names_the_newest_first() -> None:
    world = RollingWorld(infer_servers(1))
    world.add(deployment(2, VNPU))
    world.settle()
    world.edit("Deployment", "chat", {"spec": {"template": template("Ascend310P", 64)}})
    world.settle()
    (entry,) = world.plan().pending
    waiting = {pod["metadata"]["name"] for pod in world.pods() if not pod["spec"].get("nodeName")}
    assert set(entry.pods) == waiting and len(waiting) == 3
    assert "64" in entry.message.partition("of an older template")[0]
    assert "2 of an older template: " in entry.message


SHAPES = [("Ascend310P", 1), ("Ascend310P", 2), ("Ascend310P", 8), ("Ascend310P-4c.3cpu", 1), ("Ascend310P-2c", 1)]


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    before=st.sampled_from(SHAPES), after=st.sampled_from(SHAPES), replicas=st.integers(1, 4), surge=st.integers(0, 2),
    unavailable=st.integers(0, 2), early=st.booleans(), seed=st.integers(0, 1000),
)  # fmt: skip
def test_every_rollout_ends_with_the_new_template(
    kind: str,
    before: tuple[str, int],
    after: tuple[str, int],
    replicas: int,
    surge: int,
    unavailable: int,
    early: bool,
    seed: int,
) -> None:
    """Servers for all old and new pods at once: whatever the shapes, limits and order, the rollout comes to its end."""
    old, new = template(*before), template(*after)
    sizes = {"huawei.com/Ascend310P-4c.3cpu": "2", "huawei.com/Ascend310P-2c": "1"}
    world = RollingWorld(infer_servers(replicas + 2 + replicas, **sizes), seed)
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}
    more: Json = {"strategy": rolling} if kind == "Deployment" else {"podManagementPolicy": "Parallel"}
    world.add(controller_world.workload(kind, "chat", replicas=replicas, template=old, **more))
    world.settle() if not early else world.round()
    world.edit(kind, "chat", {"spec": {"template": new}})
    world.settle()
    assert len(world.serving(new)) == replicas == len(world.pods()), (world.pending, world.story)
