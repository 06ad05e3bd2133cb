"""`belay plan` shows the outcome of a change: which jobs are placed where, which wait, which pods are evicted."""

from __future__ import annotations

import copy
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner, Result

from belay.engine import cli
from belay.engine.model.times import rfc3339
from belay.engine.observe.observed import observe
from belay.engine.sandbox.definitions import shipped
from belay.engine.simulate import SimulatedServer
from tests.gitrepo import git
from tests.golden.stories import sample_world

ROOT = Path(__file__).parent.parent

#: The job of 16 chips may go without a confirmation.
WIDE = """\
apiVersion: belay.dev/v1alpha1
kind: SafetyBudget
metadata: {name: default}
spec: {limits: [{actions: [DeleteObject], unit: chips, per: cluster, max: 16, window: 1h}]}
"""


@pytest.fixture(scope="module")
def items() -> list[dict[str, Any]]:
    """The sample cluster, its jobs running for an hour."""
    world = sample_world()
    world.until_quiet()
    for item in world.objects.values():
        if item["kind"] == "Pod":
            item["status"]["startTime"] = rfc3339(world.now - 3600)
    return list(world.objects.values())


@pytest.fixture
def cluster(items: list[dict[str, Any]], tmp_path: Path) -> str:
    return write(tmp_path / "cluster.json", items)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A branch of the sample repository."""
    shutil.copytree(ROOT / "desired", tmp_path / "state" / "desired")
    return tmp_path / "state"


def write(file: Path, items: list[dict[str, Any]]) -> str:
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return str(file)


def belay(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, ["plan", *arguments])


def document(tree: Path, cluster: str, *more: str) -> dict[str, Any]:
    result = belay("--desired", str(tree), "--cluster", cluster, "-o", "json", *more)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def add_job(tree: Path, name: str, workers: int) -> None:
    """One more job like the sample's, of so many servers."""
    documents = list(yaml.safe_load_all((tree / "desired/jobs/pretrain.yaml").read_text()))
    table, job = (next(d for d in documents if d["kind"] == kind) for kind in ("ConfigMap", "AscendJob"))
    table["metadata"]["name"], job["metadata"]["name"] = f"rings-config-{name}", name
    job["spec"]["replicaSpecs"]["Worker"]["replicas"] = workers - 1
    job["spec"]["runPolicy"]["schedulingPolicy"]["minAvailable"] = workers
    text = yaml.safe_dump_all([table, job]).replace("rings-config-pretrain", f"rings-config-{name}")
    (tree / f"desired/jobs/{name}.yaml").write_text(text)


def job(outcome: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [row for row in outcome["jobs"] if row["name"] == name]
    return dict(found)


def test_a_repository_that_is_applied_changes_nothing(tree: Path, cluster: str) -> None:
    outcome = document(tree, cluster)["outcome"]
    assert outcome["ended"] == "quiet" and outcome["chipHoursLost"] == 0
    assert outcome["jobs"] == outcome["evicted"] == outcome["pruned"] == []


def test_a_new_job_is_placed_where_the_outcome_says(tree: Path, cluster: str) -> None:
    add_job(tree, "small", 2)
    found = document(tree, cluster)
    assert {a["kind"] for a in found["actions"]} == {"CreateObject"}, "the first pass only creates it"
    row = job(found["outcome"], "small")
    assert (row["outcome"], len(row["nodes"]), row["unblock"]) == ("placed", 2, None) and row["after"] > 0
    assert all(len(chips) == 8 for chips in row["nodes"].values())
    assert not found["outcome"]["evicted"] and found["outcome"]["chipHoursLost"] == 0
    taken = {c["node"] for c in found["chips"] if c["usedBy"]}
    assert not taken & set(row["nodes"]), "on servers without pods"


def test_a_job_without_room_waits_and_the_way_out_is_shown(tree: Path, cluster: str) -> None:
    add_job(tree, "huge", 12)
    row = job(document(tree, cluster)["outcome"], "huge")
    assert (row["outcome"], row["nodes"], row["reason"]) == ("waiting", {}, "NPUResourceShortage")
    assert row["message"] and "8 free chips" in row["unblock"]
    text = belay("--desired", str(tree), "--cluster", cluster).stdout
    assert "outcome: quiet at" in text and "AscendJob default/huge" in text and "WAY OUT" in text


def test_removed_documents_are_pruned_with_their_pods_and_lost_work_counted(tree: Path, cluster: str) -> None:
    (tree / "desired/jobs/pretrain.yaml").unlink()
    (tree / "desired/wide.yaml").write_text(WIDE)
    found = document(tree, cluster)
    outcome = found["outcome"]
    assert {(row["kind"], row["name"]) for row in outcome["pruned"]} >= {("AscendJob", "pretrain")}
    assert {row["job"] for row in outcome["evicted"]} == {"pretrain"} and len(outcome["evicted"]) == 2
    assert all(row["reason"] == "Pruned" and row["chips"] == 8 for row in outcome["evicted"])
    assert 16 <= outcome["chipHoursLost"] < 16.5 and job(outcome, "pretrain")["outcome"] == "gone"
    text = belay("--desired", str(tree), "--cluster", cluster).stdout
    assert "2 running pods go, 16" in text and "chip-hours lost" in text
    assert "PRUNED" in text and "AscendJob/default/pretrain" in text


def test_work_since_the_newest_checkpoint_only_is_lost(items: list[dict[str, Any]], tree: Path, tmp_path: Path) -> None:
    (tree / "desired/jobs/pretrain.yaml").unlink()
    (tree / "desired/wide.yaml").write_text(WIDE)
    told = json.loads(json.dumps(items))
    now = max(float(json.loads(i["data"]["DeviceInfoCfg"])["DeviceInfo"]["UpdateTime"])
              for i in told if i["metadata"]["name"].startswith("mindx-dl-deviceinfo-node"))  # fmt: skip
    for item in told:
        if item["kind"] == "Pod" and item["metadata"]["name"].startswith("pretrain"):
            item["metadata"]["annotations"]["belay.dev/checkpoint-time"] = str(int(now) - 360)
    outcome = document(tree, write(tmp_path / "told.json", told))["outcome"]
    assert 1.6 <= outcome["chipHoursLost"] < 2.0


def test_a_fault_in_the_cluster_is_played_to_its_end(items: list[dict[str, Any]], tree: Path, tmp_path: Path) -> None:
    world = sample_world()
    world.until_quiet()
    node = next(p["spec"]["nodeName"] for p in world.pods("default").values() if "pretrain" in p["metadata"]["name"])
    world.fault(node, 3)
    outcome = document(tree, write(tmp_path / "faulty.json", list(world.objects.values())))["outcome"]
    assert job(outcome, "pretrain")["outcome"] == "moved" and outcome["ended"] == "quiet"
    assert outcome["evicted"] and all(row["reason"] != "Removed" for row in outcome["evicted"])


def test_a_simulated_agent_continues_the_run_of_the_real_one(items: list[dict[str, Any]]) -> None:
    """A report that counts from the beginning again is refused as an older one, and what it says is never seen."""
    seen = observe(items)
    agent = msgspec.structs.replace(seen.agents["node-1"], boot="run-7", seq=5_000)
    server = SimulatedServer.of(seen.nodes["node-1"], seen.reports["node-1"], agent)
    assert [(one.boot, one.seq) for one in (server.agent_report((), 1.0), server.agent_report((), 2.0))] == [
        ("run-7", 5_001), ("run-7", 5_002),
    ]  # fmt: skip


@pytest.mark.parametrize("listed", [("Deployment",), ("Deployment", "AscendJob"), ()], ids=" ".join)
def test_pods_whose_owners_the_file_lacks_stay(
    items: list[dict[str, Any]], tree: Path, tmp_path: Path, listed: tuple[str, ...]
) -> None:
    """`kubectl get nodes,pods,configmaps` lists no owners; that their pods run says that they exist."""
    kept = []
    for item in copy.deepcopy(items):
        if item["kind"] in ("Node", "Pod", "ConfigMap", *listed):
            kept.append(item)
        if item["kind"] == "Pod" and item["metadata"]["ownerReferences"][0]["kind"] == "ReplicaSet":
            labels = item["metadata"].setdefault("labels", {})
            labels["pod-template-hash"] = item["metadata"]["ownerReferences"][0]["name"].rpartition("-")[2]
    cluster = write(tmp_path / "cluster.json", kept)
    result = belay("--desired", str(tree), "--cluster", cluster, "-o", "json")
    found = json.loads(result.stdout)["outcome"]
    assert not found["evicted"]
    assert not found["jobs"]
    for kind, wanted in (("Deployment", "deployments"), ("AscendJob", "ascendjobs")):
        assert (wanted in result.stderr) == (kind not in listed)


def test_the_order_of_objects_does_not_matter(tree: Path, items: list[dict[str, Any]], tmp_path: Path) -> None:
    add_job(tree, "small", 2)
    shuffled = list(items)
    random.Random(7).shuffle(shuffled)
    given = [write(tmp_path / f"{index}.json", one) for index, one in enumerate((items, shuffled))]
    first, second = (belay("--desired", str(tree), "--cluster", file, "-o", "json").stdout for file in given)
    assert first == second


def test_a_cluster_without_reports_still_gets_its_plan(tree: Path, items: list[dict[str, Any]], tmp_path: Path) -> None:
    mute = [item for item in items if "mindx-dl-deviceinfo" not in item["metadata"]["name"]]
    result = belay("--desired", str(tree), "--cluster", write(tmp_path / "mute.json", mute), "-o", "json")
    assert result.exit_code == 0 and "no node of the cluster has a device report" in result.stderr
    assert json.loads(result.stdout)["outcome"] is None


def test_objects_that_no_api_server_stored_do_not_cost_the_plan(tree: Path, tmp_path: Path) -> None:
    """A List written by hand: pods without status, nodes without conditions."""
    world = sample_world()
    rough = []
    for item in json.loads(json.dumps(list(world.objects.values()))):
        item["metadata"].pop("uid", None)
        if item["kind"] == "Node":
            item["status"].pop("addresses", None)
        rough.append(item)
    container = {"name": "c", "image": "i", "resources": {"limits": {"huawei.com/Ascend910": "8"}}}
    rough.append({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bare", "namespace": "default"},
                  "spec": {"schedulerName": "volcano", "containers": [container]}})  # fmt: skip
    outcome = document(tree, write(tmp_path / "rough.json", rough))["outcome"]
    assert job(outcome, "bare")["outcome"] == "placed" and job(outcome, "pretrain")["outcome"] == "placed"


CHAT, PRETRAIN = "desired/inference/chat.yaml", "desired/jobs/pretrain.yaml"


def edit(tree: Path, path: str, kind: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Change one document of a file."""
    documents = list(yaml.safe_load_all((tree / path).read_text()))
    for one in documents:
        if one["kind"] == kind:
            change(one)
    (tree / path).write_text(yaml.safe_dump_all(documents))


def ask(resource: str, count: int) -> Callable[[dict[str, Any]], None]:
    """The change of a Deployment to another resource."""

    def change(document: dict[str, Any]) -> None:
        for container in document["spec"]["template"]["spec"]["containers"]:
            container["resources"] = {"limits": {resource: count}, "requests": {resource: count}}

    return change


def test_a_changed_deployment_is_rolled(tree: Path, cluster: str) -> None:
    edit(tree, CHAT, "Deployment", ask("huawei.com/Ascend310P", 2))
    outcome = document(tree, cluster)["outcome"]
    row = job(outcome, "chat")
    assert row["outcome"] == "moved" and [len(chips) for chips in row["nodes"].values()] == [2]
    assert {(one["job"], one["reason"]) for one in outcome["evicted"]} == {("chat", "RolledOut")}
    assert not outcome["kept"]


def test_a_deployment_whose_new_pods_fit_nowhere_keeps_what_may_not_go_and_says_why(tree: Path, cluster: str) -> None:
    def change(document: dict[str, Any]) -> None:
        document["spec"]["template"]["spec"]["nodeSelector"] = {"accelerator": "huawei-Ascend910"}

    edit(tree, CHAT, "Deployment", change)
    outcome = document(tree, cluster)["outcome"]
    row = job(outcome, "chat")
    assert row["outcome"] == "waiting" and row["reason"] and sum(map(len, row["nodes"].values())) >= 1


def test_a_field_taken_out_of_a_template_is_a_change_of_it(
    tree: Path, items: list[dict[str, Any]], tmp_path: Path
) -> None:
    given = copy.deepcopy(items)
    for item in given:
        if item["kind"] in ("Deployment", "ReplicaSet") and item["metadata"]["name"].startswith("chat"):
            item["spec"]["template"]["spec"]["nodeSelector"] = {"kubernetes.io/arch": "riscv64"}
        if item["kind"] == "Deployment" and item["metadata"]["name"] == "chat":
            item["metadata"]["annotations"]["belay.dev/applied-digest"] = "of the text before"
    outcome = document(tree, write(tmp_path / "cluster.json", given))["outcome"]
    assert {one["reason"] for one in outcome["evicted"]} == {"RolledOut"}


def test_a_smaller_deployment_gives_pods_back(tree: Path, cluster: str) -> None:
    edit(tree, CHAT, "Deployment", lambda document: document["spec"].update(replicas=0))
    outcome = document(tree, cluster)["outcome"]
    assert {(one["job"], one["reason"]) for one in outcome["evicted"]} == {("chat", "ScaledDown")}
    assert not outcome["jobs"], "no job is moved by that"


def worker_asks(chips: int) -> Callable[[dict[str, Any]], None]:
    """The change of an AscendJob to so many chips a pod."""

    def change(document: dict[str, Any]) -> None:
        for replica in document["spec"]["replicaSpecs"].values():
            for container in replica["template"]["spec"]["containers"]:
                for amounts in container["resources"].values():
                    amounts["huawei.com/Ascend910"] = chips

    return change


def other_scheduler(document: dict[str, Any]) -> None:
    for replica in document["spec"]["replicaSpecs"].values():
        replica["template"]["spec"]["schedulerName"] = "default-scheduler"


@pytest.mark.parametrize(
    ("change", "verdict", "reason"),
    [
        (worker_asks(16), "waits", None),
        (other_scheduler, "unserved", "SchedulerNotServed"),
        (worker_asks(4), "fits", ""),
    ],
    ids=["impossible", "unserved", "smaller"],
)
def test_running_pods_keep_a_changed_template_and_the_next_restart_is_tried(
    tree: Path, cluster: str, change: Callable[[dict[str, Any]], None], verdict: str, reason: str | None
) -> None:
    edit(tree, PRETRAIN, "AscendJob", change)
    outcome = document(tree, cluster)["outcome"]
    (row,) = outcome["kept"]
    assert (row["name"], row["nextRestart"]) == ("pretrain", verdict) and not outcome["evicted"]
    assert bool(row["reason"]) if reason is None else row["reason"] == reason
    text = belay("--desired", str(tree), "--cluster", cluster).stdout
    assert "running pods keep the old template" in text
    assert ("the next restart would not fit" in " ".join(text.split())) == (verdict == "waits")


def test_a_queue_that_a_running_job_names_and_none_has_is_a_finding_of_the_plan(tree: Path, cluster: str) -> None:
    job = tree / "desired" / "jobs" / "pretrain.yaml"
    job.write_text(job.read_text().replace("queue: default", "queue: reserch"))
    text = belay("--desired", str(tree), "--cluster", cluster).stdout
    assert "neither Git nor the cluster has queue 'reserch'" in text


def test_what_an_anchor_shares_is_no_difference(tree: Path, cluster: str) -> None:
    job = tree / "desired" / "jobs" / "pretrain.yaml"
    assert "*trainer" in job.read_text()
    job.write_text(job.read_text().replace("    Worker:\n      replicas: 1", "    Worker:\n      replicas: 2"))
    text = CliRunner().invoke(cli.main, ["diff", "--desired", str(tree), "--cluster", cluster]).stdout
    changed = [line for line in text.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert changed == ["-      replicas: 1", "+      replicas: 2"]


def test_an_empty_tree_is_refused_where_an_engine_would_refuse_it(
    tree: Path, cluster: str, items: list[dict[str, Any]], tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    refused = belay("--desired", str(empty), "--cluster", cluster)
    assert refused.exit_code == 2 and "EmptyTree" in refused.stderr and "keep one document" in refused.stderr
    assert "PartitionChip" not in refused.output
    no_engine = [item for item in items if item["metadata"]["name"] != "belay-sync"]
    assert belay("--desired", str(empty), "--cluster", write(tmp_path / "plain.json", no_engine)).exit_code == 0


def committed(tree: Path) -> str:
    """The commit of all that is in the folder now."""
    git(tree, "add", "--all")
    git(tree, "-c", "user.name=a", "-c", "user.email=a@b.example", "commit", "--quiet", "-m", "all")
    return git(tree, "rev-parse", "HEAD").strip()


def test_a_layer_that_lost_all_its_documents_is_refused_where_an_engine_would_refuse_it(
    tree: Path, items: list[dict[str, Any]], tmp_path: Path
) -> None:
    """As after ``git mv desired Desired``; the revision in force is known from the repository itself."""
    git(tree, "init", "--quiet")
    in_force = committed(tree)
    mine = [copy.deepcopy(item) for item in items]
    (status,) = [item for item in mine if item["metadata"]["name"] == "belay-sync"]
    status["data"]["appliedRevision"] = in_force
    cluster = write(tmp_path / "mine.json", mine)
    (tree / "policies").mkdir()
    shutil.move(tree / "desired" / "budget.yaml", tree / "policies")
    (tree / "desired").rename(tree / "Desired")
    refused = belay("--desired", str(tree), "--cluster", cluster)
    assert refused.exit_code == 2 and "EmptyLayer: layer desired/ declared 3 objects" in refused.stderr
    assert "PartitionChip" not in refused.output

    status["data"]["appliedRevision"] = committed(tree)  # an engine took it, by whatever way
    assert belay("--desired", str(tree), "--cluster", write(tmp_path / "taken.json", mine)).exit_code == 0
    (tree / "desired").mkdir()
    (tree / "desired" / "broken.yaml").write_text("kind: [")  # may have declared anything: an engine reads on
    assert belay("--desired", str(tree), "--cluster", cluster).exit_code == 1


def test_a_document_with_an_unknown_pool_leaves_its_last_good_version_in_force(tree: Path, tmp_path: Path) -> None:
    world = sample_world()
    for definition in shipped():
        world.put(definition)
    world.until_quiet()
    assert any(item["kind"] == "VNPULayout" for item in world.objects.values())
    cluster = write(tmp_path / "copies.json", list(world.objects.values()))
    edit(tree, "desired/layouts/inference.yaml", "VNPULayout", lambda one: one["spec"].update(pool="infrence"))
    found = json.loads(belay("--desired", str(tree), "--cluster", cluster, "-o", "json").stdout)
    said = " ".join(row["message"] for row in found["diagnostics"])
    assert "the last good version" in said and "stays in force" in said and "infrence" in said
    assert "no longer declares" not in said
    assert {row["reason"] for row in found["actions"]} <= {"StatusChanged"} and not found["outcome"]["pruned"]


SLICE = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: slice, namespace: default, labels: {ring-controller.atlas: ascend-310P}}
spec:
  replicas: 2
  selector: {matchLabels: {app: slice}}
  template:
    metadata: {labels: {app: slice, ring-controller.atlas: ascend-310P}}
    spec:
      schedulerName: volcano
      containers:
        - name: serve
          image: serve:1
          resources: {limits: {huawei.com/Ascend310P-2c: 1}, requests: {huawei.com/Ascend310P-2c: 1}}
"""


def test_pods_run_on_the_vnpus_that_a_new_layout_makes(tree: Path, cluster: str) -> None:
    """The node offers them once they are cut; without a layout they are made by nothing, and the pods wait."""
    (tree / "desired/jobs/slice.yaml").write_text(SLICE)
    assert job(document(tree, cluster)["outcome"], "slice")["outcome"] == "waiting"

    layout = tree / "desired/layouts/inference.yaml"
    text = layout.read_text()
    layout.write_text(text.replace("  whenBusy", "    - chips: [2]\n      templates: [vir02, vir02]\n  whenBusy"))
    row = job(document(tree, cluster)["outcome"], "slice")
    assert (row["outcome"], list(row["nodes"]), row["unblock"]) == ("placed", ["infer-1"], None)
