"""Which rule takes which notice. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from belay.engine.model import levels
from belay.engine.model.notices import NoticeEvent
from belay.engine.serve.notify.notices import Notice

if TYPE_CHECKING:
    from belay.engine.documents import NotificationPolicy, NotificationRule, Receiver


class Route(msgspec.Struct, frozen=True):
    """One rule of one policy, to one of its receivers. ``key`` names it in the ledger."""

    policy: str
    rule: NotificationRule
    receiver: Receiver

    @property
    def key(self) -> str:
        """Name of the route: policy, rule and receiver."""
        return f"{self.policy}/{self.rule.name}/{self.receiver.name}"

    def takes(self, notice: Notice) -> bool:
        """Whether the rule is about the notice; how long a wait lasts is asked when it is due."""
        rule = self.rule
        return (
            any(event in rule.events for event in _events(notice))
            and (not rule.pools or notice.pool in rule.pools)
            and (not rule.namespaces or notice.namespace in rule.namespaces)
            and (not rule.queues or notice.queue in rule.queues)
            and (notice.event is not NoticeEvent.FAULT or _bad_enough(notice.level, rule))
            and (notice.event is not NoticeEvent.FINDING or notice.severity == "error" or rule.severity == "warning")
        )

    def tells_begin(self, event: NoticeEvent) -> bool:
        """Whether the beginning is reported, and not only the end."""
        return event in self.rule.events

    def tells_end(self, event: NoticeEvent) -> bool:
        """Whether the end of something that lasted is reported."""
        if event is NoticeEvent.ISOLATION and NoticeEvent.ISOLATION_END in self.rule.events:
            return True
        return self.rule.ended and event in self.rule.events

    @property
    def receiver_name(self) -> str:
        """How messages, metrics and findings call the receiver: policy/receiver."""
        return f"{self.policy}/{self.receiver.name}"

    def group_of(self, notice: Notice) -> str:
        """What notices of one message share."""
        match self.rule.group_by:
            case "pool":
                return notice.pool
            case "node":
                return notice.node
            case "job":
                return notice.job
            case "queue":
                return notice.queue
            case _:
                return ""


def _events(notice: Notice) -> tuple[NoticeEvent, ...]:
    """The events of rules that a notice is about: an isolation is also one that will end."""
    if notice.event is NoticeEvent.ISOLATION:
        return NoticeEvent.ISOLATION, NoticeEvent.ISOLATION_END
    return (notice.event,)


def _bad_enough(level: str, rule: NotificationRule) -> bool:
    word = levels.TO_CHIP.get(level, level)
    return levels.rank(word) >= levels.rank(rule.at_least)


def routes_of(policies: Iterable[NotificationPolicy]) -> Iterator[Route]:
    """Every route of the policies that are not suspended, in order of their names."""
    for policy in sorted(policies, key=lambda one: one.name):
        if policy.spec.suspend:
            continue
        receivers = policy.receivers
        for rule in policy.spec.rules:
            for name in dict.fromkeys(rule.receivers):
                if name in receivers:
                    yield Route(policy.name, rule, receivers[name])
