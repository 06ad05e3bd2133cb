"""What answers of `belay explain` share: finding the object that is named, actions on it, reasons, holds, slowness."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from belay.engine.cli.answers import GET
from belay.engine.cli.phrases import cause_text
from belay.engine.cli.whys import Whys
from belay.engine.errors import InputError
from belay.engine.model.actions import kind_of
from belay.engine.model.cluster import Observed, Pod
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.holds import Held
from belay.engine.model.last_changes import Place
from belay.engine.model.plan import CONFIRM, Deferred, Pending, Plan
from belay.engine.wire import names, slownode

_COMPARED: Final = 5000
_MAX_SLOW: Final = 50


def find_one(known: Collection[str], kind: str, name: str) -> str:
    """The only match of a name: ``namespace/name``, ``name``, or for jobs ``namespace/Kind/name``.

    Raises:
        InputError: nothing has the name, or several have it.
    """
    short = {key: f"{key.split('/')[0]}/{key.split('/')[-1]}" for key in known}
    matches = [key for key in known if name in (key, short[key], key.split("/")[-1])]
    if not matches:
        raise InputError(f"{kind} {name!r} is unknown", hint=suggestion(name, sorted(set(short.values())), f"{kind}s"))
    if len(matches) > 1:
        raise InputError(
            f"{kind} {name!r} is ambiguous: {', '.join(sorted(matches)[:5])}", hint="Give one of these names in full."
        )
    return matches[0]


def suggestion(name: str, known: Sequence[str], what: str) -> str:
    """Similar names that exist."""
    near = difflib.get_close_matches(name, known[:_COMPARED], 3)
    last = name.rpartition("/")[2]
    near = near or [key for key in known if last and key.endswith(f"/{last}")][:3]
    near = near or [key for key in known if last and key.rpartition("/")[2].startswith(last)][:3]
    if near:
        return f"Did you mean {' or '.join(near)}?"
    return f"`belay get {what}` lists them." if what in GET else ""


def actions_on(plan: Plan, concerns: Callable[[Any], bool]) -> list[dict[str, Any]]:
    """The actions of the next pass that concern an object, then those that wait for a budget."""
    rows: list[dict[str, Any]] = [
        {"action": kind_of(action), "reason": action.reason, "message": action.message, "because": cause_text(action)}
        for action in plan.actions
        if concerns(action)
    ]
    rows += [_deferred_row(deferred) for deferred in plan.deferred if concerns(deferred.action)]
    return rows


def _deferred_row(deferred: Deferred) -> dict[str, Any]:
    row = {
        "action": kind_of(deferred.action),
        "deferredBy": deferred.budget,
        "until": deferred.until,
        "message": deferred.action.message,
    }
    return row | {"confirm": f"{CONFIRM}: {deferred.confirm}"} if deferred.confirm else row


def pending_row(pending: Pending) -> dict[str, Any]:
    """Why an object waits, and the way out."""
    row = {
        "reason": pending.reason,
        "message": pending.message,
        "nodes": pending.nodes,
        "unblock": pending.unblock,
    }
    return row | {"near": list(pending.near)} if pending.near else row


def hold_row(held: Held, whys: Whys) -> dict[str, Any]:
    """A hold with the document behind it: its reason, who wrote it where, and what the commit says of it."""
    row: dict[str, Any] = {
        "kind": held.kind,
        "level": held.level,
        "rule": held.rule,
        "policy": held.policy or None,
        "until": held.until or None,
    }
    cause = held.cause
    if cause is None:
        return row

    place = Place(cause.file, cause.line, cause.commit).text
    row |= {"reason": cause.detail or None, "author": cause.author or None, "place": place or None}
    why = whys.of(cause.file, cause.commit)
    return row | {"why": why} if why else row


def slow_findings(observed: Observed, concerns: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Return what is slow about an object, with its figures; an empty body where nothing is slow."""
    rows: list[dict[str, Any]] = []
    for name in (names.SLOW_NODES, names.SLOW_NETWORKS):
        live = observed.objects.get(ObjectKey("v1", "ConfigMap", names.SYSTEM, name))
        rows += [row for _, row in sorted(slownode.recorded(live).items()) if concerns(row)]
    return {"slow": [f"{row['code']} {row['text']}" for row in rows[:_MAX_SLOW]]} if rows else {}


def phase(pod: Pod) -> str:
    """A pod's phase, ``Terminating`` where it has been asked to go, as kubectl shows it."""
    return pod.phase if pod.deleting is None else "Terminating"
