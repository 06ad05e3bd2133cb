"""Answers of `belay explain`: why a pod, job, chip, node or link is as it is, and what comes next.

The answers come from a plan and its snapshot; this module decides nothing.
"""

from __future__ import annotations

from typing import Any, Final

from belay.engine.cli import coming, last_words, staying
from belay.engine.cli.answers import links
from belay.engine.cli.explained_rows import actions_on, find_one, pending_row, phase, suggestion
from belay.engine.cli.hardware_explanation import explain_chip, explain_node
from belay.engine.cli.job_explanation import explain_job
from belay.engine.cli.whys import Whys
from belay.engine.documents import Desired
from belay.engine.errors import InputError
from belay.engine.gangs.grouping import group
from belay.engine.load import load
from belay.engine.model.cluster import Observed, Pod
from belay.engine.model.links import LINKED, count_states
from belay.engine.model.plan import Plan
from belay.engine.status.jobs import graded, impact
from belay.engine.status.links import summary
from belay.engine.wire.links import name_of as link_orders

_MAX_LINKS: Final = 50


def explain(kind: str, name: str, plan: Plan, observed: Observed, desired: Desired | None = None) -> dict[str, Any]:
    """The state of an object, the actions of the next pass on it with reasons, and its history.
    ``desired`` is the plan's desired state; None: the shipped one.

    Raises:
        InputError: the object does not exist.
    """
    declared = load({}).desired if desired is None else desired
    if kind == "job":
        return explain_job(name, plan, observed, declared)
    if kind == "pod":
        return _pod(name, plan, observed, declared)
    if kind == "code":
        from belay.engine.cli.fault_codes import explain_fault

        return explain_fault(name, plan, observed, declared)

    whys = Whys(desired, observed)
    if kind == "node":
        return explain_node(name, plan, observed, whys)
    if kind == "chip":
        return explain_chip(name, plan, observed, whys)
    return _link(name, plan, observed)


def _pod(name: str, plan: Plan, observed: Observed, desired: Desired) -> dict[str, Any]:
    key = find_one(observed.pods, "pod", name)
    pod = observed.pods[key]

    def concerns(action: Any) -> bool:
        return getattr(action, "pod", None) == pod.name and action.namespace == pod.namespace

    body: dict[str, Any] = {
        "pod": key,
        "phase": phase(pod),
        "node": pod.node or None,
        "chips": list(pod.chips),
        "requests": {pod.resource: pod.count} if pod.count else {},
        "next": actions_on(plan, concerns),
    }
    waiting = [row for row in plan.pending if row.namespace == pod.namespace and pod.name in row.pods]
    if waiting:
        body["pending"] = pending_row(waiting[0])
    if key in plan.scores:
        body["scores"] = plan.scores[key]
    if failed := last_words.exit_codes(pod):
        body["exitCodes"] = failed
    if said := last_words.last_lines(pod):
        body["lastLines"] = said

    spared = _why_it_stays(pod, plan, observed, desired)
    if spared:
        body["notEvicted"] = spared
    body["coming"] = coming.of_pod(pod, waiting[0].reason if waiting else "", plan, observed, stays=bool(spared))
    return body


def _why_it_stays(pod: Pod, plan: Plan, observed: Observed, desired: Desired) -> str:
    """Why a pod stays on hardware that is faulty or drained; empty where it does not."""
    gangs, gang_of = group(observed)
    gang = gangs.get(gang_of.get(pod.key, ""))
    _, ranks = impact([pod], graded(plan, observed, desired))
    return staying.why(gang, [pod], ranks, plan, desired.settings.scheduler_names, subject="it stays on {nodes}")


def _link(name: str, plan: Plan, observed: Observed) -> dict[str, Any]:
    """One KVLink: how many of its links are up, those that are not, and the next orders to its nodes."""
    rows = [row for row in plan.links if row.link == name]
    said = [str(diagnostic) for diagnostic in plan.diagnostics if diagnostic.object == f"KVLink/{name}"]
    if not rows and not said:
        known = sorted({row.link for row in plan.links})
        raise InputError(f"link {name!r} is unknown", hint=suggestion(name, known, "links"))

    latencies = [row.latency_ms for row in rows if row.latency_ms is not None]
    not_linked = [row for row in links(plan, observed).rows if row["link"] == name and row["state"] != LINKED]
    body: dict[str, Any] = {
        "link": name,
        "summary": summary(rows),
        "links": count_states(rows),
        "slowestMs": max(latencies, default=None),
        "notLinked": not_linked[:_MAX_LINKS],
    }
    if len(not_linked) > _MAX_LINKS:
        body["leftOut"] = f"{len(not_linked) - _MAX_LINKS} more are not linked: `belay get links` lists them"
    body["diagnostics"] = said

    orders = {link_orders(row.node) for row in rows}

    def concerns(action: Any) -> bool:
        named = getattr(action, "name", "")
        return named in orders or (getattr(action, "object_kind", ""), named) == ("KVLink", name)

    body["next"] = actions_on(plan, concerns)
    return body
