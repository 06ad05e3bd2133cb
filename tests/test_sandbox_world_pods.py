"""One simulated kubelet, step by step: admission, devices, the life of pods."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from belay.engine.model.cluster import AgentVNPU
from belay.engine.model.labels import (
    SANDBOX_LOG,
    SIMULATED_EXIT_AFTER,
    SIMULATED_EXIT_CODE,
    SIMULATED_EXIT_NOW,
    SIMULATED_FAIL_ON_FAULT,
    SIMULATED_READY_AFTER,
)
from belay.engine.model.times import rfc3339
from belay.engine.sandbox import nodes_admission, nodes_devices, nodes_pods, nodes_shape
from belay.engine.sandbox.nodes_devices import Devices, PodRejection
from belay.engine.sandbox.nodes_pods import PodHost, PodTimes
from belay.engine.sandbox.nodes_shape import Shape
from belay.engine.sandbox.settings import SandboxSettings
from belay.engine.workloads import objects as o
from belay.engine.workloads.writes import Reconciled
from tests.controller_world import NOW, merge

Json = dict[str, Any]
A2 = Shape("huawei.com/Ascend910", "Ascend910-", 8, {"accelerator-type": "module-910b-8"})
CARDS = Shape("huawei.com/Ascend310P", "Ascend310P-", 2, {"accelerator": "huawei-Ascend310P"})
NODE = nodes_shape.node_object("node-1", 0, A2, NOW)
HOST = PodHost("node-1", "10.64.0.1", SandboxSettings(time_scale=0.1))


def pod(name: str, chips: str = "", *, count: int = 0, resource: str = A2.resource, when: int = 1, **more: Any) -> Json:
    count = count or len([c for c in chips.split(",") if c])
    resources = {"requests": {resource: str(count)}, "limits": {resource: str(count)}} if count else {}
    notes = {resource: chips, "predicate-time": str(when)} if chips else {}
    out: Json = {
        "metadata": {"namespace": "default", "name": name, "uid": f"uid-{name}", "annotations": notes},
        "spec": {"nodeName": "node-1", "containers": [{"name": "main", "image": "i", "resources": resources}]},
        "status": {},
    }
    merge(out, more)
    return out


def perform(target: Json, step: Reconciled) -> Json:
    for write in step.writes:
        if write.verb in ("patch", "status"):
            merge(target, write.body)
    return target


def taken(name: str, chips: str = "", **more: Any) -> Json:
    """A pod that runs on the node with its chips."""
    thing = pod(name, chips, **more)
    perform(thing, nodes_pods.admit(thing, {"huawei.com/AscendReal": chips} if chips else {}, HOST, PodTimes(), NOW))
    perform(thing, nodes_pods.advance(thing, HOST, PodTimes(), "10.128.0.1", (), NOW + 60))
    assert o.phase(thing) == "Running"
    return thing


def give(target: Json, *waiting: Json, running: tuple[Json, ...] = (), devices: Devices | None = None) -> Any:
    found = devices or Devices(A2)
    return nodes_devices.allocate(
        target, [target, *waiting, *running], found, nodes_devices.held(running), "10.64.0.1", "1/node-1"
    )


def test_the_chips_that_the_scheduler_chose_are_given() -> None:
    notes = give(pod("a", "Ascend910-5,Ascend910-4"))
    assert notes["huawei.com/AscendReal"] == "Ascend910-4,Ascend910-5"
    assert len(notes["huawei.com/kltDev"].split(",")) == 2
    assert notes["predicate-time"] == "18446744073709551615"
    assert '"device_id":"4"' in notes["ascend.kubectl.kubernetes.io/ascend-910-configuration"]


def test_equal_requests_are_served_in_the_order_of_placement_whatever_kubelet_asks() -> None:
    first, second = pod("first", "Ascend910-0,Ascend910-1", when=1), pod("second", "Ascend910-2,Ascend910-3", when=2)
    assert give(second, first)["huawei.com/AscendReal"] == "Ascend910-0,Ascend910-1"
    other = pod("other", "Ascend910-7", when=0)
    assert give(second, other)["huawei.com/AscendReal"] == "Ascend910-2,Ascend910-3"


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_all_equal_requests_of_a_node_are_served_in_any_order(order: tuple[int, ...]) -> None:
    pods = [pod(f"p{i}", f"Ascend910-{2 * i},Ascend910-{2 * i + 1}", when=9 - i) for i in range(3)]
    running: list[Json] = []
    for index in order:
        waiting = [p for p in pods if p is not pods[index] and p not in running]
        notes = give(pods[index], *waiting, running=tuple(running))
        assert not isinstance(notes, PodRejection), notes
        perform(pods[index], nodes_pods.admit(pods[index], notes, HOST, PodTimes(), NOW))
        running.append(pods[index])
    assert sorted(nodes_devices.held(running)) == [f"Ascend910-{i}" for i in range(6)]


def test_a_chip_is_never_held_twice() -> None:
    running = taken("old", "Ascend910-0,Ascend910-1")
    refusal = give(pod("new", "Ascend910-1,Ascend910-2"), running=(running,))
    assert isinstance(refusal, PodRejection) and refusal.reason == "UnexpectedAdmissionError"
    assert "Ascend910-1 is held by pod default/old" in refusal.message
    running["metadata"]["deletionTimestamp"] = rfc3339(NOW)
    assert isinstance(give(pod("new", "Ascend910-1"), running=(running,)), PodRejection), (
        "a terminating pod keeps its chips"
    )
    running["status"]["phase"] = "Succeeded"
    assert not isinstance(give(pod("new", "Ascend910-1"), running=(running,)), PodRejection)


@pytest.mark.parametrize(
    ("target", "unhealthy", "text"),
    [
        (pod("a", "Ascend910-3"), {"Ascend910-3"}, "not healthy"),
        (pod("a", count=8), {"Ascend910-3"}, "Requested: 8, Available: 7"),
        (pod("a", count=2), set(), "no pod passes the filter"),
        (pod("a", "Ascend910-9"), set(), "not there"),
        (pod("a", count=1, resource="huawei.com/Ascend310P"), set(), "Requested: 1, Available: 0"),
    ],
)
def test_devices_that_are_unavailable_reject_the_pod(target: Json, unhealthy: set[str], text: str) -> None:
    refusal = give(target, devices=Devices(A2, frozenset(unhealthy)))
    assert isinstance(refusal, PodRejection) and text in refusal.message


def test_static_vnpus_appear_as_resources_and_are_given_by_name() -> None:
    vnpus = (AgentVNPU(100, 0, "vir04", ""), AgentVNPU(101, 0, "vir04_3c", ""))
    devices = Devices(CARDS, vnpus=vnpus, suffixes={"vir04": "4c", "vir04_3c": "4c.3cpu"})
    capacity, allocatable = devices.counts()
    assert capacity == {"huawei.com/Ascend310P": 1, "huawei.com/Ascend310P-4c": 1, "huawei.com/Ascend310P-4c.3cpu": 1}
    assert allocatable == capacity
    asking = pod("a", count=1, resource="huawei.com/Ascend310P-4c")
    notes = give(asking, devices=devices)
    assert notes["huawei.com/AscendReal"] == "Ascend310P-4c-100-0"
    holder = pod("b", count=1, resource="huawei.com/Ascend310P-4c")
    perform(holder, nodes_pods.admit(holder, notes, HOST, PodTimes(), NOW))
    assert isinstance(give(asking, running=(holder,), devices=devices), PodRejection)
    sick = Devices(CARDS, frozenset({"Ascend310P-0"}), vnpus, devices.suffixes)
    assert sick.counts()[1] == {
        "huawei.com/Ascend310P": 1,
        "huawei.com/Ascend310P-4c": 0,
        "huawei.com/Ascend310P-4c.3cpu": 0,
    }


def cpu(name: str, amount: str) -> Json:
    return pod(name, spec={"containers": [{"name": "main", "image": "i", "resources": {"requests": {"cpu": amount}}}]})


def test_admission_refuses_what_does_not_fit() -> None:
    assert nodes_admission.admit(cpu("a", "100"), [], NODE) is None
    refusal = nodes_admission.admit(cpu("b", "100"), [cpu("a", "92500m")], NODE)
    assert refusal is not None and refusal.reason == "OutOfcpu"
    assert "requested: 100000, used: 92500, capacity: 192000" in refusal.message
    many = [cpu(f"p{i}", "0") for i in range(110)]
    full = nodes_admission.admit(cpu("b", "0"), many, NODE)
    assert full is not None and full.reason == "OutOfpods"
    elsewhere = pod("c", spec={"nodeSelector": {"accelerator-type": "module"}})
    wrong = nodes_admission.admit(elsewhere, [], NODE)
    assert wrong is not None and wrong.reason == "NodeAffinity"


def life(
    target: Json, host: PodHost = HOST, held: tuple[str, ...] = (), seconds: float = 100.0
) -> tuple[Json, list[tuple[float, str]]]:
    """Admit the pod and go on for some seconds; returns it and its phases by time."""
    times, now, seen = PodTimes(), NOW, [(0.0, "")]
    step = nodes_pods.admit(target, {}, host, times, now)
    while True:
        perform(target, step)
        word = o.phase(target) + ("" if o.ready(target) or o.phase(target) != "Running" else " unready")
        if word != seen[-1][1]:
            seen.append((round(now - NOW, 2), word))
        if step.again_in is None or now + step.again_in > NOW + seconds:
            return target, seen[1:]
        now += max(0.01, step.again_in)
        step = nodes_pods.advance(target, host, times, "10.128.0.1", held, now)


def test_a_pod_starts_after_a_while_and_runs_until_deleted() -> None:
    thing, phases = life(pod("a"))
    assert [word for _, word in phases] == ["Pending", "Running"]
    assert 0.2 <= phases[1][0] <= 0.6, "half to one and a half of four scaled seconds"
    assert thing["status"]["podIP"] == "10.128.0.1" and thing["status"]["containerStatuses"][0]["ready"]
    assert "started on node-1" in thing["metadata"]["annotations"][SANDBOX_LOG]


@pytest.mark.parametrize(
    ("code", "policy", "phase"),
    [("0", "Never", "Succeeded"), ("3", "Never", "Failed"), ("0", "OnFailure", "Succeeded")],
)
def test_a_pod_ends_by_annotation(code: str, policy: str, phase: str) -> None:
    notes = {SIMULATED_EXIT_AFTER: "30s", SIMULATED_EXIT_CODE: code}
    thing, phases = life(pod("a", metadata={"annotations": notes}, spec={"restartPolicy": policy}))
    assert phases[-1][1] == phase
    assert phases[-1][0] - phases[-2][0] == pytest.approx(3.0, abs=0.05)
    ended = thing["status"]["containerStatuses"][0]["state"]["terminated"]
    assert ended["exitCode"] == int(code)


def test_a_crashing_pod_is_started_again_with_growing_pauses() -> None:
    notes = {SIMULATED_EXIT_AFTER: "10s", SIMULATED_EXIT_CODE: "1,1,0"}
    thing, phases = life(pod("a", metadata={"annotations": notes}, spec={"restartPolicy": "OnFailure"}))
    assert [word for _, word in phases][-1] == "Succeeded"
    status = thing["status"]["containerStatuses"][0]
    assert status["restartCount"] == 2 and status["lastState"]["terminated"]["exitCode"] == 1
    # 3 runs of 1 s, pauses of 1 s and 2 s
    assert phases[-1][0] - phases[1][0] == pytest.approx(6.0, abs=0.2)


def test_a_pod_with_the_annotation_fails_with_its_chip() -> None:
    notes = {SIMULATED_FAIL_ON_FAULT: "true"}
    sick = PodHost("node-1", "10.64.0.1", HOST.settings, faulty={"Ascend910-3"})
    thing = taken("a", "Ascend910-3", metadata={"annotations": notes}, spec={"restartPolicy": "Never"})
    assert nodes_pods.advance(thing, HOST, PodTimes(), "ip", ("Ascend910-3",), NOW).writes == ()
    perform(thing, nodes_pods.advance(thing, sick, PodTimes(), "ip", ("Ascend910-3",), NOW))
    assert o.phase(thing) == "Failed"


def test_a_command_ends_a_pod_once() -> None:
    thing = taken("a", metadata={"annotations": {SIMULATED_EXIT_NOW: "7"}})
    perform(thing, nodes_pods.advance(thing, HOST, PodTimes(), "ip", (), NOW))
    assert SIMULATED_EXIT_NOW not in thing["metadata"]["annotations"]
    assert thing["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 7


def test_a_deleted_pod_keeps_running_for_its_scaled_grace() -> None:
    thing, times = taken("a", "Ascend910-3"), PodTimes()
    thing["metadata"] |= {"deletionTimestamp": rfc3339(NOW + 30), "deletionGracePeriodSeconds": 30}
    first = nodes_pods.advance(thing, HOST, times, "ip", (), NOW)
    assert first.writes == () and first.again_in == pytest.approx(3.0)
    last = nodes_pods.advance(thing, HOST, times, "ip", (), NOW + 3)
    assert [(w.verb, w.grace_seconds, w.uid) for w in last.writes] == [("delete", 0, "uid-a")]


def test_a_node_releases_a_pod_with_finalizers() -> None:
    thing = taken("a", "Ascend910-3")
    thing["metadata"] |= {"deletionTimestamp": rfc3339(NOW), "deletionGracePeriodSeconds": 0, "finalizers": ["x/y"]}
    step = nodes_pods.advance(thing, HOST, PodTimes(), "ip", (), NOW)
    perform(thing, step)
    assert o.phase(thing) == "Failed" and nodes_devices.held([thing]) == {}
    assert nodes_pods.advance(thing, HOST, PodTimes(), "ip", (), NOW + 9).writes == ()


def test_readiness_deadline_and_a_runtime_that_is_down() -> None:
    _, phases = life(pod("a", metadata={"annotations": {SIMULATED_READY_AFTER: "20s"}}))
    assert [word for _, word in phases] == ["Pending", "Running unready", "Running"]
    thing, phases = life(pod("b", spec={"activeDeadlineSeconds": 50}))
    assert phases[-1][1] == "Failed" and thing["status"]["reason"] == "DeadlineExceeded"
    down = PodHost("node-1", "10.64.0.1", HOST.settings, runtime_up=False)
    assert [word for _, word in life(pod("c"), down)[1]] == ["Pending"]


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("1h2m3.5s", 3723.5), ("5m", 300), ("x", None), ("", None), (None, None)]
)
def test_durations(text: str | None, seconds: float | None) -> None:
    assert nodes_pods.duration(text) == seconds
