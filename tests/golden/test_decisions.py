"""One narrative per row of the decision table: a fault, the job's labels, and all that follows until it is quiet."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from click.testing import CliRunner

from belay.engine.cli import main
from belay.engine.model import actions as act
from belay.engine.model.actions import kind_of
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.times import rfc3339
from belay.engine.simulate import merged
from tests.golden.stories import compare, sample_files
from tests.simworld import A2, INFER, Node, World

JOB = b'    fault-scheduling: force\n    fault-retry-times: "10"\n'
RESET = b"""apiVersion: v1
kind: ConfigMap
metadata: {name: reset-config-pretrain, namespace: default, labels: {reset: "true"}}
data: {reset.json: "{}"}
"""


def pods(world: World) -> dict[str, dict[str, Any]]:
    return {key.name: pod for key, pod in world.objects.items() if key.kind == "Pod"}


def home(world: World, rank: str = "master") -> str:
    return str(pods(world)[f"pretrain-{rank}-0"]["spec"]["nodeName"])


def chip(level: str, rank: str = "master", code: str = "80C98001") -> Callable[[World], None]:
    return lambda world: world.fault(home(world, rank), 3, code=code, level=level)


def network(world: World) -> None:
    node = world.nodes[home(world)]
    node.network[3] = {"81078603": (int(world.now * 1000), "NotHandleFault")}
    world.report(node)


def broken_board(world: World) -> None:
    world.hardware(world.nodes[home(world)], "SeparateFault")


def broken_switch(world: World) -> None:
    node = world.nodes[home(world)]
    node.switch = "Separate"
    world.report(node)


def lost_node(world: World) -> None:
    world.readiness(world.nodes[home(world)], False)
    world.pass_time(61)


def change(world: World, name: str, patch: Mapping[str, Any]) -> None:
    key = ObjectKey("v1", "Pod", "default", name)
    world.put(merged(copy.deepcopy(world.objects[key]), patch))


def failed_pod(world: World) -> None:
    change(world, "pretrain-worker-0", {"status": {"phase": "Failed"}})


def labelled(value: str) -> Callable[[World], None]:
    return lambda world: change(world, "pretrain-worker-0", {"metadata": {"labels": {"fault-type": value}}})


def switched(world: World) -> None:
    """A sub-healthy worker whose backup has taken over, as the recovery service marks it."""
    chip("SubHealthFault", "worker")(world)
    labels, notes = {"fault-type": "SubHealth"}, {"needVolcanoOpe": "delete"}
    change(world, "pretrain-worker-0", {"metadata": {"labels": labels, "annotations": notes}})


class Row(NamedTuple):
    """The job's labels, what happens, and how many pods go (None: they go, and how many the story counts)."""

    labels: dict[str, str]
    event: Callable[[World], None]
    evicted: int
    forced: bool = False
    reset_config: bool = False


FORCE, GRACE = {"fault-scheduling": "force"}, {"fault-scheduling": "grace"}
ROWS: Final[dict[str, Row]] = {
    "chip-force": Row(FORCE, chip("RestartNPU"), 2, forced=True),
    "chip-grace": Row(GRACE, chip("SeparateNPU"), 2),
    "chip-external-force": Row({"fault-scheduling": "external-force"}, chip("RestartNPU"), 0),
    "chip-off": Row({"fault-scheduling": "off"}, chip("RestartNPU"), 0),
    "chip-unlabelled": Row({}, chip("SeparateNPU"), 0),
    "chip-pod-level": Row({**FORCE, "pod-rescheduling": "on"}, chip("RestartNPU", "worker"), 1, forced=True),
    "chip-pod-level-master": Row({**FORCE, "pod-rescheduling": "on"}, chip("RestartNPU"), 2, forced=True),
    "chip-process-level": Row({**GRACE, "process-recover-enable": "on"}, chip("RestartRequest", "worker"), 1),
    "pre-separate": Row(FORCE, chip("PreSeparateNPU"), 0),
    "not-handle": Row(FORCE, chip("NotHandleFault"), 0),
    "network-only": Row(FORCE, network, 0),
    "sub-health-ignore": Row({**FORCE, "subHealthyStrategy": "ignore"}, chip("SubHealthFault"), 0),
    "sub-health-grace-exit": Row(
        {**FORCE, "subHealthyStrategy": "graceExit"}, chip("SubHealthFault"), 2, reset_config=True
    ),
    "sub-health-force-exit": Row({**GRACE, "subHealthyStrategy": "forceExit"}, chip("SubHealthFault"), 2, forced=True),
    "sub-health-hot-switch": Row({**GRACE, "subHealthyStrategy": "hotSwitch"}, chip("SubHealthFault", "worker"), 0),
    "sub-health-hot-switched": Row({**GRACE, "subHealthyStrategy": "hotSwitch"}, switched, 1, forced=True),
    "node-separate": Row(GRACE, broken_board, 2),
    "switch-unhealthy": Row(FORCE, broken_switch, 2, forced=True),
    "node-lost": Row(FORCE, lost_node, 2, forced=True),
    "pod-failed-with-retries": Row({**FORCE, "fault-retry-times": "2"}, failed_pod, 2, forced=True),
    "relation-separate": Row(GRACE, labelled("Separate"), 2),
    "software-pod-level": Row({**GRACE, "pod-rescheduling": "on"}, labelled("software"), 1),
    "software-job-level": Row(GRACE, labelled("software"), 0),
}


def told(action: act.AnyAction) -> str:
    if isinstance(action, act.EvictPod):
        how = "by force" if action.force else f"within {action.grace_period_seconds} s"
        return f"EvictPod {action.pod} {how} [{action.reason}]: {action.message}"
    if isinstance(action, act.SignalJob):
        return f"SignalJob {action.signal} [{action.reason}]: {action.message}"
    return f"{kind_of(action)} [{action.reason}]: {action.message}"


def begin(row: Row) -> World:
    """The sample job with the row's labels, running on two of four servers."""
    files = {path: data for path, data in sample_files().items() if path.startswith(("desired/pools", "desired/jobs"))}
    labels = "".join(f'    {key}: "{value}"\n' for key, value in row.labels.items()).encode()
    assert files["desired/jobs/pretrain.yaml"].count(JOB) == 1
    files["desired/jobs/pretrain.yaml"] = files["desired/jobs/pretrain.yaml"].replace(JOB, labels)
    if row.reset_config:
        files["desired/jobs/reset.yaml"] = RESET
    world = World(files, [Node(f"node-{i}", labels=A2) for i in range(1, 5)])
    world.until_quiet()
    return world


@pytest.mark.parametrize("name", ROWS)
def test_the_decision_table(name: str, update_golden: bool) -> None:
    row = ROWS[name]
    world = begin(row)
    before = {pod["metadata"]["uid"] for pod in pods(world).values()}
    row.event(world)
    story: list[str] = []
    gone: dict[str, bool] = {}
    for _ in range(30):
        uids = {n: pod["metadata"]["uid"] for n, pod in pods(world).items()}
        plan = world.step()
        story += [told(action) for action in plan.actions]
        for action in plan.actions:
            if isinstance(action, act.EvictPod) and uids.get(action.pod) in before:
                gone[action.pod] = action.force
        world.pass_time(61)
        if not plan.actions:
            break
    compare(f"decision-{name}", story, update_golden)
    assert len(gone) == row.evicted, gone
    assert set(gone.values()) <= {row.forced}
    if row.evicted and name != "sub-health-hot-switched":
        assert {pod["status"]["phase"] for pod in pods(world).values()} == {"Running"}, "the job runs again"


def offline(world: World, tmp_path: Path) -> list[dict[str, Any]]:
    """The actions that `belay plan --cluster FILE -o json` prints for the world as it stands."""
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(world.objects.values())}))
    result = CliRunner().invoke(main, ["plan", "--cluster", str(file), "--now", rfc3339(world.now), "-o", "json"])
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)["actions"]
    return [a for a in found if a["kind"] in ("EvictPod", "IsolateChip", "ResetChips", "IsolateNode", "SignalJob")]


@pytest.mark.parametrize("name", ROWS)
def test_offline_the_same_is_decided(name: str, tmp_path: Path) -> None:
    row = ROWS[name]
    world = begin(row)
    row.event(world)
    found = [a for a in offline(world, tmp_path) if a["kind"] == "EvictPod"]
    assert len(found) == row.evicted
    assert {a["force"] for a in found} <= {row.forced}
    assert {a["gracePeriodSeconds"] for a in found} <= {0 if row.forced else 30}


def test_offline_every_field_is_exact(tmp_path: Path) -> None:
    world = begin(ROWS["chip-force"])
    chip("RestartNPU")(world)
    uid = pods(world)["pretrain-master-0"]["metadata"]["uid"]
    report = world.objects[ObjectKey("v1", "ConfigMap", "kube-system", "mindx-dl-deviceinfo-node-1")]
    version = report["metadata"]["resourceVersion"]
    isolate, evict, _ = offline(world, tmp_path)
    cause = {
        "kind": "report", "subject": "ConfigMap/kube-system/mindx-dl-deviceinfo-node-1", "detail": "80C98001",
    }  # fmt: skip
    assert isolate == {
        "kind": "IsolateChip",
        "reason": "ChipFault",
        "message": "Ascend910-3 of node node-1: level RestartNPU by 80C98001",
        "evidence": {
            "rule": "report", "file": "", "line": 0, "revision": "", "codes": ["80C98001"],
            "reports": [f"kube-system/mindx-dl-deviceinfo-node-1@{version}"], "cause": cause,
        },
        "preconditions": {},
        "node": "node-1",
        "chips": ["Ascend910-3"],
        "level": "RestartNPU",
    }  # fmt: skip
    assert evict == {
        "kind": "EvictPod",
        "reason": "CardUnhealthy",
        "message": "node node-1: Ascend910-3 RestartNPU (80C98001); "
        "the whole job default/AscendJob/pretrain (2 pods) is rescheduled",
        "evidence": {
            "rule": "fault-scheduling=force", "file": "", "line": 0, "revision": "", "codes": ["80C98001"],
            "reports": ["kube-system/mindx-dl-deviceinfo-node-1"], "cause": cause,
        },
        "preconditions": {"uid": uid, "node": "node-1"},
        "namespace": "default",
        "pod": "pretrain-master-0",
        "gracePeriodSeconds": 0,
        "force": True,
        "owner": {"kind": "AscendJob", "name": "pretrain"},
        "budgetUnit": "default/AscendJob/pretrain",
    }  # fmt: skip
    for name in list(pods(world)):
        world.delete(ObjectKey("v1", "Pod", "default", name))
    world.move()
    world.pass_time(61)
    (reset,) = [a for a in offline(world, tmp_path) if a["kind"] == "ResetChips"]
    assert {key: reset[key] for key in ("node", "chips", "epoch", "outOfBand", "reason", "preconditions")} == {
        "node": "node-1",
        "chips": [f"Ascend910-{i}" for i in range(8)],
        "epoch": 1,
        "outOfBand": False,
        "reason": "ChipFault",
        "preconditions": {"epochAbove": 0, "idle": True},
    }


SERVE = b"""apiVersion: apps/v1
kind: Deployment
metadata: {name: serve, namespace: default}
spec:
  replicas: 3
  selector: {matchLabels: {app: serve}}
  template:
    metadata: {labels: {app: serve, fault-scheduling: grace}}
    spec:
      schedulerName: volcano
      terminationGracePeriodSeconds: 20
      containers:
        - name: main
          image: serve
          resources: {limits: {huawei.com/Ascend310P: "2"}, requests: {huawei.com/Ascend310P: "2"}}
"""


def test_an_inference_replica_moves_alone_and_its_chip_is_reset_and_comes_back(update_golden: bool) -> None:
    world = World({"desired/serve.yaml": SERVE}, [Node("infer-1", kind="Ascend310P", labels=INFER)])
    world.until_quiet()
    assert len(pods(world)) == 3
    chips = {name: pod["metadata"]["annotations"]["huawei.com/Ascend310P"] for name, pod in pods(world).items()}
    victim = min(chips)
    broken = int(chips[victim].split(",")[0].rpartition("-")[2])
    before = {pod["metadata"]["uid"] for pod in pods(world).values()}
    world.fault("infer-1", broken, level="RestartBusiness")
    plans = world.until_quiet()
    story = [told(action) for plan in plans for action in plan.actions]
    compare("decision-inference", [line.replace(victim, "VICTIM") for line in story], update_golden)
    assert [group for _, group in world.nodes["infer-1"].reset_log] == [(broken,)], "its chip alone"
    after = {pod["metadata"]["uid"] for pod in pods(world).values()}
    assert len(before & after) == 2 and len(after) == 3, "the other replicas never stopped"
    assert [c for c in plans[-1].chips if c.state != "healthy"] == []
