"""What a branch leads to: its plan beside what runs, as `belay plan --desired BRANCH` shows it before a merge."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any, Final

import msgspec

from belay.engine.cli.console_moments import AskedMoment
from belay.engine.cli.differences import changes, differences
from belay.engine.cli.forecast import Forecast, end_of, forecast
from belay.engine.documents import Desired
from belay.engine.errors import BelayError, SourceError
from belay.engine.load import load
from belay.engine.load.cluster import foreign_documents
from belay.engine.model.actions import kind_of
from belay.engine.model.diagnostics import Diagnostic
from belay.engine.model.times import rfc3339
from belay.engine.model.wording import counted
from belay.engine.plan import plan
from belay.engine.replay.offline import every_role
from belay.engine.serve.console.repository import finding
from belay.engine.serve.console.texts import cleaned, line
from belay.engine.source.branches import Branches

MOST_ROWS: Final = 500
MOST_LINES: Final = 5_000


def branches(repository: str, path: str, data: str, current: str) -> dict[str, Any]:
    """The branches of the repository and its open requests; ``current`` is the branch that is followed."""
    if not repository:
        return {"branches": [], "problem": "no repository is known: set BELAY_SOURCE_URL, or give --repository"}
    try:
        tips = _branches(repository, path, data).tips(current)
    except SourceError as error:
        return {"branches": [], "problem": line(error)}
    rows = [
        {
            "name": line(tip.name, 200), "revision": tip.revision, "time": rfc3339(tip.time),
            "subject": line(tip.subject), "author": line(tip.author), "current": tip.name == current,
        }
        for tip in tips
    ]  # fmt: skip
    return {"branches": rows, "problem": ""}


def commits(repository: str, path: str, data: str, revision: str) -> list[dict[str, Any]]:
    """The newest commits up to a revision; none where the repository cannot be read."""
    if not repository or not _hexadecimal(revision):
        return []
    try:
        return [msgspec.to_builtins(one) for one in _branches(repository, path, data).log(revision)]
    except SourceError:
        return []


def declared_by(
    moment: AskedMoment, branch: str, repository: str, path: str, data: str
) -> tuple[Desired, tuple[Diagnostic, ...], str]:
    """What a branch declares for a moment's cluster, findings, and the branch's newest commit.

    Raises:
        BelayError: there is no such branch, or the repository cannot be read.
    """
    if not repository:
        raise BelayError("no repository is known", hint="Set BELAY_SOURCE_URL, or give --repository.")
    source = _branches(repository, path, data)
    revision = source.resolve(branch)
    loaded = load(source.documents(revision), revision=revision, foreign=foreign_documents(moment.items))
    desired = dataclasses.replace(loaded.desired, has_git=True)
    return (desired if moment.live else every_role(desired)), loaded.diagnostics, revision


def branch_plan(moment: AskedMoment, branch: str, repository: str, path: str, data: str) -> dict[str, Any]:
    """The plan of a branch over a moment's cluster, and its outcome.

    Raises:
        BelayError: there is no such branch, or the repository cannot be read.
    """
    desired, findings, revision = declared_by(moment, branch, repository, path, data)
    result = plan(desired, moment.observed, moment.plan.now, shard=moment.shard)
    outcome = forecast(result, desired, moment.items)
    found = changes(result, moment.observed)
    said = [finding(msgspec.to_builtins(one)) for one in sorted({*findings, *result.diagnostics})]
    diff = [line(text, 500) for text in differences(found)[: MOST_LINES + 1]]
    more = max(0, len(diff) - MOST_LINES)
    counted = Counter(kind_of(action) for action in result.actions)
    body = {
        "branch": line(branch, 250), "revision": revision, "base": moment.plan.revision,
        "actions": dict(sorted(counted.items())),
        "findings": said[:MOST_ROWS], "diff": diff[:MOST_LINES],
        "changes": [
            {
                "change": one.change, "object": line(f"{one.kind}/{one.namespace}/{one.name}"),
                "where": line(f"{one.file}:{one.line}"),
            }
            for one in found[:MOST_ROWS]
        ],
        "leftOut": {key: n for key, n in (("diff", more), ("findings", len(said) - MOST_ROWS)) if n > 0},
    }  # fmt: skip
    return body | outcome_body(outcome) | {"text": _sentences(outcome, len(found), result), "ended": _ended(outcome)}


def outcome_body(outcome: Forecast | None) -> dict[str, Any]:
    """The outcome of a plan as plain values, without what would make it endless."""
    if outcome is None:
        return {"placed": [], "waiting": [], "evicted": [], "pruned": [], "chipHoursLost": 0.0}
    jobs = [msgspec.to_builtins(job) for job in outcome.jobs]
    return {
        "placed": cleaned([job for job in jobs if job["outcome"] in ("placed", "moved")][:MOST_ROWS]),
        "waiting": cleaned([job for job in jobs if job["outcome"] == "waiting"][:MOST_ROWS]),
        "evicted": cleaned([msgspec.to_builtins(one) for one in outcome.evicted[:MOST_ROWS]]),
        "pruned": cleaned([msgspec.to_builtins(one) for one in outcome.pruned[:MOST_ROWS]]),
        "chipHoursLost": outcome.chip_hours_lost,
    }


def _ended(outcome: Forecast | None) -> str:
    return outcome.ended if outcome is not None else "not simulated: no node has a device report"


def _sentences(outcome: Forecast | None, changed: int, result: Any) -> list[str]:
    found = [f"{counted(changed, 'object')} differ{'s' * (changed == 1)}"]
    if result.deferred:
        found.append(f"{len(result.deferred)} actions are held back by a budget")
    if outcome is None:
        return found
    for job in outcome.jobs[:MOST_ROWS]:
        place = f" on {', '.join(list(job.nodes)[:4])}" if job.nodes else ""
        why = f": {job.reason}: {job.message}" if job.reason else ""
        found.append(line(f"{job.kind} {job.namespace}/{job.name} is {job.outcome}{place}{why}"))
    if outcome.evicted:
        found.append(f"{len(outcome.evicted)} running pods go; {outcome.chip_hours_lost:g} chip-hours are lost")
    found.append(end_of(outcome, result))
    return found


def _branches(repository: str, path: str, data: str) -> Branches:
    return Branches(repository, path, Path(data or "."))


def _hexadecimal(text: str) -> bool:
    return len(text) in (40, 64) and all(char in "0123456789abcdef" for char in text)
