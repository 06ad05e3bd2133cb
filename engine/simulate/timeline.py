"""What happens to a simulated cluster, as people write it: a list of events in order of time.

- {at: 10s, node: node-1, chip: 3, code: "80C98001"}                a chip fault occurs (level: the policies' table)
- {at: 5m, node: node-1, chip: 3, code: "80C98001", assertion: recover}
- {at: 1m, node: node-2, state: not-ready}                          or ready, gone, back, silent, speaking
- {at: 2m, node: node-3, hardware: SeparateFault}                   NodeD's report; Healthy takes it back
- {at: 2m, node: node-4, switch: Separate}                          the switch's; NotHandle takes it back
- {at: 3m, node: node-1, resetFails: 2}                             the next two resets fail
- {at: 4m, pod: train/job-0, phase: Failed}                         or Succeeded, Deleted
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, ValidationError, model_validator

from engine.documents import Desired
from engine.documents.scalars import Code, Count, Document, Duration, Name
from engine.errors import InputError
from engine.load import yaml12
from engine.load.wording import problems_of
from engine.model.diagnostics import ObjectKey
from engine.model.faults import CARD, NETWORK, PUBLIC, code_key
from engine.model.levels import SEPARATE
from engine.simulate.world import World

MAX_BYTES: Final = 16 * 1024 * 1024
MAX_EVENTS: Final = 100_000


class Event(Document):
    """One thing that happens ``at`` seconds after the start of a simulation."""

    at: Duration
    node: Name | None = None
    chip: Count | None = None
    code: Code | None = None
    assertion: Literal["occur", "recover"] = "occur"
    level: str | None = None
    state: Literal["ready", "not-ready", "gone", "back", "silent", "speaking"] | None = None
    hardware: Literal["Healthy", "NotHandleFault", "PreSeparateFault", "SeparateFault"] | None = None
    switch: Literal["NotHandle", "SubHealthFault", "RestartRequest", "PreSeparate", "Separate"] | None = None
    reset_fails: Count | None = None
    pod: str | None = Field(default=None, pattern=r"^[a-z0-9.-]+/[a-z0-9.-]+$")
    phase: Literal["Failed", "Succeeded", "Deleted"] | None = None

    @model_validator(mode="after")
    def _one_thing(self) -> Event:
        things = [self.code, self.state, self.hardware, self.switch, self.reset_fails, self.phase]
        if sum(thing is not None for thing in things) != 1:
            raise ValueError("give exactly one of code, state, hardware, switch, resetFails and phase")
        if (self.phase is not None) != (self.pod is not None):
            raise ValueError("phase is that of a pod: give pod and phase together")
        if self.pod is None and self.node is None:
            raise ValueError("give the node on which it happens")
        if (self.code is not None) != (self.chip is not None):
            raise ValueError("a code occurs on a chip: give node, chip and code together")
        return self

    def __str__(self) -> str:
        if self.code is not None:
            level = f" as {self.level}" if self.level else ""
            return (
                f"{self.code} {'occurs' if self.assertion == 'occur' else 'recovers'} on {self.node}/{self.chip}{level}"
            )
        if self.phase is not None:
            return f"pod {self.pod} is {self.phase}"
        if self.reset_fails is not None:
            return f"the next {self.reset_fails} resets on {self.node} fail"
        word = self.state or (f"hardware {self.hardware}" if self.hardware else f"switch {self.switch}")
        return f"{self.node}: {word}"


def read_timeline(path: str) -> list[Event]:
    """The events of a file, in order of time.

    Raises:
        InputError: not readable, too big, or wrong somewhere; the message names the line and column.
    """
    try:
        with Path(path).open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=path) from error
    if len(data) > MAX_BYTES:
        raise InputError(f"is larger than {MAX_BYTES >> 20} MiB", where=path)
    try:
        roots = yaml12.compose(yaml12.json_text(data) if path.endswith(".json") else data)
        body, faults = yaml12.build(roots[0], yaml12.may_alias(data)) if roots else (None, [])
    except yaml12.Fault as fault:
        raise InputError(fault.message, where=f"{path}:{fault.line}:{fault.column}") from fault
    if faults:
        raise InputError(faults[0].message, where=f"{path}:{faults[0].line}:{faults[0].column}")
    if not isinstance(body, list) or not body:
        raise InputError(
            "is no list of events", where=path, hint='Such as [{at: 10s, node: n, chip: 0, code: "80C98001"}].'
        )
    if len(body) > MAX_EVENTS:
        raise InputError(f"has {len(body)} events, the limit is {MAX_EVENTS}", where=path)
    events: list[Event] = []
    for index, item in enumerate(body):
        try:
            event = Event.model_validate(item)
        except ValidationError as error:
            problem = problems_of(error, Event)[0]
            line, column, field = yaml12.locate(roots[0], (index, *problem.path), problem.at_key)
            raise InputError(f"{field}: {problem.message}", where=f"{path}:{line}:{column}") from error
        if events and event.at < events[-1].at:
            line, column, _ = yaml12.locate(roots[0], (index, "at"))
            raise InputError("the events must be in order of time", where=f"{path}:{line}:{column}")
        events.append(event)
    return events


def check(events: list[Event], world: World, path: str) -> None:
    """Every node, chip and pod that an event names must exist.

    Raises:
        InputError: one does not.
    """
    pods = {f"{key.namespace}/{key.name}" for key in world.objects if key.kind == "Pod"}
    for number, event in enumerate(events, start=1):
        where = f"{path}, event {number}"
        if event.node is not None and event.node not in world.nodes:
            known = ", ".join(sorted(world.nodes)[:5])
            raise InputError(
                f"no node {event.node!r} with a good device report", where=where, hint=f"There are {known}."
            )
        if event.node is not None and event.chip is not None and event.chip not in world.nodes[event.node].ids:
            chips = ", ".join(map(str, world.nodes[event.node].ids))
            raise InputError(f"node {event.node} has no chip {event.chip}", where=where, hint=f"Its chips are {chips}.")
        if event.pod is not None and event.pod not in pods and not world.desired.manifests:
            raise InputError(f"there is no pod {event.pod}", where=where)


def happen(world: World, event: Event) -> None:
    """Let an event happen to the world; what is already so stays."""
    if event.pod is not None:
        _pod(world, event)
        return
    server = world.nodes[event.node or ""]
    if event.code is not None:
        chip, code = event.chip or 0, event.code.upper()
        kind, level = _judged(world.desired, code)
        codes = server.plane(kind)
        if event.assertion == "occur":
            codes.setdefault(chip, {})[code] = (round(world.now * 1000), event.level or level)
        else:
            codes.get(chip, {}).pop(code, None)
            if not codes.get(chip):
                codes.pop(chip, None)
        if not server.silent:
            world.report(server)
    elif event.state is not None:
        _state(world, event)
    elif event.hardware is not None:
        world.hardware(server, "" if event.hardware == "Healthy" else event.hardware)
    elif event.switch is not None:
        server.switch = "" if event.switch == "NotHandle" else event.switch
        world.report(server)
    elif event.reset_fails is not None:
        server.reset_fails = event.reset_fails


def _state(world: World, event: Event) -> None:
    server = world.nodes[event.node or ""]
    match event.state:
        case "ready" | "not-ready":
            world.readiness(server, event.state == "ready")
        case "gone":
            world.remove(server)
        case "back":
            world.restore(server)
        case "silent" | "speaking":
            server.silent = event.state == "silent"


def _pod(world: World, event: Event) -> None:
    namespace, _, name = (event.pod or "").partition("/")
    key = ObjectKey("v1", "Pod", namespace, name)
    live = world.objects.get(key)
    if live is None:
        return
    if event.phase == "Deleted":
        world.evict(key, 0)
        return
    body = copy.deepcopy(live)
    code = 0 if event.phase == "Succeeded" else 1
    status: dict[str, Any] = body.setdefault("status", {})
    status["phase"] = event.phase
    status["containerStatuses"] = [
        {"name": c["name"], "ready": False, "restartCount": 0, "state": {"terminated": {"exitCode": code}}}
        for c in body["spec"].get("containers") or ()
    ]
    world.put(body)


def _judged(desired: Desired, code: str) -> tuple[str, str]:
    """The fault type under which a device plugin reports a code, and the level of the shipped tables."""
    table, public = desired.tables.get("chip"), desired.tables.get("public")
    if table is not None and (level := table.level_of(code)) is not None:
        network = any(code_key(k) == code_key(code) and d.plane is not None for k, d in table.details.items())
        return (NETWORK if network else CARD), level
    if public is not None and (level := public.level_of(code)) is not None:
        return PUBLIC, level
    return CARD, SEPARATE
