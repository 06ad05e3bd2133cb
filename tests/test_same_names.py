"""Jobs that share a name: other kinds of the name; ``batch/v1`` Jobs, which are Jobs as Volcano's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from belay.engine import cli
from belay.engine.cli.answers import jobs
from belay.engine.gangs.forming import pending_by_gang
from belay.engine.gangs.grouping import group
from belay.engine.load import load
from belay.engine.model.plan import Pending, Plan
from belay.engine.observe.observed import observe
from belay.engine.plan import plan
from belay.engine.status.exceptions import exceptions
from belay.engine.status.jobs import job_status
from tests import listing, worlds

BATCH = "batch/v1"


def _job(api: str, kind: str, name: str, count: int, where: str, **spec: Any) -> list[dict[str, Any]]:
    """A job and its pods, each of which wants a server of its own ``where``."""
    metadata = {"namespace": "train", "name": name, "uid": f"u-{kind}-{name}", "creationTimestamp": listing.STAMP}
    owner = {"apiVersion": api, "kind": kind, "name": name, "uid": metadata["uid"], "controller": True}
    found = [{"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec}]
    for index in range(count):
        one = listing.pod(f"{name}-{api.partition('.')[0][:5]}-{index}", count=8, spec={"nodeSelector": {"at": where}})
        one["metadata"]["ownerReferences"] = [owner]
        found.append(one)
    return found


def _world() -> list[dict[str, Any]]:
    """A batch Job of two pods on one node."""
    node = listing.node("n1", labels={"at": "here"})
    return [node, listing.report("n1"), *_job(BATCH, "Job", "j", 2, "here", parallelism=2)]


def _planned(items: list[dict[str, Any]]) -> tuple[Plan, Any]:
    observed = observe(items)
    return plan(load({}, has_git=False).desired, observed, worlds.NOW), observed


def test_a_batch_job_that_waits_is_one_job_and_says_why() -> None:
    found, observed = _planned(_world())
    (row,) = jobs(found, observed).rows
    assert row["phase"] == "Pending" and row["reason"].startswith("TopologyNotMet")
    (body,) = job_status(found, observed)
    assert body["metadata"]["name"] == "belay-job-train.job.batch.j"
    assert "TopologyNotMet" in json.dumps(body["data"])
    assert list(exceptions(found, observed)["data"]) == ["j.u-Job-j"]


@pytest.mark.parametrize("name", ["j", "train/j", "train/Job.batch/j"])
def test_explain_knows_a_batch_job_by_its_name(name: str, tmp_path: Path) -> None:
    body = _explained(_world(), name, tmp_path)
    assert body["pending"]["reason"] == "TopologyNotMet" and len(body["pods"]) == 2


def test_explain_ignores_another_kind_of_the_same_name(tmp_path: Path) -> None:
    stuck = _job("apps/v1", "StatefulSet", "j", 1, "nowhere", replicas=1)
    items = [*_world()[:2], *stuck, listing.group("j", 1, 8), listing.pod("other", count=8, group="j")]
    alone = _explained(items, "train/StatefulSet/j", tmp_path)
    assert alone["pending"]["reason"] == "NodeSelectorMismatch" and [p["pod"] for p in alone["pods"]] == ["j-apps/-0"]
    assert "pending" not in _explained(items, "train/PodGroup/j", tmp_path)


def test_explain_ignores_actions_on_another_kind_of_the_same_name(tmp_path: Path) -> None:
    template = {"metadata": {}, "spec": {"containers": [{"name": "ascend", "image": "i"}]}}
    spec = {"replicaSpecs": {"Master": {"replicas": 1, "template": template}}}
    metadata = {"namespace": "train", "name": "j", "uid": "u-a", "labels": {"framework": "pytorch"}}
    ascend = {"apiVersion": "mindxdl.gitee.com/v1", "kind": "AscendJob", "metadata": metadata, "spec": spec}
    items = [*_world(), ascend, *listing.job("j2", 1, 8)]
    found, _ = _planned(items)
    kinds = {getattr(action, "object_kind", "") for action in found.actions if getattr(action, "name", "") == "j"}
    assert "AscendJob" in kinds
    assert "AscendJob" not in json.dumps(_explained(items, "train/Job.batch/j", tmp_path)["next"])


def _explained(items: list[dict[str, Any]], name: str, folder: Path) -> dict[str, Any]:
    file = folder / "cluster.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    asked = ["explain", "job", name, "--cluster", str(file), "--now", listing.NOW_TEXT, "-o", "json"]
    result = CliRunner().invoke(cli.main, asked)
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


def test_a_pending_entry_belongs_to_the_job_whose_pods_it_names() -> None:
    found, observed = _planned(_world())
    gangs, _ = group(observed)
    (batch,) = gangs.values()
    gangs = {**gangs, "train/Job/j": batch}
    mine, other = (Pending("Job", "train", "j", pods, "X", "", {}, None) for pods in (("j-batch-0",), ("j-t-0",)))
    assert found.pending and list(pending_by_gang([mine], gangs)) == ["train/Job.batch/j"]
    assert list(pending_by_gang([other], gangs)) == ["train/Job/j"]


def test_a_pending_entry_without_a_gang_keeps_its_name() -> None:
    entry = Pending("Job", "train", "gone", (), "GangIncomplete", "", {}, None)
    assert list(pending_by_gang([entry], {})) == ["train/Job/gone"]


@pytest.mark.parametrize(
    ("spec", "made", "placed"),
    [({"parallelism": 2}, 1, 0), ({"parallelism": 2}, 2, 2), ({"parallelism": 4, "completions": 2}, 2, 2), ({}, 1, 1)],
)
def test_a_batch_job_starts_with_as_many_pods_as_run_at_once(spec: dict[str, int], made: int, placed: int) -> None:
    nodes = [listing.node(f"n{i}", labels={"at": "here"}) for i in range(4)]
    items = [*nodes, *(listing.report(f"n{i}") for i in range(4)), *_job(BATCH, "Job", "j", made, "here", **spec)]
    found, _ = _planned(items)
    assert sum(action.reason == "Placed" for action in found.actions) == placed
