"""The words of records: one line each, with the numbers a person on call needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from belay.engine.model.wording import counted
from belay.engine.serve.records.facts import HistoryRecord, RecordKind, Span, SpanKind, identity
from belay.engine.serve.records.reading import SeenJob, SeenRevision, first_words

_NODES = 4


def _about(span: Span) -> dict[str, Any]:
    return {
        "job": span.job, "namespace": span.namespace, "queue": span.queue, "person": span.person, "pool": span.pool,
    }  # fmt: skip


def waiting_record(span: Span, message: str, *, at: int = 0) -> HistoryRecord:
    """A job waits; from ``at`` on for another reason than before."""
    waits = f"{'still waits' if at else 'waits'} for {counted(span.chips, 'chip')}"
    detail = f": {message}" if message else ""
    return HistoryRecord(
        id=identity("waits", span.subject, str(span.begun), str(at), span.reason), at=at or span.begun,
        kind=RecordKind.WAITING, text=f"{waits}: {span.reason}{detail}", **_about(span),
    )  # fmt: skip


def placed_record(job: str, spans: Sequence[Span], waited: Span | None) -> HistoryRecord:
    """Pods of a job were given their chips."""
    at = max(span.begun for span in spans)
    nodes = sorted({span.node for span in spans})
    after = f" after {duration(at - waited.begun)} of waiting" if waited is not None and at > waited.begun else ""
    given = f"{counted(len(spans), 'pod')} with {counted(sum(span.chips for span in spans), 'chip')}"
    return HistoryRecord(
        id=identity("placed", job, *sorted(f"{span.subject}@{span.begun}" for span in spans)), at=at,
        kind=RecordKind.PLACED, node=nodes[0] if len(nodes) == 1 else "",
        text=f"placed: {given} on {first_words(nodes, _NODES)}{after}",
        **_about(spans[0]),
    )  # fmt: skip


def released_record(job: str, spans: Sequence[Span], now: SeenJob | None) -> HistoryRecord:
    """Pods of a job gave their chips back."""
    at = max(span.ended for span in spans)
    nodes = sorted({span.node for span in spans})
    held = duration(at - min(span.begun for span in spans))
    state = "it is gone" if now is None else f"it is {now.phase}"
    given = f"{counted(len(spans), 'pod')} with {counted(sum(span.chips for span in spans), 'chip')}"
    return HistoryRecord(
        id=identity("released", job, *sorted(span.id for span in spans)), at=at,
        kind=RecordKind.RELEASED, node=nodes[0] if len(nodes) == 1 else "",
        text=f"gave back: {given} on {first_words(nodes, _NODES)} after {held}; {state}",
        **_about(spans[0]),
    )  # fmt: skip


def fault_record(span: Span) -> HistoryRecord:
    """A fault came, or went."""
    where = f"chip {span.chip}" if span.chip >= 0 else "the node"
    text = f"fault on {where}: {span.reason}"
    if span.ended:
        text = f"no fault on {where} any more: {span.reason}, after {duration(span.ended - span.begun)}"
    return _of_chip(span, RecordKind.FAULT, text)


def holder_record(span: Span, *, at: int = 0) -> HistoryRecord:
    """A chip or node is kept out of service, from ``at`` on otherwise than before; or no longer."""
    what = f"chip {span.chip}" if span.chip >= 0 else "node"
    text = f"{what} kept out of service by {span.reason}"
    if span.ended:
        text = f"{what} no longer kept out of service by {span.reason}, after {duration(span.ended - span.begun)}"
    return _of_chip(span, RecordKind.HELD, text, at)


def person_record(span: Span, newest: SeenRevision | None) -> HistoryRecord:
    """A commit was refused, or a deletion waits for a person; or that is over, since the ``newest`` accepted commit."""
    is_commit = span.kind is SpanKind.REFUSED
    text = f"{span.subject[:12]} refused: {span.reason}" if is_commit else f"{span.reason} (digest {span.subject})"
    by, revision = "", span.subject if is_commit else ""
    if span.ended and newest is not None:
        ends = "no longer the newest commit" if is_commit else "no longer waits for a confirmation: confirmed or undone"
        text = f"{span.subject[:12]} {ends} with {newest.revision[:12]} ({newest.subject})"
        by, revision = newest.author, newest.revision
    return HistoryRecord(
        id=identity(span.kind, span.subject, str(span.begun), str(span.ended)), at=span.ended or span.begun,
        kind=RecordKind.REVISION if is_commit else RecordKind.CONFIRMATION, text=text, revision=revision, author=by,
    )  # fmt: skip


def _of_chip(span: Span, kind: RecordKind, text: str, at: int = 0) -> HistoryRecord:
    at = at or span.ended or span.begun
    return HistoryRecord(
        id=identity(kind, span.subject, str(span.begun), str(at), span.reason), at=at,
        kind=kind, text=text, node=span.node, chip=span.chip, pool=span.pool,
    )  # fmt: skip


def recovery_record(span: Span) -> list[HistoryRecord]:
    """A recovery began, and if it is over, ended."""
    begin = HistoryRecord(
        id=identity("recovery", span.subject), at=span.begun, kind=RecordKind.RECOVERY,
        text=f"recovery begins: {span.reason}, {counted(span.chips, 'chip')} stand still", **_about(span),
    )  # fmt: skip
    if not span.ended:
        return [begin]
    took = duration(span.ended - span.begun)
    end = HistoryRecord(
        id=identity("recovered", span.subject), at=span.ended, kind=RecordKind.RECOVERY,
        text=f"recovered after {took}: {span.reason}; {span.cost / 3600:.2f} chip-hours lost", **_about(span),
    )  # fmt: skip
    return [begin, end]


def duration(milliseconds: int) -> str:
    """A time in the two largest units that it has."""
    seconds = max(0, milliseconds) // 1000
    for size, unit, part, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            rest = seconds % size // part
            return f"{seconds // size} {unit} {rest} {small}" if rest else f"{seconds // size} {unit}"
    return f"{seconds} s"
