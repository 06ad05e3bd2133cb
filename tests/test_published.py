"""Reads of the live cluster: from what the engine publishes, alike to a plan of it, and without loading a planner."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from click.shell_completion import ShellComplete

from belay.engine.cli import answers, known_names, main, records, usage
from belay.engine.cli.counted_chips import chip_use
from belay.engine.cli.inputs import PlannedCluster
from belay.engine.cli.layout import grid
from belay.engine.cli.measurements import Reading
from belay.engine.cli.published import ABOUT, PLANNED_COLUMNS, PublishedCluster
from belay.engine.cli.selection import JOB_COLUMNS
from belay.engine.documents import Desired
from belay.engine.load import load
from belay.engine.model.cluster import AgentVNPU, Observed
from belay.engine.model.freshness import LastPass
from belay.engine.model.labels import ABOUT_LABEL
from belay.engine.model.links import LinkState
from belay.engine.model.plan import Plan
from belay.engine.status import memory_bodies, status_bodies
from belay.engine.status.links import link_bodies
from belay.engine.status.sync_status import SyncState
from belay.engine.wire import names, passinfo
from belay.engine.wire.orders import build_orders, build_report
from tests import worlds
from tests.bench.clusters import NOW, ascend_job, cluster, device, node, service
from tests.test_console_document import SHIPPED, planned, waiting_pod

ROOT = Path(__file__).parent.parent
HEAVY = {
    "celery",
    "kubernetes",
    "pydantic",
    "redis",
    "rich",
    "jinja2",
    "sqlalchemy",
    "grpc",
    "belay.engine.plan",
    "belay.engine.load",
}


def cut(name: str, ordered: int, done: int) -> list[dict[str, Any]]:
    """The report of a node with vNPUs on chip 1, made in epoch ``done``, and its orders of epoch ``ordered``."""
    vnpus = (AgentVNPU(100, 1, "vir05_1c_16g", "train/a"), AgentVNPU(101, 1, "vir05_1c_16g", ""))
    report = msgspec.structs.replace(worlds.agent(name), vnpus=vnpus, vnpu_epoch_done=done)
    layout = {1: ("vir05_1c_16g",) * 3, 2: ("vir10_3c_32g",)}
    order = msgspec.structs.replace(worlds.orders(name), vnpu_epoch=ordered, vnpu_layout=layout)
    return [build_report(report, "Ascend910-", {}), build_orders(order, "Ascend910-")]


WORLDS = {
    "jobs that run": cluster(4, 2),
    "a fault": [node("a", 0), device("a", faulty=3), node("b", 1), device("b")],
    "a fault under a job": [*cluster(3, 1)[:5], device("node-00002", faulty=5), *cluster(3, 1)[6:]],
    "a job that waits": [node("a", 0), device("a"), ascend_job("big", 1, 8), service("big"), waiting_pod("big", 16)],
    "a node without a report": [node("a", 0), device("a"), node("b", 1)],
    "vNPUs, some of them ordered": [
        *cluster(3, 1), *cut("node-00000", 3, 2), *cut("node-00001", 3, 3), *cut("node-00002", 3, 4_000_000),
    ],
}  # fmt: skip


def config_maps(items: list[dict[str, Any]], now: float = NOW, desired: Desired = SHIPPED) -> list[dict[str, Any]]:
    """What a pass of this cluster publishes."""
    plan, observed = planned(items, now, desired)
    state = SyncState(attempted="a" * 40, applied="a" * 40)
    done = LastPass(shard="main", identifier="p1", time=now, revision="a" * 40, every=5.0)
    bodies = status_bodies(plan, observed, state, None, desired)
    said = [one for one in items if one["metadata"]["name"].startswith((names.REPORT_PREFIX, names.ORDERS_PREFIX))]
    return [*bodies, *memory_bodies(plan, observed, desired=desired), passinfo.build(done), *said]


def without(row: dict[str, Any], columns: frozenset[str]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in columns}


@pytest.mark.parametrize("world", sorted(WORLDS))
def test_what_is_published_answers_as_a_plan_does(world: str) -> None:
    items = WORLDS[world]
    plan, observed = planned(items)
    found = PublishedCluster(config_maps(items), NOW)
    assert found.current
    for what in sorted(ABOUT):
        ours = found.answer(what)
        derived = (
            answers.GET[what](plan, observed) if what in answers.GET else records.RECORDS[what](plan, observed, SHIPPED)
        )
        # a report says when its agent saw the fault, the status when the engine did
        only = PLANNED_COLUMNS.get(what, frozenset()) | ({"since"} if what == "faults" else frozenset())
        if "ordered" in world and what == "chips":
            only |= {"vnpus"}  # the map has those that are there
        assert [without(row, only) for row in ours.rows] == [without(row, only) for row in derived.rows], what
        assert ours.columns == derived.columns and set(ours.wide) == set(derived.wide), what
    by_plan = PlannedCluster(plan, observed, SHIPPED)
    assert usage.headline(found) == usage.headline(by_plan)
    for what, rows_of in usage.TOP.items():
        assert rows_of(found, {}) == rows_of(by_plan, {}), what
        measured = {("node-00000", 0): Reading(utilization=50.0)}
        assert rows_of(found, measured).rows == rows_of(by_plan, measured).rows, what


def test_links_that_are_published_answer_as_those_of_a_plan_do() -> None:
    states = tuple(
        LinkState(link, prefill, 2, "llm", f"node-{prefill}", f"ml.p-{prefill}", "ml.d-2", state, latency, since)
        for link, prefill, state, latency, since in (
            ("second", 1, "linked", 1.5, 1_000),
            ("first", 3, "broken", None, 0),
            ("first", 1, "linked", 0.5, 2_000),
        )
    )
    plan = Plan(revision="r", now=NOW, links=states)
    found = PublishedCluster(link_bodies(plan), NOW).answer("links")
    assert found == answers.links(plan, Observed())
    assert [(row["link"], row["from"], row["state"]) for row in found.rows] == [
        ("first", "ml.p-1", "linked"), ("first", "ml.p-3", "broken"), ("second", "ml.p-1", "linked"),
    ]  # fmt: skip


def test_free_chips_are_the_same_for_every_verb() -> None:
    """A cordoned node, a dead one and a fault under a job: none of their chips is free, and all counts add up."""
    items = [*cluster(5, 1), node("lost", 9)]
    items[3] = device("node-00001", faulty=5)
    (cordoned,) = [one for one in items if one["kind"] == "Node" and one["metadata"]["name"] == "node-00003"]
    cordoned["spec"]["unschedulable"] = True
    plan, observed = planned(items)
    found = PublishedCluster(config_maps(items), NOW)

    (pool,) = found.answer("pools").rows
    assert (pool["chips"], pool["used"], pool["free"], pool["outOfService"]) == (48, 16, 16, 1)
    assert answers.pools(plan, observed).rows == [pool]
    by_node = {row["node"]: row["free"] for row in found.answer("nodes").rows}
    by_plan = PlannedCluster(plan, observed, SHIPPED)
    assert by_node == {row["node"]: row["free"] for row in usage.nodes(by_plan, {}).rows}
    assert sum(by_node.values()) == pool["free"] and by_node["node-00003"] == by_node["lost"] == 0
    counts = "16 free, 1 out of service, 16 on nodes that take no work"
    assert counts in usage.headline(by_plan)[1]


SUSPENDED = b"""apiVersion: belay.dev/v1alpha1
kind: NodePool
metadata: {name: old}
spec: {product: atlas-800t-a2, suspend: true, selector: {matchLabels: {kubernetes.io/hostname: node-00003}}}
"""


def test_chips_of_a_suspended_pool_and_of_a_node_that_others_remove_are_not_free() -> None:
    items = cluster(5, 1)
    (leaving,) = [one for one in items if one["kind"] == "Node" and one["metadata"]["name"] == "node-00002"]
    leaving["spec"]["taints"] = [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]
    desired = load({"desired/pools/old.yaml": SUSPENDED}).desired
    plan, observed = planned(items, desired=desired)
    maps = config_maps(items, desired=desired)
    found = PublishedCluster(maps, NOW)

    free = {"node-00000": 0, "node-00001": 0, "node-00002": 0, "node-00003": 0, "node-00004": 8}
    assert {row["node"]: row["free"] for row in found.answer("nodes").rows} == free
    by_plan = PlannedCluster(plan, observed, desired)
    assert {row["node"]: row["free"] for row in usage.nodes(by_plan, {}).rows} == free
    assert found.answer("pools").rows == answers.pools(plan, observed).rows
    assert "8 free, 0 out of service, 16 on nodes that take no work" in usage.headline(by_plan)[1]

    (layout,) = [one for one in maps if one["metadata"]["name"].startswith(names.MAP_PREFIX)]
    columns = json.loads(layout["data"]["nodes.json"])
    del columns["closed"]
    layout["data"]["nodes.json"] = json.dumps(columns)
    earlier = {row["node"]: row["free"] for row in PublishedCluster(maps, NOW).answer("nodes").rows}
    assert earlier == free | {"node-00002": 8, "node-00003": 8}, "the map of an earlier version is read as it is"


def test_pods_on_a_node_that_has_not_said_its_chips_count_as_its_chips() -> None:
    use = chip_use(0, {0, 1, 2}, {2, 3}, state="healthy", cordoned=False, closed=False)
    assert use.sentence == "4 chips: 3 used (1 of them out of service), 0 free, 1 out of service"


def test_what_is_published_in_part_is_no_answer() -> None:
    maps = config_maps(WORLDS["a fault"])
    assert PublishedCluster(maps, NOW).current
    assert not PublishedCluster(maps, NOW + 600).current, "no pass comes"
    (chips,) = [one for one in maps if one["metadata"]["name"].startswith(names.CHIPS_PREFIX)]
    chips["data"]["leftOut"] = '{"faults":3}'
    assert not PublishedCluster(maps, NOW).current, "the list of faults is cut"
    assert not PublishedCluster([], NOW).current


def test_names_for_completion_are_kept_and_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = known_names.names_of(PublishedCluster(config_maps(WORLDS["jobs that run"]), NOW))
    assert found["node"][0] == "node-00000" and "node-00000/Ascend910-7" in found["chip"]
    assert found["job"] == ["train/job-00000", "train/job-00001"] and found["queue"] == ["default"]
    assert found["policy"] == found["isolation"] == [], "nothing is declared"
    maps = config_maps(WORLDS["jobs that run"])
    (sync,) = [one for one in maps if one["metadata"]["name"] == names.SYNC]
    place = {"file": "policies/a.yaml", "line": 1}
    sync["data"]["places.json"] = json.dumps({"FaultPolicy/gentle": place, "Isolation/fan": place})
    declared = known_names.names_of(PublishedCluster(maps, NOW))
    assert (declared["policy"], declared["isolation"], declared["budget"]) == (["gentle"], ["fan"], [])
    known_names._write(known_names.cache_file(None, None), declared)
    assert known_names._offered(Asked(), "policie", "gen") == ["gentle"]  # type: ignore[arg-type]
    known_names._write(known_names.cache_file(None, None), found)
    offered = known_names._offered(Asked(), "job", "job-00001")  # type: ignore[arg-type]
    assert offered == ["job-00001"]
    assert known_names._offered(Asked(), "node", "node-00002") == ["node-00002"]  # type: ignore[arg-type]


#: Verbs whose arguments name things of the cluster, what is typed, and what is offered.
COMPLETED = (
    (("isolate",), "node-0000", "node-00000"), (("release",), "node-00001/Ascend910-7", "node-00001/Ascend910-7"),
    (("drain",), "node-", "node-00003"), (("scale",), "job-", "job-00001"),
    (("priority",), "train/", "train/job-00000"),
    (("suspend",), "def", "default"), (("resume",), "job-00000", "job-00000"), (("logs",), "train/", "train/job-00001"),
    (("wait", "job"), "job-", "job-00000"), (("events", "node"), "node-", "node-00002"),
    (("history", "chip"), "node-00000/", "node-00000/Ascend910-0"), (("explain", "queue"), "de", "default"),
    (("simulate", "--kill"), "node-", "node-00001"), (("simulate", "--fault"), "node-00001/", "node-00001/Ascend910-3"),
    (("inject", "node"), "node-", "node-00000"),
)  # fmt: skip


def test_every_verb_about_the_cluster_completes_its_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = known_names.names_of(PublishedCluster(config_maps(WORLDS["jobs that run"]), NOW))
    known_names._write(known_names.cache_file(None, None), found)
    for words, begun, offered in COMPLETED:
        completion = ShellComplete(main, {}, "belay", "_BELAY_COMPLETE").get_completions(list(words), begun)
        values = [one.value for one in completion]
        assert offered in values and all(one.startswith(begun) for one in values), (words, values[:5])


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_a_reason_never_hides_the_queue(columns: int) -> None:
    reason = "InsufficientChips: 512 chips are asked for, 300 are free in pool training; the nearest are node-1, node-2"
    row = ["training", "AscendJob", "pretrain-llm-70b", "Pending", "research-long", "0", "0/64", "512", "-", reason]
    laid = grid([column.upper() for column in JOB_COLUMNS], [row], columns)
    assert JOB_COLUMNS.index("queue") in laid.beside and JOB_COLUMNS[-1] == "reason"


class Asked:
    params: dict[str, Any] = {}


class Api(http.server.BaseHTTPRequestHandler):
    """Serves the published ConfigMaps as an API server does, and explanations as belay server does."""

    maps: list[dict[str, Any]]
    asked: list[str]

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        self.asked.append(parts.path)
        selector = parse_qs(parts.query).get("labelSelector", [""])[0]
        body: Any = {"gitVersion": "v1.30.0"}
        if parts.path.endswith("/configmaps"):
            wanted = selector.replace(")", "").replace("=", " in (").partition(" in (")[2].split(",")
            items = [one for one in self.maps if one["metadata"]["labels"].get(ABOUT_LABEL) in wanted]
            body = {"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items}
        elif "/explain/" in parts.path:
            body = {
                "facts": {
                    "node": "a",
                    "pool": "default",
                    "state": "healthy",
                    "next": [],
                    "coming": ["free"],
                    "code": "80C98001",
                    "summary": "AI Core",
                }
            }
        elif parts.path.endswith("/records"):
            body = {"records": [], "leftOut": 0}
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def served(maps: list[dict[str, Any]], folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """A kubeconfig of a server that answers with these ConfigMaps, and the paths that were asked for."""
    asked: list[str] = []
    handler = type("Handler", (Api,), {"maps": maps, "asked": asked})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        extension = [{"name": "belay.dev/server", "extension": {"url": url}}]
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": url, "extensions": extension}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
        }  # fmt: skip
        file = folder / "kubeconfig"
        file.write_text(json.dumps(config))
        yield file, asked
        server.shutdown()


READS = (
    # what depends on a young pass comes first
    ("explain", "0x80c98001"), ("explain", "node", "a"), ("get", "jobs"), ("get", "nodes"),
    ("get", "chips", "-o", "name"), ("get", "queues", "-o", "json"), ("get", "vnpus"), ("top",),
    ("top", "jobs", "-o", "json"), ("status",), ("events",), ("history",),
)  # fmt: skip
#: Those that may go on, on an event loop, or list objects that are not published.
LATER = (("wait", "job", "none", "--for", "gone"), ("get", "pods"))


def loaded_by(reads: tuple[tuple[str, ...], ...], variables: dict[str, str]) -> set[str]:
    """The modules of a process that runs these verbs one after the other."""
    code = (
        "import sys, json; from belay.engine.cli import main\n"
        "for words in json.loads(sys.argv[1]):\n"
        "    try: main(words, standalone_mode=False)\n"
        "    except SystemExit as end: assert not end.code, (words, end.code)\n"
        "print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(reads)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        env=variables,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return set(json.loads(done.stderr.splitlines()[-1]))


def test_reads_of_a_live_cluster_load_no_planner(tmp_path: Path) -> None:
    import time

    with served(config_maps(WORLDS["a fault"], time.time()), tmp_path) as (file, asked):
        variables = {**os.environ, "KUBECONFIG": str(file), "XDG_CACHE_HOME": str(tmp_path)}
        variables.pop("BELAY_SERVER", None)
        heavy = {*HEAVY, "aiohttp", "asyncio"}
        assert not (found := loaded_by(READS, variables) & heavy), sorted(found)
        assert "/api/v1/pods" not in asked, "a read of the status lists no pods"
        assert not (found := loaded_by(LATER, variables) & HEAVY), sorted(found)
