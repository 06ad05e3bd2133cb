"""What a change of the repository does to the cluster, in a few lines: played before it is committed."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from belay.engine.cli.ages import length
from belay.engine.model.times import parse_rfc3339, rfc3339
from belay.engine.model.wording import counted

if TYPE_CHECKING:
    from belay.engine.cli.forecast import Eviction
    from belay.engine.cli.review.comparison import HardwareChange, JobChange, Review

NO_CLUSTER: Final = "none"
_MOST: Final = 15
"""Lines of one kind; `belay review` and `belay plan` show all."""


def effect(
    before: Mapping[str, bytes],
    after: Mapping[str, bytes],
    cluster: str | None,
    kubeconfig: str | None,
    refused: Collection[str] = (),
) -> list[str]:
    """Lines that say what the changed documents do, beside what happens without them.

    Args:
        before: the documents as they are, by path.
        after: the same with the change.
        cluster: ``live``, a file of objects, ``none``, or None: live where a cluster is configured.
        kubeconfig: as for every verb that reads a cluster.
        refused: codes of findings with which the change must not be made; others are only said.

    Raises:
        InputError: the change brings a refused finding. BelayError: a cluster that was named cannot be read.
    """
    from belay.engine.cli.inputs import LIVE, cluster_items
    from belay.engine.cli.progress import progress
    from belay.engine.cli.review.comparison import review
    from belay.engine.errors import BelayError, InputError
    from belay.engine.kube.credentials import names_cluster

    if cluster == NO_CLUSTER:
        return []
    if cluster is None and not names_cluster(kubeconfig):
        return ["not planned: no cluster is configured (--cluster FILE|live)"]
    try:
        items, clock, now = cluster_items(cluster or LIVE, None, kubeconfig)
    except BelayError as error:
        if cluster is not None:
            raise
        return [f"not planned: {str(error).splitlines()[0]} (--cluster FILE|live|none)"]

    with tempfile.TemporaryDirectory(prefix="belay-act-") as scratch, progress("planning the change", plain=False):
        trees = [_written(Path(scratch) / name, files) for name, files in (("before", before), ("after", after))]
        found = review(trees[1], trees[0], cluster=items, now=now, clock=clock or time.time(),
                       live=cluster in (None, LIVE))  # fmt: skip
    for one in found.findings:
        if one.new and one.code in refused:
            text = f"{one.message} (--cluster none commits it all the same)"
            raise InputError(text, where=one.field, code="NoSuchObject")
    return [*_against_cluster(found, after), *_lines(found)]


def _against_cluster(found: Review, after: Mapping[str, bytes]) -> Iterator[str]:
    """What the change names and the cluster has not; the documents themselves were checked before."""
    from belay.engine.load import load

    said = {(one.field, one.message) for one in load(after).diagnostics}
    rest = [one for one in found.findings if one.new and (one.field, one.message) not in said]
    yield from _first((f"{one.place} {one.field} - {one.severity}: {one.message}" for one in rest), len(rest))


def _written(folder: Path, files: Mapping[str, bytes]) -> str:
    for path, data in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    folder.mkdir(exist_ok=True)
    return str(folder)


def _lines(found: Review) -> Iterator[str]:
    from belay.engine.cli.review.comment import summary

    yield from (f"note: {note}" for note in found.notes)
    if not found.planned:
        return
    # findings were said already
    yield f"plan: {summary(_without_findings(found))}"
    now = parse_rfc3339(found.now)
    held = [one for one in found.hardware if one.held_by]
    yield from _first(map(_held_back, held), len(held))
    yield from _first((_job(job, now) for job in found.jobs), len(found.jobs))
    yield from _first((_leaving(one, now) for one in found.evicted), len(found.evicted))
    emptied = _emptied(found.evicted)
    yield from _first(
        (f"  {node}: {counted(chips, 'chip')} empty by {_moment(end, now)}, grace times included"
         for node, (chips, end) in emptied.items()), len(emptied),
    )  # fmt: skip
    yield from _first(
        (f"  {one.kind}/{one.name} {'is deleted' if one.after is not None else f'is held by {one.held_by}'}"
         for one in found.pruned), len(found.pruned),
    )  # fmt: skip
    if emptied or any(job.after is not None and job.after.after is not None for job in found.jobs):
        yield "  times are the simulation's, counted from when the commit is in force"


def _held_back(one: HardwareChange) -> str:
    from belay.engine.cli.review.comment import HARDWARE, where

    until = one.until or "a person decides"
    return f"  {where(one)} is {HARDWARE[one.kind][1]} later: held back by {one.held_by} until {until}"


def _leaving(one: Eviction, now: float) -> str:
    return f"  {one.namespace}/{one.pod} leaves {one.node} {_moment(one.after, now)}: {one.message}"


def _emptied(evicted: Sequence[Eviction]) -> dict[str, tuple[int, float]]:
    """Of each node, how many chips its leaving pods hold, and after how many seconds the last of them has ended."""
    found: dict[str, tuple[int, float]] = {}
    for one in sorted(evicted, key=lambda one: one.node):
        chips, end = found.get(one.node, (0, 0.0))
        found[one.node] = chips + one.chips, max(end, one.ended)
    return found


def _moment(after: float, now: float) -> str:
    """``at once``, or a time and in how long that is."""
    return "at once" if after < 1 else f"{rfc3339(round(now + after))} (in {length(after)})"


def _first(lines: Iterator[str], total: int) -> Iterator[str]:
    for number, line in enumerate(lines):
        if number == _MOST:
            yield f"  and {total - _MOST} more: belay plan"
            return
        yield line


def _job(change: JobChange, now: float) -> str:
    from belay.engine.cli.forecast import WAITING

    name, after = f"  {change.kind} {change.namespace}/{change.name}", change.after
    was = f" (without it: {change.before.outcome})" if change.before is not None else ""
    if after is None:
        return f"{name}: stays as it is{was}"
    places = ", ".join(
        f"{node} {counted(len(chips), 'chip')}" if chips else node for node, chips in sorted(after.nodes.items())
    )
    if places and after.outcome != WAITING:
        bound = f", bound {_moment(after.after, now)}" if after.after is not None else ""
        return f"{name}: {after.outcome} on {places}{bound}{was}"
    why = f": {after.message}" if after.message else ""
    way_out = f"; {after.unblock}" if after.unblock else ""
    unknown = "; when it starts is not known" if after.outcome == WAITING else ""
    return f"{name}: {after.outcome}{why}{way_out}{unknown}{was}"


def _without_findings(found: Review) -> Review:
    import msgspec

    return msgspec.structs.replace(found, findings=())
