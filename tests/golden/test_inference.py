"""Inference services under the whole planner: changed templates, faults, lost nodes, priorities."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import pytest
import yaml

from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.plan import Plan
from tests.golden.stories import compare
from tests.inference import Raw, role, service_set
from tests.jobs import POD_GROUP_CRD
from tests.simworld import A2, Node, World

#: A fleet may lose one instance of each role, and one service of a set, at a time.
LOOSE = b"""
apiVersion: belay.dev/v1alpha1
kind: SafetyBudget
metadata: {name: default}
spec: {limits: [{actions: [EvictPod], per: cluster, max: 40, window: 10m}]}
"""


class Fleet(World):
    """A cluster with one InferServiceSet; every step looks at how many instances of each role serve."""

    def __init__(self, root: Raw, servers: int = 8, budget: bytes = LOOSE, **more: Any) -> None:
        self.watched = False
        self.down: dict[str, int] = {}
        self.downs: set[frozenset[str]] = set()
        files = {"desired/llm.yaml": self._yaml(root), "policies/budget.yaml": budget}
        super().__init__(files, [Node(f"node-{i}", labels=A2) for i in range(1, servers + 1)], **more)
        self.put(copy.deepcopy(POD_GROUP_CRD))
        self.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "vision"}})
        self.until_quiet(ceiling=60)
        self.story.clear()
        self.watched = True

    @staticmethod
    def _yaml(root: Raw) -> bytes:
        clean = copy.deepcopy(root)
        for field in ("uid", "generation", "labels"):
            clean["metadata"].pop(field, None)
        return yaml.safe_dump(clean).encode()

    def commit(self, root: Raw) -> None:
        """Push a change of the set."""
        self.push({**self.files, "desired/llm.yaml": self._yaml(root)})

    def step(self, *, some: float = 1.0) -> Plan:
        result = super().step(some=some)
        if self.watched:
            missing = {name: count for name, count in self.missing().items() if count}
            self.down = {name: max(count, self.down.get(name, 0)) for name, count in (self.down | missing).items()}
            self.downs.add(frozenset(name.rpartition("-")[0] for name in missing))
        return result

    def missing(self) -> dict[str, int]:
        """How many instances of each InstanceSet do not serve."""
        found: dict[str, int] = {}
        for key, raw in self.objects.items():
            if key.kind == "InstanceSet":
                ready = 0
                for index in range(raw["spec"]["replicas"]):
                    one = self.objects.get(ObjectKey("apps/v1", "StatefulSet", key.namespace, f"{key.name}-{index}"))
                    status = (one or {}).get("status") or {}
                    ready += one is not None and status.get("readyReplicas", 0) >= one["spec"]["replicas"]
                found[key.name] = raw["spec"]["replicas"] - ready
        return found

    def images(self) -> list[str]:
        """The image of every instance, by name."""
        rows = sorted((k.name, o) for k, o in self.objects.items() if k.kind == "StatefulSet")
        return [raw["spec"]["template"]["spec"]["containers"][0]["image"] for _, raw in rows]

    def on(self, node: str) -> list[str]:
        """Pods on a node."""
        return sorted(k.name for k, o in self.objects.items() if k.kind == "Pod" and o["spec"].get("nodeName") == node)


def told(world: Fleet, kinds: Iterable[str] = ("EvictPod", "DeleteObject", "CreateObject", "BindPod")) -> list[str]:
    """The lines of the story about instances."""
    return [line for line in world.story if line.startswith(tuple(kinds))]


def pd(image: str = "serve:1", services: int = 1, **set_notes: str) -> Raw:
    """Prefill and decode, two to one, each instance one server's half."""
    roles = [role("prefill", 4, pods=1, chips=2, image=image), role("decode", 2, pods=1, chips=2, image=image)]
    return service_set(*roles, replicas=services, annotations=set_notes or None)


def test_a_changed_template_replaces_one_instance_after_the_other(request: pytest.FixtureRequest) -> None:
    world = Fleet(pd(), servers=2)
    world.commit(pd("serve:2"))
    world.until_quiet(ceiling=60)
    assert world.images() == ["serve:2"] * 6
    assert world.down == {"llm-0-prefill": 1, "llm-0-decode": 1}
    compare(
        "inference-rollout", told(world, ("DeleteObject", "CreateObject")), request.config.getoption("--update-golden")
    )


def test_services_of_a_set_change_one_after_the_other() -> None:
    world = Fleet(pd(services=3), servers=5)
    world.commit(pd("serve:2", services=3))
    world.until_quiet(ceiling=120)
    assert world.images() == ["serve:2"] * 18
    assert all(len({name.rpartition("-")[0] or name for name in down}) <= 1 for down in world.downs), world.downs


@pytest.mark.parametrize("seed", range(3))
def test_new_prefill_and_decode_instances_keep_their_ratio(seed: int) -> None:
    world = Fleet(pd(), servers=2, seed=seed)
    world.commit(pd("serve:2"))
    for _ in range(60):
        world.step()
        world.pass_time(61)
        images = world.images()  # decode 0-1, prefill 0-3
        decode, prefill = images[:2].count("serve:2") / 2, images[2:].count("serve:2") / 4
        assert abs(decode - prefill) <= 0.5, images
    assert world.images() == ["serve:2"] * 6


def test_a_template_that_never_serves_stops_after_one_instance_and_a_revert_brings_it_back() -> None:
    world = Fleet(pd(), servers=2)
    bad = pd("serve:bad")
    for one in bad["spec"]["template"]["roles"]:
        one["spec"]["template"]["spec"]["nodeSelector"] = {"no": "such"}
    world.commit(bad)
    for _ in range(12):
        world.step()
        world.pass_time(61)
    assert sorted(world.images()) == ["serve:1"] * 4 + ["serve:bad"] * 2
    assert world.down == {"llm-0-prefill": 1, "llm-0-decode": 1}
    world.commit(pd())
    world.until_quiet()
    assert world.images() == ["serve:1"] * 6
    assert world.down == {"llm-0-prefill": 1, "llm-0-decode": 1}, "the others never went"


def test_a_paused_change_touches_nothing_and_goes_on_when_the_pause_ends() -> None:
    world = Fleet(pd(), servers=2)
    world.commit(pd("serve:2", **{"belay.dev/rollout": "paused"}))
    world.until_quiet()
    assert world.images() == ["serve:1"] * 6
    note = world.objects[ObjectKey("mindcluster.huawei.com/v1", "InstanceSet", "vision", "llm-0-decode")]
    message = note["status"]["conditions"][0]["message"]
    assert message.endswith("0 of 2 have the changed template, paused by annotation belay.dev/rollout")
    world.commit(pd("serve:2", **{"belay.dev/rollout": "running"}))
    world.until_quiet(ceiling=60)
    assert world.images() == ["serve:2"] * 6


def test_a_surge_instance_stands_in_so_that_nothing_is_missing() -> None:
    def surging(image: str) -> Raw:
        notes = {"belay.dev/max-surge": "1", "belay.dev/max-unavailable": "0"}
        return service_set(role("prefill", 3, pods=1, chips=2, image=image, annotations=notes))

    world = Fleet(surging("serve:1"), servers=1)
    world.commit(surging("serve:2"))
    for _ in range(40):
        world.step()
        world.pass_time(61)
        serving = sum(3 >= 1 for key, raw in world.objects.items() if key.kind == "StatefulSet"
                      and (raw.get("status") or {}).get("readyReplicas", 0) >= 1)  # fmt: skip
        assert serving >= 3, world.images()
    assert world.images() == ["serve:2"] * 3, "the one that stood in is gone"


def test_the_safety_budget_holds_a_change_back() -> None:
    tight = LOOSE.replace(b"max: 40", b"max: 2")
    world = Fleet(pd(), servers=2, budget=tight)
    world.commit(pd("serve:2"))
    for _ in range(8):  # eight minutes: within one window
        world.step()
        world.pass_time(60)
    assert world.images().count("serve:2") == 2
    held = [item for item in world.plan().deferred if item.action.reason == "InstanceOutdated"]
    assert held and all(item.budget == "default" for item in held)
    for _ in range(60):
        world.step()
        world.pass_time(60)
    assert world.images() == ["serve:2"] * 6


def hit(mode: str, gang: bool = True) -> Fleet:
    labels = {"fault-scheduling": mode}
    return Fleet(service_set(role("prefill", 2, pods=2, chips=8, gang=gang, labels=labels)), servers=6)


@pytest.mark.parametrize("mode", ["external-force", "external-grace"])
def test_an_instance_with_a_faulty_chip_starts_again_elsewhere(request: pytest.FixtureRequest, mode: str) -> None:
    world = hit(mode)
    node = world.objects[ObjectKey("v1", "Pod", "vision", "llm-0-prefill-0-1")]["spec"]["nodeName"]
    stays = {name: world.objects[ObjectKey("v1", "Pod", "vision", name)]["metadata"]["uid"]
             for name in ("llm-0-prefill-1-0", "llm-0-prefill-1-1")}  # fmt: skip
    world.fault(node, 3, level="SeparateNPU")
    world.until_quiet()
    assert not world.on(node)
    assert world.missing() == {"llm-0-prefill": 0}
    for name, uid in stays.items():
        assert world.objects[ObjectKey("v1", "Pod", "vision", name)]["metadata"]["uid"] == uid
    compare(f"inference-{mode}", told(world), request.config.getoption("--update-golden"))


def test_a_gang_that_lost_a_pod_starts_again_as_a_whole(request: pytest.FixtureRequest) -> None:
    world = hit("external-grace")
    key = ObjectKey("v1", "Pod", "vision", "llm-0-prefill-0-0")
    before = {n: world.objects[ObjectKey("v1", "Pod", "vision", n)]["metadata"]["uid"]
              for n in ("llm-0-prefill-0-0", "llm-0-prefill-0-1", "llm-0-prefill-1-0")}  # fmt: skip
    world.evict(key, 0)  # deleted by force, from outside
    world.until_quiet()
    after = {n: world.objects[ObjectKey("v1", "Pod", "vision", n)]["metadata"]["uid"] for n in before}
    assert [after[n] == before[n] for n in before] == [False, False, True]
    assert world.missing() == {"llm-0-prefill": 0}
    compare("inference-gang-rebuilt", told(world), request.config.getoption("--update-golden"))


@pytest.mark.parametrize("mode", ["external-force", "grace", ""])
def test_pods_on_a_lost_node_are_deleted_by_force_and_start_elsewhere(
    request: pytest.FixtureRequest, mode: str
) -> None:
    labels = {"fault-scheduling": mode} if mode else {}
    root = service_set(role("prefill", 2, pods=1, chips=8, labels=labels))
    world = Fleet(root, servers=5)
    world.kubelets_die = True
    name = world.objects[ObjectKey("v1", "Pod", "vision", "llm-0-prefill-1-0")]["spec"]["nodeName"]
    world.readiness(world.nodes[name], False)
    world.until_quiet()
    assert not world.on(name)
    assert world.missing() == {"llm-0-prefill": 0}
    if mode == "external-force":
        compare("inference-node-lost", told(world), request.config.getoption("--update-golden"))


def test_no_pod_goes_while_half_of_the_pool_is_lost_at_once() -> None:
    world = Fleet(service_set(role("prefill", 2, pods=1, chips=8)), servers=3)
    world.kubelets_die = True
    before = {k: o["metadata"]["uid"] for k, o in world.objects.items() if k.kind == "Pod"}
    for node in list(world.nodes.values())[:2]:
        world.readiness(node, False)
    for _ in range(5):
        world.step()
        world.pass_time(61)
    assert {k: o["metadata"]["uid"] for k, o in world.objects.items() if k.kind == "Pod"} == before


@pytest.mark.parametrize("seed", range(4))
def test_changes_and_a_fault_with_writes_that_fail_end_with_the_declared_template(seed: int) -> None:
    """Four of ten writes fail, a template changes while another rolls, and a chip breaks meanwhile."""
    mode = ("external-force", "external-grace", "grace", "force")[seed]

    def root(image: str) -> Raw:
        more = {"pods": 2, "chips": 4, "image": image, "gang": seed % 2 == 0, "labels": {"fault-scheduling": mode}}
        return service_set(role("prefill", 3, **more), role("decode", 1, **more), replicas=2)

    world = Fleet(root("serve:1"), servers=9, seed=seed)
    world.commit(root("serve:2"))
    for _ in range(12):
        world.step(some=0.6)
        world.pass_time(20)
    world.fault(f"node-{seed + 1}", 1, level="SeparateNPU")
    world.commit(root("serve:3"))
    for _ in range(100):
        world.step(some=0.6)
        world.pass_time(20)
    world.until_quiet(ceiling=80)
    assert world.images() == ["serve:3"] * 8
    assert not any(world.missing().values())
    assert max(world.down.values()) <= 2, "one that changes and one that a fault hit"


def test_a_pending_role_gives_way_to_one_of_higher_priority(request: pytest.FixtureRequest) -> None:
    """Two servers: decode (1) and prefill (2) have one each. Both break, one heals: decode gets it."""

    def one(name: str, priority: int) -> Raw:
        labels = {"fault-scheduling": "external-force"}
        return role(name, 1, pods=1, chips=8, labels=labels, priority=priority)

    root = service_set(one("prefill", 2), one("decode", 1), schedulingStrategy={"type": "Priority"})
    world = Fleet(root, servers=2)
    where = {n: world.objects[ObjectKey("v1", "Pod", "vision", f"llm-0-{n}-0-0")]["spec"]["nodeName"]
             for n in ("prefill", "decode")}  # fmt: skip
    world.fault(where["prefill"], 0, level="SeparateNPU")
    world.until_quiet()
    assert world.missing() == {"llm-0-prefill": 1, "llm-0-decode": 0}
    world.fault(where["decode"], 0, level="SeparateNPU")
    world.until_quiet()
    world.heal(where["prefill"], 0)
    world.until_quiet()
    assert world.missing() == {"llm-0-prefill": 1, "llm-0-decode": 0}, "decode runs first"
    world.heal(where["decode"], 0)
    world.until_quiet()
    assert world.missing() == {"llm-0-prefill": 0, "llm-0-decode": 0}
    compare("inference-priority", told(world), request.config.getoption("--update-golden"))


def test_scaling_works_while_an_instance_is_faulty() -> None:
    def sized(count: int) -> Raw:
        labels = {"fault-scheduling": "external-force"}
        return service_set(role("prefill", count, pods=1, chips=8, labels=labels))

    world = Fleet(sized(2), servers=3)
    node = world.objects[ObjectKey("v1", "Pod", "vision", "llm-0-prefill-0-0")]["spec"]["nodeName"]
    other = next(name for name in world.nodes if not world.on(name))
    world.fault(other, 0, level="SeparateNPU")
    world.fault(node, 0, level="SeparateNPU")  # instance 0 has nowhere to go
    world.until_quiet()
    assert world.missing() == {"llm-0-prefill": 1}
    world.commit(sized(3))
    world.until_quiet()
    assert len(world.images()) == 3
    world.heal(other, 0)
    world.heal(node, 0)
    world.until_quiet()
    assert world.missing() == {"llm-0-prefill": 0}
    world.commit(sized(1))
    world.until_quiet()
    assert len(world.images()) == 1
