"""Claims of gangs under a rule for all of their pods: super pods, racks, trees."""

from __future__ import annotations

import copy
import json
import random

import msgspec
import pytest

from belay.engine.load import load
from belay.engine.model.actions import BindPod, PatchObject
from belay.engine.model.plan import Plan
from belay.engine.observe.observed import observe
from belay.engine.plan import plan
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


def switched(*sizes: int, width: int = 4, **settings: str) -> list[Item]:
    """Leaf switches with so many nodes of 8 chips; their names say switch and position."""
    out: list[Item] = [CLASS]
    servers = []
    for tor, size in enumerate(sizes):
        names = [f"t{tor}-{slot}" for slot in range(size)]
        for slot, name in enumerate(names):
            out += [node(name, address=f"10.0.{tor}.{slot}"), report(name), devices(name)]
        rows = [{"server_ip": f"10.0.{tor}.{slot}", "npu_count": 8, "slice_id": slot} for slot in range(size)]
        servers.append({"tor_id": tor, "tor_ip": f"1.0.0.{tor}", "server": rows})
    info = {"version": "1.0", "tor_count": width, "server_list": servers}
    out.append(listing.config_map("kube-system", "basic-tor-node-cm", {"tor_info": json.dumps(info)}))
    return [*out, listing.params(**settings)] if settings else out


def switched_job(name: str, count: int, schema: str, created: str = listing.STAMP) -> list[Item]:
    gang = listing.job(name, count, 0, policy="chip8-node8", labels={"tor-affinity": schema})
    for rank, item in enumerate(gang[1:]):
        item["spec"]["resourceClaims"] = [{"name": "npus", "resourceClaimName": f"{name}-c{rank}"}]
    for item in gang:
        item["metadata"]["creationTimestamp"] = created
    return [*gang, *(claim(f"{name}-c{rank}", asking(8)) for rank in range(count))]


def by_chips(name: str, count: int, schema: str) -> list[Item]:
    return listing.job(name, count, 8, policy="chip8-node8", labels={"tor-affinity": schema})


VERSION_2 = {"nslb_version": "2.0", "shared_tor_num": "2"}


@pytest.mark.parametrize("settings", [{}, VERSION_2], ids=["version 1", "version 2"])
@pytest.mark.parametrize(("count", "schema"), [(2, "normal-schema"), (6, "large-model-schema"), (5, "normal-schema")])
def test_switch_affinity_gives_claims_the_nodes_and_annotations_of_jobs_that_ask_by_resource(
    settings: dict[str, str], count: int, schema: str
) -> None:
    cluster = Passes(*switched(4, 4, 3, **settings), *switched_job("j", count, schema))
    assert not bound(cluster.step()), "nothing is bound before all claims are allocated"
    cluster.step()
    found = bound(cluster.last) if cluster.last else {}
    plain = [item for item in switched(4, 4, 3, **settings) if item["kind"] not in ("ResourceSlice", "DeviceClass")]
    wanted = bound(Passes(*plain, *by_chips("j", count, schema)).step())
    assert {pod: act.node for pod, act in found.items()} == {pod: act.node for pod, act in wanted.items()}
    for pod, act in found.items():
        own = {key: act.annotations.get(key) for key in ("isSharedTor", "isHealthy", "sharedTorIp")}
        assert own == {key: wanted[pod].annotations.get(key) for key in own}
        assert act.node == cluster.claims()[f"j-c{pod.removeprefix('j-')}"]
    third = cluster.last
    assert third is not None and not third.history.jobs["train/PodGroup/j"].switches, "forgotten once bound"


def test_other_jobs_find_the_switches_of_claims_taken_before_the_pods_are_bound() -> None:
    """A more important job comes between: it may share the switch of which the first one has a node, not own it."""
    cluster = Passes(*switched(4, 4, 4, **VERSION_2), *switched_job("j", 5, "large-model-schema"))
    cluster.step()
    mine = set(cluster.claims().values())
    cluster.items += by_chips("k", 7, "large-model-schema")
    group = next(item for item in cluster.items if item["kind"] == "PodGroup" and item["metadata"]["name"] == "k")
    group["spec"]["priorityClassName"] = "high"
    cluster.items.append({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"},
                          "value": 1000})  # fmt: skip
    found = bound(cluster.step())
    assert [pod[0] for pod in found] == ["k"] * 7 + ["j"] * 5
    assert {act.node for pod, act in found.items() if pod.startswith("j")} == mine
    kinds: dict[str, set[str]] = {}
    for act in found.values():
        kinds.setdefault(act.node.partition("-")[0], set()).add(act.annotations["isSharedTor"])
    assert sorted(map(sorted, kinds.values())) == [["1"], ["2"], ["2"]], kinds


def test_without_memory_claims_under_switches_are_taken_back_and_chosen_again() -> None:
    cluster = Passes(*switched(4, 4, **VERSION_2), *switched_job("j", 5, "large-model-schema"))
    cluster.step()
    cluster.last = None
    assert not bound(cluster.step()) and not cluster.claims(), "taken back"
    for _ in range(3):
        if len(bound(cluster.step())) == 5:
            break
    assert cluster.last is not None and len(bound(cluster.last)) == 5


def test_a_replaced_pod_under_switches_gets_a_claim_beside_the_others() -> None:
    job = switched_job("j", 2, "normal-schema")
    first = next(item for item in job if item["metadata"]["name"] == "j-0")
    running = listing.pod("j-0", on="t0-0", chips=range(8), group="j", labels=first["metadata"]["labels"],
                          notes=first["metadata"]["annotations"])  # fmt: skip
    job = [running if item is first else item for item in job if item["metadata"]["name"] != "j-c0"]
    cluster = Passes(*switched(3, 3, **VERSION_2), *job)
    cluster.step()
    found = bound(cluster.step())
    assert list(found) == ["j-1"] and found["j-1"].node.startswith("t0-")


@pytest.mark.parametrize("seed", range(8))
def test_jobs_under_switches_get_their_claims_whole_though_writes_are_lost(seed: int) -> None:
    chance = random.Random(seed)
    settings = VERSION_2 if chance.random() < 0.5 else {}
    jobs: list[Item] = []
    for number in range(chance.randint(1, 3)):
        schema = chance.choice(["normal-schema", "large-model-schema"])
        jobs += switched_job(f"j{number}", chance.randint(1, 5), schema)
    cluster = Passes(*switched(*(chance.randint(1, 4) for _ in range(3)), **settings), *jobs)
    for turn in range(16):
        claims = [item for item in cluster.items if item["kind"] == "ResourceClaim"]
        before = [copy.deepcopy(item.get("status", {})) for item in claims]
        made = cluster.step()
        for item, status in zip(claims, before, strict=True):
            if turn < 8 and chance.random() < 0.1:
                item["status"] = status  # its write is lost
        for name, act in bound(made).items():
            pod = cluster.find("Pod", name)
            assert cluster.claims()[name.replace("-", "-c")] == act.node
            pod["spec"]["nodeName"], pod["status"] = act.node, {"phase": "Running"}
            pod["metadata"]["annotations"] |= act.annotations
    pods = [item for item in cluster.items if item["kind"] == "Pod"]
    nodes = [pod["spec"]["nodeName"] for pod in pods if "nodeName" in pod["spec"]]
    assert len(set(nodes)) == len(nodes)
    owners: dict[str, set[str]] = {}
    for job in {pod["metadata"]["name"].partition("-")[0] for pod in pods}:
        own = [pod for pod in pods if pod["metadata"]["name"].startswith(job)]
        assert len({"nodeName" in pod["spec"] for pod in own}) == 1, "all pods of a job, or none"
        for pod in own:
            if pod["metadata"]["annotations"].get("isSharedTor") == "2":
                owners.setdefault(pod["spec"]["nodeName"].partition("-")[0], set()).add(job)
    assert all(len(found) == 1 for found in owners.values()), "an exclusive switch has one job"
    late = [act for _ in range(3) for act in cluster.step().actions if getattr(act, "object_kind", "") != "PodGroup"]
    assert not late, "nothing goes round and round"
