"""The state of the manager, and its commands. Plain data.

Plugins read `JobState` and return commands; there is no clock, socket or thread here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from belay.agents.training.clusterd import constants


@dataclass(frozen=True)
class JobSettings:
    """The job given to `init_taskd_manager`. ``recovery``: PROCESS_RECOVER is on."""

    job: str = ""
    nodes: int = 1
    per_node: int = 1
    recovery: bool = False

    @property
    def world(self) -> int:
        """Training processes of the job."""
        return self.nodes * self.per_node

    def node(self, rank: int) -> int:
        """The pod of a global rank."""
        return rank // self.per_node


@dataclass(frozen=True)
class Signal:
    """A ProcessManageSignal of ClusterD. ``serial`` is the manager's own number: a repeated signal keeps it."""

    uuid: str
    kind: str
    actions: tuple[str, ...] = ()
    faults: Mapping[int, int] = field(default_factory=dict)
    strategy: str = ""
    timeout: int = 0
    nodes: tuple[int, ...] = ()
    extra: str = ""
    serial: int = 0

    def same(self, other: Signal | None) -> bool:
        """Whether the other signal has the same content: a restarted server repeats unconfirmed signals."""
        return other is not None and (
            (self.uuid, self.kind, self.actions, self.faults, self.strategy, self.timeout, self.nodes, self.extra)
            == (other.uuid, other.kind, other.actions, other.faults, other.strategy, other.timeout, other.nodes,
                other.extra)
        )  # fmt: skip

    @property
    def in_place(self) -> bool:
        """Whether only the failed processes are restarted, in the pods where they ran."""
        return self.strategy == constants.RECOVER and self.extra == constants.IN_PLACE


@dataclass
class AgentStatus:
    """The agent of a pod. ``faults``: its failed ranks; ``fault_at``: since when, by the manager's clock."""

    rank: int
    restarts: int = 0
    faults: tuple[int, ...] = ()
    fault_at: float = 0.0
    seen: float = 0.0
    waiting: bool = False
    """Whether it has asked to start its processes and got no answer yet."""


@dataclass
class WorkerStatus:
    """A training process. ``seen``: time of its last message; ``profiling``: state 14xx; ``switch``, ``stress``: (uuid,
    answer)."""

    rank: int
    node: int
    seen: float = 0.0
    profiling: int = 0
    switch: tuple[str, str] = ("", "")
    stress: tuple[str, str] = ("", "")


@dataclass(frozen=True)
class SwitchRequest:
    """Links to move: ranks and, for each, to the partner NIC (True) or back."""

    uuid: str
    ranks: tuple[str, ...]
    ops: tuple[bool, ...]


@dataclass(frozen=True)
class StressRequest:
    """Tests to run: rank → operations (0 AI core, 1 peer to peer)."""

    uuid: str
    ops: Mapping[int, tuple[int, ...]]


@dataclass
class JobState:
    """The snapshot that plugins read."""

    settings: JobSettings
    now: float = 0.0
    agents: dict[int, AgentStatus] = field(default_factory=dict)
    workers: dict[int, WorkerStatus] = field(default_factory=dict)
    signal: Signal | None = None
    switch: SwitchRequest | None = None
    stress: StressRequest | None = None
    profiling: int | None = None
    """The wanted command 7xx; None before the first request."""
    rounds: int = 0
    """Number of stops of training: a decision after another stop is a new one, even with the same uuid."""
    retry_time: int | None = None
    restarts: int = 0
    """Remaining restarts by the manager's own count; 0: it has none."""

    def fault_nodes(self, signal: Signal) -> tuple[int, ...]:
        """The pods of a signal; those of its fault ranks when it lists no pods."""
        if signal.nodes:
            return signal.nodes
        return tuple(sorted({self.settings.node(rank) for rank in signal.faults}))


@dataclass(frozen=True)
class ToAgents:
    """An ACTION for these pods' agents."""

    nodes: tuple[int, ...]
    code: int | str
    message: str = ""


@dataclass(frozen=True)
class ToWorkers:
    """An ACTION for these ranks; for every worker when ``ranks`` is None."""

    ranks: tuple[int, ...] | None
    code: int
    extension: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ToController:
    """Actions for the training controller, in order."""

    actions: tuple[str, ...]
    strategy: str = ""
    faults: Mapping[int, int] = field(default_factory=dict)
    params: str = ""
    timeout: int = 0


@dataclass(frozen=True)
class ReportFaults:
    """Failed processes, for ReportProcessFault."""

    faults: Mapping[int, int]


@dataclass(frozen=True)
class ReplySwitch:
    """The result of a link switch, for ReplySwitchNicResult."""

    ok: bool


@dataclass(frozen=True)
class ReplyStress:
    """Results as rank → operation → (code, text), for ReplyStressTestResult."""

    results: Mapping[int, Mapping[int, tuple[str, str]]]


@dataclass(frozen=True)
class LogWarning:
    """A warning for the log."""

    text: str


Command = ToAgents | ToWorkers | ToController | ReportFaults | ReplySwitch | ReplyStress | LogWarning
