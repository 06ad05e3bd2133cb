"""What a look at the cluster adds to the history: the moment that was seen, compared with the spans that last.

It is a pure function of what is stored and what is seen. A server that starts again compares with what it stored, so
what changed meanwhile is found then; the status' own times say when it was, as far as it has any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from belay.engine.serve.records.events import EVICT, SeenEvent, is_binding, is_waiting
from belay.engine.serve.records.facts import HistoryChanges, HistoryRecord, RecordKind, Span, SpanKind, identity
from belay.engine.serve.records.narration import (
    fault_record,
    holder_record,
    person_record,
    placed_record,
    recovery_record,
    released_record,
    waiting_record,
)
from belay.engine.serve.records.reading import SeenCluster, SeenJob

Key = tuple[SpanKind, str]
RUNNING: Final = "Running"
_ORDER: Final = (
    RecordKind.REVISION, RecordKind.CONFIRMATION, RecordKind.FAULT, RecordKind.ACTION, RecordKind.DECISION,
    RecordKind.HELD, RecordKind.RELEASED, RecordKind.RECOVERY, RecordKind.WAITING, RecordKind.PLACED,
    RecordKind.HISTORY,
)  # fmt: skip
AWAY_MS: Final = 60_000
"""After so long without a look, what ended meanwhile without saying when counts until it was last seen."""


class LookTimes(msgspec.Struct, frozen=True):
    """When this look is, and when the last one was (0: never). ``bound`` and ``evicted`` are times by pod, ``changed``
    when a job's status last changed.
    """

    at: int
    before: int = 0
    bound: Mapping[str, int] = {}
    evicted: Mapping[str, int] = {}
    changed: Mapping[str, int] = {}

    @property
    def away(self) -> bool:
        """Whether nothing looked for a while."""
        return bool(self.before) and self.at - self.before > AWAY_MS

    def end(self, span: Span) -> int:
        """When a span ended that is no longer seen."""
        said = 0
        if span.kind is SpanKind.HOLDS:
            said = self.evicted.get(span.subject.partition("|")[0], 0)
        said = said or (self.changed.get(span.job, 0) if self.away else 0)
        if max(span.begun, self.before if self.away else 0) <= said <= self.at:
            return said
        return max(span.begun, self.before if self.away else self.at)


def changes(
    lasting: Mapping[Key, Span],
    seen: SeenCluster,
    events: Sequence[SeenEvent],
    times: LookTimes,
    last: SeenCluster | None = None,
) -> HistoryChanges:
    """Records and spans to store. Spans with an end are those that ended; the others began or say something new.

    ``last`` is the moment whose changes were stored last: what it said already is not looked at again.
    """
    last = last or SeenCluster()
    fresh = _fresh_jobs(seen, last)
    wanted = {span.key: span for span in _owned_then(seen_spans(seen, fresh, times), lasting)}
    began, changed, past = _compared(lasting, wanted)

    # what a job that has not changed holds is not looked at, so what it lacks in ``wanted`` lasts on
    looked_at = {job.key for job in fresh}
    gone = [span for key, span in lasting.items() if key not in wanted]
    ended = [_ended(span, times.end(span)) for span in gone if span.job in looked_at or span.job not in seen.jobs]

    records: list[HistoryRecord] = []
    if last.revisions != seen.revisions:
        records += revision_records(seen)
    over = [*ended, *(span for span in changed if span.ended)]
    records += _span_records(began, over, lasting, seen)
    records += _renewed_records(changed, lasting, times)
    for span in past:
        records += recovery_record(span)
    for job in fresh:
        records += _line_records(job)
    records += event_records(events, seen, lasting)

    # of what is known to have happened at the same time, causes come first
    records.sort(key=lambda record: (record.at, _ORDER.index(record.kind)))
    return HistoryChanges(tuple(records), (*began, *ended, *changed, *past))


def _fresh_jobs(seen: SeenCluster, last: SeenCluster) -> list[SeenJob]:
    """Jobs that say something else than at the last look; all of them once nodes have changed their pools."""
    if last.pools != seen.pools:
        return list(seen.jobs.values())
    return [job for key, job in seen.jobs.items() if last.jobs.get(key) is not job]


def _compared(lasting: Mapping[Key, Span], wanted: Mapping[Key, Span]) -> tuple[list[Span], list[Span], list[Span]]:
    """Spans that began, those that last and say something new, and recoveries that began and ended since."""
    began: list[Span] = []
    changed: list[Span] = []
    past: list[Span] = []
    for key, span in wanted.items():
        before = lasting.get(key)
        if before is None:
            (past if span.ended else began).append(span)
            continue

        renewed = _renewed(before, span)
        if renewed != before:
            changed.append(renewed)
    return began, changed, past


def seen_spans(seen: SeenCluster, jobs: Iterable[SeenJob], times: LookTimes) -> list[Span]:
    """The spans that last at a moment, and the recoveries that ended of late; of jobs only those of ``jobs``."""
    found: list[Span] = []
    for job in jobs:
        found += _job_spans(job, seen, times)
    for fault in seen.faults:
        found.append(
            Span(
                kind=SpanKind.FAULT, subject=f"{fault.node}|{fault.chip}|{fault.code}", begun=fault.since or times.at,
                node=fault.node, chip=fault.chip, pool=seen.pools.get(fault.node, ""),
                reason=f"{fault.code} {fault.level}".strip(),
            )
        )  # fmt: skip
    for holder in seen.holders:
        found.append(
            Span(
                kind=SpanKind.HELD, subject=f"{holder.node}|{holder.chip}|{holder.kind}", begun=times.at,
                node=holder.node, chip=holder.chip, pool=seen.pools.get(holder.node, ""),
                reason=f"{holder.kind}: {holder.by}",
            )
        )  # fmt: skip
    for kind, (what, text) in ((SpanKind.REFUSED, seen.refused), (SpanKind.UNCONFIRMED, seen.held_deletion)):
        if what:
            found.append(Span(kind=kind, subject=what, begun=times.at, reason=text))
    return found


def _job_spans(job: SeenJob, seen: SeenCluster, times: LookTimes) -> list[Span]:
    about: dict[str, Any] = {"job": job.key, "namespace": job.namespace, "queue": job.queue, "person": job.person}
    found: list[Span] = []
    for pod, node, chips in job.holdings:
        own = f"{job.namespace}/{pod}"
        begun = times.bound.get(own, 0)
        found.append(
            Span(
                kind=SpanKind.HOLDS, subject=f"{own}|{node}|{','.join(chips)}", node=node, chips=len(chips),
                begun=begun if 0 < begun <= times.at else times.at, pool=seen.pools.get(node, ""),
                reason=_part(chips), **about,
            )
        )  # fmt: skip

    nodes = [span.node for span in found] or job.former
    pool = next((seen.pools[node] for node in nodes if node in seen.pools), "")
    if job.reason and not job.holdings:
        # a job that was never placed has waited since it was made
        begun = job.since if job.since and not job.recoveries and not job.lines else times.at
        found.append(
            Span(kind=SpanKind.WAITS, subject=job.key, begun=begun, chips=job.wanted, reason=job.reason, **about)
        )
    if job.holdings and job.phase != RUNNING:
        found.append(
            Span(kind=SpanKind.IDLE, subject=job.key, begun=times.at, chips=job.chips, reason=job.phase, pool=pool,
                 **about)
        )  # fmt: skip
    for one in job.recoveries:
        found.append(
            Span(
                kind=SpanKind.RECOVERY, subject=f"{job.key}|{one.at}", begun=one.at, ended=one.back, pool=pool,
                chips=one.chips, reason=" ".join((one.reason, *one.codes[:8])), cost=one.cost, seen=one.seen, **about,
            )
        )  # fmt: skip
    return found


def _owned_then(spans: Iterable[Span], lasting: Mapping[Key, Span]) -> list[Span]:
    """The spans; a recovery belongs to whom its chips belonged when it began: a job without pods no longer says so."""
    holders: dict[str, Span] = {}
    for held in lasting.values():
        if held.kind is SpanKind.HOLDS:
            holders.setdefault(held.job, held)

    found = []
    for span in spans:
        holder = holders.get(span.job) if span.kind is SpanKind.RECOVERY else None
        if holder is not None and holder.begun <= span.begun:
            span = msgspec.structs.replace(
                span, person=holder.person or span.person, queue=holder.queue or span.queue,
                pool=holder.pool or span.pool,
            )  # fmt: skip
        found.append(span)
    return found


def _part(chips: Sequence[str]) -> str:
    """The template of a vNPU, such as ``2c`` in Ascend910-2c-100-3; empty for whole chips."""
    pieces = chips[0].split("-") if chips else []
    return pieces[1] if len(pieces) > 2 else ""


def _ended(span: Span, at: int) -> Span:
    """The span with its end; a recovery that nothing ends any more, since its job is gone, cost what it took."""
    lost = span.chips * ((at - span.begun) // 1000) if span.kind is SpanKind.RECOVERY else span.cost
    return msgspec.structs.replace(span, ended=at, cost=lost)


def _renewed(before: Span, now: Span) -> Span:
    """The stored span with what is newly said about it. Its beginning stays, and whose it was then."""
    kept = {
        "begun": before.begun, "person": before.person or now.person, "queue": before.queue or now.queue,
        "pool": before.pool or now.pool,
    }  # fmt: skip
    return msgspec.structs.replace(now, **kept)


def _span_records(
    began: Iterable[Span], ended: Iterable[Span], lasting: Mapping[Key, Span], seen: SeenCluster
) -> list[HistoryRecord]:
    """What began and what ended, one record a job for what its pods hold."""
    found: list[HistoryRecord] = []
    taken: dict[str, list[Span]] = {}
    given: dict[str, list[Span]] = {}
    for span, is_end in (*((span, False) for span in began), *((span, True) for span in ended)):
        match span.kind:
            case SpanKind.HOLDS:
                (given if is_end else taken).setdefault(span.job, []).append(span)
            case SpanKind.WAITS:
                found += [] if is_end else [waiting_record(span, seen.jobs[span.job].message)]
            case SpanKind.FAULT:
                found.append(fault_record(span))
            case SpanKind.HELD:
                found.append(holder_record(span))
            case SpanKind.RECOVERY:
                found += recovery_record(span)
            case SpanKind.REFUSED | SpanKind.UNCONFIRMED:
                found.append(person_record(span, seen.newest))
            case SpanKind.IDLE:
                pass

    for job, spans in taken.items():
        found.append(placed_record(job, spans, lasting.get((SpanKind.WAITS, job))))
    for job, spans in given.items():
        found.append(released_record(job, spans, seen.jobs.get(job)))
    return found


def _renewed_records(changed: Iterable[Span], lasting: Mapping[Key, Span], times: LookTimes) -> list[HistoryRecord]:
    """A wait with another reason, and what holds a chip otherwise than before."""
    found = []
    for span in changed:
        if span.ended or span.reason == lasting[span.key].reason:
            continue
        if span.kind is SpanKind.WAITS:
            found.append(waiting_record(span, "", at=times.at))
        elif span.kind is SpanKind.HELD:
            found.append(holder_record(span, at=times.at))
    return found


def _line_records(job: SeenJob) -> list[HistoryRecord]:
    """The lines of a job's story, which carry their own times."""
    return [
        HistoryRecord(
            id=identity("line", job.key, str(at), text), at=at, kind=RecordKind.DECISION, text=text, job=job.key,
            namespace=job.namespace, queue=job.queue, person=job.person,
        )
        for at, text in job.lines
    ]  # fmt: skip


def event_records(events: Iterable[SeenEvent], seen: SeenCluster, lasting: Mapping[Key, Span]) -> list[HistoryRecord]:
    """What was done, by the engine's Events. Bindings and waits are left out: spans say the same for whole jobs."""
    of_pod = {span.subject.partition("|")[0]: span for span in lasting.values() if span.kind is SpanKind.HOLDS}
    found = []
    for event in events:
        if is_binding(event) or is_waiting(event):
            continue
        cause = event.cause
        held = of_pod.get(event.pod)
        node = event.name if event.kind == "Node" else (held.node if held else "")
        found.append(
            HistoryRecord(
                id=identity("event", event.id), at=event.at, kind=RecordKind.ACTION,
                text=f"{event.action} {event.reason}".strip() + f": {event.text}",
                job=held.job if held else _job_named(event, seen), namespace=event.namespace,
                queue=held.queue if held else "", person=held.person if held else "",
                node=node, chip=event.chip if event.kind == "Node" else -1, pool=seen.pools.get(node, ""),
                cause=cause.text[:2000] if cause else "",
                revision=cause.commit if cause else "", author=cause.author if cause else "",
            )
        )  # fmt: skip
    return found


def _job_named(event: SeenEvent, seen: SeenCluster) -> str:
    key = f"{event.namespace}/{event.kind}/{event.name}"
    return key if key in seen.jobs else ""


def revision_records(seen: SeenCluster) -> list[HistoryRecord]:
    """The commits that were accepted, with their authors and signers."""
    found = []
    for one in seen.revisions:
        signed = f", signed by {one.signer} ({one.verified})" if one.signer else ""
        found.append(
            HistoryRecord(
                id=identity("revision", one.revision, str(one.at)), at=one.at, kind=RecordKind.REVISION,
                text=f"{one.revision[:12]} accepted: {one.subject}{signed}", revision=one.revision, author=one.author,
            )
        )  # fmt: skip
    return found


def evictions(events: Iterable[SeenEvent]) -> dict[str, int]:
    """When each pod was last evicted, as far as Events say."""
    return {event.pod: event.at for event in events if event.action == EVICT and event.pod}


def bindings(events: Iterable[SeenEvent]) -> dict[str, int]:
    """When each pod was last bound, as far as Events say."""
    return {event.pod: event.at for event in events if is_binding(event) and event.pod}
