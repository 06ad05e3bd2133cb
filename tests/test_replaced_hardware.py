"""Another server under a node's name, and another chip in a place: what was remembered of the old one holds no more."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from belay.engine.model.actions import IsolateNode, ResetChips
from belay.engine.model.cluster import AgentReport, Node
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.history import ChipMemory, FailureMemory, History, Hold, HoldKind, KnownHardware, NodeMemory
from belay.engine.model.labels import CORDONED_ANNOTATION
from belay.engine.plan import plan
from tests import simworld
from tests.golden.stories import sample_files, sample_world
from tests.worlds import NOW, agent, desired, fault, node, observed, report

MS = int(NOW * 1000)
HELD = Hold(HoldKind.FREQUENCY, "ManuallySeparateNPU", since=MS - 60_000, rule="80A18008")
ROW = ChipMemory(holds=(HELD,), epoch=7, resets=(MS - 3000, MS - 2000, MS - 1000))


def server(uid: str = "new", uuid: str = "", *, born: float = NOW - 60) -> Node:
    return msgspec.structs.replace(node("n0", created=born), uid=uid, server=uuid)


def reporter(serials: Mapping[int, str], *, at: float = NOW - 5) -> AgentReport:
    known = agent("n0", at=at)
    rows = {chip: msgspec.structs.replace(row, serial=serials.get(chip, "")) for chip, row in known.chips.items()}
    return msgspec.structs.replace(known, chips=rows)


def after(
    live: Node, agents: list[AgentReport], *, known: KnownHardware, chips: Mapping[int, ChipMemory] | None = None
) -> NodeMemory:
    """What one pass remembers of the node."""
    lemons = {3: FailureMemory(4.0, MS - 1000)}
    memory = NodeMemory(chips=dict(chips or {3: ROW, 4: ROW}), lemons=lemons, hardware=known, isolated="")
    snapshot = observed([live], [report("n0")], agents=agents, history=History(nodes={"n0": memory}))
    return plan(desired(), snapshot, NOW).history.nodes["n0"]


SAME = {3: "S3", 4: "S4"}


OLD, OLD_ALONE = KnownHardware("old", "a", SAME), KnownHardware("old", "a")
CASES = {
    "registered again": (server(uuid="a"), [reporter(SAME)], OLD, {3, 4}),
    "chips in another server": (server(uuid="b"), [reporter(SAME)], OLD, {3, 4}),
    "another server": (server(uuid="b"), [reporter({3: "T3", 4: "T4"})], OLD, set()),
    "one chip replaced": (server("old", "a"), [reporter({3: "T3", 4: "S4"})], OLD, {4}),
    "another server, no agent": (server(uuid="b"), [], OLD_ALONE, set()),
    "its agent has yet to report": (server(uuid="b"), [reporter(SAME, at=NOW - 90)], OLD, set()),
    "the same server, no agent": (server(uuid="a"), [], OLD_ALONE, {3, 4}),
    "nothing is known": (server(), [], KnownHardware("old"), {3, 4}),
    "nothing was known": (server(uuid="b"), [reporter(SAME)], KnownHardware(), {3, 4}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_memory_of_a_chip_lasts_as_long_as_the_chip(case: str) -> None:
    live, agents, known, kept = CASES[case]
    found = after(live, agents, known=known)
    assert {chip for chip, row in found.chips.items() if row.holds} == kept
    assert {chip for chip, row in found.chips.items() if row.resets} == kept
    assert {row.epoch for row in found.chips.values()} == {7}, "epochs only grow"
    assert (3 in found.lemons) == (3 in kept)
    assert (found.hardware.uid, found.hardware.server) == (live.uid, live.server or known.server)
    begun = [text for row in found.chips.values() for _, text in row.timeline if "its history begins here" in text]
    assert len(begun) == 2 - len(kept)


def test_a_new_chip_has_its_own_attempts_and_epochs_go_on() -> None:
    memory = NodeMemory(
        chips={chip: ChipMemory(epoch=7, resets=(MS - 3000, MS - 2000, MS - 1000)) for chip in range(8)},
        hardware=KnownHardware("old", "a"),
    )
    history = History(nodes={"n0": memory})
    snapshot = observed([server(uuid="a")], [report("n0", faults=[fault(3)])], history=history)
    assert not [one for one in plan(desired(), snapshot, NOW).actions if isinstance(one, ResetChips)], "no attempt left"
    other = observed([server(uuid="b")], [report("n0", faults=[fault(3)])], history=history)
    (reset,) = [one for one in plan(desired(), other, NOW).actions if isinstance(one, ResetChips)]
    assert reset.epoch == 8


def test_memory_without_content_is_dropped_whatever_hardware_it_was_about() -> None:
    history = History(nodes={"n0": NodeMemory(hardware=KnownHardware("new", "a", SAME))})
    found = plan(desired(), observed([server(uuid="a")], [report("n0")], history=history), NOW).history
    assert found.nodes.get("n0", NodeMemory()) == NodeMemory()


def test_a_node_that_registers_again_is_isolated_and_cordoned_again() -> None:
    world: simworld.World = sample_world(0)
    spec = b"metadata: {name: optics}\nspec: {nodes: [node-1], reason: optics}\n"
    document = b"apiVersion: belay.dev/v1alpha1\nkind: Isolation\n" + spec
    world.push(sample_files() | {"desired/maintenance.yaml": document})
    world.until_quiet()
    key = ObjectKey("v1", "Node", "", "node-1")
    assert CORDONED_ANNOTATION in world.objects[key]["metadata"]["annotations"]

    world.remove(world.nodes["node-1"])
    world.until_quiet()
    world.bring_back(world.nodes["node-1"])
    plans = world.until_quiet()
    again = [one for made in plans for one in made.actions if isinstance(one, IsolateNode)]
    assert [(one.node, one.cordon) for one in again] == [("node-1", True)]
    notes = world.objects[key]["metadata"]["annotations"]
    assert CORDONED_ANNOTATION in notes and world.objects[key]["spec"]["unschedulable"]
