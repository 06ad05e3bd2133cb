"""Holds and refusals around resets: each is shown with its rule and its end, and expires."""

from __future__ import annotations

from typing import Any

import msgspec

from belay.engine.model.actions import ReleaseChip, ResetChips
from belay.engine.model.cluster import AgentVNPU, Observed
from belay.engine.model.history import ChipMemory, CodeMemory, History, Hold, NodeMemory
from belay.engine.plan import plan
from belay.engine.plan.health.states import with_entry
from belay.engine.status.events import RELEASE, release_events
from tests.worlds import NOW, agent, decide, desired, document, fault, node, observed, orders, report, reset_order

MS = int(NOW * 1000)
HOUR = 3_600_000
GROUP = range(8)


def remembered(**row: Any) -> History:
    return History(nodes={"n0": NodeMemory(chips={chip: ChipMemory(**row) for chip in GROUP})})


def world(*, bad: bool = True, written: float = NOW - 2, **more: Any) -> Observed:
    faults = [fault(3)] if bad else []
    return observed([node("n0")], [report("n0", faults=faults, update_time=written)], **more)


def resets(snapshot: Observed) -> list[ResetChips]:
    return [a for a in decide(snapshot).actions if isinstance(a, ResetChips)]


def test_a_group_without_attempts_shows_the_reset_as_deferred_in_every_pass() -> None:
    history = remembered(resets=(MS - 3 * HOUR, MS - 2 * HOUR, MS - HOUR))
    for _ in range(2):
        result = plan(desired(), world(history=history), NOW)
        assert not any(isinstance(a, ResetChips) for a in result.actions)
        (deferred,) = result.deferred
        assert (deferred.budget, deferred.until) == ("attempts:reset", "2026-09-01T11:00:00Z")
        assert any("held: attempt-budget" in d.message and "T11:00:00Z" in d.message for d in result.diagnostics)
        history = result.history


def test_a_reset_is_ordered_only_while_the_agent_reports() -> None:
    assert not resets(world(agents=[agent("n0", processes={5: 1}, at=NOW - 180)]))
    assert resets(world(agents=[agent("n0", at=NOW - 180)]))
    silent = world(agents=[agent("n0", at=NOW - 181)])
    assert not resets(silent)
    assert any("silent for 181 s" in d.message for d in plan(desired(), silent, NOW).diagnostics)


def failed(*, written: float, bad: bool) -> Observed:
    order = orders("n0", resets={chip: reset_order(1, GROUP) for chip in GROUP}, isolate={3: "RestartNPU"})
    answer = agent("n0", done=dict.fromkeys(GROUP, (1, "failed: boot")), at=NOW - 30)
    history = remembered(epoch=1, ordered=MS - 60_000, resets=(MS - 60_000,))
    return world(bad=bad, written=written, standing=[order], agents=[answer], history=history)


def test_after_a_failed_reset_the_whole_group_waits_for_a_newer_report() -> None:
    scope = decide(failed(written=NOW - 50, bad=True))
    assert scope.nodes["n0"].free == 0
    assert {h.kind for h in scope.memory.nodes["n0"].chips[0].holds} == {"bad-boot"}
    scope = decide(failed(written=NOW - 5, bad=False))
    assert scope.nodes["n0"].free == 0xFF
    assert not scope.memory.nodes["n0"].chips.get(0, ChipMemory()).holds


def test_a_failed_reset_is_tried_again_once_a_newer_report_still_shows_the_fault() -> None:
    (again,) = resets(failed(written=NOW - 5, bad=True))
    assert again.epoch == 2


def test_a_node_gone_for_a_month_is_forgotten_unless_a_person_must_end_its_holds() -> None:
    month = 30 * 24 * HOUR
    old, new = ChipMemory(resets=(MS - month - 1,)), ChipMemory(resets=(MS - month + 1,))
    bound = ChipMemory(holds=(Hold("frequency", "ManuallySeparateNPU", since=MS - month - 1, rule="80A18008"),))
    rows = {"gone": old, "recent": new, "bound": bound}
    history = History(nodes={name: NodeMemory(chips={0: row}) for name, row in rows.items()})
    assert set(plan(desired(), world(history=history), NOW).history.nodes) >= {"recent", "bound"}
    assert "gone" not in plan(desired(), world(history=history), NOW).history.nodes


def test_an_unknown_level_counts_as_separate() -> None:
    result = plan(desired(), observed([node("n0")], [report("n0", faults=[fault(3, level="Molten")])]), NOW)
    assert [(c.state, c.level) for c in result.chips] == [("isolated", "SeparateNPU")]


def test_a_pending_reset_is_shown_with_its_end() -> None:
    order = orders("n0", resets={chip: reset_order(1, GROUP) for chip in GROUP}, isolate={3: "RestartNPU"})
    result = plan(desired(), world(standing=[order]), NOW)
    assert {c.state for c in result.chips} == {"resetting"}
    assert any("reset-pending" in d.message and "T08:14:00Z" in d.message for d in result.diagnostics)


def test_the_end_of_an_upgrade_is_reported_once_in_the_device_plugins_format() -> None:
    hold = Hold("frequency", "PreSeparateNPU", since=MS - HOUR, until=MS - 1, rule="80E18005")
    memory = ChipMemory(codes={"80E18005": CodeMemory(MS - HOUR, MS - HOUR, False, (), MS - HOUR)}, holds=(hold,))
    history = History(nodes={"n0": NodeMemory(chips={3: memory})})
    rule = {"codes": ["80E18005"], "times": 2, "window": "24h", "level": "PreSeparateNPU"}
    standing = desired(document("FaultPolicy", "f", frequency=[rule | {"releaseAfter": "2h"}]))
    seen = world(bad=False, history=history)
    assert release_events(seen, plan(standing, seen, NOW)) == []
    over = desired(document("FaultPolicy", "f", frequency=[rule | {"releaseAfter": "30m"}]))
    result = plan(over, seen, NOW)
    (event,) = release_events(seen, result)
    assert (event["reason"], event["action"], event["type"]) == (RELEASE, RELEASE, "Normal")
    assert event["metadata"] == {"name": f"n0.EventReleaseUpgradeFault.{MS}", "namespace": "kube-system"}
    assert event["message"] == (
        f'{{"Ascend910-3":[{{"upgrade_time":{MS - HOUR},"fault_code":"80e18005",'
        '"fault_level":"PreSeparateNPU","upgrade_type":"FaultFrequency"}]}'
    )
    later = world(bad=False, history=result.history)
    assert release_events(later, plan(over, later, NOW + 1)) == []


OFTEN = {"codes": ["A1"], "times": 2, "window": "24h", "level": "SeparateNPU", "releaseAfter": "1h"}


def flapped(rule: dict[str, Any] = OFTEN) -> tuple[History, Any]:
    """Chip 3, raised by the rule a moment ago; its code is still there."""
    policy = document("FaultPolicy", "p", frequency=[rule])
    past = CodeMemory(first=1, last=1, present=False, occurrences=(int((NOW - 3600) * 1000),), recovered=1)
    before = remembered(codes={"A1": past})
    scope = decide(seen(NOW, NOW - 5, before), desired(policy))
    assert [h.kind for h in scope.memory.nodes["n0"].chips[3].holds] == ["frequency"]
    return scope.memory.frozen(), policy


def seen(now: float, raised: float | None, history: History) -> Observed:
    faults = [fault(3, "A1", "NotHandleFault", at=raised)] if raised is not None else []
    return observed([node("n0")], [report("n0", faults=faults, update_time=now - 1)], history=history)


def test_counting_restarts_after_an_upgrade() -> None:
    """Else a code that merely stays would lengthen the hold in every pass."""
    history, policy = flapped()
    since: list[int] = []
    for later, raised in ((600.0, NOW - 5), (1200.0, NOW + 1100), (1800.0, NOW + 1700)):
        scope = decide(seen(NOW + later, raised, history), desired(policy), now=NOW + later)
        history = scope.memory.frozen()
        since.append(scope.memory.nodes["n0"].chips[3].holds[0].since // 1000 - int(NOW))
    assert since == [0, 0, 1800], "not by staying, not by one more occurrence, by the second"


def test_a_rule_that_is_deleted_takes_its_upgrades_with_it_but_not_what_a_person_must_end() -> None:
    history, _ = flapped()
    scope = decide(seen(NOW + 60, None, history))
    assert scope.chips == [] and scope.memory.nodes["n0"].chips[3].holds == ()
    by_hand, _ = flapped({"codes": ["A1"], "times": 2, "window": "24h", "level": "ManuallySeparateNPU"})
    scope = decide(seen(NOW + 60, None, by_hand))
    assert [(c.state, c.level) for c in scope.chips] == [("manually-isolated", "ManuallySeparateNPU")]
    assert [(h.kind, h.until) for h in scope.memory.nodes["n0"].chips[3].holds] == [("frequency", 0)]


def test_a_duration_rule_never_lowers_a_level_nor_holds_it_back() -> None:
    rule = {"codes": ["80C98001"], "timeout": "60s", "recover": "60s", "level": "SubHealthFault"}
    policy = document("FaultPolicy", "p", duration=[rule])
    for age in (5, 600):
        bad = observed([node("n0")], [report("n0", faults=[fault(3, at=NOW - age)])])
        (row,) = decide(bad, desired(policy)).chips
        assert (row.state, row.level) == ("isolated", "RestartNPU")


def test_no_policy_resets_a_manually_isolated_chip() -> None:
    policy = document("FaultPolicy", "p", actions={"ManuallySeparateNPU": {"idle": "reset"}})
    held = report("n0", faults=[fault(3)], manual=[3])
    scope = decide(observed([node("n0")], [held]), desired(policy))
    assert [c.state for c in scope.chips] == ["manually-isolated"]
    assert [a for a in scope.actions if isinstance(a, ResetChips)] == []


def test_an_untaken_order_delays_the_next_one() -> None:
    """The hold lasts as long as it says, in every pass, also when the first order is out of sight."""
    hold = Hold("no-agent", "RestartNPU", since=int(NOW * 1000), until=int((NOW + 900) * 1000), rule="notAfter")
    for at, count in ((0.0, 0), (899.0, 0), (901.0, 1)):
        snapshot = world(written=NOW + at - 1, history=remembered(holds=(hold,), epoch=1))
        found = [a for a in decide(snapshot, now=NOW + at).actions if isinstance(a, ResetChips)]
        assert len(found) == count, at


def test_a_chip_is_not_released_while_its_reset_is_under_way() -> None:
    standing = orders("n0", isolate={3: "RestartNPU"}, resets={c: reset_order(1, range(8)) for c in range(8)})
    scope = decide(world(bad=False, standing=[standing]))
    assert [a for a in scope.actions if isinstance(a, ReleaseChip)] == []
    assert {c.state for c in scope.chips} == {"resetting"}


def test_attempts_that_a_policy_lowered_are_free_again_when_few_enough_are_left() -> None:
    times = tuple(int((NOW - minutes * 60) * 1000) for minutes in (300, 200, 100))
    history = History(nodes={"n0": NodeMemory(chips=dict.fromkeys(range(8), ChipMemory(epoch=3, resets=times)))})
    policy = document("FaultPolicy", "p", attempts={"reset": {"max": 2, "window": "6h"}})
    scope = decide(world(history=history), desired(policy))
    # the second of the three must leave the window: 200 minutes ago, so in 160
    assert [d.until for d in scope.deferred if isinstance(d.action, ResetChips)] == ["2026-09-01T10:40:00Z"]


def test_a_used_vnpu_keeps_its_chips_group_from_a_reset() -> None:
    free, used = (
        msgspec.structs.replace(agent("n0"), vnpus=(AgentVNPU(100, 5, "vir04", user),)) for user in ("", "train/p")
    )
    assert len(resets(world(agents=[free]))) == 1 and resets(world(agents=[used])) == []


def test_nothing_is_reset_while_the_ledger_is_unreadable() -> None:
    assert len(resets(world())) == 1
    assert resets(msgspec.structs.replace(world(), ledger_broken=True)) == []


def test_a_timeline_is_bounded() -> None:
    memory = ChipMemory()
    for moment in range(50):
        memory = with_entry(memory, moment, f"{moment}")
    assert [at for at, _ in memory.timeline] == list(range(30, 50))
