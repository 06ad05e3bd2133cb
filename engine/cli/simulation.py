"""`belay simulate`: a copy of the cluster played forward, and the events and actions in order of time."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from belay.engine.cli import output
from belay.engine.cli.forecast import staged
from belay.engine.cli.phrases import ranges, target
from belay.engine.cli.progress import progress
from belay.engine.cli.what_if import AskedWhatIf, closing_sentence
from belay.engine.errors import InputError
from belay.engine.model.actions import kind_of
from belay.engine.model.diagnostics import Diagnostic
from belay.engine.model.states import ChipHealth
from belay.engine.model.wording import counted
from belay.engine.replay.offline import desired_from, every_role, moment
from belay.engine.simulate.run import Outcome, simulate
from belay.engine.simulate.timeline import check, due, read_timeline

_NOTHING: Final = AskedWhatIf()


def simulate_cluster(
    cluster: Sequence[Mapping[str, Any]],
    *,
    tree: str | None,
    overlays: Sequence[str],
    timeline: str | None,
    now: str | None,
    clock: float,
    live: bool,
    duration: float | None,
    seed: int,
    what_if: AskedWhatIf = _NOTHING,
) -> tuple[Outcome, tuple[Diagnostic, ...]]:
    """Simulate a cluster; return the outcome and findings about the documents.

    Raises:
        InputError: an input is not usable, or there is nothing to simulate.
    """
    desired, findings = desired_from(tree, overlays, cluster, live=live, over=what_if.documents())
    world = staged(desired if live else every_role(desired), cluster, seed=seed)
    if not world.nodes:
        raise InputError(
            "no node of the cluster has a device report, so there is nothing to simulate",
            hint="The List must hold the nodes and their mindx-dl-deviceinfo-* ConfigMaps.",
        )
    world.now = moment(now, world.observer.observed(), clock)
    what_if.check(world.nodes)
    events = what_if.events()
    check(events, world, "--fault")
    if timeline:
        written = read_timeline(timeline)
        check(written, world, timeline)
        events += written
    start = world.now
    with progress("simulating") as step:
        outcome = simulate(
            world,
            due(events, world),
            duration=duration,
            watch=lambda world, _: step(note=f"{_clock(round(world.now - start))} of virtual time"),
        )
    return outcome, findings


def simulation_table(outcome: Outcome) -> None:
    """Print the passes in order of time, then what is left to do."""
    out = sys.stdout
    rows: list[tuple[object, ...]] = []
    for one in outcome.moments:
        at = _clock(one.after)
        rows += [(at, "-", "", event) for event in one.events]
        rows += [(at, kind_of(action), target(action), ranges(action.message)) for action in one.actions]
    output.table(("after", "action", "on", "what"), rows)
    if outcome.left_out:
        out.write(f"{counted(outcome.left_out, 'more action')} not listed\n")
    total = ", ".join(f"{number} {kind}" for kind, number in outcome.counts.items()) or "nothing to do"
    words = {"quiet": "quiet", "duration": "end of the given time", "passes": "stopped: actions do not end"}
    out.write(f"\n{words[outcome.ended]} at {outcome.end} after {counted(outcome.passes, 'pass', 'passes')}: {total}\n")
    last = outcome.last
    chips = [c for c in last.chips if c.state != ChipHealth.HEALTHY or c.codes]
    _section(("node", "chip", "state", "level", "codes", "usedBy"),
             [(c.node, c.chip, c.state, c.level, c.codes, c.used_by) for c in chips])  # fmt: skip
    _section(
        ("held back", "on", "budget", "until"),
        [(kind_of(d.action), target(d.action), d.budget, d.until or "a person decides") for d in last.deferred],
        last.now,
    )
    if last.held_prune is not None:
        out.write(f"to delete {last.held_prune.size}, push a commit with the trailer\n    {last.held_prune.trailer}\n")
    _section(
        ("pending", "reason", "message", "way out"),
        [(f"{p.namespace}/{p.name}", p.reason, p.message, p.unblock) for p in last.pending],
        last.now,
    )
    output.text("\n" + closing_sentence(outcome), out, hang=2)


def _clock(seconds: float) -> str:
    """``1h02m05s``, ``2m05s``, ``5.25s``: parts of a second only below a minute; documents have every one."""
    if seconds < 59.9995:
        return f"{round(seconds, 3):g}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m{rest:02d}s" if hours else f"{minutes}m{rest:02d}s"


def _section(columns: Sequence[str], rows: Sequence[Sequence[object]], now: float | None = None) -> None:
    if rows:
        sys.stdout.write("\n")
        output.table(columns, rows, now=now)
