"""Holds and refusals around resets: each is shown with its rule and its end, and ends by itself."""

from __future__ import annotations

from typing import Any

from engine.model.actions import ResetChips
from engine.model.cluster import Observed
from engine.model.history import ChipMemory, CodeSeen, History, Hold, NodeMemory
from engine.plan import plan
from engine.status.events import RELEASE, release_events
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


def test_processes_count_only_while_the_agents_report_is_fresh() -> None:
    assert not resets(world(agents=[agent("n0", processes={5: 1}, at=NOW - 180)]))
    silent = world(agents=[agent("n0", processes={5: 1}, at=NOW - 181)])
    assert resets(silent)
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


def test_a_level_that_nobody_knows_counts_as_separate() -> None:
    result = plan(desired(), observed([node("n0")], [report("n0", faults=[fault(3, level="Molten")])]), NOW)
    assert [(c.state, c.level) for c in result.chips] == [("isolated", "SeparateNPU")]


def test_a_pending_reset_is_shown_with_its_end() -> None:
    order = orders("n0", resets={chip: reset_order(1, GROUP) for chip in GROUP}, isolate={3: "RestartNPU"})
    result = plan(desired(), world(standing=[order]), NOW)
    assert {c.state for c in result.chips} == {"resetting"}
    assert any("reset-pending" in d.message and "T08:14:00Z" in d.message for d in result.diagnostics)


def test_an_upgrade_that_ends_is_told_once_in_the_device_plugins_words() -> None:
    hold = Hold("frequency", "PreSeparateNPU", since=MS - HOUR, until=MS - 1, rule="80E18005")
    memory = ChipMemory(codes={"80E18005": CodeSeen(MS - HOUR, MS - HOUR, False, (), MS - HOUR)}, holds=(hold,))
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
