"""Claims of gangs under a rule for all of their pods: super pods, racks, trees."""

from __future__ import annotations

import copy
import json

import msgspec
import pytest

from engine.load import load
from engine.model.actions import BindPod, PatchObject
from engine.model.plan import Plan
from engine.observe.observed import observe
from engine.plan import plan
from tests import listing, worlds
from tests.listing import Item, node, report
from tests.test_dra_placement import CLASS, asking, claim, devices

A3 = {"accelerator-type": "module-a3-16-super-pod"}


class Passes:
    """A cluster that passes of the planner move on: claims are allocated, pods are bound."""

    def __init__(self, *items: Item) -> None:
        self.items = [copy.deepcopy(item) for item in items]
        self.desired = load({}, revision="r1").desired
        self.last: Plan | None = None

    def step(self) -> Plan:
        seen = observe(self.items)
        if self.last is not None:
            seen = msgspec.structs.replace(seen, history=self.last.history)
        self.last = plan(self.desired, seen, worlds.NOW)
        for action in self.last.actions:
            if isinstance(action, PatchObject) and action.object_kind == "ResourceClaim":
                body = self.find("ResourceClaim", action.name)
                body["status"] = {k: v for k, v in action.patch["status"].items() if v is not None}
        return self.last

    def find(self, kind: str, name: str) -> Item:
        return next(item for item in self.items if item["kind"] == kind and item["metadata"]["name"] == name)

    def claims(self) -> dict[str, str]:
        """The node of each allocated claim."""
        found = {}
        for item in self.items:
            if item["kind"] == "ResourceClaim" and "allocation" in item.get("status", {}):
                found[item["metadata"]["name"]] = item["status"]["allocation"]["devices"]["results"][0]["pool"]
        return found


def bound(made: Plan) -> dict[str, BindPod]:
    return {action.pod: action for action in made.actions if isinstance(action, BindPod)}


def super_pods(*sizes: int) -> list[Item]:
    """A3 super pods with so many nodes of 16 chips; their names say the super pod."""
    out: list[Item] = [CLASS]
    for number, size in enumerate(sizes):
        for i in range(size):
            name = f"s{number}-{i}"
            out += [node(name, chips=16, labels=A3), report(name, chips=16, super_pod=number, index=i)]
            out.append(devices(name, range(16)))
    return out


def job(count: int, block: int, **notes: str) -> list[Item]:
    """A gang of ranks with a claim of 16 chips each, in super pods of ``block`` nodes."""
    own = {listing.POLICY: "chip2-node16-sp", "sp-block": str(block * 16)} | notes
    items = listing.job("j", count, 0, notes=own)
    for rank, item in enumerate(items[1:]):
        item["metadata"]["annotations"] |= own
        item["spec"]["resourceClaims"] = [{"name": "npus", "resourceClaimName": f"c{rank}"}]
    return [*items, *(claim(f"c{rank}", asking(16)) for rank in range(count))]


def test_a_super_pod_job_gets_whole_blocks_by_claims_and_keeps_them() -> None:
    """5 and 6 nodes are equal after the first block is gone, so a new choice would turn the blocks around."""
    cluster = Passes(*super_pods(3, 4, 6), *job(4, 2))
    first = cluster.step()
    assert not bound(first), "nothing is bound before all claims are allocated"
    where = cluster.claims()
    assert len(where) == 4
    second = bound(cluster.step())
    assert {pod: act.node for pod, act in second.items()} == {f"j-{rank}": where[f"c{rank}"] for rank in range(4)}
    for pods in (("j-0", "j-1"), ("j-2", "j-3")):
        acts = [second[pod] for pod in pods]
        assert len({act.node.partition("-")[0] for act in acts}) == 1, "a block is in one super pod"
        assert len({act.annotations["super-pod-rank"] for act in acts}) == 1
        assert all(act.annotations["super-pod-id"] == act.node[1] for act in acts)
    assert len({act.annotations["super-pod-rank"] for act in second.values()}) == 2
    assert all(len(act.chips) == 16 for act in second.values())


def test_without_memory_the_blocks_follow_the_ranks() -> None:
    cluster = Passes(*super_pods(2, 2), *job(4, 2))
    cluster.step()
    cluster.last = None
    second = bound(cluster.step())
    assert {pod: act.annotations["super-pod-rank"] for pod, act in second.items()} == {
        "j-0": "0", "j-1": "0", "j-2": "1", "j-3": "1",
    }  # fmt: skip


def test_claims_of_a_gang_whose_node_broke_are_taken_back_and_given_elsewhere() -> None:
    cluster = Passes(*super_pods(2, 2, 3), *job(2, 2))
    cluster.step()
    before = cluster.claims()
    broken = before["c0"]
    at = next(i for i, item in enumerate(cluster.items) if item["metadata"]["name"].endswith(f"deviceinfo-{broken}"))
    cluster.items[at] = report(broken, chips=16, unhealthy=range(16), super_pod=int(broken[1]), index=int(broken[3]))
    assert not bound(cluster.step()) and not cluster.claims(), "taken back"
    for _ in range(3):
        last = cluster.step()
        if bound(last):
            break
    found = {pod: act.node for pod, act in bound(last).items()}
    assert len(found) == 2 and broken not in found.values()
    assert len({name.partition("-")[0] for name in found.values()}) == 1


@pytest.mark.parametrize(("sizes", "why"), [((1, 1), "no super pod has two nodes"), ((1,), "one node")])
def test_a_block_that_fits_no_super_pod_gets_no_claim(sizes: tuple[int, ...], why: str) -> None:
    cluster = Passes(*super_pods(*sizes), *job(2, 2))
    made = cluster.step()
    assert not cluster.claims() and not bound(made), why
    assert [entry.reason for entry in made.pending] == ["TopologyNotMet"]


def test_switch_affinity_says_that_it_gets_no_claims() -> None:
    items = [CLASS]
    for slot in range(2):
        name = f"n{slot}"
        items += [node(name, address=f"10.0.0.{slot}"), report(name), devices(name)]
    leaves = [
        {"tor_id": tor, "tor_ip": f"1.0.0.{tor}", "server": [
            {"server_ip": f"10.0.{tor}.{slot}", "npu_count": 8, "slice_id": slot} for slot in range(2)]}
        for tor in range(2)
    ]  # fmt: skip
    config = {"tor_info": json.dumps({"version": "1.0", "tor_count": 2, "server_list": leaves})}
    gang = listing.job("j", 2, 0, policy="chip8-node8", labels={"tor-affinity": "normal-schema"})
    for rank, item in enumerate(gang[1:]):
        item["spec"]["resourceClaims"] = [{"name": "npus", "resourceClaimName": f"c{rank}"}]
    claims = [claim(f"c{rank}", asking(8)) for rank in range(2)]
    cluster = Passes(*items, listing.config_map("kube-system", "basic-tor-node-cm", config), *gang, *claims)
    (entry,) = cluster.step().pending
    assert "get no chips by resource claims: ask by resource" in entry.message
