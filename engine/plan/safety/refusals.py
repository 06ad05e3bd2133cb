"""The pass that leaves alone what the API server refused, until its time comes; adds no action.

It runs before safety, so that a refused deletion spends no budget, and once more after the passes that follow safety.
What stays refused is a finding and a part of the plan, whether it waits or is tried again now; what safety holds back
by then is held.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from belay.engine.model.actions import AnyAction, BindPod, EvictPod
from belay.engine.model.codes.passes import PassCode
from belay.engine.model.diagnostics import Diagnostic, ObjectKey
from belay.engine.model.plan import REFUSED, Deferred
from belay.engine.model.refusals import NEXT_STEP, RefusalCause, ServerRefusal, is_waiting
from belay.engine.model.refused_actions import content_digest, refusal_key
from belay.engine.model.times import rfc3339
from belay.engine.model.unstructured import nested_map
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts

_CRD: Final = ("apiextensions.k8s.io/v1", "CustomResourceDefinition")
#: A gang is bound and evicted as one, so a single refused pod holds nothing back.
_WHOLE_GANGS: Final = (BindPod, EvictPod)


def hold_refused(facts: Facts, draft: Draft, known: Sequence[ServerRefusal] = ()) -> list[ServerRefusal]:
    """Defer the actions whose refusal still waits.

    Args:
        known: what was found before safety, of this same pass.

    Returns:
        What the API server refuses, without what safety holds back by now.
    """
    if not facts.observed.refusals:
        return []

    found = _without_held(draft, known)
    kept: list[AnyAction] = []
    for action in draft.actions:
        refusal = standing(facts, action)
        if refusal is None:
            kept.append(action)
            continue
        if refusal not in found:
            found.append(refusal)
            draft.diagnostics.append(_finding(refusal))
        if _waits(facts, action, refusal):
            draft.deferred.append(Deferred(action, REFUSED, rfc3339(refusal.retry / 1000)))
        else:
            kept.append(action)
    draft.actions = kept
    return found


def _without_held(draft: Draft, known: Sequence[ServerRefusal]) -> list[ServerRefusal]:
    """What safety holds back is not tried, so it counts as held and not as refused, whatever the last try met."""
    held = {
        refusal_key(row.action)
        for row in draft.deferred
        if row.budget != REFUSED and not isinstance(row.action, _WHOLE_GANGS)
    }
    over = {_finding(refusal) for refusal in known if refusal.key in held}
    draft.diagnostics = [finding for finding in draft.diagnostics if finding not in over]
    return [refusal for refusal in known if refusal.key not in held]


def standing(facts: Facts, action: AnyAction) -> ServerRefusal | None:
    """The refusal of exactly this action; None if there is none, or the content is another one by now."""
    key = refusal_key(action)
    refusal = facts.observed.refusals.get(key) if key is not None else None
    return refusal if refusal is not None and refusal.digest == content_digest(action) else None


def _waits(facts: Facts, action: AnyAction, refusal: ServerRefusal) -> bool:
    if isinstance(action, _WHOLE_GANGS) or getattr(action, "budget_unit", None) is not None:
        return False
    return is_waiting(refusal, facts.now_ms) and not _mended(facts, refusal)


def _mended(facts: Facts, refusal: ServerRefusal) -> bool:
    """Whether what was missing is there now, so that the next try need not wait."""
    objects = facts.observed.objects
    match refusal.cause:
        case RefusalCause.NAMESPACE_MISSING | RefusalCause.NAMESPACE_TERMINATING:
            namespace = objects.get(ObjectKey("v1", "Namespace", "", refusal.key.namespace))
            return namespace is not None and not nested_map(namespace, "metadata").get("deletionTimestamp")
        case RefusalCause.KIND_NOT_SERVED:
            group = refusal.key.api_version.partition("/")[0]
            return any(
                (key.api_version, key.kind) == _CRD
                and key.name.endswith(f".{group}")
                and _defines(objects[key], refusal)
                for key in objects
            )
    return False


def _defines(definition: dict[str, object], refusal: ServerRefusal) -> bool:
    return nested_map(definition, "spec", "names").get("kind") == refusal.key.kind


def _finding(refusal: ServerRefusal) -> Diagnostic:
    """What was refused, since when, the server's answer, and the next step."""
    tries = "once" if refusal.attempts == 1 else f"{refusal.attempts} times since {rfc3339(refusal.since / 1000)}"
    message = (
        f"the API server refuses it ({refusal.cause}, {tries}; next try {rfc3339(refusal.retry / 1000)}): "
        f"{refusal.answer}. {NEXT_STEP[refusal.cause].capitalize()}"
    )
    place = (refusal.file, refusal.line, 1) if refusal.line else (refusal.file, 0, 0)
    return Diagnostic("error", str(refusal.key.object), *place, "", message, PassCode.SERVER_REFUSED)
