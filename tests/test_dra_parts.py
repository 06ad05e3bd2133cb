"""Parts of chips for claims: what the driver offers with shared counters, and how it cuts chips and gives them back."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import grpc
import pytest

from belay.agents.common.clock import Clock
from belay.agents.dra.claims import Claims
from belay.agents.dra.cutting import ClaimCutter
from belay.agents.dra.devices import CounterForm, Device, devices, slices
from belay.agents.dra.parts import ChipParts, chip_parts, parts_of
from belay.agents.dra.settings import DraSettings
from belay.agents.drivers.base import Chip, DriverError, Machine
from belay.agents.drivers.server_models import SERVER_MODELS, SIZES_310P, TOTALS_310P, machine
from belay.agents.drivers.simulated import SimulatedDriver
from belay.agents.node.policy import FaultLevels
from belay.agents.node.state import NodeState
from belay.engine.model import quantities
from belay.engine.model.vnpu import ChipCapacity, TemplateSize, unfit
from belay.engine.wire.policy import NodePolicy
from tests import listing
from tests.agent_world import NODE, RULES
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


class Ended(Exception):
    """The agent ends here."""


class History:
    """Claims on one node with random ends of the agent, before and after each effect, and reboots of the host."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.chance = random.Random(seed)
        self.folder = folder
        self.files = DraSettings(cdi=folder / "cdi", dev=folder / "dev", host_root=str(folder / "host"))
        (folder / "dev").mkdir(parents=True)
        for name in (*(f"davinci{n}" for n in range(4)), *(f"vdavinci{n}" for n in range(100, 160)),
                     "davinci_manager", "hisi_hdc", "devmm_svm"):  # fmt: skip
            (folder / "dev" / name).touch()
        self.driver: Any = SimulatedDriver(NODE, PRO, now_ms=lambda: 0, sleep=self.ends)
        for name in ("create_vnpu", "destroy_vnpu"):
            setattr(self.driver, name, self.ending(getattr(self.driver, name)))
        self.parts = parts_of(PRO.machine)
        self.wanted: dict[str, list[str]] = {}
        self.starts = 0
        self.boot()

    async def ends(self, _: float = 0.0) -> None:
        if self.chance.random() < 0.1:
            raise Ended

    def ending(self, call: Any) -> Any:
        async def act(*given: Any) -> Any:
            found = await call(*given)
            await self.ends()
            return found

        return act

    def boot(self) -> None:
        self.claims = Claims(self.folder / "state", NODE, self.files)
        write = self.claims._write

        def writes() -> None:
            if self.chance.random() < 0.05:
                raise Ended
            write()
            if self.chance.random() < 0.05:
                raise Ended

        self.claims._write = writes  # type: ignore[method-assign]
        self.cutter = ClaimCutter(self.driver, self.claims, Clock())
        chips = [Chip(id=n, logic_id=n, card=n) for n in range(4)]
        self.state = NodeState(NODE, PRO.machine, chips, FaultLevels(NodePolicy("default", RULES)), polled=True)
        self.state.claimed = self.claims.held

    def devices(self) -> list[Device]:
        return devices(PRO.machine, self.state.chips, (), (), self.parts)

    async def prepare(self, uid: str) -> None:
        rows = [{"request": "r", "driver": "npu.huawei.com", "pool": NODE, "device": one} for one in self.wanted[uid]]
        body = {"metadata": {"namespace": "train", "name": uid, "uid": uid},
                "status": {"allocation": {"devices": {"results": rows}}}}  # fmt: skip
        self.claims.hold(uid, body, self.devices(), self.state)
        await self.cutter.cut(uid, self.state)
        self.claims.describe(uid, self.devices(), self.state)

    async def unprepare(self, uid: str) -> None:
        await self.cutter.give_back(uid, self.state)
        self.claims.unprepare(uid)

    async def ask_again(self) -> None:
        """Kubelet asks for all claims again, after each start of the host once more."""
        while True:
            before = self.starts
            for uid in sorted(self.wanted):
                await self.until_done(History.prepare, uid)
            if self.starts == before:
                return

    async def until_done(self, act: Any, uid: str) -> None:
        """Kubelet asks again until it is answered."""
        for _ in range(200):
            try:
                return await act(self, uid)  # type: ignore[no-any-return]
            except Ended:
                if self.chance.random() < 0.2:
                    self.driver._vnpus.clear()  # the host starts again, too
                    self.starts += 1
                self.boot()
        raise AssertionError("kubelet is never answered")


@pytest.mark.parametrize("seed", range(10))
def test_no_history_of_ends_leaves_a_vnpu_or_gives_one_twice(seed: int, tmp_path: Path) -> None:
    async def story() -> None:
        history = History(seed, tmp_path)
        free = {f"ascend310p-{chip}-vnpu-{kind}" for chip in range(2)
                for kind in ("vir01-0", "vir01-1", "vir02-0", "vir02-1c-0")}  # fmt: skip
        for number in range(25):
            if free and (not history.wanted or history.chance.random() < 0.6):
                uid = f"c{number}"
                chosen = history.chance.sample(sorted(free), min(len(free), history.chance.choice((1, 1, 2))))
                history.wanted[uid] = chosen
                free -= set(chosen)
                await history.until_done(History.prepare, uid)
            else:
                uid = history.chance.choice(sorted(history.wanted))
                await history.until_done(History.unprepare, uid)
                free |= set(history.wanted.pop(uid))
            await history.ask_again()
            there = {vnpu.id: (vnpu.chip, vnpu.template) for vnpu in await vnpus(history)}
            held = [one for claim in history.claims.prepared.values() for one in claim.devices]
            assert sorted(one.vnpu for one in held) == sorted(there), "one vNPU for each part, none beside"
            assert all(there[one.vnpu] == (one.chip, one.template) for one in held)
            assert sorted(one.name for one in held) == sorted(itertools.chain(*history.wanted.values()))
        for uid in sorted(history.wanted):
            await history.until_done(History.unprepare, uid)
        assert not await vnpus(history) and not history.claims.held

    asyncio.run(story())


async def vnpus(history: History) -> Any:
    return sorted(history.driver._vnpus.values())
