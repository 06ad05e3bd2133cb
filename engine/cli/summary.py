"""Tables of the command line: plan, outcome, comparison of policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from belay.engine.cli import output as show
from belay.engine.cli.backtest import BacktestResult
from belay.engine.cli.forecast import Forecast, end_of
from belay.engine.cli.phrases import cause_text, ranges, target
from belay.engine.load import Loaded
from belay.engine.model.actions import AnyAction, kind_of
from belay.engine.model.plan import ChipState, Plan
from belay.engine.model.states import ChipHealth
from belay.engine.model.times import rfc3339
from belay.engine.model.wording import counted

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
            now=plan.now,
        )
    if plan.held_prune is not None:
        _write(f"to delete {plan.held_prune.size}, push a commit with the trailer")
        _write(f"    {plan.held_prune.trailer}")
    if plan.pending:
        _write(f"\n{len(plan.pending)} pending")
        show.table(
            ("job", "reason", "message", "nodes", "way out"),
            [(f"{p.namespace}/{p.name}", p.reason, p.message, p.nodes, p.unblock) for p in plan.pending],
            now=plan.now,
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
    _section(("job", "outcome", "on", "after", "why", "way out"), rows, first.now)
    kept = [
        (f"{k.kind} {k.namespace}/{k.name}", k.sentence, f"{k.reason}: {k.message}" if k.reason else "", k.unblock)
        for k in outcome.kept
    ]  # fmt: skip
    _section(("job", "template", "why", "way out"), kept, first.now)
    if outcome.evicted:
        lost = f"{outcome.chip_hours_lost:g} chip-hours lost"
        _write(f"\n{counted(len(outcome.evicted), 'running pod')} go{'es' * (len(outcome.evicted) == 1)}, {lost}")
        show.table(
            ("pod", "node", "chips", "after", "reason", "why", "chip-hours lost"),
            [
                (f"{e.namespace}/{e.pod}", e.node, e.chips, _after(e.after), e.reason, e.message, e.chip_hours_lost)
                for e in outcome.evicted
            ],
            now=first.now,
        )
    pruned = [
        ("/".join(filter(None, (p.kind, p.namespace, p.name))), _after(p.after),
         f"{p.held_by} until {p.until or 'a person decides'}" if p.held_by else "")
        for p in outcome.pruned
    ]  # fmt: skip
    _section(("pruned", "after", "held back by"), pruned, first.now)
    if not (outcome.jobs or outcome.evicted or outcome.pruned or outcome.kept):
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


def _section(columns: Sequence[str], rows: Sequence[Sequence[object]], now: float | None = None) -> None:
    if rows:
        _write("")
        show.table(columns, rows, now=now)


def _actions(plan: Plan, wide: bool) -> None:
    _write(f"\n{counted(len(plan.actions), 'action')}")
    columns = ("action", "on", "reason", "what", *(("because",) if wide else ()))
    show.table(columns, [_action_row(action)[: len(columns)] for action in plan.actions], now=plan.now)


def _action_row(action: AnyAction) -> tuple[str, ...]:
    return kind_of(action), target(action), action.reason, ranges(action.message), cause_text(action)


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
    """One line of text; a line break before it makes room."""
    show.text(text)


def _best(by_node: Mapping[str, float]) -> str:
    ranked = sorted(by_node.items(), key=lambda item: (-item[1], item[0]))[:_SCORES_SHOWN]
    return ", ".join(f"{node} {score:g}" for node, score in ranked)
