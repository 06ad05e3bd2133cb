"""What fits on one chip, and the way from its vNPUs to the wanted ones.

Facts: docs/zh/scheduling/04_usage/02_virtual_instance.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belay.engine.model.vnpu import ChipCapacity, ExistingVNPU, TemplateSize, change, cores, unfit

CHIP = ChipCapacity(8, 7, 24576, {"vpc": 12}, 7)
SIZES = {
    "vir01": TemplateSize("vir01", 1, 1, 3072, {"vpc": 1}),
    "vir02": TemplateSize("vir02", 2, 2, 6144, {"vpc": 3}),
    "vir02_1c": TemplateSize("vir02_1c", 2, 1, 6144, {"vpc": 3}),
    "vir04": TemplateSize("vir04", 4, 4, 12288, {"vpc": 6}),
    "vir04_3c": TemplateSize("vir04_3c", 4, 3, 12288, {"vpc": 6}),
    "vir04_3c_ndvpp": TemplateSize("vir04_3c_ndvpp", 4, 3, 12288, {}, "no"),
    "vir04_4c_dvpp": TemplateSize("vir04_4c_dvpp", 4, 4, 12288, {"vpc": 12}, "yes"),
}


@pytest.mark.parametrize(
    ("templates", "fits"),
    [
        (["vir01"] * 7, True),
        (["vir01"] * 8, False),
        (["vir02_1c"] * 4, True),
        (["vir02"] * 3 + ["vir01"], True),
        (["vir04_3c"] * 2, True),
        (["vir04", "vir04_3c"], True),
        (["vir04", "vir04"], False),
        (["vir04_4c_dvpp", "vir04_3c_ndvpp"], True),
        (["vir04_4c_dvpp", "vir04_3c"], False),
        (["vir01"] * 6 + ["vir02_1c"], True),
    ],
)
def test_the_documented_combinations_of_a_310p(templates: list[str], fits: bool) -> None:
    assert (unfit(CHIP, [SIZES[t] for t in templates]) is None) is fits


def test_nothing_changes_when_the_chip_matches() -> None:
    assert not change([ExistingVNPU(100, "vir02", True), ExistingVNPU(101, "vir04", False)], ["vir04", "vir02"]).needed


def test_larger_pieces_are_created_first() -> None:
    assert change([], ["vir01", "vir04_3c", "vir02"]).create == ("vir04_3c", "vir02", "vir01")


def test_a_busy_vnpu_is_kept_before_an_idle_one_of_its_size() -> None:
    step = change([ExistingVNPU(100, "vir02", False), ExistingVNPU(101, "vir02", True)], ["vir02"])
    assert (step.destroy, step.blocked, step.create) == ((100,), (), ())


def test_a_busy_surplus_blocks() -> None:
    assert change([ExistingVNPU(100, "vir04", True)], ["vir02", "vir02"]).blocked == (100,)


@given(
    st.lists(st.tuples(st.sampled_from(sorted(SIZES)), st.booleans()), max_size=7),
    st.lists(st.sampled_from(sorted(SIZES)), max_size=7),
)
def test_changes_lead_to_the_wanted_vnpus_and_never_touch_a_busy_one(
    have: list[tuple[str, bool]], wanted: list[str]
) -> None:
    existing = [ExistingVNPU(100 + i, template, busy) for i, (template, busy) in enumerate(have)]
    step = change(existing, wanted)
    busy = {v.id for v in existing if v.busy}
    assert not busy & set(step.destroy)
    if not step.blocked:
        left = [v.template for v in existing if v.id not in step.destroy]
        assert sorted([*left, *step.create]) == sorted(wanted)


def test_cores_of_a_template() -> None:
    assert [cores(t) for t in ("vir02_1c", "vir12_3c_32g", "odd")] == [2, 12, 0]
