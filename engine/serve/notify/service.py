"""Notifications as a part of `belay server`: looks at the status, and sends what is due."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from belay.engine.errors import BelayError
from belay.engine.kube import Kube, Reflector, WatchChange, resource_for
from belay.engine.log import get
from belay.engine.metrics import BY_NAME
from belay.engine.metrics.collector import gauge
from belay.engine.model.notices import ReceiverType
from belay.engine.serve.notify.delivery import Delivery, NotSent
from belay.engine.serve.notify.ledger import Ledger, NoticeBatch, repeats_every
from belay.engine.serve.notify.ledger_map import LedgerPlace
from belay.engine.serve.notify.messages import message, probe
from belay.engine.serve.notify.notices import PAST_MS, Notice, notices
from belay.engine.serve.notify.rules import Route, routes_of
from belay.engine.serve.records.events import SeenEvent, read_event
from belay.engine.serve.records.reading import Data, StatusReading
from belay.engine.serve.records.writer import EventFollower

if TYPE_CHECKING:
    from belay.engine.documents import NotificationPolicy

POLICIES: Final = resource_for("belay.dev/v1alpha1", "NotificationPolicy")
LOOK_SECONDS: Final = 2.0
SHARE: Final = 10.0
"""A large cluster is not looked at more often than every so many times the seconds that a look takes."""
REREAD_SECONDS: Final = 60.0
"""Seconds after which the ledger is read again, although nothing is to be written: another server may send."""
SPACING_SECONDS: Final = 3.5
"""Least seconds between two messages to one receiver: some take 20 a minute."""
MOST_EVENTS: Final = 5_000
_NOTE_TRIES: Final = 5
_SENT: Final = "belay_notifications"
_log = get("notify")


class NotificationService:
    """Sends notifications. :meth:`take`, :meth:`take_event` and :meth:`take_policy` are called with every change."""

    def __init__(
        self,
        place: LedgerPlace,
        delivery: Delivery,
        identity: str,
        *,
        console: str = "",
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._place, self._delivery, self._identity = place, delivery, identity
        self._console, self._wall, self._clock = console.rstrip("/"), wall, clock
        self._status: dict[str, Data] = {}
        self._reading = StatusReading()
        self._events: OrderedDict[str, SeenEvent] = OrderedDict()
        self._policies: dict[str, NotificationPolicy] = {}
        self._refused: dict[str, str] = {}
        self._ledger: Ledger | None = None
        self._version = ""
        self._reread = float("-inf")
        self._next: dict[str, float] = {}
        self._counted: Counter[tuple[str, str]] = Counter()
        self._problem = ""
        self._notices: list[Notice] = []
        self._dirty = True

    # what is seen

    def take(self, name: str, data: Data | None) -> None:
        """A status ConfigMap as it is now; None if it is gone."""
        if data is None:
            self._status.pop(name, None)
        else:
            self._status[name] = data
        self._dirty = True

    def take_event(self, raw: Mapping[str, Any]) -> None:
        """An Event of any component."""
        event = read_event(raw)
        if event is None or event.id in self._events:
            return
        self._events[event.id] = event
        while len(self._events) > MOST_EVENTS:
            self._events.popitem(last=False)
        self._dirty = True

    def take_policy(self, name: str, raw: Mapping[str, Any] | None) -> None:
        """A policy in force; None if it is gone. One that cannot be read does not count, and is a finding."""
        self._policies.pop(name, None)
        self._refused.pop(name, None)
        if raw is None:
            return
        kept = {key: value for key, value in raw.items() if key in ("apiVersion", "kind", "spec")}
        # documents take 14 MiB, and a cluster may have no policy
        from pydantic import ValidationError

        from belay.engine.documents import NotificationPolicy

        try:
            self._policies[name] = NotificationPolicy.model_validate({**kept, "metadata": {"name": name}})
        except ValidationError as error:
            self._refused[name] = f"{error.error_count()} errors in it: belay validate names them"

    @property
    def routes(self) -> list[Route]:
        """The routes in force."""
        return list(routes_of(self._policies.values()))

    # looking and sending

    async def run(self, kube: Kube, synced: Callable[[], bool]) -> None:
        """Look and send until cancelled. ``synced``: whether the status was read whole."""
        policies = Reflector(kube, POLICIES, on_change=self._policy_changed)
        events = EventFollower(kube, self.take_event)
        async with asyncio.TaskGroup() as group:
            group.create_task(policies.run())
            group.create_task(events.run())
            while True:
                began = self._clock()
                if synced() and events.synced and policies.synced:
                    await self._look_guarded()
                await asyncio.sleep(max(LOOK_SECONDS, SHARE * (self._clock() - began)))

    def _policy_changed(self, _: Reflector, change: WatchChange) -> None:
        self.take_policy(change.key[1], change.obj)

    async def _look_guarded(self) -> None:
        try:
            await self.look()
            self._problem = ""
        except BelayError as error:
            self._fail(str(error))
        except Exception as error:  # whatever a status that nothing foresaw raises: the server serves on
            if not self._problem:
                _log.exception("notifications not sent")
            self._fail(f"the status could not be read ({type(error).__name__}); the log has it")

    def _fail(self, problem: str) -> None:
        if problem != self._problem:
            _log.warning("notifications not sent", reason=problem)
        self._problem, self._ledger = problem, None

    async def look(self) -> None:
        """Compare what is seen with what was reported, and send what is due."""
        routes = self.routes
        if not routes and self._ledger is None and not self._policies:
            return  # without a policy nothing is read or written
        ledger = await self._current()
        now = round(self._wall() * 1000)
        seen = await asyncio.to_thread(self._seen, now)
        ledger.advance(routes, seen, now)
        batches = [batch for batch in ledger.due(routes, now) if self._may_send(batch.route)]
        if not batches:
            await self._write(ledger)
            return
        for batch in batches:
            if self._may_send(batch.route) and not await self._sent(ledger, batch):
                return

    async def _current(self) -> Ledger:
        if self._ledger is None or self._clock() - self._reread > REREAD_SECONDS:
            self._ledger, self._version = await self._place.read()
            self._reread = self._clock()
        return self._ledger

    def _seen(self, now: int) -> list[Notice]:
        for name in [name for name, event in self._events.items() if now - event.at > 2 * PAST_MS]:
            del self._events[name]
        if self._dirty:
            self._dirty = False
            status = dict(self._status)
            self._notices = notices(self._reading.read(status), status, list(self._events.values()), now)
        return self._notices

    def _may_send(self, route: Route) -> bool:
        return self._clock() >= self._next.get(route.receiver_name, 0.0)

    async def _sent(self, ledger: Ledger, batch: NoticeBatch) -> bool:
        """Claim, send, note the outcome; False where another server wrote, so that everything is looked at again."""
        now = round(self._wall() * 1000)
        ledger.claim(batch, self._identity, now)
        if not await self._write(ledger):
            return False
        name = batch.route.receiver_name
        self._next[name] = self._clock() + SPACING_SECONDS
        failure: NotSent | None = None
        try:
            await self._delivery.send(batch.route.receiver, message(batch, self._console, now, _until(batch, now)))
        except NotSent as error:
            failure = error

        noted = await self._note(batch, failure)
        if failure is None:
            _log.info("notification sent", receiver=name, notices=len(batch.ids))
        else:
            _log.warning("notification not sent", receiver=name, reason=str(failure))
        self._counted[name, "sent" if failure is None else "failed"] += 1
        return noted

    async def _note(self, batch: NoticeBatch, failure: NotSent | None) -> bool:
        """Write the outcome; where another server wrote meanwhile, over what it wrote."""
        lost = 0
        for _ in range(_NOTE_TRIES):
            ledger = await self._current()
            now = round(self._wall() * 1000)
            if failure is None:
                ledger.sent(batch, now)
            else:
                lost = ledger.failed(batch, str(failure), now, failure.retry_after)
            if await self._write(ledger):
                break
        else:
            _log.warning("the outcome of a notification was not noted", receiver=batch.route.receiver_name)
            return False
        self._counted[batch.route.receiver_name, "lost"] += lost
        return True

    async def _write(self, ledger: Ledger) -> bool:
        """Write the ledger where it changed; False where another server wrote."""
        if not ledger.changed:
            return True
        version = await self._place.write(ledger, self._version)
        if version is None:
            self._ledger = None
            return False
        self._version, ledger.changed, self._reread = version, False, self._clock()
        return True

    # the test message, problems, metrics

    async def test(self, wanted: str) -> list[dict[str, str]]:
        """Send a test message to the receivers of a name (all: to each), and say what became of it."""
        now = round(self._wall() * 1000)
        found = []
        for policy in sorted(self._policies.values(), key=lambda one: one.name):
            for receiver in policy.spec.receivers:
                name = f"{policy.name}/{receiver.name}"
                if wanted and wanted not in (receiver.name, name):
                    continue
                text = f"this is a test of receiver {receiver.name}, sent by belay server {self._identity}"
                outcome = ""
                try:
                    await self._delivery.send(receiver, probe(policy.name, text, self._console, now))
                except NotSent as error:
                    outcome = str(error)
                found.append({"receiver": name, "type": str(receiver.type), "problem": outcome})
        return found

    def problems(self) -> list[str]:
        """What the console lists among what cannot be done."""
        found = [f"notifications are not sent: {self._problem}"] if self._problem else []
        found += [f"NotificationPolicy {name} does not count: {why}" for name, why in sorted(self._refused.items())]
        failing = self._ledger.failing if self._ledger is not None else {}
        return found + [
            f"receiver {name} takes no notifications: {one.reason}" for name, one in sorted(failing.items())
        ]

    def metrics(self) -> list[Metric]:
        """Messages by receiver and outcome, receivers that take nothing, and what waits."""
        counted = CounterMetricFamily(_SENT, BY_NAME[_SENT].text, labels=("receiver", "outcome"))
        for (receiver, outcome), number in sorted(self._counted.items()):
            counted.add_metric([receiver, outcome], number)
        failing: GaugeMetricFamily = gauge("belay_notification_receiver_failing")
        waiting: GaugeMetricFamily = gauge("belay_notifications_waiting")
        ledger = self._ledger
        for name in sorted({route.receiver_name for route in self.routes}):
            failing.add_metric([name], int(ledger is not None and name in ledger.failing))
        waiting.add_metric([], ledger.waiting() + ledger.left_out if ledger is not None else 0)
        return [counted, failing, waiting]


def _until(batch: NoticeBatch, now: int) -> int:
    """Until when Alertmanager may take what lasts for lasting: past the next time that it is reported."""
    if batch.route.receiver.type is not ReceiverType.ALERTMANAGER:
        return 0
    return now + 2 * repeats_every(batch.route) + 600_000
