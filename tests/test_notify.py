"""Notifications in a world: what is reported once, held back, repeated, given up; on a virtual clock."""

from __future__ import annotations

from typing import Any

import pytest

from belay.engine.documents import NotificationPolicy
from belay.engine.model.times import parse_rfc3339
from belay.engine.serve.notify.ledger import MOST_OF_ROUTE
from tests.history_world import BEGIN
from tests.notify_world import NotifyWorld, findings, policy

LLM = "default/AscendJob/llm"
FAULTS = {"events": ["Fault"], "atLeast": "RestartNPU"}
FAULT = "chip node-1/3 reports fault 80C98001, level RestartNPU"


def test_a_fault_is_one_message_its_end_another_and_a_restart_says_nothing_again() -> None:
    world = NotifyWorld(policy(FAULTS))
    world.goes_on(20)
    world.fault("node-1", 3)
    begun = world.now
    world.goes_on(300)
    assert world.inboxes.texts() == [[FAULT]]
    ((_, message),) = world.inboxes.taken
    (item,) = message.items
    assert item.way_out == "belay explain chip node-1/3"
    assert item.link.startswith("https://belay.example.org/console/#/map?at=")
    assert item.link.endswith("&select=chip/node-1/3") and item.begun == round(begun * 1000)

    world.notifiers = [world.notifier("server-1")]  # the first one's memory is gone
    world.goes_on(300)
    assert len(world.inboxes.taken) == 1

    world.fault("node-1", 3)
    world.goes_on(60)
    assert len(world.inboxes.taken) == 2 and world.inboxes.texts()[1][0].startswith(f"over: {FAULT} (it lasted 10 min")
    world.notifiers = [world.notifier("server-2")]
    writes = world.kept.writes
    world.goes_on(3600, every=60)
    assert len(world.inboxes.taken) == 2 and world.kept.state.entries == []
    assert world.kept.writes - writes <= 1, "nothing happens, so nothing is written"


def test_two_servers_send_once_and_one_that_died_in_the_middle_is_followed_by_another() -> None:
    world = NotifyWorld(policy(FAULTS), servers=2)
    world.notice()
    world.fault("node-1", 3)
    world.goes_on(120)
    assert world.inboxes.texts() == [[FAULT]]

    # a server dies after the receiver took the message and before it is noted: it is sent once more, with the same key
    world.inboxes.dies = True
    world.fault("node-2", 5)
    with pytest.raises(SystemError):
        world.goes_on(60)
    world.inboxes.dies = False
    world.notifiers = [world.notifier("server-3")]
    world.goes_on(100)
    assert len(world.inboxes.taken) == 2, "while the dead server's claim holds, nothing is sent"
    world.goes_on(100)
    keys = [message.key for _, message in world.inboxes.taken]
    assert len(keys) == 3 and keys[1] == keys[2] != keys[0]


def test_quiet_hours_hold_back_and_their_end_reports_also_what_is_over() -> None:
    quiet = [{"from": "22:00", "until": "07:00", "timeZone": "Asia/Shanghai"}]
    world = NotifyWorld(policy({**FAULTS, "quietHours": quiet}))
    world.now = parse_rfc3339("2026-11-01T21:59:00+08:00")
    world.notice()
    world.now = parse_rfc3339("2026-11-01T23:10:00+08:00")
    world.fault("node-1", 3)
    world.fault("node-2", 1)
    world.goes_on(3600, every=60)
    world.fault("node-2", 1)
    world.goes_on(5 * 3600, every=60)
    assert world.inboxes.taken == [] and parse_rfc3339("2026-11-02T07:00:00+08:00") > world.now
    world.goes_on(2 * 3600, every=60)
    (texts,) = world.inboxes.texts()
    assert texts[0] == FAULT
    assert texts[1] == "over: chip node-2/1 reports fault 80C98001, level RestartNPU (it lasted 1 h 1 min)"
    world.fault("node-1", 3)
    world.goes_on(120)
    assert len(world.inboxes.taken) == 2 and "over:" in world.inboxes.texts()[1][0]


def test_a_receiver_that_is_away_is_tried_less_and_less_and_hears_everything_when_it_is_back() -> None:
    mail = {"name": "mail", "type": "Email",
            "email": {"host": "smtp.example.org", "from": "belay@example.org", "to": ["ann@example.org"]}}  # fmt: skip
    chat = {"name": "chat", "type": "Slack", "url": {"secret": "slack"}}
    world = NotifyWorld(policy({**FAULTS, "receivers": ["chat", "mail"]}, receivers=[chat, mail]))
    world.notice()
    world.inboxes.down = {"chat"}
    world.fault("node-1", 3)
    world.goes_on(1800)
    assert world.inboxes.texts("mail") == [[FAULT]], "another receiver does not wait"
    assert world.inboxes.tries < 14
    (problem,) = world.notifiers[0].problems()
    assert "on-call/chat" in problem and "503: maintenance" in problem
    assert '"on-call/chat"' in world.kept.body["data"]["problems.json"]

    world.fault("node-2", 1)
    world.inboxes.down = set()
    world.goes_on(900)
    assert [text for message in world.inboxes.texts() for text in message][:1] == [FAULT]
    assert world.notifiers[0].problems() == [] and world.kept.body["data"]["problems.json"] == "[]"


def test_what_no_receiver_takes_for_six_hours_is_given_up_and_counted() -> None:
    world = NotifyWorld(policy(FAULTS))
    world.notice()
    world.inboxes.down = {"chat"}
    world.fault("node-1", 3)
    world.goes_on(8 * 3600, every=30)
    assert world.inboxes.tries <= 45
    assert world.kept.state.failing["on-call/chat"].lost == 1
    metrics = {m.name: {tuple(s.labels.values()): s.value for s in m.samples} for m in world.notifiers[0].metrics()}
    assert metrics["belay_notifications"]["on-call/chat", "lost"] == 1
    assert metrics["belay_notification_receiver_failing"]["on-call/chat",] == 1
    tries = world.inboxes.tries
    world.inboxes.down = set()
    world.goes_on(3600, every=30)
    assert (world.inboxes.taken, world.inboxes.tries) == ([], tries)


def test_a_storm_is_one_message_that_counts_what_it_does_not_list() -> None:
    world = NotifyWorld(policy({**FAULTS, "ended": False}))
    world.notice()
    for node in ("node-1", "node-2"):
        for chip in range(8):
            for code in range(40):
                world.fault(node, chip, f"80C98{code:03d}")
    world.goes_on(15)
    ((_, message),) = world.inboxes.taken
    assert len(message.items) == 50 and message.more == MOST_OF_ROUTE - 50
    assert len(world.kept.state.entries) == MOST_OF_ROUTE
    assert len(world.kept.body["data"]["ledger.json"]) < 200_000
    world.goes_on(30)
    assert [len(message) for message in world.inboxes.texts()] == [50, 50, 50, 50]


def test_a_recovery_is_reported_with_its_cost_and_one_that_is_long_over_is_not() -> None:
    world = NotifyWorld(policy({"events": ["Recovery"]}))
    world.submit(LLM)
    world.place(LLM, "node-1")
    world.recovery(LLM)
    world.passes(600)
    world.recovery(LLM, back=600)
    world.passes(60)
    world.notice()  # the policy is new: what was over before is no news
    world.goes_on(60)
    assert world.inboxes.taken == []

    world.recovery(LLM)
    world.goes_on(120)
    world.recovery(LLM, back=100)
    world.goes_on(60)
    first, second = world.inboxes.texts()
    assert first == [f"job {LLM} recovers from CardUnhealthy 80C98001: 8 chips stand still"]
    assert second == [f"job {LLM} recovered from CardUnhealthy after 1 min 40 s; 0.22 chip-hours lost"]


def test_a_wait_is_reported_only_when_it_is_long_and_again_after_the_time_of_repetition() -> None:
    rule = {"events": ["Wait"], "longerThan": "30m", "repeat": "2h", "queues": ["default"]}
    world = NotifyWorld(policy(rule))
    world.submit("default/AscendJob/short")
    world.submit(LLM)
    world.submit("default/AscendJob/elsewhere", queue="other")
    world.goes_on(600, every=30)
    world.place("default/AscendJob/short", "node-1")
    world.goes_on(3000, every=30)
    assert world.inboxes.texts() == [[f"job {LLM} waits for 8 chips: NoRoom: no node has 8 free chips"]]
    world.goes_on(7300, every=30)
    assert len(world.inboxes.taken) == 2 and world.inboxes.texts()[1][0].startswith("still: job")
    world.place(LLM, "node-2")
    world.goes_on(60)
    assert world.inboxes.texts()[2][0].startswith("over: job")


def test_evictions_name_their_cause_once_each() -> None:
    world = NotifyWorld(policy({"events": ["Eviction"]}))
    world.submit(LLM)
    world.place(LLM, "node-1")
    world.notice()
    world.passes(5)
    cause = {"kind": "document", "subject": "Isolation/cooling", "file": "desired/isolations.yaml", "line": 3,
             "commit": "a" * 40, "author": "Ann <ann@example.org>"}  # fmt: skip
    world._event("EvictPod", "ManuallyIsolated", "Pod", "default", "llm-0", "its node is isolated", cause)
    world.goes_on(60)
    world.notifiers = [world.notifier("server-1")]
    world.goes_on(2 * 3600, every=60)
    ((_, message),) = world.inboxes.taken
    assert message.items[0].text.startswith("pod default/llm-0 was evicted: its node is isolated")
    assert "desired/isolations.yaml:3" in message.items[0].cause and "Ann" in message.items[0].cause
    assert "a" * 12 in message.items[0].cause


def test_findings_refused_commits_held_deletions_and_isolations_are_reported_with_their_way_out() -> None:
    world = NotifyWorld(
        policy({"events": ["Finding", "RefusedRevision", "HeldDeletion"], "groupWait": "0s"},
               {"events": ["IsolationEnd"], "groupWait": "0s"})
    )  # fmt: skip
    world.commit("a" * 40, "Ann", "Start llm")
    world.hold("node-1", 3, "Isolation/cooling at desired/isolations.yaml:1")
    world.goes_on(10)
    assert world.inboxes.taken == []
    world.sync(**{
        "diagnostics.json": findings(("error", "NodePool/a", "no such product"), ("warning", "NodePool/b", "odd")),
        "attemptedRevision": "b" * 40,
        "heldPrune.json": '{"digest": "d1", "list": [{}, {}]}',
    })  # fmt: skip
    world.goes_on(20)
    texts = [text for message in world.inboxes.texts() for text in message]
    held = "the deletion of 2 objects waits for a confirmation"
    assert [text.partition(":")[0] for text in texts] == [f"commit {'b' * 12} is not in force", held, "error"]
    items = [item for _, message in world.inboxes.taken for item in message.items]
    assert items[1].way_out.startswith("belay confirm d1") and items[2].cause == "desired/a.yaml:3:5"
    assert "Ann" in items[1].cause

    # numbers in a finding change; it is the same finding
    world.sync(
        **{"diagnostics.json": findings(("error", "NodePool/a", "no such product"), ("warning", "NodePool/b", "7"))}
    )
    world.hold("node-1", 3, "Isolation/cooling at desired/isolations.yaml:1")
    world.goes_on(20)
    assert len(world.inboxes.taken) == 2
    assert world.inboxes.texts()[1][0].startswith("over: chip node-1/3 is kept out of service by Isolation/cooling")


def test_without_a_policy_nothing_is_read_or_written_and_a_suspended_one_is_silent() -> None:
    world = NotifyWorld()
    world.fault("node-1", 3)
    world.goes_on(120)
    assert (world.kept.writes, world.inboxes.tries) == (0, 0)
    held = policy(FAULTS)
    held["spec"]["suspend"] = True
    world.notifiers[0].take_policy("on-call", held)
    world.goes_on(120)
    assert (world.kept.writes, world.inboxes.tries) == (0, 0)


def test_a_ledger_that_a_person_broke_begins_again_and_a_policy_that_cannot_be_read_is_a_finding() -> None:
    world = NotifyWorld(policy(FAULTS))
    world.notice()
    world.fault("node-1", 3)
    world.goes_on(60)
    world.kept.body["data"]["ledger.json"] = '{"entries": [[['
    world.notifiers = [world.notifier("server-1")]
    world.goes_on(60)
    assert world.inboxes.texts() == [[FAULT], [FAULT]]
    broken: dict[str, Any] = policy({"events": ["Everything"]}, name="broken")
    world.notifiers[0].take_policy("broken", broken)
    assert "NotificationPolicy broken does not count" in world.notifiers[0].problems()[0]


def test_alertmanager_hears_what_lasts_again_and_until_when_it_may_be_taken_for_lasting() -> None:
    receivers = [{"name": "chat", "type": "Alertmanager", "address": "http://alertmanager:9093"}]
    quiet = [{"from": "00:00", "until": "23:59"}]
    world = NotifyWorld(policy(FAULTS, receivers=receivers))
    world.notice()
    world.fault("node-1", 3)
    world.goes_on(60)
    world.policies = [policy({**FAULTS, "quietHours": quiet}, receivers=receivers)]
    world.notifiers = [world.notifier("server-1")]
    world.goes_on(2 * 3600, every=60)
    assert len(world.inboxes.taken) == 3, "once an hour, also in quiet hours"
    for _, message in world.inboxes.taken:
        assert message.until > message.time + 7_200_000


@pytest.mark.parametrize(
    ("now", "ends"),
    [
        ("2026-11-27T21:59:59+08:00", None),
        ("2026-11-27T22:00:00+08:00", "2026-11-28T07:00:00+08:00"),
        ("2026-11-28T06:59:59+08:00", "2026-11-28T07:00:00+08:00"),
        ("2026-11-28T07:00:00+08:00", None),
        # they begin on Mondays to Fridays only
        ("2026-11-28T23:00:00+08:00", None),
        ("2026-11-29T03:00:00+08:00", None),
    ],
)
def test_quiet_hours_begin_on_their_days_and_end_on_the_next(now: str, ends: str | None) -> None:
    rule = {"events": ["Fault"], "quietHours": [
        {"from": "22:00", "until": "07:00", "timeZone": "Asia/Shanghai", "days": ["Mon", "Tue", "Wed", "Thu", "Fri"]},
    ]}  # fmt: skip
    made = NotificationPolicy.model_validate(policy(rule)).spec.rules[0]
    assert made.quiet_until(parse_rfc3339(now)) == (parse_rfc3339(ends) if ends else None)
    assert BEGIN > 0
