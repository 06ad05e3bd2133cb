"""What must be remembered across passes, as it lives in ``belay-history-*`` and ``belay-job-*`` ConfigMaps.

A pass reads it from Observed and returns its next value in ``Plan.history``; nothing is
remembered anywhere else. Times are Unix milliseconds.
"""

from __future__ import annotations

import msgspec


class CodeSeen(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """First and last time a code was seen on a chip, and the bounded times of its occurrences.

    ``counted``: this occurrence has been handed to the judgement of the job (``engine.model.hardware``).
    """

    first: int
    last: int
    present: bool = True
    occurrences: tuple[int, ...] = ()
    recovered: int = 0
    counted: bool = False


class Hold(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A named reason why a clean chip is kept out of service (the closed list of holds).

    ``kind``: manual, frequency, duration, attempt-budget, reset-pending, bad-boot, no-agent.
    ``until`` is 0 when only a person ends it. ``told``: the ConfigMap in which a person ends it has named it.
    """

    kind: str
    level: str
    since: int
    until: int = 0
    rule: str = ""
    told: bool = False


class ChipMemory(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One chip's memory: ``resets`` are times of recent reset orders, newest last, ``epoch`` the highest ordered.

    ``hardware`` are, per code, the times at which the chip's own hardware was charged with it.
    """

    codes: dict[str, CodeSeen] = {}
    holds: tuple[Hold, ...] = ()
    isolated: int = 0
    level: str = ""
    epoch: int = 0
    ordered: int = 0
    resets: tuple[int, ...] = ()
    recovering: int = 0
    timeline: tuple[tuple[int, str], ...] = ()
    hardware: dict[str, tuple[int, ...]] = {}


class JobFault(msgspec.Struct, frozen=True, order=True, array_like=True):
    """A fault on a chip of a job that waits to be judged: when it was received, where, which."""

    at: int
    node: str
    chip: int
    code: str


class Related(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A code of the relation table in a job (``chip`` -1: the node's switch).

    ``gone`` is when it went (0: present), ``executed`` the strategy that was decided for it.
    """

    node: str
    chip: int
    code: str
    received: int
    gone: int = 0
    executed: str = ""


class PublicSeen(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One public fault on a node, by ``sender/faultId``.

    ``time`` is when it occurred; ``stamp``, ``message`` and ``index`` name the newest word on it; ``shown`` is when it
    first counted, ``until`` when it ends by itself (0: with its recovery). ``over``: it ended, but an old message
    still claims it. ``level`` is what it was judged at last.
    """

    code: str
    chips: tuple[int, ...]
    time: int
    stamp: int = 0
    message: str = ""
    index: int = 0
    shown: int = 0
    until: int = 0
    over: bool = False
    level: str = ""


class Lemon(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """How often a chip failed: the decayed number of ``failures`` as of ``at``, and whether it is failing now.

    ``serial`` is that of the chip, as far as an agent told it.
    """

    failures: float
    at: int
    serial: str = ""
    failing: bool = False


class NodeMemory(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One node's memory. ``last_good`` is the raw DeviceInfoCfg kept while the newest report is refused.

    ``public`` holds its public faults by ``sender/faultId``. ``shadows`` is, per shadow policy, what chips would
    remember of their codes under it, where that differs. ``lemons`` are the chips that have failed of late,
    ``partitions`` the times of the partition orders since the last one that ended well.
    ``reboot`` is when a reboot was last requested, and the node's boot at that time (0: none is asked for).
    """

    chips: dict[int, ChipMemory] = {}
    isolated: str = ""
    vnpu_epoch: int = 0
    last_good: str = ""
    reboot: tuple[int, str] = (0, "")
    public: dict[str, PublicSeen] = {}
    shadows: dict[str, dict[int, ChipMemory]] = {}
    lemons: dict[int, Lemon] = {}
    partitions: tuple[int, ...] = ()


class Rescheduled(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One reschedule of a job: when, and per hit pod its fault type, name, node and rank."""

    time: int
    tasks: tuple[tuple[str, str, str, str], ...] = ()


class Recovery(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One recovery of a job: what was chosen, what it was thought to cost, and what it did cost.

    ``at`` is when its pods were told to go, ``back`` when training went on at full size (0: not yet), both Unix ms.
    ``estimates`` are (level, seconds, chip-seconds) of every level weighed, the chosen one first; empty for a job that
    goes the ladder. ``chips`` are the job's, ``hit`` those of the pods that went for their own faults; ``redone`` is
    the age of the checkpoint it starts from (s). ``steps`` tell of the conversation with its processes, where there was
    one: when (ms), which event, into which state, with which code.
    """

    at: int
    level: str
    reason: str
    codes: tuple[str, ...] = ()
    chips: int = 0
    hit: int = 0
    redone: int = 0
    estimates: tuple[tuple[str, int, int], ...] = ()
    back: int = 0
    steps: tuple[tuple[int, str, str, int], ...] = ()


class Healing(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One episode of chips healed under a job: ``chips`` of ``node`` under the pod of that UID, since when (ms).

    ``epochs`` are those of the orders by chip, ``initial`` the policy it began with and ``policy`` what it has become
    (``engine.model.online``). ``ended`` is ``ok`` or ``failed`` (empty: under way), ``at`` when.
    """

    node: str
    pod: str
    chips: tuple[int, ...]
    epochs: dict[str, int]
    initial: str
    policy: str
    since: int
    codes: tuple[str, ...] = ()
    ended: str = ""
    at: int = 0


class JobMemory(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One job's memory.

    ``nodes`` maps a rank to its latest node, ``super_pods`` a logical super pod to its nodes,
    ``reschedules`` the times of recent reschedules, ``retries`` how many retries remain (-1 unlimited),
    ``version`` the re-creation counter of the job: ``settled`` is the version whose pods have all been seen, pods of
    version ``killed`` and older are told to go (-1: none). ``saved`` is when its rank table was last saved (seconds);
    ``removed`` are uids of pods that a policy of the job removed, so that their end is no event.
    ``nominated`` are uids of pods that were evicted to make room for it, and when; ``reserved`` the nodes kept for it
    because it waited too long, since ``reserved_at`` (without nodes: when none were found). ``away`` is since when
    none of its pods has a node (ms, 0: some have): former nodes are forgotten 72 hours later.
    ``rescheduled`` counts its reschedules since it exists, ``records`` tells of the newest ones, newest first.
    ``recoveries`` are the newest recoveries, newest last; ``spent`` is, per fault code, how many recoveries it caused
    and how many chip-seconds without progress these cost. ``small`` is since when it trains without its missing pods
    (0: it is whole). ``accounted`` is when the newest conversation began that its ``recoveries`` tell of (ms). ``size``
    is how many pods, or chips of its one pod, an elastic Volcano Job is made with (0: as declared). ``restarts`` is how
    many retries an inference set's instances have left.
    """

    uid: str = ""
    nodes: dict[str, str] = {}
    fault_nodes: tuple[str, ...] = ()
    super_pods: dict[str, tuple[str, ...]] = {}
    reschedules: tuple[int, ...] = ()
    retries: int = -1
    version: int = 0
    settled: int = -1
    killed: int = -1
    saved: int = 0
    removed: tuple[str, ...] = ()
    evicted: dict[str, int] = {}
    started: int = 0
    completed: int = 0
    rescheduled: int = 0
    records: tuple[Rescheduled, ...] = ()
    timeline: tuple[tuple[int, str], ...] = ()
    nominated: dict[str, int] = {}
    reserved: tuple[str, ...] = ()
    reserved_at: int = 0
    away: int = 0
    faults: tuple[JobFault, ...] = ()
    related: tuple[Related, ...] = ()
    blamed: dict[str, str] = {}
    observed: int = 0
    recoveries: tuple[Recovery, ...] = ()
    spent: dict[str, tuple[int, int]] = {}
    small: int = 0
    accounted: int = 0
    size: int = 0
    restarts: dict[str, int] = {}
    healing: Healing | None = None


class History(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The whole memory: nodes by name, jobs by ``namespace/Kind/name``, spent budget windows by name."""

    nodes: dict[str, NodeMemory] = {}
    jobs: dict[str, JobMemory] = {}
    budgets: dict[str, tuple[tuple[int, str, int], ...]] = {}
    ready_drops: dict[str, tuple[int, ...]] = {}
    policy_revision: str = ""
