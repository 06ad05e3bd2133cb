"""With the API server or the engine away, an agent goes on protecting its node, and catches up doing nothing twice."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from belay.engine.model.faults import CodeRules
from belay.engine.wire.policy import NodePolicy, build_policy
from tests.agent_world import FAULT, RULES, World
from tests.test_agent_orders import scenario

MINE = "80E18000"
"""PreSeparateNPU in the agent's own rules; SeparateNPU once the cluster's policy has been seen."""
POLICY = NodePolicy("default", CodeRules(overrides={MINE: ("SeparateNPU", "mine")}, table=RULES.table))


def test_it_isolates_by_the_last_policy_it_was_given_though_it_restarts_alone(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        world.cluster.set_map(build_policy(POLICY))
        await world.start(5)
        world.cluster.offline = True
        await world.restart(10)
        world.driver.inject(2, MINE)
        await world.run(10)
        assert "SeparateNPU" in (world.agent.withheld(2) or "") and "Pre" not in (world.agent.withheld(2) or "")
        writes = len(world.cluster.writes)
        await world.run(600)
        assert len(world.cluster.writes) == writes
        world.cluster.offline = False
        world.cluster.notify()
        await world.run(90)
        assert world.device.unhealthy == 1 << 2
        assert [fault.level for fault in world.device.faults] == ["SeparateNPU"]

    scenario(tmp_path, story)


def test_what_broke_and_healed_meanwhile_is_not_reported_as_broken(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.start(5)
        world.cluster.offline = True
        world.driver.inject(2, FAULT)
        await world.run(60)
        assert world.agent.withheld(2)
        world.driver.clear(2, FAULT)
        await world.run(60)
        assert world.agent.withheld(2) is None
        world.cluster.offline = False
        world.cluster.notify()
        await world.run(90)
        assert world.device.unhealthy == 0 and world.device.faults == ()

    scenario(tmp_path, story)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32))
def test_outages_restarts_and_repeated_orders_never_make_it_act_twice(seed: int) -> None:
    """Each epoch is ordered once or more; at the end every one ran at most once, and the newest was answered."""
    chance = random.Random(seed)

    async def story(world: World) -> None:
        await world.start(5)
        epoch = 0
        ordered: set[int] = set()
        for _ in range(chance.randint(4, 12)):
            what = chance.choice(("fault", "order", "again", "away", "back", "restart", "clear", "wait"))
            if what == "fault":
                world.driver.inject(chance.randrange(8), FAULT)
            elif what == "clear":
                world.driver.clear(chance.randrange(8), FAULT)
            elif what == "order":
                epoch += 1
                ordered.add(epoch)
                world.order(dict.fromkeys(range(8), epoch), life=chance.choice((60.0, 900.0)))
            elif what == "again" and epoch:
                world.order(dict.fromkeys(range(8), epoch))
            elif what in ("away", "back"):
                world.cluster.offline = what == "away"
                world.cluster.notify()
            elif what == "restart":
                await world.restart(2)
            await world.run(chance.choice((1.0, 15.0, 70.0, 200.0)))
            assert len(world.driver.resets) <= len(ordered), "an epoch ran twice"
        world.cluster.offline = False
        world.cluster.notify()
        await world.run(400)
        assert len(world.driver.resets) <= len(ordered), "an epoch ran twice"
        if epoch:
            done, result = world.result(0)
            assert done == epoch and result.startswith(("ok", "failed", "refused")), "the newest order is answered"
        for chip in range(8):
            faulty = any(fault.chip == chip for fault in world.device.faults)
            assert bool(world.device.unhealthy >> chip & 1) == faulty, "the report is the hardware's present state"

    with tempfile.TemporaryDirectory() as folder:
        scenario(Path(folder), story)
