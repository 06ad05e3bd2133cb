"""vNPUs cut on demand: which template, on which chip of which node, and the messages of refusals.

Facts: docs/zh/scheduling/04_usage/02_virtual_instance; component/ascend-for-volcano/internal/npu/vnpu, plugin/vnode.go.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from belay.engine.documents import Desired
from belay.engine.load import load
from belay.engine.model.actions import DeleteObject
from belay.engine.plan import plan
from tests import worlds
from tests.placing import bindings, edited, nodes_of, scope_of
from tests.steps import Steps
from tests.vnpuworld import CHIPS, CORE, holds, node, observed, report, wants

NULL = "null"
POLICIES = Path(__file__).parents[1] / "policies"


def placed(
    *pods: Any,
    family: str = "310P",
    chips: int = 1,
    nodes: int = 1,
    desired: Desired | None = None,
    **fields: Any,
) -> Steps:
    names = [f"n{i}" for i in range(nodes)]
    return scope_of(
        observed(
            [node(n, family, chips=chips) for n in names],
            [report(n, family, chips=chips) for n in names],
            pods,
            **fields,
        ),
        desired=desired,
    )


def given(scope: Steps) -> dict[str, str]:
    return {name: action.annotations[CORE] for name, action in bindings(scope).items()}


@pytest.mark.parametrize(
    ("cores", "dvpp", "level", "template"),
    [
        (1, "", "", "vir01"), (1, NULL, "high", "vir01"),
        (2, "", "", "vir02_1c"), (2, NULL, "low", "vir02_1c"), (2, "", "high", "vir02"), (2, "", "odd", "vir02_1c"),
        (4, "yes", "", "vir04_4c_dvpp"), (4, "yes", "high", "vir04_4c_dvpp"),
        (4, "no", "low", "vir04_3c_ndvpp"), (4, "no", "high", "vir04_3c_ndvpp"),
        (4, "", "low", "vir04_3c"), (4, NULL, "high", "vir04"),
    ],
)  # fmt: skip
def test_templates_of_a_310p(cores: int, dvpp: str, level: str, template: str) -> None:
    scope = placed(wants("p", cores, dvpp=dvpp, level=level))
    (bound,) = bindings(scope).values()
    assert (bound.template, bound.chips, bound.annotations[CORE]) == (template, ("Ascend310P-0",), f"0-{template}")
    assert bound.annotations["distributed-job"] == "false" and bound.annotations["predicate-time"].isdecimal()
    assert not {"huawei.com/AscendReal", "huawei.com/Ascend310P"} & bound.annotations.keys()
    assert scope.scores == {"train/p": {"n0": 8}}


@pytest.mark.parametrize(
    ("family", "cores", "dvpp", "template"),
    [
        ("910B1", 6, "", "vir06_1c_16g"), ("910B1", 12, "", "vir12_3c_32g"),
        ("910B2", 6, "", "vir06_1c_16g"), ("910B2C", 12, NULL, "vir12_3c_32g"),
        ("910B3", 5, "", "vir05_1c_16g"), ("910B3", 10, "", "vir10_3c_32g"),
        ("910B4-1", 5, "", "vir05_1c_16g"), ("910B4-1", 10, "", "vir10_3c_32g"),
        ("910B4", 5, "", "vir05_1c_8g"), ("910B4", 10, "", "vir10_3c_16g"), ("910B4", 10, "no", "vir10_3c_16g_nm"),
        ("910B4", 10, "yes", "vir10_4c_16g_m"),
        ("A3-20", 5, "", "vir05_1c_16g"), ("A3-20", 10, "", "vir10_3c_32g"),
        ("A3-24", 6, "", "vir06_1c_16g"), ("A3-24", 12, "", "vir12_3c_32g"),
    ],
)  # fmt: skip
def test_templates_of_the_910_families(family: str, cores: int, dvpp: str, template: str) -> None:
    scope = placed(wants("p", cores, family, dvpp=dvpp), family=family, chips=2)
    assert given(scope) == {"p": f"0-{template}"}


@pytest.mark.parametrize("family", sorted(CHIPS))
@pytest.mark.parametrize("count", [1, 2])
def test_a_multiple_of_a_chip_takes_whole_chips(family: str, count: int) -> None:
    cores = CHIPS[family][2]
    scope = placed(wants("p", count * cores, family), family=family, chips=3)
    (bound,) = bindings(scope).values()
    assert bound.annotations[CORE] == ",".join(str(chip) for chip in range(count))
    assert bound.template is None and len(bound.chips) == count


@pytest.mark.parametrize(
    ("family", "cores", "labels", "words"),
    [
        ("310P", 3, {}, "get virTemplate is null"), ("310P", 5, {}, "get virTemplate is null"),
        ("310P", 4, {"dvpp": "maybe"}, "err dvpp value:maybe"), ("910B3", 5, {"dvpp": "on"}, "err dvpp value:on"),
        ("310P", 1, {"dvpp": "yes"}, "p req 1 ai-core, but dvpp label is:yes"),
        ("310P", 2, {"dvpp": "no"}, "p req 2 ai-core, but dvpp label is:no"),
        ("910B1", 3, {}, "p req err 3"), ("910B3", 7, {}, "p req err 7"), ("910B3", 6, {}, "p req err 6"),
        ("910B2", 5, {}, "p req err 5"), ("910B1", 24, {}, "p req err 24"),
        ("910B3", 5, {"level": "high"}, "but cpu level is:high"),
        ("910B4", 5, {"dvpp": "yes"}, "but dvpp label is:yes"),
        ("A3-20", 10, {"dvpp": "no"}, "but dvpp label is:no"),
        ("310P-10", 8, {}, "get virTemplate is null"),
    ],
)  # fmt: skip
def test_requests_that_no_chip_can_serve_are_refused_in_known_words(
    family: str, cores: int, labels: dict[str, str], words: str
) -> None:
    scope = placed(wants("p", cores, family, **labels), family=family)
    (entry,) = scope.pending
    assert entry.reason == "InvalidRequest" and words in entry.message and not bindings(scope)
    # its way out, carried out as values, leads to a placed pod; the node may know better than all families together
    pod, rounds = wants("p", cores, family, **labels), 0
    while waiting := placed(pod, family=family).pending:
        remedy, rounds = waiting[0].remedy, rounds + 1
        assert remedy is not None and rounds <= 3, waiting[0]
        pod = wants("p", remedy.count or pod.count, family, labels={**pod.labels, **remedy.values})


def test_level_and_dvpp_are_free_for_ten_cores_of_a_910b4() -> None:
    assert given(placed(wants("p", 10, "910B4", level="high", dvpp="no"), family="910B4")) == {"p": "0-vir10_3c_16g_nm"}


@pytest.mark.parametrize("kind", ["", "ascend-npu", "ascend-310"])
def test_without_a_kind_of_chips_there_is_no_handler(kind: str) -> None:
    (entry,) = placed(wants("p", 2, kind=kind)).pending
    assert entry.reason == "NotSupportPolicy" and "no policy handler registered" in entry.message


def test_the_setting_for_static_vnpus_refuses_dynamic_ones() -> None:
    (entry,) = placed(wants("p", 2), init_params={"presetVirtualDevice": "true"}).pending
    assert entry.reason == "InvalidRequest" and "only support static vnpu" in entry.message
    assert "presetVirtualDevice: true" in entry.message and 'presetVirtualDevice: "false"' in entry.unblock


def test_a_job_of_the_other_kind_finds_no_node() -> None:
    (entry,) = placed(wants("p", 5, "910B3")).pending
    assert (entry.reason, entry.nodes) == ("NPUResourceShortage", {"NPUResourceMissing": 1})


@pytest.mark.parametrize(
    ("there", "cores", "level", "expected"),
    [
        ([("vir04", 4)], 4, "high", "0-vir04_3c"),  # 4 AI CPUs taken, 3 left
        ([("vir02", 2), ("vir02", 2), ("vir02", 2)], 2, "high", "0-vir02_1c"),
        ([("vir04", 4)], 2, "high", "0-vir02"),
        ([("vir04_4c_dvpp", 4)], 4, "high", None),  # its DVPP is taken
    ],
)
def test_a_chip_short_of_ai_cpus_gives_a_template_with_fewer(
    there: list[tuple[str, int]], cores: int, level: str, expected: str | None
) -> None:
    held = [holds(f"h{i}", "n0", 0, t, c, group=i, number=100 + i) for i, (t, c) in enumerate(there)]
    scope = placed(*held, wants("p", cores, level=level))
    assert given(scope) == ({"p": expected} if expected else {})


def test_a_media_job_is_never_given_less() -> None:
    (entry,) = placed(holds("h", "n0", 0, "vir04", 4, group=0), wants("p", 4, dvpp="yes", level="high")).pending
    assert entry.reason == "Fragmented" or entry.reason == "NPUResourceShortage"


@pytest.mark.parametrize(
    ("there", "cores", "dvpp", "fits"),
    [
        ([("vir04_4c_dvpp", 4)], 4, "no", True), ([("vir04_4c_dvpp", 4)], 4, "", False),
        ([("vir04_4c_dvpp", 4)], 1, "", False), ([("vir04_3c_ndvpp", 4)], 4, "yes", True),
        ([("vir04_3c_ndvpp", 4)], 4, "", True), ([("vir01", 1)], 4, "yes", False), ([("vir01", 1)], 4, "no", True),
    ],
)  # fmt: skip
def test_dvpp_decides_which_vnpus_share_a_chip(there: list[tuple[str, int]], cores: int, dvpp: str, fits: bool) -> None:
    held = [holds(f"h{i}", "n0", 0, t, c, group=i, number=100 + i) for i, (t, c) in enumerate(there)]
    scope = placed(*held, wants("p", cores, dvpp=dvpp))
    assert bool(bindings(scope)) is fits
    assert fits or "its DVPP is in use" in scope.pending[0].message


@pytest.mark.parametrize(
    ("groups", "cores", "fits"),
    [
        ([0, 1, 2], 4, False), ([0, 1, 2], 2, True), ([0, 1, 2, 3], 2, False), ([0, 1, 2, 3], 1, True),
        ([0, 0, 1], 4, True),
    ],
)  # fmt: skip
def test_vgroups_in_use_limit_what_is_cut_next(groups: list[int], cores: int, fits: bool) -> None:
    held = [holds(f"h{i}", "n0", 0, "vir01", 1, group=g, number=100 + i) for i, g in enumerate(groups)]
    scope = placed(*held, wants("p", cores))
    assert bool(bindings(scope)) is fits
    assert fits or f"{len(groups)} vGroups in use" in scope.pending[0].message


def test_the_chip_with_the_least_left_is_filled_first() -> None:
    held = [holds("a", "n0", 1, "vir02_1c", 2, group=0), holds("b", "n0", 2, "vir04_3c", 4, group=0)]
    assert given(placed(*held, wants("p", 2), chips=4)) == {"p": "2-vir02_1c"}
    assert given(placed(*held, wants("p", 4), chips=4)) == {"p": "2-vir04_3c"}
    assert given(placed(*held, wants("p", 8), chips=4)) == {"p": "0"}


def test_a_chip_where_a_vnpu_is_being_made_waits() -> None:
    held = holds("a", "n0", 0, "vir02_1c", 2, real=False)
    assert given(placed(held, wants("p", 2), chips=2)) == {"p": "1-vir02_1c"}
    (entry,) = placed(held, wants("p", 2)).pending
    assert (entry.reason, entry.nodes) == ("VNPUInFlight", {"VNPUInFlight": 1})


def test_a_node_makes_one_template_at_a_time() -> None:
    held = holds("a", "n0", 0, "vir02_1c", 2, real=False)
    for pod in (wants("p", 1), wants("p", 8)):
        (entry,) = placed(held, pod, chips=3).pending
        assert entry.nodes == {"VNPUInFlight": 1}, entry
    settled = holds("a", "n0", 0, "vir02_1c", 2)
    assert bindings(placed(settled, wants("p", 1), chips=3))


def test_pods_of_one_pass_share_a_chip_when_they_want_the_same() -> None:
    scope = placed(*(wants(f"p{i}", 1, created=worlds.NOW - 100 + i) for i in range(8)), chips=1)
    assert set(given(scope).values()) == {"0-vir01"} and len(given(scope)) == 7
    assert scope.pending[0].name == "p7"
    two = placed(wants("a", 1, created=worlds.NOW - 9), wants("b", 2, created=worlds.NOW - 5), nodes=2)
    assert nodes_of(two) == {"a": "n0", "b": "n1"}, "another template goes to another node"


def test_the_node_with_the_fewest_idle_cores_is_best() -> None:
    held = [holds("a", "n1", 0, "vir02_1c", 2, group=0), holds("b", "n2", 0, "vir04_3c", 4, group=0)]
    scope = placed(*held, wants("p", 2), nodes=3)
    assert scope.scores == {"train/p": {"n0": 0, "n1": 0, "n2": 8}} and nodes_of(scope) == {"p": "n2"}
    assert placed(wants("p", 2), nodes=2).scores == {"train/p": {"n0": 8, "n1": 0}}, "ties by name"


def test_a_node_that_gives_what_was_asked_for_beats_those_that_give_less() -> None:
    held = [holds("a", "n1", 0, "vir04", 4, group=0), holds("b", "n2", 0, "vir04", 4, group=0)]
    scope = placed(*held, wants("p", 4, level="high"), nodes=4)
    assert scope.scores == {"train/p": {"n0": 16, "n1": 8, "n2": 8, "n3": 0}}
    assert nodes_of(scope) == {"p": "n0"} and given(scope) == {"p": "0-vir04"}


def test_whole_chips_need_uncut_ones() -> None:
    held = [holds("a", "n0", 0, "vir01", 1, group=0), holds("b", "n0", "1,2", "", 16)]
    assert given(placed(*held, wants("p", 16), chips=5)) == {"p": "3,4"}
    (entry,) = placed(*held, wants("p", 16), chips=4).pending
    assert entry.reason == "NPUResourceShortage"


def test_broken_chips_are_not_cut() -> None:
    scope = scope_of(observed([node("n0", chips=2)], [report("n0", chips=2, unhealthy=[0])], [wants("p", 2)]))
    assert given(scope) == {"p": "1-vir02_1c"}


def test_kubernetes_count_comes_first() -> None:
    (entry,) = placed(holds("a", "n0", 0, "vir04", 4, group=0), wants("p", 8)).pending
    assert "NPUResourceShortage: huawei.com/npu-core, task requires 8 NPU cards but node idle is 4" in entry.message


@pytest.mark.parametrize(
    "labels", [{"servertype": "Ascend310P-10"}, {"servertype": "Ascend310P-9"}, {"servertype": "Ascend910-30",
               "node.kubernetes.io/npu.chip.name": "910A"}],
)  # fmt: skip
def test_a_node_whose_label_contradicts_its_cores_is_refused(labels: dict[str, str]) -> None:
    scope = scope_of(observed([node("n0", labels=labels)], [report("n0")], [wants("p", 2)]))
    (entry,) = scope.pending
    assert entry.nodes == {"VNPUNodeInvalid": 1} and "invalid VNode" in entry.message


def test_a_product_without_vnpus_gets_none_and_the_reason_names_it() -> None:
    """Whatever the templates of its chips allow."""
    product = yaml.safe_load((POLICIES / "products/atlas-800t-a2.yaml").read_text())
    product["spec"]["vnpu"] = {"static": False, "dynamic": False, "soft": False}
    files = {"policies/product.yaml": yaml.safe_dump(product).encode()}
    desired = load(files, revision="r").desired
    assert given(placed(wants("p", 10, "910B3"), family="910B3"))
    scope = placed(wants("p", 10, "910B3"), family="910B3", desired=desired)
    assert not given(scope)
    assert "chips of Atlas 800T A2, Atlas 900 A2 PoD" in scope.pending[0].message
    assert "cannot be cut on demand" in scope.pending[0].message


def test_a_200i_soc_a1_is_not_cut_on_demand() -> None:
    world = observed([node("n0", labels={"servertype": "soc"})], [report("n0")], [wants("p", 2)])
    scope = scope_of(world)
    assert not given(scope) and "Atlas 200I SoC A1 cannot be cut on demand" in scope.pending[0].message


def test_a_gang_of_vnpus_is_placed_whole_or_not_at_all() -> None:
    from tests.placing import gang

    pods, group = gang(3, 4, resource=CORE, labels={"ring-controller.atlas": "ascend-310P"})
    nodes, reports = [node("n0", chips=1)], [report("n0", chips=1)]
    scope = scope_of(observed(nodes, reports, pods, objects=[group]))
    assert not bindings(scope) and scope.pending[0].kind == "PodGroup" and not scope.scores
    nodes, reports = [node("n0", chips=2)], [report("n0", chips=2)]
    scope = scope_of(observed(nodes, reports, pods, objects=[group]))
    assert sorted(given(scope).values()) == ["0-vir04_3c", "0-vir04_3c", "1-vir04_3c"]
    assert {a.annotations["distributed-job"] for a in bindings(scope).values()} == {"true"}
    times = [a.annotations["predicate-time"] for a in bindings(scope).values()]
    assert len(set(times)) == 3, "the device plugin serves them one after the other"


def test_terminating_pods_hold_their_vnpu_and_finished_ones_do_not() -> None:
    leaving = holds("a", "n0", 0, "vir04", 4, group=0, deleting=worlds.NOW)
    assert not bindings(placed(leaving, wants("p", 4, dvpp="yes")))
    done = holds("a", "n0", 0, "vir04", 4, group=0, phase="Succeeded")
    assert bindings(placed(done, wants("p", 4, dvpp="yes")))


def refused(name: str, **fields: Any) -> Any:
    pod = holds(name, "n0", 0, "vir02_1c", 2, real=False, phase="Failed", owner=("ReplicaSet", "rs"), **fields)
    return edited(pod, reason="UnexpectedAdmissionError", owner_api="apps/v1")


def test_a_pod_whose_vnpu_could_not_be_cut_is_deleted_a_limited_number_of_times() -> None:
    world = observed([node("n0")], [report("n0")], [refused("a")])
    first = plan(load({}, has_git=False).desired, world, worlds.NOW)
    (gone,) = first.actions
    assert isinstance(gone, DeleteObject) and (gone.name, gone.reason) == ("a", "SegmentFailed")
    history = first.history
    for attempt in range(4):
        world = msgspec.structs.replace(
            observed([node("n0")], [report("n0")], [refused("a", uid=f"u{attempt}")]), history=history
        )
        result = plan(load({}, has_git=False).desired, world, worlds.NOW + attempt)
        history = result.history
        assert bool(result.actions) is (attempt < 2), "three attempts within the window"


def test_other_failed_pods_are_left_to_their_owners() -> None:
    evicted, bare = edited(refused("a"), reason="Evicted"), edited(refused("b"), owner_kind="")
    for pod in (evicted, bare, edited(refused("c"), deleting=worlds.NOW)):
        world = observed([node("n0")], [report("n0")], [pod])
        assert plan(load({}, has_git=False).desired, world, worlds.NOW).actions == ()
