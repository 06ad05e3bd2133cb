"""The report of a time: goodput, what was lost to what, how long recoveries and waits took, what fails repeatedly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from belay.engine.model.times import rfc3339
from belay.engine.serve.console.jobs import percentile
from belay.engine.serve.records.facts import Span, SpanKind
from belay.engine.serve.records.usage import GROUPS, UNKNOWN, Window, usage_rows, used

MOST_ROWS: Final = 20
#: Sizes of jobs in chips, by the largest of each class; the last has no bound.
SIZES: Final = (1, 8, 16, 64, 256, 1024)


def report(spans: Sequence[Span], window: Window) -> dict[str, Any]:
    """The report as a document; times are in seconds, amounts in chip-hours."""
    of = {kind: [span for span in spans if span.kind is kind] for kind in SpanKind}
    body: dict[str, Any] = {
        "since": rfc3339(window.begin / 1000),
        "until": rfc3339(min(window.end, window.now) / 1000),
        "total": _total(spans, window),
    }
    for by in GROUPS:
        body[f"by{by.capitalize()}"] = usage_rows(by, used(by, spans, window))[:MOST_ROWS]
    return body | {
        "lostByCause": _lost_by_cause(of[SpanKind.RECOVERY], window),
        "recoveries": _recovery_times(of[SpanKind.RECOVERY], window),
        "outOfService": _out_of_service(of[SpanKind.HELD], window),
        "repeatOffenders": _offenders(of[SpanKind.FAULT], window),
        "waits": _waits(of[SpanKind.WAITS], window),
        "idleHeld": _idle(of[SpanKind.IDLE], window),
    }


def _total(spans: Iterable[Span], window: Window) -> dict[str, Any]:
    sums = list(used("namespace", spans, window).values())
    chips, lost, moved = (sum(getattr(one, name) for one in sums) for name in ("chips", "lost", "moved"))
    goodput = round(max(0.0, 1 - lost / (chips + moved)), 4) if chips + moved else None
    jobs = len(set[str]().union(*(one.jobs for one in sums)))
    return {"jobs": jobs, "chipHours": _hours(chips), "lostChipHours": _hours(lost), "goodput": goodput}


def _lost_by_cause(recoveries: Iterable[Span], window: Window) -> list[dict[str, Any]]:
    found: dict[str, list[float]] = {}
    for one in recoveries:
        if window.share(one) or window.seconds(one):
            found.setdefault(one.reason or UNKNOWN, []).append(window.lost(one))
    rows = [
        {"cause": cause, "recoveries": len(lost), "lostChipHours": _hours(sum(lost))} for cause, lost in found.items()
    ]
    return sorted(rows, key=lambda row: (-float(str(row["lostChipHours"])), str(row["cause"])))[:MOST_ROWS]


def _recovery_times(recoveries: Iterable[Span], window: Window) -> dict[str, Any]:
    """MTTR: from the eviction until training went on, of those that ended within the window. MTTI: from the first
    report of a fault until the job was taken off it.
    """
    within = [one for one in recoveries if window.begin <= one.ended <= window.end and one.ended]
    lasting = [one for one in recoveries if not one.ended and window.seconds(one)]
    took = [(one.ended - one.begun) / 1000 for one in within]
    noticed = [(one.begun - one.seen) / 1000 for one in (*within, *lasting) if 0 < one.seen <= one.begun]
    return {
        "ended": len(within), "underWay": len(lasting), "mttr": _mean(took), "mtti": _mean(noticed),
        "p50": _percentile(took, 0.5), "p90": _percentile(took, 0.9),
    }  # fmt: skip


def _out_of_service(held: Iterable[Span], window: Window) -> list[dict[str, Any]]:
    """How long chips and whole nodes were kept out of service, by what kept them."""
    found: dict[str, tuple[float, float]] = {}
    for span in held:
        seconds = window.seconds(span)
        chips, nodes = found.get(kind := span.reason.partition(":")[0] or UNKNOWN, (0.0, 0.0))
        found[kind] = (chips, nodes + seconds) if span.chip < 0 else (chips + seconds, nodes)
    rows = [
        {"by": kind, "chipHours": _hours(chips), "nodeHours": _hours(nodes)}
        for kind, (chips, nodes) in found.items()
        if chips or nodes
    ]
    return sorted(rows, key=lambda row: (-float(str(row["chipHours"])), -float(str(row["nodeHours"]))))[:MOST_ROWS]


def _offenders(faults: Iterable[Span], window: Window) -> list[dict[str, Any]]:
    """Chips (nodes) that had faults more than once within the window."""
    found: dict[tuple[str, int], list[Span]] = {}
    for span in faults:
        if window.begin <= span.begun <= window.end:
            found.setdefault((span.node, span.chip), []).append(span)
    rows = [
        {
            "node": node, "chip": chip if chip >= 0 else None, "faults": len(spans),
            "codes": sorted({span.reason.partition(" ")[0] for span in spans})[:8],
            "last": rfc3339(max(span.begun for span in spans) / 1000),
        }
        for (node, chip), spans in found.items()
        if len(spans) > 1
    ]  # fmt: skip
    return sorted(rows, key=lambda row: (-int(str(row["faults"])), str(row["node"]), str(row["chip"])))[:MOST_ROWS]


def _waits(waits: Iterable[Span], window: Window) -> list[dict[str, Any]]:
    """Waits within the window, by the size of their jobs; those that last count as far as they went."""
    found: dict[str, list[Span]] = {}
    for span in waits:
        if window.seconds(span) or window.begin <= span.begun <= window.end:
            found.setdefault(size_class(span.chips), []).append(span)
    rows = []
    for name in map(size_class, (*SIZES, SIZES[-1] + 1)):
        spans = found.get(name, [])
        took = [span.seconds(0, window.end, window.now) for span in spans]
        if spans:
            longest = max(spans, key=lambda span: span.seconds(0, window.end, window.now))
            rows.append({
                "chips": name, "waits": len(spans), "stillWaiting": sum(not span.ended for span in spans),
                "mean": _mean(took), "p50": _percentile(took, 0.5), "p90": _percentile(took, 0.9),
                "longest": round(max(took), 1), "longestJob": longest.job,
            })  # fmt: skip
    return rows


def _idle(idle: Iterable[Span], window: Window) -> list[dict[str, Any]]:
    """Jobs that held chips without running, those that held most first."""
    found: dict[str, tuple[Span, float, float]] = {}
    for span in idle:
        seconds = window.seconds(span)
        _, chips, longest = found.get(span.job, (span, 0.0, 0.0))
        if seconds:
            found[span.job] = (span, chips + span.chips * seconds, longest + seconds)
    rows = [
        {
            "job": job, "user": span.person or UNKNOWN, "chips": span.chips, "state": span.reason,
            "seconds": round(seconds, 1), "chipHours": _hours(chips), "lasts": not span.ended,
        }
        for job, (span, chips, seconds) in found.items()
    ]  # fmt: skip
    return sorted(rows, key=lambda row: (-float(str(row["chipHours"])), str(row["job"])))[:MOST_ROWS]


def size_class(chips: int) -> str:
    """The class of jobs of so many chips, such as ``9-16``."""
    least = 0
    for most in SIZES:
        if chips <= most:
            return f"{least + 1}-{most}" if most > least + 1 else str(most)
        least = most
    return f"{least + 1}+"


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 1) if values else None


def _percentile(values: Sequence[float], share: float) -> float | None:
    return round(percentile(values, share), 1) if values else None


def _hours(seconds: float) -> float:
    return round(seconds / 3600, 4)
