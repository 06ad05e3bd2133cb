"""The data of one job's recovery: its conversation, the facts and inputs it reads, the effects it requests.

A `Conversation` is kept as JSON in the cluster, so that a server that takes over resumes it where it was.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from belay.engine.model.quantities import whole_number
from belay.engine.model.recovery.protocol import NORMAL, RESCHEDULE_LIMIT, RETRY_TYPES, Code, RecoveryEvent, State

MAX_RANKS = 100_000
MAX_LOG = 64


class FaultyRank(msgspec.Struct, frozen=True, array_like=True):
    """One faulty rank: its number as text, and the kind of fault (`0` on-chip memory, `1` other, `2` network)."""

    rank: str
    kind: str

    @property
    def retryable(self) -> bool:
        """Whether a step retry may cure the fault."""
        return self.kind in RETRY_TYPES


def rank_numbers(ranks: Iterable[FaultyRank]) -> list[int]:
    """The numbers of ranks, without those that are none."""
    numbers = (whole_number(one.rank) for one in ranks)
    return [number for number in numbers if number is not None]


class JobFacts(msgspec.Struct, frozen=True):
    """The current facts about the job in the cluster. Times are seconds."""

    configured: tuple[str, ...] = ()
    sub_health: str = "ignore"
    pod_rescheduling: bool = False
    job_rescheduling: bool = False
    platform: str | None = None  # None: no platform takes part; "": it has not decided
    confirm_fault: str = ""
    result_fault: str = ""
    rank_table_ready: str | None = None
    exists: bool = True
    running: bool = False
    replaced: bool = False  # every pod of a faulty rank was replaced and runs
    changed: tuple[str, ...] = ()  # numbers of those pods that were replaced since it began
    health: str = "UnHealthy"
    framework: str = "pytorch"
    devices_per_pod: int = 8
    wait_reschedule: int = RESCHEDULE_LIMIT
    mindio_wait: int | None = None
    in_place: bool = False  # every faulty pod has only faults that restarting its processes cures
    in_place_clear: bool = True  # those faults are gone from the reports
    rank_zero_faulty: bool = False
    fault_pods: tuple[str, ...] = ()
    route_failed: bool = False
    super_pod: bool = False  # its nodes are in A3 super pods, whose nodes release what a faulty chip holds
    hot_reset: bool = False  # the reset ConfigMap shows a chip being reset
    backup_running: bool = False
    old_pod_gone: bool = False
    nic_switched: bool = False
    paused: bool = False  # label `process-recover-enable` is `pause`
    codes: tuple[str, ...] = ()  # of the hardware faults on the ranks of this conversation
    accounts: str = ""  # summaries of earlier conversations (`summary.KEY`)


class Operation(msgspec.Struct, frozen=True):
    """A link switch (`nic`) or stress test (`stress`).

    ``request`` is JSON, ``result`` a text; ``nodes`` were found faulty, ``tested`` are under test.
    """

    kind: str
    request: str = ""
    result: str = ""
    nodes: tuple[str, ...] = ()
    tested: tuple[str, ...] = ()


class StepRecord(msgspec.Struct, frozen=True, array_like=True):
    """One step of the story: time (Unix ms), event, state entered, code."""

    at: int
    event: str
    state: str
    code: int = 0


class Report(msgspec.Struct, frozen=True):
    """A report of the client that no handler has taken yet."""

    code: int = 0
    message: str = ""
    strategy: str = ""
    strategies: tuple[str, ...] = ()
    ranks: tuple[FaultyRank, ...] = ()
    isolate: tuple[str, ...] = ()


# -- inputs


class Tick(msgspec.Struct, frozen=True, tag="tick"):
    """Time passed, or the facts changed."""


class Faults(msgspec.Struct, frozen=True, tag="faults"):
    """Faulty ranks; ``software`` when the training processes reported them."""

    ranks: tuple[FaultyRank, ...]
    software: bool = False


class SubHealthy(msgspec.Struct, frozen=True, tag="sub-healthy"):
    """A pod on a sub-healthy chip must move: its name and ranks."""

    pod: str
    ranks: tuple[FaultyRank, ...]
    pods: int = 1
    rank_zero: bool = False


class Sent(msgspec.Struct, frozen=True, tag="sent"):
    """The pending signal was delivered, or failed with ``code``."""

    ok: bool
    code: int = 0


class Written(msgspec.Struct, frozen=True, tag="written"):
    """The pending write succeeded or failed."""

    ok: bool


class StopComplete(msgspec.Struct, frozen=True, tag="stop"):
    """A client's ReportStopComplete: its processes have stopped."""

    report: Report


class Offered(msgspec.Struct, frozen=True, tag="offer"):
    """A client's ReportRecoverStrategy: the strategies that its processes offer."""

    report: Report


class Done(msgspec.Struct, frozen=True, tag="status"):
    """A client's ReportRecoverStatus: the result of the strategy."""

    report: Report


class Start(msgspec.Struct, frozen=True, tag="start"):
    """A valid request for an operation."""

    operation: Operation


class Replied(msgspec.Struct, frozen=True, tag="reply"):
    """The training processes answered an operation: code 0 or an error, the text of the results, nodes to isolate."""

    report: Report
    nodes: tuple[str, ...] = ()


Input = Tick | Faults | SubHealthy | Sent | Written | StopComplete | Offered | Done | Start | Replied


# -- effects


class Signal(msgspec.Struct, frozen=True, tag="signal"):
    """A ProcessManageSignal to every subscriber of the job; answer with `Sent` when ``answer`` is set."""

    kind: str
    actions: tuple[str, ...] = ()
    ranks: tuple[FaultyRank, ...] = ()
    change: str = ""
    timeout: int = 0
    nodes: tuple[str, ...] = ()
    extra: str = ""
    uuid: str = ""
    answer: bool = True


class NotifyOperation(msgspec.Struct, frozen=True, tag="operation"):
    """Hand an operation's ranks to its subscribers; answer with `Sent`."""

    kind: str
    request: str


class Reset(msgspec.Struct, frozen=True, tag="reset"):
    """Write the job's reset ConfigMap (`flush`, `faults`, `restart`, `clear`); answer with `Written` if ``answer``."""

    operation: str
    ranks: tuple[str, ...] = ()
    restart_process: bool = False
    answer: bool = True


class Label(msgspec.Struct, frozen=True, tag="label"):
    """Set a label of the PodGroup; answer with `Written`."""

    key: str
    value: str


class Annotate(msgspec.Struct, frozen=True, tag="annotate"):
    """Set an annotation of the PodGroup; answer with `Written` if ``answer``."""

    key: str
    value: str
    answer: bool = False


class MarkPods(msgspec.Struct, frozen=True, tag="pods"):
    """Label and annotate the pods of ranks, or one pod by name; a value of "" removes it."""

    ranks: tuple[str, ...] = ()
    pod: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Degrade(msgspec.Struct, frozen=True, tag="degrade"):
    """Hot switch failed: remove its annotations and delete the backup of ``pod``."""

    pod: str


class IsolateNodes(msgspec.Struct, frozen=True, tag="isolate"):
    """A stress test found a fault: annotate the nodes `NodeHealthyStatus=UnHealthy`."""

    nodes: tuple[str, ...]


class OperationResult(msgspec.Struct, frozen=True, tag="result"):
    """Report the result of an operation to its requester."""

    kind: str
    text: str


class Release(msgspec.Struct, frozen=True, tag="release"):
    """Have the other nodes of a super-pod job release what the chips of faulty ranks hold; ``clear`` withdraws that.

    Answer with `Written` if ``answer``: whether there was anything to release.
    """

    ranks: tuple[str, ...] = ()
    clear: bool = False
    answer: bool = True


Effect = (
    Signal | NotifyOperation | Reset | Label | Annotate | MarkPods | Degrade | IsolateNodes | OperationResult | Release
)


# -- the conversation


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """The recovery of one job. Times are milliseconds since 1970."""

    job: str
    state: State = State.INIT
    phase: str = ""
    since: int = 0
    deadline: int | None = None
    uuid: str = ""
    awaiting: str = ""  # "" | "sent" | "written": the outcome that is due
    signal: str = ""  # event raised by the delivery of the pending signal
    pending: Effect | None = None  # the effect without an outcome; a server that takes over repeats it
    said: Signal | None = None  # the last signal that was handed to a connection
    ranks: tuple[FaultyRank, ...] = ()
    seen: tuple[FaultyRank, ...] = ()  # faults that were handled, so that they start nothing again
    late: tuple[FaultyRank, ...] = ()  # those that came after the processes received their strategy
    undone: tuple[FaultyRank, ...] = ()  # those whose conversation was cut off before they were handled
    paused: int | None = None  # when this service set label `process-recover-enable` to `pause`, until it is `on` again
    agent: tuple[str, ...] = ()
    chosen: str = ""
    in_place: bool = False
    in_place_failed: bool = False  # the faults stayed, so that another strategy was decided
    last: str = ""  # strategy of the last result
    last_code: int = 0
    isolate: tuple[str, ...] = ()
    pre_exit: int | None = None
    stop: Report | None = None
    offer: Report | None = None
    status: Report | None = None
    operation: Operation | None = None
    reply: Report | None = None
    hot_pod: str = ""
    degraded: bool = False
    left: tuple[str, ...] = ()  # numbers of the pods that were signalled to leave
    released: bool = False  # the other nodes release what the faulty chips hold
    retried: tuple[tuple[int, str], ...] = ()  # when the job reported step retries (ms), and on which ranks
    codes: tuple[str, ...] = ()  # of the faults behind it
    story: tuple[StepRecord, ...] = ()
    code: int = 0

    @property
    def normal(self) -> tuple[FaultyRank, ...]:
        """Faults that no step retry cures."""
        return tuple(rank for rank in self.ranks if not rank.retryable)


class Transition(msgspec.Struct, frozen=True):
    """The result of one input: the next conversation, the effects in order, the status code for the sender.

    ``busy``: the slot of the report is taken; send it again after the conversation has moved on.
    """

    conversation: Conversation
    effects: tuple[Effect, ...] = ()
    code: int = Code.OK
    busy: bool = False


def merged(old: tuple[FaultyRank, ...], new: tuple[FaultyRank, ...]) -> tuple[FaultyRank, ...]:
    """Both sets of faults, one entry per rank and kind; a normal fault of a rank replaces its retryable ones."""
    kinds: dict[str, set[str]] = {}
    for rank in (*old, *new):
        kinds.setdefault(rank.rank, set()).add(rank.kind)
    found = []
    for number in sorted(kinds, key=lambda text: (len(text), text)):
        for kind in [NORMAL] if NORMAL in kinds[number] else sorted(kinds[number]):
            found.append(FaultyRank(number, kind))
    return tuple(found[:MAX_RANKS])


def with_step(
    story: tuple[StepRecord, ...], now: int, event: RecoveryEvent | str, state: State, code: int
) -> tuple[StepRecord, ...]:
    """The story with one more step; the oldest steps are dropped."""
    return (*story, StepRecord(now, str(event), state.value, code))[-MAX_LOG:]


__all__ = [
    "Annotate", "Conversation", "Degrade", "Done", "Effect", "Faults", "FaultyRank", "Input", "IsolateNodes",
    "JobFacts", "Label", "MarkPods", "NotifyOperation", "Offered", "Operation", "OperationResult", "Release", "Replied",
    "Report", "Reset", "Sent", "Signal", "Start", "StepRecord", "StopComplete", "SubHealthy", "Tick", "Transition",
    "Written", "merged", "with_step",
]  # fmt: skip
