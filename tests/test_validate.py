"""`belay validate`: what can be known of a repository without a cluster, and what needs one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from click.testing import CliRunner

from belay.engine import cli
from belay.engine.load import load
from tests import listing
from tests.listing import Item, node, report

Document = dict[str, Any]


def deployment(
    resource: str = "huawei.com/Ascend910",
    count: int = 1,
    scheduler: str | None = "belay",
    accelerator: str = "module-910b-8",
    **labels: str,
) -> Document:
    amounts = {resource: str(count)}
    container = {"name": "c", "image": "i", "resources": {"requests": amounts, "limits": amounts}}
    spec: Document = {"containers": [container], "nodeSelector": {"accelerator-type": accelerator}}
    if scheduler is not None:
        spec["schedulerName"] = scheduler
    template = {"metadata": {"labels": {"app": "a", **labels}}, "spec": spec}
    body = {"replicas": 1, "selector": {"matchLabels": {"app": "a"}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}, "spec": body}


def kubernetes_job(**labels: str) -> Document:
    template = deployment(**labels)["spec"]["template"]
    template["spec"]["restartPolicy"] = "Never"
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {"template": template}}


def in_class(workload: Document, name: str) -> Document:
    """A workload whose pods name a PriorityClass."""
    workload["spec"]["template"]["spec"]["priorityClassName"] = name
    return workload


def own(kind: str, **spec: Any) -> Document:
    return {"apiVersion": "belay.dev/v1alpha1", "kind": kind, "metadata": {"name": "own"}, "spec": spec}


def volcano(queue: str = "default", **labels: str) -> Document:
    body = deployment("huawei.com/npu-core", 2)["spec"]["template"]
    task = {"name": "w", "replicas": 1, "template": body}
    metadata = {"name": "v", "labels": {"ring-controller.atlas": "ascend-310P", **labels}}
    spec = {"schedulerName": "belay", "minAvailable": 1, "queue": queue, "tasks": [task]}
    return {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": metadata, "spec": spec}


LAYOUT = own("VNPULayout", selector={"matchLabels": {"a": "b"}}, mode="static",
             chips=[{"chips": [0], "templates": ["vir02"]}])  # fmt: skip
QUEUES = own("SchedulingSettings", queues=[{"name": "research"}])
#: Documents, words of the finding, and its place.
ALONE: dict[str, tuple[list[Document], tuple[str, ...]]] = {
    "more chips than a server has": ([deployment(count=16)], ("16 chips a pod", "has 8", "at most 8")),
    "a kind of server that is none": (
        [deployment(accelerator="module-910b-88")], ("accelerator-type: module-910b-88", "did you mean module-910b-8?"),
    ),
    "the default scheduler": ([deployment(scheduler=None)], ("schedulerName is missing", "schedulerName: belay")),
    "another scheduler": ([deployment(scheduler="yunikorn")], ("scheduler yunikorn",)),
    "a vNPU that no layout cuts": (
        [deployment("huawei.com/Ascend310P-4c.3cpu"), LAYOUT], ("no VNPULayout cuts vir04_3c", "layouts cut vir02"),
    ),
    "a vNPU that no template makes": ([deployment("huawei.com/Ascend310P-3c"), LAYOUT], ("no vNPU template makes",)),
    "training beside inference": (
        [volcano(**{"process-recover-enable": "on"})], ("process-recover-enable is for training", "npu-core"),
    ),
    "elastic where nothing is": ([deployment(**{"elastic-scheduling": "on"})], ("has no effect on Deployment",)),
    "elastic on a Job of Kubernetes": (
        [kubernetes_job(**{"elastic-scheduling": "on"})],
        ("has no effect on Job of batch/v1", "Job of batch.volcano.sh/v1alpha1"),
    ),
    "templates that do not fit": (
        [own("NodePool", selector={"matchLabels": {"a": "b"}}, product="atlas-300i-pro"),
         own("VNPULayout", pool="own", mode="static", chips=[{"chips": [0], "templates": ["vir04", "vir04"]}])],
        ("8 AI CPUs, a chip has 7", "in place of vir04 fits vir04_3c"),
    ),
    "an end in the past": (
        [own("Isolation", nodes=["n0"], reason="r", until="2020-01-01T00:00:00Z")], ("ended at 2020-01-01",),
    ),
    "a queue that Git does not declare": ([volcano("reserch"), QUEUES], ("queue 'reserch'", "did you mean research?")),
}  # fmt: skip


def tree(folder: Path, documents: list[Document]) -> Path:
    (folder / "desired").mkdir()
    (folder / "desired/all.yaml").write_text(yaml.safe_dump_all(documents))
    return folder


def findings(*arguments: str) -> tuple[int, list[dict[str, Any]]]:
    result = CliRunner().invoke(cli.main, ["validate", *arguments, "-o", "json"])
    return result.exit_code, json.loads(result.stdout)["diagnostics"]


@pytest.mark.parametrize("case", ALONE)
def test_what_documents_alone_show_is_found_at_its_place(case: str, tmp_path: Path) -> None:
    documents, words = ALONE[case]
    code, found = findings(str(tree(tmp_path, documents)))
    assert code == 1 and len(found) == 1, found
    assert all(word in found[0]["message"] for word in words), found
    assert found[0]["file"] == "desired/all.yaml" and found[0]["line"] > 0


def test_what_runs_is_not_refused_at_a_push() -> None:
    loaded = load({"desired/a.yaml": yaml.safe_dump(deployment(count=16)).encode()})
    assert [d.severity for d in loaded.diagnostics] == ["warning"] and len(loaded.desired.manifests) == 1


def test_sound_documents_have_no_findings(tmp_path: Path) -> None:
    sound = [deployment(count=8), volcano(), own("Isolation", nodes=["n0"], reason="r", until="2999-01-01T00:00:00Z")]
    assert findings(str(tree(tmp_path, sound))) == (0, [])


def test_shares_in_percent_are_no_chips(tmp_path: Path) -> None:
    shares = {"huawei.com/scheduler.softShareDev.aicoreQuota": "50", "huawei.com/scheduler.softShareDev.hbmQuota": "1"}
    assert findings(str(tree(tmp_path, [deployment(count=50, **shares)]))) == (0, [])


AGAINST: dict[str, tuple[list[Document], tuple[str, ...]]] = {
    "a selector of nothing": (
        [own("NodePool", selector={"matchLabels": {"accelerator": "huawei-Ascend91"}})],
        ("matches none of 1 node of", "accelerator is huawei-Ascend910 there"),
    ),
    "a node that is none": ([own("Isolation", nodes=["n00"], reason="r")], ("no node n00", "did you mean n0?")),
    "chips beyond the node": (
        [own("Isolation", chips=[{"node": "n0", "chips": "7-9"}], reason="r")],
        ("no chip 8, 9", "it has 8"),
    ),
    "a queue that none has": ([volcano("reserch")], ("neither Git nor the cluster has queue 'reserch'",)),
    "a priority that none has": (
        [in_class(deployment(), "hihg")],
        ("neither Git nor the cluster has PriorityClass 'hihg'", "did you mean high?"),
    ),
}
PRIORITY: Final[Item] = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "high"},
    "value": 9,
}
QUEUE: Final[Item] = {
    "apiVersion": "scheduling.volcano.sh/v1beta1",
    "kind": "Queue",
    "metadata": {"name": "default"},
    "spec": {"weight": 1},
}


@pytest.mark.parametrize("case", AGAINST)
def test_what_needs_a_cluster_is_found_with_one(case: str, tmp_path: Path) -> None:
    documents, words = AGAINST[case]
    folder = tree(tmp_path, documents)
    assert findings(str(folder)) == (0, [])
    cluster = tmp_path / "cluster.json"
    cluster.write_text(
        json.dumps({"kind": "List", "apiVersion": "v1", "items": [node("n0"), report("n0"), QUEUE, PRIORITY]})
    )
    code, found = findings(str(folder), "--cluster", str(cluster))
    assert code == 1 and len(found) == 1, found
    assert all(word in found[0]["message"] for word in words), found


def test_chips_in_use_are_chips_and_a_list_without_queues_does_not_say_which_there_are(tmp_path: Path) -> None:
    """What the List does not show is not said to be missing: chips that a report names are the free and bad ones only,
    and the README's list of kinds has no queues.
    """
    folder = tree(tmp_path, [own("Isolation", chips=[{"node": "n0", "chips": "4-5"}], reason="r"), volcano("research")])
    busy = [node("n0"), report("n0", busy=range(8))]
    cluster = tmp_path / "cluster.json"
    cluster.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": busy}))
    assert findings(str(folder), "--cluster", str(cluster)) == (0, [])


def test_a_folder_without_documents_is_a_finding(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli.main, ["validate", str(tmp_path)])
    assert result.exit_code == 1 and "0 files" in result.output


def test_a_plan_with_a_refused_document_ends_with_1(tmp_path: Path) -> None:
    folder = tree(tmp_path, [deployment(), {**deployment(), "kind": "Deploymnet", "metadata": {"name": "b"}}])
    cluster = tmp_path / "cluster.json"
    cluster.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": [node("n0"), report("n0")]}))
    arguments = ["plan", "--desired", str(folder), "--cluster", str(cluster), "--now-only", "-o", "json"]
    assert CliRunner().invoke(cli.main, arguments).exit_code == 1
    (folder / "desired/all.yaml").write_text(yaml.safe_dump(deployment()))
    assert CliRunner().invoke(cli.main, arguments).exit_code == 0
    assert listing.STAMP


@pytest.mark.parametrize("name", ["on", "No", "012", "off", "1e3"])
def test_a_name_that_kubernetes_reads_as_another_type_is_refused_with_the_hint_to_quote_it(name: str) -> None:
    text = f"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\n"
    (found,) = [d for d in load({"desired/a.yaml": text.encode()}).diagnostics if "quotes" in d.message]
    assert (found.severity, found.line, found.column, found.field) == ("error", 4, 9, "metadata.name")
    quoted = load({"desired/a.yaml": text.replace(f": {name}", f': "{name.lower()}"').encode()})
    assert quoted.diagnostics == () and len(quoted.desired.manifests) == 1


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_closed_stream_is_no_bug(tmp_path: Path, closed: str) -> None:
    folder = tree(tmp_path, [deployment()])
    line = f'exec "{sys.executable}" -m belay.engine validate "{folder}" {closed}'
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "internal error" not in done.stdout + done.stderr
