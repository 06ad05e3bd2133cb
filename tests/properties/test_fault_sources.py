"""Random stories of all sources: what is over is over, memory stays bounded, no order matters, a replay is the same."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belay.engine.model.history import History
from belay.engine.observe.observed import observe
from belay.engine.plan import plan
from belay.engine.replay.recording import replay, write
from belay.engine.sandbox.timeline import SandboxEvent
from belay.engine.wire import history as history_wire
from tests.fault_world import FaultWorld
from tests.golden.stories import sample_files

NODES = [f"node-{i}" for i in range(1, 5)]
MAX_NODE_MEMORY = 64 * 1024

_ROWS = [
    ("code", "80C98001", {}), ("code", "80DF8402", {}), ("code", "80818200", {}), ("code", "80E01801", {}),
    ("code", "80C98009", {}), ("network", "81078603", {}), ("subHealth", True, {}), ("drop", True, {}),
    ("hang", True, {}), ("ping", "lost", {}), ("switch", "[0x00f103b6,155908,na,na]", {}),
    ("switch", "[0x00f1fef5,155912,cpu,na]", {}), ("hardware", "0000001D", {}), ("hardware", "2C000031", {}),
    ("storage", "dpc", {}), ("ready", False, {}), ("silent", True, {}),
    ("public", "020001001", {"chips": (1, 2)}), ("public", "110001022", {"chips": (3,), "sender": "dtfsStorage"}),
]  # fmt: skip
_CHIP = {"code", "network", "subHealth", "drop", "hang", "ping"}
_ENDS = {"subHealth": False, "drop": False, "hang": False, "ping": "ok", "ready": True, "silent": False}


@st.composite
def stories(draw: st.DrawFn) -> list[SandboxEvent]:
    """Faults that come, stay for a while and go; what must come to an end does."""
    out: list[SandboxEvent] = []
    for line in range(draw(st.integers(1, 6))):
        what, value, more = draw(st.sampled_from(_ROWS))
        where = draw(st.sampled_from(NODES))
        chip = draw(st.integers(0, 7)) if what in _CHIP else None
        begin = draw(st.integers(0, 300))
        end = begin + draw(st.integers(1, 300))
        out.append(SandboxEvent(float(begin), what, value, where, chip, "occur", more, line))
        over = _ENDS.get(what)
        if over is not None:
            out.append(SandboxEvent(float(end), what, over, where, chip, "occur", more, line))
        else:
            out.append(SandboxEvent(float(end), what, value, where, chip, "recover", more, line))
    return sorted(out, key=lambda e: (e.at, e.line))


def sizes(memory: History) -> list[int]:
    return [len(history_wire.node_data(m)[history_wire.NODE_KEY]) for m in memory.nodes.values()]


@settings(max_examples=12, deadline=None)
@given(stories(), st.integers(0, 1000))
def test_what_is_over_leaves_nothing_behind_but_named_holds(story: Sequence[SandboxEvent], seed: int) -> None:
    world = FaultWorld(seed)
    world.until_quiet()
    last = world.play(story, tick=30.0)
    held = {(name, chip) for name, m in last.history.nodes.items() for chip, row in m.chips.items() if row.holds}
    for row in last.chips:
        if row.state != "healthy":
            assert (row.node, int(row.chip.rpartition("-")[2])) in held, world.story[-20:]
    assert all(node.state == "healthy" for node in last.nodes)
    assert not any(seen for m in last.history.nodes.values() for seen in m.public.values() if not seen.over)
    assert max(sizes(last.history), default=0) <= MAX_NODE_MEMORY


@settings(max_examples=10, deadline=None)
@given(stories(), st.randoms(use_true_random=False))
def test_the_order_of_objects_and_a_round_trip_of_the_memory_change_nothing(
    story: Sequence[SandboxEvent], chance: random.Random
) -> None:
    world = FaultWorld(1)
    world.until_quiet()
    for event in story:
        world.now = max(world.now, world.began + event.at)
        world.happen(event)
    first = plan(world.desired, observe(world.objects.values()), world.now)
    shuffled = list(world.objects.values())
    chance.shuffle(shuffled)
    assert plan(world.desired, observe(shuffled), world.now).digest() == first.digest()
    for memory in first.history.nodes.values():
        text = msgspec.json.encode(msgspec.to_builtins(memory, str_keys=True))
        assert msgspec.json.decode(text, type=type(memory)) == memory


@pytest.mark.parametrize("seed", range(2))
def test_recorded_passes_are_derived_again_byte_for_byte(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    world = FaultWorld(seed)
    world.until_quiet()
    for line in range(12):
        what, value, more = chance.choice(_ROWS)
        chip = chance.randrange(8) if what in _CHIP else None
        world.happen(SandboxEvent(0.0, what, value, chance.choice(NODES), chip, "occur", more, line))
        world.pass_time(chance.choice([1.0, 25.0, 61.0]))
        result = plan(world.desired, world.observer.observed(), world.now)
        file = write(
            tmp_path, version="0", shard="main", now=world.now, revision=world.revision, files=sample_files(),
            objects=world.objects.values(), digest=result.digest(),
        )  # fmt: skip
        assert replay(file).same
        world.step()


def test_a_storm_of_codes_leaves_a_bounded_memory() -> None:
    world = FaultWorld(0)
    world.until_quiet()
    chance = random.Random(5)
    for minute in range(60):
        for _ in range(20):
            world.fault("node-4", chance.randrange(8), f"{chance.randrange(1 << 32):08X}", "SubHealthFault")
        world.pass_time(60.0)
        world.step()
        if minute % 2:
            for chip in range(8):
                world.heal("node-4", chip)
    memory = world.observer.observed().history
    assert max(len(row.codes) for row in memory.nodes["node-4"].chips.values()) <= 128
    assert max(sizes(memory)) <= 4 * MAX_NODE_MEMORY
