"""People who follow the way out of a waiting job: they do what its values say, one step after the other."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

from engine.model.plan import Pending
from engine.model.remedies import Remedy, Step
from engine.observe.observed import observe
from tests import listing
from tests.listing import Item, job, node, report
from tests.placing import scope_of

#: Steps until a pod that several things keep off a node has all of them removed.
MAX_STEPS = 16
RACK = {"key": "rack", "operator": "In", "values": ["r1", "r2"]}
TAINT = {"key": "team", "value": "vision", "effect": "NoSchedule"}


def pending_of(items: list[Item]) -> Pending | None:
    """The pending entry of job j, None once all its pods have nodes."""
    scope = scope_of(observe(items))
    return next((entry for entry in scope.pending if entry.name.startswith("j")), None)


class Follower:
    """Carries out one remedy on the objects of a cluster, as its author would."""

    def __init__(self, items: list[Item]) -> None:
        self.items = items

    def named(self, kind: str, name: str) -> Item:
        return next(item for item in self.items if item["kind"] == kind and item["metadata"]["name"] == name)

    def pods(self) -> Iterator[Item]:
        for item in self.items:
            if item["kind"] == "Pod" and item["metadata"]["name"].startswith("j"):
                yield item

    def follow(self, remedy: Remedy) -> None:
        steps: dict[Step, Callable[[Remedy], None]] = {
            Step.ASK_CHIPS: self.ask_chips,
            Step.ASK_RESOURCE: self.ask_resource,
            Step.SET_SELECTOR: self.set_selector,
            Step.SET_POLICY: self.set_annotation,
            Step.SET_LABEL: self.set_label,
            Step.ONE_POD: self.one_pod,
            Step.LABEL_NODE: self.label_node,
            Step.TOLERATE: self.tolerate,
            Step.UNCORDON: self.uncordon,
            Step.OFFER: self.offer,
            Step.FREE_CHIPS: self.free_node,
            Step.FREE_ROOM: self.free_node,
            Step.ASK_LESS: self.ask_less,
        }
        steps[remedy.step](remedy)

    def requests(self) -> Iterator[dict[str, Any]]:
        for pod in self.pods():
            for container in pod["spec"]["containers"]:
                for part in ("requests", "limits"):
                    if part in container.get("resources", {}):
                        yield container["resources"][part]
        for item in self.items:
            if item["kind"] == "PodGroup" and "minResources" in item["spec"]:
                del item["spec"]["minResources"]

    def ask_chips(self, remedy: Remedy) -> None:
        for amounts in self.requests():
            for name in [name for name in amounts if name.startswith("huawei.com/")]:
                amounts[name] = str(remedy.count)

    def ask_resource(self, remedy: Remedy) -> None:
        (wanted,) = remedy.values
        for amounts in self.requests():
            counts = [amounts.pop(name) for name in list(amounts) if name.startswith("huawei.com/")]
            amounts[wanted] = counts[0]

    def ask_less(self, remedy: Remedy) -> None:
        for amounts in self.requests():
            for name in remedy.values:
                if name in amounts:
                    amounts[name] = "1"

    def set_selector(self, remedy: Remedy) -> None:
        for pod in self.pods():
            pod["spec"].setdefault("nodeSelector", {}).update(remedy.values)

    def set_annotation(self, remedy: Remedy) -> None:
        for item in self.of_job():
            item["metadata"].setdefault("annotations", {}).update(remedy.values)

    def set_label(self, remedy: Remedy) -> None:
        for item in self.of_job():
            item["metadata"].setdefault("labels", {}).update(remedy.values)

    def of_job(self) -> Iterator[Item]:
        yield from self.pods()
        yield from (item for item in self.items if item["kind"] == "PodGroup")

    def one_pod(self, remedy: Remedy) -> None:
        for pod in list(self.pods())[1:]:
            self.items.remove(pod)
        for item in self.items:
            if item["kind"] == "PodGroup":
                item["spec"]["minMember"] = 1
                item["spec"].pop("minResources", None)

    def label_node(self, remedy: Remedy) -> None:
        labels = self.named("Node", remedy.node)["metadata"].setdefault("labels", {})
        labels.update(remedy.values)
        for key in remedy.remove:
            labels.pop(key, None)

    def tolerate(self, remedy: Remedy) -> None:
        for pod in self.pods():
            for key, value in remedy.values.items():
                pod["spec"].setdefault("tolerations", []).append({"key": key, "operator": "Equal", "value": value})

    def uncordon(self, remedy: Remedy) -> None:
        self.named("Node", remedy.node)["spec"].pop("unschedulable")

    def offer(self, remedy: Remedy) -> None:
        status = self.named("Node", remedy.node)["status"]
        for name in remedy.values:
            for part in ("capacity", "allocatable"):
                status[part][name] = str(int(status[part].get(name, "0")) + remedy.count)

    def free_node(self, remedy: Remedy) -> None:
        """End other work on the node, one pod at a time."""
        for item in self.items:
            if item["kind"] == "Pod" and item["spec"].get("nodeName") == remedy.node:
                self.items.remove(item)
                return
        raise AssertionError(f"{remedy.node} has no work to end")


def follow_to_the_end(items: list[Item]) -> list[Pending]:
    """The pending entries on the way until the job is placed."""
    follower, seen = Follower(copy.deepcopy(items)), []
    for _ in range(MAX_STEPS):
        entry = pending_of(follower.items)
        if entry is None:
            return seen
        seen.append(entry)
        assert entry.remedy is not None, f"no definite step: {entry.message} — {entry.unblock}"
        follower.follow(entry.remedy)
    raise AssertionError("\n".join(f"{entry.message}: {entry.unblock}" for entry in seen))


def busy(name: str, chips: range, on: str = "n0", **more: Any) -> Item:
    return listing.pod(name, on=on, chips=chips, **more)


def affinity(*expressions: dict[str, Any]) -> dict[str, Any]:
    term = {"nodeSelectorTerms": [{"matchExpressions": list(expressions)}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}}}


def random_case(chance: random.Random) -> list[Item]:
    """A job that waits for several reasons at once on a cluster of servers of 8."""
    spec: dict[str, Any] = {}
    if chance.random() < 0.4:
        spec["nodeSelector"] = {"zone": chance.choice("abc")}
    if chance.random() < 0.3:
        row = chance.choice([
            RACK, {"key": "rack", "operator": "Exists"},
            {"key": "zone", "operator": "NotIn", "values": ["d"]}, {"key": "age", "operator": "Gt", "values": ["3"]},
        ])  # fmt: skip
        spec |= affinity(row)
    items: list[Item] = []
    for number in range(chance.randint(1, 5)):
        name = f"n{number}"
        labels = {key: chance.choice(["a", "d"]) for key in ("zone", "rack") if chance.random() < 0.5}
        taints = [TAINT] if chance.random() < 0.3 else []
        items += [
            node(name, labels=labels, taints=taints, unschedulable=chance.random() < 0.2), report(name),
        ]  # fmt: skip
        items += [busy(f"b{number}-{at}", range(at, at + 1), name) for at in range(8) if chance.random() < 0.4]
    return [*items, *job("j", 1, chance.choice([1, 2, 3, 5, 8, 9, 16]), policy="chip8-node8", spec=spec)]


def history(seed: int) -> int:
    """Follow one random case to its end; returns how many steps it took."""
    return len(follow_to_the_end(random_case(random.Random(seed))))
