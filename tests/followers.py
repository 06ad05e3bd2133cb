"""People who follow the way out of a waiting job: they do what its values say, one step after the other."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

from engine.load import LoadCache, load
from engine.model.plan import Pending
from engine.model.remedies import Remedy, Step
from engine.observe.observed import observe
from engine.plan import plan
from engine.replay.offline import every_role
from engine.wire import names
from tests import listing, worlds
from tests.claim_objects import allocated, capacity, queue, storage_class, volume
from tests.claim_objects import claim as volume_claim
from tests.listing import Item, node, report
from tests.placing import scope_of

Documents = dict[str, dict[str, Any]]
_READ = LoadCache()

#: Steps until a pod that several things keep off a node has all of them removed.
MAX_STEPS = 40


def pending_of(items: list[Item], files: Documents | None = None) -> Pending | None:
    """The pending entry of job j, None once all its pods have nodes.

    With the ``files`` of a repository the whole planner decides, health and all; else what placement needs.
    """
    if files is None:
        pending = scope_of(observe(items)).pending
    else:
        declared = load({path: json.dumps(body).encode() for path, body in files.items()}, cache=_READ).desired
        pending = list(plan(every_role(declared), observe(items), worlds.NOW).pending)
    return next((entry for entry in pending if entry.name.startswith("j")), None)


class Follower:
    """Carries out one remedy on the objects of a cluster and its repository, as its author would."""

    def __init__(self, items: list[Item], files: Documents | None = None) -> None:
        self.items, self.files = items, files

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
            Step.RELAX: self.relax,
            Step.ADD_NODE: self.add_node,
            Step.WAIT: self.wait,
            Step.MEND: self.mend,
            Step.END_ISOLATION: self.end_isolation,
            Step.REPORT: self.report,
            Step.RESUME_POOL: self.resume_pool,
            Step.CREATE_PODS: self.create_pods,
            Step.CREATE_GROUP: self.create_group,
            Step.STATE_LESS: self.state_less,
            Step.CREATE_QUEUE: self.create_queue,
            Step.OPEN_QUEUE: self.open_queue,
            Step.SET_QUEUE: self.set_queue,
            Step.RAISE_QUEUE: self.raise_queue,
            Step.LOWER_GUARANTEES: self.lower_guarantees,
            Step.BIND_CLAIM: self.bind_claim,
            Step.ADD_VOLUME: self.add_volume,
            Step.FREE_STORAGE: self.free_storage,
            Step.NEW_CLAIM: self.new_claim,
            Step.SERVE_CLAIM: self.serve_claim,
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
            labels = item["metadata"].setdefault("labels", {})
            labels.update(remedy.values)
            for key in remedy.remove:
                labels.pop(key, None)

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

    # the cluster

    def relax(self, remedy: Remedy) -> None:
        for pod in self.pods():
            for rule in remedy.values:
                pod["spec"].pop(rule, None)
                pod["spec"].get("affinity", {}).pop(rule, None)

    def add_node(self, remedy: Remedy) -> None:
        """A healthy node like one that is there, in the fullest super pod."""
        like = next(item for item in self.items if item["kind"] == "Node")
        kind = next((name.removeprefix("huawei.com/") for name in remedy.values), "Ascend910")
        number = sum(item["kind"] == "Node" for item in self.items)
        wanted = {key: value for pod in self.pods() for key, value in pod["spec"].get("nodeSelector", {}).items()}
        name, chips = f"new{number}", max(8, remedy.count)
        labels = {**like["metadata"]["labels"], **wanted, "kubernetes.io/hostname": name}
        self.items += [
            node(name, kind=kind, chips=chips, labels=labels),
            report(name, kind=kind, chips=chips, super_pod=0, index=number),
        ]

    def wait(self, remedy: Remedy) -> None:
        """Old pods end, and storage drivers bind what was asked of them."""
        self.items[:] = [item for item in self.items if "deletionTimestamp" not in item["metadata"]]
        for item in self.items:
            if item["kind"] == "PersistentVolumeClaim":
                item["status"]["phase"] = "Bound"
                item["spec"].setdefault("volumeName", f"made-for-{item['metadata']['name']}")

    def mend(self, remedy: Remedy) -> None:
        status = self.named("Node", remedy.node)["status"]
        status["conditions"] = [{"type": "Ready", "status": "True", "lastTransitionTime": listing.STAMP}]
        self.items[:] = [item for item in self.items if item["metadata"]["name"] != names.NODE_PREFIX + remedy.node]
        self.report(remedy)

    def report(self, remedy: Remedy) -> None:
        """The node's agent starts again: its report and Kubernetes have all chips of the node, without faults."""
        body = self.named("Node", remedy.node)
        base = json.loads(body["metadata"]["annotations"]["baseDeviceInfos"])
        kind = next(iter(base)).rpartition("-")[0]
        for part in ("capacity", "allocatable"):
            body["status"][part] = {**body["status"][part], f"huawei.com/{kind}": str(len(base))}

        held = {
            int(chip.rpartition("-")[2])
            for item in self.items
            if item["kind"] == "Pod" and item["spec"].get("nodeName") == remedy.node
            for chip in filter(None, item["metadata"]["annotations"].get(f"huawei.com/{kind}", "").split(","))
        }
        self.items[:] = [item for item in self.items if item["metadata"]["name"] != names.DEVICE_PREFIX + remedy.node]
        self.items.append(report(remedy.node, kind=kind, chips=len(base), busy=held, super_pod=0))

    def end_isolation(self, remedy: Remedy) -> None:
        assert self.files is not None
        for path, body in list(self.files.items()):
            if body["kind"] == "Isolation" and remedy.node in body["spec"]["nodes"]:
                del self.files[path]

    def resume_pool(self, remedy: Remedy) -> None:
        assert self.files is not None
        for body in self.files.values():
            if body["kind"] == "NodePool" and body["metadata"]["name"] == remedy.name:
                body["spec"]["suspend"] = False

    # the gang and its queue

    def create_pods(self, remedy: Remedy) -> None:
        like = list(self.pods())
        for number in range(len(like), len(like) + remedy.count):
            fresh = copy.deepcopy(like[0])
            fresh["metadata"] |= {"name": f"j-{number}", "uid": f"u-train-j-{number}"}
            fresh["metadata"]["annotations"]["hccl/rankIndex"] = str(number)
            self.items.append(fresh)

    def create_group(self, remedy: Remedy) -> None:
        self.items.append(listing.group(remedy.name, len(list(self.pods())), 0))

    def state_less(self, remedy: Remedy) -> None:
        for item in self.of_job():
            if item["kind"] == "PodGroup":
                stated = item["spec"]["minResources"]
                item["spec"]["minResources"] = dict.fromkeys(stated, str(remedy.count))

    def create_queue(self, remedy: Remedy) -> None:
        self.items.append(queue(remedy.name))

    def open_queue(self, remedy: Remedy) -> None:
        self.named("Queue", remedy.name)["status"]["state"] = "Open"

    def set_queue(self, remedy: Remedy) -> None:
        for item in self.of_job():
            if item["kind"] == "PodGroup":
                item["spec"]["queue"] = remedy.name

    def raise_queue(self, remedy: Remedy) -> None:
        capability = self.named("Queue", remedy.name)["spec"]["capability"]
        for resource in remedy.values:
            capability[resource] = str(int(capability[resource]) + remedy.count)

    def lower_guarantees(self, remedy: Remedy) -> None:
        for item in self.items:
            if item["kind"] == "Queue" and item["metadata"]["name"] != remedy.name:
                item["spec"].pop("guarantee", None)

    # claims

    def claim(self, name: str) -> Item | None:
        return next(
            (
                item
                for item in self.items
                if item["kind"] in ("PersistentVolumeClaim", "ResourceClaim") and item["metadata"]["name"] == name
            ),
            None,
        )

    def drop_claim(self, name: str) -> Item | None:
        """Delete the claim; returns what it was."""
        found = self.claim(name)
        if found is not None:
            self.items.remove(found)
        return found

    def bind_claim(self, remedy: Remedy) -> None:
        self.drop_claim(remedy.name)
        bound = volume_claim(remedy.name, status={"phase": "Bound"})
        bound["spec"]["volumeName"] = f"made-for-{remedy.name}"
        self.items.append(bound)

    def add_volume(self, remedy: Remedy) -> None:
        wanted = self.claim(remedy.name)
        assert wanted is not None
        size = wanted["spec"]["resources"]["requests"]["storage"]
        self.items.append(volume(f"added-{len(self.items)}", remedy.node, size))

    def free_storage(self, remedy: Remedy) -> None:
        self.items.append(capacity(f"more-{len(self.items)}", remedy.node, "1Ti"))

    def new_claim(self, remedy: Remedy) -> None:
        old = self.drop_claim(remedy.name)
        assert old is not None
        if old["kind"] == "ResourceClaim":
            self.items.append(allocated(remedy.name))
        else:
            self.items += [storage_class("anywhere"), volume_claim(remedy.name, kind="anywhere")]

    def serve_claim(self, remedy: Remedy) -> None:
        self.drop_claim(remedy.name)
        self.items.append(allocated(remedy.name))


def follow_to_the_end(items: list[Item], files: Documents | None = None) -> list[Pending]:
    """The pending entries on the way until the job is placed."""
    follower = Follower(copy.deepcopy(items), copy.deepcopy(files))
    seen: list[Pending] = []
    for _ in range(MAX_STEPS):
        entry = pending_of(follower.items, follower.files)
        if entry is None:
            return seen
        seen.append(entry)
        assert entry.remedy is not None, f"no definite step: {entry.message} — {entry.unblock}"
        follower.follow(entry.remedy)
    raise AssertionError("\n".join(f"{entry.message}: {entry.unblock}" for entry in seen[-4:]))
