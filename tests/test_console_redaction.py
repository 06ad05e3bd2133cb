"""No secret of a known form leaves the console, whatever text of the cluster or of the repository holds it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from belay.engine.cli.console_answers import answer as answered
from belay.engine.cli.console_moments import Moments
from belay.engine.serve.console.texts import DEEPEST, LONGEST_FACT, cleaned, name
from tests.console_clusters import large, write
from tests.gitrepo import Repo

SECRET = "hunter2hunter2"
TEXTS = (f"password={SECRET}", f"https://ann:{SECRET}@git.example/x", f"Authorization: Bearer {SECRET}")
SAID = " ".join(TEXTS)


def spoilt() -> list[dict[str, Any]]:
    """A cluster in which every text that an author or a node chooses holds secrets."""
    items = large(3)
    for item in items:
        metadata = item["metadata"]
        metadata.setdefault("annotations", {})["note"] = SAID
        if item["kind"] == "Pod":
            item.setdefault("status", {}).update(
                reason=SAID,
                message=SAID,
                conditions=[{"type": "Ready", "status": "False", "reason": SAID, "message": SAID}],
            )
            metadata["labels"][f"token={SECRET}"] = SAID
            item["spec"]["containers"][0]["env"] = [{"name": "TOKEN", "value": SAID}]
        if item["kind"] == "Node":
            item["status"].setdefault("conditions", []).append(
                {"type": SAID, "status": "True", "reason": SAID, "message": SAID}
            )
            item["spec"]["taints"] = [{"key": SAID, "value": SAID, "effect": "PreferNoSchedule"}]
        if item["kind"] == "AscendJob":
            metadata["labels"]["volcano.sh/queue-name"] = SAID
    spec = {"nodes": ["node-00001"], "chips": [{"node": "node-00000", "chips": "2"}], "reason": SAID}
    named = {"name": f"glpat-{SECRET}"}  # a name that Kubernetes allows, and a token of a Git host
    isolation = {"apiVersion": "belay.dev/v1alpha1", "kind": "Isolation", "metadata": named, "spec": spec}
    return [*items, isolation]


@pytest.fixture(scope="module")
def question(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("spoilt")
    write(spoilt(), folder / "cluster.json")
    repo = Repo(folder / "state")
    note = {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "default"}, "data": {"x": SAID},
    }  # fmt: skip
    repo.commit({"desired/a.yaml": json.dumps(note), "desired/b.yaml": f"kind: {SAID}\n"}, message=SAID)
    source = {"kind": "cluster", "path": str(folder / "cluster.json")}
    return {"source": source, "repository": str(repo.bare), "data": str(folder)}


JOB = json.dumps({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "more", "namespace": SAID}, "spec": {}})


@pytest.mark.parametrize(
    "asked",
    [
        {"ask": "document"},
        {"ask": "explain", "kind": "job", "name": "train/AscendJob/job-00000"},
        {"ask": "explain", "kind": "job", "name": "train/AscendJob/waiting-00000"},
        {"ask": "explain", "kind": "pod", "name": "train/job-00000-worker-0"},
        {"ask": "explain", "kind": "node", "name": "node-00001"},
        {"ask": "explain", "kind": "chip", "name": "node-00000/2"},
        {"ask": "explain", "kind": "node", "name": SAID},
        {"ask": "explain", "kind": SAID, "name": "x"},
        {"ask": "branches", "base": "main"},
        {"ask": "log", "base": "refs/heads/main"},
        {"ask": "plan", "branch": "main"},
        {"ask": "plan", "branch": SAID},
        {"ask": "whatIf", "changes": [{"do": "drain", "node": "node-00000"}], "horizon": 60},
        {"ask": "whatIf", "changes": [{"do": "job", "yaml": JOB}, {"do": "branch", "name": "main"}], "horizon": 30},
        {"ask": "whatIf", "changes": [{"do": "cordon", "node": SAID}]},
        {"ask": "whatIf", "changes": [{"do": "job", "yaml": f"a: [{SAID}"}]},
    ],
    ids=lambda asked: "-".join(str(asked.get(key, ""))[:12] for key in ("ask", "kind", "name", "branch")),
)
def test_no_answer_holds_a_secret(question: dict[str, Any], asked: dict[str, Any]) -> None:
    head, body = answered(msgspec.json.encode({**question, **asked}), Moments())
    assert head.status in (200, 400, 404), head
    assert SECRET.encode() not in body + msgspec.json.encode(head)
    assert body or head.error


def test_keys_and_deep_places_are_cleaned_too() -> None:
    found = cleaned({"a": [{TEXTS[0]: [TEXTS[1], 1, 2.5, True, None]}], "b": "x" * 9000})
    assert SECRET not in json.dumps(found)
    assert found["a"][0]["password=***"][1:] == [1, 2.5, True, None]
    assert len(found["b"]) <= LONGEST_FACT


def test_an_answer_without_end_is_cut() -> None:
    deep: Any = "x"
    for _ in range(5 * DEEPEST):
        deep = [deep]
    assert json.dumps(cleaned(deep)).count("[") <= DEEPEST + 1
    assert len(cleaned(["x"] * 1_000_000, most=1_000)) <= 1_000
    assert len(json.dumps(cleaned(["x" * 6_400] * 10_000, most=1_000))) < 100_000


def test_names_that_no_object_has_are_texts() -> None:
    assert name("node-1.example") == "node-1.example"
    assert SECRET not in name(TEXTS[0]) and SECRET not in name(TEXTS[1])
