"""What could be reported of a moment: what lasts, or happened within the last hour, with its cause and way out.

A pure function of the status and the Events. A notice's key is made of what it is about and when it began, so every
server, and one that starts again, finds the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from belay.engine.model.causes import Cause
from belay.engine.model.notices import NoticeEvent
from belay.engine.model.wording import counted
from belay.engine.serve.console.texts import line, mapping, rows
from belay.engine.serve.records.events import EVICT, SeenEvent
from belay.engine.serve.records.facts import identity
from belay.engine.serve.records.narration import duration
from belay.engine.serve.records.reading import Data, SeenCluster, SeenJob, SeenRevision, whole
from belay.engine.wire import clustermap, names

PAST_MS: Final = 3_600_000
"""What ended longer ago is not reported any more: Kubernetes keeps Events as long."""
MOST_NOTICES: Final = 50_000
MANUAL: Final = "manual"
_NUMBERS: Final = re.compile(r"[0-9]+")


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """One thing. ``begun`` and ``ended`` are Unix ms (``ended`` 0: it lasts); where ``known`` is false, the status does
    not say when it began, and it counts from when it was first seen. ``cause`` names the place in Git, the commit and
    its author where there is one; ``select`` is what the console shows for it.
    """

    key: str
    event: NoticeEvent
    text: str
    begun: int = 0
    ended: int = 0
    known: bool = True
    level: str = ""
    severity: str = ""
    job: str = ""
    namespace: str = ""
    queue: str = ""
    pool: str = ""
    node: str = ""
    chip: int = -1
    cause: str = ""
    way_out: str = ""
    select: str = ""

    @property
    def lasts(self) -> bool:
        """Whether it goes on."""
        return self.ended == 0


def notices(seen: SeenCluster, found: Mapping[str, Data], events: Sequence[SeenEvent], now: int) -> list[Notice]:
    """The notices of a moment; ``found`` is the status by ConfigMap, ``now`` Unix ms."""
    made: dict[str, Notice] = {}
    causes = _causes(events)
    sources = (
        _faults(seen, causes), _jobs(seen, now), _evictions(events, seen, now), _isolations(found, seen),
        _repository(seen), _findings(found),
    )  # fmt: skip
    for source in sources:
        for notice in source:
            if len(made) < MOST_NOTICES:
                made[notice.key] = notice
    return list(made.values())


def _causes(events: Iterable[SeenEvent]) -> dict[tuple[str, str], Cause]:
    """The newest cause that an Event names, by the kind and name of its object."""
    found: dict[tuple[str, str], Cause] = {}
    for event in sorted(events, key=lambda one: one.at):
        if event.cause is not None:
            found[event.kind, event.name] = event.cause
    return found


def _faults(seen: SeenCluster, causes: Mapping[tuple[str, str], Cause]) -> Iterator[Notice]:
    for fault in seen.faults:
        on_chip = fault.chip >= 0
        where = f"chip {fault.node}/{fault.chip}" if on_chip else f"node {fault.node}"
        yield Notice(
            key=identity("fault", fault.node, str(fault.chip), fault.code, str(fault.since)),
            event=NoticeEvent.FAULT, text=f"{where} reports fault {fault.code}, level {fault.level}",
            begun=fault.since, known=bool(fault.since), level=fault.level, node=fault.node, chip=fault.chip,
            pool=seen.pools.get(fault.node, ""),
            cause=_of_document(causes.get(("Node", fault.node))),
            way_out=f"belay explain {'chip' if on_chip else 'node'} {where.partition(' ')[2]}",
            select=f"chip/{fault.node}/{fault.chip}" if on_chip else f"node/{fault.node}",
        )  # fmt: skip


def _of_document(cause: Cause | None) -> str:
    """A cause that stands in Git; what agents report says the notice itself."""
    return cause.text if cause is not None and cause.file else ""


def _jobs(seen: SeenCluster, now: int) -> Iterator[Notice]:
    for job in seen.jobs.values():
        pool = next((seen.pools.get(node, "") for _, node, _ in job.holdings), "")
        about: dict[str, Any] = {
            "job": job.key, "namespace": job.namespace, "queue": job.queue, "select": f"job/{job.key}",
        }  # fmt: skip
        if job.reason and not job.holdings:
            yield _wait(job, about)

        for one in job.recoveries:
            if one.back and now - one.back > PAST_MS:
                continue
            stands = f"{counted(one.chips, 'chip')} stand{'s' if one.chips == 1 else ''} still"
            text = f"job {job.key} recovers from {' '.join((one.reason, *one.codes[:8]))}: {stands}"
            if one.back:
                took, lost = duration(one.back - one.at), one.cost / 3600
                text = f"job {job.key} recovered from {one.reason} after {took}; {lost:.2f} chip-hours lost"
            yield Notice(
                key=identity("recovery", job.key, str(one.at)), event=NoticeEvent.RECOVERY, text=text, begun=one.at,
                ended=one.back, pool=pool, way_out=f"belay explain job {job.key}", **about,
            )  # fmt: skip


def _wait(job: SeenJob, about: Mapping[str, Any]) -> Notice:
    # a job that was never placed has waited since it was made; of another one the ledger knows since when
    known = bool(job.since and not job.recoveries and not job.lines)
    detail = f": {job.message}" if job.message else ""
    return Notice(
        key=identity("wait", job.key, str(job.since), str(len(job.recoveries))), event=NoticeEvent.WAIT,
        text=f"job {job.key} waits for {counted(job.wanted, 'chip')}: {job.reason}{detail}",
        begun=job.since if known else 0, known=known, way_out=job.way_out or f"belay explain job {job.key}", **about,
    )  # fmt: skip


def _evictions(events: Iterable[SeenEvent], seen: SeenCluster, now: int) -> Iterator[Notice]:
    holders = {f"{job.namespace}/{pod}": job for job in seen.jobs.values() for pod, _, _ in job.holdings}
    for event in events:
        if event.action != EVICT or not event.pod or now - event.at > PAST_MS:
            continue
        job = holders.get(event.pod)
        yield Notice(
            key=identity("eviction", event.id), event=NoticeEvent.EVICTION, begun=event.at, ended=event.at,
            text=f"pod {event.pod} was evicted: {event.text}", namespace=event.namespace,
            job=job.key if job else "", queue=job.queue if job else "",
            cause=event.cause.text if event.cause else "", way_out=f"belay explain pod {event.pod}",
            select=f"pod/{event.pod}",
        )  # fmt: skip


def _isolations(found: Mapping[str, Data], seen: SeenCluster) -> Iterator[Notice]:
    for key, data in found.items():
        if not key.startswith(names.CHIPS_PREFIX):
            continue
        for row in rows(data.get(clustermap.HELD_KEY)):
            if row.get("kind") == MANUAL:
                yield _isolation(row, seen)


def _isolation(row: Mapping[str, Any], seen: SeenCluster) -> Notice:
    node = line(row.get("node"), 253)
    chip = whole(row.get("chip")) if row.get("chip") is not None else -1
    by, until = line(row.get("by")), line(row.get("until"))
    what = f"chip {node}/{chip}" if chip >= 0 else f"node {node}"
    end = f", until {until}" if until else ""
    return Notice(
        key=identity("isolation", node, str(chip), by), event=NoticeEvent.ISOLATION, known=False,
        text=f"{what} is kept out of service by {by}{end}", node=node, chip=chip, pool=seen.pools.get(node, ""),
        way_out=f"belay release {node}" + (f"/{chip}" if chip >= 0 else ""),
        select=f"chip/{node}/{chip}" if chip >= 0 else f"node/{node}",
    )  # fmt: skip


def _repository(seen: SeenCluster) -> Iterator[Notice]:
    revision, why = seen.refused
    if revision:
        yield Notice(
            key=identity("refused", revision), event=NoticeEvent.REFUSED_REVISION, known=False,
            text=f"commit {revision[:12]} is not in force: {why}", cause=f"commit {revision[:12]}",
            way_out="belay status names each finding; correct it and push", select="",
        )  # fmt: skip
    digest, text = seen.held_deletion
    if digest:
        yield Notice(
            key=identity("held", digest), event=NoticeEvent.HELD_DELETION, text=text, known=False,
            cause=_accepted(seen.newest),
            way_out=f"belay confirm {digest} to delete them, or restore their documents",
        )  # fmt: skip


def _accepted(newest: SeenRevision | None) -> str:
    return f"commit {newest.revision[:12]} by {newest.author}: {newest.subject}" if newest is not None else ""


def _findings(found: Mapping[str, Data]) -> Iterator[Notice]:
    for row in rows(found.get(names.SYNC, {}).get("diagnostics.json")):
        severity = str(row.get("severity"))
        if severity not in ("error", "warning"):
            continue
        row = mapping(row)
        subject, text = line(row.get("object")), line(row.get("message"), 1000)
        file = line(row.get("file"))
        place = f"{file}:{whole(row.get('line'))}:{whole(row.get('column'))}" if file else ""
        yield Notice(
            # without numbers, which change while the finding stays the same
            key=identity("finding", severity, subject, file, line(row.get("field")), _NUMBERS.sub("#", text)[:60]),
            event=NoticeEvent.FINDING, known=False, severity=severity, text=f"{severity}: {subject}: {text}",
            cause=place, way_out="correct the document and push" if place else "belay status",
        )  # fmt: skip
