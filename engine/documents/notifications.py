"""NotificationPolicy: what is reported to whom, and when not. Secrets are named here, never written.

Pure: `belay server` reads the copy that the engine keeps in the cluster, and sends (engine/serve/notify).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, time, timedelta
from typing import Annotated, ClassVar, Final, Literal
from zoneinfo import ZoneInfo

from pydantic import Field, StrictInt, StringConstraints, model_validator

from belay.engine.documents.kinds import BelayDocument
from belay.engine.documents.problems import Problem
from belay.engine.documents.scalars import Document, Duration, Flag, Name, Text
from belay.engine.documents.windows import TimeZone, zone_problem
from belay.engine.model.levels import FaultLevel
from belay.engine.model.notices import NoticeEvent, ReceiverType

#: What environment variables begin with that a policy may name: no other variable of the server can be sent anywhere.
ENVIRONMENT: Final = "BELAY_NOTIFY_"
MAX_RECEIVERS: Final = 50
MAX_RULES: Final = 100
_HOST: Final = r"^[A-Za-z0-9]([-A-Za-z0-9.]{0,251}[A-Za-z0-9])?$"
_MAILBOX: Final = r"^[A-Za-z0-9.!#$%&'*+/=?^_{|}~-]{1,64}@[A-Za-z0-9]([-A-Za-z0-9.]{0,251}[A-Za-z0-9])?$"

Mailbox = Annotated[str, StringConstraints(pattern=_MAILBOX, max_length=320)]
ClockTime = Annotated[str, StringConstraints(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")]
Weekday = Literal["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
_WEEKDAYS: Final[tuple[Weekday, ...]] = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


class SecretValue(Document):
    """Where a value lies that is no text for Git: a key of Secret belay-notify, or a variable of the server."""

    secret: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][-._A-Za-z0-9]{0,252}$")] | None = None
    env: Annotated[str, StringConstraints(pattern=rf"^{ENVIRONMENT}[A-Z0-9_]{{1,100}}$")] | None = None

    @model_validator(mode="after")
    def _one_place(self) -> SecretValue:
        if (self.secret is None) == (self.env is None):
            raise ValueError("give exactly one of secret (a key of Secret belay-notify) and env")
        return self


class MailServer(Document):
    """How an e-mail leaves."""

    host: Annotated[str, StringConstraints(pattern=_HOST)]
    port: Annotated[StrictInt, Field(ge=1, le=65535)] = 587
    security: Literal["starttls", "tls", "none"] = "starttls"
    sender: Annotated[Mailbox, Field(alias="from")]
    to: Annotated[tuple[Mailbox, ...], Field(min_length=1, max_length=50)]
    username: Text | None = None
    password: SecretValue | None = None

    @model_validator(mode="after")
    def _no_password_in_the_clear(self) -> MailServer:
        if (self.username is None) != (self.password is None):
            raise ValueError("username and password belong together")
        if self.password is not None and self.security == "none":
            raise ValueError("a password needs security: starttls or tls")
        return self


class Receiver(Document):
    """Who is reported. Addresses that hold a token are secrets: `url` says where they lie."""

    name: Name
    type: ReceiverType
    url: SecretValue | None = None
    address: (
        Annotated[str, StringConstraints(pattern=r"^https?://[^\s/@?#]+(/[^\s?#@]*)?$", max_length=1000)] | None
    ) = None
    token: SecretValue | None = None
    signing_key: SecretValue | None = None
    email: MailServer | None = None

    @model_validator(mode="after")
    def _fits_its_type(self) -> Receiver:
        is_mail = self.type is ReceiverType.EMAIL
        if is_mail != (self.email is not None):
            raise ValueError("type Email needs email, and no other type has it")
        if is_mail and (self.url or self.address):
            raise ValueError("an Email receiver has email.host, no url")
        if not is_mail and (self.url is None) == (self.address is None):
            raise ValueError(
                "give exactly one of url (where the secret address lies) and address (one without a token)"
            )
        if self.signing_key is not None and self.type not in (ReceiverType.DINGTALK, ReceiverType.FEISHU):
            raise ValueError("only DingTalk and Feishu check a signingKey")
        if self.token is not None and self.type is not ReceiverType.ALERTMANAGER:
            raise ValueError("only Alertmanager takes a token; the others have it in their url")
        return self


class QuietHours(Document):
    """Times of the day at which nothing is sent; what is due then comes at their end. ``until`` before ``from`` is
    on the next day; ``days`` are those on which they begin.
    """

    start: Annotated[ClockTime, Field(alias="from")]
    until: ClockTime
    days: tuple[Weekday, ...] = _WEEKDAYS
    time_zone: TimeZone = "UTC"

    @model_validator(mode="after")
    def _some_time(self) -> QuietHours:
        if self.start == self.until:
            raise ValueError(
                "from and until are the same: leave quietHours out, or make the rule's list of events shorter"
            )
        if not self.days:
            raise ValueError("days must not be empty")
        if problem := zone_problem(self.time_zone):
            raise ValueError(problem)
        return self

    def ends(self, now: float) -> float | None:
        """When the quiet hours of ``now`` (Unix seconds) end; None outside of them."""
        zone = ZoneInfo(self.time_zone)
        today = datetime.fromtimestamp(now, tz=zone).date()
        begin, end = (time.fromisoformat(text) for text in (self.start, self.until))
        for day in (today - timedelta(days=1), today):
            if _WEEKDAYS[day.weekday()] not in self.days:
                continue
            last = day + timedelta(days=1) if end <= begin else day
            start_at = datetime.combine(day, begin, tzinfo=zone).timestamp()
            end_at = datetime.combine(last, end, tzinfo=zone).timestamp()
            if start_at <= now < end_at:
                return end_at
        return None


class NotificationRule(Document):
    """One rule: which of the events, of which part of the cluster, for whom, and when not."""

    name: Name
    events: Annotated[tuple[NoticeEvent, ...], Field(min_length=1)]
    receivers: Annotated[tuple[Name, ...], Field(min_length=1)]
    at_least: FaultLevel = FaultLevel.RESTART_BUSINESS
    severity: Literal["error", "warning"] = "error"
    longer_than: Duration = 0.0
    pools: tuple[Name, ...] = ()
    namespaces: tuple[Name, ...] = ()
    queues: tuple[Name, ...] = ()
    ended: Flag = True
    quiet_hours: tuple[QuietHours, ...] = ()
    group_by: Literal["rule", "pool", "node", "job", "queue"] = "rule"
    group_wait: Duration = 10.0
    repeat: Duration = 0.0

    @model_validator(mode="after")
    def _bounded(self) -> NotificationRule:
        if self.group_wait > 3600:
            raise ValueError("groupWait must be an hour at most")
        if self.repeat and self.repeat < 300:
            raise ValueError("repeat must be 5m or longer; without it nothing is reported twice")
        if NoticeEvent.WAIT in self.events and not self.longer_than:
            raise ValueError("event Wait needs longerThan, such as 30m")
        return self

    def quiet_until(self, now: float) -> float | None:
        """When the quiet hours that hold at ``now`` end; None when none do."""
        found = [end for hours in self.quiet_hours if (end := hours.ends(now)) is not None]
        return max(found) if found else None


class NotificationPolicySpec(Document):
    """Receivers, and rules that name them."""

    suspend: Flag = False
    receivers: Annotated[tuple[Receiver, ...], Field(min_length=1, max_length=MAX_RECEIVERS)]
    rules: Annotated[tuple[NotificationRule, ...], Field(max_length=MAX_RULES)] = ()


class NotificationPolicy(BelayDocument):
    """What is reported to whom by chat, e-mail or Alertmanager, and when it is quiet."""

    KIND: ClassVar[str] = "NotificationPolicy"
    kind: Literal["NotificationPolicy"]
    spec: NotificationPolicySpec

    @property
    def receivers(self) -> dict[str, Receiver]:
        """The receivers by name."""
        return {one.name: one for one in self.spec.receivers}


def check_receivers(policy: NotificationPolicy) -> Iterator[Problem]:
    """Problems across fields: names used twice, receivers that no rule can reach, http without need."""
    names = [one.name for one in policy.spec.receivers]
    for index, one in enumerate(policy.spec.receivers):
        if one.name in names[:index]:
            yield Problem(("spec", "receivers", index, "name"), f"receiver {one.name} is declared twice")
    rules = [rule.name for rule in policy.spec.rules]
    for index, rule in enumerate(policy.spec.rules):
        if rule.name in rules[:index]:
            yield Problem(("spec", "rules", index, "name"), f"rule {rule.name} is declared twice")
        for place, name in enumerate(rule.receivers):
            if name not in names:
                text = f"unknown receiver {name!r:.80}: known are {', '.join(names)}"
                yield Problem(("spec", "rules", index, "receivers", place), text)


__all__ = [
    "ENVIRONMENT", "MailServer", "NoticeEvent", "NotificationPolicy", "NotificationPolicySpec", "NotificationRule",
    "QuietHours", "Receiver", "ReceiverType", "SecretValue", "check_receivers",
]  # fmt: skip
