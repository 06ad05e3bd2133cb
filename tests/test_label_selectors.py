"""``-l`` of `belay get`: kubectl's grammar, the place of what is wrong, and the rows that labels choose."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from belay.engine.cli import main
from belay.engine.cli.label_selectors import LabelSelector, chosen
from belay.engine.errors import InputError
from belay.engine.kube.resources import resource_of
from belay.engine.sandbox import definitions
from tests.bench.clusters import cluster as made_cluster
from tests.loop_world import Cluster
from tests.test_published import config_maps

LABELS = {"app": "train", "tier": "", "n": "4", "example.com/team": "a"}
HOLDS = (
    "", "app", "app=train", "app == train", "app!=serve,none!=x", "app in (serve, train)", "app notin (serve)",
    "none notin (x)", "!none", "! none , app", "tier=", "tier in (,x)", "n>3", "n<5,n>-1", "example.com/team=a",
    "in notin (in)",
)  # fmt: skip
HOLDS_NOT = ("none", "!app", "app=serve", "app!=train", "app in (serve)", "app notin (train)", "n>4", "app>1", "none=")
WRONG = {
    "app=a b": (7, "'b' stands where a comma"), "=a": (1, "the name of a label"), "a,,b": (3, "','"),
    "a,": (3, "it ends where"), "a in b": (6, "'(' is expected"), "a in (b": (8, "')' is expected"),
    "a in (b c)": (9, "'c'"), "n>x": (3, "whole number"), "a=-x": (3, "no value of a label"), "a/b/c": (1, "'a/b/c'"),
    "app=x=y": (6, "'='"), "!": (2, "it ends where"), f"a={'x' * 64}": (3, "at most 63"),
    "a" * 2001: (0, "at most 2000"),
}  # fmt: skip


@pytest.mark.parametrize("text", [*HOLDS, *HOLDS_NOT])
def test_a_selector_means_what_it_means_to_the_api_server(text: str) -> None:
    assert LabelSelector(text).matches(LABELS) is (text in HOLDS)


@pytest.mark.parametrize("text", sorted(WRONG))
def test_a_wrong_selector_is_refused_at_its_place(text: str) -> None:
    column, words = WRONG[text]
    with pytest.raises(InputError) as refused:
        LabelSelector(text)
    place = f"-l:{column}" if column else "-l"
    assert refused.value.where == place and words in refused.value.message


def get(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(main, ["get", *words])
    return done.exit_code, done.stdout, done.stderr


def labelled() -> list[dict[str, Any]]:
    """Four nodes with two jobs; two nodes and one job have labels of their own."""
    items = made_cluster(4, 2)
    for item in items:
        name = item["metadata"]["name"]
        if item["kind"] == "Node":
            item["metadata"].setdefault("labels", {})["rack"] = "r1" if name in ("node-00000", "node-00001") else "r2"
        if item["kind"] == "AscendJob" and name == "job-00001":
            item["metadata"].setdefault("labels", {})["team"] = "nlp"
    return items


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[str]]]:
    """The same objects in a file and in a cluster in which a pass was published: the options that name each."""
    folder = tmp_path_factory.mktemp("labels")
    items = labelled()
    (folder / "cluster.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    (folder / "live").mkdir()
    live = Cluster(folder / "live")
    jobs = [one for one in definitions.shipped() if one["spec"]["names"]["kind"] == "AscendJob"]
    try:
        for item in (*jobs, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "train"}}):
            live.ensure(resource_of(item), item)
        objects = [one for one in items if one["kind"] in ("Node", "AscendJob")]
        for item in (*objects, *config_maps(items, time.time())):
            item["metadata"].pop("resourceVersion", None)
            live.create(resource_of(item), item)
        yield {
            "file": ["--cluster", str(folder / "cluster.json")],
            "published": ["--kubeconfig", str(live.kubeconfig)],
        }
    finally:
        live.close()


@pytest.mark.real_time
@pytest.mark.parametrize("where", ["file", "published"])
def test_labels_choose_rows(clusters: dict[str, list[str]], where: str) -> None:
    options = clusters[where]

    def names(*words: str) -> list[str]:
        status, out, err = get(*words, "-o", "name", *options)
        assert status == 0, err
        return out.split()

    assert names("nodes", "-l", "rack in (r1)") == ["node/node-00000", "node/node-00001"]
    assert names("nodes", "-l", "rack,rack!=r1") == ["node/node-00002", "node/node-00003"]
    assert names("nodes", "-l", "!rack") == []
    assert len(names("chips", "-l", "rack=r1")) == 16
    assert names("jobs", "-l", "team=nlp") == ["job/train/AscendJob/job-00001"]
    assert names("jobs", "-l", "team!=nlp") == ["job/train/AscendJob/job-00000"]


def test_a_job_of_kubernetes_is_not_taken_for_a_volcano_job_of_its_name() -> None:
    metadata = {"namespace": "train", "name": "llm"}
    found = chosen("jobs", [{"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata}])
    assert found.has({"namespace": "train", "kind": "Job.batch", "name": "llm"})
    assert not found.has({"namespace": "train", "kind": "Job", "name": "llm"})


def test_what_labels_do_not_choose_is_said() -> None:
    status, _, said = get("revisions", "-l", "a=b")
    assert status == 2 and "revisions are not chosen by labels" in said
    status, _, said = get("isolations", "-l", "a in b")
    assert status == 2 and "-l:6" in said and "kubectl" in said
