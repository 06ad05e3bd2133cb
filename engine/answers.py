"""Answers to what people ask: rows for `belay get`, sentences for `belay explain`.

Everything is read from a plan and the snapshot it was made from; nothing is decided here.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import msgspec

from engine.errors import InputError
from engine.model.actions import AnyAction, kind_of
from engine.model.cluster import DeviceReport, Observed, ids_of
from engine.model.diagnostics import ObjectKey
from engine.model.plan import ChipState, NodeState, Pending, Plan
from engine.model.times import rfc3339
from engine.plan.gangs import group
from engine.plan.jobstatus import ended
from engine.status.jobs import impact, impact_body, runs, succeeded
from engine.status.recoveries import effective, recovery_body, story
from engine.status.rescheduling import asked_retries

_COMPARED: Final = 5000
_RUN: Final = re.compile(r"\b((?:Ascend\w*|npu)-)\d{1,6}(?:, \1\d{1,6})+\b")


class Answer(msgspec.Struct, frozen=True):
    """Rows under columns; ``wide`` columns are shown only with ``-o wide``."""

    columns: tuple[str, ...]
    rows: list[dict[str, Any]]
    wide: tuple[str, ...] = ()


def nodes(plan: Plan, observed: Observed) -> Answer:
    """Every node with its state, chips used and free, and the age of its report."""
    taken = _used(observed)
    rows = []
    for state in plan.nodes:
        report = observed.reports.get(state.node)
        base = _base(observed, state.node)
        used = len(taken.get(state.node, {}))
        rows.append(
            {
                "node": state.node,
                "pool": state.pool,
                "state": state.state,
                "level": state.level,
                "chips": len(ids_of(base)),
                "used": used,
                "unhealthy": len(ids_of(report.unhealthy)) if report else None,
                "codes": list(state.codes),
                "report": rfc3339(report.update_time) if report else observed.problems.get(state.node, "none"),
            }
        )
    return Answer(("node", "pool", "state", "level", "chips", "used", "unhealthy", "codes"), rows, ("report",))


def chips(plan: Plan, observed: Observed) -> Answer:
    """Every chip of every node; the plan names those that are not plainly healthy and free."""
    named = {(chip.node, chip.chip): chip for chip in plan.chips}
    failures = {(lemon.node, lemon.chip): lemon.failures for lemon in plan.lemons}
    rows = []
    for state in plan.nodes:
        report = observed.reports.get(state.node)
        if report is None:
            continue
        for index in ids_of(_base(observed, state.node)):
            name = f"{report.prefix}{index}"
            row = _chip_row(state.node, name, named.get((state.node, name)), report)
            rows.append({**row, "failures": failures.get((state.node, name), 0.0)})
    return Answer(("node", "chip", "state", "level", "codes", "usedBy"), rows, ("faultType", "failures"))


def jobs(plan: Plan, observed: Observed) -> Answer:
    """Every job that wants NPUs."""
    pending = {f"{p.namespace}/{p.kind}/{p.name}": p for p in plan.pending}
    gangs, gang_of = group(observed)
    done = succeeded(observed, gang_of)
    rows = []
    for key in sorted({*gangs, *pending}):
        gang = gangs.get(key)
        pods = [observed.pods[p] for p in gang.pods if p in observed.pods] if gang else []
        if not any(pod.count for pod in pods) and key not in pending:
            continue
        namespace, kind, name = key.split("/", 2)
        wait = pending.get(key)
        running = sum(pod.phase == "Running" for pod in pods)
        going = gang is not None and runs(gang, running, done.get(key, 0))
        owner = ObjectKey(gang.api_version, kind, namespace, name) if gang is not None else None
        end = ended(observed.objects.get(owner)) if owner is not None else ""
        rows.append(
            {
                "namespace": namespace,
                "kind": kind,
                "name": name,
                "phase": end or ("Pending" if wait else ("Running" if going else "Starting")),
                "ready": f"{running}/{gang.replicas if gang else len(pods)}",
                "chips": sum(pod.count for pod in pods),
                "nodes": sorted({pod.node for pod in pods if pod.node}),
                "reason": f"{wait.reason}: {wait.message}" if wait else "",
            }
        )
    return Answer(("namespace", "kind", "name", "phase", "ready", "chips", "nodes", "reason"), rows)


def faults(plan: Plan, observed: Observed) -> Answer:
    """Every fault code seen, on chips and nodes."""
    rows: list[dict[str, Any]] = []
    for chip in plan.chips:
        rows += [_fault_row(chip.node, chip.chip, code, chip) for code in chip.codes]
    for node in plan.nodes:
        rows += [
            {"node": node.node, "chip": "", "code": code, "level": node.level, "state": node.state}
            for code in node.codes
        ]
    return Answer(("node", "chip", "code", "level", "state"), rows)


def vnpus(plan: Plan, observed: Observed) -> Answer:
    """Every vNPU that agents report."""
    rows = []
    for name, agent in observed.agents.items():
        report = observed.reports.get(name)
        prefix = report.prefix if report else ""
        rows += [
            {"node": name, "chip": f"{prefix}{v.chip}", "id": v.id, "template": v.template, "usedBy": v.used_by}
            for v in agent.vnpus
        ]
    return Answer(("node", "chip", "id", "template", "usedBy"), rows)


def pools(plan: Plan, observed: Observed) -> Answer:
    """Nodes and chips per pool."""
    taken = _used(observed)
    found: dict[str, dict[str, Any]] = {}
    for node in plan.nodes:
        row = found.setdefault(
            node.pool, {"pool": node.pool, "nodes": 0, "healthy": 0, "chips": 0, "used": 0, "outOfService": 0}
        )
        row["nodes"] += 1
        row["healthy"] += node.state == "healthy"
        row["chips"] += len(ids_of(_base(observed, node.node)))
        row["used"] += len(taken.get(node.node, {}))
    pool_of = {node.node: node.pool for node in plan.nodes}
    for chip in plan.chips:
        if chip.node in pool_of and chip.state not in ("healthy", "sub-healthy", "suspect"):
            found[pool_of[chip.node]]["outOfService"] += 1
    rows = [found[name] for name in sorted(found)]
    return Answer(("pool", "nodes", "healthy", "chips", "used", "outOfService"), rows)


GET: Final[dict[str, Callable[[Plan, Observed], Answer]]] = {
    "nodes": nodes,
    "chips": chips,
    "jobs": jobs,
    "faults": faults,
    "vnpus": vnpus,
    "pools": pools,
}


def explain(kind: str, name: str, plan: Plan, observed: Observed) -> dict[str, Any]:
    """Why something is as it is: its state, what the next pass would do about it and why, what it remembers.

    Raises:
        InputError: there is no such thing.
    """
    return {"pod": _pod, "job": _job, "chip": _chip, "node": _node}[kind](name, plan, observed)


def _pod(name: str, plan: Plan, observed: Observed) -> dict[str, Any]:
    key = _only(observed.pods, "pod", name)
    pod = observed.pods[key]
    body: dict[str, Any] = {
        "pod": key,
        "phase": pod.phase,
        "node": pod.node or None,
        "chips": list(pod.chips),
        "requests": {pod.resource: pod.count} if pod.count else {},
        "next": _actions(plan, lambda a: getattr(a, "pod", None) == pod.name and a.namespace == pod.namespace),
    }
    waiting = [p for p in plan.pending if p.namespace == pod.namespace and pod.name in p.pods]
    if waiting:
        body["pending"] = _pending(waiting[0])
    if key in plan.scores:
        body["scores"] = plan.scores[key]
    return body


def _job(name: str, plan: Plan, observed: Observed) -> dict[str, Any]:
    gangs, _ = group(observed)
    known = {*gangs, *(f"{p.namespace}/{p.kind}/{p.name}" for p in plan.pending), *observed.history.jobs}
    key = _only(known, "job", name)
    namespace, kind, job = key.split("/", 2)
    gang = gangs.get(key)
    pods = [observed.pods[p] for p in gang.pods if p in observed.pods] if gang else []
    keys = {pod.name for pod in pods}
    body: dict[str, Any] = {
        "job": f"{namespace}/{job}",
        "kind": kind,
        "pods": [{"pod": p.name, "phase": p.phase, "node": p.node or None, "chips": list(p.chips)} for p in pods],
        "next": _actions(
            plan,
            lambda a: (
                getattr(a, "namespace", "") == namespace
                and (getattr(a, "pod", None) in keys or getattr(a, "name", None) == job)
            ),
        ),
    }
    waiting = [p for p in plan.pending if (p.namespace, p.name) == (namespace, job)]
    if waiting:
        body["pending"] = _pending(waiting[0])
    memory = plan.history.jobs.get(key)
    if memory is not None:
        body["reschedules"] = [rfc3339(ms / 1000) for ms in memory.reschedules]
        body["history"] = [f"{rfc3339(ms / 1000)} {what}" for ms, what in memory.timeline]
        body["hit"] = [
            {"time": rfc3339(record.time / 1000), "pods": [_hit(*task) for task in record.tasks]}
            for record in memory.records
        ]
    body |= impact_body(impact(pods, observed)) | recovery_body(memory)
    told = story(memory)
    if told:
        body["story"] = told
    chips = sum(pod.count for pod in pods)
    ratio = effective(memory, gang.created, plan.now, chips) if gang is not None else None
    if ratio is not None:
        body["effectiveTraining"] = ratio
    asked = asked_retries(gang.labels) if gang is not None else 0
    if asked:
        used = memory is not None and memory.retries >= 0
        body["retriesLeft"] = min(asked, memory.retries) if memory is not None and used else asked
    return body


def _hit(kind: str, pod: str, node: str, rank: str) -> dict[str, str]:
    return {"fault": kind, "pod": pod, "node": node, "rank": rank}


def _chip(name: str, plan: Plan, observed: Observed) -> dict[str, Any]:
    node, slash, given = name.rpartition("/")
    if not slash:
        raise InputError(f"chip {name!r} is not named in full", hint="Write NODE/CHIP, such as node-1/Ascend910-0.")
    report = observed.reports.get(node)
    if report is None:
        known = sorted(observed.reports)
        raise InputError(f"there is no report of a node {node!r}", hint=_suggestion(node, known, "nodes"))
    names = {f"{report.prefix}{index}": index for index in ids_of(_base(observed, node))}
    chip_name = given if given in names else f"{report.prefix}{given}"
    if chip_name not in names:
        raise InputError(f"node {node} has no chip {given!r}", hint=f"Its chips are {', '.join(names) or 'none'}.")
    index = names[chip_name]
    state = next((c for c in plan.chips if (c.node, c.chip) == (node, chip_name)), None)
    body = _chip_row(node, chip_name, state, report)
    body["faults"] = [
        {"code": f.code, "kind": f.kind, "level": f.level, "since": rfc3339(f.time_ms / 1000) if f.time_ms else None}
        for f in report.faults
        if f.chip == index
    ]
    lemon = next((one for one in plan.lemons if (one.node, one.chip) == (node, chip_name)), None)
    if lemon is not None:
        body["failures"] = {"rate": lemon.failures, "threshold": lemon.threshold, "avoided": lemon.avoided}
    memory = plan.history.nodes.get(node)
    chip_memory = memory.chips.get(index) if memory else None
    if chip_memory is not None:
        body["holds"] = [
            {"kind": h.kind, "level": h.level, "rule": h.rule, "until": rfc3339(h.until / 1000) if h.until else None}
            for h in chip_memory.holds
        ]
        body["resets"] = [rfc3339(ms / 1000) for ms in chip_memory.resets]
        body["history"] = [f"{rfc3339(ms / 1000)} {what}" for ms, what in chip_memory.timeline]
    body["next"] = _actions(
        plan,
        lambda a: getattr(a, "node", None) == node and chip_name in (*getattr(a, "chips", ()), getattr(a, "chip", "")),
    )
    return body


def _node(name: str, plan: Plan, observed: Observed) -> dict[str, Any]:
    state = next((n for n in plan.nodes if n.node == name), None)
    if state is None:
        raise InputError(f"node {name!r} is unknown", hint=_suggestion(name, [n.node for n in plan.nodes], "nodes"))
    report = observed.reports.get(name)
    body: dict[str, Any] = msgspec.to_builtins(state)
    body["problem"] = observed.problems.get(name)
    body["report"] = rfc3339(report.update_time) if report else None
    body["chips"] = [msgspec.to_builtins(c) for c in plan.chips if c.node == name]
    memory = plan.history.nodes.get(name)
    if memory is not None and memory.reboot[0]:
        body["rebootRequested"] = rfc3339(memory.reboot[0] / 1000)
    body["orders"] = _standing(name, observed)
    body["pods"] = sorted(pod.key for pod in observed.pods.values() if pod.node == name and not pod.finished)
    body["next"] = _actions(plan, lambda a: getattr(a, "node", None) == name)
    return body


def target(action: AnyAction) -> str:
    """What an action is done to: ``namespace/pod``, ``Kind/namespace/name``, a node, or chips of a node."""
    found = msgspec.to_builtins(action)
    if pod := found.get("pod"):
        return f"{found['namespace']}/{pod}"
    if kind := found.get("objectKind"):
        return "/".join(filter(None, (kind, found["namespace"], found["name"])))
    if node := found.get("node"):
        chips = found.get("chips") or ([found["chip"]] if found.get("chip") else [])
        return f"{node}/{ranges(', '.join(chips))}" if chips else str(node)
    return f"{found.get('namespace', '')}/{found.get('name', '')}".strip("/")


def ranges(text: str) -> str:
    """The text with runs of chips written short: ``Ascend910-0, Ascend910-1, Ascend910-2`` is ``Ascend910-0..2``."""
    return _RUN.sub(_shorter, text)


def _shorter(found: re.Match[str]) -> str:
    prefix, numbers = found[1], [int(name.rpartition("-")[2]) for name in found[0].split(", ")]
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    words = [f"{run[0]}..{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in parts]
    return prefix + ",".join(words)


def because(action: AnyAction) -> str:
    """What an action follows from: rule, file:line, fault codes."""
    evidence = action.evidence
    place = f"{evidence.file}:{evidence.line}" if evidence.file else ""
    codes = f"codes {','.join(evidence.codes)}" if evidence.codes else ""
    return " ".join(filter(None, (evidence.rule, place, codes)))


def _standing(node: str, observed: Observed) -> list[str]:
    """Orders that the node's agent has not carried out yet, and what it says about them."""
    orders, agent, report = observed.orders.get(node), observed.agents.get(node), observed.reports.get(node)
    if orders is None:
        return []
    prefix = report.prefix if report is not None else ""
    groups: dict[str, list[str]] = {}
    for chip, reset in sorted(orders.resets.items()):
        done = agent.chips[chip].reset_epoch_done if agent is not None and chip in agent.chips else 0
        if reset.epoch > done:
            groups.setdefault(f"epoch {reset.epoch} ({reset.reason})", []).append(f"{prefix}{chip}")
    found = [f"reset {', '.join(chips)}: {what}" for what, chips in groups.items()]
    if orders.vnpu_layout and orders.vnpu_epoch > (agent.vnpu_epoch_done if agent is not None else 0):
        cut = ", ".join(f"{prefix}{chip}" for chip in sorted(orders.vnpu_layout))
        found.append(f"partition {cut}: epoch {orders.vnpu_epoch}")
    return [*found, *(f"the agent says: {error}" for error in (agent.errors if agent is not None else ()))]


def _actions(plan: Plan, wanted: Callable[[Any], bool]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"action": kind_of(a), "reason": a.reason, "message": a.message, "because": because(a)}
        for a in plan.actions
        if wanted(a)
    ]
    found += [
        {"action": kind_of(d.action), "deferredBy": d.budget, "until": d.until, "message": d.action.message}
        for d in plan.deferred
        if wanted(d.action)
    ]
    return found


def _pending(pending: Pending) -> dict[str, Any]:
    return {
        "reason": pending.reason,
        "message": pending.message,
        "nodes": pending.nodes,
        "unblock": pending.unblock,
    }


def _chip_row(node: str, name: str, chip: ChipState | None, report: DeviceReport) -> dict[str, Any]:
    if chip is None:
        return {
            "node": node,
            "chip": name,
            "state": "healthy",
            "level": "",
            "codes": [],
            "usedBy": None,
            "faultType": [],
        }
    return {
        "node": node,
        "chip": name,
        "state": chip.state,
        "level": chip.level,
        "codes": list(chip.codes),
        "usedBy": chip.used_by,
        "faultType": list(chip.fault_type),
    }


def _fault_row(node: str, chip: str, code: str, state: ChipState | NodeState) -> dict[str, Any]:
    return {"node": node, "chip": chip, "code": code, "level": state.level, "state": state.state}


def _used(observed: Observed) -> dict[str, dict[str, str]]:
    taken: dict[str, dict[str, str]] = {}
    for pod in observed.pods.values():
        if pod.holds_chips:
            for chip in pod.chips:
                taken.setdefault(pod.node, {})[chip] = pod.key
    return taken


def _base(observed: Observed, node: str) -> int:
    known = observed.nodes.get(node)
    report = observed.reports.get(node)
    return (known.base_chips if known else 0) or (report.listed if report else 0)


def _only(known: Collection[str], kind: str, name: str) -> str:
    """The one thing of that name: ``namespace/name``, ``name``, or for jobs ``namespace/Kind/name``."""
    short = {key: f"{key.split('/')[0]}/{key.split('/')[-1]}" for key in known}
    found = [key for key in known if name in (key, short[key], key.split("/")[-1])]
    if not found:
        raise InputError(f"{kind} {name!r} is unknown", hint=_suggestion(name, sorted(set(short.values())), f"{kind}s"))
    if len(found) > 1:
        raise InputError(
            f"{kind} {name!r} is ambiguous: {', '.join(sorted(found)[:5])}", hint="Give one of these names in full."
        )
    return found[0]


def _suggestion(name: str, known: Sequence[str], what: str) -> str:
    """What the person may have meant."""
    near = difflib.get_close_matches(name, known[:_COMPARED], 3)
    near = near or [key for key in known if name and key.endswith(f"/{name.rpartition('/')[2]}")][:3]
    if near:
        return f"Did you mean {' or '.join(near)}?"
    return f"`belay get {what}` lists them." if f"{what}" in GET else ""
