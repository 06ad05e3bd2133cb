"""No gang is placed in part, in whatever order its pods, its PodGroup and its owner come and go."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from belay.engine.model.actions import BindPod, DeleteObject, EvictPod
from belay.engine.model.plan import Plan
from belay.engine.model.plan_cache import PlanCache
from belay.engine.observe.observed import Observer, key_of
from belay.engine.plan import plan
from tests import listing, placing, worlds
from tests.jobs import POD_GROUP_CRD

GROUP_API = "scheduling.volcano.sh/v1beta1"
SERVERS = 5
#: The owner of each gang's pods, its number of pods, and how many must start together.
GANGS = {
    "bare": ("", 3, 3),
    "loose": ("", 4, 2),
    "serve": ("Deployment", 3, 3),
    "train": ("Job", 4, 4),
    "acjob": ("AscendJob", 2, 2),
    "sets": ("StatefulSet", 3, 3),
}
APIS = {
    "Deployment": "apps/v1", "StatefulSet": "apps/v1", "ReplicaSet": "apps/v1", "Job": "batch.volcano.sh/v1alpha1",
    "AscendJob": "mindxdl.gitee.com/v1",
}  # fmt: skip
THINGS = [
    (gang, thing)
    for gang, (owner, pods, _) in GANGS.items()
    for thing in ("group", *(["owner"] if owner else []), *(f"pod-{index}" for index in range(pods)))
]
#: What comes, or goes where it is there already; or a pass.
STEPS = st.lists(st.one_of(st.just(None), st.sampled_from(THINGS)), min_size=10, max_size=80)


class Cluster:
    """Servers of eight chips, objects that come and go, and the bindings of every pass."""

    def __init__(self) -> None:
        self.observer, self.cache = Observer(), PlanCache()
        self.there: dict[tuple[str, str], dict[str, Any]] = {}
        self.made = 0
        self.put(POD_GROUP_CRD)
        for index in range(SERVERS):
            self.put(listing.node(f"n{index}", labels=worlds.A2_LABELS))
            self.put(listing.report(f"n{index}"))

    def put(self, thing: dict[str, Any]) -> None:
        self.observer.put(thing)

    def turn(self, gang: str, thing: str) -> None:
        """The object comes, or goes."""
        old = self.there.pop((gang, thing), None)
        if old is not None:
            self.observer.delete(key_of(old))
            return
        self.made += 1
        made = _object(gang, thing, self.made)
        self.there[gang, thing] = made
        self.put(made)

    def step(self) -> Plan:
        """One pass: its bindings are seen by the next one, and the pods run."""
        result = plan(placing.shipped(), self.observer.observed(), worlds.NOW, cache=self.cache)
        for action in result.actions:
            if isinstance(action, BindPod):
                (pod,) = [one for one in self.there.values() if one["metadata"]["name"] == action.pod]
                pod["spec"]["nodeName"] = action.node
                pod["metadata"]["annotations"] |= action.annotations
                pod["status"] = {"phase": "Running"}
                self.put(pod)
        return result

    def started(self, gang: str) -> int:
        pods = [thing for (its, name), thing in self.there.items() if its == gang and name.startswith("pod-")]
        return sum(1 for pod in pods if pod["spec"].get("nodeName"))


def _object(gang: str, thing: str, number: int) -> dict[str, Any]:
    owner, pods, least = GANGS[gang]
    metadata = {"name": gang, "namespace": "train", "uid": f"u-{gang}", "resourceVersion": str(number)}
    if thing == "group":
        spec = {"minMember": least}
        return {
            "apiVersion": GROUP_API, "kind": "PodGroup", "metadata": metadata | {"name": f"g-{gang}"}, "spec": spec
        }  # fmt: skip
    if thing == "owner":
        return {"apiVersion": APIS[owner], "kind": owner, "metadata": metadata, "spec": _spec(owner, pods, least)}
    made = listing.pod(f"{gang}-{thing[4:]}", count=8, group=f"g-{gang}")
    made["metadata"] |= {"uid": f"u-{gang}-{number}", "resourceVersion": str(number)}
    if owner:
        kind, name = ("ReplicaSet", f"{gang}-5f") if owner == "Deployment" else (owner, gang)
        made["metadata"]["ownerReferences"] = [
            {"apiVersion": APIS[kind], "kind": kind, "name": name, "uid": f"u-{name}", "controller": True}
        ]
        made["metadata"]["labels"] = {"pod-template-hash": "5f"} if owner == "Deployment" else {}
    return made


def _spec(owner: str, pods: int, least: int) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "ascend", "image": "i"}]}}
    if owner == "Job":
        task = {"name": "worker", "replicas": pods, "template": template}
        return {"schedulerName": "volcano", "minAvailable": least, "tasks": [task]}
    if owner == "AscendJob":
        rows = {"Master": {"replicas": 1, "template": template}, "Worker": {"replicas": pods - 1, "template": template}}
        return {"replicaSpecs": rows, "runPolicy": {"schedulingPolicy": {"minAvailable": least}}}
    return {"replicas": pods, "selector": {"matchLabels": {"app": "x"}}, "template": template}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_no_gang_is_placed_in_part_in_any_order_of_arrival_and_departure(steps: list[tuple[str, str] | None]) -> None:
    cluster = Cluster()
    for step in [*steps, None]:
        if step is not None:
            cluster.turn(*step)
            continue
        result = cluster.step()
        for gang, (_, _, least) in GANGS.items():
            bound = [a for a in result.actions if isinstance(a, BindPod) and a.pod.startswith(f"{gang}-")]
            assert not bound or cluster.started(gang) >= least, f"{gang} runs in part: {[a.pod for a in bound]}"
            assert not bound or (gang, "group") in cluster.there, f"{gang} is placed without its group"
        gone = [a for a in result.actions if isinstance(a, EvictPod)]
        gone += [a for a in result.actions if isinstance(a, DeleteObject) and a.object_kind == "Pod"]
        running = {thing["metadata"]["name"] for thing in cluster.there.values() if thing.get("status")
                   and thing["status"].get("phase") == "Running"}  # fmt: skip
        orphans = {name for name in running if (name.split("-")[0], "group") not in cluster.there}
        assert not orphans & {a.pod if isinstance(a, EvictPod) else a.name for a in gone}, "a pod without group goes"


def test_pods_that_came_before_their_group_say_what_they_wait_for_and_start_with_it() -> None:
    cluster = Cluster()
    for index in range(3):
        cluster.turn("bare", f"pod-{index}")
    (entry,) = cluster.step().pending
    assert (entry.reason, entry.pods) == ("PodGroupMissing", ("bare-0", "bare-1", "bare-2"))
    assert "g-bare" in entry.message and entry.unblock is not None
    assert entry.unblock.startswith("create PodGroup g-bare in namespace train")
    cluster.turn("bare", "group")
    assert not cluster.step().pending and cluster.started("bare") == 3
    cluster.turn("bare", "group")
    cluster.turn("bare", "pod-1")
    cluster.turn("bare", "pod-1")
    assert [entry.pods for entry in cluster.step().pending] == [("bare-1",)]
    assert cluster.started("bare") == 2, "the running ones stay"
