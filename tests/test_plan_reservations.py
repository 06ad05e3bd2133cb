"""Budgets wider than a shard: what other shards reserved in ``belay-budget`` counts, and unreadable means none."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from belay.engine.model.actions import EvictPod, IsolateChip, ResetChips
from belay.engine.model.cluster import Observed
from belay.engine.model.history import History
from belay.engine.observe.observed import observe
from belay.engine.wire import reservations
from tests.steps import Steps
from tests.test_plan_safety import limit, limits, world
from tests.worlds import NOW, decide, fault, node, observed, report

TIGHT = limits(limit("EvictPod", 2), limit("ResetChips", 1, per="pool", window="1h"))
KEY = "default#0/cluster/cluster"
NOW_MS = int(NOW * 1000)


def evicted(scope: Steps) -> set[str]:
    return {action.budget_unit for action in scope.actions if isinstance(action, EvictPod)}


def reserving(snapshot: Observed, *rows: tuple[int, str, int, str], key: str = KEY) -> Observed:
    return msgspec.structs.replace(snapshot, reserved={key: rows})


def config_map(text: str) -> dict[str, Any]:
    metadata = {"name": "belay-budget", "namespace": "belay-system"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {reservations.KEY: text}}


@pytest.mark.parametrize(
    ("rows", "left"),
    [
        ((), 2),
        (((NOW_MS - 60_000, "x/AscendJob/other", 1, "east"),), 1),
        (((NOW_MS - 60_000, "a", 1, "east"), (NOW_MS - 50_000, "b", 1, "west")), 0),
        (((NOW_MS - 60_000, "a", 5, "east"),), 0),
        (((NOW_MS - 601_000, "a", 5, "east"),), 2),
        # the own shard's reservation counts where the memory does not know it any more
        (((NOW_MS - 60_000, "lost", 1, "main"),), 1),
    ],
)
def test_what_others_reserved_is_spent(rows: tuple[tuple[int, str, int, str], ...], left: int) -> None:
    scope = decide(reserving(world(4), *rows), TIGHT)
    assert len(evicted(scope)) == left
    deferred = [d for d in scope.deferred if isinstance(d.action, EvictPod)]
    assert {d.budget for d in deferred} == {"default"} and all(d.until is not None for d in deferred)


def test_the_own_window_is_not_counted_twice() -> None:
    first = decide(world(4), limits(limit("EvictPod", 3)))
    spent = first.memory.frozen().budgets[KEY]
    rows = tuple((at, unit, count, "main") for at, unit, count in spent)
    tight = limits(limit("EvictPod", 4))
    again = decide(reserving(world(4, history=first.memory.frozen()), *rows), tight, now=NOW + 30)
    assert len(evicted(again)) == 4, "three go on, one more is allowed"
    assert len(again.memory.frozen().budgets[KEY]) == 4


def test_a_memory_that_holds_anothers_rows_does_not_double_them() -> None:
    """Shards share ``belay-history``: what one reads there may be what another wrote."""
    row = (NOW_MS - 60_000, "x/AscendJob/other", 1)
    snapshot = world(4, history=History(budgets={KEY: (row,)}))
    assert len(evicted(decide(reserving(snapshot, (*row, "east")), TIGHT))) == 1


def test_another_pools_reservation_does_not_count_for_this_one() -> None:
    sick = observed([node("n0")], [report("n0", faults=[fault(0)])])
    row = (NOW_MS - 1000, "n9/0", 1, "east")
    assert any(
        isinstance(a, ResetChips) for a in decide(reserving(sick, row, key="default#1/pool/east"), TIGHT).actions
    )
    blocked = decide(reserving(sick, row, key="default#1/pool/default"), TIGHT)
    assert not any(isinstance(a, ResetChips) for a in blocked.actions)
    assert [d.until for d in blocked.deferred] == ["2026-09-01T08:59:59Z"]


def test_reservations_are_read_from_the_cluster_and_unreadable_ones_stop_disruption() -> None:
    good = observe([config_map(f'{{"{KEY}": [[{NOW_MS}, "a", 2, "east"]]}}')])
    assert good.reserved == {KEY: ((NOW_MS, "a", 2, "east"),)} and not good.reserved_broken
    for text in ("{", "[]", '{"x": [[1, "a"]]}', '{"x": 3}'):
        assert observe([config_map(text)]).reserved_broken
    broken = msgspec.structs.replace(world(2), reserved_broken=True)
    scope = decide(broken, TIGHT)
    assert not evicted(scope) and not any(isinstance(a, ResetChips) for a in scope.actions)
    assert any(isinstance(a, IsolateChip) for a in scope.actions), "isolating only protects"
    assert {d.budget for d in scope.deferred} == {"unreadable"} and all(d.until is None for d in scope.deferred)
    assert any(d.object == "ConfigMap/belay-system/belay-budget" and d.severity == "error" for d in scope.diagnostics)


def test_two_shards_that_reserve_in_turn_never_exceed_a_budget_together() -> None:
    """Each sees what the other wrote before it plans, as compare-and-swap forces them to; memories are lost now and
    then."""
    rows: list[tuple[int, str, int, str]] = []
    memories = {"east": History(), "west": History()}
    done: dict[str, int] = {}
    for turn in range(40):
        now = NOW + 20.0 * turn
        shard = ("east", "west")[turn % 2]
        if turn % 7 == 0:
            memories[shard] = History()
        base = world(3, history=memories[shard])
        renamed = {key: msgspec.structs.replace(p, uid=f"{shard}-{p.uid}-{turn}") for key, p in base.pods.items()}
        reports = {n: msgspec.structs.replace(r, update_time=now - 1) for n, r in base.reports.items()}
        snapshot = msgspec.structs.replace(base, pods=renamed, reports=reports, reserved={KEY: tuple(rows)})
        scope = decide(snapshot, TIGHT, now=now, shard="main")
        before = set(memories[shard].budgets.get(KEY, ()))
        fresh = [row for row in scope.memory.frozen().budgets.get(KEY, ()) if row not in before]
        rows += [(at, f"{shard}/{unit}/{turn}", count, shard) for at, unit, count in fresh]
        memories[shard] = scope.memory.frozen()
        for at, unit, _, _ in rows:
            done[unit] = at
        window = [at for at in done.values() if at > now * 1000 - 600_000]
        assert len(window) <= 2, f"turn {turn}: {len(window)} evictions within ten minutes"
    assert len(done) >= 4, "the budget is used, not only held"
