"""The simulator: its Redis is like the real one, its histories repeat, it sees what is wrong, and some pass."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from belay.engine.controller.triggers import _CLAIM, _DONE, _EXTEND, _FREE, _HEAD, _MARK, _READY
from belay.engine.store import connect, snapshot
from tests.redis_server import redis_process, redis_url  # noqa: F401
from tests.sim.memory import Memory

ROOT = Path(__file__).resolve().parents[1]


def simulate(*arguments: str) -> tuple[int, list[dict[str, Any]]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.sim", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=280
    )
    assert done.stdout, done.stderr[-2000:]
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("first", [3, 11])
def test_histories_hold_their_invariants_and_heal(first: int) -> None:
    code, rows = simulate(str(first), "2")
    assert code == 0, [row.get("failed") for row in rows]
    assert sum(row["steps"] for row in rows) > 10_000 and all(row["done"].get("bound") for row in rows)


def test_a_death_at_any_point_is_survived() -> None:
    """One history without other faults, killed at single points all over it; ``make soak`` takes more of them."""
    code, rows = simulate("5", "2", "--sweep", "4211")
    assert code == 0, [row.get("failed") for row in rows]
    assert len(rows) == 2 and all(row["deaths"] == 1 for row in rows)


def test_an_etcd_of_some_time_ago_is_survived() -> None:
    """Pods that ended are there again, newer ones are gone, and Belay's records are old; nodes know what they did."""
    code, rows = simulate("24", "2", "--restored")
    assert code == 0, [row.get("failed") for row in rows]
    assert all(row["faults"]["event restore"] == 1 and row["done"]["bound"] for row in rows)


def test_the_same_seed_gives_the_same_history() -> None:
    (_, first), (_, second) = simulate("4"), simulate("4")
    assert {**first[0], "seconds": 0} == {**second[0], "seconds": 0}


BROKEN = """
from tests.sim import clock
clock.install()
import logging, sys
logging.disable(logging.CRITICAL)
import tests.sim.history
from tests.sim.history import history
tests.sim.history.HEAL_SECONDS = 200.0
{mutation}
for seed in range(60, 72):
    try:
        history(seed)
    except AssertionError as error:
        print("found", str(error)[:200])
        break
"""
MUTATIONS = {
    "bindings that are reported and not made": (
        "import belay.engine.model.actions as a\n"
        "import belay.engine.act.table as t\n"
        "async def nothing(edge, action): return True\n"
        "t.TABLE[a.BindPod] = nothing\n"
    ),
    "a controller that drops changes": (
        "import belay.engine.observe.watch_events as i\n"
        "real = i.WatchEvents.receive\n"
        "count = [0]\n"
        "def broken(self, reflector, change):\n"
        "    count[0] += 1\n"
        "    if change.key[1].startswith('mindx-dl-deviceinfo') and count[0] > 200: return\n"
        "    real(self, reflector, change)\n"
        "i.WatchEvents.receive = broken\n"
    ),
}


@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_it_finds_what_is_broken_on_purpose(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BROKEN.format(mutation=MUTATIONS[name])],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "PYTHONHASHSEED": "0"},
    )
    assert done.stdout.startswith("found"), done.stderr[-1000:]


OWNERS = """
from tests.sim import clock
clock.install()
import asyncio, pathlib, tempfile
from tests.sim.world import World
async def main(ticks):
    world = World(1, pathlib.Path(tempfile.mkdtemp()), ticks, {})
    def pod(name, chips):
        return {"apiVersion": "v1", "kind": "Pod", "spec": {"nodeName": "node-0", "containers": []}, "status": {},
                "metadata": {"name": name, "namespace": "train", "uid": name,
                             "annotations": {"huawei.com/Ascend910": chips}}}
    world.api.put("pods", pod("one", "Ascend910-0,Ascend910-1"))
    assert not world.broken
    world.api.put("pods", pod("two", "Ascend910-1"))
    print(world.broken)
    world.broken.clear()
    await world.drivers["node-0"].reset(range(8))
    print(world.broken)
ticks = clock.Clock()
clock.run(ticks, main(ticks))
"""


def test_it_sees_chips_with_two_owners_and_resets_under_pods() -> None:
    done = subprocess.run([sys.executable, "-c", OWNERS], cwd=ROOT, capture_output=True, text=True, timeout=60)
    lines = done.stdout.splitlines()
    assert "chips with two owners" in lines[0] and "'one', 'two'" in lines[0], done.stderr[-1000:]
    assert "is reset while" in lines[1]


# ---- the Redis of simulations is held against a real one

SHARDS = ("a", "b", "main")
SOURCES = {
    "mark": _HEAD + _MARK,
    "ready": _HEAD + _READY,
    "claim": _HEAD + _CLAIM,
    "extend": _HEAD + _EXTEND,
    "done": _HEAD + _DONE,
    "free": _HEAD + _FREE,
}
FROZEN = "local clock = {'1788249600', '%d'}"
"""Stands in for the server's clock in the real scripts, so that both see the same time."""


def trigger_calls(chance: random.Random, count: int) -> list[tuple[str, list[Any]]]:
    calls: list[tuple[str, list[Any]]] = []
    for _ in range(count):
        name, shard, owner = chance.choice(sorted(SOURCES)), chance.choice(SHARDS), chance.choice(("w1", "w2:x"))
        now = 1788249600_000
        arguments: dict[str, list[Any]] = {
            "mark": [shard, chance.choice((0, now - 5, now + 300, now + 5000))],
            "ready": [chance.choice((0, 200, 5000)), chance.choice((1, 1000))],
            "claim": [shard, owner, chance.choice((100, 30000))],
            "extend": [shard, owner, chance.randrange(1, 6), 500],
            "done": [shard, owner, chance.randrange(1, 6)],
            "free": [chance.choice((owner, ""))],
        }
        calls.append((name, arguments[name]))
    return calls


@pytest.mark.parametrize("seed", range(6))
def test_trigger_scripts_do_what_redis_does(redis_url: str, seed: int) -> None:  # noqa: F811
    chance, client = random.Random(seed), connect(redis_url)
    client.flushall()
    ticks = [0]
    memory = Memory(lambda: 1788249600 + ticks[0] / 1_000_000)
    keys = [f"belay:{{triggers}}:{name}" for name in ("dirty", "busy", "sent", "epochs")]
    for name, arguments in trigger_calls(chance, 120):
        ticks[0] += chance.choice((0, 1_000, 150_000))
        source = SOURCES[name].replace("local clock = redis.call('TIME')", FROZEN % ticks[0])
        expected = client.eval(source, len(keys), *keys, *arguments)
        got = memory.script(SOURCES[name], keys, arguments)
        assert got == expected, (name, arguments)
        assert memory.hgetall(keys[1]) == client.hgetall(keys[1]) and memory.hgetall(keys[2]) == client.hgetall(keys[2])
        real = dict(client.zrange(keys[0], 0, -1, withscores=True))
        assert {m: memory.zscore(keys[0], m) for m in memory.zrangebyscore(keys[0], "-inf", "+inf")} == real
    client.flushall()


@pytest.mark.parametrize("seed", range(4))
def test_snapshot_scripts_and_commands_do_what_redis_does(redis_url: str, seed: int) -> None:  # noqa: F811
    chance, client = random.Random(seed), connect(redis_url)
    client.flushall()
    memory = Memory(lambda: 1788249600.0)
    keys = [f"belay:{{main}}:{name}" for name in ("objects", "log", "meta")]
    generation = "g0"
    for number in range(80):
        if number % 25 == 0:
            generation = f"g{number}"
            arguments: list[Any] = [generation]
            source = snapshot._BEGIN
        else:
            source = snapshot._PUT
            rows: list[Any] = []
            for field in chance.sample("abcdef", chance.randrange(4)):
                there = chance.choice("011")
                rows += [field, there, b"x%d" % number if there == "1" else b""]
            marks = [["v1|Pod", str(number)]] if chance.random() < 0.5 else []
            arguments = [
                chance.choice((generation, generation, "other")), chance.choice(("", "0", "1")), 3, len(marks),
                *(part for mark in marks for part in mark), *rows,
            ]  # fmt: skip
        assert memory.script(source, keys, arguments) == client.eval(source, len(keys), *keys, *arguments)
        assert [memory.hgetall(key) for key in keys[::2]] == [client.hgetall(key) for key in keys[::2]]
        assert memory.zrangebyscore(keys[1], "(2", "+inf") == client.zrangebyscore(keys[1], "(2", "+inf")
    fields = [bytes([letter]) for letter in b"abcxyz"]
    for plain in (
        lambda one: one.hmget(keys[0], fields),
        lambda one: one.hsetnx("h", "n", 1),
        lambda one: one.hset("h", mapping={"m": "2", "n": 3}),
        lambda one: one.hincrby("h", "n", 5),
        lambda one: one.hexists("h", "m"),
        lambda one: one.hdel("h", "m", "absent"),
        lambda one: one.lpush("l", "1"),
        lambda one: one.lpush("l", "2"),
        lambda one: one.llen("l"),
        lambda one: one.rpop("l"),
        lambda one: one.set("k", "v", ex=5),
        lambda one: one.get("k"),
        lambda one: one.zadd("z", {"a": 3, "b": 1}),
        lambda one: one.zadd("z", {"a": 5}, lt=True),
        lambda one: one.zrangebyscore("z", "-inf", 2),
        lambda one: one.zrem("z", "a", "b"),
        lambda one: sorted(one.scan_iter(match="*", count=10)),
        lambda one: one.delete("k", "absent"),
    ):
        assert plain(memory) == plain(client)
    client.flushall()
