"""The records as a chain: each holds the hash of the one before, so that a record that was changed, removed or put in
between is noticed.

The oldest records are removed beyond the history's bounds; a record in the chain then says up to which one, and its
hash, and the rest is verified from there. A person who can write the database can make the whole chain again: keep the
head, which ``belay history --verify`` prints, elsewhere, and compare.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec
from sqlalchemy import Connection, select

from belay.engine.model.wording import counted
from belay.engine.serve.records.facts import HistoryRecord, RecordKind
from belay.engine.serve.records.schema import RECORDS

_CHECKPOINT: Final = re.compile(r"removed \d+ records? through number (\d+) with hash ([0-9a-f]{64}): ")
_BATCH: Final = 1_000


class ChainHead(NamedTuple):
    """The newest record: its number and hash; 0 and empty in an empty history."""

    number: int = 0
    hash: str = ""


class Verdict(msgspec.Struct, frozen=True, rename="camel"):
    """What verifying found: ``broken`` says what is wrong, empty if nothing is. ``first`` is the oldest record that is
    there, ``removed`` how many before it were removed by the history's own bounds.
    """

    records: int
    first: int
    removed: int
    head: int
    head_hash: str
    broken: str = ""


def head(connection: Connection) -> ChainHead:
    """The end of the chain."""
    query = select(RECORDS.c.number, RECORDS.c.hash).order_by(RECORDS.c.number.desc()).limit(1)
    found = connection.execute(query).first()
    return ChainHead(int(found[0]), str(found[1])) if found is not None else ChainHead()


def linked(records: Iterable[HistoryRecord], end: ChainHead) -> list[dict[str, Any]]:
    """The records as rows that continue the chain."""
    rows = []
    for record in records:
        row = {"number": end.number + 1, **msgspec.structs.asdict(record), "previous": end.hash}
        row["kind"] = record.kind.value
        row["hash"] = digest(row)
        end = ChainHead(row["number"], row["hash"])
        rows.append(row)
    return rows


def digest(row: Mapping[Any, Any]) -> str:
    """The hash that a row must have: SHA-256 of its JSON with sorted keys, without the hash itself."""
    covered = {key: value for key, value in row.items() if key != "hash"}
    return hashlib.sha256(msgspec.json.encode(covered, order="sorted")).hexdigest()


def checkpoint_text(count: int, through: int, last: str, why: str) -> str:
    """What a record says about records that were removed before it."""
    return f"removed {counted(count, 'record')} through number {through} with hash {last}: {why}"


def verify(connection: Connection, expected: ChainHead | None = None) -> Verdict:
    """Whether the chain is whole. ``expected`` is a head that was noted earlier: it must still be in the chain.

    A chain that was cut at its end alone is whole in itself: only an ``expected`` head finds that.
    """
    count, first, end, broken = 0, 0, ChainHead(), ""
    begins_after = ChainHead()
    checkpoints: set[ChainHead] = set()
    noted = expected is None or not expected.number

    for row in _rows(connection):
        count += 1
        if count == 1:
            first, begins_after = int(row["number"]), ChainHead(int(row["number"]) - 1, str(row["previous"]))
            end = begins_after
        broken = broken or _wrong(row, end)
        end = ChainHead(int(row["number"]), str(row["hash"]))
        noted = noted or end == expected
        if row["kind"] == RecordKind.HISTORY and (found := _CHECKPOINT.match(str(row["text"]))):
            checkpoints.add(ChainHead(int(found[1]), found[2]))

    if not broken and begins_after.number and begins_after not in checkpoints:
        broken = f"{_missing(1, begins_after.number)}, and no record says that the history's bounds removed any"
    # what was removed since, by the history's own bounds, cannot be looked for any more
    if not broken and not noted and expected is not None and expected.number > begins_after.number:
        broken = f"the noted record {expected.number} is missing or has another hash"
    return Verdict(count, first, begins_after.number, end.number, end.hash, broken)


def _wrong(row: Mapping[Any, Any], before: ChainHead) -> str:
    """What is wrong with a row that must follow another one; empty if nothing is."""
    number = int(row["number"])
    if number != before.number + 1:
        return _missing(before.number + 1, number - 1)
    if row["previous"] != before.hash:
        return f"record {number} does not continue record {before.number}: one of them is not as it was written"
    if row["hash"] != digest(row):
        return f"record {number} was changed: it is not as it was written"
    return ""


def _missing(first: int, last: int) -> str:
    return f"records {first} to {last} are missing" if last > first else f"record {first} is missing"


def _rows(connection: Connection) -> Iterable[Mapping[Any, Any]]:
    """Every record in order, a batch at a time."""
    after = 0
    while True:
        query = select(RECORDS).where(RECORDS.c.number > after).order_by(RECORDS.c.number).limit(_BATCH)
        batch = connection.execute(query).mappings().all()
        if not batch:
            return
        yield from batch
        after = int(batch[-1]["number"])
