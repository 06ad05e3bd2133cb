"""What if: changes on a copy of a moment's cluster, played forward as `belay simulate` does; nothing is written.

Each pass becomes a frame, the difference of two documents; the same for real is said as commands to run.
"""

from __future__ import annotations

import copy
import dataclasses
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import yaml
from pydantic import ValidationError

from belay.engine.cli.console_moments import AskedMoment
from belay.engine.cli.console_plans import declared_by, outcome_body
from belay.engine.cli.forecast import Forecast, ForecastWatcher, staged
from belay.engine.cli.phrases import ranges, target
from belay.engine.documents import Declared, Isolation
from belay.engine.errors import InputError
from belay.engine.load.validation_errors import problems_of
from belay.engine.model.actions import kind_of
from belay.engine.model.diagnostics import ObjectKey, Origin
from belay.engine.model.plan import Plan
from belay.engine.model.times import rfc3339
from belay.engine.replay.cluster_file import objects_of
from belay.engine.replay.offline import every_role
from belay.engine.serve.console import patches
from belay.engine.serve.console.document import Builder, StateDocument
from belay.engine.serve.console.planned import document_of
from belay.engine.serve.console.texts import line, name
from belay.engine.simulate import World
from belay.engine.simulate.run import simulate
from belay.engine.simulate.timeline import Event, check, due
from belay.engine.source.branches import REQUEST

MOST_CHANGES: Final = 32
MOST_FRAMES: Final = 120
MOST_PASSES: Final = 400
MOST_ACTIONS: Final = 200
MOST_OBJECTS: Final = 50
LONGEST: Final = 7 * 86_400.0
_CHIPS_PER_FRAME: Final = 4_000_000
"""Chips of all frames together: a large cluster gets fewer frames."""


class _Player:
    """Collects a frame for every pass that changes something."""

    def __init__(self, moment: AskedMoment, world: World) -> None:
        self._moment, self._builder, self._start = moment, Builder(), world.now
        self.watcher = ForecastWatcher(world)
        self.frames: list[dict[str, Any]] = []
        self.left_out = 0
        self.before = self._shown(moment.plan, world)
        self.last = self.before
        self._most = max(4, min(MOST_FRAMES, _CHIPS_PER_FRAME // max(1, self.before.layout.chips)))
        self.events: list[str] = []

    def __call__(self, world: World, result: Plan) -> None:
        self.watcher(world, result)
        events, self.events = self.events, []
        if len(self.frames) >= self._most:
            self.left_out += 1
            return
        shown = self._shown(result, world)
        if not patches.same_places(self.last, shown):
            self.left_out += 1  # a node went: the frames of one answer have the same places
            return
        patch = patches.difference(self.last, shown)
        patch.pop("leftOut", None)
        if not patch and not result.actions and not events:
            return
        self.last = shown
        actions = [
            {
                "action": kind_of(one),
                "on": line(target(one)),
                "reason": one.reason,
                "message": line(ranges(one.message)),
            }
            for one in result.actions[:MOST_ACTIONS]
        ]
        self.frames.append(
            {
                "time": rfc3339(world.now), "after": round(world.now - self._start, 3), "events": events,
                "actions": actions, "patch": patch,
            }
        )  # fmt: skip

    def _shown(self, plan: Plan, world: World) -> StateDocument:
        return document_of(
            plan, world.observed(), world.desired, builder=self._builder, shard=self._moment.shard,
            cache=world.cache,
        )  # fmt: skip


def what_if(
    moment: AskedMoment, changes: Sequence[Mapping[str, Any]], horizon: float, repository: str, path: str, data: str,
    over: Callable[[], bool] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Play a moment forward with changes made at its beginning, until ``over`` holds at the latest.

    Raises:
        InputError: a change is not understood, or names what does not exist. BelayError: a branch cannot be read.
    """
    if not changes or len(changes) > MOST_CHANGES:
        raise InputError(f"give 1 to {MOST_CHANGES} changes")
    if not 1 <= horizon <= LONGEST:
        raise InputError(f"the horizon is {horizon:g} s; give 1 s to {LONGEST:g} s")
    desired, revision = moment.desired, moment.plan.revision
    branch = next((str(one.get("name", "")) for one in changes if one.get("do") == "branch"), "")
    if branch:
        desired, _, revision = declared_by(moment, branch, repository, path, data)
    world = staged(desired if moment.live else every_role(desired), moment.items)
    if not world.nodes:
        raise InputError("no node of the cluster has a device report, so there is nothing to play")
    world.now = moment.plan.now
    player = _Player(moment, world)
    events: list[Event] = []
    said: list[str] = []
    for number, one in enumerate(changes, start=1):
        events += _change(world, one, f"change {number}", said)
    check(events, world, "what-if")
    player.events = [line(text) for text in [*said, *map(str, events)][:MOST_ACTIONS]]
    if over is not None:
        over()  # from here on passes are played; the first one is in any case
    simulated = simulate(world, due(events, world), duration=horizon, most=MOST_PASSES, watch=player, over=over)
    player.watcher.refresh(world)
    final = player._shown(simulated.last, world)
    outcome = Forecast(
        ended=simulated.ended, end=simulated.end, passes=simulated.passes,
        jobs=tuple(player.watcher.jobs(world, simulated.last)),
        evicted=tuple(player.watcher.evicted),
        chip_hours_lost=round(sum(one.chip_hours_lost for one in player.watcher.evicted), 2),
        pruned=tuple(player.watcher.pruned[key] for key in sorted(player.watcher.pruned)), counts=simulated.counts,
    )  # fmt: skip
    return {
        "before": player.before.body(),
        "frames": player.frames,
        "ended": simulated.ended,
        "end": simulated.end,
        "outcome": outcome_body(outcome),
        "recoveries": final.sections["recoveries"],
        "explanations": _explanations(outcome),
        "commands": [command for one in changes for command in _commands(one)],
        "leftOut": player.left_out,
        "revision": revision,
    }


def _change(world: World, one: Mapping[str, Any], where: str, said: list[str]) -> list[Event]:
    """Make one change, or return the events that make it."""
    do, node = one.get("do"), str(one.get("node") or "")
    if do in ("fault", "recover"):
        chip = one.get("chip")
        number = str(chip).rpartition("-")[2]
        body: dict[str, Any] = {
            "at": "0s", "node": node, "code": str(one.get("code") or ""),
            "chip": int(number) if number.isascii() and number.isdecimal() and len(number) < 6 else chip,
            "assertion": "recover" if do == "recover" else "occur",
        }  # fmt: skip
        if one.get("level"):
            body["level"] = str(one["level"])
        try:
            return [Event.model_validate(body)]
        except ValidationError as error:
            problem = problems_of(error, Event)[0]
            raise InputError(f"{'.'.join(map(str, problem.path))}: {problem.message}", where=where) from error
    if do == "die":
        _node(world, node, where)
        # not gone: a machine without power is a node that Kubernetes says is not ready
        return [Event.model_validate({"at": "0s", "node": node, "state": "not-ready"})]
    if do == "drain":
        _in_maintenance(world, node, where, said)
        return []
    if do == "cordon":
        cordoned: dict[str, Any] = copy.deepcopy(dict(_node(world, node, where)))
        cordoned.setdefault("spec", {})["unschedulable"] = True
        world.put(cordoned)
        said.append(f"{node} is cordoned")
        return []
    if do == "job":
        _add_job(world, str(one.get("yaml") or ""), where, said)
        return []
    if do == "branch":
        said.append(f"branch {name(one.get('name'))} is in force")
        return []
    raise InputError(
        f"{str(do)[:40]!r} is not a change: write fault, recover, die, cordon, drain, job or branch", where=where
    )


def _node(world: World, node: str, where: str) -> Mapping[str, Any]:
    live = world.objects.get(ObjectKey("v1", "Node", "", node))
    if live is None:
        raise InputError(f"there is no node {node[:80]!r}", where=where)
    return live


def _in_maintenance(world: World, node: str, where: str, said: list[str]) -> None:
    """Declare the Isolation that the commands write: a drain by Belay, which moves gangs whole."""
    _node(world, node, where)
    document = Isolation.model_validate(yaml.safe_load(isolation_of(node)))
    kept = [item for item in world.desired.isolations if item.document.name != document.name]
    kept.append(Declared(document, Origin(_isolation_file(node))))
    isolations = tuple(sorted(kept, key=lambda item: item.document.name))
    world.desired = dataclasses.replace(world.desired, isolations=isolations)
    said.append(f"{node} is taken out by an Isolation")


def _isolation_file(node: str) -> str:
    return f"desired/maintenance-{node}.yaml"


def isolation_of(node: str) -> str:
    """The document that takes a node out for maintenance."""
    return (
        "apiVersion: belay.dev/v1alpha1\nkind: Isolation\n"
        f"metadata: {{name: maintenance-{node}}}\nspec: {{nodes: [{node}], reason: maintenance}}\n"
    )


def _add_job(world: World, text: str, where: str, said: list[str]) -> None:
    objects = objects_of(text.encode(), where)
    if len(objects) > MOST_OBJECTS:
        raise InputError(f"holds {len(objects)} objects; give at most {MOST_OBJECTS}", where=where)
    for body in objects:
        body["metadata"].setdefault("namespace", "default")
        for field in ("uid", "resourceVersion", "creationTimestamp"):
            body["metadata"].pop(field, None)
        world.put(body)
        said.append(f"{body['kind']} {body['metadata']['namespace']}/{body['metadata']['name']} is created")


def _explanations(outcome: Forecast) -> list[str]:
    found = []
    for job in outcome.jobs[:MOST_ACTIONS]:
        where = f" on {', '.join(list(job.nodes)[:4])}" if job.nodes else ""
        after = f" after {job.after:g} s" if job.after is not None else ""
        why = f": {job.reason}: {job.message}" if job.reason else ""
        out = f"; way out: {job.unblock}" if job.unblock else ""
        found.append(line(f"{job.kind} {job.namespace}/{job.name} is {job.outcome}{where}{after}{why}{out}"))
    for one in outcome.evicted[:MOST_ACTIONS]:
        found.append(
            line(f"pod {one.namespace}/{one.pod} leaves {one.node} after {one.after:g} s: {one.reason}: {one.message}")
        )
    if outcome.chip_hours_lost:
        found.append(f"{outcome.chip_hours_lost:g} chip-hours of work are lost")
    return found or ["no job is placed, moved or left waiting"]


def _maintenance_commands(node: str) -> list[dict[str, str]]:
    file = shlex.quote(_isolation_file(node))
    begin = f"cat > {file} <<'YAML'\n{isolation_of(node)}YAML\n"
    return [
        {
            "for": "drain",
            "text": f"{begin}git add {file} && git commit -m {shlex.quote(f'{node}: maintenance')} && git push",
            "note": "in the state repository; gangs move whole. Pods without NPUs stay, for kubectl drain",
        },
        {
            "for": "drain",
            "text": f"git rm {file} && git commit -m {shlex.quote(f'{node} is back')} && git push",
            "note": "ends it, and uncordons the node",
        },
    ]


def _commands(one: Mapping[str, Any]) -> list[dict[str, str]]:
    """What a person runs to do the same for real."""
    do, node = str(one.get("do")), shlex.quote(name(one.get("node")))
    chip = shlex.quote(f"{name(one.get('node'))}/{line(one.get('chip'), 40)}")
    code = shlex.quote(line(one.get("code"), 120))
    if do in ("fault", "recover"):
        clear = " --clear" if do == "recover" else f" {code}"
        return [
            {"for": do, "text": f"belay inject fault {chip}{clear}", "note": "in the sandbox only"},
            {"for": do, "text": f"belay explain chip {chip}", "note": "how the chip is now"},
        ]
    if do == "die":
        return [
            {"for": do, "text": f"belay inject node {node} not-ready", "note": "in the sandbox only"},
            {"for": do, "text": f"belay explain node {node}", "note": "how the node is now"},
        ]
    if do == "cordon":
        return [{"for": do, "text": f"kubectl cordon {node}", "note": ""}]
    if do == "drain":
        return _maintenance_commands(name(one.get("node")))
    if do == "branch":
        branch = name(one.get("name"))
        merged = f"git merge {shlex.quote(f'origin/{branch}')}"
        if REQUEST.fullmatch(branch):
            merged = f"git fetch origin {branch}/head && git merge FETCH_HEAD"
        return [{"for": do, "text": f"{merged} && git push", "note": "in the state repository"}]
    text = "git add desired/jobs/ && git commit -m 'Add a job' && git push"
    return [{"for": do, "text": text, "note": "save the YAML as a file in desired/jobs/ first"}]


__all__ = ["what_if"]
