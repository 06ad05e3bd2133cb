"""One message of many notices, in plain words, with links to the console at that moment. Pure."""

from __future__ import annotations

import hashlib
from typing import Final
from urllib.parse import quote

import msgspec

from belay.engine.model.notices import NoticeEvent
from belay.engine.model.times import rfc3339
from belay.engine.serve.notify.ledger import LedgerEntry, NoticeBatch
from belay.engine.serve.records.narration import duration

_VIEWS: Final = {
    NoticeEvent.WAIT: "queue", NoticeEvent.RECOVERY: "recovery", NoticeEvent.REFUSED_REVISION: "git",
    NoticeEvent.HELD_DELETION: "git", NoticeEvent.FINDING: "git",
}  # fmt: skip
_ONCE: Final = (NoticeEvent.EVICTION,)


class MessageItem(msgspec.Struct, frozen=True):
    """One notice in a message. ``over``: it reports an end; ``begun`` and ``ended`` are Unix ms (0: it lasts).
    ``key`` is the same whenever the same thing is reported.
    """

    key: str
    event: str
    text: str
    begun: int
    ended: int
    cause: str = ""
    way_out: str = ""
    link: str = ""
    level: str = ""
    over: bool = False

    @property
    def lines(self) -> tuple[str, ...]:
        """The item in lines of plain text: the sentence, its cause, the way out, the link."""
        more = (("cause", self.cause), ("way out", self.way_out if not self.ended else ""), ("console", self.link))
        return (self.text, *(f"{name}: {text}" for name, text in more if text))


class Message(msgspec.Struct, frozen=True):
    """What is sent to one receiver. ``key`` is the same when the same message is tried again; ``more`` notices follow
    in another one.
    """

    key: str
    title: str
    rule: str
    items: tuple[MessageItem, ...]
    more: int = 0
    time: int = 0
    until: int = 0
    """Unix ms until when a receiver that forgets may take what lasts for lasting; 0: it does not forget."""


def message(batch: NoticeBatch, console: str, now: int, until: int = 0) -> Message:
    """The message of a batch; ``console`` is the address of the console, or empty."""
    items = (
        *(_item(entry, console, over=bool(entry.ended) and entry.event not in _ONCE) for entry in batch.begins),
        *(_item(entry, console, over=True) for entry in batch.ends),
    )
    begins, ends = len(batch.begins), len(batch.ends)
    digest = hashlib.sha256("\n".join(batch.ids).encode("utf-8", "surrogatepass")).hexdigest()[:32]
    stamp = max((entry.reported for entry in batch.begins), default=0)
    rule = f"{batch.route.policy}/{batch.route.rule.name}"
    return Message(
        key=f"{digest}-{stamp}", title=_title(items, begins, ends), rule=rule, items=items,
        more=batch.more, time=now, until=until,
    )  # fmt: skip


def probe(rule: str, text: str, console: str, now: int) -> Message:
    """A message that only shows that messages arrive."""
    item = MessageItem(f"test-{now}", "Test", text, now, now, link=f"{console}/console/" if console else "", over=True)
    return Message(key=f"test-{now}", title="Belay: test message", rule=rule, items=(item,), time=now)


def _title(items: tuple[MessageItem, ...], begins: int, ends: int) -> str:
    if len(items) == 1:
        return f"Belay: {items[0].text}"
    parts = []
    if begins:
        parts.append(f"{begins} new")
    if ends:
        parts.append(f"{ends} over")
    return f"Belay: {', '.join(parts)}"


def _item(entry: LedgerEntry, console: str, *, over: bool) -> MessageItem:
    text = entry.text
    if over:
        took = f" (it lasted {duration(entry.ended - entry.begun)})"
        text = entry.last_words or f"over: {entry.text}{took}"
    elif entry.reported:
        text = f"still: {entry.text}"
    return MessageItem(
        entry.key, entry.event, f"{text} [{rfc3339((entry.ended if over else entry.begun) / 1000)}]", entry.begun,
        entry.ended, entry.cause, entry.way_out, _link(entry, console, entry.ended or entry.begun), entry.level, over,
    )  # fmt: skip


def _link(entry: LedgerEntry, console: str, at: int) -> str:
    """Where the console shows it, at the moment at which it began or ended."""
    if not console:
        return ""
    chosen = f"&select={quote(entry.select, safe='/')}" if entry.select else ""
    return f"{console}/console/#/{_VIEWS.get(entry.event, 'map')}?at={quote(rfc3339(at / 1000))}{chosen}"
