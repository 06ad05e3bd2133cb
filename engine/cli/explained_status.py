"""`belay explain queue|pool|policy|revision`: from what the engine publishes; nothing is planned."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from belay.engine.cli.counted_chips import CountedChips
from belay.engine.cli.published import ABOUT, PublishedCluster
from belay.engine.cli.selection import named
from belay.engine.errors import InputError
from belay.engine.model.labels import ABOUT_LABEL
from belay.engine.model.wording import counted
from belay.engine.serve.console.texts import mapping
from belay.engine.status.status_reader import read_status
from belay.engine.wire import names, sync

if TYPE_CHECKING:
    from belay.engine.kube import Lister

Json = Mapping[str, Any]
_MOST: Final = 20
#: Kinds of the documents that declare what is explained.
_DOCUMENTS: Final[Mapping[str, str]] = {"pool": "NodePool", "queue": "Queue", "policy": "FaultPolicy"}
_SETTINGS: Final = "SchedulingSettings"
_PLURAL: Final = {"queue": "queues", "pool": "pools", "policy": "policies", "revision": "revisions"}


def explain_published(kind: str, name: str, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
    """State, cause and next step of an object, and the time that they are of (Unix seconds).

    Raises:
        InputError: there is no such object, or an option asks for a plan. BelayError: nothing answers, or no pass
            has published anything.
    """
    from belay.engine.cli.inputs import LIVE, cluster_items
    from belay.engine.kube import ask_once

    if inputs["desired"] or inputs["policies"] or inputs["now"]:
        raise InputError(f"a {kind} is explained as the engine published it", where="--desired, --policies, --now",
                         hint="Leave them out; belay plan shows what they would change.")  # fmt: skip
    if inputs["cluster"] == LIVE:
        items = ask_once(inputs["kubeconfig"], lambda kube: _read(kind, kube), context=inputs["context"])
        now = time.time()
    else:
        items, clock, _ = cluster_items(inputs["cluster"], None, None)
        # a file is of the time at which it was written
        now = max((one.time for one in read_status(_config_maps(items)).passes), default=clock)
    found = PublishedCluster(_config_maps(items), now)
    if not found.published.found:
        raise InputError("the engine has published nothing here", where=inputs["cluster"],
                         hint="Is this the cluster that you mean, and does belay status answer?")  # fmt: skip
    policies = [one for one in items if one.get("kind") == "FaultPolicy"]
    body = _BY_KIND[kind](name, found, policies)
    body |= _last_change(kind, body, items)
    if kind == "policy" and not body["nextSteps"]:
        file = str(body.get("declared") or "FILE").partition(":")[0]
        body["nextSteps"] = [
            f"to try a change of it on what happened: belay policy test {file} --against RECORDINGS "
            "(docs/guides/fault-policy.md)"
        ]
    if found.published.no_pass:
        body["noPass"] = found.published.no_pass
    return body, now


def _last_change(kind: str, body: Json, items: Iterable[Json]) -> dict[str, Any]:
    """Where the document of a pool, queue or policy stands, who changed it last, and why."""
    if kind not in _DOCUMENTS:
        return {}
    status = next((one for one in _config_maps(items) if mapping(one.get("metadata")).get("name") == names.SYNC), {})
    places = sync.parse_places(status)
    place = places.get(f"{_DOCUMENTS[kind]}/{body[kind]}")
    if place is None and kind == "queue" and body["declaredBy"] == _SETTINGS:
        place = next((one for name, one in places.items() if name.startswith(f"{_SETTINGS}/")), None)
    if place is None:
        return {}
    return {"declared": place.text} | ({"why": place.why} if place.why else {})


def _config_maps(items: Iterable[Json]) -> list[Json]:
    return [one for one in items if one.get("kind", "ConfigMap") == "ConfigMap"]


async def _read(kind: str, kube: Lister) -> list[dict[str, Any]]:
    from belay.engine.cli.listed import OBJECTS
    from belay.engine.kube import CONFIGMAP, NotFound

    about = sorted({"sync", "pass", "job", *(one for kinds in ABOUT.values() for one in kinds)})
    items = (await kube.list(CONFIGMAP, names.SYSTEM, f"{ABOUT_LABEL} in ({','.join(about)})")).items
    if kind != "policy":
        return items
    try:
        return items + (await kube.list(OBJECTS["policies"])).items
    except NotFound:
        return items


def _one(kind: str, name: str, rows: Iterable[Json]) -> dict[str, Any]:
    """The row that a name means."""
    plural = _PLURAL[kind]
    fit = named(plural, list(rows), name)
    if len(fit) > 1:
        raise InputError(f"{name!r} begins {counted(len(fit), kind)}", hint="Write more of it.")
    return dict(fit[0])


def _queue(name: str, found: PublishedCluster, _: Sequence[Json]) -> dict[str, Any]:
    row = _one("queue", name, found.answer("queues").rows)
    waiting = [
        (key, mapping(status.get("pending")))
        for key, status in found.jobs.items()
        if status.get("queue") == row["queue"] and status.get("pending")
    ]
    reasons = Counter(str(pending.get("reason")) for _, pending in waiting)
    full = [
        f"{resource}: {mapping(row['used']).get(resource, 0)} of {most} used"
        for resource, most in mapping(row["capability"]).items()
    ]
    verb = "job waits" if len(waiting) == 1 else "jobs wait"
    summary = f"{row['state']}, {counted(int(row['running'] or 0), 'job')} running, {len(waiting)} {verb}"
    return {
        "queue": row["queue"],
        "summary": summary,
        "weight": row["weight"],
        "priority": row["priority"],
        "declaredBy": row["declaredBy"],
        "capability": full or "no limit of its own",
        "used": row["used"],
        "wanted": row["wanted"],
        "reasons": dict(reasons.most_common(_MOST)),
        "waiting": [
            {"job": _short(key), "reason": pending.get("reason"), "message": pending.get("message")}
            for key, pending in waiting[:_MOST]
        ],
        "nextSteps": _distinct(
            f"{_short(key)}: {pending.get('unblock')}" for key, pending in waiting if pending.get("unblock")
        )
        or (["belay explain job says more of each"] if waiting else ["nothing: no job waits"]),
    }


def _pool(name: str, found: PublishedCluster, _: Sequence[Json]) -> dict[str, Any]:
    row = _one("pool", name, found.answer("pools").rows)
    layout = found.layout
    nodes = {node for at, node in enumerate(layout.names) if layout.columns["pool"][at] == row["pool"]}
    ill = [one for one in found.answer("nodes").rows if one["node"] in nodes and _concerns(one)]
    # what holds a whole node is said once, in the node's row
    node_holds = {node: found.held.get((node, None), []) for node in nodes}
    out = [
        one for one in found.answer("chips").rows
        if one["node"] in nodes and (one["codes"] or len(one["heldBy"]) > len(node_holds[one["node"]]))
    ]  # fmt: skip
    jobs = sorted(
        _short(key)
        for key, status in found.jobs.items()
        if any(mapping(place).get("node") in nodes for place in mapping(status.get("placement")).values())
    )
    use = sum((found.chip_uses[node] for node in sorted(nodes)), CountedChips())
    healthy = f"{row['healthy']} of {counted(row['nodes'], 'node')} healthy"
    steps = [f"belay explain node {one['node']}" for one in ill]
    steps += [f"belay explain chip {one['node']}/{one['chip']}" for one in out]
    return {
        "pool": row["pool"],
        "summary": f"{healthy}; {use.sentence}",
        "nodes": [_ill_node(one) for one in ill[:_MOST]],
        "chips": [_ill_chip(one, node_holds[one["node"]]) for one in out[:_MOST]],
        "jobs": jobs[:_MOST],
        "nextSteps": steps[:_MOST] or ["nothing: no node or chip of it is out of service"],
    }


def _ill_node(row: Json) -> dict[str, Any]:
    """A node with what is wrong with it, and how many chips that concerns."""
    return _kept(row, ("node", "state", "level", "codes", "cordoned", "heldBy", "chips", "used"))


def _ill_chip(row: Json, node_holds: Sequence[str]) -> dict[str, Any]:
    """A chip with what is wrong with it alone."""
    shown = _kept(row, ("node", "chip", "state", "level", "codes", "heldBy"))
    own = len(row["heldBy"]) - len(node_holds)
    return shown | {"heldBy": row["heldBy"][:own]}


def _policy(name: str, found: PublishedCluster, policies: Sequence[Json]) -> dict[str, Any]:
    from belay.engine.cli.listed import ListedObjects

    row = _one("policy", name, ListedObjects(policies, found.now).answer("policies").rows)
    own = str(row["name"])
    spec = next(mapping(one.get("spec")) for one in policies if mapping(one.get("metadata")).get("name") == own)
    judged = [fault for fault in found.faults if own in str(fault.get("policy") or "").split("/")]
    shadow = [one for one in found.published.shadow if one.get("policy") == own]
    findings = [one for one in found.published.diagnostics if str(one.get("object") or "").endswith(f"/{own}")]
    does = f"{counted(row['levels'], 'level')} of codes, {counted(row['frequency'], 'rule')} by frequency, "
    does += f"{counted(row['duration'], 'rule')} by duration"
    steps = [f"mend {one.get('file')}:{one.get('line')}: {one.get('message')}" for one in findings]
    if row["mode"] == "shadow":
        steps.append(f"to enforce it: belay policy edit {own} --mode enforce")
    return {
        "policy": own,
        "summary": f"mode {row['mode']}, {does}",
        "ready": row["ready"],
        "scope": row["scope"] or "every node and job",
        "levels": spec.get("levels"),
        "actions": spec.get("actions"),
        "faults": [_kept(one, ("node", "chip", "code", "level", "action", "since")) for one in judged[:_MOST]],
        "inShadow": [_kept(one, ("action", "what", "node", "budget")) for one in shadow[:_MOST]],
        "findings": [_kept(one, ("severity", "file", "line", "message")) for one in findings[:_MOST]],
        "nextSteps": _distinct(steps),
    }


def _revision(name: str, found: PublishedCluster, _: Sequence[Json]) -> dict[str, Any]:
    from belay.engine.cli.syncing import WantedRevision, sync_standing

    status = found.published
    row = _one("revision", name, found.answer("revisions").rows)
    revision = str(row["revision"])
    current = revision in (status.applied, status.attempted)
    later = f"; {status.applied[:12]} is in force now" if not current and status.applied else ""
    if current:
        stands = sync_standing(status, WantedRevision(revision, lambda later: False), settled=True)
        steps = [] if stands.reached else ["wait for it: belay wait revision " + revision[:12]]
        if stands.hopeless:
            steps = [stands.text.rpartition(". ")[2]]
    else:
        steps = [f"to go back to it: belay rollback {revision[:12]}"]
    return {
        "revision": revision,
        "summary": f"{row['state']}{later}",
        "accepted": row.get("time"),
        "author": row.get("author"),
        "subject": row.get("subject"),
        "signer": row.get("signer"),
        "objects": status.objects if current else {},
        "conditions": [_kept(one, ("type", "status", "reason", "message")) for one in status.condition_rows]
        if current
        else [],
        "findings": [_kept(one, ("severity", "file", "line", "message")) for one in status.diagnostics[:_MOST]]
        if current
        else [],
        "refused": [dict(one) for one in status.refusals[:_MOST]] if current else [],
        "nextSteps": steps or ["nothing: everything that it declares is in force"],
    }


def _concerns(row: Json) -> bool:
    return bool(row["state"] != "healthy" or row["cordoned"] or row["codes"] or row["heldBy"])


def _kept(row: Json, columns: Iterable[str]) -> dict[str, Any]:
    return {column: row.get(column) for column in columns}


def _distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))[:_MOST]


def _short(key: str) -> str:
    namespace, _, rest = key.partition("/")
    return f"{namespace}/{rest.partition('/')[2]}"


_BY_KIND: Final[Mapping[str, Callable[[str, PublishedCluster, Sequence[Json]], dict[str, Any]]]] = {
    "queue": _queue,
    "pool": _pool,
    "policy": _policy,
    "revision": _revision,
}
