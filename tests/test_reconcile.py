"""The loop on an API server and a real Redis: placement, isolation, status, and what losses must not change."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from belay.engine.controller.queues import ACT, RECONCILE
from belay.engine.kube import CONFIGMAP, POD
from belay.engine.replay.recording import replay
from belay.engine.replay.summary import RECORDING_SUFFIX
from belay.engine.sandbox.api.faults import FaultRule
from belay.engine.store import connect
from tests.loop_world import Cluster, Loop, cluster, until
from tests.redis_server import redis_process, redis_url  # noqa: F401

__all__ = ["cluster"]


pytestmark = [pytest.mark.real_time, pytest.mark.timeout(300)]


@pytest.fixture
def loop(cluster: Cluster, redis_url: str, tmp_path: Path) -> Iterator[Loop]:  # noqa: F811
    made = Loop(cluster, redis_url, tmp_path / "data")
    yield made
    made.close()
    assert made.failures == []


def test_pods_get_nodes_and_chips_and_people_get_status(cluster: Cluster, loop: Loop, tmp_path: Path) -> None:
    cluster.add_node("node-1")
    cluster.add_pod("train", 4)
    until(lambda: cluster.bound() == {"train"}, what="the binding")
    assert sorted(len(pods) for pods in cluster.chips().values()) == [1, 1, 1, 1]
    until(lambda: cluster.get(CONFIGMAP, "belay-sync", "belay-system"), what="belay-sync")
    until(lambda: cluster.get(CONFIGMAP, "cluster-info-device-0", "mindx-dl"), what="the aggregate")
    ledger = lambda: json.loads(cluster.get(CONFIGMAP, "belay-ledger-main", "belay-system")["data"]["claims.json"])  # type: ignore[index]  # noqa: E731
    until(lambda: ledger() == {}, what="the end of the claim, once the binding is seen")
    recordings = sorted((tmp_path / "data" / "passes").glob(f"*{RECORDING_SUFFIX}"))
    assert recordings and all(replay(path).same for path in recordings)


def test_a_fault_is_ordered_isolated_and_a_clean_report_releases(cluster: Cluster, loop: Loop) -> None:
    cluster.add_node("node-1")
    until(lambda: loop.controller.ready)
    cluster.report("node-1", bad={3: ("80E18005", "SeparateNPU")})
    until(lambda: cluster.orders("node-1").get("chips", {}).get("Ascend910-3", {}).get("isolate"), what="the order")
    cluster.add_pod("eight", 8)
    three_passes(loop)
    assert cluster.bound() == set(), "seven good chips cannot hold eight"
    cluster.report("node-1")
    until(lambda: cluster.bound() == {"eight"}, what="the placement after recovery")
    assert not cluster.orders("node-1")["chips"].get("Ascend910-3", {}).get("isolate")


def test_a_pass_without_changes_writes_nothing(cluster: Cluster, loop: Loop) -> None:
    cluster.add_node("node-1")
    cluster.add_pod("train", 2)
    until(lambda: cluster.bound() == {"train"})

    def writes_nothing() -> bool:
        before = versions(cluster)
        three_passes(loop)
        return versions(cluster) == before

    until(writes_nothing, what="three passes that write nothing, once everything that follows from the binding is done")
    assert writes_nothing()


def three_passes(loop: Loop) -> None:
    """Wait until three more passes were asked for, so that two of them have ended."""
    before = len([task for task, _ in loop.sent if task == RECONCILE])
    until(lambda: len([task for task, _ in loop.sent if task == RECONCILE]) >= before + 3, what="three more passes")


def versions(cluster: Cluster) -> dict[str, str]:
    items = [*cluster.run(cluster.kube.list(CONFIGMAP)).items, *cluster.pods()]
    return {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in items}


def test_lagging_watches_never_lead_to_a_chip_with_two_owners(cluster: Cluster, loop: Loop) -> None:
    """The race of the contract: passes follow each other faster than their bindings come back."""
    cluster.server.faults.add(FaultRule(mode="watch-lag", latency=0.6, resources=["pods", "configmaps"], seed=3))
    for number in range(2):
        cluster.add_node(f"node-{number}")
    for number in reversed(range(16)):  # each new pod comes first in the queue, so a stale view gives it a taken chip
        cluster.add_pod(f"one-{number:02}", 1)
        loop.worker.triggers.mark("main")
        time.sleep(0.03)
    until(lambda: len(cluster.bound()) == 16, what="sixteen pods on sixteen chips")
    assert all(len(pods) == 1 for pods in cluster.chips().values()) and len(cluster.chips()) == 16


def test_a_flush_at_any_moment_loses_nothing(cluster: Cluster, loop: Loop, redis_url: str) -> None:  # noqa: F811
    client = connect(redis_url)
    for number in range(3):
        cluster.add_node(f"node-{number}")
    for number in range(12):
        cluster.add_pod(f"two-{number:02}", 2)
        if number % 3 == 0:
            client.flushall()
        time.sleep(0.05)
    until(lambda: len(cluster.bound()) == 12, what="every pod on its chips")
    assert all(len(pods) == 1 for pods in cluster.chips().values()) and len(cluster.chips()) == 24


def test_doubled_messages_change_nothing(cluster: Cluster, loop: Loop) -> None:
    loop.copies = lambda task, argument: 3
    cluster.add_node("node-1")
    cluster.add_node("node-2")
    cluster.report("node-1", bad={0: ("80E18005", "SeparateNPU")})
    until(lambda: cluster.orders("node-1").get("chips", {}).get("Ascend910-0", {}).get("isolate"), what="the order")
    for number in range(8):
        cluster.add_pod(f"two-{number}", 2)
    until(lambda: len(cluster.bound()) == 7, what="seven pods on fifteen chips")
    assert all(len(pods) == 1 for pods in cluster.chips().values())
    assert "node-1/Ascend910-0" not in cluster.chips()
    assert cluster.orders("node-1")["generation"] == 1, "nine messages, one write"


def test_a_bug_in_the_planner_is_logged_counted_and_tried_again(
    cluster: Cluster, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    until(lambda: loop.controller.ready)

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr("belay.engine.controller.shard.make_plan", broken)
        cluster.add_node("node-1")
        cluster.add_pod("train", 4)
        until(lambda: len(loop.failures) >= 2, what="two failed passes")
    assert loop.worker.passes.counters()["pass_failures|shard=main"] >= 2
    until(lambda: cluster.bound() == {"train"}, what="the placement once the bug is gone")
    loop.failures.clear()


def test_a_jobs_status_is_written_when_only_that_changes(cluster: Cluster, loop: Loop) -> None:
    cluster.add_node("node-1")
    cluster.add_pod("train", 4)
    until(lambda: cluster.bound() == {"train"})
    cluster.run(cluster.kube.patch_status(POD, "train", {"status": {"phase": "Running"}}, "default"))

    def phase() -> str:
        found = cluster.get(CONFIGMAP, "belay-job-default.pod.train", "belay-system")
        return found["data"]["phase"] if found else ""

    until(lambda: phase() == "Running", what="the job's phase")


def test_a_fault_is_ordered_when_it_is_reported(cluster: Cluster, redis_url: str, tmp_path: Path) -> None:  # noqa: F811
    """The report itself starts the pass, without waiting for the next resync."""
    loop = Loop(cluster, redis_url, tmp_path / "data", resync=600.0)
    try:
        cluster.add_node("node-1")
        until(lambda: loop.controller.ready)
        cluster.report("node-1", bad={5: ("80E18005", "SeparateNPU")})
        until(lambda: cluster.orders("node-1").get("chips", {}).get("Ascend910-5", {}).get("isolate"), what="the order")
    finally:
        loop.close()
    assert loop.failures == []


def test_lost_batches_are_made_up_for(cluster: Cluster, loop: Loop) -> None:
    lost: list[str] = []

    def copies(task: str, argument: str) -> int:
        if task == ACT and len(lost) < 2:
            lost.append(argument)
            return 0
        return 1

    loop.copies = copies
    cluster.add_node("node-1")
    cluster.add_pod("train", 4)
    until(lambda: cluster.bound() == {"train"}, what="the binding, two lost batches later")
    assert len(lost) == 2
    (before,) = cluster.pods()
    loop.worker.act(lost[0])  # it comes back from the dead: its epoch is long over
    (after,) = cluster.pods()
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"] and len(cluster.chips()) == 4


def test_a_superseded_batch_writes_nothing(cluster: Cluster, loop: Loop, redis_url: str) -> None:  # noqa: F811
    held: list[str] = []

    def copies(task: str, argument: str) -> int:
        if task == ACT and not held:
            held.append(argument)
            return 0
        return 1

    loop.copies = copies
    cluster.add_node("node-1")
    pod = cluster.add_pod("train", 4)
    until(lambda: held)
    cluster.run(cluster.kube.delete(POD, "train", "default", grace=0, uid=pod["metadata"]["uid"]))
    cluster.add_pod("train", 8)
    until(lambda: cluster.bound() == {"train"})  # after its chips have settled
    connect(redis_url).flushall()  # even when Redis forgot that it is late
    loop.worker.act(held[0])
    assert len(cluster.chips()) == 8
