"""`belay events`: what the engine wrote into a cluster, by job, pod, node and chip."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from belay.engine.cli import main
from belay.engine.cli.events import EventTable, event_row
from belay.engine.kube import CONFIGMAP, EVENT, NAMESPACE
from belay.engine.model.actions import AnyAction, BindPod, EvictPod, Evidence, IsolateChip, IsolateNode, Preconditions
from belay.engine.model.labels import ABOUT_LABEL
from belay.engine.model.times import rfc3339
from belay.engine.status.events import events
from belay.engine.wire import history, names
from tests.loop_world import Cluster

NOW = 1_795_000_000.0
EVIDENCE = Evidence(rule="fault")


def job(name: str, *pods: str) -> dict[str, Any]:
    placement = {pod: {"node": "node-1", "chips": ["Ascend910-0"], "phase": "Running"} for pod in pods}
    data = {
        history.JOB_NAME_KEY: f"train/AscendJob/{name}",
        "phase": "Running",
        "status.json": json.dumps({"placement": placement}),
    }
    metadata = {"name": f"{names.JOB_PREFIX}{name}", "namespace": names.SYSTEM, "labels": {ABOUT_LABEL: "job"}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def bound(pod: str, node: str, chip: str) -> AnyAction:
    return BindPod(
        reason="Placed",
        evidence=EVIDENCE,
        message="placed",
        namespace="train",
        pod=pod,
        node=node,
        chips=(chip,),
        annotations={},
    )


def evicted(pod: str, node: str) -> AnyAction:
    return EvictPod(
        reason="Fault", evidence=EVIDENCE, message="its chip is ill", namespace="train", pod=pod, owner=None,
        grace_period_seconds=30, force=False, budget_unit=pod, preconditions=Preconditions(node=node),
    )  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    done: tuple[tuple[AnyAction, float], ...] = (
        (bound("llm-0", "node-1", "Ascend910-0"), NOW - 1800),
        (bound("llm-2-0", "node-2", "Ascend910-3"), NOW - 1700),
        (
            IsolateChip(reason="Fault", evidence=EVIDENCE, message="80C98001", node="node-2", chips=("Ascend910-3",),
                        level="SeparateNPU"),
            NOW - 600,
        ),
        (evicted("llm-2-0", "node-2"), NOW - 500),
        (IsolateNode(reason="Fault", evidence=EVIDENCE, message="not ready", node="node-3", level="SeparateNPU"), NOW),
    )  # fmt: skip
    try:
        for namespace in ("train", names.SYSTEM):
            made.ensure(NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        for action, at in done:
            for body in events([action], at):
                made.ensure(EVENT, body)
        kubelet = {
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": "mount", "namespace": "train"},
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": "train", "name": "llm-0"},
            "type": "Warning", "reason": "FailedMount", "message": "no such volume", "count": 7,
            "source": {"component": "kubelet", "host": "node-1"}, "lastTimestamp": rfc3339(NOW - 100),
        }  # fmt: skip
        made.ensure(EVENT, kubelet)
        made.ensure(CONFIGMAP, job("llm", "llm-0"))
        made.ensure(CONFIGMAP, job("llm-2"))
        yield made
    finally:
        made.close()


def shown(cluster: Cluster, *words: str) -> Result:
    return CliRunner().invoke(main, ["events", *words, "--kubeconfig", str(cluster.kubeconfig)])


def reasons(cluster: Cluster, *words: str) -> list[tuple[str, str]]:
    result = shown(cluster, *words, "-o", "json")
    assert result.exit_code == 0, result.output
    return [(row["object"], row["reason"]) for row in json.loads(result.stdout)]


def test_events_of_everything_and_of_one_object(cluster: Cluster) -> None:
    everything = reasons(cluster)
    assert [reason for _, reason in everything] == ["Scheduled", "Scheduled", "Fault", "Fault", "Fault"], "oldest first"
    assert reasons(cluster, "job", "llm") == [("Pod/train/llm-0", "Scheduled")], "llm-2-0 is a pod of the other job"
    gone = [("Pod/train/llm-2-0", "Scheduled"), ("Pod/train/llm-2-0", "Fault")]
    assert reasons(cluster, "job", "train/llm-2") == gone, "pods that are gone are known by the job's name"
    assert reasons(cluster, "node", "node-2") == [*gone[:1], ("Node/node-2", "Fault"), *gone[1:]]
    assert reasons(cluster, "chip", "node-2/3") == [*gone[:1], ("Node/node-2", "Fault")]
    assert reasons(cluster, "chip", "node-2/4") == []
    assert reasons(cluster, "pod", "llm-0", "--all-sources")[-1] == ("Pod/train/llm-0", "FailedMount")
    assert reasons(cluster, "-n", "train", "--warnings") == [("Pod/train/llm-2-0", "Fault")]
    assert reasons(cluster, "--limit", "1") == [("Node/node-3", "Fault")], "the newest"
    assert reasons(cluster, "--since", rfc3339(NOW - 550)) == [("Pod/train/llm-2-0", "Fault"), ("Node/node-3", "Fault")]


def test_a_table_of_events_and_what_is_said_where_there_is_none(cluster: Cluster) -> None:
    table = shown(cluster, "job", "llm").stdout.splitlines()
    assert table[0].split() == ["TIME", "TYPE", "REASON", "OBJECT", "MESSAGE"]
    assert table[1].endswith("Successfully assigned train/llm-0 to node-1 with Ascend910-0")
    assert len(shown(cluster, "job", "llm", "--no-headers").stdout.splitlines()) == 1
    nothing = shown(cluster, "node", "node-9")
    assert (nothing.exit_code, nothing.stdout) == (0, "") and "belay history" in nothing.stderr
    assert "there is no job 'lln'" in shown(cluster, "job", "lln").output
    assert "Write NODE/3" in shown(cluster, "chip", "node-2").output
    assert "belay get nodes lists them" in shown(cluster, "node").output


def test_a_watch_prints_each_event_once_and_again_when_it_came_again(capsys: pytest.CaptureFixture[str]) -> None:
    raw = {
        "metadata": {"uid": "1"},
        "reason": "FailedMount",
        "message": "no such volume",
        "lastTimestamp": rfc3339(NOW),
    }
    table = EventTable("table", headings=False, watched=True)
    for count in (1, 1, 2):
        table.add([event_row({**raw, "count": count})])
    assert capsys.readouterr().out.count("FailedMount") == 2
