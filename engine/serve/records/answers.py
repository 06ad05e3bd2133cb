"""What the history answers: what happened, who asked for it, and whether anything is missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, Connection, and_, func, or_, select

from belay.engine.errors import InputError
from belay.engine.model.times import parse_rfc3339, rfc3339
from belay.engine.model.wording import counted
from belay.engine.serve.records import chain
from belay.engine.serve.records.facts import RecordKind, Span, SpanKind
from belay.engine.serve.records.schema import RECORDS, SPANS
from belay.engine.serve.records.store import RecordStore, span_of

SUBJECTS: Final = ("job", "node", "chip", "pool", "user")
MOST: Final = 10_000
USUAL: Final = 500
#: What an audit lists: what people asked for, and what was done for it.
AUDITED: Final = (RecordKind.REVISION, RecordKind.CONFIRMATION, RecordKind.ACTION, RecordKind.HISTORY)


class HistoryQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked: about a job (``NAMESPACE/NAME`` or its whole key), a node, a chip (``NODE/3``), a pool or a user;
    from ``since`` to ``until`` (Unix ms). ``audit``: only what people asked for and what was done, with the chain's
    hashes. The newest ``limit`` records are answered.
    """

    subject: str = ""
    name: str = ""
    since: int = 0
    until: int = 2**62
    audit: bool = False
    limit: int = USUAL


def query_of(values: Mapping[str, str]) -> HistoryQuery:
    """The query that the parameters of an address make.

    Raises:
        InputError: a parameter cannot be read.
    """
    subject, name = values.get("subject", ""), values.get("name", "")
    if subject and subject not in SUBJECTS:
        raise InputError(f"{subject[:40]!r} is no subject of a history", hint=f"Write one of {', '.join(SUBJECTS)}.")
    if bool(subject) != bool(name) or len(name) > 600:
        raise InputError("a subject needs its name", hint="Write for instance: belay history node node-1")
    node, _, chip = name.rpartition("/")
    number = chip.rpartition("-")[2]
    if subject == "chip" and not (node and number.isascii() and number.isdecimal()):
        raise InputError(f"{name[:80]!r} is not a chip", hint="Write NODE/NUMBER, such as node-1/3.")
    since, until = time_of(values, "since", 0), time_of(values, "until", 2**62)
    if since > until:
        raise InputError("the time ends before it begins", where="since, until")
    return HistoryQuery(
        subject=subject, name=name, since=since, until=until,
        audit=values.get("audit", "") in ("1", "true"), limit=_limit(values.get("limit", "")),
    )  # fmt: skip


def time_of(values: Mapping[str, str], key: str, default: int) -> int:
    """A time among parameters, in Unix milliseconds. Raises InputError for one that is not RFC 3339."""
    text = values.get(key, "")
    if not text:
        return default
    try:
        return round(parse_rfc3339(text) * 1000)
    except (ValueError, OverflowError) as error:
        raise InputError(f"{text[:40]!r} is no time", where=key, hint="Write 2026-12-24T18:00:00Z.") from error


def _limit(text: str) -> int:
    if not text:
        return USUAL
    if not text.isascii() or not text.isdecimal() or not 0 < len(text) < 8:
        raise InputError(f"{text[:40]!r} is not a number of records", where="limit")
    return min(MOST, max(1, int(text)))


def history(store: RecordStore, query: HistoryQuery) -> dict[str, Any]:
    """The records that a query names, oldest first; ``begins``: when the history begins. Raises HistoryUnavailable."""
    with store.reading() as connection:
        where = _conditions(query)
        total = connection.execute(select(func.count()).select_from(RECORDS).where(*where)).scalar_one()
        newest = select(RECORDS).where(*where).order_by(RECORDS.c.at.desc(), RECORDS.c.number.desc()).limit(query.limit)
        listed = [_shown(row, query.audit) for row in connection.execute(newest).mappings()]
        if query.subject in ("node", "chip") and not query.audit:
            listed = [*_tenants(connection, query), *listed]
        begins = connection.execute(select(func.min(RECORDS.c.at))).scalar()
    # what happened at the same time stays in the order in which it was stored
    listed.reverse()
    listed.sort(key=lambda row: str(row["time"]))
    kept = listed[-query.limit :]
    return {
        "records": kept,
        "leftOut": max(0, total - query.limit) + len(listed) - len(kept),
        "begins": rfc3339(begins / 1000) if begins is not None else None,
    }


def verdict(store: RecordStore, expected: str = "") -> dict[str, Any]:
    """Whether the chain of records is whole. ``expected`` is ``NUMBER:HASH``, a head that was noted earlier.

    Raises:
        InputError: ``expected`` has another form. HistoryUnavailable: the database cannot be read.
    """
    number, _, digest = expected.partition(":")
    if expected and not (number.isascii() and number.isdecimal() and len(number) < 19 and len(digest) == 64):
        raise InputError(f"{expected[:80]!r} is no head of a history", hint="Write NUMBER:HASH as --verify printed it.")
    with store.reading() as connection:
        found = chain.verify(connection, chain.ChainHead(int(number), digest) if expected else None)
    body: dict[str, Any] = msgspec.to_builtins(found)
    return body


def _conditions(query: HistoryQuery) -> list[ColumnElement[bool]]:
    where: list[ColumnElement[bool]] = [RECORDS.c.at >= query.since, RECORDS.c.at <= query.until]
    if query.audit:
        where.append(RECORDS.c.kind.in_([kind.value for kind in AUDITED]))
    match query.subject:
        case "job":
            where.append(_job_named(query.name))
        case "node":
            where.append(RECORDS.c.node == query.name)
        case "chip":
            node, chip = _chip(query.name)
            where.append(and_(RECORDS.c.node == node, RECORDS.c.chip.in_((chip, -1))))
        case "pool":
            where.append(RECORDS.c.pool == query.name)
        case "user":
            where.append(or_(_person(RECORDS.c.person, query.name), _person(RECORDS.c.author, query.name)))
    return where


def _job_named(name: str) -> ColumnElement[bool]:
    """A job by its key, by namespace and name, or by its name alone."""
    parts = name.split("/")
    if len(parts) == 3:
        return RECORDS.c.job == name
    if len(parts) == 2:
        return RECORDS.c.job.like(f"{_escaped(parts[0])}/%/{_escaped(parts[1])}", escape="\\")
    return RECORDS.c.job.like(f"%/{_escaped(name)}", escape="\\")


def _person(column: Any, name: str) -> ColumnElement[bool]:
    """A person by name, by address, or by both as Git writes them."""
    found: ColumnElement[bool] = or_(
        column == name,
        column.like(f"{_escaped(name)} <%", escape="\\"),
        column.like(f"%<{_escaped(name)}>", escape="\\"),
    )
    return found


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def _chip(name: str) -> tuple[str, int]:
    """Node and number of ``node-1/3`` or ``node-1/Ascend910-3``."""
    node, _, chip = name.rpartition("/")
    return node, int(chip.rpartition("-")[2][:6])


def _tenants(connection: Connection, query: HistoryQuery) -> list[dict[str, Any]]:
    """Who held chips of a node: jobs on several nodes have one record each, which names no single node."""
    node, chip = _chip(query.name) if query.subject == "chip" else (query.name, -1)
    overlapping = (SPANS.c.begun <= query.until, or_(SPANS.c.ended == 0, SPANS.c.ended >= query.since))
    held = select(SPANS).where(SPANS.c.kind == SpanKind.HOLDS.value, SPANS.c.node == node, *overlapping)
    rows = []
    for row in connection.execute(held.order_by(SPANS.c.begun.desc()).limit(query.limit)).mappings():
        span = span_of(row)
        if chip >= 0 and chip not in held_chips(span):
            continue
        pod = span.subject.partition("|")[0]
        if query.since <= span.begun <= query.until:
            rows.append(_tenant(span, span.begun, f"{pod} got {counted(span.chips, 'chip')}"))
        if span.ended and query.since <= span.ended <= query.until:
            rows.append(_tenant(span, span.ended, f"{pod} gave back {counted(span.chips, 'chip')}"))
    return rows


def held_chips(span: Span) -> set[int]:
    """The numbers of the chips that a pod held."""
    names = span.subject.rpartition("|")[2].split(",")
    numbers = (name.rpartition("-")[2] for name in names)
    return {int(number) for number in numbers if number.isascii() and number.isdecimal() and len(number) < 6}


def _tenant(span: Span, at: int, text: str) -> dict[str, Any]:
    return {
        "time": rfc3339(at / 1000), "kind": SpanKind.HOLDS.value, "job": span.job, "node": span.node, "chip": None,
        "pool": span.pool, "queue": span.queue, "user": span.person, "text": text, "cause": "", "revision": "",
        "author": "",
    }  # fmt: skip


def _shown(row: Mapping[Any, Any], audit: bool) -> dict[str, Any]:
    shown = {
        "time": rfc3339(row["at"] / 1000), "kind": row["kind"], "job": row["job"], "node": row["node"],
        "chip": row["chip"] if row["chip"] >= 0 else None, "pool": row["pool"], "queue": row["queue"],
        "user": row["person"], "text": row["text"], "cause": row["cause"], "revision": row["revision"],
        "author": row["author"],
    }  # fmt: skip
    return {"number": row["number"], **shown, "hash": row["hash"], "previous": row["previous"]} if audit else shown
