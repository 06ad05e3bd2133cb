"""Maintenance windows: when they are open, and what waits for them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
import pytest

from belay.engine.documents.windows import MaintenanceWindow, closed, cron
from belay.engine.load import load
from belay.engine.model.actions import EvictPod, IsolateChip, ResetChips
from tests.steps import Steps
from tests.test_plan_recover import evictions, gang, world
from tests.worlds import NOW, agent, decide, desired, document, fault, node, observed, report


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def window(kind: str, schedule: str, duration: str, **more: Any) -> MaintenanceWindow:
    row = {"kind": kind, "schedule": schedule, "duration": duration, "actions": ["ResetChips"]} | more
    return MaintenanceWindow.model_validate(row)


EVERYWHERE: frozenset[str] = frozenset({"default"})


@pytest.mark.parametrize(
    ("schedule", "duration", "moment", "until"),
    [
        ("0 22 * * *", "8h", "2026-09-01T23:00:00Z", "2026-09-02T06:00:00Z"),
        ("0 22 * * *", "8h", "2026-09-02T05:59:59Z", "2026-09-02T06:00:00Z"),
        ("0 22 * * *", "8h", "2026-09-02T06:00:00Z", None),
        ("0 22 * * *", "8h", "2026-09-01T22:00:00Z", "2026-09-02T06:00:00Z"),
        ("*/15 9-17 * * MON-FRI", "5m", "2026-09-01T09:17:00Z", "2026-09-01T09:20:00Z"),
        ("*/15 9-17 * * MON-FRI", "5m", "2026-09-01T09:21:00Z", None),
        ("*/15 9-17 * * 1-5", "5m", "2026-09-05T09:17:00Z", None),
        ("0 0 1 JAN,SEP *", "24h", "2026-09-01T23:59:00Z", "2026-09-02T00:00:00Z"),
        ("0 0 13 * FRI", "24h", "2026-09-04T12:00:00Z", "2026-09-05T00:00:00Z"),
        ("0 0 13 * FRI", "24h", "2026-09-13T12:00:00Z", "2026-09-14T00:00:00Z"),
        ("@weekly", "72h", "2026-09-08T12:00:00Z", "2026-09-09T00:00:00Z"),
        ("0 0 * * 7", "24h", "2026-09-06T12:00:00Z", "2026-09-07T00:00:00Z"),
    ],
)
def test_a_window_is_open_from_each_start_for_its_duration(
    schedule: str, duration: str, moment: str, until: str | None
) -> None:
    found = window("allow", schedule, duration).open_until(at(moment))
    assert found == (at(until) if until else None)


def test_a_window_follows_the_clocks_of_its_zone() -> None:
    night = window("allow", "30 2 * * *", "1h", timeZone="Europe/Berlin")
    assert night.open_until(at("2026-07-01T00:45:00Z")) == at("2026-07-01T01:30:00Z")
    assert night.open_until(at("2026-12-01T01:45:00Z")) == at("2026-12-01T02:30:00Z")
    skipped = at("2026-03-29T00:59:00Z")
    assert night.next_start(skipped) == at("2026-03-30T00:30:00Z"), "02:30 does not happen on that day"


@pytest.mark.parametrize(
    ("kinds", "moment", "verdict"),
    [
        ((), "2026-09-01T12:00:00Z", "open"),
        (("allow",), "2026-09-01T12:00:00Z", "2026-09-01T22:00:00Z"),
        (("allow",), "2026-09-01T23:00:00Z", "open"),
        (("deny",), "2026-09-01T12:00:00Z", "open"),
        (("deny",), "2026-09-01T23:00:00Z", "2026-09-02T06:00:00Z"),
        (("allow", "deny"), "2026-09-01T23:00:00Z", None),
    ],
)
def test_deny_overrides_and_allow_must_be_open(kinds: tuple[str, ...], moment: str, verdict: str | None) -> None:
    windows = [window(kind, "0 22 * * *", "8h") for kind in kinds]
    found = closed(windows, "ResetChips", EVERYWHERE, at(moment))
    if verdict == "open":
        assert found is None
    else:
        assert found is not None and found.until == (at(verdict) if verdict else None)


def test_an_action_or_pool_without_windows_may_run() -> None:
    windows = [window("deny", "@daily", "24h", pools=["training"])]
    noon = at("2026-09-01T12:00:00Z")
    assert closed(windows, "ResetChips", EVERYWHERE, noon) is None
    assert closed(windows, "EvictPod", frozenset({"training"}), noon) is None
    found = closed(windows, "ResetChips", frozenset({"training", "default"}), noon)
    assert found is not None and found.until is None, "one denied day follows another"


@pytest.mark.parametrize(
    "text",
    ["", "* * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8", "5-1 * * * *", "*/0 * * * *",
     "a * * * *", "*-5 * * * *", "@sometimes", "1,,2 * * * *"],
)  # fmt: skip
def test_an_invalid_schedule_is_refused_with_its_field(text: str) -> None:
    with pytest.raises(ValueError, match="schedule"):
        cron(text)


def test_a_bad_window_is_found_at_its_line() -> None:
    text = (
        "apiVersion: belay.dev/v1alpha1\nkind: SafetyBudget\nmetadata: {name: hours}\nspec:\n  windows:\n"
        "    - {kind: allow, schedule: '0 0 31 2 *', duration: 1h, actions: [ResetChips]}\n"
    )
    (found,) = load({"policies/hours.yaml": text.encode()}, revision="r").diagnostics
    assert (found.file, found.line) == ("policies/hours.yaml", 6) and "no year has" in found.message
    good = {"kind": "allow", "schedule": "@daily", "duration": "1h", "actions": ["ResetChips"]}
    for bad in ({"timeZone": "Mars/Base"}, {"duration": "10s"}, {"actions": []}, {"kind": "maybe"}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            MaintenanceWindow.model_validate(good | bad)


def budget(*windows: dict[str, Any]) -> Any:
    return desired(document("SafetyBudget", "hours", windows=list(windows)))


NIGHT = {"kind": "allow", "schedule": "0 22 * * *", "duration": "8h"}


def test_a_reset_waits_for_its_window_and_spends_nothing() -> None:
    snapshot = observed([node("n0")], [report("n0", faults=[fault(3)])])
    scope = decide(snapshot, budget({**NIGHT, "actions": ["ResetChips"]}))
    assert [a for a in scope.actions if isinstance(a, ResetChips)] == []
    (held,) = [d for d in scope.deferred if isinstance(d.action, ResetChips)]
    assert (held.budget, held.until) == ("hours", "2026-09-01T22:00:00Z")
    assert scope.memory.nodes["n0"].chips[3].resets == ()
    assert [a.chips for a in scope.actions if isinstance(a, IsolateChip)] == [("Ascend910-3",)]
    fresh = msgspec.structs.replace(snapshot.reports["n0"], update_time=NOW + 14 * 3600)
    night = decide(
        msgspec.structs.replace(snapshot, reports={"n0": fresh}, agents={"n0": agent("n0", at=NOW + 14 * 3600)}),
        budget({**NIGHT, "actions": ["ResetChips"]}),
        now=NOW + 14 * 3600,
    )
    assert len([a for a in night.actions if isinstance(a, ResetChips)]) == 1


def test_evictions_wait_as_whole_gangs_and_begun_ones_are_completed() -> None:
    hours = budget({**NIGHT, "actions": ["EvictPod"]})
    scope = decide(world(gang()), hours)
    assert evictions(scope) == {}
    assert {(d.budget, d.until) for d in scope.deferred} == {("hours", "2026-09-01T22:00:00Z")}
    begun = decide(world(gang()))
    half = msgspec.structs.replace(world(gang()[1:], bad=None), history=begun.memory.frozen(""))
    assert sorted(evictions(decide(half, hours))) == ["j-1"]


def test_a_deferred_isolation_takes_no_work_and_defers_its_evictions() -> None:
    scope = decide(world(gang()), budget({**NIGHT, "actions": ["IsolateChip"]}))
    assert [a for a in scope.actions if isinstance(a, IsolateChip | EvictPod)] == []
    assert scope.nodes["n0"].unavailable >> 3 & 1


def test_evictions_without_a_fault_wait_for_the_next_pass() -> None:
    """One disruptive method per pass and pool; resets do not wait (they touch unused chips only)."""
    other = gang()
    idle = [msgspec.structs.replace(p, name=f"k-{p.name}", uid=f"k{p.uid}", owner_name="k", owner_uid="uid-k",
                                    node=f"n{i + 3}") for i, p in enumerate(other)]  # fmt: skip
    snapshot = world([*other, *idle])
    faulty = [msgspec.structs.replace(snapshot.reports["n5"], faults=(fault(1),), unhealthy=2)]
    snapshot = msgspec.structs.replace(snapshot, reports={**snapshot.reports, **{r.node: r for r in faulty}})

    def passed(*, rescue: bool) -> Steps:
        scope = Steps(desired(), snapshot, NOW).run("views", "grouping", "health", *["recover"] * rescue)
        preempted = EvictPod(
            reason="Preempted", message="makes room", namespace="train", pod="k-j-0", grace_period_seconds=30,
            force=False, owner=None, budget_unit="train/AscendJob/k",
        )  # fmt: skip
        scope.actions.append(preempted)
        scope.run("safety")
        return scope

    busy = passed(rescue=True)
    assert sorted(evictions(busy)) == ["j-0", "j-1"]
    assert [(d.budget, d.until) for d in busy.deferred] == [("one-method-per-pass", "2026-09-01T08:00:01Z")]
    assert sorted(evictions(passed(rescue=False))) == ["k-j-0"]
