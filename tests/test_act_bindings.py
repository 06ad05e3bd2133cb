"""Bindings in races: what others do to a pod just before and just after its Binding, on servers new and old."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from belay.engine.act import Batch, Edge, Fence, run
from belay.engine.kube import EVENT, POD, Conflict, Kube, KubeError, Object
from belay.engine.kube.lease import shard_lease
from belay.engine.model.actions import BindPod, Preconditions
from belay.engine.model.labels import ASCEND_REAL, CONFIGURATION_910, KUBELET_DEVICES, PREDICATE_TIME
from belay.engine.store import ActionOutcome, PassRecord
from belay.engine.wire.podannotations import (
    PREDICATE_TIME_USED,
)
from tests.golden.stories import compare
from tests.loop_world import Cluster

NAME: Final = "p"
RECORD: Final = PassRecord("p", "main", 1, "d", 1, 0.0, 30.0)

Deed = Callable[[Kube], Awaitable[object]]


def body() -> Object:
    spec = {"schedulerName": "belay", "containers": [{"name": "c", "image": "i"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": NAME, "namespace": "default"}, "spec": spec}


async def mark(kube: Kube) -> object:
    """What a device plugin writes when kubelet asks it for devices (Allocate)."""
    return await kube.patch(POD, NAME, {"metadata": {"annotations": {PREDICATE_TIME: PREDICATE_TIME_USED}}}, "default")


async def tell(kube: Kube) -> object:
    """What a device plugin writes when it knows which devices kubelet gave."""
    notes = {ASCEND_REAL: "Ascend910-7", KUBELET_DEVICES: "Ascend910-7", CONFIGURATION_910: "{}"}
    return await kube.patch(POD, NAME, {"metadata": {"annotations": notes}}, "default")


async def recreate(kube: Kube) -> object:
    await kube.delete(POD, NAME, "default", grace=0)
    return await kube.create(POD, body())


async def rival(kube: Kube) -> object:
    """Another scheduler binds the pod."""
    live = await kube.get(POD, NAME, "default")
    return live and await kube.bind("default", NAME, live["metadata"]["uid"], "node-2")


async def delete(kube: Kube) -> object:
    return await kube.delete(POD, NAME, "default")


DEEDS: Final[dict[str, Deed]] = {
    "the device plugin marks it": mark,
    "the device plugin names its devices": tell,
    "it is recreated": recreate,
    "another scheduler binds it": rival,
    "it is deleted": delete,
}


class Race:
    """One Binding with deeds of others before and after it. ``old`` servers ignore the UID, as 1.20 does."""

    def __init__(self, cluster: Cluster, *, old: bool = False, lost: bool = False) -> None:
        self.cluster, self.old, self.lost = cluster, old, lost
        for pod in cluster.pods():
            cluster.run(cluster.kube.delete(POD, pod["metadata"]["name"], "default", grace=0))
        self.pod = cluster.create(POD, body())
        self.by_us = ""
        """UID of the pod that Belay's Binding reached."""
        self.deleted_by_others = False

    @property
    def uid(self) -> str:
        return str(self.pod["metadata"]["uid"])

    def live(self) -> Object | None:
        return self.cluster.get(POD, NAME, "default")

    async def _do(self, names: tuple[str, ...]) -> None:
        for name in names:
            try:
                await DEEDS[name](self.cluster.kube)
            except KubeError:
                continue  # the pod is not in a state for that
            self.deleted_by_others |= DEEDS[name] is delete

    def run(self, before: tuple[str, ...], after: tuple[str, ...]) -> ActionOutcome:
        kube, original = self.cluster.kube, self.cluster.kube.bind
        action = BindPod(
            reason="Placed",
            message="m",
            namespace="default",
            pod=NAME,
            node="node-1",
            chips=("Ascend910-0",),
            annotations={
                "huawei.com/Ascend910": "Ascend910-0",
                ASCEND_REAL: "Ascend910-0",
                CONFIGURATION_910: '{"planned": true}',
                PREDICATE_TIME: "1",
            },
            preconditions=Preconditions(uid=self.uid),
        )

        async def bind(ns: str, pod: str, uid: str, node: str, notes: Any = None) -> None:
            kube.bind = original  # type: ignore[method-assign]  # deeds bind, too
            await self._do(before)
            await original(ns, pod, "" if self.old else uid, node, notes)
            live = await kube.get(POD, NAME, "default")
            self.by_us = live["metadata"]["uid"] if live is not None else ""
            await self._do(after)
            if self.lost:
                raise Conflict("pods is already assigned", status=409)

        kube.bind = bind  # type: ignore[method-assign]
        try:
            epoch = self.cluster.run(shard_lease(kube, "main", "me").acquire())
            assert epoch is not None
            edge = Edge(kube, "main", Fence(kube, "main", epoch, seconds=0.0))
            return self.cluster.run(run(edge, Batch(RECORD, 1, [(0, action)]))).outcomes[0]
        finally:
            kube.bind = original  # type: ignore[method-assign]

    def told(self, outcome: ActionOutcome) -> str:
        """What the worker said and what became of the pod, without identities."""
        live = self.live()
        if live is None:
            state = "no pod"
        else:
            whose = "the planned pod" if live["metadata"]["uid"] == self.uid else "another pod"
            going = ", being deleted" if live["metadata"].get("deletionTimestamp") else ""
            state = f"{whose} on {live['spec'].get('nodeName') or 'no node'}{going}"
        said = f"{outcome.result} {outcome.message}".strip().replace(self.uid, "UID")
        other = "" if live is None else live["metadata"]["uid"]
        return f"{said.replace(other, 'OTHER') if other else said} -> {state}"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("api"))
    yield made
    made.close()


def test_a_pod_that_the_device_plugin_marks_at_once_stays(cluster: Cluster) -> None:
    race = Race(cluster)
    outcome = race.run((), ("the device plugin marks it", "the device plugin names its devices"))
    live = race.live()
    assert outcome.result == "done", outcome
    assert live is not None and live["metadata"]["uid"] == race.uid and not live["metadata"].get("deletionTimestamp")


def test_another_pod_of_the_name_is_named_and_left_alone(cluster: Cluster) -> None:
    race = Race(cluster)
    outcome = race.run(("it is recreated",), ())
    live = race.live()
    assert (outcome.result, race.by_us) == ("refused", "")
    assert "another pod of this name is there by now" in outcome.message
    assert live is not None and not live["spec"].get("nodeName") and not live["metadata"].get("deletionTimestamp")


def test_a_pod_that_an_old_server_bound_in_place_of_another_goes_and_an_event_says_so(cluster: Cluster) -> None:
    race = Race(cluster, old=True)
    assert "the new pod is deleted" in race.run(("it is recreated",), ("the device plugin marks it",)).message
    live = race.live()
    assert live is None or live["metadata"].get("deletionTimestamp")
    events = cluster.run(cluster.kube.list(EVENT)).items
    assert any(event["reason"] == "WrongPodBound" and event["type"] == "Warning" for event in events)


def test_the_story_of_every_race(cluster: Cluster, request: pytest.FixtureRequest) -> None:
    story = []
    for old, (when, deed) in itertools.product((False, True), itertools.product(("before", "after"), DEEDS)):
        race = Race(cluster, old=old)
        outcome = race.run((deed,) if when == "before" else (), (deed,) if when == "after" else ())
        server = "1.20" if old else "1.23"
        story.append(f"{server}: {deed} {when} the Binding: {race.told(outcome)}")
    for deeds in ((), ("another scheduler binds it",), ("the device plugin marks it",)):
        race = Race(cluster, lost=True)
        story.append(f"answer lost, {', '.join(deeds) or 'nothing else'}: {race.told(race.run(deeds, ()))}")
    compare("binding-races", story, request.config.getoption("--update-golden"))


some_deeds = st.lists(st.sampled_from(sorted(DEEDS)), max_size=3).map(tuple)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=some_deeds, after=some_deeds, old=st.booleans(), lost=st.booleans())
def test_no_pod_goes_but_one_that_got_the_chips_of_another(
    cluster: Cluster, before: tuple[str, ...], after: tuple[str, ...], old: bool, lost: bool
) -> None:
    race = Race(cluster, old=old, lost=lost)
    gone: list[str] = []
    original = cluster.kube.delete

    async def witnessed(res: Any, name: str, ns: str | None = None, **options: Any) -> Object:
        if res is POD and options.get("uid"):  # only the engine gives one
            gone.append(options["uid"])
        return await original(res, name, ns, **options)

    cluster.kube.delete = witnessed  # type: ignore[method-assign]
    try:
        outcome = race.run(before, after)
    finally:
        cluster.kube.delete = original  # type: ignore[method-assign]
    assert race.uid not in gone, "the planned pod is never deleted"
    assert all(uid == race.by_us and old for uid in gone), "of others only the one that our Binding reached"
    live = race.live()
    ours = live is not None and live["metadata"]["uid"] == race.uid and live["spec"].get("nodeName") == "node-1"
    assert (outcome.result == "done") == (ours and race.by_us == race.uid), outcome
