"""Reset: offered once the group is idle, under a growing epoch, and never too often."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from belay.engine.model.actions import PatchObject, ResetChips
from belay.engine.model.cluster import AgentReport, Observed
from belay.engine.model.history import ChipMemory, History, NodeMemory
from tests.steps import Steps
from tests.worlds import (
    NOW,
    agent,
    decide,
    desired,
    document,
    fault,
    node,
    observed,
    orders,
    pod,
    report,
    reset_order,
)

ALL = tuple(f"Ascend910-{i}" for i in range(8))
MS = int(NOW * 1000)


def world(
    level: str = "RestartNPU", *, pods: Any = (), bad: bool = True, update: float = NOW - 2, **more: Any
) -> Observed:
    """Node n0 with chip 3 faulty, beside a healthy one."""
    mine = report("n0", faults=[fault(3, level=level)] if bad else (), update_time=update, version=str(update))
    return observed([node("n0"), node("n1")], [mine, report("n1", update_time=update)], pods, **more)


def resets(scope: Steps) -> list[ResetChips]:
    return [a for a in scope.actions if isinstance(a, ResetChips)]


@pytest.mark.parametrize("level", ["RestartRequest", "RestartBusiness", "FreeRestartNPU", "RestartNPU"])
def test_an_idle_ring_is_reset_as_a_whole(level: str) -> None:
    scope = decide(world(level))
    assert [(a.node, a.chips, a.epoch, a.out_of_band) for a in resets(scope)] == [("n0", ALL, 1, False)]
    rows = scope.memory.nodes["n0"].chips
    assert {r.epoch for r in rows.values()} == {1} and {r.resets for r in rows.values()} == {(MS,)} and len(rows) == 8


@pytest.mark.parametrize(
    "level", ["NotHandleFault", "SubHealthFault", "PreSeparateNPU", "SeparateNPU", "ManuallySeparateNPU"]
)
def test_levels_that_no_reset_heals(level: str) -> None:
    assert resets(decide(world(level))) == []


def test_a_network_fault_is_not_reset() -> None:
    net = fault(3, "81078603", "PreSeparateNPU", kind="CardNetworkUnhealthy")
    assert resets(decide(observed([node("n0")], [report("n0", faults=[net], network=[3])]))) == []


def test_a_reset_names_the_fault_of_the_chip_plane() -> None:
    net = fault(3, "81078603", "PreSeparateNPU", kind="CardNetworkUnhealthy")
    both = observed([node("n0")], [report("n0", faults=[fault(3, level="RestartNPU"), net], network=[3])])
    scope = decide(both)
    (made,) = resets(scope)
    assert made.message.startswith("node n0: Ascend910-3 RestartNPU may be healed by a reset")
    assert [c.level for c in scope.chips] == ["PreSeparateNPU"], "people see the worse of both"


@pytest.mark.parametrize(
    "busy",
    [
        pod("p", node="n0", chips=[0]),
        pod("p", node="n0", chips=[0], deleting=NOW - 5),
        pod("p", node="n0", count=1),
        pod("p", node="n0", chips=[3], owner=("AscendJob", "j"), labels={"fault-scheduling": "force"}),
    ],
    ids=["peer", "terminating", "unannotated", "evicted now"],
)
def test_a_group_in_use_waits(busy: Any) -> None:
    assert resets(decide(world(pods=[busy]))) == []


def test_finished_pods_and_other_nodes_do_not_block() -> None:
    pods = [pod("f", node="n0", chips=[0], phase="Succeeded"), pod("o", node="n1", chips=[0])]
    assert len(resets(decide(world(pods=pods)))) == 1


PLUGIN = pod(
    "ascend-device-plugin-x", namespace="kube-system", node="n0", labels={"name": "ascend-device-plugin-ds"}, count=0
)


@pytest.mark.parametrize(
    "more",
    [{"agents": []}, {"agents": [agent("n0", at=NOW - 181)]}, {"pods": [PLUGIN]}],
    ids=["no agent", "silent agent", "device plugin beside it"],
)
def test_nothing_is_reset_where_no_agent_lives(more: dict[str, Any]) -> None:
    """The device plugin resets by its own rules there; the peers of the faulty chip stay free."""
    scope = decide(world(**more))
    assert resets(scope) == [] and scope.nodes["n0"].free == 0xFF & ~0b1000


def test_nothing_waits_for_a_reset_whose_agent_has_left() -> None:
    for agents, plugins in (([], []), ([agent("n0", at=NOW - 130)], [PLUGIN]), ([agent("n0", at=NOW - 130)], [])):
        left = msgspec.structs.replace(ordered(update=NOW + 58), agents={a.node: a for a in agents})
        left = msgspec.structs.replace(left, pods={p.key: p for p in plugins})
        scope = decide(left, now=NOW + 60)
        assert scope.nodes["n0"].free == 0xFF & ~0b1000 and states(scope) == {"isolated"}
        healed = msgspec.structs.replace(
            left, history=scope.memory.frozen(""), reports={"n0": report("n0", update_time=NOW + 61)}
        )
        assert decide(healed, now=NOW + 62).nodes["n0"].free == 0xFF


def test_the_role_of_device_reports_says_whether_agents_take_orders() -> None:
    settings = document("SchedulingSettings", "settings", roles={"deviceReport": "off"})
    assert resets(decide(world(), desired(settings))) == []
    settings = document("SchedulingSettings", "settings", roles={"deviceReport": "on"})
    assert len(resets(decide(world(pods=[PLUGIN]), desired(settings)))) == 1


def test_processes_claims_and_bindings_block() -> None:
    assert resets(decide(world(agents=[agent("n0", processes={6: 1})]))) == []
    assert len(resets(decide(world(agents=[agent("n0")])))) == 1
    waiting = pod("w", count=1)
    assert resets(decide(world(pods=[waiting], ledger={"n0/Ascend910-5": waiting.uid}))) == []


def test_only_a_ready_node_with_a_good_fresh_report_is_reset() -> None:
    assert resets(decide(world(update=NOW - 700))) == []
    assert resets(decide(world(problems={"n0": "CheckCode is wrong"}))) == []
    silent = world()
    nodes = dict(silent.nodes) | {"n0": node("n0", ready=False, ready_changed=NOW - 10)}
    assert resets(decide(msgspec.structs.replace(silent, nodes=nodes))) == []


def test_the_epoch_is_above_orders_report_and_history() -> None:
    seen: dict[str, Any] = {
        "standing": [orders("n0", resets={3: reset_order(4, range(8))}, issued=NOW - 7000)],
        "agents": [agent("n0", done={5: (9, "ok"), 3: (4, "ok")})],
        "history": History(nodes={"n0": NodeMemory(chips={1: ChipMemory(epoch=6)})}),
    }
    assert [a.epoch for a in resets(decide(world(**seen)))] == [10]


def ordered(*, bad: bool = True, update: float = NOW - 2, done: str = "", **more: Any) -> Observed:
    """A world a minute after its reset was ordered."""
    past = decide(world()).memory.frozen("")
    rows = dict.fromkeys(range(8), (1, done)) if done else {}
    standing = orders(
        "n0", isolate={3: "RestartNPU"}, resets={i: reset_order(1, range(8)) for i in range(8)}, issued=NOW
    )
    heard = [agent("n0", done=rows, orders_seen=1, at=NOW + 60)] if done else [agent("n0", at=update)]
    return world(bad=bad, update=update, history=past, standing=[standing], agents=heard, **more)


def states(scope: Steps) -> set[str]:
    return {r.state for r in scope.chips if r.node == "n0"}


def test_an_order_without_answer_keeps_the_whole_group_out() -> None:
    scope = decide(ordered(), now=NOW + 60)
    assert resets(scope) == [] and scope.nodes["n0"].free == 0
    assert states(scope) == {"resetting"} and len(scope.chips) == 8


def test_after_the_answer_the_group_recovers_until_a_newer_clean_report() -> None:
    waiting = decide(ordered(done="ok"), now=NOW + 65)
    assert states(waiting) == {"recovering"} and waiting.nodes["n0"].free == 0 and resets(waiting) == []
    kept = waiting.memory.frozen("")
    clean = ordered(done="ok", bad=False, update=NOW + 70)
    scope = decide(msgspec.structs.replace(clean, history=kept), now=NOW + 71)
    assert scope.nodes["n0"].free == 0xFF and states(scope) == set() and scope.memory.nodes["n0"].chips[3].ordered == 0
    assert [type(a).__name__ for a in scope.actions] == ["ReleaseChip"]


def test_a_fault_that_outlives_its_reset_is_reset_again_while_attempts_last() -> None:
    history, tried, now = History(), [], NOW
    for _ in range(6):
        chips = history.nodes.get("n0", NodeMemory()).chips
        epoch = chips[3].epoch if chips else 0
        snapshot = world(
            update=now - 1,
            history=history,
            standing=[orders("n0", resets={i: reset_order(epoch, range(8)) for i in range(8)}, issued=now - 90)],
            agents=[agent("n0", done=dict.fromkeys(range(8), (epoch, "failed: boot timeout")), at=now - 30)],
        )
        scope = decide(snapshot, now=now)
        tried += [a.epoch for a in resets(scope)]
        history, now = scope.memory.frozen(""), now + 400
    assert tried == [1, 2, 3]
    hold = next(h for h in history.nodes["n0"].chips[3].holds if h.kind == "attempt-budget")
    assert hold.until == MS + 6 * 3600 * 1000
    freed = world(update=NOW + 6 * 3600 + 1, history=history)
    assert len(resets(decide(freed, now=NOW + 6 * 3600 + 2))) == 1


def test_attempts_follow_the_policy() -> None:
    spent = History(nodes={"n0": NodeMemory(chips={0: ChipMemory(epoch=1, resets=(MS - 1000,))})})
    assert len(resets(decide(world(history=spent)))) == 1
    once = document("FaultPolicy", "p", attempts={"reset": {"max": 1, "window": "1h"}})
    assert resets(decide(world(history=spent), desired(once))) == []


def test_an_untaken_order_ends_as_a_hold() -> None:
    late = ordered(update=NOW + 899)
    assert states(decide(late, now=NOW + 900)) == {"resetting"}
    scope = decide(late, now=NOW + 901)
    assert resets(scope) == [] and states(scope) == {"isolated"}
    assert [h.kind for h in scope.memory.nodes["n0"].chips[3].holds] == ["no-agent"]
    assert scope.nodes["n0"].free == 0xFF & ~0b1000
    again = world(update=NOW + 1900, history=scope.memory.frozen(""), standing=late.orders.values())
    assert [a.epoch for a in resets(decide(again, now=NOW + 1901))] == [2]


def test_an_order_of_a_clock_a_day_ahead_ends_as_any_other() -> None:
    past = decide(world()).memory.frozen("")
    stood = [orders("n0", resets={i: reset_order(1, range(8)) for i in range(8)}, issued=NOW + 86_400)]
    later = world(update=NOW + 800, history=past, standing=stood)
    assert states(decide(later, now=NOW + 800)) == {"resetting"}
    scope = decide(world(update=NOW + 901, history=past, standing=stood), now=NOW + 902)
    assert states(scope) == {"isolated"}
    assert [hold.kind for hold in scope.memory.nodes["n0"].chips[3].holds] == ["no-agent"]


def test_an_expired_order_delays_the_next_even_without_a_memory() -> None:
    stood = [orders("n0", resets={i: reset_order(7, range(8)) for i in range(8)}, issued=NOW - 1000)]
    assert resets(decide(world(standing=stood))) == []
    stood = [orders("n0", resets={i: reset_order(7, range(8)) for i in range(8)}, issued=NOW - 1801)]
    assert [a.epoch for a in resets(decide(world(standing=stood)))] == [8]


def test_a_done_order_without_a_memory_waits_for_a_report_newer_than_the_answer() -> None:
    stood = [orders("n0", resets={i: reset_order(7, range(8)) for i in range(8)}, issued=NOW - 120)]
    heard = [agent("n0", done=dict.fromkeys(range(8), (7, "ok")), at=NOW - 1)]
    scope = decide(world(standing=stood, agents=heard))
    assert states(scope) == {"recovering"} and resets(scope) == []
    heard = [agent("n0", done=dict.fromkeys(range(8), (7, "ok")), at=NOW - 60)]
    assert [a.epoch for a in resets(decide(world(standing=stood, agents=heard)))] == [8]


def test_a_withdrawn_order_counts_until_the_agent_has_seen_it() -> None:
    past = decide(world()).memory.frozen("")
    withdrawn = [orders("n0", generation=5, issued=NOW + 10)]
    unseen = world(history=past, standing=withdrawn, agents=[agent("n0", orders_seen=4)])
    assert states(decide(unseen, now=NOW + 30)) == {"resetting"}
    seen = world(history=past, standing=withdrawn, agents=[agent("n0", orders_seen=5)])
    scope = decide(seen, now=NOW + 30)
    assert "resetting" not in states(scope) and scope.nodes["n0"].free == 0xF7
    refused = world(history=past, standing=[orders("n0", issued=NOW - 60)])
    assert "resetting" not in states(decide(refused, now=NOW + 30))


def test_a_refused_order_frees_the_peers_and_waits_for_a_newer_report() -> None:
    scope = decide(ordered(done="refused: in use"), now=NOW + 65)
    assert scope.nodes["n0"].free == 0xF7 and resets(scope) == []
    newer = msgspec.structs.replace(ordered(done="refused: in use", update=NOW + 80), history=scope.memory.frozen(""))
    assert [a.epoch for a in resets(decide(newer, now=NOW + 81))] == [2]


def test_small_groups_and_out_of_band_by_product() -> None:
    old = observed(
        [node("r", labels={"accelerator-type": "module"})],
        [report("r", faults=[fault(6)])],
        [pod("p", node="r", chips=[0])],
    )
    assert [a.chips for a in resets(decide(old))] == [ALL[4:]]
    a3 = observed(
        [node("a", chips=16, labels={"accelerator-type": "module-a3-16"})], [report("a", chips=16, faults=[fault(6)])]
    )
    assert [(a.chips, a.out_of_band) for a in resets(decide(a3))] == [(ALL[4:], True)]


def test_a_server_with_more_chips_than_its_model_resets_as_a_whole() -> None:
    """A 910B node resets 8 chips together, all 16 where it has more than 8."""
    box = observed([node("b", chips=16)], [report("b", chips=16, faults=[fault(12)])])
    assert [a.chips for a in resets(decide(box))] == [tuple(f"Ascend910-{i}" for i in range(16))]


CROSSED = tuple((c, c + 1, c + 8, c + 9) for c in range(0, 8, 2))
"""Pairs of A3 modules that are no neighbours."""


def said(name: str, groups: tuple[tuple[int, ...], ...], chips: int = 8) -> AgentReport:
    return msgspec.structs.replace(agent(name, chips=chips), reset_groups=groups)


def test_modules_reset_with_those_that_the_driver_names() -> None:
    """The agent refuses a group that lacks the module sharing optical ports: with the table's pairs none would run."""
    nodes = [node("a", chips=16, labels={"accelerator-type": "module-a3-16"})]
    seen = observed(nodes, [report("a", chips=16, faults=[fault(6)])], agents=[said("a", CROSSED, 16)])
    assert [a.chips for a in resets(decide(seen))] == [tuple(f"Ascend910-{i}" for i in (6, 7, 14, 15))]


def test_a_server_without_hccs_resets_one_chip_while_others_work() -> None:
    """An Atlas 800I A2 has the labels of an 800T A2 with or without HCCS; its driver knows the board."""
    busy = [pod("p", node="n0", chips=[0])]
    assert resets(decide(world(pods=busy, agents=[agent("n0")]))) == []
    alone = said("n0", tuple((c,) for c in range(8)))
    assert [a.chips for a in resets(decide(world(pods=busy, agents=[alone])))] == [("Ascend910-3",)]


def test_an_unknown_product_resets_what_its_driver_names() -> None:
    odd = [node("x", labels={"accelerator-type": "who-knows"})]
    ring = said("x", (tuple(range(4)), tuple(range(4, 8))))
    (action,) = resets(decide(observed(odd, [report("x", faults=[fault(3)])], agents=[ring])))
    assert action.chips == ALL[:4] and "groups of the driver" in action.evidence.rule


def test_an_unknown_product_resets_only_as_a_whole_idle_node() -> None:
    odd = [node("x", labels={"accelerator-type": "who-knows"})]
    assert [a.chips for a in resets(decide(observed(odd, [report("x", faults=[fault(3)])])))] == [ALL]


def test_a_clean_report_of_the_orders_own_second_ends_recovery() -> None:
    """Reports carry whole seconds, orders milliseconds: a fast reset must not wait for the next periodic report."""
    ordered = int(NOW * 1000) - 1200
    memory = ChipMemory(epoch=1, ordered=ordered, resets=(ordered,))
    seen = world(
        bad=False,
        update=float(ordered // 1000),
        agents=[agent("n0", done=dict.fromkeys(range(8), (1, "ok")), at=NOW - 0.5)],
        history=History(nodes={"n0": NodeMemory(chips=dict.fromkeys(range(8), memory))}),
    )
    assert [c for c in decide(seen).chips if c.state != "healthy"] == []


def spent(
    *,
    boot: str = "boot-1",
    asked: tuple[int, str] = (0, ""),
    bad: bool = True,
    answer: str = "failed: 80C98001 remains",
) -> Steps:
    """A node whose group has used up its three resets."""
    times = tuple(int((NOW - m * 600) * 1000) for m in (3, 2, 1))
    memory = NodeMemory(chips=dict.fromkeys(range(8), ChipMemory(epoch=3, resets=times)), reboot=asked)
    heard = msgspec.structs.replace(agent("n0", done=dict.fromkeys(range(8), (3, answer))), boot=boot)
    return decide(world(bad=bad, agents=[heard], history=History(nodes={"n0": memory})))


def asked(scope: Steps) -> list[tuple[str, object]]:
    return [
        (a.name, a.patch["metadata"]["annotations"]["belay.dev/reboot-requested"])
        for a in scope.actions
        if isinstance(a, PatchObject) and a.object_kind == "Node"
    ]


def test_failed_resets_request_one_reboot_and_then_a_person() -> None:
    first = spent()
    assert resets(first) == [] and [d.budget for d in first.deferred] == ["attempts:reset"]
    assert asked(first) == [("n0", "2026-09-01T08:00:00Z Ascend910-3 RestartNPU")]
    assert first.memory.nodes["n0"].reboot == (int(NOW * 1000), "boot-1")
    again = spent(asked=(1, "boot-1"))
    assert asked(again) == [] and not again.diagnostics
    rebooted = spent(boot="boot-2", asked=(1, "boot-1"))
    assert asked(rebooted) == []
    assert [d.message for d in rebooted.diagnostics if d.object == "Node/n0"] == [
        "node n0: Ascend910-3 RestartNPU is still there after 3 resets and a reboot; a person must look at it"
    ]
    healed = spent(boot="boot-2", asked=(1, "boot-1"), bad=False)
    assert asked(healed) == [("n0", None)] and healed.memory.nodes["n0"].reboot == (0, "")


def test_resets_that_were_not_carried_out_request_no_reboot() -> None:
    assert asked(spent(answer="refused: in use by train/p")) == []
    times = tuple(int((NOW - m * 600) * 1000) for m in (3, 2, 1))
    memory = NodeMemory(chips=dict.fromkeys(range(8), ChipMemory(epoch=3, resets=times)))
    assert asked(decide(world(history=History(nodes={"n0": memory})))) == [], "a node without Belay's agent"
