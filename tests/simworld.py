"""The engine's simulated cluster with invariants, for narratives and properties: see ``belay.engine.simulate.world``.

The planner is the real one. ``World.step`` runs one pass on the observed objects, applies its actions and lets the
faked rest move in a seeded random order; ``until_quiet`` repeats that until nothing changes. Invariants are checked
while the world moves, where they can be broken: when chips are handed out, when a reset really happens.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from belay.engine import simulate
from belay.engine.act.permitted import check
from belay.engine.documents import REPEATS, Desired
from belay.engine.load import LoadCache, load
from belay.engine.model import actions as act
from belay.engine.model.actions import kind_of
from belay.engine.model.cluster import ResetOrder
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.jobs import INDEPENDENT_KINDS
from belay.engine.model.plan import Plan
from belay.engine.model.times import rfc3339
from belay.engine.observe.observed import observe
from belay.engine.plan import plan
from belay.engine.simulate import SimulatedServer as Node
from belay.engine.simulate import merged
from belay.engine.wire import names
from belay.engine.wire.orders import chip_number

__all__ = ["A2", "INFER", "START", "Node", "World", "merged"]

START = 1788249600.0
_READ = LoadCache()
"""The shipped policies are read once for all worlds."""

A2 = {
    "accelerator": "huawei-Ascend910",
    "accelerator-type": "module-910b-8",
    "host-arch": "huawei-arm",
    "servertype": "Ascend910B-20",
    "node.kubernetes.io/npu.chip.name": "910B3",
}
INFER = {
    "accelerator": "huawei-Ascend310P",
    "host-arch": "huawei-arm",
    "servertype": "Ascend310P-8",
    "node.kubernetes.io/npu.chip.name": "310P3",
}


class World(simulate.World):
    """Raw objects, time and the simulated nodes under the files of a state repository."""

    def __init__(self, files: Mapping[str, bytes], nodes: Iterable[Node], seed: int = 0) -> None:
        super().__init__(Desired(), now=START, seed=seed)
        self.nodes = {node.name: node for node in nodes}
        self.revision = ""
        self.isolated: frozenset[tuple[str, int]] = frozenset()
        self.story: list[str] = []
        self.disruptions: list[tuple[float, str, str]] = []
        self._evictions: dict[str, tuple[float, set[str]]] = {}
        self._begun_evictions: set[str] = set()
        self.repeated: dict[tuple[str, str], list[float]] = {}
        self.push(files)
        for node in self.nodes.values():
            self._register(node)
            self.report(node)
        self.put({"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": "default"},
                  "spec": {"weight": 1}, "status": {"state": "Open"}})  # fmt: skip

    # what people and hardware do

    def push(self, files: Mapping[str, bytes], *, broken: bool = False) -> None:
        """A new revision of the state repository; ``broken`` ones are loaded without knowing an older version."""
        self.files = dict(files)
        self.revision = f"rev-{int(self.revision.removeprefix('rev-') or 0) + 1}"
        loaded = load(self.files, revision=self.revision, cache=_READ)
        bad = [str(d) for d in loaded.diagnostics if d.severity == "error"]
        assert bool(bad) is broken, bad
        self.desired = loaded.desired
        self.isolated = frozenset(
            (row.node, chip)
            for item in self.desired.isolations
            for row in item.document.spec.chips
            for chip in row.chips
        )

    def bring_back(self, node: Node) -> None:
        """A deleted node registers again under its name."""
        if node.gone:
            node.gone = node.silent = False
            node.ready = True
            self._register(node)

    # the engine

    def plan(self) -> Plan:
        """One pass; the same inputs in another order, and without a cache, must give the same plan, byte for byte."""
        result = plan(self.desired, self.observer.observed(), self.now, cache=self.cache)
        if self.random.random() < 0.1:
            shuffled = list(self.objects.values())
            self.random.shuffle(shuffled)
            again = plan(self.desired, observe(shuffled), self.now)
            assert again.digest() == result.digest(), "the same snapshot in another order gave another plan"
        return result

    def step(self, *, some: float = 1.0) -> Plan:
        """One pass, its actions applied (each with probability ``some``; gangs' bindings too), then the rest moves."""
        result = self.plan()
        self.check_plan(result)
        self.remember(result)
        for action in result.actions:
            if self.random.random() <= some:
                self.apply(action)
        self.record_inventory()
        self.move()
        self.check_world()
        return result

    def until_quiet(self, *, ceiling: int = 40, seconds: float = 61.0, some: float = 1.0) -> list[Plan]:
        """Steps until two passes in a row have no actions and the world stands still; fails beyond the ceiling."""
        plans: list[Plan] = []
        quiet = 0
        for _ in range(ceiling):
            before = self._fingerprint()
            result = self.step(some=some)
            plans.append(result)
            for action in result.actions:
                self.story.append(f"{kind_of(action)} {action.message}")
            self.pass_time(seconds)
            quiet = quiet + 1 if not result.actions and before == self._fingerprint() else 0
            if quiet == 2:
                return plans
        last = [f"{kind_of(a)}: {a.message}" for a in plans[-1].actions]
        raise AssertionError(f"not quiet after {ceiling} passes; the last one wanted {last}")

    # actions

    def apply(self, action: act.AnyAction) -> None:
        """Carry out one action, checking what ``act`` checks at the edge."""
        if isinstance(action, act.EvictPod):
            self.disruptions.append((self._begun(action), "EvictPod", action.budget_unit))
        elif isinstance(action, act.ResetChips):
            self.disruptions.append((self.now, "ResetChips", f"{action.node}/{','.join(action.chips)}"))
        self._check_repeats(action)
        super().apply(action)

    def _check_repeats(self, action: act.AnyAction) -> None:
        """Nothing is done to the same thing more often than the brake allows, whatever happens in the world."""
        things = {
            act.EvictPod: lambda a: self._evicted_job(a),
            act.CreatePod: lambda a: f"{a.namespace}/{a.pod}",
            act.CreateObject: lambda a: f"{a.object_kind}/{a.namespace}/{a.name}",
            act.ResetChips: lambda a: f"{a.node}/{a.chips[0]}",
            act.PartitionChip: lambda a: f"{a.node}/{a.chip}",
        }
        thing = things[type(action)](action) if type(action) in things else ""
        if not thing:
            return
        times = self.repeated.setdefault((kind_of(action), thing), [])
        if self.now not in times:
            times.append(self.now)
        recent = [at for at in times if at > self.now - REPEATS.window]
        assert len(recent) <= REPEATS.max, f"{kind_of(action)} of {thing}: {len(recent)} times in {REPEATS.window} s"

    def _evicted_job(self, action: act.EvictPod) -> str:
        """The job of a pod whose eviction begins now; empty for others, and for replicas that are jobs of their own."""
        pod = self.objects.get(ObjectKey("v1", "Pod", action.namespace, action.pod))
        uid = pod["metadata"]["uid"] if pod else ""
        if not pod or uid in self._begun_evictions or (action.owner and action.owner.kind in INDEPENDENT_KINDS):
            return ""
        self._begun_evictions.add(uid)
        return f"{action.namespace}/{action.owner.kind}/{action.owner.name}" if action.owner else ""

    def _begun(self, action: act.EvictPod) -> float:
        """When the eviction of this unit began: a pod that was there then and goes only now is no new disruption."""
        pod = self.objects.get(ObjectKey("v1", "Pod", action.namespace, action.pod))
        uid = pod["metadata"]["uid"] if pod else ""
        begun, uids = self._evictions.get(action.budget_unit, (self.now, set()))
        if uid in uids:
            return begun
        owner = action.owner.name if action.owner else action.pod
        there = {
            p["metadata"]["uid"]
            for k, p in self.objects.items()
            if k.kind == "Pod" and (k.name == action.pod or _owner_name(p) == owner) and k.namespace == action.namespace
        }
        self._evictions[action.budget_unit] = (self.now, there)
        return self.now

    def take_chip(self, taken: dict[str, str], node: str, chip: str, pod: str) -> None:
        """Two holders of a chip are an error: these worlds share none."""
        assert chip not in taken, f"{node}/{chip} has two owners: {taken[chip]} and {pod}"
        taken[chip] = pod

    def check_binding(self, action: act.BindPod) -> None:
        """No broken node, no chip taken out by hand, no chip of another, no faulty chip."""
        taken = self.owners(action.node)
        where = self.nodes[action.node]
        assert where.hardware not in ("SeparateFault", "PreSeparateFault"), (
            f"{action.pod} landed on broken {where.name}"
        )
        for chip in action.chips:
            place = (action.node, chip_number(chip))
            assert place not in self.isolated, f"{action.pod} landed on {place}, which a person took out"
            assert chip not in taken or action.template, (
                f"{action.node}/{chip} is {taken[chip]}'s, given to {action.pod}"
            )
            assert not self.nodes[action.node].faults.get(chip_number(chip)) or self._usable(action, chip), (
                f"{action.pod} landed on faulty {action.node}/{chip}"
            )

    def _usable(self, action: act.BindPod, chip: str) -> bool:
        levels = {level for _, level in self.nodes[action.node].faults[chip_number(chip)].values()}
        return levels <= {"NotHandleFault", "SubHealthFault"}

    def reset(self, node: Node, order: ResetOrder) -> None:
        """A reset really happens: never an epoch twice, never more than three within six hours."""
        for chip in order.group:
            assert order.epoch > node.done.get(chip, 0), f"epoch {order.epoch} ran twice on {node.name}/{chip}"
        super().reset(node, order)
        recent = [at for at in node.reset_times if at > self.now - 6 * 3600]
        assert len(recent) <= 3, f"{node.name} was reset {len(recent)} times within six hours"

    def _register(self, node: Node) -> None:
        number = len(self.objects) + 1
        self.put(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {
                    "name": node.name,
                    "labels": {"kubernetes.io/hostname": node.name, **node.labels},
                    "annotations": {
                        "baseDeviceInfos": json.dumps(
                            {node.device_name(c): {"IP": f"192.168.{c}.{number}", "SuperDeviceID": 0} for c in node.ids}
                        )
                    },
                },
                "spec": {},
                "status": {
                    "capacity": {"cpu": "192", "memory": "1536Gi", "pods": "110", node.resource: str(node.chips)},
                    "allocatable": {"cpu": "192", "memory": "1536Gi", "pods": "110", node.resource: str(node.chips)},
                    "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": rfc3339(self.now - 3600)}],
                    "addresses": [{"type": "InternalIP", "address": f"10.0.0.{number}"}],
                },
            }
        )

    # bookkeeping

    def check_world(self) -> None:
        """Invariants that hold at every moment."""
        for name in self.nodes:
            self.owners(name)

    def check_plan(self, result: Plan) -> None:
        """Invariants of a plan itself: gangs whole, no two owners, nothing excluded, nothing twice."""
        out = {
            (c.node, c.chip)
            for c in result.chips
            if c.state in ("isolated", "manually-isolated", "resetting", "recovering")
        }
        given: dict[tuple[str, str], str] = {}
        for action in result.actions:
            check(action)  # what a plan contains is on the closed list of what may be carried out
            if isinstance(action, act.BindPod):
                for chip in action.chips:
                    place = (action.node, chip)
                    assert place not in given or action.template, (
                        f"{place} given to {given.get(place)} and {action.pod}"
                    )
                    assert place not in out, f"{action.pod} placed on {place}, which is out of service"
                    given[place] = action.pod
        resets = [(a.node, c) for a in result.actions if isinstance(a, act.ResetChips) for c in a.chips]
        assert len(resets) == len(set(resets)), f"a chip is reset twice in one pass: {resets}"
        assert not {*resets} & {*given}, "a chip is given to a pod and reset in one pass"

    def spent(self, kind: str, window: float) -> int:
        """The most units of a disruptive action within any window of that many seconds."""
        rows = sorted((at, unit) for at, name, unit in self.disruptions if name == kind)
        return max((len({row for row in rows if start <= row[0] < start + window}) for start, _ in rows), default=0)

    def _fingerprint(self) -> str:
        """What must stand still: everything but heartbeats."""
        still = {
            str(key): {k: v for k, v in obj.items() if k != "metadata"} | {"labels": obj["metadata"].get("labels")}
            for key, obj in self.objects.items()
            if not key.name.startswith((names.REPORT_PREFIX, names.DEVICE_PREFIX))
        }
        return msgspec.json.encode(still, order="sorted").decode()


def _owner_name(obj: dict[str, Any]) -> str:
    return next((ref["name"] for ref in obj["metadata"].get("ownerReferences") or () if ref.get("controller")), "")
