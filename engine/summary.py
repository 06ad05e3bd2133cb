"""Longer answers of the command line: a plan as tables, differences as text, the status of everything."""

from __future__ import annotations

import asyncio
import difflib
import sys
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import yaml

from engine import show
from engine.kube import CONFIGMAP, Kube
from engine.live import with_kube
from engine.model.actions import CreateObject, DeleteObject, PatchObject, kind_of
from engine.model.cluster import Observed
from engine.model.diagnostics import ObjectKey
from engine.model.plan import Plan
from engine.model.times import rfc3339
from engine.wire import names, sync

_WATCH_SECONDS: Final = 1.0
_SCORES_SHOWN: Final = 20


def plan_table(plan: Plan, *, explain: bool) -> None:
    """A plan for people: what, on what, why; then what waits and what is wrong."""
    out = sys.stdout
    out.write(f"revision {plan.revision or '-'}   now {rfc3339(plan.now)}\n")
    out.write(f"\n{len(plan.actions)} actions\n")
    if plan.actions:
        show.table(("action", "reason", "what"), [(kind_of(a), a.reason, a.message) for a in plan.actions])
    if plan.deferred:
        out.write(f"\n{len(plan.deferred)} deferred\n")
        show.table(
            ("action", "held back by", "until", "what"),
            [(kind_of(d.action), d.budget, d.until, d.action.message) for d in plan.deferred],
        )
    if plan.pending:
        out.write(f"\n{len(plan.pending)} pending\n")
        show.table(
            ("job", "reason", "message", "nodes", "way out"),
            [(f"{p.namespace}/{p.name}", p.reason, p.message, p.nodes, p.unblock) for p in plan.pending],
        )
    if plan.chips:
        out.write("\nchips not plainly healthy and free\n")
        show.table(
            ("node", "chip", "state", "level", "codes", "used by"),
            [(c.node, c.chip, c.state, c.level, c.codes, c.used_by) for c in plan.chips],
        )
    if explain and plan.scores:
        out.write("\nscores\n")
        show.table(("pod", "nodes"), [(pod, _best(by_node)) for pod, by_node in sorted(plan.scores.items())])
    for finding in plan.diagnostics:
        out.write(f"{finding}\n")


def differences(plan: Plan, observed: Observed) -> list[str]:
    """Unified differences between live objects and Git, for the sync actions of a plan."""
    lines: list[str] = []
    for action in (*plan.actions, *(d.action for d in plan.deferred)):
        if not isinstance(action, CreateObject | PatchObject | DeleteObject) or action.evidence.rule != "sync":
            continue
        key = ObjectKey(action.api_version, action.object_kind, action.namespace, action.name)
        live = observed.objects.get(key)
        if isinstance(action, CreateObject):
            before, after = None, action.object
        elif isinstance(action, PatchObject):
            before, after = _projected(live or {}, action.patch), action.patch
        else:
            before, after = live or {"kind": key.kind, "metadata": {"name": key.name}}, None
        lines += difflib.unified_diff(
            _text(before), _text(after), f"live/{key}", f"git/{key}" if after is not None else "/dev/null", lineterm=""
        )
    return lines


def show_status(kubeconfig: str | None, output: str, watch: bool) -> None:
    """Print ``belay-sync`` and the pools; with ``watch`` again on every change until interrupted."""

    async def run(kube: Kube) -> None:
        shown = None
        while True:
            listing = await kube.list(CONFIGMAP, names.SYSTEM)
            found = {cm["metadata"]["name"]: cm.get("data") or {} for cm in listing.items}
            body = _status(found)
            if body != shown:
                _print_status(body, output)
                shown = body
            if not watch:
                return
            await asyncio.sleep(_WATCH_SECONDS)

    try:
        with_kube(kubeconfig, run)
    except KeyboardInterrupt:
        sys.stdout.write("\n")


def _status(found: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    repository = found.get(names.SYNC, {})
    pools = {
        name.removeprefix(names.POOL_PREFIX): _json(data.get("nodes", "{}"))
        for name, data in found.items()
        if name.startswith(names.POOL_PREFIX)
    }
    jobs: dict[str, int] = {}
    for name, data in found.items():
        if name.startswith(names.JOB_PREFIX):
            phase = data.get("phase", "Unknown")
            jobs[phase] = jobs.get(phase, 0) + 1
    return {
        "attempted": repository.get(sync.ATTEMPTED, ""),
        "applied": repository.get(sync.APPLIED, ""),
        "conditions": _json(repository.get("conditions.json", "[]")),
        "diagnostics": _json(repository.get("diagnostics.json", "[]")),
        "deferred": _json(repository.get("deferred.json", "[]")),
        "pools": dict(sorted(pools.items())),
        "jobs": dict(sorted(jobs.items())),
    }


def _print_status(body: dict[str, Any], output: str) -> None:
    if output in ("json", "yaml"):
        show.document(body, output)
        return
    out = sys.stdout
    out.write(f"revision attempted {body['attempted'] or '-'}\nrevision applied   {body['applied'] or '-'}\n\n")
    rows = [(c.get("type"), c.get("status"), c.get("reason"), c.get("message")) for c in body["conditions"]]
    show.table(("condition", "status", "reason", "message"), rows)
    out.write("\n")
    show.table(("pool", "nodes"), [(pool, states) for pool, states in body["pools"].items()])
    out.write("\n")
    show.table(("jobs", "count"), list(body["jobs"].items()))
    for finding in body["diagnostics"]:
        place = f"{finding['file']}:{finding['line']}:{finding['column']}" if finding.get("file") else finding["object"]
        out.write(f"{finding['severity']}: {place} {finding['field']} - {finding['message']}\n")
    for one in body["deferred"]:
        out.write(
            f"held back: {one['action']} {one['what']} (budget {one['budget']}, until {one['until'] or 'a person'})\n"
        )
    out.flush()


def _json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None


def _projected(live: Any, patch: Any) -> Any:
    """The part of a live value that a patch speaks of."""
    if isinstance(live, dict) and isinstance(patch, dict):
        return {key: _projected(live[key], value) for key, value in patch.items() if key in live}
    return live


def _text(value: Any) -> list[str]:
    if value is None:
        return []
    return yaml.dump(value, Dumper=yaml.CSafeDumper, sort_keys=True, width=120).splitlines()


def _best(by_node: Mapping[str, float]) -> str:
    ranked = sorted(by_node.items(), key=lambda item: (-item[1], item[0]))[:_SCORES_SHOWN]
    return ", ".join(f"{node} {score:g}" for node, score in ranked)
