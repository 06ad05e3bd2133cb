"""What waiting pods say: the condition, its Event, how often, and that it causes no pass."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from belay.engine.controller.waiting_writer import EVENT_AGAIN, MAX_WRITTEN, REFRESH, WaitingWriter
from belay.engine.kube import Conflict, NotFound
from belay.engine.model.cluster import Observed, Pod
from belay.engine.model.plan import Pending, Plan
from belay.engine.observe.watch_events import essence
from belay.engine.status.waiting_pods import MAX_TEXT, Waiting, text_of, waiting
from belay.engine.wire import objects
from tests import worlds

NOW = worlds.NOW


class Server:
    """Pods' conditions and Events as an API server keeps them; every other write of a pod is refused as outdated."""

    def __init__(self, pods: list[Pod]) -> None:
        self.pods = {f"{pod.namespace}/{pod.name}": pod for pod in pods}
        self.events: dict[str, dict[str, Any]] = {}
        self.writes = 0

    async def patch(self, res: Any, name: str, patch: dict[str, Any], ns: str, **options: Any) -> None:
        self.writes += 1
        if res.kind == "Event":
            if name not in self.events:
                raise NotFound("no such Event")
            self.events[name] |= patch
            return
        assert options == {"kind": "strategic", "subresource": "status"}
        pod = self.pods.get(f"{ns}/{name}")
        if pod is None:
            raise NotFound("no such pod")
        if (pod.uid, pod.resource_version) != (patch["metadata"]["uid"], patch["metadata"]["resourceVersion"]):
            raise Conflict("the object has been modified")
        (row,) = patch["status"]["conditions"]
        assert (row["type"], row["status"], row["reason"]) == ("PodScheduled", "False", "Unschedulable")
        newer = str(int(pod.resource_version) + 1)
        self.pods[f"{ns}/{name}"] = msgspec.structs.replace(pod, unscheduled=row["message"], resource_version=newer)

    async def create(self, res: Any, body: dict[str, Any]) -> None:
        self.writes += 1
        if body["metadata"]["name"] in self.events:
            raise Conflict("it exists")
        self.events[body["metadata"]["name"]] = dict(body)

    async def get(self, res: Any, name: str, ns: str) -> dict[str, Any] | None:
        return self.events.get(name)

    def snapshot(self) -> Observed:
        return worlds.observed(pods=self.pods.values())


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def entry(*pods: str, reason: str = "NPUResourceShortage", message: str = "2 nodes have fewer free chips") -> Pending:
    return Pending("AscendJob", "train", "j", pods, reason, message, {}, "free 4 chips on one node")


def waits(server: Server, *entries: Pending, schedulers: tuple[str, ...] = ("volcano",)) -> list[Waiting]:
    return waiting(Plan("r", NOW, pending=entries), server.snapshot(), schedulers)


def write(writer: WaitingWriter, found: list[Waiting]) -> float:
    return asyncio.run(writer.write(found, NOW))


def test_a_waiting_pod_gets_reason_and_way_out_once() -> None:
    server, clock = Server([worlds.pod("p", count=8)]), Clock()
    writer = WaitingWriter(server, clock)  # type: ignore[arg-type]
    assert write(writer, waits(server, entry("p"))) == 0.0
    text = "NPUResourceShortage: 2 nodes have fewer free chips. Way out: free 4 chips on one node"
    assert server.pods["train/p"].unscheduled == text
    (event,) = server.events.values()
    assert (event["reason"], event["type"], event["message"], event["count"]) == (
        "FailedScheduling",
        "Warning",
        text,
        1,
    )
    assert event["involvedObject"]["uid"] == "uid-train-p"
    before = server.writes
    for _ in range(5):
        clock.now += 1
        assert write(writer, waits(server, entry("p"))) == 0.0
    assert server.writes == before


def test_another_text_waits_and_another_reason_does_not() -> None:
    server, clock = Server([worlds.pod("p", count=8)]), Clock()
    writer = WaitingWriter(server, clock)  # type: ignore[arg-type]
    write(writer, waits(server, entry("p")))
    clock.now += 1
    write(writer, waits(server, entry("p", message="3 nodes have fewer free chips")))
    assert "2 nodes" in server.pods["train/p"].unscheduled
    clock.now += REFRESH
    write(writer, waits(server, entry("p", message="3 nodes have fewer free chips")))
    assert "3 nodes" in server.pods["train/p"].unscheduled
    assert [event["count"] for event in server.events.values()] == [2], "one Event, counted"
    write(writer, waits(server, entry("p", reason="QueueExhausted", message="queue q has no share left")))
    assert server.pods["train/p"].unscheduled.startswith("QueueExhausted")
    assert [event["count"] for event in server.events.values()] == [2, 1]


def test_an_event_returns_before_the_api_server_deletes_it() -> None:
    server, clock = Server([worlds.pod("p", count=8)]), Clock()
    writer = WaitingWriter(server, clock)  # type: ignore[arg-type]
    write(writer, waits(server, entry("p")))
    clock.now += EVENT_AGAIN
    write(writer, waits(server, entry("p")))
    assert [event["count"] for event in server.events.values()] == [2]
    server.events.clear()
    clock.now += EVENT_AGAIN
    write(writer, waits(server, entry("p")))
    assert [event["count"] for event in server.events.values()] == [1]


def test_a_new_process_repeats_nothing() -> None:
    server = Server([worlds.pod("p", count=8)])
    write(WaitingWriter(server, Clock()), waits(server, entry("p")))  # type: ignore[arg-type]
    before = server.writes
    second = WaitingWriter(server, Clock())  # type: ignore[arg-type]
    assert write(second, waits(server, entry("p"))) == 0.0 and server.writes == before
    write(second, waits(server, entry("p", reason="QueueExhausted")))
    write(second, waits(server, entry("p")))
    first = next(event for event in server.events.values() if event["message"].startswith("NPU"))
    assert first["count"] == 2, "the Event of the process before is counted on"


def test_ten_thousand_waiting_pods_are_written_in_bounded_passes() -> None:
    pods = [worlds.pod(f"p{i}", count=8, created=NOW - i) for i in range(10_000)]
    server, clock = Server(pods), Clock()
    writer = WaitingWriter(server, clock)  # type: ignore[arg-type]
    entries = [
        Pending("Pod", "train", pod.name, (pod.name,), "TopologyNotMet", "no ring is free", {}, None) for pod in pods
    ]
    found, passes, again = waits(server, *entries), 0, 1.0
    while again:
        before = server.writes
        again = write(writer, found)
        passes, clock.now = passes + 1, clock.now + again
        assert server.writes - before <= 2 * MAX_WRITTEN
    assert passes == 10_000 // MAX_WRITTEN and len(server.events) == 10_000
    assert all(pod.unscheduled for pod in server.pods.values())


def test_a_pod_that_changed_meanwhile_is_left_to_the_next_pass() -> None:
    server, clock = Server([worlds.pod("p", count=8)]), Clock()
    writer = WaitingWriter(server, clock)  # type: ignore[arg-type]
    found = waits(server, entry("p"))
    server.pods["train/p"] = msgspec.structs.replace(server.pods["train/p"], resource_version="7", node="n0")
    assert write(writer, found) > 0
    assert server.pods["train/p"].unscheduled == "" and not server.events
    assert write(writer, waits(server, entry("p"))) == 0.0 and not server.events, "it is bound now"


def test_only_pods_of_belay_that_wait_are_written() -> None:
    pods = [
        worlds.pod("bound", node="n0", count=8),
        worlds.pod("other", count=8, scheduler="default-scheduler"),
        msgspec.structs.replace(worlds.pod("gated", count=8), gates=("example.org/hold",)),
        worlds.pod("leaving", count=8, deleting=NOW),
        worlds.pod("done", count=8, phase="Succeeded"),
        worlds.pod("mine", count=8),
    ]
    found = waits(Server(pods), entry(*(pod.name for pod in pods), "unknown"))
    assert [one.subject["name"] for one in found] == ["mine"]


def test_the_job_of_a_waiting_gang_gets_an_event() -> None:
    job = {
        "apiVersion": "mindxdl.gitee.com/v1",
        "kind": "AscendJob",
        "metadata": {"name": "j", "namespace": "train", "uid": "u-j"},
    }
    seen = worlds.observed(pods=[worlds.pod("p", count=8)], objects=[job])
    found = waiting(Plan("r", NOW, pending=(entry("p"),)), seen, ("volcano",))
    server = Server(list(seen.pods.values()))
    write(WaitingWriter(server, Clock()), found)  # type: ignore[arg-type]
    events = {event["involvedObject"]["kind"]: event["reason"] for event in server.events.values()}
    assert events == {"AscendJob": "Unschedulable", "Pod": "FailedScheduling"}


@pytest.mark.parametrize("message", ["x" * 5000, "NPUResourceShortage: few"])
def test_a_text_names_its_reason_once_and_is_short(message: str) -> None:
    text = text_of(entry("p", message=message))
    assert text.count("NPUResourceShortage") == 1 and len(text) <= MAX_TEXT


def pod_object(*conditions: dict[str, Any]) -> dict[str, Any]:
    status = {"phase": "Pending", **({"conditions": list(conditions)} if conditions else {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "d"},
        "spec": {},
        "status": status,
    }


def test_the_condition_wakes_no_pass_and_is_read_back() -> None:
    row = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}
    other = {"type": "Example", "status": "True"}
    assert essence(pod_object()) == essence(pod_object(row))
    assert essence(pod_object(other)) == essence(pod_object(row, other)) != essence(pod_object(row))
    assert essence(pod_object({**row, "status": "True"})) != essence(pod_object(row))
    assert objects.pod(pod_object(other, row)).unscheduled == "no room"
    assert objects.pod(pod_object({**row, "reason": "SchedulingGated"})).unscheduled == ""
    assert objects.pod(pod_object({**row, "status": "True"})).unscheduled == ""
