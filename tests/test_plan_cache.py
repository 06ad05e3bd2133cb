"""What a shard keeps between passes changes no plan, and shards that are planned in parallel threads share nothing."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import NamedTuple

import pytest

from belay.engine.documents import Desired
from belay.engine.model.cluster import Observed
from belay.engine.model.plan import Plan
from belay.engine.model.plan_cache import CacheKey, Memo, NoOps, PlanCache, Slot, Table, differing
from belay.engine.plan import plan
from tests.simworld import A2, INFER, Node, World
from tests.soak.histories import _event, _repository

POOL = b"""\
apiVersion: belay.dev/v1alpha1
kind: NodePool
metadata: {name: apart}
spec: {shard: apart, selector: {matchLabels: {servertype: Ascend310P-8}}}
"""
SHARDS = ("main", "apart")
HISTORIES = 8
STEPS = 30
NUMBERS: CacheKey[Memo[int]] = CacheKey("numbers", Memo[int], limit=3)
QUIET = CacheKey("quiet", NoOps, limit=2)
ROWS: CacheKey[Table[int]] = CacheKey("rows", Table[int], limit=2)
LAST: CacheKey[Slot[str]] = CacheKey("last", Slot[str])


class Moment(NamedTuple):
    """What one pass saw."""

    desired: Desired
    observed: Observed
    now: float


class Recorder(World):
    """A simulated cluster that keeps what its passes see."""

    def plan(self) -> Plan:
        self.moments = [*getattr(self, "moments", ()), Moment(self.desired, self.observer.observed(), self.now)]
        return plan(self.desired, self.observer.observed(), self.now, cache=self.cache)


@cache
def history(seed: int) -> list[Moment]:
    """The snapshots of a random history; the names of nodes and jobs are those of every other history."""
    chance = random.Random(seed)
    files = _repository(chance, {"desired/pool.yaml": POOL})
    servers = [Node(f"node-{i}", labels=A2) for i in range(3)]
    world = Recorder(files, [*servers, Node("card-0", kind="Ascend310P", labels=INFER)], seed=seed)
    for _ in range(STEPS):
        files = _event(chance, world, files)
        world.step(some=chance.choice((1.0, 0.8, 0.5)))
        world.pass_time(chance.choice((1.0, 20.0, 70.0, 400.0)))
    return world.moments


@cache
def alone(seed: int, shard: str) -> list[str]:
    """The digests of a history's plans, each from a pass without a cache."""
    return [plan(one.desired, one.observed, one.now, shard=shard).digest() for one in history(seed)]


def played(seed: int, shard: str, limit: int) -> list[str]:
    """The digests of the same plans, with one cache for all of them."""
    kept = PlanCache(limit)
    return [plan(one.desired, one.observed, one.now, shard=shard, cache=kept).digest() for one in history(seed)]


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Threads take turns as often as Python lets them."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("limit", [1, 3, sys.maxsize])
def test_hundreds_of_snapshots_give_the_plans_of_passes_without_a_cache(limit: int) -> None:
    for seed in range(HISTORIES):
        for shard in SHARDS:
            assert played(seed, shard, limit) == alone(seed, shard)


def test_snapshots_in_any_order_give_the_plans_of_passes_without_a_cache() -> None:
    chance, kept = random.Random(0), PlanCache(limit=5)
    deck = [(seed, shard, at) for seed in range(3) for shard in SHARDS for at in range(STEPS)]
    chance.shuffle(deck)
    for seed, shard, at in deck:
        one = history(seed)[at]
        found = plan(one.desired, one.observed, one.now, shard=shard, cache=kept)
        assert found.digest() == alone(seed, shard)[at]


@pytest.mark.usefixtures("eager_threads")
@pytest.mark.parametrize("limit", [1, 2, sys.maxsize])
def test_shards_planned_in_parallel_threads_give_the_plans_of_lone_passes(limit: int) -> None:
    shards = [(seed, shard) for seed in range(HISTORIES) for shard in SHARDS]
    expected = {one: alone(*one) for one in shards}
    with ThreadPoolExecutor(len(shards)) as pool:
        found = {one: pool.submit(played, *one, limit) for one in shards}
        assert {one: future.result() for one, future in found.items()} == expected


def test_a_memo_computes_once_per_object_and_drops_its_oldest_key() -> None:
    memo, computed = PlanCache()[NUMBERS], list[int]()

    def of(key: str, raw: object) -> int:
        return memo.of(key, raw, lambda: computed.append(len(computed)) or len(computed))  # type: ignore[func-returns-value]

    assert [of("a", [1]), of("a", [1]), of("a", [2])] == [1, 1, 2]
    assert [of("b", 1), of("c", 1), of("d", 1), of("d", 1)] == [3, 4, 5, 5]
    assert of("a", [2]) == 6, "the oldest key made room"


def test_no_ops_hold_for_equal_inputs_only() -> None:
    quiet = PlanCache()[QUIET]
    quiet.add("a", (1, [2]))
    assert quiet.holds("a", (1, [2])) and not quiet.holds("a", (1, [3])) and not quiet.holds("b", (1, [2]))
    quiet.add("b", ())
    quiet.add("c", ())
    assert not quiet.holds("a", (1, [2])) and quiet.holds("c", ())


def test_each_cache_has_its_own_stores_of_a_declaration() -> None:
    first, second = PlanCache(), PlanCache(limit=1)
    first[LAST].value = "seen"
    assert first[LAST].value == "seen" and second[LAST].value is None
    for name in ("a", "b", "c"):
        first[ROWS].keep(name, 1)
        second[ROWS].keep(name, 1)
    assert (list(first[ROWS]), list(second[ROWS])) == (["b", "c"], ["c"])


def test_differing_names_are_those_whose_objects_are_others() -> None:
    same, old, new = [1], [2], [2]
    assert list(differing({"a": same, "b": new}, {"a": same, "b": old})) == ["b"]
    assert set(differing({"a": same, "c": new}, {"a": same, "b": old})) == {"b", "c"}
    assert list(differing({"a": same}, {"a": same})) == []
