"""`belay simulate`: a copied cluster, what happens to it, and the story told."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from engine import show
from engine.errors import InputError
from engine.model.actions import kind_of
from engine.model.diagnostics import Diagnostic
from engine.offline import desired_from, every_role, moment, newest
from engine.phrases import ranges, target
from engine.simulate import World
from engine.simulate.run import Outcome, simulate
from engine.simulate.timeline import check, due, read_timeline
from engine.summary import counted

REPORTS_EVERY = 240.0
"""Seconds between reports of a simulated node; they are stale after ten minutes."""


def story(
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
) -> tuple[Outcome, tuple[Diagnostic, ...]]:
    """Play a cluster forward; returns the story and what is wrong with the documents.

    Raises:
        InputError: an input is not usable, or there is nothing to simulate.
    """
    desired, findings = desired_from(tree, overlays, cluster)
    world = World(desired if live else every_role(desired), now=0.0, seed=seed, report_every=REPORTS_EVERY,
                  kubelets_die=True)  # fmt: skip
    world.populate(newest(cluster))
    if not world.nodes:
        raise InputError(
            "no node of the cluster has a device report, so there is nothing to simulate",
            hint="The List must hold the nodes and their mindx-dl-deviceinfo-* ConfigMaps.",
        )
    world.now = moment(now, world.observer.observed(), clock)
    events = read_timeline(timeline) if timeline else []
    check(events, world, timeline or "")
    events = due(events, world)
    for server in world.nodes.values():
        if not server.silent:
            world.report(server)
    return simulate(world, events, duration=duration), findings


def story_table(outcome: Outcome) -> None:
    """The story for people: moment by moment, then what is left."""
    out = sys.stdout
    rows: list[tuple[object, ...]] = []
    for one in outcome.moments:
        at = _clock(one.after)
        rows += [(at, "-", "", event) for event in one.events]
        rows += [(at, kind_of(action), target(action), ranges(action.message)) for action in one.actions]
    show.table(("after", "action", "on", "what"), rows)
    if outcome.left_out:
        out.write(f"{counted(outcome.left_out, 'more action')} not listed\n")
    total = ", ".join(f"{number} {kind}" for kind, number in outcome.counts.items()) or "nothing to do"
    words = {"quiet": "quiet", "duration": "the time is over", "passes": "stopped: it does not come to rest"}
    out.write(f"\n{words[outcome.ended]} at {outcome.end} after {outcome.passes} passes: {total}\n")
    last = outcome.last
    chips = [c for c in last.chips if c.state != "healthy" or c.codes]
    _section(("node", "chip", "state", "level", "codes", "usedBy"),
             [(c.node, c.chip, c.state, c.level, c.codes, c.used_by) for c in chips])  # fmt: skip
    _section(
        ("held back", "on", "budget", "until"),
        [(kind_of(d.action), target(d.action), d.budget, d.until or "a person decides") for d in last.deferred],
    )
    _section(("pending", "reason", "message"), [(f"{p.namespace}/{p.name}", p.reason, p.message) for p in last.pending])


def _clock(seconds: float) -> str:
    """``1h02m05s``, ``2m05s``, ``5s``."""
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    text = f"{rest:06.3f}".rstrip("0").rstrip(".") if rest % 1 else f"{int(rest):02d}"
    return f"{hours}h{minutes:02d}m{text}s" if hours else f"{minutes}m{text}s" if minutes else f"{rest:g}s"


def _section(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    if rows:
        sys.stdout.write("\n")
        show.table(columns, rows)
