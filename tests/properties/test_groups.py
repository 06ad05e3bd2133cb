"""A grouping carried over from the last snapshot equals one from scratch."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from belay.engine.gangs import grouping, live_pods
from belay.engine.model.plan_cache import PlanCache
from belay.engine.observe.observed import Observer

NAMES = tuple(f"p{index}" for index in range(12))
OWNERS: tuple[dict[str, Any] | None, ...] = (
    None,
    *({"apiVersion": api, "kind": kind, "name": name, "uid": uid, "controller": True}
      for api, kind, name, uid in (
          ("mindxdl.gitee.com/v1", "AscendJob", "a", "ua"), ("mindxdl.gitee.com/v1", "AscendJob", "a", "ub"),
          ("batch.volcano.sh/v1alpha1", "Job", "v", "uv"), ("apps/v1", "StatefulSet", "s", "us"),
          ("apps/v1", "DaemonSet", "d", "ud"))),
)  # fmt: skip
PODS = st.fixed_dictionaries({
    "owner": st.sampled_from(OWNERS), "group": st.sampled_from(("", "g", "h")),
    "node": st.sampled_from(("", "n0", "n1")),
    "phase": st.sampled_from(("Pending", "Running", "Succeeded", "Failed")), "count": st.sampled_from((0, 8)),
})  # fmt: skip
STEPS = st.lists(st.dictionaries(st.sampled_from(NAMES), st.none() | PODS, max_size=2), max_size=12)


def pod(name: str, wish: dict[str, Any], version: int) -> dict[str, Any]:
    notes = {"scheduling.k8s.io/group-name": wish["group"]} if wish["group"] else {}
    owners = [wish["owner"]] if wish["owner"] else []
    limits = {"huawei.com/Ascend910": str(wish["count"])} if wish["count"] else {}
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "x", "uid": f"{name}-{version}", "resourceVersion": str(version),
                     "annotations": notes, "ownerReferences": owners},
        "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}], "schedulerName": "volcano",
                 "nodeName": wish["node"]},
        "status": {"phase": wish["phase"]},
    }  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(STEPS, st.booleans())
def test_following_pods_gives_the_same_as_grouping_all(steps: list[dict[str, Any]], grouped: bool) -> None:
    observer = Observer()
    if grouped:
        spec = {"minMember": 2}
        meta = {"name": "g", "namespace": "x", "uid": "ug", "resourceVersion": "1"}
        observer.put(
            {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": meta, "spec": spec}
        )
    # others, so that a few changes are few
    for index in range(40):
        wish = {"owner": None, "group": "", "node": "n2", "phase": "Running", "count": 8}
        observer.put(pod(f"z{index}", wish, 1))
    cache = PlanCache()
    grouping.grouping(observer.observed(), cache)
    live_pods.by_node(observer.observed(), cache)
    for version, step in enumerate(steps, start=2):
        for name, wish in sorted(step.items()):
            if wish is not None:
                observer.put(pod(name, wish, version))
            elif any(key.endswith(f"/{name}") for key in observer.observed().pods):
                observer.delete(key_of(name))
        seen = observer.observed()
        followed, live = grouping.grouping(seen, cache), live_pods.by_node(seen, cache)
        formed = grouping.grouping(seen, PlanCache())
        assert followed._replace(pods={}, objects={}) == formed._replace(pods={}, objects={})
        assert {name: pods for name, pods in live.items() if pods} == live_pods.by_node(seen, PlanCache())


def key_of(name: str) -> Any:
    from belay.engine.observe.observed import key_of as key

    return key(pod(name, {"owner": None, "group": "", "node": "", "phase": "Pending", "count": 0}, 1))
