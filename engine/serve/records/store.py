"""The database of the history: SQLite in a folder of the server, or PostgreSQL by URL.

One server writes at a time: the row ``writer`` names it, and every write takes that row first. So two servers that
believe to be the writer wait for each other, and what both know is stored once, by its id.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Engine, create_engine, delete, event, func, insert, select, update
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.pool import StaticPool

from belay.engine.errors import BelayError, InputError, bounded
from belay.engine.serve.records import chain
from belay.engine.serve.records.facts import HistoryChanges, HistoryRecord, RecordKind, Span, SpanKind, identity
from belay.engine.serve.records.schema import NOTES, RECORDS, SPANS, STEPS, VERSION, stored_version

FILE: Final = "history.db"
MEMORY: Final = "sqlite://"
LEASE_MS: Final = 30_000
BUSY_SECONDS: Final = 5.0
MOST_SET_ASIDE: Final = 3
"""Damaged files that are kept beside; a disk that damages more of them needs a person."""
_CHUNK: Final = 400
_WRITER: Final = "writer"
_SEEN: Final = "seen"
_DAY_MS: Final = 86_400_000
_OWNERS: Final = ("person", "queue", "pool")
_ROW_BYTES: Final = 400
"""What a row takes beside its texts: hashes, ids, numbers and its places in the indexes."""


class HistoryUnavailable(BelayError):
    """The history's database cannot be used now."""

    code = "HistoryUnavailable"


class HistoryBounds(msgspec.Struct, frozen=True):
    """How long and how large: what is older than ``days``, or beyond ``megabytes``, is removed, oldest first."""

    days: int = 400
    megabytes: int = 1024


class RecordStore:
    """One database. Blocking; used from one thread at a time for writing, from any for reading."""

    def __init__(self, url: str, *, asked_by: str = "BELAY_HISTORY_URL") -> None:
        self._engine = _engine(url, asked_by)
        self.place = _shown(self._engine.url)

    @property
    def engine(self) -> Engine:
        """For reading by the queries of this room."""
        return self._engine

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection for reading.

        Raises:
            HistoryUnavailable: the database does not answer, or its tables are of a newer version.
        """
        with self._guarded(), self._engine.connect() as connection:
            yield connection

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Connection]:
        with self._guarded(), self._engine.begin() as connection:
            yield connection

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            raise HistoryUnavailable(bounded(f"{self.place}: {_cause(error)}", 300)) from error

    # its form

    def prepare(self) -> None:
        """Make the tables, or bring older ones to this version's form, step by step.

        Raises:
            HistoryUnavailable: the database does not answer, or a newer version made its tables.
        """
        with self._writing() as connection:
            stored = stored_version(connection)
            if stored > VERSION:
                raise HistoryUnavailable(
                    f"{self.place} has tables of form {stored}, this version of Belay knows form {VERSION}",
                    hint="Run the newer version, or name another database.",
                )
            for step in range(stored + 1, VERSION + 1):
                STEPS[step](connection)
                _note(connection, "version", str(step))
            if connection.execute(select(NOTES.c.key).where(NOTES.c.key == _WRITER)).first() is None:
                connection.execute(insert(NOTES).values(key=_WRITER, value=_lease("", 0, 0)))

    # who writes

    def take(self, identity: str, now: int) -> int:
        """Become the writer, or stay it; the epoch of the writership, 0 while another server has it. It rises whenever
        the writer changes.

        Raises: HistoryUnavailable.
        """
        with self._writing() as connection:
            return _taken(connection, identity, now)

    def release(self, identity: str) -> None:
        """Let another server write at once. Raises: HistoryUnavailable."""
        with self._writing() as connection:
            holder, _, epoch = _holder(connection)
            if holder == identity:
                _note(connection, _WRITER, _lease("", 0, epoch))

    # what is stored

    def lasting(self) -> dict[tuple[SpanKind, str], Span]:
        """The spans that have not ended. Raises: HistoryUnavailable."""
        with self.reading() as connection:
            found = [span_of(row._mapping) for row in connection.execute(select(SPANS).where(SPANS.c.ended == 0))]
        return {span.key: span for span in found}

    def last_seen(self) -> int:
        """When the cluster was last looked at; 0 if never. Raises: HistoryUnavailable."""
        with self.reading() as connection:
            return _number(_noted(connection, _SEEN))

    def write(self, changes: HistoryChanges, *, by: str, now: int) -> int | None:
        """Store what is new, in one transaction; how many records were. None: another server writes.

        Raises: HistoryUnavailable.
        """
        with self._writing() as connection:
            if not _taken(connection, by, now):
                return None
            fresh = _unknown(connection, changes.records)
            head = chain.head(connection)
            rows = chain.linked(fresh, head)
            for part in _parts(rows):
                connection.execute(insert(RECORDS), part)
            _store_spans(connection, changes.spans)
            _note(connection, _SEEN, str(now))
            return len(rows)

    # bounds

    def prune(self, bounds: HistoryBounds, *, by: str, now: int) -> int:
        """Remove the oldest records beyond the bounds, and leave a record about it; how many were removed.

        Raises: HistoryUnavailable.
        """
        with self._writing() as connection:
            if not _taken(connection, by, now):
                return 0
            cutoff = now - bounds.days * _DAY_MS
            connection.execute(delete(SPANS).where(SPANS.c.ended > 0, SPANS.c.ended < cutoff))
            through = _last_before(connection, cutoff)
            why = f"older than {bounds.days} days"
            if (size := stored_bytes(connection)) > bounds.megabytes * 2**20:
                share = 1 - 0.9 * bounds.megabytes * 2**20 / size
                through = max(through, _share_of_records(connection, share))
                why = f"beyond {bounds.megabytes} MiB"
                _drop_oldest_spans(connection, share)
            return _prune_records(connection, through, why, now)


def stored_bytes(connection: Connection) -> int:
    """About how many bytes the rows take."""
    texts = func.coalesce(func.sum(func.length(RECORDS.c.text) + func.length(RECORDS.c.cause)), 0)
    size, count = connection.execute(select(texts, func.count()).select_from(RECORDS)).one()
    spans = connection.execute(select(func.count()).select_from(SPANS)).scalar_one()
    return int(size) + (int(count) + int(spans)) * _ROW_BYTES


def database_url(setting: str, folder: Path) -> str:
    """The URL of a database: what a setting says, else a SQLite file in the folder."""
    return setting or f"sqlite:///{folder / FILE}"


def set_aside(url: str) -> Path | None:
    """Move a damaged SQLite file away, so that a new one can be made; where to. None: there are too many already, or
    it is no file.
    """
    parts = make_url(url)
    file = Path(parts.database or "")
    if not parts.drivername.startswith("sqlite") or not file.is_file():
        return None
    for number in range(1, MOST_SET_ASIDE + 1):
        target = file.with_name(f"{file.name}.damaged-{number}")
        if not target.exists():
            os.replace(file, target)
            for beside in ("-wal", "-shm", "-journal"):
                Path(f"{file}{beside}").unlink(missing_ok=True)
            return target
    return None


def missing_file(url: str) -> Path | None:
    """The file of a SQLite database that is not there; None for any other database."""
    parts = make_url(url)
    file = Path(parts.database or "")
    return file if parts.drivername.startswith("sqlite") and parts.database and not file.exists() else None


def is_damaged(url: str) -> bool:
    """Whether a database is a SQLite file that is damaged, as SQLite itself judges."""
    parts = make_url(url)
    if not parts.drivername.startswith("sqlite") or not Path(parts.database or "").is_file():
        return False
    try:
        with contextlib.closing(sqlite3.connect(str(parts.database), timeout=BUSY_SECONDS)) as connection:
            return bool(connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",))
    except sqlite3.OperationalError:
        return False  # locked, or the disk: nothing that another file would mend
    except sqlite3.DatabaseError:
        return True


def _engine(url: str, asked_by: str) -> Engine:
    try:
        parts = make_url(url)
        if parts.drivername in ("postgres", "postgresql"):
            parts = parts.set(drivername="postgresql+pg8000")
        if parts.drivername.startswith("sqlite"):
            return _sqlite(parts)
        if parts.drivername != "postgresql+pg8000":
            raise ArgumentError("neither sqlite nor postgresql")
        return create_engine(parts, pool_size=4, max_overflow=4, pool_pre_ping=True, connect_args={"timeout": 10})
    except (SQLAlchemyError, ImportError, ValueError) as error:
        hint = "Write postgresql://USER:PASSWORD@HOST:5432/DATABASE, or sqlite:////FOLDER/history.db."
        raise InputError("is not the URL of a database", where=asked_by, hint=hint) from error


def _sqlite(parts: URL) -> Engine:
    if not parts.database:
        return create_engine(parts, poolclass=StaticPool, connect_args={"check_same_thread": False})
    engine = create_engine(parts, connect_args={"timeout": BUSY_SECONDS, "check_same_thread": False})

    @event.listens_for(engine, "connect")
    def _connected(connection: Any, _: Any) -> None:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")

    return engine


def _cause(error: SQLAlchemyError) -> str:
    """What the database said, without the class's name and the address of an explanation that SQLAlchemy's text has."""
    cause = getattr(error, "orig", None) or error
    said = cause.args[0] if cause.args else ""
    # of PostgreSQL's answers, fields by letter, M is the message
    return str(said.get("M", said)) if isinstance(said, dict) else str(cause)


def _shown(url: URL) -> str:
    """The database for messages, without its password."""
    if url.drivername.startswith("sqlite"):
        return url.database or "the history in memory"
    return url.set(drivername=url.get_backend_name()).render_as_string(hide_password=True)


def _lease(holder: str, until: int, epoch: int) -> str:
    return msgspec.json.encode([holder, until, epoch]).decode()


def _holder(connection: Connection) -> tuple[str, int, int]:
    try:
        found: tuple[str, int, int] = msgspec.json.decode(_noted(connection, _WRITER), type=tuple[str, int, int])
        return found
    except (msgspec.DecodeError, RecursionError):
        return "", 0, 0


def _taken(connection: Connection, identity: str, now: int) -> int:
    """The epoch of this writer, 0 while another one has it. The row stays locked until the transaction ends."""
    # an update first, so that a second writer waits here and then reads what the first one wrote
    connection.execute(update(NOTES).where(NOTES.c.key == _WRITER).values(value=NOTES.c.value))
    holder, until, epoch = _holder(connection)
    if holder not in ("", identity) and until > now:
        return 0
    epoch += int(holder != identity)
    _note(connection, _WRITER, _lease(identity, now + LEASE_MS, epoch))
    return epoch


def _note(connection: Connection, key: str, value: str) -> None:
    if not connection.execute(update(NOTES).where(NOTES.c.key == key).values(value=value)).rowcount:
        connection.execute(insert(NOTES).values(key=key, value=value))


def _noted(connection: Connection, key: str) -> str:
    return str(connection.execute(select(NOTES.c.value).where(NOTES.c.key == key)).scalar() or "")


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else 0


def _unknown(connection: Connection, records: Sequence[HistoryRecord]) -> list[HistoryRecord]:
    """The records that are not stored yet, each once, in order of time."""
    by_id = {record.id: record for record in records}
    ids = list(by_id)
    for start in range(0, len(ids), _CHUNK):
        part = ids[start : start + _CHUNK]
        for (known,) in connection.execute(select(RECORDS.c.id).where(RECORDS.c.id.in_(part))):
            del by_id[known]
    return sorted(by_id.values(), key=lambda record: record.at)


def _store_spans(connection: Connection, spans: Sequence[Span]) -> None:
    """Store spans in place of what is stored of them. Whose a span was stays as it was stored first: an ended recovery
    is seen again for long, when its job may have no pods, or belong to another person.
    """
    rows = {span.id: span_row(span) for span in spans}
    ids = list(rows)
    for start in range(0, len(ids), _CHUNK):
        part = ids[start : start + _CHUNK]
        stored = select(SPANS.c.id, *(SPANS.c[name] for name in _OWNERS)).where(SPANS.c.id.in_(part))
        for known in connection.execute(stored).mappings().all():
            rows[known["id"]] |= {name: known[name] for name in _OWNERS if known[name]}
        connection.execute(delete(SPANS).where(SPANS.c.id.in_(part)))
        connection.execute(insert(SPANS), [rows[one] for one in part])


def _parts(rows: Sequence[dict[str, Any]]) -> Iterator[Sequence[dict[str, Any]]]:
    for start in range(0, len(rows), _CHUNK):
        yield rows[start : start + _CHUNK]


def span_row(span: Span) -> dict[str, Any]:
    """A span as a row."""
    return {"id": span.id, **msgspec.structs.asdict(span), "kind": span.kind.value}


def span_of(row: Mapping[Any, Any]) -> Span:
    """A row as a span."""
    fields = {key: value for key, value in row.items() if key != "id"}
    return Span(**{**fields, "kind": SpanKind(row["kind"])})


def _last_before(connection: Connection, cutoff: int) -> int:
    """The number of the last record of an unbroken row of records before a time, from the oldest on."""
    newer = connection.execute(select(func.min(RECORDS.c.number)).where(RECORDS.c.at >= cutoff)).scalar()
    if newer is not None:
        return int(newer) - 1
    return int(connection.execute(select(func.coalesce(func.max(RECORDS.c.number), 0))).scalar_one())


def _share_of_records(connection: Connection, share: float) -> int:
    """The number of the last record of the oldest share of all."""
    first, last = connection.execute(select(func.min(RECORDS.c.number), func.max(RECORDS.c.number))).one()
    return int(first + (last - first + 1) * share) if first is not None else 0


def _drop_oldest_spans(connection: Connection, share: float) -> None:
    count = connection.execute(select(func.count()).select_from(SPANS).where(SPANS.c.ended > 0)).scalar_one()
    oldest = select(SPANS.c.id).where(SPANS.c.ended > 0).order_by(SPANS.c.ended).limit(int(count * share))
    connection.execute(delete(SPANS).where(SPANS.c.id.in_(oldest.scalar_subquery())))


def _prune_records(connection: Connection, through: int, why: str, now: int) -> int:
    """Remove the records up to a number; what was removed stays known by a record in the chain."""
    last = connection.execute(select(RECORDS).where(RECORDS.c.number == through)).mappings().first()
    # a record about what was removed would be the only reason to remove again
    if last is None or last["kind"] == RecordKind.HISTORY:
        return 0
    count = connection.execute(
        select(func.count()).select_from(RECORDS).where(RECORDS.c.number <= through)
    ).scalar_one()
    checkpoint = HistoryRecord(
        id=identity("pruned", str(through), last["hash"]), at=now, kind=RecordKind.HISTORY,
        text=chain.checkpoint_text(count, through, last["hash"], why),
    )  # fmt: skip
    connection.execute(insert(RECORDS), chain.linked([checkpoint], chain.head(connection)))
    connection.execute(delete(RECORDS).where(RECORDS.c.number <= through))
    return int(count)
