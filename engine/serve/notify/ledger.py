"""What was reported, is reported and must still be reported, by route. It does no I/O and knows no clock.

An entry begins when a rule first takes a notice, and lies in the ledger until its end was reported. Entries hold
the words of their notices, so that what ended during quiet hours or while a receiver was away can still be reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final

import msgspec

from belay.engine.errors import bounded
from belay.engine.model.notices import NoticeEvent, ReceiverType
from belay.engine.serve.notify.notices import PAST_MS, Notice
from belay.engine.serve.notify.rules import Route

MOST_ENTRIES: Final = 800
MOST_OF_ROUTE: Final = 200
MOST_DONE: Final = 4_000
MOST_IN_MESSAGE: Final = 50
"""Entries of one message; others follow in the next one."""
CLAIM_MS: Final = 120_000
"""A claim holds longer than any attempt to send takes."""
FIRST_WAIT_MS: Final = 5_000
LONGEST_WAIT_MS: Final = 600_000
MOST_TRIES: Final = 40
LONGEST_MS: Final = 6 * 3_600_000
"""After so many tries, or so long after the first, a message is given up."""
ALIVE_MS: Final = 3_600_000
"""Alertmanager forgets what is not repeated: how often it is, where the rule does not say."""
_TEXT, _MORE = 300, 200

Millis = Annotated[int, msgspec.Meta(ge=0, le=253_402_300_799_000)]
"""Unix milliseconds until the year 9999; a ledger with others was changed by a person, and begins again."""
Tries = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]


class LedgerEntry(msgspec.Struct, omit_defaults=True):
    """One notice on one route. Times are Unix ms: ``begun`` and ``ended`` (0: it lasts) of the notice, ``seen`` when it
    was first seen, ``reported`` when it was last reported (0: never), ``over`` when its end was last seen;
    ``claimed`` until when the server ``by`` is sending it. ``last_words`` is what its end says, where the status says
    it. ``tried`` is when the first attempt was, ``tries`` how many there were.
    """

    route: str
    key: str
    event: NoticeEvent
    text: str
    begun: Millis
    seen: Millis
    ended: Millis = 0
    over: Millis = 0
    reported: Millis = 0
    cause: str = ""
    way_out: str = ""
    select: str = ""
    level: str = ""
    group: str = ""
    last_words: str = ""
    claimed: Millis = 0
    by: str = ""
    tried: Millis = 0
    tries: Tries = 0

    @property
    def id(self) -> str:
        """What no two entries share."""
        return f"{self.route}|{self.key}"


class Failing(msgspec.Struct, omit_defaults=True):
    """A receiver that takes nothing: since when, how often it was tried, when the next try is, and why."""

    since: Millis
    tries: Tries
    next: Millis
    reason: str
    lost: Tries = 0


class NoticeBatch(msgspec.Struct, frozen=True):
    """One message to send: entries that begin (or are repeated), and entries that ended. ``more`` entries follow."""

    route: Route
    group: str
    begins: tuple[LedgerEntry, ...]
    ends: tuple[LedgerEntry, ...]
    more: int = 0

    @property
    def ids(self) -> tuple[str, ...]:
        """The entries of the message."""
        return tuple(entry.id for entry in (*self.begins, *self.ends))


class LedgerState(msgspec.Struct, omit_defaults=True):
    """What the ledger holds, as it is stored. ``since`` is when each route began, ``done`` when what can still be seen
    was reported to its end, ``failing`` the receivers (policy/receiver) that take nothing.
    """

    entries: list[LedgerEntry] = []
    since: dict[str, Millis] = {}
    done: dict[str, Millis] = {}
    failing: dict[str, Failing] = {}


class Ledger:
    """The ledger of one moment; ``changed`` says whether it differs from what was read."""

    def __init__(self, state: LedgerState | None = None) -> None:
        state = state or LedgerState()
        self._entries = {entry.id: entry for entry in state.entries}
        self._since, self._done = dict(state.since), dict(state.done)
        self.failing = dict(state.failing)
        self.left_out = 0
        self.changed = False

    def state(self) -> LedgerState:
        """What is stored."""
        return LedgerState(list(self._entries.values()), self._since, self._done, self.failing)

    @property
    def entries(self) -> Sequence[LedgerEntry]:
        """All entries."""
        return tuple(self._entries.values())

    # what is seen

    def advance(self, routes: Sequence[Route], notices: Iterable[Notice], now: int) -> None:
        """Take over what is seen now."""
        self._forget(routes, now)
        by_key = {notice.key: notice for notice in notices}
        self.left_out = 0
        sizes: dict[str, int] = {}
        for entry in self._entries.values():
            sizes[entry.route] = sizes.get(entry.route, 0) + 1

        for route in routes:
            since = self._since.get(route.key)
            if since is None:
                since = self._since[route.key] = now
                self.changed = True
            for notice in by_key.values():
                if route.takes(notice):
                    self._see(route, notice, since, now, sizes)

        known = {route.key: route for route in routes}
        for entry in list(self._entries.values()):
            if entry.key not in by_key or not known[entry.route].takes(by_key[entry.key]):
                self._miss(entry, now)
            self._drop_short(entry, known[entry.route])

    def _forget(self, routes: Sequence[Route], now: int) -> None:
        """Remove what no rule asks for any more, and what can no longer be seen."""
        keys = {route.key for route in routes}
        receivers = {route.receiver_name for route in routes}
        gone = [entry.id for entry in self._entries.values() if entry.route not in keys]
        old = [key for key, at in self._done.items() if now - at > 2 * PAST_MS]
        old += sorted(self._done, key=self._done.__getitem__)[: max(0, len(self._done) - MOST_DONE)]
        unknown = [key for key in self._since if key not in keys]
        healed = [key for key in self.failing if key not in receivers]
        for table, names in ((self._entries, gone), (self._done, old), (self._since, unknown), (self.failing, healed)):
            for name in names:
                self.changed = table.pop(name, None) is not None or self.changed

    def _see(self, route: Route, notice: Notice, since: int, now: int, sizes: dict[str, int]) -> None:
        name = f"{route.key}|{notice.key}"
        entry = self._entries.get(name)
        if entry is not None:
            self._renew(entry, notice)
            return
        # what was over before the rule was there is no news
        if name in self._done or (notice.ended and notice.ended <= since):
            return
        if sizes.get(route.key, 0) >= MOST_OF_ROUTE or len(self._entries) >= MOST_ENTRIES:
            self.left_out += 1
            return

        begins = route.tells_begin(notice.event)
        sizes[route.key] = sizes.get(route.key, 0) + 1
        self._entries[name] = LedgerEntry(
            route.key, notice.key, notice.event, bounded(notice.text, _TEXT),
            notice.begun if notice.known else now, now,
            ended=notice.ended, over=now if notice.ended else 0, reported=0 if begins else now,
            cause=bounded(notice.cause, _MORE), way_out=bounded(notice.way_out, _MORE), select=notice.select,
            level=notice.level, group=route.group_of(notice),
        )  # fmt: skip
        self.changed = True

    def _renew(self, entry: LedgerEntry, notice: Notice) -> None:
        ended = notice.ended
        if entry.ended and not ended:  # it is back before its end was reported
            entry.ended, entry.over, self.changed = 0, 0, True
        elif ended and not entry.ended:
            entry.ended, entry.over, entry.last_words, self.changed = ended, ended, bounded(notice.text, _TEXT), True
        elif not entry.reported and entry.text != bounded(notice.text, _TEXT):
            entry.text, self.changed = bounded(notice.text, _TEXT), True

    def _miss(self, entry: LedgerEntry, now: int) -> None:
        if not entry.ended:
            entry.ended, entry.over, self.changed = now, now, True

    def _drop_short(self, entry: LedgerEntry, route: Route) -> None:
        """What ended before it lasted as long as the rule asks is not reported; nor an end that it does not ask for."""
        if not entry.ended:
            return
        short = not entry.reported and entry.ended - entry.begun < _least(route, entry.event)
        silent = bool(entry.reported) and not route.tells_end(entry.event)
        if short or silent:
            self._finish(entry.id, entry.ended)

    # what is due

    def due(self, routes: Sequence[Route], now: int) -> list[NoticeBatch]:
        """The messages that are due, one a group, in order of the rules."""
        found = []
        for route in routes:
            failing = self.failing.get(route.receiver_name)
            if failing is not None and now < failing.next:
                continue
            quiet = route.rule.quiet_until(now / 1000) is not None
            groups: dict[str, list[LedgerEntry]] = {}
            for entry in self._entries.values():
                if entry.route == route.key and entry.claimed <= now:
                    groups.setdefault(entry.group, []).append(entry)
            for group in sorted(groups):
                batch = _batch(route, group, groups[group], now, quiet=quiet)
                if batch is not None:
                    found.append(batch)
        return found

    def waiting(self) -> int:
        """How many notices must still be reported."""
        return sum(not entry.reported for entry in self._entries.values())

    # what became of it

    def claim(self, batch: NoticeBatch, by: str, now: int) -> None:
        """Note that this server sends the message now."""
        for entry in self._of(batch.ids):
            entry.claimed, entry.by = now + CLAIM_MS, by
            entry.tried, entry.tries = entry.tried or now, entry.tries + 1
        self.changed = True

    def sent(self, batch: NoticeBatch, now: int) -> None:
        """Note that the receiver took the message."""
        self.failing.pop(batch.route.receiver_name, None)
        self._told(batch, now)

    def failed(self, batch: NoticeBatch, reason: str, now: int, retry_after: int = 0) -> int:
        """Note that the receiver did not; how many notices were given up."""
        name = batch.route.receiver_name
        failing = self.failing.setdefault(name, Failing(now, 0, 0, ""))
        failing.tries += 1
        wait = min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** min(failing.tries - 1, 10))
        failing.next = now + max(wait, min(retry_after, LONGEST_WAIT_MS))
        failing.reason = bounded(reason, _TEXT)
        lost = [e for e in self._of(batch.ids) if e.tries >= MOST_TRIES or now - e.tried >= LONGEST_MS]
        for entry in self._of(batch.ids):
            entry.claimed, entry.by = 0, ""
        if lost:
            ids = {entry.id for entry in lost}
            self._told(_only(batch, ids), now)
            failing.lost += len(lost)
        self.changed = True
        return len(lost)

    def _told(self, batch: NoticeBatch, now: int) -> None:
        for entry in self._of(entry.id for entry in batch.begins):
            # what was over when its beginning was reported was reported whole
            whole = any(one.id == entry.id and one.ended for one in batch.begins)
            entry.reported, entry.claimed, entry.by, entry.tried, entry.tries = now, 0, "", 0, 0
            if whole:
                self._finish(entry.id, now)
        for entry in self._of(entry.id for entry in batch.ends):
            self._finish(entry.id, now)
        self.changed = True

    def _finish(self, name: str, now: int) -> None:
        if self._entries.pop(name, None) is not None:
            self._done[name] = now
            self.changed = True

    def _of(self, ids: Iterable[str]) -> list[LedgerEntry]:
        return [self._entries[name] for name in ids if name in self._entries]


def problems(failing: Mapping[str, Failing]) -> list[dict[str, object]]:
    """The receivers that take nothing, as `belay status` shows them."""
    return [
        {"receiver": name, "since": one.since, "tries": one.tries, "lost": one.lost, "reason": one.reason}
        for name, one in sorted(failing.items())
    ]


def _batch(route: Route, group: str, entries: Sequence[LedgerEntry], now: int, *, quiet: bool) -> NoticeBatch | None:
    """The message of one group, where one of its entries is due."""
    wait = round(route.rule.group_wait * 1000)
    begins = [e for e in entries if not e.reported and (e.ended or now - e.begun >= _least(route, e.event))]
    ends = [e for e in entries if e.reported and e.ended]
    again = [e for e in entries if e.reported and not e.ended and _repeats(route, e, now)]
    due = any(now - e.seen >= wait for e in begins) or any(now - e.over >= wait for e in ends)

    if quiet:
        # Alertmanager takes an alert that is not repeated for resolved
        begins, ends, due = [], [], False
        again = again if route.receiver.type is ReceiverType.ALERTMANAGER else []
    if not due and not again:
        return None
    begins, ends = (begins, ends) if due else ([], [])
    chosen = [*begins, *again][:MOST_IN_MESSAGE]
    ended = ends[: MOST_IN_MESSAGE - len(chosen)]
    more = len(begins) + len(again) + len(ends) - len(chosen) - len(ended)
    copies = [msgspec.structs.replace(entry) for entry in (*chosen, *ended)]
    return NoticeBatch(route, group, tuple(copies[: len(chosen)]), tuple(copies[len(chosen) :]), more)


def _least(route: Route, event: NoticeEvent) -> int:
    """Milliseconds that something must have lasted to be reported."""
    long = event in (NoticeEvent.WAIT, NoticeEvent.RECOVERY)
    return round(route.rule.longer_than * 1000) if long else 0


def _repeats(route: Route, entry: LedgerEntry, now: int) -> bool:
    every = repeats_every(route)
    return every > 0 and now - entry.reported >= every and route.tells_begin(entry.event)


def repeats_every(route: Route) -> int:
    """Milliseconds after which what lasts is reported again; 0: never."""
    default = ALIVE_MS if route.receiver.type is ReceiverType.ALERTMANAGER else 0
    return round(route.rule.repeat * 1000) or default


def _only(batch: NoticeBatch, ids: set[str]) -> NoticeBatch:
    begins = tuple(entry for entry in batch.begins if entry.id in ids)
    return msgspec.structs.replace(batch, begins=begins, ends=tuple(e for e in batch.ends if e.id in ids))
