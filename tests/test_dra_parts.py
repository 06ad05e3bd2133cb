"""Parts of chips for claims: what the driver offers with shared counters, and how it cuts chips and gives them back."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import grpc
import pytest

from agents.dra.devices import CounterForm, devices, slices
from agents.dra.parts import ChipParts, chip_parts, parts_of
from agents.drivers.base import Chip, DriverError, Machine
from agents.drivers.server_models import SERVER_MODELS, SIZES_310P, TOTALS_310P, machine
from engine.model import quantities
from engine.model.vnpu import ChipCapacity, TemplateSize, unfit
from tests import listing
from tests.test_dra_driver import DraNode, ResourceApi
from tests.test_dra_placement import CLASS, asking, claim, gang, given

PRO = SERVER_MODELS["atlas-300i-pro"]
CORE = "huawei.com/npu-core"


def play(story: Any, counters: str = "beside") -> None:
    async def whole() -> None:
        async with DraNode(ResourceApi(counters=counters), PRO, preset=False) as node:
            for number in range(100, 110):
                (node.root / f"dev/vdavinci{number}").touch()
            await story(node)

    asyncio.run(whole())


async def cut(node: DraNode) -> list[tuple[int, str]]:
    return [(vnpu.chip, vnpu.template) for vnpu in await node.driver.vnpus()]


def fits(parts: ChipParts, chosen: Counter[str]) -> bool:
    """Whether the shared counters of one chip allow so many parts of each template."""
    left = {name: quantities.parse(text) or Fraction(0) for name, text in parts.totals.items()}
    for template, count in chosen.items():
        own = [part for part in parts.parts if part.template == template]
        if len(own) < count:
            return False
        for part in own[:count]:
            for name, text in part.consumes.items():
                left[name] -= quantities.parse(text) or Fraction(0)
    return all(amount >= 0 for amount in left.values())


def test_counters_allow_exactly_the_parts_that_fit_on_a_chip() -> None:
    """All combinations of up to four templates, beside the rule by which planner and agent cut chips."""
    media = TemplateSize("vir04_4c_dvpp", 4, 4, 12288, TOTALS_310P.dvpp, "yes")
    plain = TemplateSize("vir04_3c_ndvpp", 4, 3, 12288, {}, "no")
    sizes = [*SIZES_310P.values(), media, plain]
    parts = chip_parts(TOTALS_310P, sizes)
    seen = 0
    for count in range(1, 5):
        for chosen in itertools.combinations_with_replacement(sizes, count):
            wanted = unfit(TOTALS_310P, chosen) is None
            assert fits(parts, Counter(size.name for size in chosen)) == wanted, [size.name for size in chosen]
            seen += wanted
    assert seen > 40
    whole = chip_parts(ChipCapacity(20, 6, 32768), [TemplateSize("vir20", 20, 6, 32768)])
    assert [part.name for part in whole.parts] == ["vir20-0"] and whole.totals["memory"] == "32768Mi"


def test_names_and_numbers_are_those_that_the_api_takes() -> None:
    parts = parts_of(PRO.machine)
    assert parts is not None and {"vir01", "vir02_1c", "vir04_4c_dvpp"} <= {part.template for part in parts.parts}
    names = [part.name for part in parts.parts]
    assert len(set(names)) == len(names) and all(name.replace("-", "").isalnum() and name.islower() for name in names)
    assert all(name.replace("-", "").isalpha() and name.islower() for name in parts.totals)
    assert len(parts.totals) <= 32 and len(names) < 64
    assert parts_of(machine("huawei.com/Ascend910", "910")) is None, "the first generation is not cut as pods need it"
    b3 = parts_of(machine("huawei.com/Ascend910", "910B3"))
    assert b3 is not None and b3.totals == {"ai-cores": "20", "ai-cpus": "6", "memory": "65536Mi"}
    ten = parts_of(machine("huawei.com/Ascend310P", "310P1"))
    assert ten is not None and ten.totals["ai-cores"] == "10", "by the server type, Ascend310P-10"


@pytest.mark.parametrize("form", list(CounterForm))
def test_slices_of_each_form(form: CounterForm) -> None:
    chips = [Chip(id=n, logic_id=n, card=n) for n in range(10)]
    node: Machine = PRO.machine
    found = devices(node, chips, [], (), parts_of(node))
    bodies = [body["spec"] for body in slices("n", None, found, 3, "v1", taints=True, counters=form)]
    assert all(spec["pool"]["resourceSliceCount"] == len(bodies) for spec in bodies)
    named = [one for spec in bodies for one in spec.get("devices", ())]
    assert len({one["name"] for one in named}) == len(named)
    whole = [one for one in named if one["attributes"]["type"] == {"string": "npu"}]
    assert len(whole) == 10
    if form is CounterForm.NOWHERE:
        assert named == whole and not any("consumesCounters" in one for one in named)
        return
    sets = {row["name"]: row["counters"] for spec in bodies for row in spec.get("sharedCounters", ())}
    assert sets.keys() == {f"chip-{n}" for n in range(10)}
    for one in whole:
        (consumed,) = one["consumesCounters"]
        assert consumed["counters"] == sets[consumed["counterSet"]], "a whole chip takes all of its counters"
    assert {len(one["consumesCounters"]) for one in named} == {1}
    part = next(one for one in named if one["name"] == "ascend310p-3-vnpu-vir02-1c-2")
    assert part["attributes"]["template"] == {"string": "vir02_1c"}
    assert part["capacity"] == {"memory": {"value": "6144Mi"}, "aiCores": {"value": "2"}}
    assert part["consumesCounters"][0]["counterSet"] == "chip-3"


@pytest.mark.parametrize(("counters", "cuts"), [("beside", True), ("apart", True), ("", False)])
def test_parts_are_offered_where_the_api_server_keeps_their_counters(counters: str, cuts: bool) -> None:
    async def story(node: DraNode) -> None:
        await node.until(lambda: "ascend310p-0" in node.api.names())
        await node.until(lambda: any("-vnpu-" in name for name in node.api.names()) == cuts)
        assert ("ascend310p-0-vnpu-vir04-0" in node.api.names()) == cuts
        assert not any(name.endswith("-try") for name in node.api.slices), "trying writes nothing"
        used = {row["counterSet"] for body in node.api.slices.values() for one in body["spec"].get("devices") or ()
                for row in one.get("consumesCounters") or ()}  # fmt: skip
        assert bool(used) == cuts

    play(story, counters)


def test_a_chip_is_cut_when_a_claim_gets_a_part_and_whole_again_afterwards() -> None:
    async def story(node: DraNode) -> None:
        node.api.allocate("a", "ascend310p-0-vnpu-vir02-0")
        node.api.allocate("b", "ascend310p-0-vnpu-vir02-1", "ascend310p-0-vnpu-vir01-0")
        answers = await node.prepare("a", "b")
        assert not answers["a"].error and not answers["b"].error
        assert sorted(await cut(node)) == [(0, "vir01"), (0, "vir02"), (0, "vir02")]
        again = await node.prepare("a", "b")
        assert {name: list(one.devices) for name, one in again.items()} == {
            name: list(one.devices) for name, one in answers.items()
        }, "kubelet may ask again"
        assert len(await cut(node)) == 3
        given = [one["containerEdits"]["deviceNodes"][0] for name in "ab" for one in node.cdi(name)["devices"]]
        assert len({one["hostPath"] for one in given}) == 3 and all("vdavinci" in one["hostPath"] for one in given)
        for name, device in (("whole", "ascend310p-0"), ("same", "ascend310p-0-vnpu-vir02-1")):
            node.api.allocate(name, device)
            assert "holds it" in (await node.prepare(name))[name].error
        assert not (await node.unprepare("a"))["a"].error
        assert sorted(await cut(node)) == [(0, "vir01"), (0, "vir02")] and set(node.dra.claims.held) == {0}
        assert not (await node.unprepare("b"))["b"].error
        assert await cut(node) == [] and not node.dra.claims.held
        assert not (await node.prepare("whole"))["whole"].error

    play(story)


def test_the_device_plugin_neither_gives_nor_tidies_chips_that_are_cut_for_claims() -> None:
    async def story(node: DraNode) -> None:
        node.api.allocate("a", "ascend310p-0-vnpu-vir02-0")
        assert not (await node.prepare("a"))["a"].error
        taker = node.pod("taker", ["0-vir01"], resource=CORE, count=1)
        await node.seen("taker")
        with pytest.raises(grpc.aio.AioRpcError, match="train/a"):
            await node.kubelet.admit(taker, CORE)
        node.finish("taker")
        assert node.plugin.allocator is not None
        await node.plugin.allocator.tidy()
        assert await cut(node) == [(0, "vir02")], "an unused vNPU would be destroyed"
        await node.crash()
        await node.boot()
        await node.plugin.allocator.tidy()
        assert await cut(node) == [(0, "vir02")], "nor by an agent that has just begun"
        assert not (await node.unprepare("a"))["a"].error
        other = node.pod("other", ["0-vir01"], resource=CORE, count=1, time=2)
        await node.seen("other")
        await node.kubelet.admit(other, CORE)
        await node.until(lambda: node.agent.state is not None and bool(node.agent.state.users.of([0])))
        node.api.allocate("late", "ascend310p-0-vnpu-vir02-0")
        assert "pod default/other holds it" in (await node.prepare("late"))["late"].error

    play(story)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_agent_that_ends_while_it_cuts_leaves_no_vnpu_behind(moment: str) -> None:
    async def story(node: DraNode) -> None:
        create = node.driver.create_vnpu

        async def dies(chip: int, template: str) -> Any:
            if moment == "after":
                await create(chip, template)
            raise asyncio.CancelledError

        node.driver.create_vnpu = dies
        node.api.allocate("a", "ascend310p-0-vnpu-vir02-0")
        with pytest.raises(asyncio.CancelledError):
            await node.dra._prepare("train", "a", "u-a")
        await node.crash()
        node.driver.create_vnpu = create
        await node.boot()
        assert set(node.dra.claims.held) == {0}, "the claim is on the disk before the chip is cut"
        assert not (await node.prepare("a"))["a"].error
        assert await cut(node) == [(0, "vir02")], "what was cut is taken, not cut again"
        assert not (await node.unprepare("a"))["a"].error
        assert await cut(node) == []

    play(story)


def test_after_a_reboot_the_chip_is_cut_again_and_a_driver_that_refuses_is_said() -> None:
    async def story(node: DraNode) -> None:
        node.api.allocate("a", "ascend310p-0-vnpu-vir02-0")
        assert not (await node.prepare("a"))["a"].error
        node.driver._vnpus.clear()
        assert not (await node.prepare("a"))["a"].error
        assert await cut(node) == [(0, "vir02")]
        node.driver._vnpus.clear()
        create = node.driver.create_vnpu

        async def fails(chip: int, template: str) -> Any:
            raise DriverError("no room")

        node.driver.create_vnpu = fails
        error = (await node.prepare("a"))["a"].error
        assert "train/a" in error and "ascend310p-0-vnpu-vir02-0 is not cut: no room" in error
        node.driver.create_vnpu = create
        assert not (await node.prepare("a"))["a"].error

    play(story)


def test_what_is_cut_for_one_cannot_be_watched_by_another() -> None:
    async def story(node: DraNode) -> None:
        node.api.allocate("w", "ascend310p-0-vnpu-vir02-0", adminAccess=True)
        assert "cannot be watched" in (await node.prepare("w"))["w"].error
        assert not node.dra.claims.held and await cut(node) == []

    play(story)


@pytest.mark.parametrize("form", [CounterForm.BESIDE, CounterForm.APART])
def test_the_planner_gives_the_parts_that_the_driver_offers(form: CounterForm, tmp_path: Path) -> None:
    """Three parts of two cores and AI CPUs fit on a chip of seven AI CPUs: the fourth goes to the other chip."""
    chips = [Chip(id=n, logic_id=n, card=n) for n in range(2)]
    found = devices(PRO.machine, chips, [], (), parts_of(PRO.machine))
    world = [CLASS, listing.node("n1", kind="Ascend310P", chips=2), listing.report("n1", kind="Ascend310P", chips=2)]
    world += slices("n1", None, found, 3, "v1", taints=True, counters=form)
    own = 'device.attributes["npu.huawei.com"]'
    part = asking(1, f'{own}.template == "vir02"')
    four = [*(claim(f"c{n}", part) for n in range(4)), *gang(*([f"c{n}"] for n in range(4)), policy="")]
    rows = [name for names in given(listing.plan([*world, *four], tmp_path)).values() for name in names]
    assert Counter(row.partition("-vnpu-")[0] for row in rows) == {"n1/ascend310p-0": 3, "n1/ascend310p-1": 1}
    whole = [claim("c0", asking(1, f'{own}.type == "npu"')), claim("c1", part), *gang(["c0"], ["c1"], policy="")]
    rows = [name for names in given(listing.plan([*world, *whole], tmp_path)).values() for name in names]
    assert sorted(row.partition("-vnpu-")[0] for row in rows) == ["n1/ascend310p-0", "n1/ascend310p-1"]
