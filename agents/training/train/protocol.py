"""What rank, node agent and coordinator say to each other: every kind of message, its fields, who sends it.

On the wire a message is a JSON object with its kind as ``t`` (see `frames`); a field with a default is left out while
it holds it. A rank speaks with the agent of its node only. What concerns the coordinator travels on inside `OfRank`,
and so does what the coordinator says to a rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, Final, Self

from belay.agents.training.train.frames import Message

_ON_THE_WIRE: Final = {
    "generation": "gen",
    "incarnation": "inc",
    "said": "m",
    "everyone": "all",
    "asks": "ask",
    "shards_of": "of",
    "number_used_once": "n",
}
"""Fields that have a shorter name on the wire."""


def _ints(value: Any) -> tuple[int, ...]:
    return tuple(int(number) for number in value)


def _optional(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


def _mapping(key: type, read: type) -> Callable[[Any], Any]:
    return lambda value: {key(name): read(held) for name, held in value.items()}


_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "int": int,
    "float": float,
    "bool": bool,
    "str": str,
    "int | None": _optional(int),
    "str | None": _optional(str),
    "bool | None": _optional(bool),
    "tuple[int, ...]": _ints,
    "tuple[float, ...]": lambda value: tuple(float(number) for number in value),
    "tuple[str, ...]": lambda value: tuple(str(text) for text in value),
    "tuple[tuple[Any, ...], ...]": lambda value: tuple(tuple(row) for row in value),
    "dict[str, int]": _mapping(str, int),
    "dict[int, int]": _mapping(int, int),
    "dict[int, str]": _mapping(int, str),
    "dict[int, str] | None": _optional(_mapping(int, str)),
    "dict[str, str]": _mapping(str, str),
    "tuple[Any, ...]": tuple,
    "Message": lambda value: value,
}
"""By a field's annotation: how its value is read. What cannot be one raises."""


@dataclass(frozen=True)
class Said:
    """A message. ``KIND`` is what it is called on the wire."""

    KIND: ClassVar[str]

    def message(self) -> Message:
        """The message as it goes over the wire."""
        message: Message = {"t": self.KIND}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.default is MISSING or value != field.default:
                message[_ON_THE_WIRE.get(field.name, field.name)] = _plain(value)
        return message

    @classmethod
    def read(cls, message: Message) -> Self:
        """The message that came over the wire. Raises ``ValueError`` when it cannot be read."""
        values: dict[str, Any] = {}
        try:
            for field in fields(cls):
                name = _ON_THE_WIRE.get(field.name, field.name)
                if name in message or field.default is MISSING:
                    values[field.name] = _READERS[str(field.type)](message[name])
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ValueError(f"{cls.KIND}: {error!r:.200}") from error
        return cls(**values)


def _plain(value: Any) -> Any:
    """A field as JSON has it: names of objects are texts."""
    if isinstance(value, dict):
        return {str(name): held for name, held in value.items()}
    return list(value) if isinstance(value, tuple | frozenset) else value


def kind_of(message: Any) -> str:
    """What a message is called. Raises ``ValueError`` for what is none."""
    if not isinstance(message, dict) or not isinstance(message.get("t"), str):
        raise ValueError(f"{message!r:.60} is not an object with a text 't'")
    return str(message["t"])


def _by_kind(*kinds: type[Said]) -> Mapping[str, type[Said]]:
    return {kind.KIND: kind for kind in kinds}


# -- a rank to the coordinator, inside OfRank


@dataclass(frozen=True)
class Store(Said):
    """A rank asks the store of its generation; values are the payload. ``id`` 0: it waits for no answer."""

    KIND = "store"
    generation: int
    id: int
    verb: str
    keys: tuple[str, ...]
    number: int = 0


@dataclass(frozen=True)
class Ready(Said):
    """A rank has left its training function. ``done``: the step of which it holds ``shard`` completely, -1: nothing;
    ``shard`` None: its model is not built yet; ``checkpoints``: it can load some; ``kept``: steps of which it has a
    copy; ``proven``: the newest one that it knows to be right."""

    KIND = "ready"
    generation: int
    done: int
    shard: str | None
    checkpoints: bool = False
    kept: tuple[int, ...] = ()
    proven: int = -1


@dataclass(frozen=True)
class Prepared(Said):
    """A rank was interrupted when its gradients of ``step`` were complete, and asks for a `CommitStep`."""

    KIND = "prepared"
    generation: int
    step: int


@dataclass(frozen=True)
class Sample(Said):
    """Checksums of what a rank holds after the first update of an entry. ``divides``: its script does the shares of
    ranks that are away."""

    KIND = "sample"
    generation: int
    done: int
    shard: str
    sums: dict[str, int]
    divides: bool | None = None


@dataclass(frozen=True)
class Digest(Said):
    """Checksums of a rank's weights and, now and then, of its whole state; ``costs`` in seconds, in the order of
    `pace.Costs`."""

    KIND = "digest"
    generation: int
    done: int
    shard: str
    weights: int
    costs: tuple[float, ...]
    whole: int | None = None


@dataclass(frozen=True)
class RecomputedSums(Said):
    """Checksums of gradients: those of a rank itself, and those that it computed for another (``found``)."""

    KIND = "recomputed"
    generation: int
    done: int
    weights: int
    own: int
    other: int
    found: int


@dataclass(frozen=True)
class ShardNamed(Said):
    """A rank has built its model, and says which shard it holds."""

    KIND = "shard"
    generation: int
    shard: str


@dataclass(frozen=True)
class Offered(Said):
    """The steps of the checkpoints that a rank can load; the answer to `OfferRequest`."""

    KIND = "offered"
    generation: int
    steps: tuple[int, ...]


@dataclass(frozen=True)
class Times(Said):
    """Seconds from joining a generation to its plan, from there to the group, and from there to the state."""

    KIND = "times"
    generation: int
    planned: float
    formed: float
    repaired: float


@dataclass(frozen=True)
class Entered(Said):
    """A rank is in its training function again."""

    KIND = "entered"
    generation: int


@dataclass(frozen=True)
class Broken(Said):
    """A collective failed in a rank."""

    KIND = "broken"
    generation: int
    text: str = ""


@dataclass(frozen=True)
class Finished(Said):
    """A rank's training function has returned after ``done`` steps; it waits for `LeaveFunction`."""

    KIND = "finished"
    generation: int
    done: int


@dataclass(frozen=True)
class Failed(Said):
    """The script raised an exception, and its process ends. ``final``: it would raise it again. Also read by the
    agent."""

    KIND = "failed"
    text: str = ""
    final: bool = False


@dataclass(frozen=True)
class Leaving(Said):
    """The script has ended with this exit code. Also read by the agent."""

    KIND = "leaving"
    code: int = 1


FROM_RANK: Final = _by_kind(
    Store, Ready, Prepared, Sample, Digest, RecomputedSums, ShardNamed, Offered, Times, Entered, Broken, Finished,
    Failed, Leaving,
)  # fmt: skip


def from_rank(message: Any) -> Said | None:
    """What a rank says to the coordinator; None for a kind that only newer ranks know. Raises ``ValueError``."""
    kind = FROM_RANK.get(kind_of(message))
    return None if kind is None else kind.read(message)


# -- a rank to the agent of its node


@dataclass(frozen=True)
class KeepOrders(Said):
    """Orders of DDP's buckets, as payload: a rank leaves them with its agent, which gives them to its successor."""

    KIND = "orders"


@dataclass(frozen=True)
class Waits(Said):
    """Where a rank's main thread is, the answer to `Look`. ``outside``: seconds that it waits for something else than
    its group; ``idle``: seconds that it waits on purpose."""

    KIND = "waits"
    text: str
    outside: float
    idle: float


# -- the agent to a rank of its node


@dataclass(frozen=True)
class Assign(Said):
    """A process becomes this rank. ``active``: the ranks of the generation, empty: all."""

    KIND = "assign"
    rank: int
    local_rank: int
    world: int
    incarnation: int
    generation: int
    address: str
    env: dict[str, str]
    active: tuple[int, ...] = ()


@dataclass(frozen=True)
class Shards(Said):
    """Which shard each rank of this node holds: for an agent that follows, when a rank dies meanwhile."""

    KIND = "shards"
    shards_of: dict[int, str]


@dataclass(frozen=True)
class Look(Said):
    """Say where your main thread is (`Waits`)."""

    KIND = "look"


# -- the coordinator to a rank, inside OfRank


@dataclass(frozen=True)
class RecoverOrder(Said):
    """Leave the training function: a generation begins. ``explained``: a lost process or node is the reason."""

    KIND = "recover"
    generation: int
    explained: bool
    active: tuple[int, ...] = ()


@dataclass(frozen=True)
class Plan(Said):
    """The step to go on from. ``donors``: who receives state → who gives it, by their numbers in the generation;
    ``checkpoint``: the others load it; ``back``: they take their copy of a proven step; ``pace``: see
    `NewPace`; ``sharded``: ranks hold different parts."""

    KIND = "plan"
    generation: int
    step: int
    donors: dict[int, int]
    checkpoint: bool
    back: bool
    pace: tuple[int, ...]
    sharded: bool


@dataclass(frozen=True)
class OfferRequest(Said):
    """In place of a plan: say which checkpoints you can load (`Offered`)."""

    KIND = "plan"
    generation: int
    asks: bool


@dataclass(frozen=True)
class NewPace(Said):
    """Steps between comparisons of what ranks hold, and between copies of it; the newest proven step; steps between
    those in which ranks compute for each other, and how often one of these was undecided."""

    KIND = "pace"
    pace: tuple[int, ...]


@dataclass(frozen=True)
class CommitStep(Said):
    """Whether to make the update of an interrupted step, as others have made it; the answer to `Prepared`."""

    KIND = "commit"
    generation: int
    go: bool


@dataclass(frozen=True)
class LeaveFunction(Said):
    """The training function may return. ``everyone``: all ranks of the job have finished. The agent repeats it."""

    KIND = "leave"
    everyone: bool


@dataclass(frozen=True)
class StoreAnswer(Said):
    """What the store says to request ``id``; values are the payload."""

    KIND = "answer"
    id: int
    number: int = 0
    error: str = ""


TO_RANK: Final = _by_kind(
    KeepOrders, Assign, Shards, Look, RecoverOrder, Plan, NewPace, CommitStep, LeaveFunction, StoreAnswer
)


def to_rank(message: Message) -> Said | None:
    """What the agent or the coordinator says to a rank; None for a kind that is not known. Raises ``ValueError``."""
    if kind_of(message) == Plan.KIND and message.get("ask"):
        return OfferRequest.read(message)
    kind = TO_RANK.get(kind_of(message))
    return None if kind is None else kind.read(message)


# -- between an agent and the coordinator


@dataclass(frozen=True)
class OfRank(Said):
    """Something that a rank says to the coordinator, or the coordinator to a rank; the agent passes it on."""

    KIND = "rank"
    rank: int
    incarnation: int
    said: Message


@dataclass(frozen=True)
class Join(Said):
    """An agent joins, with the states of the ranks that it runs already, and the shards that they hold."""

    KIND = "join"
    version: int
    job: str
    nodes: int
    nproc: int
    node: int
    living: tuple[Any, ...] = ()
    shards: dict[int, str] | None = None


@dataclass(frozen=True)
class Progress(Said):
    """An agent says how far its ranks are. ``steps``: rank, incarnation, finished steps; ``firsts``: rank, incarnation,
    generation and for how many seconds its first step has been finished; ``waits``: rank, incarnation, where it is,
    and seconds of idling; ``median``: seconds of a step."""

    KIND = "progress"
    steps: tuple[tuple[Any, ...], ...]
    median: float = 0.0
    firsts: tuple[tuple[Any, ...], ...] = ()
    waits: tuple[tuple[Any, ...], ...] = ()
    working: bool = False


@dataclass(frozen=True)
class Lost(Said):
    """A process of an agent has ended, or is not there."""

    KIND = "lost"
    rank: int
    incarnation: int
    why: str


@dataclass(frozen=True)
class Start(Said):
    """The coordinator wants a process for a rank. ``active`` as in `Assign`."""

    KIND = "start"
    rank: int
    incarnation: int
    generation: int
    active: tuple[int, ...] = ()


@dataclass(frozen=True)
class End(Said):
    """The coordinator ends a process."""

    KIND = "end"
    rank: int
    incarnation: int
    why: str


@dataclass(frozen=True)
class AllFinished(Said):
    """All ranks of the job have finished: for a node whose own have left before."""

    KIND = "finished"


@dataclass(frozen=True)
class JobEnded(Said):
    """The last word of a coordinator: the exit code of the job, and why."""

    KIND = "job"
    code: int
    text: str


FROM_COORDINATOR: Final = _by_kind(Start, End, OfRank, AllFinished, JobEnded)


def from_coordinator(message: Message) -> Said | None:
    """What the coordinator says to an agent; None for a kind that is not known. Raises ``ValueError``."""
    kind = FROM_COORDINATOR.get(kind_of(message))
    return None if kind is None else kind.read(message)


# -- connections between nodes, before one has joined; see proof and peers


@dataclass(frozen=True)
class Hello(Said):
    """A node that has a secret begins with a number."""

    KIND = "hello"
    number_used_once: str


@dataclass(frozen=True)
class Challenge(Said):
    """The coordinator proves that it knows the secret, and asks for the same."""

    KIND = "challenge"
    number_used_once: str
    proof: str


@dataclass(frozen=True)
class Proven(Said):
    """A node proves that it knows the secret."""

    KIND = "proof"
    proof: str


@dataclass(frozen=True)
class Refused(Said):
    """A node is not taken. ``field``: what of its job differs."""

    KIND = "refused"
    text: str = ""
    field: str = ""


@dataclass(frozen=True)
class Away(Said):
    """The node that was asked to take a join does not lead."""

    KIND = "away"


@dataclass(frozen=True)
class Ping(Said):
    """Sent by both ends each half second."""

    KIND = "ping"


WHO: Final = "who"
"""Who leads? With the claim of the node that asks; answered by a `CLAIM`. Their fields: `peers.claim_message`."""
CLAIM: Final = "claim"
