"""Events of a simulated cluster as users write them, in order of time.

- {at: 10s, node: node-1, chip: 3, code: "80C98001"}                a chip fault occurs (level: the policies' table)
- {at: 5m, node: node-1, chip: 3, code: "80C98001", assertion: recover}
- {at: 1m, node: node-2, state: not-ready}                          or ready, gone, back, silent, speaking
- {at: 2m, node: node-3, hardware: SeparateFault}                   NodeD's report; Healthy clears it
- {at: 2m, node: node-4, switch: Separate}                          the switch's; NotHandle clears it
- {at: 3m, node: node-1, resetFails: 2}                             the next two resets fail
- {at: 4m, pod: train/job-0, phase: Failed}                         or Succeeded, Deleted

Every timeline of `belay inject --timeline` is valid too (deploy/samples/faults-timeline.yaml): the list may be under
the key ``timeline``, and the kinds network, subHealth, drop, hang, ping, storage, public, hardware and switch by code,
ready and silent have the same meaning.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from belay.engine.documents.scalars import Code, Count, Document, Duration, Name
from belay.engine.errors import InputError
from belay.engine.load import yaml12
from belay.engine.load.validation_errors import problems_of
from belay.engine.model.levels import (
    NODE_LEVELS,
    SWITCH_LEVELS,
)
from belay.engine.simulate import surroundings
from belay.engine.simulate.world import World

MAX_BYTES: Final = 16 * 1024 * 1024
MAX_EVENTS: Final = 100_000


#: Kinds of events; each event has exactly one.
KINDS: Final = (
    "code", "network", "subHealth", "drop", "hang", "ping", "switch", "hardware", "storage", "ready", "silent",
    "state", "resetFails", "public",
)  # fmt: skip
_ON_CHIP: Final = ("code", "network", "subHealth", "drop", "hang", "ping")
_TAKES: Final = {
    "assertion": ("code", "network", "switch", "hardware", "storage", "public"),
    "level": ("code", "network"), "switchChip": ("switch",), "switchPort": ("switch",), "device": ("hardware",),
    "deviceId": ("hardware",), "part": ("storage",), "sender": ("public",), "faultId": ("public",),
    "chips": ("public",), "exit": ("phase",),
}  # fmt: skip
#: Seconds for which an event with assertion ``once`` is reported.
_ONCE_S: Final = 1.0
#: Levels of a node's board that an event may name; the first means healthy.
BOARD_LEVELS: Final = ("Healthy", *NODE_LEVELS)
_NODE_CODE: Final = r"[0-9A-Za-z]{8}"
_SWITCH_CODE: Final = r"\[[0-9A-Za-z_.-]+(,[0-9A-Za-z_.-]+){3}\]"

Moment = Annotated[Duration, BeforeValidator(lambda value: "0s" if value == 0 and type(value) is int else value)]
Small = Annotated[int, Field(ge=0, le=65_535)]


class Event(Document):
    """One event, ``at`` seconds after the start of a simulation."""

    at: Moment
    node: Name | None = None
    chip: Count | None = None
    code: Code | None = None
    network: Code | None = None
    sub_health: bool | None = None
    drop: bool | None = None
    hang: bool | None = None
    ping: Literal["ok", "lost", "unknown"] | None = None
    assertion: Literal["occur", "recover", "once"] = "occur"
    level: str | None = None
    state: Literal["ready", "not-ready", "gone", "back", "silent", "speaking"] | None = None
    ready: bool | None = None
    silent: bool | None = None
    hardware: str | None = Field(default=None, pattern=rf"^({'|'.join(BOARD_LEVELS)}|{_NODE_CODE})$")
    device: str = Field(default="CPU", pattern=r"^[A-Za-z0-9 ./&-]{1,64}$")
    device_id: Small = 1
    switch: str | None = Field(default=None, pattern=rf"^({'|'.join(SWITCH_LEVELS)}|{_SWITCH_CODE})$")
    switch_chip: Small = 0
    switch_port: Small = 0
    storage: Literal["dpc", "dtfs"] | None = None
    part: Literal["process", "memory"] = "process"
    public: str | None = Field(default=None, pattern=r"^[0-9A-Za-z]{9}$")
    sender: str = Field(default="CCAE", pattern=r"^\S{1,64}$")
    fault_id: str = Field(default="", pattern=r"^[a-zA-Z0-9\-_.]{8,128}$")
    chips: Annotated[list[Annotated[int, Field(ge=0, le=31)]], Field(min_length=1, max_length=32)] = Field(
        default_factory=lambda: [0]
    )
    reset_fails: Count | None = None
    pod: str | None = Field(default=None, pattern=r"^[a-z0-9.-]+/[a-z0-9.-]+$")
    phase: Literal["Failed", "Succeeded", "Deleted"] | None = None
    exit: Annotated[int, Field(ge=1, le=255)] = 1

    @property
    def what(self) -> str:
        """The kind of the event, a name of :data:`KINDS`, or ``phase``."""
        return "phase" if self.pod is not None else next(k for k in KINDS if self._said(k) is not None)

    def _said(self, kind: str) -> Any:
        return getattr(self, {"subHealth": "sub_health", "resetFails": "reset_fails"}.get(kind, kind))

    @model_validator(mode="after")
    def _one_thing(self) -> Event:
        kinds = [kind for kind in KINDS if self._said(kind) is not None]
        if len(kinds) + (self.pod is not None) != 1:
            raise ValueError(f"give exactly one of {', '.join(KINDS)} and pod")
        if self.phase is not None and self.pod is None:
            raise ValueError("phase is that of a pod: give pod and phase together")
        if self.pod is None and self.node is None:
            raise ValueError("give the node on which it happens")
        what = self.what
        if (what in _ON_CHIP) != (self.chip is not None):
            which = "a code occurs" if what == "code" else f"{what} is"
            raise ValueError(
                f"{which} on a chip: give node, chip and {what} together"
                if what in _ON_CHIP
                else f"{what} takes no chip: leave it out"
            )
        given = {to_alias(name) for name in self.model_fields_set}
        for field, kinds_of in _TAKES.items():
            if field in given and what not in kinds_of:
                raise ValueError(f"{what} takes no {field}: it belongs to {', '.join(kinds_of)}")
        if self.assertion == "once" and what not in ("code", "public"):
            raise ValueError(f"{what} occurs or recovers: only codes and public faults happen once")
        if self.exit != 1 and self.phase not in (None, "Failed"):
            raise ValueError("exit is the code of a failed pod: leave phase out")
        return self

    def __str__(self) -> str:
        what, verb = self.what, {"occur": "occurs", "recover": "recovers", "once": "happens once"}[self.assertion]
        level = f" as {self.level}" if self.level else ""
        if what in ("code", "network"):
            return f"{self.code or self.network} {verb} on {self.node}/{self.chip}{level}"
        if what in ("subHealth", "drop", "hang", "ping"):
            said = self._said(what)
            word = said if isinstance(said, str) else "begins" if said else "ends"
            return f"{what} {word} on {self.node}/{self.chip}"
        if what == "phase":
            return f"pod {self.pod} is {self.phase or 'Failed'}"
        if what == "resetFails":
            return f"the next {self.reset_fails} resets on {self.node} fail"
        if what in ("state", "ready", "silent"):
            return f"{self.node}: {state_of(self)}"
        if what == "public":
            return f"{self.node}: public fault {self.public} of {self.sender} {verb}"
        if what == "storage":
            return f"{self.node}: {self.storage} {self.part} error {verb}"
        said = self._said(what)
        return f"{self.node}: {what} {said}" + ("" if said in (*BOARD_LEVELS, *SWITCH_LEVELS) else f" {verb}")


def to_alias(name: str) -> str:
    """A field's name in the file."""
    return Event.model_fields[name].alias or name


def state_of(event: Event) -> str:
    """The value of ``state`` that an event has or abbreviates."""
    if event.ready is not None:
        return "ready" if event.ready else "not-ready"
    if event.silent is not None:
        return "silent" if event.silent else "speaking"
    return event.state or "ready"


def read_timeline(path: str) -> list[Event]:
    """The events of a file, in order of time.

    Raises:
        InputError: not readable, too large or invalid; the message names the line and column.
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
    except yaml12.YAMLProblem as fault:
        raise InputError(fault.message, where=f"{path}:{fault.line}:{fault.column}") from fault
    if faults:
        raise InputError(faults[0].message, where=f"{path}:{faults[0].line}:{faults[0].column}")
    above: tuple[str | int, ...] = ()
    if isinstance(body, dict) and list(body) == ["timeline"]:
        body, above = body["timeline"], ("timeline",)
    if not isinstance(body, list) or not body:
        raise InputError(
            "is not a list of events", where=path, hint='Such as [{at: 10s, node: n, chip: 0, code: "80C98001"}].'
        )
    if len(body) > MAX_EVENTS:
        raise InputError(f"has {len(body)} events, the limit is {MAX_EVENTS}", where=path)
    events: list[Event] = []
    for index, item in enumerate(body):
        try:
            event = Event.model_validate(item)
        except ValidationError as error:
            problem = problems_of(error, Event)[0]
            line, column, field = yaml12.locate(roots[0], (*above, index, *problem.path), problem.at_key)
            raise InputError(f"{field}: {problem.message}", where=f"{path}:{line}:{column}") from error
        if events and event.at < events[-1].at:
            line, column, _ = yaml12.locate(roots[0], (*above, index, "at"))
            raise InputError("the events must be in order of time", where=f"{path}:{line}:{column}")
        events.append(event)
    return events


def check(events: list[Event], world: World, path: str) -> None:
    """Check that every node, chip and pod that an event names exists.

    Raises:
        InputError: one does not exist.
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


def due(events: list[Event], world: World) -> list[Event]:
    """The events and those that follow later: ``once`` events end, and hangs and memory errors of storage clients are
    reported only after some time.
    """
    out: list[tuple[float, int, Event]] = []
    for index, event in enumerate(events):
        out.append((event.at, index, event))
        later = _later(event, world)
        if later is None:
            continue
        ends = next((e.at for e in events[index + 1 :] if _same(e, event)), None)
        if ends is None or ends > later.at:
            out.append((later.at, index, later))
    return [event for _, _, event in sorted(out, key=lambda row: row[:2])]


def _later(event: Event, world: World) -> Event | None:
    """The event that follows from an event unless the next one of its kind comes first."""
    if event.code is not None and event.assertion == "once":
        return event.model_copy(update={"at": event.at + _ONCE_S, "assertion": "recover"})
    if event.hang:
        at = event.at + surroundings.HANG_S
        return event.model_copy(update={"at": at, "hang": None, "code": surroundings.HANG_CODE})
    if event.storage is not None and event.part == "memory" and event.assertion == "occur":
        code, at = surroundings.STORAGE_CODES[event.storage, event.part], event.at + surroundings.STORAGE_MEMORY_S
        chips = list(world.nodes[event.node or ""].ids[:32])
        message = {"public": code, "sender": f"{event.storage}Storage", "chips": chips}
        return event.model_copy(update={"at": at, "storage": None, **message})
    return None


def _same(one: Event, other: Event) -> bool:
    """Whether two events concern the same fault."""
    mine = (one.what, one.node, one.chip, one.code, one.storage, one.part)
    return mine == (other.what, other.node, other.chip, other.code, other.storage, other.part)
