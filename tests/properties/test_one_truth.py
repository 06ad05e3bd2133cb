"""The engine and every command answer alike about the same cluster."""

from __future__ import annotations

import json
import random
import re
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from belay.engine import cli
from belay.engine.load import LoadCache, load
from belay.engine.load.cluster import belay_objects, foreign_documents
from belay.engine.metrics import PassSummary
from belay.engine.metrics.collector import BelayCollector
from belay.engine.model.labels import ABOUT_LABEL
from belay.engine.model.plan import Plan
from belay.engine.model.times import rfc3339
from belay.engine.observe.observed import observe
from belay.engine.plan.sync.objects import declared_keys
from belay.engine.replay import offline
from belay.engine.sandbox import definitions
from belay.engine.serve.engine_client import EngineHealth, PageData
from belay.engine.serve.page import render
from belay.engine.source.tree import is_document_path, may_declare
from belay.engine.status import StatusCondition, SyncState, memory_bodies, status_bodies, sync_body
from belay.engine.status.status_reader import PublishedStatus, read_status
from tests.simworld import A2, INFER, Node, World
from tests.soak.histories import _event, _repository

ROOT = Path(__file__).resolve().parents[2]
CACHE = LoadCache()
KINDS = ("Isolation", "FaultPolicy", "NodePool", "SafetyBudget")
HEAD = "apiVersion: belay.dev/v1alpha1\n"


class Truth(World):
    """A simulated cluster with Belay's own kinds, in which people also put objects that Git does not declare."""

    def plan(self) -> Plan:
        objects = belay_objects(self.observer.observed())
        loaded = load(self.files, revision=self.revision, foreign=foreign_documents(objects), cache=CACHE)
        self.desired = loaded.desired
        self.last = super().plan()
        return self.last

    def record_inventory(self) -> None:
        """``belay-sync`` as the engine writes it."""
        observed = self.observer.observed()
        known = set(declared_keys(self.desired, observed))
        kept = {key for key in observed.inventory or () if key in observed.objects}
        state = SyncState(self.revision, self.revision, (StatusCondition("Ready", "True", "Applied"),),
                          inventory=tuple(sorted(known | kept)))  # fmt: skip
        self.put(sync_body(state, self.last, observed))


def made(seed: int) -> Truth:
    """A world after a short random history, the last push of which is applied."""
    chance = random.Random(seed)
    servers = [Node(f"node-{i}", labels=A2) for i in range(3)]
    files = _repository(chance, _repository(chance, {}))
    if chance.random() < 0.6:
        allowed = ", ".join(chance.sample(KINDS, chance.randrange(len(KINDS) + 1)))
        spec = f"spec: {{clusterDocuments: [{allowed}]}}\n"
        files["policies/own.yaml"] = f"{HEAD}kind: SchedulingSettings\nmetadata: {{name: own}}\n{spec}".encode()
    if chance.random() < 0.4:
        files["desired/pools.yaml"] = (
            f"{HEAD}kind: NodePool\nmetadata: {{name: inference}}\n"
            "spec: {product: own, selector: {matchLabels: {servertype: Ascend310P-8}}}\n".encode()
        )
        product = yaml.safe_load((ROOT / "policies/products/atlas-300i-pro.yaml").read_text())
        product["metadata"]["name"] = "own"
        files["policies/product.json"] = json.dumps(product).encode()
    if chance.random() < 0.5:
        table = yaml.safe_load((ROOT / "policies/faults/chip.yaml").read_text())
        table["metadata"]["name"] = "own"
        table["spec"]["levels"] = {"SeparateNPU": ["80E18402"], "RestartNPU": ["80C98001"]}
        for field in ("codes", "details"):
            table["spec"].pop(field, None)
        files["policies/table.json"] = json.dumps(table).encode()
    world = Truth(files, [*servers, Node("card-0", kind="Ascend310P", labels=INFER)], seed=seed)
    for crd in definitions.shipped():
        if crd["spec"]["group"] == "belay.dev":
            world.put(crd)
    for _ in range(chance.randrange(3, 9)):
        files = _event(chance, world, files)
        if chance.random() < 0.5:
            by_hand(chance, world)
        world.step(some=chance.choice((1.0, 0.6)))
        world.pass_time(chance.choice((1.0, 20.0, 70.0)))
    for _ in range(3):
        world.step()
        world.pass_time(1.0)
    return world


def by_hand(chance: random.Random, world: Truth) -> None:
    """A person applies, or deletes, an object of Belay's kinds with kubectl, or cordons a node."""
    node = f"node-{chance.randrange(3)}"
    body: dict[str, Any] = {
        "Isolation": {"nodes": [node], "reason": "by hand"},
        "FaultPolicy": {"levels": {"80E18402": "SeparateNPU"}},
        "NodePool": {"selector": {"matchLabels": {"kubernetes.io/hostname": node}}},
        "SafetyBudget": {"limits": [{"actions": ["EvictPod"], "per": "cluster", "max": 1, "window": "10m"}]},
    }
    kind = chance.choice((*KINDS, "Isolation", "cordon"))
    if kind == "cordon":
        live = next((o for k, o in world.objects.items() if (k.kind, k.name) == ("Node", node)), None)
        if live is not None:
            world.put({**live, "spec": {**live.get("spec", {}), "unschedulable": chance.random() < 0.7}})
        return
    found = next((key for key in world.objects if (key.kind, key.name) == (kind, "by-hand")), None)
    if found is not None and chance.random() < 0.5:
        world.delete(found)
    else:
        world.put({"apiVersion": "belay.dev/v1alpha1", "kind": kind, "metadata": {"name": "by-hand"},
                   "spec": body[kind]})  # fmt: skip


class Asked:
    """The commands, asked about one world from its objects."""

    def __init__(self, world: Truth, folder: Path) -> None:
        self.file, self.now, self.tree = folder / "cluster.json", rfc3339(world.now), folder / "state"
        items = list(world.objects.values())
        self.file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        (self.tree / "desired").mkdir(parents=True)
        for path, data in world.files.items():
            (self.tree / path).parent.mkdir(parents=True, exist_ok=True)
            (self.tree / path).write_bytes(data)

    def __call__(self, *words: str, desired: bool = False) -> Any:
        given = [*words, "--cluster", str(self.file), "--now", self.now, "-o", "json"]
        result = CliRunner().invoke(cli.main, [*given, *(("--desired", str(self.tree)) if desired else ())])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)


def told_of(result: Plan, world: Truth) -> PublishedStatus:
    """What status and the page read back."""
    observed = world.observer.observed()
    state = SyncState(applied=world.revision, roles={"schedule": "on", "aggregate": "on"})
    bodies = [*status_bodies(result, observed, state, None, world.desired), *memory_bodies(result, observed)]
    return read_status(b for b in bodies if ABOUT_LABEL in (b["metadata"].get("labels") or {}))


def plain(value: Any) -> Any:
    """Without what names the revision and where a document was read: Git's file or its copy."""
    if isinstance(value, dict):
        # without Git nothing says that the object of a cause was declared
        kind = {"kind": "document"} if value.get("kind") == "object" and "subject" in value else {}
        left = {k: v for k, v in value.items() if k not in ("revision", "file", "line", "column", "commit")}
        return {k: plain(v) for k, v in (left | kind).items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


@pytest.fixture(scope="module", autouse=True)
def _quick() -> Any:
    """Shipped policies are read once for all commands of this file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(offline, "load", partial(load, cache=CACHE))
        yield


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(min_value=0, max_value=2**32))
def test_engine_and_commands_answer_alike(seed: int) -> None:
    world = made(seed)
    assume(any(is_document_path(path) and may_declare(path) for path in world.files))  # an engine refuses an empty tree
    result = world.plan()
    with tempfile.TemporaryDirectory() as folder:
        ask = Asked(world, Path(folder))
        document = json.loads(json.dumps(result.document()))
        for desired in (False, True):
            _plans_alike(document, ask("plan", "--now-only", desired=desired), desired)
            _lists_alike(result, world, ask, desired)
        story = ask("simulate", "--for", "1s", desired=True)
        first = [moment["actions"] for moment in story["moments"] if moment["after"] == 0]
        assert plain(first[0] if first else []) == plain(document["actions"]), "simulate begins with the plan"
        _told_alike(result, world, ask)


def _plans_alike(document: dict[str, Any], found: dict[str, Any], desired: bool) -> None:
    for part in ("nodes", "chips", "pending", *(("actions", "deferred") if desired else ())):
        assert plain(found[part]) == plain(document[part]), part
    acts = [
        [plain(a) for a in one["actions"] if a["evidence"]["rule"] != "sync" and a["kind"] != "DeleteObject"]
        for one in (found, document)
    ]
    assert acts[0] == acts[1], "the acts on nodes and pods"


def _lists_alike(result: Plan, world: Truth, ask: Asked, desired: bool) -> None:
    rows = {row["node"]: row for row in ask("get", "nodes", desired=desired)}
    assert {name: row["state"] for name, row in rows.items()} == {n.node: n.state for n in result.nodes}
    live = world.observer.observed().nodes
    assert {name: row["cordoned"] for name, row in rows.items()} == {n: live[n].unschedulable for n in rows}
    chips = {(row["node"], row["chip"]): row for row in ask("get", "chips", desired=desired)}
    for chip in result.chips:
        row = chips[(chip.node, chip.chip)]
        assert (row["state"], row["level"], row["usedBy"]) == (chip.state, chip.level, chip.used_by)
    assert len(chips) == sum(row["chips"] for row in rows.values())
    numbers = CollectorRegistry()
    numbers.register(
        BelayCollector(lambda: ({"main": PassSummary.of(result, observe(world.objects.values()), 0.1)}, {}))
    )
    text = generate_latest(numbers).decode()
    for family, states in (("chips", chips.values()), ("nodes", rows.values())):
        shown = {
            m[1]: int(float(m[2])) for m in re.finditer(rf'belay_({family}{{[^}}]*state="[^"]*"[^}}]*}}) (.+)', text)
        }
        counted = {re.search('state="([^"]*)"', key)[1]: number for key, number in shown.items()}  # type: ignore[index]
        assert counted == dict(Counter(row["state"] for row in states)), family
    pools: Counter[str] = Counter(row["pool"] for row in rows.values())
    assert {row["pool"]: row["nodes"] for row in ask("get", "pools", desired=desired)} == dict(pools)
    name = sorted(rows)[0]
    node = ask("explain", "node", name, desired=desired)
    assert (node["state"], node["cordoned"]) == (rows[name]["state"], rows[name]["cordoned"])
    for place, row in sorted(chips.items())[:2]:
        told_chip = ask("explain", "chip", "/".join(place), desired=desired)
        assert told_chip["state"] == row["state"] and told_chip["usedBy"] == row["usedBy"]


def _told_alike(result: Plan, world: Truth, ask: Asked) -> None:
    seen = told_of(result, world)
    rows = {row["node"]: row["state"] for row in ask("get", "nodes")}
    assert {n["node"]: n["state"] for p in seen.pools for n in p.nodes} == {
        name: state for name, state in rows.items() if state != "healthy"
    }
    faulty = {(row["node"], row["chip"]): row["state"] for row in ask("get", "chips") if row["state"] != "healthy"}
    shown = {(c["node"], c["chip"]): c["state"] for p in seen.pools for c in p.chips}
    assert shown == {place: state for place, state in faulty.items() if state != "unknown"}
    jobs = {f"{r['namespace']}/{r['kind']}/{r['name']}": r for r in ask("get", "jobs")}
    assert {job.name: job.phase for job in seen.jobs} == {name: row["phase"] for name, row in jobs.items()}
    for job in seen.jobs:
        if job.pending:
            asked = ask("explain", "job", job.name)["pending"]
            assert (asked["reason"], asked["message"]) == (job.pending["reason"], job.pending["message"])
    page = render(PageData(EngineHealth("", {"main": 1.0}), {}, seen, "", world.now), "main")
    for place, state in sorted(shown.items()):
        assert re.search(rf">{place[0]}</td>\s*<td[^>]*>{place[1]}</td>\s*<td[^>]*>{state}<", page), place
