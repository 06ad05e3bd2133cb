"""KVLinks in the planner: members, the orders of nodes, the states of links."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from belay.agents.node.linkfiles import ROOT
from belay.engine import cli
from belay.engine.cli import answers
from belay.engine.cli.explanation import explain
from belay.engine.documents import Desired
from belay.engine.errors import InputError
from belay.engine.load import LoadCache, load
from belay.engine.model.actions import CreateObject, PatchObject
from belay.engine.model.cluster import AgentReport, Node, Observed, Pod
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.links import MAX_LINKS, EndOrders, EndReport, LinkOrder, LinkReport, cluster_number, pod_holder
from belay.engine.model.plan import Plan
from belay.engine.plan import plan
from belay.engine.status import SyncState, status_bodies, surplus
from belay.engine.wire import links as wire
from belay.engine.wire.errors import WireError
from belay.engine.wire.orders import build_report
from tests import worlds
from tests.worlds import NOW

READ = LoadCache()
"""The shipped policies are read once for all tests."""
LINK = """\
apiVersion: belay.dev/v1alpha1
kind: KVLink
metadata: {name: chat}
spec:
  prefill: {namespace: serve, selector: {matchLabels: {role: prefill}}}
  decode: {namespace: serve, selector: {matchLabels: {role: decode}}}
"""


def written(prefill: str, decode: str, name: str = "chat", timeout: str = "3s") -> str:
    return (
        f"apiVersion: belay.dev/v1alpha1\nkind: KVLink\nmetadata: {{name: {name}}}\n"
        f"spec:\n  timeout: {timeout}\n  prefill: {{clusters: {prefill}}}\n  decode: {{clusters: {decode}}}\n"
    )


def node(name: str, ip: str) -> Node:
    return msgspec.structs.replace(worlds.node(name), internal_ip=ip)


def pod(name: str, where: str, ip: str, role: str, **fields: Any) -> Pod:
    made = worlds.pod(name, namespace="serve", node=where, labels={"role": role}, **fields)
    return msgspec.structs.replace(made, pod_ip=ip)


NODES = {"n1": node("n1", "10.0.0.1"), "n2": node("n2", "10.0.0.2")}
PODS = (
    pod("p0", "n1", "172.16.0.1", "prefill"),
    pod("p1", "n2", "172.16.0.2", "prefill"),
    pod("d0", "n1", "172.16.0.3", "decode"),
)
P0, P1, D0 = (cluster_number("serve", name) for name in ("p0", "p1", "d0"))


def world(
    *pods: Pod,
    objects: list[dict[str, Any]] | None = None,
    agents: dict[str, AgentReport] | None = None,
    nodes: dict[str, Node] = NODES,
) -> Observed:
    return Observed(
        nodes=nodes,
        reports={name: worlds.report(name) for name in nodes},
        agents=agents or {name: worlds.agent(name) for name in nodes},
        pods={one.key: one for one in pods},
        objects={
            ObjectKey(o["apiVersion"], o["kind"], o["metadata"].get("namespace", ""), o["metadata"]["name"]): o
            for o in objects or []
        },
    )


def run(text: str | dict[str, str], observed: Observed) -> Plan:
    files = {"desired/links.yaml": text} if isinstance(text, str) else text
    desired = load({path: body.encode() for path, body in files.items()}, revision="r1", cache=READ).desired
    return plan(desired, observed, NOW)


def orders(result: Plan) -> dict[str, dict[str, EndOrders]]:
    """Node → holder → its orders, of the nodes whose orders change."""
    return {
        orders[0]: {end.holder: end for end in orders[1]} for orders in (wire.parse_orders(b) for b in bodies(result))
    }


def bodies(result: Plan) -> list[dict[str, Any]]:
    return [a.object if isinstance(a, CreateObject) else a.patch for a in ours(result)]


def ours(result: Plan) -> list[CreateObject | PatchObject]:
    return [a for a in result.actions if isinstance(a, CreateObject | PatchObject) and a.evidence.rule == "links"]


def messages(result: Plan, word: str) -> list[str]:
    return [str(d) for d in result.diagnostics if d.object.startswith("KVLink") and d.severity == word]


def peers(end: EndOrders) -> dict[int, tuple[str, ...]]:
    return {link.cluster: link.addresses for link in end.links}


def test_decode_pods_are_ordered_to_link_to_every_prefill_pod() -> None:
    result = run(LINK, world(*PODS))
    assert peers(orders(result)["n1"]["serve.d0"]) == {P0: ("172.16.0.1:26000",), P1: ("172.16.0.2:26000",)}
    assert orders(result)["n1"]["serve.p0"].links == ()
    assert orders(result)["n2"]["serve.p1"] == EndOrders(P1, "serve.p1")
    first = ours(result)[0]
    assert (first.reason, first.evidence.file, first.evidence.line) == ("LinksDeclared", "desired/links.yaml", 1)
    assert first.message == "node n1 runs 2 clusters and keeps 2 links (2 new, 0 withdrawn) of KVLink chat"


def test_unchanged_orders_are_not_written_again() -> None:
    first = run(LINK, world(*PODS))
    assert ours(run(LINK, world(*PODS, objects=bodies(first)))) == []


def test_a_pod_that_moves_is_linked_at_its_new_node() -> None:
    before = run(LINK, world(*PODS))
    gone = run(LINK, world(PODS[0], PODS[2], objects=bodies(before)))
    assert peers(orders(gone)["n1"]["serve.d0"]) == {P0: ("172.16.0.1:26000",)}
    assert orders(gone)["n2"] == {}
    back = run(LINK, world(*PODS[::2], pod("p1", "n1", "172.16.0.9", "prefill"), objects=bodies(before)))
    assert peers(orders(back)["n1"]["serve.d0"])[P1] == ("172.16.0.9:26000",)


@pytest.mark.parametrize(
    "change",
    [{"phase": "Pending"}, {"pod_ip": ""}, {"deleting": NOW}, {"phase": "Failed"}, {"namespace": "other"}],
)
def test_a_pod_that_does_not_serve_is_not_a_member(change: dict[str, Any]) -> None:
    away = msgspec.structs.replace(PODS[1], **change)
    assert set(peers(orders(run(LINK, world(PODS[0], away, PODS[2])))["n1"]["serve.d0"])) == {P0}


def test_a_pod_whose_chip_is_isolated_loses_its_links_with_the_pass_that_evicts_it() -> None:
    ill = pod("p1", "n2", "172.16.0.2", "prefill", chips=[3], owner=("AscendJob", "p"))
    before = world(PODS[0], ill, PODS[2])
    report = worlds.report("n2", faults=[worlds.fault(3, "80C98001", "SeparateNPU")])
    labelled = msgspec.structs.replace(ill, labels={**ill.labels, "fault-scheduling": "force"})
    hit = msgspec.structs.replace(
        before, reports={**before.reports, "n2": report}, pods={**before.pods, labelled.key: labelled}
    )
    result = run(LINK, hit)
    kinds = {type(action).__name__ for action in result.actions}
    assert "EvictPod" in kinds, [d.message for d in result.diagnostics]
    assert set(peers(orders(result)["n1"]["serve.d0"])) == {P0}


def test_the_number_of_a_cluster_may_be_written_on_its_pod() -> None:
    named = pod("p0", "n1", "172.16.0.1", "prefill", annotations={"belay.dev/kv-cluster": "18446744073709551615"})
    wrong = pod("p1", "n2", "172.16.0.2", "prefill", annotations={"belay.dev/kv-cluster": "-1"})
    result = run(LINK, world(named, wrong, PODS[2]))
    assert set(peers(orders(result)["n1"]["serve.d0"])) == {2**64 - 1}
    assert "annotation belay.dev/kv-cluster of pod serve/p1" in messages(result, "warning")[0]


def test_a_pod_without_ipv4_is_left_out_and_named() -> None:
    result = run(LINK, world(PODS[0], pod("p1", "n2", "fd00::2", "prefill"), PODS[2]))
    assert set(peers(orders(result)["n1"]["serve.d0"])) == {P0}
    assert "pod serve/p1 has the address fd00::2 only" in messages(result, "warning")[0]


SIDES = st.lists(st.tuples(st.integers(1, 12), st.sampled_from(["n1", "n2", ""])), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=4), st.integers(1, 4))
def test_no_link_is_ordered_twice_and_a_second_pass_changes_nothing(
    documents: list[tuple[list[tuple[int, str]], list[tuple[int, str]]]], limit: int
) -> None:
    def listed(side: list[tuple[int, str]]) -> str:
        rows = dict(side)
        return (
            "["
            + ", ".join(
                f'{{id: {n}, addresses: ["10.9.{n}.{1 + len(node)}:26000"]{f", node: {node}" if node else ""}}}'
                for n, node in sorted(rows.items())
            )
            + "]"
        )

    files = {
        f"desired/{i}.yaml": written(listed(prefill), listed(decode), f"k{i}")
        for i, (prefill, decode) in enumerate(documents)
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("belay.engine.plan.links.orders.MAX_LINKS", limit)
        first = run(files, world())
        ends = [end for node in orders(first).values() for end in node.values()]
        made = [frozenset((end.cluster, link.cluster)) for end in ends for link in end.links]
        assert len(made) == len(set(made)), "a link is made from both ends, or twice"
        for cluster in {one for pair in made for one in pair}:
            assert sum(cluster in pair for pair in made) <= limit
        # one process, one place
        assert len({end.cluster for end in ends}) == len(ends)
        assert {frozenset((row.prefill, row.decode)) for row in first.links} == set(made)
        again = run(files, world(objects=bodies(first)))
        assert ours(again) == []
        # nothing declared: everything is withdrawn, and then it is quiet
        other = {"desired/other.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: o, namespace: d}\n"}
        gone = run(other, world(objects=bodies(first)))
        assert all(not row[1] for row in map(wire.parse_orders, bodies(gone)))
        assert ours(run(other, world(objects=[*bodies(first), *bodies(gone)]))) == []


def test_written_clusters_are_found_by_the_addresses_of_pods_and_nodes() -> None:
    text = written(
        '[{id: 1, addresses: ["172.16.0.2:9"]}, {id: 2, addresses: ["10.0.0.2:9"]}, {id: 5, addresses: ["8.8.8.8:9"]}]',
        '[{id: 3, addresses: ["172.16.0.3:9"]}, {id: 4, addresses: ["9.9.9.9:9"], node: n2}]',
    )
    result = run(text, world(*PODS))
    found = orders(result)
    assert set(found["n1"]) == {"serve.d0"}
    assert set(found["n2"]) == {"serve.p1", "cluster-2", "cluster-4"}
    assert set(peers(found["n2"]["cluster-4"])) == set(peers(found["n1"]["serve.d0"])) == {1, 2, 5}


def test_the_prefill_side_is_the_client_where_only_it_runs_here() -> None:
    result = run(written('[{id: 1, addresses: ["10.0.0.1:9"]}]', '[{id: 2, addresses: ["8.8.8.8:9"]}]'), world())
    assert peers(orders(result)["n1"]["cluster-1"]) == {2: ("8.8.8.8:9",)}
    assert result.links[0].client == "prefill"
    strangers = run(written('[{id: 1, addresses: ["8.8.8.9:9"]}]', '[{id: 2, addresses: ["8.8.8.8:9"]}]'), world())
    assert ours(strangers) == []
    assert "not linked" in messages(strangers, "warning")[0]
    assert messages(strangers, "warning")[0].startswith("desired/links.yaml:1:1 spec - ")


def test_two_documents_share_a_link_with_one_client() -> None:
    one, two = '[{id: 1, addresses: ["10.0.0.1:9"]}]', '[{id: 2, addresses: ["10.0.0.2:9"]}]'
    same = run({"desired/a.yaml": written(one, two, "a"), "desired/b.yaml": written(one, two, "b", "5s")}, world())
    (link,) = orders(same)["n2"]["cluster-2"].links
    assert (link.links, link.timeout_ms) == (("a", "b"), 5000)
    cross = run({"desired/a.yaml": written(one, two, "a"), "desired/b.yaml": written(two, one, "b")}, world())
    assert [len(end.links) for node in orders(cross).values() for end in node.values()] == [0, 1]


def test_one_number_with_two_places_is_an_error_and_the_first_counts() -> None:
    a = written('[{id: 1, addresses: ["10.0.0.1:9"]}]', '[{id: 2, addresses: ["10.0.0.2:9"]}]', "a")
    b = written('[{id: 1, addresses: ["10.0.0.2:8"]}]', '[{id: 3, addresses: ["10.0.0.1:7"]}]', "b")
    result = run({"desired/a.yaml": a, "desired/b.yaml": b}, world())
    assert [row.link for row in result.links] == ["a"]
    assert "cluster 1 is cluster 1 at 10.0.0.1:9 by KVLink a" in messages(result, "error")[0]


def test_no_cluster_gets_more_links_than_a_process_may_have() -> None:
    decode = [pod(f"d{i}", f"n{i % 3 + 1}", f"172.17.{i // 250}.{i % 250 + 1}", "decode") for i in range(MAX_LINKS + 3)]
    result = run(LINK, world(PODS[0], *decode, nodes={**NODES, "n3": node("n3", "10.0.0.3")}))
    assert sum(len(end.links) for node in orders(result).values() for end in node.values()) == MAX_LINKS
    assert "3 links are left out: a cluster takes at most 512 links" in messages(result, "error")[0]


def test_a_nodes_orders_are_bounded() -> None:
    decode = [pod(f"d{i}", "n1", f"172.17.{i // 250}.{i % 250 + 1}", "decode") for i in range(300)]
    result = run(LINK, world(PODS[1], *decode))
    assert len(orders(result)["n1"]) == wire.MAX_ENDS
    assert ["44 processes get no links" in d.message for d in result.diagnostics if d.object == "Node/n1"] == [True]


def test_a_deleted_document_withdraws_its_links_and_a_broken_one_keeps_them() -> None:
    before = run(LINK, world(*PODS))
    standing = world(*PODS, objects=bodies(before))
    assert [a.reason for a in ours(run({}, standing))] == ["LinksWithdrawn", "LinksWithdrawn"]
    assert {e.holder for e in wire.parse_orders(bodies(run({}, standing))[0])[1]} == set()
    assert ours(run(LINK.replace("decode:", "decoder:"), standing)) == []
    assert ours(run("kind: [", standing)) == []


def test_links_whose_deletion_the_budget_refuses_stay() -> None:
    before = run(LINK, world(*PODS))
    copy = {"apiVersion": "belay.dev/v1alpha1", "kind": "KVLink", "metadata": {"name": "chat"}, "spec": {}}
    assert ours(run({}, world(*PODS, objects=[*bodies(before), copy]))) == []


def test_a_cluster_without_git_is_left_alone() -> None:
    before = run(LINK, world(*PODS))
    assert ours(plan(Desired(has_git=False), world(*PODS, objects=bodies(before)), NOW)) == []


def test_links_follow_the_copies_in_the_cluster_without_a_repository(tmp_path: Path) -> None:
    """`belay get links` and `belay explain link NAME` as people type them."""
    copy = yaml.safe_load(LINK)
    report = AgentReport("n1", "b", 1, int(NOW * 1000), 0, {}, 0, "", (), ())
    items = [
        *({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}} for name in NODES),
        *(
            {
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": one.name, "namespace": one.namespace, "uid": one.name, "labels": dict(one.labels)},
                "spec": {"nodeName": one.node, "containers": [{"name": "c"}]},
                "status": {"phase": "Running", "podIP": one.pod_ip},
            }
            for one in PODS
        ),
        copy, build_report(report, "Ascend910-", {}), reported(LinkReport(P0, "linked", 0.4, 5)),
    ]  # fmt: skip
    (tmp_path / "cluster.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))

    def belay(*arguments: str) -> Any:
        asked = [*arguments, "--cluster", str(tmp_path / "cluster.json"), "-o", "json"]
        done = CliRunner().invoke(cli.main, asked)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    assert {(row["to"], row["state"]) for row in belay("get", "links")} == {
        ("pod serve/p0", "linked"),
        ("pod serve/p1", "ordered"),
    }
    assert belay("explain", "link", "chat")["links"] == {"linked": 1, "ordered": 1}
    assert [action for action in belay("plan")["actions"] if action["evidence"]["rule"] == "links"] == []


def test_orders_that_cannot_be_read_are_written_again() -> None:
    bad = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "belay-links-n1", "namespace": "belay-system"},
           "data": {"links.json": "{"}}  # fmt: skip
    assert "serve.d0" in orders(run(LINK, world(*PODS, objects=[bad])))["n1"]


# ---- how they are


def reported(*links: LinkReport, alive: bool = True, problem: str = "") -> dict[str, Any]:
    return wire.report_map("n1", [EndReport(D0, "serve.d0", alive, links, problem)])


def states(observed: Observed) -> dict[int, tuple[str, float | None]]:
    return {row.prefill: (row.state, row.latency_ms) for row in run(LINK, observed).links}


def test_states_come_from_reports_or_say_why_there_is_none() -> None:
    both = reported(LinkReport(P0, "linked", 0.4, 5), LinkReport(P1, "broken", None, 7, 2, "no answer"))
    assert states(world(*PODS, objects=[both])) == {P0: ("linked", 0.4), P1: ("broken", None)}
    assert states(world(*PODS)) == {P0: ("ordered", None), P1: ("ordered", None)}
    assert states(world(*PODS, objects=[reported(alive=False)]))[P0] == ("no-process", None)
    late = {name: worlds.agent(name, at=NOW - 400) for name in NODES}
    assert states(world(*PODS, objects=[both], agents=late))[P0] == ("stale", None)


def test_a_report_that_cannot_be_read_is_named_every_time() -> None:
    bad = reported()
    bad["data"]["links.json"] = '{"node": "n1", "clusters": 5}'
    observed = world(*PODS, objects=[bad])
    for _ in range(2):
        assert [d.object for d in run(LINK, observed).diagnostics if d.severity == "error"] == ["Node/n1"]


def test_status_lists_each_link_unhealthy_ones_first() -> None:
    report = reported(LinkReport(P0, "linked", 0.4, 5), LinkReport(P1, "failed", None, 7, 2, "LLM_LINK_FAILED"))
    observed = world(*PODS, objects=[report])
    result = run(LINK, observed)
    found = {b["metadata"]["name"]: b for b in status_bodies(result, observed, SyncState(), None)}
    data = found["belay-link-chat"]["data"]
    assert data["summary"] == "1 of 2 links hold; failed 1"
    rows = json.loads(data["links.json"])
    assert [(row["prefill"], row["state"]) for row in rows] == [(P1, "failed"), (P0, "linked")]
    assert rows[0]["error"] == "LLM_LINK_FAILED" and rows[1]["latencyMs"] == 0.4
    later = msgspec.structs.replace(
        observed, objects={**observed.objects, key_of(found["belay-link-chat"]): found["belay-link-chat"]}
    )
    gone = run({}, later)
    bodies_now = status_bodies(gone, later, SyncState(), None)
    assert ("belay-system", "belay-link-chat") in surplus(later, bodies_now)


def key_of(body: dict[str, Any]) -> ObjectKey:
    meta = body["metadata"]
    return ObjectKey(body["apiVersion"], body["kind"], meta.get("namespace", ""), meta["name"])


def test_people_may_ask_for_links() -> None:
    observed = world(*PODS, objects=[reported(LinkReport(P0, "linked", 0.4, 5))])
    result = run(LINK, observed)
    rows = answers.GET["links"](result, observed).rows
    assert [(row["link"], row["state"], row["from"], row["to"]) for row in rows] == [
        ("chat", state, "pod serve/d0", to)
        for to, state in sorted(
            [("pod serve/p0", "linked"), ("pod serve/p1", "ordered")], key=lambda x: cluster_number("serve", x[0][-2:])
        )
    ]
    body = explain("link", "chat", result, observed)
    assert body["link"] == "chat" and body["links"] == {"linked": 1, "ordered": 1}
    assert {one["to"] for one in body["notLinked"]} == {"pod serve/p1"}
    assert any(action["reason"] == "LinksDeclared" for action in body["next"])
    with pytest.raises(InputError, match="link 'chatt' is unknown"):
        explain("link", "chatt", result, observed)


def test_the_command_line_shows_links(tmp_path: Path) -> None:
    files = {"desired/link.yaml": written(
        '[{id: 1, addresses: ["10.0.0.1:26000"]}]', '[{id: 2, addresses: ["10.0.0.2:26000"]}]', timeout="100ms"
    )}  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    items: list[dict[str, Any]] = [
        {
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": name},
            "status": {"addresses": [{"type": "InternalIP", "address": one.internal_ip}],
                       "conditions": [{"type": "Ready", "status": "True"}]},
        }
        for name, one in NODES.items()
    ]  # fmt: skip
    report = AgentReport("n2", "b", 1, int(NOW * 1000), 0, {}, 0, "", (), ())
    items.append(build_report(report, "Ascend910-", {}))
    broken = LinkReport(1, "broken", None, int(NOW * 1000), 3, "no answer to PING in 0.1 s")
    items.append(wire.report_map("n2", [EndReport(2, "cluster-2", True, (broken,))]))
    cluster = tmp_path / "cluster.json"
    cluster.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    asked = ["--desired", str(tmp_path), "--cluster", str(cluster)]

    def belay(*arguments: str) -> Any:
        done = CliRunner().invoke(cli.main, [*arguments, *asked, "-o", "json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    shown = belay("plan")
    assert [a["reason"] for a in shown["actions"] if a["evidence"]["rule"] == "links"] == ["LinksDeclared"] * 2
    (row,) = belay("get", "links")
    assert (row["from"], row["to"], row["state"], row["tries"]) == ("cluster 2", "cluster 1", "broken", 3)
    body = belay("explain", "link", "chat")
    assert body["summary"] == "0 of 1 links hold; broken 1" and body["notLinked"][0]["error"].startswith("no answer")
    assert [n["reason"] for n in body["next"]] == ["LinksDeclared"]
    validated = CliRunner().invoke(cli.main, ["validate", str(tmp_path)])
    assert "desired/link.yaml:5:12 spec.timeout - warning: below 200ms" in validated.output


# ---- the documents


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        (
            written('[{id: 1, addresses: ["host:9"]}]', '[{id: 2, addresses: ["10.0.0.2:9"]}]'),
            "6:44",
            "not an IPv4 address",
        ),
        (
            written('[{id: 1, addresses: ["10.0.0.1:0"]}]', '[{id: 2, addresses: ["10.0.0.2:9"]}]'),
            "6:44",
            "out of range",
        ),
        (written('[{id: 1, addresses: ["10.0.0.1:9"]}]', '[{id: 1, addresses: ["10.0.0.2:9"]}]'), "7:28", "itself"),
        (
            written('[{id: 1, addresses: ["10.0.0.1:9"]}]', '[{id: 2, addresses: ["10.0.0.1:9"]}]'),
            "7:43",
            "already belongs to cluster 1",
        ),
        (
            written(
                '[{id: 1, addresses: ["10.0.0.1:9"]}, {id: 1, addresses: ["10.0.0.2:9"]}]',
                '[{id: 2, addresses: ["10.0.0.3:9"]}]',
            ),
            "6:65",
            "twice",
        ),
    ],
)
def test_findings_point_at_what_is_wrong(text: str, place: str, words: str) -> None:
    loaded = load({"desired/l.yaml": text.encode()})
    found = [str(d) for d in loaded.diagnostics if d.file == "desired/l.yaml" and d.severity == "error"]
    assert found and words in found[0] and f":{place} " in found[0], found
    assert loaded.desired.links == ()


def test_a_short_timeout_is_in_force_with_a_warning() -> None:
    text = written('[{id: 1, addresses: ["10.0.0.1:9"]}]', '[{id: 2, addresses: ["10.0.0.2:9"]}]', timeout="199ms")
    loaded = load({"desired/l.yaml": text.encode()})
    (found,) = [d for d in loaded.diagnostics if d.file == "desired/l.yaml"]
    assert (found.severity, found.line, found.column) == ("warning", 5, 12)
    assert "200ms or more is advised" in found.message
    assert len(loaded.desired.links) == 1
    quiet = load({"desired/l.yaml": text.replace("199ms", "200ms").encode()})
    assert [d for d in quiet.diagnostics if d.file == "desired/l.yaml"] == []


def test_the_sample_is_valid_and_mounts_the_agents_folder() -> None:
    text = (Path(__file__).parent.parent / "deploy/samples/kvlink.yaml").read_bytes()
    loaded = load({"desired/kvlink.yaml": text})
    assert [str(d) for d in loaded.diagnostics if d.file.startswith("desired/")] == []
    assert len(loaded.desired.links) == 1 and len(loaded.desired.manifests) == 2
    for manifest in loaded.desired.manifests:
        template = manifest.body["spec"]["template"]
        (volume,) = template["spec"]["volumes"]
        (mount,) = template["spec"]["containers"][0]["volumeMounts"]
        assert volume["hostPath"]["path"] == str(ROOT)
        holder = mount["subPathExpr"].replace("$(POD_NAMESPACE)", "a").replace("$(POD_NAME)", "b")
        assert holder == pod_holder("a", "b")
        side = loaded.desired.links[0].document.spec
        assert (
            sum(s.selector.matches(template["metadata"]["labels"]) for s in (side.prefill, side.decode) if s.selector)
            == 1
        )


# ---- the wire


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2**64 - 1), st.lists(st.integers(0, 2**64 - 1), max_size=5, unique=True)),
        max_size=5,
        unique_by=lambda end: end[0],
    )
)
def test_orders_survive_the_wire(ends: list[tuple[int, list[int]]]) -> None:
    made = tuple(
        EndOrders(
            number,
            f"cluster-{number}",
            tuple(LinkOrder(p, ("10.0.0.1:9",), 3000, ("x",)) for p in sorted(peers) if p != number),
        )
        for number, peers in sorted(ends, key=lambda end: f"cluster-{end[0]}")
    )
    assert wire.parse_orders(wire.orders_map("n", wire.orders_text("n", made))) == ("n", made)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"node": "other", "clusters": []}',
        '{"node": "n", "clusters": [{"cluster": 1, "holder": "../x", "links": []}]}',
        '{"node": "n", "clusters": [{"cluster": 1, "holder": "a..b", "links": []}]}',
        '{"node": "n", "clusters": [{"cluster": -1, "holder": "a", "links": []}]}',
        '{"node": "n", "clusters": [{"cluster": 1, "holder": "a", "links": [{"to": [1]}]}], "peers": {"1": ["x"]}}',
        '{"node": "n", "clusters": [{"cluster": 1, "holder": "a", "links": [{"to": [2]}]}]}',
        '{"node": "n", "clusters": [{"cluster": 1, "holder": "a", "links": [{"to": [2, 2]}]}], "peers": {"2": ["x"]}}',
        '{"node": "n", "clusters": [{"cluster": 1, "holder": "a"}, {"cluster": 2, "holder": "a"}]}',
    ],
)  # fmt: skip
def test_orders_that_no_engine_writes_are_refused(text: str) -> None:
    with pytest.raises(WireError):
        wire.parse_orders(wire.orders_map("n", text))


def test_a_report_too_large_for_a_config_map_keeps_unhealthy_links() -> None:
    links = tuple(LinkReport(i, "failed" if i % 8 == 0 else "linked", 1.0, NOW_MS, 3, "x" * 160) for i in range(512))
    body = wire.report_map("n", [EndReport(10_000 + i, f"cluster-{i}", True, links) for i in range(40)])
    assert len(body["data"]["links.json"]) <= wire.MAX_BODY
    _, ends = wire.parse_report(body)
    assert all({link.state for link in end.links} == {"failed"} for end in ends)


NOW_MS = int(NOW * 1000)


def test_actions_are_the_same_whatever_the_order_of_objects() -> None:
    forward = run(LINK, world(*PODS))
    backward = run(LINK, world(*reversed(PODS)))
    assert forward.digest() == backward.digest()
