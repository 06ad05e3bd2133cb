"""Actions that the API server refused: by what a refusal is remembered, and what the next one adds to it."""

from __future__ import annotations

import hashlib

import msgspec

from belay.engine.model import actions as act
from belay.engine.model.refusals import LONGEST_ANSWER, RefusalCause, RefusalKey, ServerRefusal, wait_ms


def refusal_key(action: act.AnyAction) -> RefusalKey | None:
    """What a refusal of this action is remembered by; None for actions on nodes and chips, which have memories."""
    verb = act.kind_of(action)
    match action:
        case act.PatchObject():
            verb += "/status" if _patches_status(action) else ""
            return RefusalKey(verb, action.api_version, action.object_kind, action.namespace, action.name)
        case act.CreateObject() | act.DeleteObject():
            return RefusalKey(verb, action.api_version, action.object_kind, action.namespace, action.name)
        case act.CreatePod() | act.EvictPod() | act.BindPod():
            return RefusalKey(verb, "v1", "Pod", action.namespace, action.pod)
        case act.ScaleJob():
            return RefusalKey(verb, "", action.job_kind.partition(".")[0], action.namespace, action.name)
        case act.WriteRankTable() | act.SignalJob():
            return RefusalKey(verb, "v1", "ConfigMap", action.namespace, action.name)
    return None


def content_digest(action: act.AnyAction) -> str:
    """A digest of what the action would write. A status holds times, so it counts by its object alone."""
    match action:
        case act.CreateObject():
            content: object = action.object
        case act.PatchObject() if not _patches_status(action):
            content = action.patch
        case act.CreatePod():
            content = action.object.get("spec")
        case act.ScaleJob():
            content = action.replicas
        case _:
            content = None
    whole = (content, action.preconditions.uid or "")
    return hashlib.blake2b(msgspec.json.encode(whole, order="deterministic"), digest_size=12).hexdigest()


def refused_again(
    action: act.AnyAction, key: RefusalKey, cause: RefusalCause, answer: str, earlier: ServerRefusal | None, now_ms: int
) -> ServerRefusal:
    """The record after one more refusal; each doubles the wait, and other content or another cause begins again."""
    digest = content_digest(action)
    same = earlier is not None and (earlier.digest, earlier.cause) == (digest, cause)
    attempts = earlier.attempts + 1 if same and earlier is not None else 1
    return ServerRefusal(
        key=key,
        digest=digest,
        cause=cause,
        answer=answer[:LONGEST_ANSWER],
        file=action.evidence.file,
        line=action.evidence.line,
        revision=action.evidence.revision,
        attempts=attempts,
        since=earlier.since if same and earlier is not None else now_ms,
        retry=now_ms + wait_ms(key, attempts),
    )


def _patches_status(action: act.PatchObject) -> bool:
    return set(action.patch) - {"apiVersion", "kind", "metadata"} == {"status"}
