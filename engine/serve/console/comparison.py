"""What changed between two documents, in rows and in sentences; and the heat map of faults over time."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from belay.engine.model.times import rfc3339
from belay.engine.model.wording import counted
from belay.engine.replay.summary import PassDigest

MOST: Final = 1_000
MOST_SENTENCES: Final = 200
MOST_HEAT: Final = 200
BUCKETS: Final = 96
#: Seconds of a bucket from which the smallest that fits is taken.
_STEPS: Final = (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 10_800, 21_600, 86_400, 604_800)
HEAT: Final = ("code", "chip", "node", "link")


class SeenDigest(NamedTuple):
    """What a moment showed, at a time (Unix seconds): a recorded pass, or what this server saw (``status``)."""

    at: float
    shard: str
    status: bool
    digest: PassDigest


def between(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    """What differs from document ``a`` to document ``b`` (both as JSON values)."""
    chips, nodes = _chips(a, b), _nodes(a, b)
    jobs, faults = _jobs(a, b), _faults(a, b)
    revisions = [one["moment"]["revision"] for one in (a, b) if one["moment"]["revision"]]
    revisions = [] if len(set(revisions)) < 2 else revisions[1:]
    lists: dict[str, list[Any]] = {"chips": chips, "nodes": nodes, "jobs": jobs, "faults": faults}
    left = {name: len(rows) - MOST for name, rows in lists.items() if len(rows) > MOST}
    return {
        "from": a["moment"],
        "to": b["moment"],
        **{name: rows[:MOST] for name, rows in lists.items()},
        "revisions": revisions,
        "text": _sentences(lists, revisions),
        "leftOut": left,
    }


def _chips(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    old, new = _states(a), _states(b)
    return [
        {"node": node, "chip": chip, "from": old.get((node, chip)), "to": new.get((node, chip))}
        for node, chip in sorted(old.keys() | new.keys())
        if old.get((node, chip)) != new.get((node, chip))
    ]


def _states(document: Mapping[str, Any]) -> dict[tuple[str, int], str]:
    chips, names, words = document["chips"], document["nodes"]["name"], document["states"]
    rows = zip(chips["node"], chips["chip"], chips["state"], strict=True)
    return {(names[node], chip): words[state] for node, chip, state in rows}


def _nodes(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    old, new = (dict(zip(one["nodes"]["name"], one["nodes"]["state"], strict=True)) for one in (a, b))
    return [
        {"node": node, "from": old.get(node), "to": new.get(node)}
        for node in sorted(old.keys() | new.keys())
        if old.get(node) != new.get(node)
    ]


def _jobs(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    old, new = (
        {f"{row['namespace']}/{row['kind']}/{row['name']}": row for row in one["jobs"] if row} for one in (a, b)
    )
    found = []
    for job in sorted(old.keys() | new.keys()):
        before, after = old.get(job), new.get(job)
        phases = (before["phase"] if before else None, after["phase"] if after else None)
        if phases[0] != phases[1] or (before and after and before["reason"] != after["reason"]):
            message = f"{after['reason']}: {after['message']}" if after and after["reason"] else ""
            found.append({"job": job, "from": phases[0], "to": phases[1], "message": message})
    return found


def _faults(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    old, new = ({(row["node"], row["chip"], row["code"]) for row in one["faults"]} for one in (a, b))
    rows = [(key, "came") for key in new - old] + [(key, "gone") for key in old - new]
    rows.sort(key=lambda row: (row[0][0], -1 if row[0][1] is None else row[0][1], row[0][2], row[1]))
    return [{"node": node, "chip": chip, "code": code, "change": change} for (node, chip, code), change in rows]


def _sentences(lists: Mapping[str, Sequence[Mapping[str, Any]]], revisions: Sequence[str]) -> list[str]:
    found = [f"revision {revision[:12]} came into force" for revision in revisions]
    for row in lists["faults"][:MOST_SENTENCES]:
        where = row["node"] if row["chip"] is None else f"{row['node']}/{row['chip']}"
        found.append(f"fault {row['code']} {'came' if row['change'] == 'came' else 'went'} on {where}")
    for row in lists["nodes"][:MOST_SENTENCES]:
        found.append(f"node {row['node']}: {row['from'] or 'not there'} → {row['to'] or 'gone'}")
    by_change = Counter((row["node"], row["from"], row["to"]) for row in lists["chips"])
    for (node, before, after), count in sorted(by_change.items(), key=str)[:MOST_SENTENCES]:
        found.append(f"{counted(count, 'chip')} of {node}: {before or 'not there'} → {after or 'gone'}")
    for row in lists["jobs"][:MOST_SENTENCES]:
        why = f" ({row['message']})" if row["message"] else ""
        found.append(f"job {row['job']}: {row['from'] or 'not there'} → {row['to'] or 'gone'}{why}")
    return found[:MOST_SENTENCES] or ["nothing differs"]


def heat(by: str, seen: Sequence[SeenDigest], begin: float, end: float) -> dict[str, Any]:
    """How many chips (links) showed each code, or each chip, node or link showed, over time.

    What a moment shows holds until the next moment of the same source, a recorded one also until the status says it
    again, the last one until ``end``. ``total`` is how often something came: a fault that stays counts once.
    """
    span = max(1.0, end - begin)
    step = next((one for one in _STEPS if span / one <= BUCKETS), _STEPS[-1])
    first = int(begin // step) * step
    count = min(10 * BUCKETS, int((end - first) // step) + 1)
    cells: dict[str, dict[int, set[Any]]] = {}
    came: dict[str, dict[Any, int]] = {}
    said = sorted(one.at for one in seen if one.status)
    for (_, status), digests in _by_source(seen).items():
        shown: set[tuple[str, Any]] = set()
        times: Counter[tuple[str, Any]] = Counter()
        for (at, digest), (until, _) in pairwise([*digests, (end, None)]):
            now = set(_HEAT[by](digest)) if digest is not None else set()
            times.update(now - shown)
            shown = now
            if not status and (later := bisect_right(said, at)) < len(said):
                until = min(until, said[later])
            # a moment at the edge of two buckets belongs to the later one
            last = min(count - 1, max(int((at - first) // step), math.ceil((until - first) / step) - 1))
            for name, what in now:
                row = cells.setdefault(name, {})
                for place in range(max(0, int((at - first) // step)), last + 1):
                    row.setdefault(place, set()).add(what)
        for (name, what), number in times.items():  # recordings and status show the same faults
            row_of = came.setdefault(name, {})
            row_of[what] = max(row_of.get(what, 0), number)
    cells = {name: row for name, row in cells.items() if row}
    totals = {name: sum(came[name].values()) for name in cells}
    names = sorted(cells, key=lambda name: (-totals[name], name))
    rows = [(name, [len(cells[name].get(place, ())) for place in range(count)]) for name in names[:MOST_HEAT]]
    return {
        "by": by,
        "from": rfc3339(begin),
        "to": rfc3339(end),
        "bucketSeconds": step,
        "buckets": [rfc3339(float(first + place * step)) for place in range(count)],
        "rows": [{"name": name, "total": totals[name], "cells": row} for name, row in rows],
        "leftOut": max(0, len(names) - MOST_HEAT),
    }


def _by_source(seen: Sequence[SeenDigest]) -> dict[tuple[str, bool], list[tuple[float, PassDigest | None]]]:
    """The moments of each source in order: those of another shard say nothing about when something went."""
    found: dict[tuple[str, bool], list[tuple[float, PassDigest | None]]] = {}
    for one in seen:
        found.setdefault((one.shard, one.status), []).append((one.at, one.digest))
    return found


def _by_code(digest: PassDigest) -> Iterable[tuple[str, Any]]:
    return ((code, (node, chip)) for node, chip, code in digest.faults)


def _by_chip(digest: PassDigest) -> Iterable[tuple[str, Any]]:
    return ((f"{node}/{chip}" if chip >= 0 else node, code) for node, chip, code in digest.faults)


def _by_node(digest: PassDigest) -> Iterable[tuple[str, Any]]:
    return ((node, (chip, code)) for node, chip, code in digest.faults)


def _by_link(digest: PassDigest) -> Iterable[tuple[str, Any]]:
    return ((f"{link} {node}", state) for link, node, state in digest.links)


_HEAT: Final[dict[str, Callable[[PassDigest], Iterable[tuple[str, Any]]]]] = {
    "code": _by_code, "chip": _by_chip, "node": _by_node, "link": _by_link,
}  # fmt: skip
