"""Repeat offenders: failures are counted with decay, survive resets, and steer placement among equals only."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from belay.engine.cli import answers
from belay.engine.cli.explanation import explain
from belay.engine.documents import Desired
from belay.engine.model import repeat_offenders
from belay.engine.model.actions import BindPod
from belay.engine.model.cluster import Observed
from belay.engine.model.history import FailureMemory, History, NodeMemory
from belay.engine.model.plan import Plan
from belay.engine.model.repeat_offenders import RepeatOffenderRules
from belay.engine.plan import plan
from belay.engine.status.status_reader import read_status as read_back
from belay.engine.status.sync_status import pool_bodies
from belay.engine.wire import history as wire
from tests.worlds import NOW, agent, desired, document, fault, node, observed, pod, report

WEEK = 7 * 86_400
RULES = RepeatOffenderRules()
NOW_MS = int(NOW * 1000)


def memory(**rows: dict[int, float]) -> History:
    """A history in which these chips have failed so often, until just now."""
    return History(
        nodes={
            n: NodeMemory(lemons={c: FailureMemory(f, NOW_MS) for c, f in chips.items()}) for n, chips in rows.items()
        }
    )


def cluster(
    count: int = 3, history: History | None = None, pods: int = 1, chips: int = 1, at: float = NOW, **more: Any
) -> Observed:
    policy = {"huawei.com/schedule_policy": "chip8-node8"}
    wishes = [pod(f"p{i}", count=chips, annotations=policy) for i in range(pods)]
    names = [f"n{i}" for i in range(count)]
    seen = [report(n, update_time=at - 2) for n in names]
    return observed([node(n) for n in names], seen, wishes, history=history, **more)


def places(result: Plan) -> dict[str, tuple[str, tuple[str, ...]]]:
    return {a.pod: (a.node, a.chips) for a in result.actions if isinstance(a, BindPod)}


def test_without_repeat_offenders_the_lowest_name_wins_ties() -> None:
    assert places(plan(desired(), cluster(), NOW)) == {"p0": ("n0", ("Ascend910-0",))}


def test_a_repeat_offender_loses_to_its_neighbour_and_a_server_of_them_to_its_equal() -> None:
    one = plan(desired(), cluster(history=memory(n0={0: 3.0})), NOW)
    assert places(one) == {"p0": ("n0", ("Ascend910-1",))}, "any chips of an A2 server are alike"
    whole = plan(desired(), cluster(history=memory(n0={0: 3.0}), chips=8), NOW)
    assert places(whole)["p0"][0] == "n1"
    two = plan(desired(), cluster(history=memory(n0={0: 3.0, 1: 9.0}, n1={2: 2.5}, n2={0: 2.1, 1: 2.2}), chips=8), NOW)
    assert places(two)["p0"][0] == "n1", "the fewest repeat offenders"


def test_a_better_score_wins_over_repeat_offenders() -> None:
    """The fuller server scores higher; that one of its chips is a repeat offender changes neither score nor choice."""
    bare = [pod("r", node="n0", chips=[0, 1, 2, 3])]
    world = cluster(history=memory(n0=dict.fromkeys(range(8), 60.0)), pods=1)
    world = msgspec.structs.replace(world, pods={**world.pods, bare[0].key: bare[0]})
    result = plan(desired(), world, NOW)
    assert places(result)["p0"][0] == "n0"
    again = plan(desired(), msgspec.structs.replace(world, history=History()), NOW)
    assert result.scores == again.scores


def test_below_the_threshold_or_switched_off_nothing_is_steered() -> None:
    mild = cluster(history=memory(n0=dict.fromkeys(range(8), 1.9)), chips=8)
    assert places(plan(desired(), mild, NOW))["p0"][0] == "n0"
    bad = cluster(history=memory(n0=dict.fromkeys(range(8), 9.0)), chips=8)
    off = desired(document("FaultPolicy", "p", lemons={"mode": "off"}))
    result = plan(off, bad, NOW)
    assert places(result)["p0"][0] == "n0" and not result.repeat_offenders
    assert not any(m.lemons for m in result.history.nodes.values()), "switched off means forgotten"
    strict = desired(document("FaultPolicy", "p", lemons={"threshold": 1.5, "halfLife": "24h"}))
    assert places(plan(strict, mild, NOW))["p0"][0] == "n1"
    later = NOW + 86_400 / 2
    mild = cluster(history=memory(n0=dict.fromkeys(range(8), 1.9)), chips=8, at=later)
    assert places(plan(strict, mild, later))["p0"][0] == "n0", "half a day later the rate is 1.34"


def play(events: list[tuple[float, str]], intent: Desired | None = None) -> tuple[History, Plan]:
    """Passes at these seconds, in each of which chip 0 reports ``bad`` or ``ok`` (or another ``serial``)."""
    history, result, serial = History(), None, "A"
    for at, what in events:
        now = NOW + at
        serial = what.partition(":")[2] or serial
        found = [fault(0, at=now - 1)] if what.startswith("bad") else []
        told = agent("n0", at=now)
        chips = {0: msgspec.structs.replace(told.chips[0], serial=serial)}
        world = observed(
            [node("n0")], [report("n0", faults=found, update_time=now)], history=history,
            agents=[msgspec.structs.replace(told, chips=told.chips | chips)],
        )  # fmt: skip
        result = plan(intent or desired(), world, now)
        history = result.history
    assert result is not None
    return history, result


def test_failures_are_counted_once_each_and_survive_recovery() -> None:
    history, result = play([(0, "bad"), (60, "bad"), (120, "ok"), (180, "bad"), (240, "ok"), (300, "ok")])
    assert [(s.chip, round(s.failures, 2), s.avoided) for s in result.repeat_offenders] == [("Ascend910-0", 2.0, False)]
    assert not history.nodes["n0"].lemons[0].failing
    _, late = play([(0, "bad"), (60, "ok"), (120, "bad"), (180, "ok"), (240, "bad"), (300, "ok"), (WEEK + 240, "ok")])
    assert [(round(s.failures, 2), s.avoided) for s in late.repeat_offenders] == [(1.5, False)], (
        "half after one half-life"
    )


def test_another_serial_number_is_another_chip_and_old_failures_are_forgotten() -> None:
    history, _ = play([(0, "bad"), (60, "ok"), (120, "bad"), (180, "ok"), (240, "ok:B")])
    assert not history.nodes["n0"].lemons
    history, _ = play([(0, "bad"), (60, "ok"), (6 * WEEK, "ok")])
    assert not history.nodes["n0"].lemons, "1/64 of a failure is nothing"


def test_a_manual_isolation_is_no_failure() -> None:
    held = document("Isolation", "i", chips=[{"node": "n0", "chips": [0]}], reason="maintenance")
    history, result = play([(0, "ok"), (60, "ok")], desired(held))
    assert not result.repeat_offenders and not any(m.lemons for m in history.nodes.values())


def test_the_memory_survives_a_restart_and_does_not_change_while_nothing_happens() -> None:
    history, _ = play([(0, "bad"), (60, "ok")])
    _, read = wire.parse_node({"metadata": {"name": "belay-history-n0"}, "data": wire.node_data(history.nodes["n0"])})
    assert read == history.nodes["n0"]
    reports, silent = [report("n0", update_time=NOW + 400)], [agent("n0", at=NOW + 400, chips=0)]
    world = observed([node("n0")], reports, history=history, agents=silent)
    assert plan(desired(), world, NOW + 400).history.nodes == history.nodes


looks = st.lists(st.tuples(st.integers(1, 40 * 86_400_000), st.booleans()), max_size=40)


@settings(max_examples=200, deadline=None)
@given(looks)
def test_the_rate_is_bounded_falls_while_nothing_fails_and_ends(steps: list[tuple[int, bool]]) -> None:
    row, now, failures, last = None, 0, 0, 0.0
    for wait, failing in steps:
        now += wait
        was = row is not None and row.failing
        row = repeat_offenders.updated(row, failing, "", now, RULES)
        failures += failing and not was
        rate = repeat_offenders.rate(row, now, RULES) if row else 0.0
        assert rate <= min(failures, repeat_offenders.MOST) + 1e-6
        assert rate <= last + 1e-6 or (failing and not was)
        last = rate
    row = repeat_offenders.updated(row, False, "", now, RULES)
    assert repeat_offenders.updated(row, False, "", now + 12 * RULES.half_life_ms, RULES) is None


rates = st.dictionaries(st.integers(0, 7), st.sampled_from([0.5, 2.0, 5.0, 64.0]), max_size=8)


@settings(max_examples=60, deadline=None)
@given(st.lists(rates, min_size=3, max_size=3), st.integers(1, 8), st.lists(st.integers(0, 7), max_size=3))
def test_repeat_offenders_change_neither_scores_nor_which_pods_are_placed(
    rows: list[dict[int, float]], chips: int, busy: list[int]
) -> None:
    jobs = {
        p.key: p for i, n in enumerate(busy) for p in [pod(f"b{i}", node=f"n{n % 3}", chips=[n], namespace=f"x{i}")]
    }
    world = cluster(history=memory(**{f"n{i}": row for i, row in enumerate(rows)}), chips=chips)
    world = msgspec.structs.replace(world, pods=dict(sorted({**world.pods, **jobs}.items())))
    steered = plan(desired(), world, NOW)
    plain = plan(desired(), msgspec.structs.replace(world, history=History()), NOW)
    assert steered.scores == plain.scores and places(steered).keys() == places(plain).keys()
    for name, (where, _) in places(steered).items():
        row = steered.scores[f"train/{name}"]
        assert row[where] == max(row.values()), "a lemon never beats a better topology"


def test_repeat_offenders_are_shown() -> None:
    world = cluster(history=memory(n0={0: 3.0}, n1={1: 1.0}), pods=0)
    result = plan(desired(), world, NOW)
    rows = {(row["node"], row["chip"]): row["failures"] for row in answers.chips(result, world).rows}
    assert (
        rows[("n0", "Ascend910-0")] == 3.0 and rows[("n1", "Ascend910-1")] == 1.0 and rows[("n2", "Ascend910-0")] == 0
    )
    told = explain("chip", "n0/0", result, world)["failures"]
    assert told == {"rate": 3.0, "threshold": 2.0, "avoided": True}
    status = read_back([*pool_bodies(result)])
    assert [(row["chip"], row["avoided"]) for row in status.pools[0].lemons] == [
        ("Ascend910-0", True), ("Ascend910-1", False),
    ]  # fmt: skip


def test_once_its_sound_chip_is_taken_a_server_is_no_better_than_its_equal() -> None:
    """On n0 a sound chip and a repeat offender are free, on different cards; each scores as the one chip of n1."""
    kind: dict[str, Any] = {"resource": "huawei.com/Ascend310", "prefix": "Ascend310-"}
    held = [pod("b0", node="n0", chips=[1, 2, 3, 5, 6, 7], **kind), pod("b1", node="n1", chips=range(1, 8), **kind)]
    wishes = [pod(name, count=1, labels={"npu-310-strategy": "card"}, **kind) for name in ("p0", "p1")]
    nodes = [node(name, labels={"accelerator": "huawei-Ascend310"}, **kind) for name in ("n0", "n1")]
    reports = [report(name, **kind) for name in ("n0", "n1")]
    world = observed(nodes, reports, [*held, *wishes], history=memory(n0={4: 5.0}))
    assert places(plan(desired(), world, NOW)) == {"p0": ("n0", ("Ascend310-0",)), "p1": ("n1", ("Ascend310-0",))}
