"""Room for vNPUs where free cores are fragmented: the least change is stated, and made where a document allows it."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belay.engine.documents import Desired
from belay.engine.load import load
from belay.engine.model.actions import BindPod, EvictPod, PartitionChip, Preconditions
from belay.engine.model.cluster import AgentReport, AgentVNPU, Observed, Orders, Pod
from belay.engine.model.cores import ChipUse, unfit_reason
from belay.engine.model.history import JobMemory, NodeMemory
from belay.engine.model.plan import Plan
from belay.engine.plan import plan
from tests import worlds
from tests.test_vnpu import CHIP, SIZES
from tests.vnpuworld import CHIPS, CORE, holds, node, report, wants
from tests.worlds import NOW

RESOURCE, PREFIX = "huawei.com/Ascend310P", "Ascend310P-"


def declared(mode: str = "dynamic", chips: str = "", extra: str = "") -> Desired:
    text = f"""\
apiVersion: belay.dev/v1alpha1
kind: VNPULayout
metadata: {{name: inference}}
spec:
  selector: {{matchLabels: {{accelerator: huawei-Ascend310P}}}}
  mode: {mode}
  {f"chips: {chips}" if chips else ""}
"""
    return load({"desired/a.yaml": text.encode(), "desired/b.yaml": extra.encode()}, revision="r").desired


def undeclared() -> Desired:
    return load({}, revision="r").desired


def made(result: Plan, kind: Any) -> list[Any]:
    return [action for action in result.actions if isinstance(action, kind)]


# ---- templates by name


def cut_world(
    *vnpus: tuple[int, int, str, str], pods: Any = (), chips: int = 2, offered: dict[str, int] | None = None,
    orders: Orders | None = None, done: int = 0, result: str = "ok", nodes: int = 1,
) -> Observed:  # fmt: skip
    """Nodes; the first one has the given vNPUs (id, chip, template, user)."""
    names = [f"n{i}" for i in range(nodes)]
    labels = CHIPS["310P"][0]
    agents = [
        AgentReport(n, "b", 1, int(NOW * 1000) - 1000, 0, {}, done, result,
                    tuple(AgentVNPU(i, c, t, u) for i, c, t, u in (vnpus if n == "n0" else ())), ())
        for n in names
    ]  # fmt: skip
    return worlds.observed(
        [worlds.node(n, chips=chips, resource=RESOURCE, prefix=PREFIX, labels=labels,
                     allocatable=(offered or {}) if n == "n0" else {}) for n in names],
        [worlds.report(n, chips=chips, resource=RESOURCE, prefix=PREFIX, network=None) for n in names],
        pods, agents=agents, standing=[orders] if orders else (),
    )  # fmt: skip


def asks(name: str, suffix: str, **fields: Any) -> Pod:
    return worlds.pod(name, resource=f"{RESOURCE}-{suffix}", count=1, **fields)


def test_a_chip_is_cut_for_a_pod_that_asks_for_a_size_by_name() -> None:
    result = plan(declared(), cut_world(pods=[asks("p", "4c")]), NOW)
    (cut,) = made(result, PartitionChip)
    assert (cut.chip, cut.templates, cut.create, cut.destroy) == ("Ascend310P-0", ("vir04",), ("vir04",), ())
    assert (cut.reason, cut.epoch, cut.evidence.file) == ("LayoutOnDemand", 1, "desired/a.yaml")
    (entry,) = result.pending
    assert entry.reason == "Fragmented" and "cutting 1 vir04 on chip Ascend310P-0 of node n0" in (entry.unblock or "")
    assert result.history.nodes["n0"].vnpu_epoch == 1


def test_idle_vnpus_are_destroyed_last_and_as_few_as_possible() -> None:
    pieces = [(100, 0, "vir02", ""), (101, 0, "vir02", ""), (102, 0, "vir01", ""), (103, 1, "vir01", "")]
    (cut,) = made(plan(declared(), cut_world(*pieces, pods=[asks("p", "4c.3cpu")]), NOW), PartitionChip)
    assert (cut.chip, cut.destroy, cut.templates) == ("Ascend310P-1", (), ("vir01", "vir04_3c"))
    (cut,) = made(plan(declared(), cut_world(*pieces[:3], pods=[asks("p", "4c.3cpu")], chips=1), NOW), PartitionChip)
    assert (cut.destroy, cut.create, cut.templates) == (("102",), ("vir04_3c",), ("vir02", "vir02", "vir04_3c"))


@pytest.mark.parametrize("user", ["train/other", "pod"])
def test_a_chip_with_a_vnpu_in_use_is_left_alone(user: str) -> None:
    pods: list[Pod] = [asks("p", "4c")]
    if user == "pod":  # bound, but its annotation does not name its vNPU yet
        pods.append(asks("q", "2c", node="n0", phase="Pending"))
    pieces = [(100, 0, "vir02", "" if user == "pod" else user)]
    result = plan(declared(), cut_world(*pieces, pods=pods, chips=1, offered={f"{RESOURCE}-2c": 1}), NOW)
    assert not made(result, PartitionChip)


def test_without_a_document_the_cut_is_stated_and_not_made() -> None:
    result = plan(undeclared(), cut_world(pods=[asks("p", "4c")]), NOW)
    assert not made(result, PartitionChip)
    (entry,) = result.pending
    assert (
        "would free enough; with a VNPULayout in mode dynamic" in (entry.unblock or "") and entry.reason == "Fragmented"
    )


def test_only_declared_chips_are_cut() -> None:
    (cut,) = made(plan(declared(chips='[{chips: "1"}]'), cut_world(pods=[asks("p", "4c")]), NOW), PartitionChip)
    assert cut.chip == "Ascend310P-1"


def test_an_order_on_its_way_serves_the_pod_that_waits() -> None:
    issued = int(NOW * 1000) - 5000
    orders = Orders("n0", "1", 1, "r", "", issued, issued + 900_000, {}, {}, 1, {0: ("vir04",)})
    result = plan(declared(), cut_world(pods=[asks("p", "4c")], orders=orders, nodes=2), NOW)
    assert not made(result, PartitionChip) and "being made ready" in (result.pending[0].unblock or "")
    made_already = cut_world((100, 0, "vir04", ""), pods=[asks("p", "4c")], orders=orders, done=1, nodes=2)
    assert not made(plan(declared(), made_already, NOW), PartitionChip), "kubelet will offer it in a moment"
    two = plan(declared(), cut_world(pods=[asks("p", "4c"), asks("q", "4c")], orders=orders, nodes=2), NOW)
    assert len(made(two, PartitionChip)) <= 1


def test_two_pods_in_one_pass_get_two_pieces() -> None:
    pods = [asks("p", "4c.3cpu", created=NOW - 9), asks("q", "4c.3cpu", created=NOW - 8)]
    cuts = made(plan(declared(), cut_world(pods=pods), NOW), PartitionChip)
    assert sorted(cut.chip for cut in cuts) == ["Ascend310P-0", "Ascend310P-1"]
    assert {cut.epoch for cut in cuts} == {1}


def test_a_refused_cut_is_not_repeated_at_once() -> None:
    issued = int(NOW * 1000) - 5000
    orders = Orders("n0", "1", 1, "r", "", issued, issued + 900_000, {}, {}, 1, {0: ("vir04",)})
    world = cut_world(pods=[asks("p", "4c")], orders=orders, done=1, result="refused: in use")
    assert not made(plan(declared(), world, NOW), PartitionChip)


def test_cuts_that_fail_repeatedly_wait() -> None:
    issued = int(NOW * 1000) - 400_000
    orders = Orders("n0", "1", 3, "r", "", issued, issued + 900_000, {}, {}, 3, {0: ("vir04",)})
    world = cut_world(pods=[asks("p", "4c")], orders=orders, done=3, result="failed: driver")
    tried = NodeMemory(vnpu_epoch=3, partitions=(issued - 900_000, issued - 500_000, issued))
    world = msgspec.structs.replace(world, history=msgspec.structs.replace(world.history, nodes={"n0": tried}))
    result = plan(declared(), world, NOW)
    assert not made(result, PartitionChip) and [d.budget for d in result.deferred] == ["attempts:partition"]
    assert "attempts of the node are used up" in (result.pending[0].unblock or "")
    assert result.history.nodes["n0"] == msgspec.structs.replace(tried, hardware=result.history.nodes["n0"].hardware)


def test_a_budget_defers_a_cut() -> None:
    budget = """\
apiVersion: belay.dev/v1alpha1
kind: SafetyBudget
metadata: {name: default}
spec: {limits: [{actions: [PartitionChip], per: cluster, max: 0, window: 1h}]}
"""
    result = plan(declared(extra=budget), cut_world(pods=[asks("p", "4c")]), NOW)
    assert not made(result, PartitionChip)
    assert [type(d.action).__name__ for d in result.deferred] == ["PartitionChip"]


def test_a_size_that_fits_is_bound_and_nothing_is_cut() -> None:
    world = cut_world((100, 0, "vir04", ""), pods=[asks("p", "4c")], offered={f"{RESOURCE}-4c": 1})
    result = plan(declared(), world, NOW)
    (bound,) = made(result, BindPod)
    assert (bound.node, bound.chips, bound.template) == ("n0", (), None) and not made(result, PartitionChip)


# ---- AI cores


def serving(name: str, chip: int, template: str, cores: int, *, node_name: str = "n0", **fields: Any) -> Pod:
    """A running pod of a Deployment of its own."""
    fields.setdefault("owner", ("ReplicaSet", f"rs-{name}"))
    return holds(name, node_name, chip, template, cores, group=0, owner_api="apps/v1", **fields)


def core_world(*pods: Pod, chips: int = 2, nodes: int = 1, objects: tuple[dict[str, Any], ...] = ()) -> Observed:
    names = [f"n{i}" for i in range(nodes)]
    owners = [
        {
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "spec": {"replicas": 1},
            "metadata": {"name": pod.owner_name, "namespace": pod.namespace, "uid": pod.owner_uid},
        }
        for pod in pods if pod.owner_kind == "ReplicaSet"
    ]  # fmt: skip
    return worlds.observed(
        [node(n, chips=chips) for n in names],
        [report(n, chips=chips) for n in names],
        pods,
        objects=[*owners, *objects],
        init_params={"presetVirtualDevice": "false"},
    )


def test_a_pod_is_moved_where_that_makes_room() -> None:
    world = core_world(serving("a", 0, "vir04_3c", 4), serving("b", 1, "vir02_1c", 2), wants("p", 8))
    result = plan(declared(), world, NOW)
    (moved,) = made(result, EvictPod)
    assert (moved.pod, moved.reason, moved.force) == ("b", "Moved", False)
    assert moved.evidence.rule == "VNPULayout/inference"
    assert moved.preconditions == Preconditions(uid="uid-train-b", node="n0")
    (entry,) = result.pending
    assert entry.reason == "Fragmented" and "moving train/b away from n0 chip 1" in (entry.unblock or "")
    assert result.history.jobs["train/Pod/p"].nominated == {"uid-train-b": int(NOW * 1000)}


def test_without_a_document_the_move_is_stated_and_not_made() -> None:
    world = core_world(serving("a", 0, "vir04_3c", 4), serving("b", 1, "vir02_1c", 2), wants("p", 8))
    result = plan(undeclared(), world, NOW)
    assert not made(result, EvictPod)
    (entry,) = result.pending
    assert entry.reason == "Fragmented"
    assert "moving train/b away from n0 chip 1 would free enough; with a VNPULayout in mode dynamic" in (
        entry.unblock or ""
    )


@pytest.mark.parametrize(
    "why", ["bare", "important", "starting", "no other place", "moved before", "job"]
)  # fmt: skip
def test_some_pods_are_never_moved(why: str) -> None:
    a, b = serving("a", 0, "vir04_3c", 4), serving("b", 1, "vir02_1c", 2)
    if why == "bare":
        b = serving("b", 1, "vir02_1c", 2, owner=None)
    elif why == "important":
        b = msgspec.structs.replace(b, priority=5)
    elif why == "starting":
        b = serving("b", 1, "vir02_1c", 2, real=False)
    elif why == "no other place":
        a = serving("a", 0, "", 8)
    elif why == "job":
        b = serving("b", 1, "vir02_1c", 2, owner=("Job", "j"))
    world = core_world(a, b, wants("p", 8))
    if why == "moved before":
        memory = JobMemory(uid="uid-train-rs-b", timeline=((int(NOW * 1000) - 60_000, "moved for train/Pod/q"),))
        history = msgspec.structs.replace(world.history, jobs={"train/ReplicaSet/rs-b": memory})
        world = msgspec.structs.replace(world, history=history)
    assert "b" not in [action.pod for action in made(plan(declared(), world, NOW), EvictPod)]


def test_disruption_budgets_are_kept() -> None:
    shield = {
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "all", "namespace": "train"},
        "spec": {"selector": {}, "maxUnavailable": 0}, "status": {"disruptionsAllowed": 0},
    }  # fmt: skip
    pods = (serving("a", 0, "vir04_3c", 4), serving("b", 1, "vir02_1c", 2), wants("p", 8))
    assert not made(plan(declared(), core_world(*pods, objects=(shield,)), NOW), EvictPod)


def test_terminating_pods_are_waited_for() -> None:
    leaving = serving("b", 1, "vir02_1c", 2, deleting=NOW)
    result = plan(declared(), core_world(serving("a", 0, "vir04_3c", 4), leaving, wants("p", 8)), NOW)
    assert not made(result, EvictPod) and "room is being made" in (result.pending[0].unblock or "")


def test_freed_cores_go_to_the_job_they_were_freed_for() -> None:
    a, b = serving("a", 0, "vir04_3c", 4), serving("b", 1, "vir02_1c", 2)
    first = plan(declared(), core_world(a, b, wants("p", 8)), NOW)
    leaving = msgspec.structs.replace(core_world(a, msgspec.structs.replace(b, deleting=NOW), wants("p", 8)))
    second = plan(declared(), msgspec.structs.replace(leaving, history=first.history), NOW + 1)
    assert not made(second, EvictPod) and not made(second, BindPod)
    again = wants("b2", 2, owner=("ReplicaSet", "rs-b"), owner_api="apps/v1", created=NOW - 9999)
    gone = msgspec.structs.replace(core_world(a, again, wants("p", 8)), history=second.history)
    third = plan(declared(), gone, NOW + 2)
    assert {bind.pod: bind.annotations[CORE] for bind in made(third, BindPod)} == {"p": "1", "b2": "0-vir02_1c"}


Pieces = list[tuple[int, str]]


def smallest(there: Pieces, cores: int) -> int | None:
    """The fewest movable vNPUs whose move lets the request and them fit on two chips, by trying every set."""
    names = {1: "vir01", 2: "vir02_1c", 4: "vir04_3c"}
    for count in range(4):
        for going in combinations(range(len(there)), count):
            left: dict[int, list[str]] = {0: [], 1: []}
            for index, (chip, name) in enumerate(there):
                if index not in going:
                    left[chip].append(name)
            for chip in (0, 1):
                if cores == 8:
                    if left[chip]:
                        continue
                    rest = {1 - chip: list(left[1 - chip])}
                else:
                    if not _fits(left[chip], names[cores]):
                        continue
                    rest = {0: list(left[0]), 1: list(left[1])}
                    rest[chip].append(names[cores])
                if _all_fit(rest, [there[index][1] for index in going]):
                    return count
    return None


def _fits(there: list[str], name: str) -> bool:
    return unfit_reason(CHIP, [ChipUse(SIZES[one]) for one in there], SIZES[name], vgroups=True) is None


def _all_fit(chips: dict[int, list[str]], names: list[str]) -> bool:
    if not names:
        return True
    for chip, there in chips.items():
        if _fits(there, names[0]) and _all_fit({**chips, chip: [*there, names[0]]}, names[1:]):
            return True
    return False


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 1), st.sampled_from(["vir01", "vir02_1c", "vir04_3c"])), max_size=6),
    st.sampled_from([2, 4, 8]),
)
def test_no_smaller_move_makes_room(there: Pieces, cores: int) -> None:
    pods: list[Pod] = []
    held: dict[int, list[str]] = {0: [], 1: []}
    kept: Pieces = []
    for index, (chip, name) in enumerate(there):
        if _fits(held[chip], name):
            held[chip].append(name)
            kept.append((chip, name))
            pods.append(
                msgspec.structs.replace(serving(f"h{index}", chip, name, SIZES[name].aicore), resource_version="1")
            )
    for pod in pods:  # names without vGroups: who shares one is the device plugin's choice
        real = pod.annotations["huawei.com/AscendReal"]
        pod.annotations["huawei.com/AscendReal"] = real.removesuffix("_0")
    result = plan(declared(), core_world(*pods, wants("p", cores)), NOW)
    least = smallest(kept, cores)
    moved = made(result, EvictPod)
    if least is None:
        assert not made(result, BindPod) and not moved
    elif least == 0:
        assert len(made(result, BindPod)) == 1 and not moved
    else:
        # the pass may refuse what needs a rearrangement of several pods at once, never take more than is needed
        assert not made(result, BindPod) and len(moved) in (0, least)
        assert moved or least > 1
