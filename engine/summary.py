"""Longer answers of the command line: a plan as tables, differences as text, the status of everything."""

from __future__ import annotations

import asyncio
import difflib
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import yaml

from engine import show
from engine.backtest import Verdict
from engine.errors import BelayError
from engine.kube import CONFIGMAP, Kube, KubeError
from engine.live import place, with_kube
from engine.load import Loaded
from engine.model.actions import AnyAction, CreateObject, DeleteObject, PatchObject, kind_of
from engine.model.cluster import Observed
from engine.model.diagnostics import ObjectKey
from engine.model.plan import ChipState, Plan
from engine.model.times import rfc3339
from engine.phrases import because, ranges, target
from engine.status.told import SELECTOR, Told, told
from engine.wire import names

_WATCH_SECONDS: Final = 1.0
_CALL_WITHIN: Final = 4.0
_SCORES_SHOWN: Final = 20
_HIDDEN: Final = ("belay.dev/applied-digest",)


def plan_table(plan: Plan, *, explain: bool = False, wide: bool = False) -> None:
    """A plan for people: what, on what, why; then what waits and what is wrong.

    ``wide`` adds what each action follows from, and every chip in use.
    """
    _write(f"revision {plan.revision or '-'}   now {rfc3339(plan.now)}")
    _actions(plan, wide)
    if plan.deferred:
        _write(f"\n{counted(len(plan.deferred), 'action')} held back by a budget")
        show.table(
            ("action", "on", "budget", "until", "what"),
            [
                (kind_of(d.action), target(d.action), d.budget, d.until or "a person decides", ranges(d.action.message))
                for d in plan.deferred
            ],
        )
    if plan.pending:
        _write(f"\n{len(plan.pending)} pending")
        show.table(
            ("job", "reason", "message", "nodes", "way out"),
            [(f"{p.namespace}/{p.name}", p.reason, p.message, p.nodes, p.unblock) for p in plan.pending],
        )
    _chips(plan.chips, wide)
    if explain and plan.scores:
        _write("\nscores")
        show.table(("pod", "nodes"), [(pod, _best(by_node)) for pod, by_node in sorted(plan.scores.items())])
    if plan.diagnostics:
        _write("")
    for finding in plan.diagnostics:
        _write(str(finding))


def backtest_table(verdict: Verdict, *, wide: bool = False) -> None:
    """What a policy would have done otherwise over recorded history; ``wide`` adds the messages."""
    named = ", ".join(verdict.policies)
    _write(f"{named} against {counted(verdict.frames, 'frame')} from {verdict.start} to {verdict.end}")
    for note in verdict.notes:
        _write(note)
    words = {"avoided": "avoided", "new": "new", "missed": "missed: avoided, though the fault was no passing one"}
    for name, title in words.items():
        rows = getattr(verdict, name)
        if rows:
            _write(f"\n{counted(len(rows), 'action')} {title}")
            columns: tuple[str, ...] = (
                "action",
                "on",
                "first",
                "last",
                "frames",
                *(("why",) if name == "missed" else ("budget",)),
            )
            columns = (*columns, "message") if wide else columns
            show.table(columns, [[getattr(row, column) for column in columns] for row in rows])
    if not verdict.differs:
        _write("\nit would have done the same")


def validation_summary(loaded: Loaded) -> str:
    """What was found, in one line."""
    errors, warnings = (sum(d.severity == word for d in loaded.diagnostics) for word in ("error", "warning"))
    manifests = counted(len(loaded.desired.manifests), "manifest")
    hint = "" if loaded.good else " (a state repository has its documents in desired/ and policies/)"
    found = f"{counted(errors, 'error')}, {counted(warnings, 'warning')}"
    return f"{counted(len(loaded.good), 'file')}{hint}, {manifests}, {found}"


def counted(number: int, noun: str) -> str:
    """``1 action``, ``2 actions``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


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
        origin = f"\t{action.evidence.file}:{action.evidence.line}" if action.evidence.file else ""
        old = f"live/{key}" if before is not None else "/dev/null"
        new = f"git/{key}{origin}" if after is not None else "/dev/null"
        lines += difflib.unified_diff(_text(before), _text(after), old, new, lineterm="")
    return lines


def show_status(kubeconfig: str | None, output: str, watch: bool) -> None:
    """Print what the status ConfigMaps say; with ``watch`` again on every change until interrupted.

    Raises:
        BelayError: the cluster does not answer, or Belay has written nothing there.
    """

    async def run(kube: Kube) -> None:
        shown: Told | None = None
        problem = ""
        while True:
            current: Told | None = None
            try:
                current, problem = await _read(kube), ""
            except KubeError as error:
                if not watch or shown is None:
                    raise
                if str(error) != problem:  # say it once
                    problem = str(error)
                    sys.stderr.write(f"waiting for the cluster: {show.plain(problem)}\n")
            if current is not None and current != shown:
                if not current.found and not watch:
                    raise BelayError(
                        f"there is no ConfigMap {names.SYSTEM}/{names.SYNC} at {place(kube.host)}",
                        hint="Does a controller run for this cluster?",
                    )
                _print_status(current, output, again=shown is not None)
                shown = current
            if not watch:
                return
            await asyncio.sleep(_WATCH_SECONDS)

    with_kube(kubeconfig, run, _CALL_WITHIN)


async def _read(kube: Kube) -> Told:
    return told((await kube.list(CONFIGMAP, names.SYSTEM, SELECTOR)).items)


def _print_status(status: Told, output: str, *, again: bool) -> None:
    if output in ("json", "yaml"):
        if again and output == "yaml":
            _write("---")
        show.document(status, output)
        sys.stdout.flush()
        return
    if again:
        _write("")
    _write(f"revision attempted {status.attempted or '-'}")
    _write(f"revision applied   {status.applied or '-'}")
    rows = [[c.get(key) for key in ("type", "status", "reason", "message")] for c in status.conditions]
    _section(("condition", "status", "reason", "message"), rows)
    _section(("pool", "nodes", "states"), [(p.name, sum(p.states.values()), p.states) for p in status.pools])
    chips = [chip for pool in status.pools for chip in pool.chips]
    bad = [[c.get(key) for key in ("node", "chip", "state", "level", "codes", "usedBy")] for c in chips]
    _section(("node", "chip", "state", "level", "codes", "usedBy"), bad)
    weak = [lemon for pool in status.pools for lemon in pool.lemons if output == "wide" or lemon.get("avoided")]
    rows = [[lemon.get(key) for key in ("node", "chip", "failures", "threshold")] for lemon in weak]
    _section(("fails again and again", "chip", "failures", "threshold"), rows)
    jobs = status.jobs if output == "wide" else [job for job in status.jobs if job.pending]
    if status.jobs:
        _write(f"\njobs: {', '.join(f'{number} {phase}' for phase, number in status.phases.items())}")
    _section(("job", "phase", "reason", "message"), [_job_row(job.name, job.phase, job.pending) for job in jobs])
    held = [[d.get(key) for key in ("action", "budget", "until", "what")] for d in status.deferred]
    _section(("held back", "budget", "until", "what"), held)
    rows = [[s.get(key) for key in ("policy", "change", "action", "budget", "what")] for s in status.shadow]
    _section(("shadow policy", "change", "action", "budget", "what"), rows)
    rows = [[f.get("severity"), _place(f), f.get("field"), f.get("message")] for f in status.diagnostics]
    _section(("finding", "where", "field", "message"), rows)
    sys.stdout.flush()


def _job_row(name: str, phase: str, pending: Mapping[str, Any]) -> tuple[object, ...]:
    return name, phase, pending.get("reason"), pending.get("message")


def _place(finding: Mapping[str, Any]) -> str:
    if finding.get("file"):
        return f"{finding['file']}:{finding.get('line')}:{finding.get('column')}"
    return str(finding.get("object") or "")


def _section(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    if rows:
        _write("")
        show.table(columns, rows)


def _actions(plan: Plan, wide: bool) -> None:
    _write(f"\n{counted(len(plan.actions), 'action')}")
    columns = ("action", "on", "reason", "what", *(("because",) if wide else ()))
    show.table(columns, [_action_row(action)[: len(columns)] for action in plan.actions])


def _action_row(action: AnyAction) -> tuple[str, ...]:
    return kind_of(action), target(action), action.reason, ranges(action.message), because(action)


def _chips(chips: Sequence[ChipState], wide: bool) -> None:
    """Chips that are not plainly healthy and free; those that are only in use as a number unless ``wide``."""
    shown = [chip for chip in chips if wide or chip.state != "healthy" or chip.codes]
    if len(shown) < len(chips):
        in_use = len(chips) - len(shown)
        _write(f"\n{counted(in_use, 'healthy chip')} in use by {counted(_users(chips), 'pod')} (-o wide lists them)")
    columns = ("node", "chip", "state", "level", "codes", "usedBy")
    _section(columns, [(c.node, c.chip, c.state, c.level, c.codes, c.used_by) for c in shown])


def _users(chips: Sequence[ChipState]) -> int:
    return len({chip.used_by for chip in chips if chip.used_by})


def _write(text: str) -> None:
    """One line; a line break before it makes room."""
    room = "\n" if text.startswith("\n") else ""
    sys.stdout.write(f"{room}{show.plain(text.lstrip(chr(10)))}\n")


def _projected(live: Any, patch: Any) -> Any:
    """The part of a live value that a patch speaks of."""
    if isinstance(live, dict) and isinstance(patch, dict):
        return {key: _projected(live[key], value) for key, value in patch.items() if key in live}
    if isinstance(live, list) and isinstance(patch, list):
        return _projected_items(live, patch)
    return live


def _projected_items(live: list[Any], patch: list[Any]) -> list[Any]:
    """Items with a name beside the declared item of that name, others by position; what is only live stays whole."""
    named = {item["name"]: item for item in patch if isinstance(item, dict) and isinstance(item.get("name"), str)}
    if named:
        return [
            _projected(item, named[item["name"]]) if isinstance(item, dict) and item.get("name") in named else item
            for item in live
        ]
    return [_projected(item, patch[i]) if i < len(patch) else item for i, item in enumerate(live)]


def _text(value: Any) -> list[str]:
    if value is None:
        return []
    return yaml.dump(_tidy(value), Dumper=_Dumper, sort_keys=True, width=120, allow_unicode=True).splitlines()


def _tidy(value: Any) -> Any:
    """Without what Belay adds for itself."""
    metadata = value.get("metadata")
    notes = metadata.get("annotations") if isinstance(metadata, dict) else None
    if not isinstance(notes, dict) or not notes.keys() & set(_HIDDEN):
        return value
    left = {key: text for key, text in notes.items() if key not in _HIDDEN}
    return {
        **value,
        "metadata": {
            **{k: v for k, v in metadata.items() if k != "annotations"},
            **({"annotations": left} if left else {}),
        },
    }


class _Dumper(yaml.CSafeDumper):
    """YAML as people write it: texts of several lines as blocks."""


def _represent_text(dumper: Any, text: str) -> Any:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)


def _best(by_node: Mapping[str, float]) -> str:
    ranked = sorted(by_node.items(), key=lambda item: (-item[1], item[0]))[:_SCORES_SHOWN]
    return ", ".join(f"{node} {score:g}" for node, score in ranked)
