"""People who follow the way out of a waiting job: they do what its values say, one step after the other."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from belay.engine.documents import Desired
from belay.engine.load import LoadCache, load
from belay.engine.model.actions import AnyAction, BindPod, PatchObject
from belay.engine.model.cluster import Observed
from belay.engine.model.history import History
from belay.engine.model.patches import merge_patch
from belay.engine.model.plan import Pending
from belay.engine.model.remedies import Remedy, Step
from belay.engine.model.taints import OWNERS
from belay.engine.observe.observed import observe
from belay.engine.plan import plan
from belay.engine.replay.offline import every_role
from belay.engine.wire import names
from tests import listing, worlds
from tests.claim_objects import allocated, capacity, queue, storage_class, volume
from tests.claim_objects import claim as volume_claim
from tests.listing import Item, node, report
from tests.placing import scope_of
from tests.test_dra_placement import devices
from tests.waiting_objects import (
    CORE,
    FILLED_IN,
    SHARE_LABEL,
    cut_on_demand,
    follow_share_label,
    is_leaving,
    is_of_node,
    is_slice_of,
    make_vnpu,
    restamp,
)

Documents = dict[str, dict[str, Any]]
_READ = LoadCache()

#: Steps until a pod that several things keep off a node has all of them removed.
MAX_STEPS = 40
#: Seconds that pass with each step of waiting.
WAITED = 150.0


def declared(files: Documents) -> Desired:
    """The desired state of a repository of these files."""
    return every_role(load({path: json.dumps(body).encode() for path, body in files.items()}, cache=_READ).desired)


class Follower:
    """Carries out one remedy on the objects of a cluster and its repository, as its author would.

    With the ``files`` of a repository the whole planner decides, health and all, with the memory of its passes;
    else what placement needs.
    """

    def __init__(self, items: list[Item], files: Documents | None = None, history: History | None = None) -> None:
        self.items, self.files, self.now = items, files, worlds.NOW
        self._history = history or History()
        self._actions: tuple[AnyAction, ...] = ()

    def pending(self) -> Pending | None:
        """The pending entry of job j, None once all its pods have nodes."""
        seen: Observed = msgspec.structs.replace(observe(self.items), history=self._history)
        if self.files is None:
            scope = scope_of(seen)
            entries, self._actions = scope.pending, tuple(scope.actions)
        else:
            made = plan(declared(self.files), seen, self.now)
            entries, self._actions, self._history = list(made.pending), made.actions, made.history
        return next((entry for entry in entries if entry.name.startswith("j")), None)

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
            Step.SET_POLICY: self.set_annotations,
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
            Step.MOVE_JOB: self.move_job,
            Step.SET_PARAMETER: self.set_parameter,
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
            amounts[wanted] = counts[0] if counts else "1"
        for item in self.of_job():
            item["metadata"]["annotations"].pop("volcano.sh/schedule.plugin", None)

    def ask_less(self, remedy: Remedy) -> None:
        for pod in self.pods():
            if "volumes" in remedy.values:
                del pod["spec"]["volumes"][int(remedy.values["volumes"]) :]
        for amounts in self.requests():
            for name in remedy.values:
                if name in amounts:
                    amounts[name] = "1"

    def set_selector(self, remedy: Remedy) -> None:
        for pod in self.pods():
            selector = pod["spec"].setdefault("nodeSelector", {})
            selector.update(remedy.values)
            for key in remedy.remove:
                selector.pop(key, None)

    def set_annotations(self, remedy: Remedy) -> None:
        for item in self.of_job():
            notes = item["metadata"].setdefault("annotations", {})
            notes.update(remedy.values)
            for key in remedy.remove:
                notes.pop(key, None)
        if remedy.count:
            self.ask_chips(remedy)

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
        """The labels, with what only people know filled in; the device plugin follows the label for shares."""
        body = self.named("Node", remedy.node)
        labels = body["metadata"].setdefault("labels", {})
        labels.update({key: value or FILLED_IN.get(key, "here") for key, value in remedy.values.items()})
        for key in remedy.remove:
            labels.pop(key, None)
        if SHARE_LABEL in (*remedy.values, *remedy.remove):
            follow_share_label(body)

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
        like = next((item for item in self.items if item["kind"] == "Node"), node("like"))
        kind = next((name.removeprefix("huawei.com/") for name in remedy.values), "Ascend910")
        number = sum(item["kind"] == "Node" for item in self.items)
        wanted = {key: value for pod in self.pods() for key, value in pod["spec"].get("nodeSelector", {}).items()}
        name, chips = f"new{number}", max(8, remedy.count)
        labels = {**like["metadata"]["labels"], **wanted, "kubernetes.io/hostname": name}
        if kind == "npu-core":
            self.items += cut_on_demand(name)
            return

        rack = 0 if kind == "npu" else None
        self.items += [
            node(name, kind=kind, chips=chips, labels=labels),
            report(name, kind=kind, chips=chips, super_pod=0, index=number, rack=rack, at=self.now),
        ]

    def wait(self, remedy: Remedy) -> None:
        """Minutes: what the plan does is done, old pods end, storage drivers bind what was asked of them, device
        plugins make the vNPUs under way, and nodes report again. Taints that others set they take away.
        """
        self.now += WAITED
        for item in self.items:
            if item["kind"] == "Node" and item["spec"].get("taints"):
                kept = [row for row in item["spec"]["taints"] if row["key"] not in OWNERS]
                item["spec"]["taints"] = kept
        for action in self._actions:
            if isinstance(action, BindPod):
                self.bind(action)
            elif isinstance(action, PatchObject):
                self.patch(action)
        self.items[:] = [item for item in self.items if not is_leaving(item)]
        for item in self.items:
            if item["kind"] == "Pod":
                item["spec"].pop("schedulingGates", None)
            if item["kind"] == "PersistentVolumeClaim":
                item["status"]["phase"] = "Bound"
                item["spec"].setdefault("volumeName", f"made-for-{item['metadata']['name']}")
            elif item["kind"] == "Pod":
                make_vnpu(item)
            elif item["metadata"]["name"].startswith(names.DEVICE_PREFIX):
                restamp(item, self.now)

    def bind(self, action: BindPod) -> None:
        """The pod runs; one of the job itself is bound with its gang when all of it has places."""
        found = self.named("Pod", action.pod)
        found["spec"]["nodeName"] = action.node
        found["metadata"]["annotations"] |= action.annotations
        found["status"]["phase"] = "Running"

    def patch(self, action: PatchObject) -> None:
        """What the planner writes into a claim, as the API server keeps it."""
        for number, item in enumerate(self.items):
            if item["kind"] == action.object_kind and item["metadata"]["name"] == action.name:
                self.items[number] = copy.deepcopy(merge_patch(item, action.patch))

    def mend(self, remedy: Remedy) -> None:
        status = self.named("Node", remedy.node)["status"]
        status["conditions"] = [{"type": "Ready", "status": "True", "lastTransitionTime": listing.STAMP}]
        self.items[:] = [item for item in self.items if item["metadata"]["name"] != names.NODE_PREFIX + remedy.node]
        self.report(remedy)

    def report(self, remedy: Remedy) -> None:
        """The node's agent starts again: its report and Kubernetes have all chips of the node, without faults, and its
        devices for claims are published where the cluster has such claims.
        """
        body = self.named("Node", remedy.node)
        if any(item["kind"] == "DeviceClass" for item in self.items):
            self.items[:] = [item for item in self.items if not is_slice_of(item, remedy.node)]
            self.items.append(devices(remedy.node))
        base = json.loads(body["metadata"]["annotations"]["baseDeviceInfos"])
        kind = next(iter(base)).rpartition("-")[0]
        if CORE in body["status"]["allocatable"]:
            fresh = cut_on_demand(remedy.node, len(base))
            self.items[:] = [item for item in self.items if not is_of_node(item, remedy.node)]
            self.items += fresh
            return

        for part in ("capacity", "allocatable"):
            body["status"][part] = {**body["status"][part], f"huawei.com/{kind}": str(len(base))}

        held = {
            int(chip.rpartition("-")[2])
            for item in self.items
            if item["kind"] == "Pod" and item["spec"].get("nodeName") == remedy.node
            for chip in filter(None, item["metadata"]["annotations"].get(f"huawei.com/{kind}", "").split(","))
        }
        self.items[:] = [item for item in self.items if item["metadata"]["name"] != names.DEVICE_PREFIX + remedy.node]
        rack = 0 if kind == "npu" else None
        self.items.append(
            report(remedy.node, kind=kind, chips=len(base), busy=held, super_pod=0, rack=rack, at=self.now)
        )

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

    def set_parameter(self, remedy: Remedy) -> None:
        self.items[:] = [item for item in self.items if item["metadata"]["name"] != "volcano-scheduler-configmap"]
        self.items.append(listing.params(**{key: value or FILLED_IN[key] for key, value in remedy.values.items()}))

    def move_job(self, remedy: Remedy) -> None:
        for item in self.of_job():
            item["metadata"]["namespace"] = "train"

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


def follow_to_the_end(
    items: list[Item], files: Documents | None = None, history: History | None = None
) -> list[Pending]:
    """The pending entries on the way until the job is placed."""
    follower = Follower(copy.deepcopy(items), copy.deepcopy(files), history)
    seen: list[Pending] = []
    for _ in range(MAX_STEPS):
        entry = follower.pending()
        if entry is None:
            return seen
        seen.append(entry)
        assert entry.remedy is not None, f"no definite step: {entry.message} — {entry.unblock}"
        follower.follow(entry.remedy)
    raise AssertionError("\n".join(f"{entry.message}: {entry.unblock}" for entry in seen[-4:]))
