"""vNPUs over time: pushed to Git, cut, given to pods, moved and cut again, until nothing changes."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from belay.engine.model.actions import kind_of
from tests.golden.stories import compare
from tests.vnpusim import CORE, LAYOUT, VNPUWorld, deployment

SIZE = "huawei.com/Ascend310P-"
LAYOUT_FILE = "desired/layout.yaml"


def test_a_pod_with_ai_cores_gets_its_vnpu_cut_on_demand(update_golden: bool) -> None:
    world = VNPUWorld({"desired/a.yaml": deployment("small", CORE, 2)}, {"n0": 2}, on_demand=["n0"])
    world.until_quiet()
    compare("vnpu-on-demand", world.story, update_golden)
    assert world.serves("small") == 1 and [v.template for v in world.nodes["n0"].vnpus] == ["vir02_1c"]


def test_a_size_by_name_is_cut_when_a_pod_asks_for_it(update_golden: bool) -> None:
    files = {LAYOUT_FILE: LAYOUT, "desired/a.yaml": deployment("big", f"{SIZE}4c.3cpu", replicas=3)}
    world = VNPUWorld(files, {"n0": 2})
    world.until_quiet()
    compare("vnpu-by-name", world.story, update_golden)
    assert world.serves("big") == 3
    world.story.clear()
    world.push({LAYOUT_FILE: LAYOUT, "desired/b.yaml": deployment("many", f"{SIZE}1c", replicas=9)})
    world.until_quiet()
    compare("vnpu-cut-again", world.story, update_golden)
    assert world.serves("many") == 9 and world.serves("big") == 0


def test_a_small_pod_moves_so_that_a_large_one_fits(update_golden: bool) -> None:
    files = {
        LAYOUT_FILE: LAYOUT,
        "desired/a.yaml": deployment("a", CORE, 4),
        "desired/b.yaml": deployment("b", CORE, 4),
    }
    world = VNPUWorld(files, {"n0": 2}, on_demand=["n0"])
    world.until_quiet()
    assert len({v.chip for v in world.nodes["n0"].vnpus}) == 1, "they share a chip"
    files["desired/c.yaml"] = deployment("c", CORE, 2)
    world.push(files)
    world.until_quiet()
    del files["desired/a.yaml"]
    world.push(files)
    world.until_quiet()
    world.story.clear()
    world.push(files | {"desired/whole.yaml": deployment("whole", CORE, 8)})
    world.until_quiet()
    compare("vnpu-moved", world.story, update_golden)
    assert [world.serves(name) for name in ("b", "c", "whole")] == [1, 1, 1]
    assert len(world.disruptions) == 1


def test_without_the_document_no_pod_moves() -> None:
    files = {"desired/a.yaml": deployment("a", CORE, 4), "desired/b.yaml": deployment("b", CORE, 4)}
    world = VNPUWorld(files, {"n0": 2}, on_demand=["n0"])
    world.until_quiet()
    files["desired/c.yaml"] = deployment("c", CORE, 2)
    world.push(files)
    world.until_quiet()
    del files["desired/a.yaml"]
    world.push(files | {"desired/whole.yaml": deployment("whole", CORE, 8)})
    last = world.until_quiet()[-1]
    assert world.disruptions == [] and world.serves("whole") == 0
    assert "VNPULayout in mode dynamic" in (last.pending[0].unblock or "")


workload = st.tuples(st.sampled_from([1, 2, 4, 8]), st.integers(1, 3), st.sampled_from(["low", "high"]))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.lists(workload, max_size=4), min_size=1, max_size=3), st.booleans(), st.integers(0, 99))
def test_random_requests_never_overfill_a_chip_and_converge(
    histories: list[list[tuple[int, int, str]]], declared: bool, seed: int
) -> None:
    world = VNPUWorld({}, {"n0": 2, "n1": 1}, on_demand=["n0", "n1"], seed=seed)
    for step in histories:
        files = {LAYOUT_FILE: LAYOUT} if declared else {}
        for index, (cores, replicas, level) in enumerate(step):
            files[f"desired/{index}.yaml"] = deployment(
                f"d{index}", CORE, cores, replicas=replicas, labels={"vnpu-level": level}
            )
        world.push(files)
        last = world.until_quiet(some=0.8)[-1]
        assert [kind_of(action) for action in last.actions] == []
    assert declared or not any(name == "EvictPod" for _, name, _ in world.disruptions)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from(["1c", "2c", "2c.1cpu", "4c", "4c.3cpu"]), st.integers(1, 3)), max_size=3),
        min_size=1, max_size=3,
    ),
    st.integers(0, 99),
)  # fmt: skip
def test_sizes_by_name_converge_and_no_vnpu_in_use_is_destroyed(
    histories: list[list[tuple[str, int]]], seed: int
) -> None:
    world = VNPUWorld({}, {"n0": 2, "n1": 1}, seed=seed)
    for step in histories:
        files = {LAYOUT_FILE: LAYOUT}
        for index, (suffix, replicas) in enumerate(step):
            files[f"desired/{index}.yaml"] = deployment(f"d{index}", f"{SIZE}{suffix}", replicas=replicas)
        world.push(files)
        last = world.until_quiet(some=0.8)[-1]
        assert last.actions == ()
