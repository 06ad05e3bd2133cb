"""What shows state says how old it is: the last pass, and why none comes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from belay.engine.cli.watching import MissingPassNotes
from belay.engine.controller.pass_monitor import OtherShardsMonitor, PassMonitor
from belay.engine.controller.pass_reporter import PassReporter
from belay.engine.kube import CONFIGMAP, LEASE, Kube, Object
from belay.engine.kube.lease import CEILING_SECONDS, shard_lease
from belay.engine.model.freshness import Hindrance, LastPass, missing_pass, missing_since
from belay.engine.model.labels import ABOUT_LABEL
from belay.engine.serve.engine_client import EngineClient
from belay.engine.status.status_reader import read_status
from belay.engine.store import StoreUnavailable
from belay.engine.wire import names, passinfo, sync
from tests.loop_world import Cluster, cluster  # noqa: F401

NOW = 1_800_000_000.0
EVERY = 10.0


def test_a_pass_that_is_missing_is_said_with_its_age_and_reason() -> None:
    last = LastPass(shard="main", time=NOW, every=EVERY)
    assert missing_pass(last, NOW + 29) == ""
    assert missing_pass(last, NOW + 840).startswith("no pass for 840 s: no process reports why")
    held = LastPass(shard="a", time=NOW, every=EVERY, reason="LeaseHeld", problem="the Lease is held by evil")
    assert missing_pass(held, NOW + 40) == "no pass of shard a for 40 s: the Lease is held by evil"
    assert missing_since(held, NOW + 40) == "no pass of shard a since 2027-01-15T08:00:00Z: the Lease is held by evil"
    assert missing_pass(LastPass(shard="main", time=NOW, every=120.0), NOW + 300) == "", "passes are that rare there"
    assert missing_pass(LastPass(shard="main"), NOW) == "", "nothing is known of an older engine"
    assert missing_pass(LastPass(shard="main", problem="no worker"), NOW) == "no pass yet: no worker"
    ahead = LastPass(shard="main", time=NOW + 600, every=EVERY, by="worker-1")
    assert missing_pass(ahead, NOW).startswith("the last pass is 600 s ahead of this clock")
    assert "set the clock of worker-1" in missing_pass(ahead, NOW) and missing_pass(ahead, NOW + 590) == ""


def test_nothing_is_held_back_for_certain_while_no_pass_comes() -> None:
    rows = [{"type": kind, "status": "True", "reason": "x", "message": ""} for kind in ("PruneHeld", "OrdersSigned")]
    held = {"metadata": {"name": names.SYNC}, "data": {"conditions.json": json.dumps(rows)}}
    old = passinfo.build(LastPass(shard="main", time=NOW, every=EVERY))
    said = {row["type"]: row["status"] for row in read_status([held, old], NOW + 100).conditions}
    assert said == {"PruneHeld": "Unknown", "OrdersSigned": "True"}


def test_a_stream_of_changes_repeats_that_no_pass_comes() -> None:
    notes = MissingPassNotes()
    said = [notes.due("no pass" if 10 <= second < 100 else "", second) for second in map(float, range(0, 140, 10))]
    assert [(second * 10, text) for second, text in enumerate(said) if text] == [
        (10, "no pass"), (70, "no pass"), (100, "Passes come again."),
    ]  # fmt: skip


def test_the_record_survives_its_format_and_nonsense_counts_as_long_ago() -> None:
    last = LastPass(shard="s", identifier="s-1-ab", time=NOW, revision="abc", every=2.5, by="worker-0")
    assert passinfo.parse(passinfo.build(last)) == last
    for data in ({"time": "now", "every": "-1"}, {"every": "nan"}, None, []):
        parsed = passinfo.parse({"data": data})
        assert (parsed.time, parsed.every) == (0.0, 10.0)


def published(*, ready: str = "True") -> list[dict[str, Any]]:
    rows = [{"type": kind, "status": ready, "reason": "R", "message": "m"} for kind in ("Fetched", "Applied", "Ready")]
    sync = {"metadata": {"name": "belay-sync"}, "data": {"conditions.json": json.dumps(rows)}}
    return [sync, passinfo.build(LastPass(shard="main", time=NOW, every=EVERY))]


def test_ready_is_unknown_while_no_pass_comes() -> None:
    fresh = read_status(published(), NOW + 5)
    assert fresh.no_pass == "" and {row["status"] for row in fresh.conditions} == {"True"}
    old = {row["type"]: row for row in read_status(published(), NOW + 600).conditions}
    assert old["Fetched"]["status"] == "True"
    for kind in ("Applied", "Ready"):
        assert (old[kind]["status"], old[kind]["reason"]) == ("Unknown", "NoPass")
        assert "no pass for 600 s" in old[kind]["message"]
    assert {row["status"] for row in read_status(published(ready="False"), NOW + 600).conditions} == {"False"}


class Time:
    """Monotonic and wall time of a test."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def clock(self) -> float:
        return self.seconds

    def wall(self) -> float:
        return NOW + self.seconds


class Heartbeats:
    """What Redis knows of workers; ``away`` while it does not answer."""

    def __init__(self, time: Time, workers: tuple[str, ...]) -> None:
        self.time, self.workers, self.away = time, workers, False

    def alive(self) -> dict[str, float]:
        if self.away:
            raise StoreUnavailable("connection refused")
        return {f"worker/{name}": self.time.wall() for name in self.workers}

    def now(self) -> float:
        return self.time.wall()


class World:
    """A worker that did one pass and no more, and the controller that watches it."""

    def __init__(self, cluster: Cluster, workers: tuple[str, ...] = ("worker-0",)) -> None:  # noqa: F811
        self.cluster, self.time, self.messages = cluster, Time(), 0
        self.beats = Heartbeats(self.time, workers)
        self.worker = PassReporter(cluster.kube, "main", "worker-0", EVERY, clock=self.time.clock, wall=self.time.wall)
        watching = PassReporter(cluster.kube, "main", "ctl", EVERY, clock=self.time.clock, wall=self.time.wall)
        beats: Any = self.beats
        self.monitor = PassMonitor(cluster.kube, "main", watching, beats, lambda: self.messages, clock=self.time.clock)
        cluster.run(self.worker.completed("main-1-ab", "abc"))
        sync = {**published()[0], "apiVersion": "v1", "kind": "ConfigMap"}
        sync["metadata"] = {"name": "belay-sync", "namespace": names.SYSTEM}
        cluster.run(cluster.kube.create(CONFIGMAP, sync))

    def watch(self, seconds: float) -> None:
        """The controller looks every five seconds."""
        for _ in range(round(seconds / 5)):
            self.time.seconds += 5
            self.cluster.run(self.monitor.look())

    def last(self) -> LastPass:
        return passinfo.parse(self.cluster.get(CONFIGMAP, "belay-pass", names.SYSTEM) or {})

    def ready(self) -> dict[str, str]:
        found = self.cluster.get(CONFIGMAP, "belay-sync", names.SYSTEM)
        assert found is not None
        rows = {row["type"]: row for row in json.loads(found["data"]["conditions.json"])}
        assert found["data"].get("ready", rows["Ready"]["status"]) == rows["Ready"]["status"]
        return dict(rows["Ready"])


def lease(holder: str, seconds: int, epoch: int = 1) -> Object:
    metadata = {"name": "belay-shard-main", "namespace": names.SYSTEM}
    spec = {"holderIdentity": holder, "leaseDurationSeconds": seconds, "leaseTransitions": epoch}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


def stolen(world: World) -> None:
    world.cluster.run(world.cluster.kube.create(LEASE, lease("evil", 2**31 - 1)))


def redis_away(world: World) -> None:
    world.beats.away = True


def stopped(world: World) -> None:
    world.beats.workers = ()


def flooded(world: World) -> None:
    world.messages = 900


@pytest.mark.parametrize(
    ("hinder", "reason", "words"),
    [
        (stolen, Hindrance.LEASE_HELD, "is held by evil"),
        (redis_away, Hindrance.REDIS_AWAY, "Redis does not answer"),
        (stopped, Hindrance.NO_WORKER, "no worker takes passes"),
        (flooded, Hindrance.QUEUE_FULL, "900 messages wait in queue plan"),
    ],
)
def test_the_controller_says_why_no_pass_comes(
    cluster: Cluster,  # noqa: F811
    hinder: Callable[[World], None],
    reason: Hindrance,
    words: str,
) -> None:
    world = World(cluster)
    world.watch(10)
    assert world.last().reason == "" and world.ready()["status"] == "True"

    hinder(world)
    world.watch(60)
    last = world.last()
    assert (last.reason, last.by, last.identifier, last.time) == (reason, "ctl", "main-1-ab", NOW)
    assert words in last.problem
    assert (world.ready()["status"], world.ready()["reason"]) == ("Unknown", "NoPass")
    assert words in world.ready()["message"]

    client: Any = object()
    engine = EngineClient(client, cluster.kube, wall=world.time.wall)
    (said,) = cluster.run(engine.missing("main"))
    assert said == f"no pass for 70 s: {last.problem}"

    world.cluster.run(world.worker.completed("main-2-cd", "abc"))
    assert world.last().problem == "" and world.last().identifier == "main-2-cd"


def test_the_main_shards_controller_watches_the_other_shards(cluster: Cluster) -> None:  # noqa: F811
    world = World(cluster)
    beats: Any = world.beats

    def monitor_of(shard: str) -> PassMonitor:
        watching = PassReporter(cluster.kube, shard, "ctl", EVERY, clock=world.time.clock, wall=world.time.wall)
        return PassMonitor(cluster.kube, shard, watching, beats, lambda: 0, clock=world.time.clock)

    rows = [{"type": kind, "status": "True", "reason": "R", "message": "m"} for kind in ("Applied", "Ready")]
    part = {
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "belay-sync.far", "namespace": names.SYSTEM, "labels": {ABOUT_LABEL: sync.PART}},
        "data": {sync.SHARD: "far", sync.CONDITIONS: json.dumps(rows)},
    }  # fmt: skip
    cluster.run(cluster.kube.create(CONFIGMAP, part))
    far = PassReporter(cluster.kube, "far", "worker-9", EVERY, clock=world.time.clock, wall=world.time.wall)
    cluster.run(far.completed("far-1-ab", "abc"))
    stopped(world)
    others = OtherShardsMonitor(cluster.kube, monitor_of)
    for _ in range(12):
        world.time.seconds += 5
        cluster.run(others.look())

    said = sync.parse_part(cluster.get(CONFIGMAP, "belay-sync.far", names.SYSTEM) or {})
    assert {row["type"]: (row["status"], row["reason"]) for row in said.conditions} == {
        "Applied": ("Unknown", "NoPass"), "Ready": ("Unknown", "NoPass"),
    }  # fmt: skip
    assert world.ready()["status"] == "True", "the main shard's own passes are its own monitor's"


def test_a_hindered_worker_says_so_once_it_has_lasted(cluster: Cluster) -> None:  # noqa: F811
    world = World(cluster)
    for _ in range(80):
        world.time.seconds += 1
        cluster.run(world.worker.hindered(Hindrance.ENDED_EARLY, "each pass ends early: no"))
        if world.time.seconds < 30:
            assert world.last().reason == ""
    assert (world.last().reason, world.last().problem) == ("EndedEarly", "each pass ends early: no")
    cluster.run(world.worker.completed("main-2-cd", "abc"))
    assert world.last().reason == ""


def test_a_worker_that_others_outrun_says_nothing(cluster: Cluster) -> None:  # noqa: F811
    world = World(cluster)
    idle = PassReporter(cluster.kube, "main", "worker-1", EVERY, clock=world.time.clock, wall=world.time.wall)
    for _ in range(300):
        world.time.seconds += 1
        cluster.run(world.worker.completed("main-9-ef", "abc"))
        cluster.run(idle.hindered(Hindrance.LEASE_HELD, "the Lease is held by worker-0"))
        assert world.last().reason == ""


def test_a_foreign_lease_is_believed_for_a_minute_without_renewal_whatever_it_states(cluster: Cluster) -> None:  # noqa: F811
    time = Time()

    async def taken(kube: Kube) -> list[float]:
        await kube.create(LEASE, lease("evil", 2**31 - 1, epoch=7))
        ours = shard_lease(kube, "main", "worker-0", clock=time.clock)
        seen: list[float] = []
        while not seen and time.seconds < 600:
            if await ours.acquire() is not None:
                seen.append(time.seconds)
            time.seconds += 1
        assert ours.epoch == 8
        return seen

    (after,) = cluster.run(taken(cluster.kube))
    assert CEILING_SECONDS < after <= CEILING_SECONDS + 2


def test_probes_wait_for_no_api_server() -> None:
    class Silent:
        async def list(self, *_: object) -> None:
            await asyncio.sleep(3600)

    kube, client = Silent(), object()

    async def main() -> list[str]:
        engine = EngineClient(client, kube)  # type: ignore[arg-type]
        return await asyncio.wait_for(engine.missing("main"), 10)

    assert asyncio.run(main()) == []
