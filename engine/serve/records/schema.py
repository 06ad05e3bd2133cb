"""The tables of the history, and the steps that bring an older database to their form.

``records`` only grows at its end and is a chain of hashes; ``spans`` are times with a beginning and an end: who held
which chips, what waited, which fault lasted. All times are Unix milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sqlalchemy import BigInteger, Column, Connection, Index, Integer, MetaData, String, Table, Text, inspect, select

VERSION: Final = 1
"""The form of the tables that this version of Belay writes."""
METADATA: Final = MetaData()

NOTES: Final = Table(
    "notes",
    METADATA,
    Column("key", String(64), primary_key=True),
    Column("value", Text, nullable=False),
)
"""Facts about the database itself: its form, who writes it, when the cluster was last seen."""

RECORDS: Final = Table(
    "records",
    METADATA,
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=False),
    Column("id", String(64), nullable=False, unique=True),
    Column("at", BigInteger, nullable=False),
    Column("kind", String(32), nullable=False),
    Column("job", Text, nullable=False),
    Column("namespace", String(253), nullable=False),
    Column("queue", String(253), nullable=False),
    Column("person", Text, nullable=False),
    Column("node", String(253), nullable=False),
    Column("chip", Integer, nullable=False),
    Column("pool", String(253), nullable=False),
    Column("text", Text, nullable=False),
    Column("cause", Text, nullable=False),
    Column("revision", String(64), nullable=False),
    Column("author", Text, nullable=False),
    Column("previous", String(64), nullable=False),
    Column("hash", String(64), nullable=False),
    Index("records_at", "at"),
    Index("records_job", "job"),
    Index("records_node", "node"),
)

SPANS: Final = Table(
    "spans",
    METADATA,
    Column("id", String(64), primary_key=True),
    Column("kind", String(32), nullable=False),
    Column("subject", Text, nullable=False),
    Column("begun", BigInteger, nullable=False),
    Column("ended", BigInteger, nullable=False),
    Column("job", Text, nullable=False),
    Column("namespace", String(253), nullable=False),
    Column("queue", String(253), nullable=False),
    Column("person", Text, nullable=False),
    Column("node", String(253), nullable=False),
    Column("chip", Integer, nullable=False),
    Column("pool", String(253), nullable=False),
    Column("chips", Integer, nullable=False),
    Column("reason", Text, nullable=False),
    Column("cost", BigInteger, nullable=False),
    Column("seen", BigInteger, nullable=False),
    Index("spans_begun", "begun"),
    Index("spans_ended", "ended"),
)
"""``ended`` is 0 while a span lasts. ``seen`` is when its cause was first known: a recovery's fault. ``cost``: the
chip-seconds without progress of a recovery that ended."""

#: The steps by the form that they bring a database to: each starts from the form before.
STEPS: Final[dict[int, Callable[[Connection], None]]] = {1: lambda connection: METADATA.create_all(connection)}


def stored_version(connection: Connection) -> int:
    """The form of the tables in a database; 0 in an empty one."""
    if not inspect(connection).has_table(NOTES.name):
        return 0
    found = connection.execute(select(NOTES.c.value).where(NOTES.c.key == "version")).scalar()
    return int(found) if found is not None and found.isdecimal() else 0
