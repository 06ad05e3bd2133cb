"""Answers of `belay explain`: why a pod, job, chip, node or link is as it is, and what comes next.

The answers come from a plan and its snapshot; this module decides nothing.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import msgspec

from belay.engine.cli import coming, last_words, staying
from belay.engine.cli.answers import GET, chip_names, chip_row, links, vnpus_of
from belay.engine.cli.holders import holders_of
from belay.engine.cli.phrases import cause_text
from belay.engine.cli.whys import Whys
from belay.engine.documents import Desired
from belay.engine.errors import InputError
from belay.engine.gangs.evidence import by_job
from belay.engine.gangs.forming import pending_by_gang
from belay.engine.gangs.grouping import group
from belay.engine.gangs.job_status import FAILED, end_message, ended, is_suspended
from belay.engine.gangs.owners import JOB_KINDS
from belay.engine.load import load
from belay.engine.model.actions import kind_of
from belay.engine.model.cluster import Observed, Pod, ids_of
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.holds import Held
from belay.engine.model.jobs import Gang
from belay.engine.model.last_changes import Place
from belay.engine.model.links import LINKED, count_states
from belay.engine.model.log_codes import BMC, CHIP, meaning_of
from belay.engine.model.plan import CONFIRM, Pending, Plan
from belay.engine.model.times import rfc3339
from belay.engine.model.wording import counted
from belay.engine.status.jobs import broken, graded, impact, impact_body, job_object
from belay.engine.status.links import summary
from belay.engine.status.recoveries import conversation_body, effective, recovery_body, recovery_sentences
from belay.engine.wire import names, slownode
from belay.engine.wire.links import name_of as link_orders

_COMPARED: Final = 5000
_MAX_LINKS: Final = 50
_MAX_NODES: Final = 10


def explain(kind: str, name: str, plan: Plan, observed: Observed, desired: Desired | None = None) -> dict[str, Any]:
    """The state of an object, the actions of the next pass on it with reasons, and its history.
    ``desired`` is the plan's desired state; None: the shipped one.

    Raises:
        InputError: the object does not exist.
    """
    declared = load({}).desired if desired is None else desired
    if kind == "job":
        return _job(name, plan, observed, declared)
    if kind == "pod":
        return _pod(name, plan, observed, declared)
    if kind == "code":
        from belay.engine.cli.fault_codes import explain_fault

        return explain_fault(name, plan, observed, declared)

    whys = Whys(desired, observed)
    if kind == "node":
        return _node(name, plan, observed, whys)
    if kind == "chip":
        return _chip(name, plan, observed, whys)
    return _link(name, plan, observed)


def _pod(name: str, plan: Plan, observed: Observed, desired: Desired) -> dict[str, Any]:
    key = _single_match(observed.pods, "pod", name)
    pod = observed.pods[key]
    body: dict[str, Any] = {
        "pod": key,
        "phase": _phase(pod),
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
    if failed := last_words.exit_codes(pod):
        body["exitCodes"] = failed
    if said := last_words.last_lines(pod):
        body["lastLines"] = said
    if spared := _why_it_stays(pod, plan, observed, desired):
        body["notEvicted"] = spared
    body["coming"] = coming.of_pod(pod, waiting[0].reason if waiting else "", plan, observed, stays=bool(spared))
    return body


def _why_it_stays(pod: Pod, plan: Plan, observed: Observed, desired: Desired) -> str:
    """Why a pod stays on hardware that is faulty or drained; empty where it does not."""
    gangs, gang_of = group(observed)
    gang = gangs.get(gang_of.get(pod.key, ""))
    _, ranks = impact([pod], graded(plan, observed, desired))
    return staying.why(gang, [pod], ranks, plan, desired.settings.scheduler_names, subject="it stays on {nodes}")


def _phase(pod: Pod) -> str:
    """A pod's phase, ``Terminating`` where it has been asked to go, as kubectl shows it."""
    return pod.phase if pod.deleting is None else "Terminating"


def _job(name: str, plan: Plan, observed: Observed, desired: Desired) -> dict[str, Any]:
    gangs, gang_of = group(observed)
    waits = pending_by_gang(plan.pending, gangs)
    refused = {
        f"{row.key.namespace}/{row.key.kind}/{row.key.name}": row for row in plan.refusals if row.key.kind in JOB_KINDS
    }
    key = _single_match({*gangs, *waits, *observed.history.jobs, *refused}, "job", name)
    namespace, kind, job = key.split("/", 2)
    gang = gangs.get(key)
    pods = [observed.pods[p] for p in gang.pods if p in observed.pods] if gang else []
    keys = {pod.name for pod in pods}
    body: dict[str, Any] = {
        "job": f"{namespace}/{job}",
        "kind": kind,
        "pods": [{"pod": p.name, "phase": _phase(p), "node": p.node or None, "chips": list(p.chips)} for p in pods],
        "next": _actions(
            plan,
            lambda a: (
                getattr(a, "namespace", "") == namespace
                and (getattr(a, "pod", None) in keys or (getattr(a, "name", None) == job and _about(a, kind)))
            ),
        ),
    }
    if key in refused:
        body["refused"] = refused[key].document()
    if key in waits:
        body["pending"] = _pending(waits[key])
    body |= Whys(desired, observed).of_job(key)
    if is_suspended(job_object(key, gang, observed)):
        body["suspended"] = f"`belay resume {namespace}/{job}` starts it again"
    if gang is not None:
        body |= _end(gang, pods, [observed.pods[p] for p, of in gang_of.items() if of == key], observed)
    memory = plan.history.jobs.get(key)
    if memory is not None:
        body["reschedules"] = [rfc3339(ms / 1000) for ms in memory.came_about]
        body["history"] = [f"{rfc3339(ms / 1000)} {what}" for ms, what in memory.timeline]
        body["hit"] = [
            {"time": rfc3339(record.time / 1000), "pods": [_faulty_pod(*task) for task in record.tasks]}
            for record in memory.records
        ]
    hit = impact(pods, graded(plan, observed, desired))
    body |= impact_body(hit) | recovery_body(memory)
    body |= broken(key, gang, pods, by_job(observed).get(key, ()), desired, plan.now)
    spared = staying.why(gang, pods, hit[1], plan, desired.settings.scheduler_names) if "ended" not in body else ""
    if spared:
        body["notEvicted"] = spared
    body |= conversation_body(observed.recoveries.get(gang.uid) if gang is not None else None)
    body |= _slow_findings(observed, lambda row: row["name"] == f"{namespace}/{job}")
    steps = recovery_sentences(memory)
    if steps:
        body["story"] = steps
    chips = sum(pod.count for pod in pods)
    ratio = effective(memory, gang.created, plan.now, chips) if gang is not None else None
    if ratio is not None:
        body["effectiveTraining"] = ratio
    asked = gang.options.fault_retry_times if gang is not None else 0
    open_one = memory.recoveries[-1] if memory is not None and memory.recoveries else None
    body["coming"] = coming.of_job(
        pods, waits[key].reason if key in waits else "", body.get("ended", ""), body.get("suspended", ""),
        steps[-1] if steps and open_one is not None and not open_one.back else "", stays=bool(spared),
    )  # fmt: skip
    if asked:
        used = memory is not None and memory.retries >= 0
        body["retriesLeft"] = min(asked, memory.retries) if memory is not None and used else asked
    return body


def _end(gang: Gang, live: Sequence[Pod], pods: Sequence[Pod], observed: Observed) -> dict[str, Any]:
    """How a job ended, by which pods, and the way to run it again; nothing for a job that has not ended."""
    raw = observed.objects.get(ObjectKey(gang.api_version, gang.kind, gang.namespace, gang.name))
    end = ended(raw)
    if not end:
        return {}
    fallen = [pod for pod in sorted(pods, key=lambda pod: pod.name) if pod.phase == "Failed"]
    failed = [
        {
            "pod": pod.name,
            "node": pod.node or None,
            "reason": pod.reason or None,
            "exit codes": [c.exit_code for c in pod.containers if c.exit_code] or None,
            "last line": last_words.last_line(pod) or None,
        }
        for pod in fallen
    ]
    body: dict[str, Any] = {"ended": end, "endMessage": end_message(raw) or None, "failedPods": failed[:_MAX_NODES]}
    if end != FAILED:
        return body
    chips = sum(len(pod.chips) for pod in live if pod.holds_chips)
    held = f"; until then {counted(len(live), 'other pod')} of it keep {counted(chips, 'chip')}" if chips else ""
    logs = f"read `{last_words.read_logs(fallen[0])[0]}`, then " if fallen else ""
    delete = f"kubectl delete -n {gang.namespace} {gang.kind.partition('.')[0].lower()} {gang.name}"
    return body | {"unblock": f"{logs}delete the job (`{delete}`): what Git declares is created again{held}"}


def _faulty_pod(kind: str, pod: str, node: str, rank: str) -> dict[str, str]:
    return {"fault": kind, "pod": pod, "node": node, "rank": rank}


def _chip(name: str, plan: Plan, observed: Observed, whys: Whys) -> dict[str, Any]:
    node, slash, given = name.rpartition("/")
    if not slash:
        raise InputError(f"chip {name!r} is not named in full", hint="Write NODE/CHIP, such as node-1/Ascend910-0.")
    report, server = observed.reports.get(node), plan.servers.get(node)
    if report is None or server is None:
        known = sorted(observed.reports)
        raise InputError(
            f"there is no report of a node {node!r}", hint=_suggestion(node, known, "nodes"), code="NoSuchObject"
        )
    names = dict(zip(chip_names(server), ids_of(server.base), strict=True))
    chip_name = given if given in names else f"{server.prefix}{given}"
    if chip_name not in names:
        raise InputError(f"node {node} has no chip {given!r}", hint=f"Its chips are {', '.join(names) or 'none'}.")
    index = names[chip_name]
    state = next((c for c in plan.chips if (c.node, c.chip) == (node, chip_name)), None)
    body = chip_row(node, chip_name, state, server)
    if len(holders := holders_of(observed, node, chip_name)) > 1:
        body["holders"] = holders
    body["faults"] = [
        {"code": f.code, "kind": f.kind, "level": f.level, "since": rfc3339(f.time_ms / 1000) if f.time_ms else None}
        | _fault_meaning(f"{CHIP}{f.code}")
        for f in report.faults
        if f.chip == index
    ]
    offender = next((one for one in plan.repeat_offenders if (one.node, one.chip) == (node, chip_name)), None)
    if offender is not None:
        body["failures"] = {"rate": offender.failures, "threshold": offender.threshold, "avoided": offender.avoided}
    memory = plan.history.nodes.get(node)
    chip_memory = memory.chips.get(index) if memory else None
    holds = [held for held in plan.holds if held.node == node and held.chip in (chip_name, "")]
    if chip_memory is not None or holds:
        body["holds"] = [_hold(held, whys) for held in holds]
    body |= _recorded(node, index, plan, observed)
    body |= _ordered_and_done(node, index, observed)
    if parts := vnpus_of(node, index, observed):
        body["vnpus"] = parts
    body["coming"] = coming.of_chip(node, index, state, holds, plan, observed)
    body |= _slow_findings(observed, lambda row: index in row["nodes"].get(node, ()))
    body["next"] = _actions(
        plan,
        lambda a: getattr(a, "node", None) == node and chip_name in (*getattr(a, "chips", ()), getattr(a, "chip", "")),
    )
    return body


def _hold(held: Held, whys: Whys) -> dict[str, Any]:
    """A hold with the document behind it: its reason, who wrote it where, and what the commit says of it."""
    cause = held.cause
    row: dict[str, Any] = {
        "kind": held.kind, "level": held.level, "rule": held.rule, "policy": held.policy or None,
        "until": held.until or None,
    }  # fmt: skip
    if cause is None:
        return row
    place = Place(cause.file, cause.line, cause.commit).text
    row |= {"reason": cause.detail or None, "author": cause.author or None, "place": place or None}
    why = whys.of(cause.file, cause.commit)
    return row | {"why": why} if why else row


def _recorded(node: str, chip: int, plan: Plan, observed: Observed) -> dict[str, Any]:
    """What the cluster's own records say of a chip, and apart from it what only this answer's plan would add."""
    nodes = (observed.history.nodes.get(node), plan.history.nodes.get(node))
    before, after = (memory.chips.get(chip) if memory is not None else None for memory in nodes)
    resets = before.resets if before is not None else ()
    timeline = before.timeline if before is not None else ()
    found: dict[str, Any] = {
        "resets": [rfc3339(ms / 1000) for ms in resets],
        "history": [f"{rfc3339(ms / 1000)} {what}" for ms, what in timeline],
    }
    if decided := [what for ms, what in (after.timeline if after is not None else ()) if (ms, what) not in timeline]:
        found["decided"] = decided
    return found if before is not None or after is not None else {}


def _ordered_and_done(node: str, chip: int, observed: Observed) -> dict[str, Any]:
    """The newest reset that the node's orders hold, and the newest that its agent reports."""
    orders, agent = observed.orders.get(node), observed.agents.get(node)
    order = orders.resets.get(chip) if orders is not None else None
    reported = agent.chips.get(chip) if agent is not None else None
    found: dict[str, Any] = {}
    if order is not None:
        found["ordered"] = f"reset epoch {order.epoch} ({order.reason})"
    if reported is not None and reported.reset_epoch_done:
        found["done"] = f"reset epoch {reported.reset_epoch_done}: {reported.reset_result}"
    return found


def _node(name: str, plan: Plan, observed: Observed, whys: Whys) -> dict[str, Any]:
    state = next((n for n in plan.nodes if n.node == name), None)
    if state is None:
        raise InputError(f"node {name!r} is unknown", hint=_suggestion(name, [n.node for n in plan.nodes], "nodes"))
    report = observed.reports.get(name)
    body: dict[str, Any] = msgspec.to_builtins(state)
    node = observed.nodes.get(name)
    said = {code: _fault_meaning(f"{BMC}{code}").get("what") for code in state.codes}
    if any(said.values()):
        body["faults"] = [f"{code}: {text}" for code, text in said.items() if text]
    body["cordoned"] = node is not None and node.unschedulable
    body["problem"] = observed.problems.get(name)
    body["report"] = rfc3339(report.update_time) if report else None
    body["chips"] = [msgspec.to_builtins(c) for c in plan.chips if c.node == name]
    memory = plan.history.nodes.get(name)
    if memory is not None and memory.reboot[0]:
        body["rebootRequested"] = rfc3339(memory.reboot[0] / 1000)
    body |= _slow_findings(observed, lambda row: name in row["nodes"])
    body["orders"] = _open_orders(name, observed)
    body["pods"] = sorted(pod.key for pod in observed.pods.values() if pod.node == name and not pod.finished)
    if held := [one for one in plan.holds if one.node == name and not one.chip]:
        body["holds"] = [_hold(one, whys) for one in held]
    body["coming"] = coming.of_node(state, plan, observed)
    body["next"] = _actions(plan, lambda a: getattr(a, "node", None) == name)
    return body


def _fault_meaning(code: str) -> dict[str, str]:
    """What the code of a fault says, where that is known."""
    meaning = meaning_of(code)
    return {"what": meaning.en} if meaning is not None else {}


def _slow_findings(observed: Observed, concerns: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Return what is slow about an object, with its figures; an empty body where nothing is slow."""
    rows = []
    for name in (names.SLOW_NODES, names.SLOW_NETWORKS):
        live = observed.objects.get(ObjectKey("v1", "ConfigMap", names.SYSTEM, name))
        rows += [row for _, row in sorted(slownode.recorded(live).items()) if concerns(row)]
    return {"slow": [f"{row['code']} {row['text']}" for row in rows[:_MAX_LINKS]]} if rows else {}


def _link(name: str, plan: Plan, observed: Observed) -> dict[str, Any]:
    """One KVLink: how many of its links are up, those that are not, and the next orders to its nodes."""
    rows = [row for row in plan.links if row.link == name]
    said = [str(d) for d in plan.diagnostics if d.object == f"KVLink/{name}"]
    if not rows and not said:
        raise InputError(
            f"link {name!r} is unknown", hint=_suggestion(name, sorted({r.link for r in plan.links}), "links")
        )
    not_linked = [row for row in links(plan, observed).rows if row["link"] == name and row["state"] != LINKED]
    body: dict[str, Any] = {"link": name, "summary": summary(rows), "links": count_states(rows)}
    known = [row.latency_ms for row in rows if row.latency_ms is not None]
    body["slowestMs"] = max(known, default=None)
    body["notLinked"] = not_linked[:_MAX_LINKS]
    if len(not_linked) > _MAX_LINKS:
        body["leftOut"] = f"{len(not_linked) - _MAX_LINKS} more are not linked: `belay get links` lists them"
    body["diagnostics"] = said
    orders = {link_orders(row.node) for row in rows}
    body["next"] = _actions(
        plan,
        lambda a: (
            (getattr(a, "object_kind", ""), getattr(a, "name", "")) == ("KVLink", name)
            or getattr(a, "name", "") in orders
        ),
    )
    return body


def _open_orders(node: str, observed: Observed) -> list[str]:
    """Return orders that the agent of the node has not carried out yet, and the errors it reports."""
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
        {"action": kind_of(a), "reason": a.reason, "message": a.message, "because": cause_text(a)}
        for a in plan.actions
        if wanted(a)
    ]
    found += [
        {"action": kind_of(d.action), "deferredBy": d.budget, "until": d.until, "message": d.action.message}
        | ({"confirm": f"{CONFIRM}: {d.confirm}"} if d.confirm else {})
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
        **({"near": list(pending.near)} if pending.near else {}),
    }


def _about(action: Any, kind: str) -> bool:
    """Whether an action on an object of the job's name is about the job: no other job's of that name."""
    other = getattr(action, "object_kind", kind)
    return other in (kind.partition(".")[0], "PodGroup") or other not in JOB_KINDS


def _single_match(known: Collection[str], kind: str, name: str) -> str:
    """The only match of a name: ``namespace/name``, ``name``, or for jobs ``namespace/Kind/name``."""
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
    """Similar names that exist."""
    near = difflib.get_close_matches(name, known[:_COMPARED], 3)
    last = name.rpartition("/")[2]
    near = near or [key for key in known if last and key.endswith(f"/{last}")][:3]
    near = near or [key for key in known if last and key.rpartition("/")[2].startswith(last)][:3]
    if near:
        return f"Did you mean {' or '.join(near)}?"
    return f"`belay get {what}` lists them." if what in GET else ""
