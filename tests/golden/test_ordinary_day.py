"""What an operator meets on an ordinary day: a refused eviction, another scheduler, pod-level resources, pairs of chips
that the driver knows better, static vNPUs of A3, a folder that was renamed. Each story says what is done, what waits
and why, and what is found.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import yaml

from belay.engine.model.actions import kind_of
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.plan import Plan
from tests.golden.stories import compare
from tests.simworld import A2, Node, World
from tests.test_sync_pruning import job, note, tree

STEP = 15.0


class Day(World):
    """A small cluster whose story holds each thing once, with the second in which it came."""

    #: Budgets of disruption refuse evictions with a grace period while this is set.
    refuses = False

    def evict(self, key: ObjectKey, grace: int) -> None:
        if not (self.refuses and grace):
            super().evict(key, grace)

    def begin(self) -> None:
        """The story begins now, with a world that stands still."""
        self.until_quiet()
        self.story.clear()
        self.began, self.known = self.now, set[str]()
        self._news(self.plan())
        self.story.clear()

    def follow(self, seconds: float) -> Plan:
        """Passes for so long."""
        ends = self.now + seconds
        while True:
            last = self.step()
            self.story += [f"{self._at()} {line}" for line in (*_done(last), *self._news(last))]
            if self.now >= ends:
                return last
            self.pass_time(STEP)

    def say(self, text: str) -> None:
        self.story.append(f"{self._at()} — {text}")

    def _at(self) -> str:
        return f"{self.now - self.began:4.0f} s"

    def _news(self, result: Plan) -> list[str]:
        """What waits and what is found, as far as it was not said before."""
        lines = [f"held back {kind_of(row.action)}: {row.action.message} (by {row.budget})" for row in result.deferred]
        lines += [f"waits {row.kind} {row.name}: {row.reason}: {row.message}" for row in result.pending]
        lines += [f"finding {row.severity} {row.object}: {row.message}" for row in result.diagnostics]
        fresh = [line for line in dict.fromkeys(lines) if line not in self.known]
        self.known.update(fresh)
        return fresh


def _done(result: Plan) -> list[str]:
    """What is done; status and sums that follow are left out."""
    follows = ("PatchObject", "WriteRankTable")
    return [f"{kind_of(one)} {one.message}" for one in result.actions if kind_of(one) not in follows]


def servers(number: int) -> list[Node]:
    return [Node(f"node-{i}", labels=A2) for i in range(1, number + 1)]


def running(world: World) -> dict[str, str]:
    """Pods that run, and where."""
    pods = world.pods().items()
    return {name: pod["spec"]["nodeName"] for name, pod in pods if (pod.get("status") or {}).get("phase") == "Running"}


def budget(allowed: int) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "keep", "namespace": "default"},
        "spec": {"minAvailable": 2, "selector": {"matchLabels": {"job-name": "train"}}},
        "status": {"disruptionsAllowed": allowed},
    }  # fmt: skip


def graceful(name: str, **more: Any) -> dict[str, Any]:
    made = job(name, **more)
    made["metadata"]["labels"]["fault-scheduling"] = "grace"
    return made


def test_an_eviction_that_a_budget_refuses_is_said_and_tried_until_it_may_be(update_golden: bool) -> None:
    world = Day(tree(graceful("train")), servers(3))
    world.put(budget(0))
    world.begin()
    world.refuses = True
    broken = running(world)["train-worker-0"]

    world.say(f"chip 3 of {broken} fails; PodDisruptionBudget keep allows no eviction")
    world.fault(broken, 3)
    world.follow(90.0)
    assert broken in running(world).values(), "nothing went by force"

    world.say("PodDisruptionBudget keep allows evictions")
    world.refuses = False
    world.put(budget(2))
    world.follow(90.0)
    assert len(running(world)) == 2
    compare("refused-eviction", world.story, update_golden)


def test_pods_that_another_scheduler_placed_keep_their_chips(update_golden: bool) -> None:
    world = Day(tree(note("other")), servers(2))
    world.begin()
    world.say("kube-scheduler binds a pod, and the device plugin gives it chips 0 to 3 of node-1")
    chips = ",".join(f"Ascend910-{chip}" for chip in range(4))
    amount = {"huawei.com/Ascend910": 4}
    container = {"name": "c", "image": "i", "resources": {"requests": amount, "limits": amount}}
    world.put({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "foreign", "namespace": "default", "annotations": {"huawei.com/AscendReal": chips}},
        "spec": {"schedulerName": "default-scheduler", "nodeName": "node-1", "containers": [container]},
        "status": {"phase": "Running"},
    })  # fmt: skip

    world.say("two jobs are pushed: one of 8 chips, one of 4")
    whole, half = job("whole", workers=0), job("half", workers=0, chips=4)
    world.push(tree(whole, half))
    world.follow(60.0)
    assert running(world) == {"foreign": "node-1", "half-master-0": "node-1", "whole-master-0": "node-2"}
    compare("two-schedulers", world.story, update_golden)


def test_a_job_of_another_scheduler_is_expanded_and_left_to_it(update_golden: bool) -> None:
    world = Day(tree(note("other")), servers(2))
    world.begin()
    theirs = job("theirs")
    theirs["spec"]["schedulerName"] = "default-scheduler"
    world.say("a job is pushed that names default-scheduler")
    world.push(tree(theirs))
    world.follow(60.0)
    assert sorted(world.pods()) == ["theirs-master-0", "theirs-worker-0"]
    assert not any(key.kind == "PodGroup" for key in world.objects), "nothing would ever set its phase"
    compare("another-scheduler", world.story, update_golden)


def test_resources_of_the_whole_pod_count(update_golden: bool) -> None:
    world = Day(tree(note("other")), servers(1))
    world.begin()
    asking = job("asking", workers=0)
    pod = asking["spec"]["replicaSpecs"]["Master"]["template"]["spec"]
    pod["resources"] = {"requests": {"cpu": "5000"}}
    world.say("a job is pushed whose pod asks for 5000 CPUs as a whole, its container for none")
    world.push(tree(asking))
    world.follow(30.0)
    assert running(world) == {}

    world.say("the document asks for 100, and the pod is made again")
    pod["resources"] = {"requests": {"cpu": "100"}}
    world.push(tree(asking))
    world.follow(0.0)
    world.delete(ObjectKey("v1", "Pod", "default", "asking-master-0"))
    world.follow(45.0)
    assert running(world) == {"asking-master-0": "node-1"}
    compare("pod-level-resources", world.story, update_golden)


def test_chips_reset_with_those_that_the_driver_names(update_golden: bool) -> None:
    world = Day(tree(note("other"), job("small", workers=0, chips=1)), servers(1))
    pairs = world.nodes["node-1"].reset_groups = ((0, 4), (1, 5), (2, 6), (3, 7))
    world.begin()
    assert list(world.owners("node-1")) == ["Ascend910-0"]

    world.say(
        "the driver resets chips 0 and 4, 1 and 5, 2 and 6, 3 and 7 together, the product all eight; one pod is on 0"
    )
    world.say("chip 3 fails")
    world.fault("node-1", 3)
    world.follow(60.0)
    assert [group for _, group in world.nodes["node-1"].reset_log] == [pairs[3]]

    world.say("chip 4 fails, whose pair is in use")
    world.fault("node-1", 4)
    last = world.follow(60.0)
    assert [group for _, group in world.nodes["node-1"].reset_log] == [pairs[3]]
    assert {chip.chip: chip.state for chip in last.chips}["Ascend910-4"] == "isolated"
    compare("pairs-of-the-driver", world.story, update_golden)


A3 = {
    "accelerator": "huawei-Ascend910", "accelerator-type": "module-a3-16", "host-arch": "huawei-arm",
    "servertype": "Ascend910A3-20", "node.kubernetes.io/npu.chip.name": "910_9391",
}  # fmt: skip


def test_chips_of_a3_are_cut_as_their_layout_says(update_golden: bool) -> None:
    world = Day(tree(note("other")), [Node("node-1", chips=16, labels=A3)])
    world.begin()
    pool = _pool()
    pool["spec"]["product"] = "atlas-800t-a3"
    layout = {
        "apiVersion": "belay.dev/v1alpha1", "kind": "VNPULayout", "metadata": {"name": "halves"},
        "spec": {"pool": "all", "mode": "static", "chips": [{"chips": [0], "templates": ["vir10_3c_32g"] * 2}]},
    }  # fmt: skip
    world.say("a static layout cuts chip 0 of a pool of Atlas 800T A3 in two")
    world.push(tree(pool, layout, note("other")))
    world.follow(60.0)
    assert [one.template for one in world.nodes["node-1"].vnpus] == ["vir10_3c_32g"] * 2

    world.say("a job of 16 chips finds fifteen")
    world.push(tree(pool, layout, note("other"), whole_a3()))
    world.follow(60.0)
    assert running(world) == {}
    compare("static-a3", world.story, update_golden)


def whole_a3() -> dict[str, Any]:
    made = job("whole", workers=0, chips=16)
    made["spec"]["replicaSpecs"]["Master"]["template"]["spec"]["nodeSelector"] = {"accelerator-type": "module-a3-16"}
    return made


def test_a_folder_that_is_renamed_deletes_no_running_job(update_golden: bool) -> None:
    world = Day(tree(graceful("train", workers=2)), servers(4))
    world.begin()
    before = running(world)
    assert len(before) == 3

    world.say("git mv desired Desired: a job of 24 chips is declared no more, one document beside it stays")
    world.push({"policies/stays.yaml": yaml.safe_dump(_pool()).encode()})
    held = world.follow(60.0)
    assert running(world) == before and held.held_prune is not None

    world.say("a person confirms the deletion")
    world.desired = dataclasses.replace(world.desired, confirmed=(held.held_prune.digest,))
    world.follow(60.0)
    assert running(world) == {}
    compare("renamed-folder", world.story, update_golden)


def _pool() -> dict[str, Any]:
    spec = {"selector": {"matchLabels": {"accelerator": "huawei-Ascend910"}}}
    return {"apiVersion": "belay.dev/v1alpha1", "kind": "NodePool", "metadata": {"name": "all"}, "spec": spec}
