"""The result of a fetch as Kubernetes-style conditions: Fetched, Verified, Accepted, Ready, and additionally
ForcePushed, FilesRefused, Suspended."""

from __future__ import annotations

from typing import Final, Literal

from belay.engine.errors import SourceError, bounded
from belay.engine.log import redact
from belay.engine.model.wording import counted
from belay.engine.source.records import MAX_MESSAGE, Revision, Rewrite, SourceCondition, SourceConfig

_STAGES: Final = ("Fetched", "Verified", "Accepted")
_STAGE_OF: Final = {
    "VerificationFailed": "Verified",
    "SignersUnreadable": "Verified",
    "OtherSource": "Verified",
    "RolledBack": "Verified",
    "NotFastForward": "Verified",
    "LogBroken": "Verified",
    "EmptyTree": "Accepted",
    "EmptyLayer": "Accepted",
    "TooManyFiles": "Accepted",
    "TreeTooLarge": "Accepted",
}


def report(
    config: SourceConfig,
    revision: Revision | None,
    error: SourceError | None,
    rewrite: Rewrite | None,
    suspended: bool,
) -> tuple[SourceCondition, ...]:
    """Return the conditions of one fetch; ``rewrite`` where the branch was rewritten to this revision."""
    if suspended:
        state = f"{_short(revision)} stays in force" if revision else "nothing is in force"
        return (
            _condition("Suspended", "True", "Suspended", f"the source is suspended; {state}"),
            _condition("Ready", "True" if revision else "False", "Suspended", state),
        )
    conditions = _stages(config, revision, error)
    if rewrite:
        text = f"{rewrite.after[:12]} does not follow {rewrite.before[:12]}: the branch was rewritten"
        conditions.append(_condition("ForcePushed", "True", "ForcePushed", text))
    if revision and revision.problems:
        first = revision.problems[0]
        text = f"{len(revision.problems)} refused, first {first.path!r}: {first.message}"
        conditions.append(_condition("FilesRefused", "True", first.reason, text))
    conditions.append(_ready(revision, error))
    return tuple(conditions)


def _stages(config: SourceConfig, revision: Revision | None, error: SourceError | None) -> list[SourceCondition]:
    failing = _STAGE_OF.get(error.reason, "Fetched") if error else None
    conditions: list[SourceCondition] = []
    reached = True
    for stage in _STAGES:
        if stage == "Verified" and config.verify_mode == "none":
            continue
        if error and stage == failing:
            conditions.append(_condition(stage, "False", error.reason, str(error)))
            reached = False
        elif not reached:
            conditions.append(_condition(stage, "Unknown", "NotReached", "an earlier step failed"))
        else:
            conditions.append(_condition(stage, "True", "Succeeded", _success(stage, revision if not error else None)))
    return conditions


def _success(stage: str, revision: Revision | None) -> str:
    if revision is None:
        return ""
    if stage == "Verified":
        return f"signed by {revision.signer}" if revision.signer else ""
    return counted(len(revision.files), "file") if stage == "Accepted" else _short(revision)


def _ready(revision: Revision | None, error: SourceError | None) -> SourceCondition:
    if error is None:
        return _condition("Ready", "True", "Succeeded", f"{_short(revision)} is in force" if revision else "")
    state = f"{_short(revision)} stays in force" if revision else "nothing is in force"
    return _condition("Ready", "False", error.reason, f"{state}: {error}")


def _condition(kind: str, status: Literal["True", "False", "Unknown"], reason: str, message: str) -> SourceCondition:
    return SourceCondition(type=kind, status=status, reason=reason, message=bounded(redact(message), MAX_MESSAGE))


def _short(revision: Revision | None) -> str:
    if revision is None:
        return ""
    return revision.sha[:21] if revision.sha.startswith("worktree-") else revision.sha[:12]
