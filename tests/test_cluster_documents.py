"""Belay's kinds in the cluster that did not come from Git: ignored with a condition, or in force if allowed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from belay.engine import cli
from belay.engine.documents import Desired
from belay.engine.kube import resource_for
from belay.engine.load import Loaded, load
from belay.engine.load.cluster import copies_from_git, foreign_documents
from belay.engine.model.actions import Action, PatchObject, kind_of
from belay.engine.model.labels import APPLIED_DIGEST, MANAGED_BY
from belay.engine.observe.observed import observe
from belay.engine.plan import plan
from belay.engine.sandbox import definitions
from belay.engine.wire import names, sync
from tests.bench import clusters
from tests.loop_world import cluster, until
from tests.redis_server import redis_process, redis_url
from tests.test_reconcile_git import Cluster, Repo, Start, config_map, repo, start
from tests.test_reconcile_git import sync as sync_data

__all__ = ["cluster", "redis_process", "redis_url", "repo", "start"]

API = "belay.dev/v1alpha1"
NODE = "node-00001"
ISOLATIONS = resource_for(API, "Isolation")


def isolation(name: str, *nodes: str, **metadata: Any) -> dict[str, Any]:
    body = {"nodes": list(nodes), "reason": "cable work"}
    return {"apiVersion": API, "kind": "Isolation", "metadata": {"name": name, "uid": f"u-{name}", **metadata},
            "spec": body}  # fmt: skip


def settings(*kinds: str) -> str:
    spec = {"clusterDocuments": list(kinds)}
    return yaml.safe_dump({"apiVersion": API, "kind": "SchedulingSettings", "metadata": {"name": "own"}, "spec": spec})


def inventory(*objects: str) -> dict[str, Any]:
    """``belay-sync`` of an engine that has applied these Isolations."""
    data = {sync.INVENTORY: json.dumps({f"{API}|Isolation": {"": list(objects)}} if objects else {})}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": names.SYNC, "namespace": names.SYSTEM},
            "data": data}  # fmt: skip


def declared(files: dict[str, str], items: list[dict[str, Any]]) -> Loaded:
    return load({path: text.encode() for path, text in files.items()}, foreign=foreign_documents(items))


def passes(desired: Desired, items: list[dict[str, Any]], definition: bool = True) -> Any:
    crds = [crd for crd in definitions.shipped() if crd["spec"]["group"] == "belay.dev"] if definition else []
    observed = observe([*items, *crds])
    return plan(desired, observed, observed.newest_report)


def states(result: Any) -> dict[str, str]:
    return {node.node: node.state for node in result.nodes}


def status(result: Any, name: str) -> dict[str, Any]:
    """The status that the plan writes to an object."""
    (patch,) = [a.patch for a in result.actions if isinstance(a, PatchObject) and a.name == name]
    return dict(patch["status"])


def condition(result: Any, name: str, kind: str = "Ignored") -> dict[str, Any]:
    (row,) = [row for row in status(result, name)["conditions"] if row["type"] == kind]
    return dict(row)


def test_an_object_that_git_does_not_declare_gets_the_ignored_condition() -> None:
    items = [*clusters.cluster(3, 0), isolation("by-hand", NODE), inventory()]
    result = passes(declared({}, items).desired, items)
    assert set(states(result).values()) == {"healthy"}
    row = condition(result, "by-hand")
    assert (row["type"], row["status"], row["reason"]) == ("Ignored", "True", "NotFromGit")
    assert "clusterDocuments" in row["message"] and "commit it" in row["message"]
    assert [one.object for one in result.ignored] == ["Isolation/by-hand"]
    assert any(d.object == "Isolation/by-hand" and d.severity == "warning" for d in result.diagnostics)
    assert condition(result, "by-hand", "Ready")["status"] == "False"
    items[-2]["status"] = status(result, "by-hand")
    assert not passes(declared({}, items).desired, items).actions, "it is said once"
    del items[-2]["status"]
    assert not passes(declared({}, items).desired, items, definition=False).actions, "nothing to write it to"


def test_an_allowed_object_counts_like_git_and_evidence_names_it() -> None:
    items = [*clusters.cluster(3, 1), isolation("by-hand", NODE), inventory()]
    loaded = declared({"policies/own.yaml": settings("Isolation")}, items)
    result = passes(loaded.desired, items)
    assert states(result)[NODE] == "manually-isolated" and not result.ignored
    (order,) = [a for a in result.actions if kind_of(a) == "IsolateNode"]
    assert (order.evidence.rule, order.evidence.file) == ("Isolation/by-hand", "cluster object Isolation/by-hand")
    assert condition(result, "by-hand")["status"] == "False"
    assert condition(result, "by-hand", "Ready")["status"] == "True"
    applied = [a for a in result.actions if isinstance(a, Action) and a.evidence.rule == "sync"]
    assert all(getattr(a, "name", "") != "by-hand" for a in applied), "it is not taken over as a copy of Git's"
    gone = [item for item in items if item["kind"] != "Isolation"]
    assert states(passes(declared({"policies/own.yaml": settings("Isolation")}, gone).desired, gone))[NODE] == "healthy"


def test_only_listed_kinds_count_and_git_overrides_the_same_name() -> None:
    budget = {"apiVersion": API, "kind": "SafetyBudget", "metadata": {"name": "wide"}, "spec": {
        "limits": [{"actions": ["EvictPod"], "per": "cluster", "max": 1000, "window": "1h"}]}}  # fmt: skip
    items = [*clusters.cluster(2, 0), isolation("same", NODE), budget]
    own = yaml.safe_dump({"apiVersion": API, "kind": "Isolation", "metadata": {"name": "same"},
                          "spec": {"nodes": ["node-00000"], "reason": "Git"}})  # fmt: skip
    loaded = declared({"policies/own.yaml": settings("Isolation"), "policies/same.yaml": own}, items)
    result = passes(loaded.desired, items)
    assert states(result) == {"node-00000": "manually-isolated", NODE: "healthy"}
    assert [one.object for one in result.ignored] == ["SafetyBudget/wide"]
    assert all(item.document.name != "wide" for item in loaded.desired.budgets)


def test_an_allowed_object_that_is_not_valid_is_named_and_stops_nothing() -> None:
    bad = isolation("bad", NODE)
    bad["spec"] = {"nodez": [NODE]}
    items = [*clusters.cluster(2, 0), bad, inventory()]
    loaded = declared({"policies/own.yaml": settings("Isolation"), "desired/a.yaml": config_map("a", "1")}, items)
    assert any(d.file == "cluster object Isolation/bad" and d.severity == "error" for d in loaded.diagnostics)
    assert not loaded.desired.held and not loaded.desired.incomplete, "nothing of Git's waits for it"
    result = passes(loaded.desired, items)
    assert [one.reason for one in result.ignored] == ["Refused"] and set(states(result).values()) == {"healthy"}


def test_settings_in_the_cluster_never_allow_themselves() -> None:
    own = yaml.safe_load(settings("Isolation"))
    items = [*clusters.cluster(2, 0), own, isolation("by-hand", NODE), inventory()]
    result = passes(declared({}, items).desired, items)
    assert {one.object for one in result.ignored} == {"SchedulingSettings/own", "Isolation/by-hand"}
    assert states(result)[NODE] == "healthy"


def test_copies_are_recognised_by_the_inventory_not_by_their_labels() -> None:
    mark = {"labels": {MANAGED_BY: "belay"}, "annotations": {APPLIED_DIGEST: "x"}}
    forged, copy, bare = isolation("forged", NODE, **mark), isolation("copy", NODE, **mark), isolation("bare", NODE)
    listed = [forged, copy, bare, inventory("copy", "bare")]
    assert [json.loads(data)["metadata"]["name"] for data in copies_from_git(listed).values()] == ["copy", "bare"]
    assert list(foreign_documents(listed)) == ["cluster object Isolation/forged"]
    assert list(foreign_documents([forged, bare])) == ["cluster object Isolation/bare"], (
        "without an inventory marks must do"
    )
    left = inventory("copy", "bare")
    left["data"][sync.IGNORED] = json.dumps([{"object": "Isolation/bare", "reason": "NotDeclared", "message": ""}])
    assert len(copies_from_git([copy, bare, left])) == 1, (
        "what Git declares no more is out of force before it is pruned"
    )


def belay(*arguments: str) -> Any:
    result = CliRunner().invoke(cli.main, [*arguments, "-o", "json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize("there", [True, False])
def test_commands_predict_what_an_engine_there_does(tmp_path: Path, there: bool) -> None:
    """A List of a cluster with an engine follows its rule; a List that only people wrote declares what it holds."""
    items = [*clusters.cluster(3, 0), isolation("by-hand", NODE), *([inventory()] if there else [])]
    file = tmp_path / "list.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    wanted = "healthy" if there else "manually-isolated"
    rows = {row["node"]: row["state"] for row in belay("get", "nodes", "--cluster", str(file))}
    assert rows[NODE] == wanted
    assert belay("explain", "node", NODE, "--cluster", str(file))["state"] == wanted
    found = belay("plan", "--cluster", str(file))
    assert {node["node"]: node["state"] for node in found["nodes"]}[NODE] == wanted
    assert any("ignored" in d["message"] for d in found["diagnostics"]) is there


def test_kubectl_apply_of_an_isolation_is_ignored_until_git_allows_it(
    cluster: Cluster,
    repo: Repo,
    start: Start,
) -> None:
    cluster.run(definitions.ensure(cluster.kube))
    cluster.add_node("node-1")
    cluster.add_node("node-2")
    repo.commit({"desired/a.yaml": config_map("a", "1"), "policies/own.yaml": settings()})
    loop = start()
    until(lambda: "a" in sync_data(cluster).get("inventory.json", ""), 30, what="the first revision")
    body = isolation("by-hand", "node-1")
    del body["metadata"]["uid"]
    cluster.run(cluster.kube.apply(body, field_manager="kubectl-client-side-apply"))

    def says(status: str) -> bool:
        found = cluster.get(ISOLATIONS, "by-hand") or {}
        rows = (found.get("status") or {}).get("conditions") or []
        return any((row["type"], row["status"]) == ("Ignored", status) for row in rows)

    def state(node: str) -> str:
        engine = json.loads((cluster.get(resource_for("v1", "ConfigMap"), "belay-pool-default", "belay-system") or {})
                            .get("data", {}).get("nodes.json", "[]"))  # fmt: skip
        mine = {row["node"]: row["state"] for row in engine}.get(node, "healthy")
        asked = {r["node"]: r["state"] for r in belay("get", "nodes", "--kubeconfig", cluster.kubeconfig)}[node]
        assert mine == asked, "the engine and the command answer alike"
        return mine

    until(lambda: says("True"), 30, what="the condition")
    until(lambda: "by-hand" in sync_data(cluster).get(sync.IGNORED, ""), 30, what="the list of what is ignored")
    assert state("node-1") == "healthy"
    cluster.add_pod("one", 8)
    cluster.add_pod("two", 8)
    until(lambda: cluster.bound() == {"one", "two"}, 30, what="work on both nodes: the object is not obeyed")
    repo.commit({"policies/own.yaml": settings("Isolation")})
    loop.controller.fetch_soon()
    until(lambda: says("False"), 30, what="the condition that it counts")
    until(lambda: _tolerant(state, "node-1") == "manually-isolated", 30, what="the isolation")
    assert sync.IGNORED not in sync_data(cluster)
    cluster.run(cluster.kube.delete(ISOLATIONS, "by-hand"))
    until(lambda: _tolerant(state, "node-1") == "healthy", 30, what="the release")


def _tolerant(ask: Any, node: str) -> str:
    """The state, empty while engine and command have read different moments."""
    try:
        return str(ask(node))
    except AssertionError:
        return ""
