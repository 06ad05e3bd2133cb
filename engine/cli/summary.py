"""Tables of the command line: plan, outcome, comparison of policies, status."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from engine.cli import output as show
from engine.cli.backtest import BacktestResult
from engine.cli.forecast import Forecast, end_of
from engine.cli.phrases import because, ranges, target
from engine.errors import BelayError
from engine.kube import CONFIGMAP, Kube, KubeError
from engine.load import Loaded
from engine.model.actions import AnyAction, kind_of
from engine.model.plan import ChipState, Plan
from engine.model.states import ChipHealth
from engine.model.times import rfc3339
from engine.observe.live import server_address, with_kube
from engine.status.status_reader import SELECTOR, PublishedStatus, read_status
from engine.wire import names

_WATCH_SECONDS: Final = 1.0
_CALL_WITHIN: Final = 4.0
_SCORES_SHOWN: Final = 20
_PLACES_SHOWN: Final = 8


def plan_table(plan: Plan, *, explain: bool = False, wide: bool = False) -> None:
    """Print a plan: actions with target and reason, then deferred actions and diagnostics.

    ``wide`` adds the rule behind each action, and every chip in use.
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
    if plan.held_prune is not None:
        _write(f"to delete {plan.held_prune.size}, push a commit with the trailer")
        _write(f"    {plan.held_prune.trailer}")
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


def outcome_table(outcome: Forecast, first: Plan) -> None:
    """Print the outcome of a plan: jobs, evicted pods, pruned objects."""
    _write(f"\noutcome: {end_of(outcome, first)}")
    rows = [
        (f"{job.kind} {job.namespace}/{job.name}", job.outcome, _places(job.nodes), _after(job.after),
         f"{job.reason}: {job.message}" if job.reason else "", job.unblock)
        for job in outcome.jobs
    ]  # fmt: skip
    _section(("job", "outcome", "on", "after", "why", "way out"), rows)
    if outcome.evicted:
        lost = f"{outcome.chip_hours_lost:g} chip-hours lost"
        _write(f"\n{counted(len(outcome.evicted), 'running pod')} go{'es' * (len(outcome.evicted) == 1)}, {lost}")
        show.table(
            ("pod", "node", "chips", "after", "reason", "why", "chip-hours lost"),
            [
                (f"{e.namespace}/{e.pod}", e.node, e.chips, _after(e.after), e.reason, e.message, e.chip_hours_lost)
                for e in outcome.evicted
            ],
        )
    pruned = [
        ("/".join(filter(None, (p.kind, p.namespace, p.name))), _after(p.after),
         f"{p.held_by} until {p.until or 'a person decides'}" if p.held_by else "")
        for p in outcome.pruned
    ]  # fmt: skip
    _section(("pruned", "after", "held back by"), pruned)
    if not (outcome.jobs or outcome.evicted or outcome.pruned):
        _write("no job is placed, moved or left waiting")


def _places(nodes: Mapping[str, Sequence[str]]) -> str:
    shown = [f"{node}/{ranges(', '.join(chips))}" if chips else node for node, chips in nodes.items()]
    more = f" and {len(shown) - _PLACES_SHOWN} more" if len(shown) > _PLACES_SHOWN else ""
    return ", ".join(shown[:_PLACES_SHOWN]) + more


def _after(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:g} s"


def backtest_table(verdict: BacktestResult, *, wide: bool = False) -> None:
    """Print what a policy changes over recorded history; ``wide`` adds the messages."""
    named = ", ".join(verdict.policies)
    _write(f"{named} against {counted(verdict.frames, 'frame')} from {verdict.start} to {verdict.end}")
    for note in verdict.notes:
        _write(note)
    words = {"avoided": "avoided", "new": "new", "missed": "missed: avoided, though the fault lasted"}
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
    """The numbers of files, manifests and findings, in one line."""
    errors, warnings = (sum(d.severity == word for d in loaded.diagnostics) for word in ("error", "warning"))
    manifests = counted(len(loaded.desired.manifests), "manifest")
    hint = "" if loaded.good else " (a state repository has its documents in desired/ and policies/)"
    found = f"{counted(errors, 'error')}, {counted(warnings, 'warning')}"
    return f"{counted(len(loaded.good), 'file')}{hint}, {manifests}, {found}"


def counted(number: int, noun: str) -> str:
    """``1 action``, ``2 actions``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def show_status(kubeconfig: str | None, output: str, watch: bool) -> None:
    """Print the status ConfigMaps; with ``watch`` again on every change until interrupted.

    Raises:
        BelayError: the cluster does not answer, or Belay has written nothing there.
    """

    async def run(kube: Kube) -> None:
        shown: PublishedStatus | None = None
        problem = ""
        while True:
            current: PublishedStatus | None = None
            try:
                current, problem = await _read(kube), ""
            except KubeError as error:
                if not watch or shown is None:
                    raise
                if str(error) != problem:  # once per problem
                    problem = str(error)
                    sys.stderr.write(f"waiting for the cluster: {show.plain(problem)}\n")
            if current is not None and current != shown:
                if not current.found and not watch:
                    raise BelayError(
                        f"there is no ConfigMap {names.SYSTEM}/{names.SYNC} at {server_address(kube.host)}",
                        hint="Does a controller run for this cluster?",
                    )
                _print_status(current, output, again=shown is not None)
                shown = current
            if not watch:
                return
            await asyncio.sleep(_WATCH_SECONDS)

    with_kube(kubeconfig, run, _CALL_WITHIN)


async def _read(kube: Kube) -> PublishedStatus:
    return read_status((await kube.list(CONFIGMAP, names.SYSTEM, SELECTOR)).items)


def _print_status(status: PublishedStatus, output: str, *, again: bool) -> None:
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
    nodes = [node for pool in status.pools for node in pool.nodes]
    columns = ("node", "state", "level", "codes")
    _section(columns, [[node.get(key) for key in columns] for node in nodes])
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
    rows = [[item.get("object"), item.get("chips")] for item in _listed(status.held_prune)]
    _section(("deletion that waits for a person", "chips"), rows)
    if status.held_prune:
        _write(f"to delete exactly these, push a commit with the trailer {status.held_prune.get('release')}")
    rows = [[s.get(key) for key in ("policy", "change", "action", "budget", "what")] for s in status.shadow]
    _section(("shadow policy", "change", "action", "budget", "what"), rows)
    rows = [[f.get("severity"), _place(f), f.get("field"), f.get("message")] for f in status.diagnostics]
    _section(("finding", "where", "field", "message"), rows)
    sys.stdout.flush()


def _listed(held: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The objects of a deletion that waits, and how many more there are."""
    rows: list[Mapping[str, Any]] = [item for item in held.get("list") or [] if isinstance(item, dict)]
    if more := held.get("leftOut"):
        rows.append({"object": f"and {more} more"})
    return rows


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
    shown = [chip for chip in chips if wide or chip.state != ChipHealth.HEALTHY or chip.codes]
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


def _best(by_node: Mapping[str, float]) -> str:
    ranked = sorted(by_node.items(), key=lambda item: (-item[1], item[0]))[:_SCORES_SHOWN]
    return ", ".join(f"{node} {score:g}" for node, score in ranked)
