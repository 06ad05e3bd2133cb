"""The memory across passes, as kept in ``belay-history-*`` and ``belay-job-*`` ConfigMaps.

A pass reads it from Observed and returns its next value in ``Plan.history``; no other state survives a pass. Times are
Unix milliseconds.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from belay.engine.model.rules import RuleKind, rule_kind

#: Lines that the timeline of a job or a node keeps: the newest.
TIMELINE: Final = 20


class CodeMemory(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """First and last report of a code on a chip, and the bounded times of its occurrences.

    ``counted``: this occurrence is queued for attribution (``belay.engine.model.hardware_faults``).
    ``held_by_reporter``: the node's own reporter raised its level for lasting too long, and so waits out the recovery
    itself.
    """

    first: int
    last: int
    present: bool = True
    occurrences: tuple[int, ...] = ()
    recovered: int = 0
    counted: bool = False
    held_by_reporter: bool = False


class HoldKind(StrEnum):
    """The closed list of holds."""

    MANUAL = "manual"
    FREQUENCY = "frequency"
    DURATION = "duration"
    ATTEMPT_BUDGET = "attempt-budget"
    RESET_PENDING = "reset-pending"
    BAD_BOOT = "bad-boot"
    NO_AGENT = "no-agent"


HOLD_KINDS: Final[dict[str, HoldKind]] = {kind.value: kind for kind in HoldKind}


class Hold(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A named reason why a clean chip is kept out of service (the closed list of holds).

    ``kind`` is a :class:`HoldKind`; unknown kinds, of other versions, are kept as they are.
    ``until`` is 0 when only a person ends it. ``told``: the ConfigMap in which a person ends it contains it.
    ``policy`` is the rule of a FaultPolicy or table that made it, kept when the document goes.
    """

    kind: str
    level: str
    since: int
    until: int = 0
    rule: str = ""
    told: bool = False
    policy: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """What distinguishes the holds of a chip: kind and rule."""
        return self.kind, self.rule

    @property
    def rule_kind(self) -> RuleKind:
        """What kind of rule holds the chip; ``OTHER`` where the rule is a fault code."""
        return rule_kind(self.rule)


class ChipMemory(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One chip's memory: ``resets`` are times of recent reset orders, newest last, ``epoch`` the highest ordered.

    ``hardware`` maps a code to the times at which the chip was charged with it. ``rule`` is the document that isolated
    it last (``FaultPolicy/…``, ``Isolation/…``), kept beyond the release, which may come later than its cause.
    """

    codes: dict[str, CodeMemory] = {}
    holds: tuple[Hold, ...] = ()
    isolated: int = 0
    level: str = ""
    epoch: int = 0
    ordered: int = 0
    resets: tuple[int, ...] = ()
    recovering: int = 0
    timeline: tuple[tuple[int, str], ...] = ()
    hardware: dict[str, tuple[int, ...]] = {}
    rule: str = ""


class JobFault(msgspec.Struct, frozen=True, order=True, array_like=True):
    """A fault on a chip of a job that waits for attribution; ``at`` is when it was received."""

    at: int
    node: str
    chip: int
    code: str


class RelationFault(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A code of the relation table in a job (``chip`` -1: the node's switch).

    ``gone`` is when it disappeared (0: present), ``executed`` the strategy decided for it.
    """

    node: str
    chip: int
    code: str
    received: int
    gone: int = 0
    executed: str = ""


class PublicFaultMemory(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One public fault on a node, by ``sender/faultId``.

    ``time`` is when it occurred; ``stamp``, ``message`` and ``index`` name the newest message about it; ``shown`` is
    when it first counted, ``until`` when it expires (0: with its recovery). ``over``: it ended, but an old message
    still claims it. ``level`` is its newest level, ``kind`` its type as sent.
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
    kind: str = ""

    @property
    def newness(self) -> tuple[int, str, int]:
        """Time and id of the newest message about it, and the place in that message."""
        return self.stamp, self.message, self.index


class FailureMemory(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The decayed number of ``failures`` of a chip as of ``at``, and whether it is failing now.

    ``serial`` is the chip's serial number, empty while no agent reported it.
    """

    failures: float
    at: int
    serial: str = ""
    failing: bool = False


class KnownHardware(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Which hardware a node's memory is about: the UID of its Node, the server's system UUID, and serial numbers of the
    chips that are remembered; empty where they are unknown.
    """

    uid: str = ""
    server: str = ""
    serials: dict[int, str] = {}


class NodeMemory(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One node's memory. ``last_good`` is the raw DeviceInfoCfg kept while the newest report is refused.

    ``public`` holds its public faults by ``sender/faultId``. ``shadows`` maps a shadow policy to the memory that
    chips would have under it, where that differs. ``lemons`` are the chips that have failed of late,
    ``partitions`` the times of the partition orders since the last one that ended well.
    ``reboot`` is when a reboot was last requested, and the node's boot at that time (0: none is asked for).
    ``hardware`` is what all this is about.
    """

    chips: dict[int, ChipMemory] = {}
    isolated: str = ""
    vnpu_epoch: int = 0
    last_good: str = ""
    reboot: tuple[int, str] = (0, "")
    public: dict[str, PublicFaultMemory] = {}
    shadows: dict[str, dict[int, ChipMemory]] = {}
    lemons: dict[int, FailureMemory] = {}
    partitions: tuple[int, ...] = ()
    hardware: KnownHardware = KnownHardware()


class RescheduleRecord(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One reschedule of a job: when, and per hit pod its fault type, name, node and rank."""

    time: int
    tasks: tuple[tuple[str, str, str, str], ...] = ()


class Recovery(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One recovery of a job: the level chosen, its estimates, and its times.

    ``at`` is when its pods were evicted, ``back`` when training resumed at full size (0: not yet), both Unix ms.
    ``estimates`` are (level, seconds, chip-seconds) of every level weighed, the chosen one first; empty for a job
    without a choice by cost. ``chips`` are the job's, ``hit`` those of the hit pods; ``redone`` is the age of the
    checkpoint it starts from (s). ``placed`` is when kubelet had accepted the last pod made for it (ms, 0: none was
    made). ``steps`` are those of the conversation with its processes, if any: time (ms), event,
    state entered, code. ``seen`` is when the first of its codes was seen, ``isolated`` when the first chip with one was
    isolated (ms, 0: unknown). ``running`` is when the pods made for it were first seen to run, all of them (ms, 0: not
    yet, or none was made).
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
    placed: int = 0
    seen: int = 0
    isolated: int = 0
    running: int = 0


class Healing(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One episode of chips healed under a job: ``chips`` of ``node`` under the pod with that UID, since when (ms).

    ``epochs`` are those of the orders by chip, ``initial`` the policy at the start and ``policy`` the current one
    (``belay.engine.model.in_place_recovery``). ``ended`` is ``ok`` or ``failed`` (empty: under way), ``at`` when.
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
    ``version`` the re-creation counter of the job: ``settled`` is the newest version whose pods have all been seen;
    pods of version ``killed`` and older are deleted (-1: none). ``saved`` is when its rank table was last saved (s);
    ``removed`` are UIDs of pods that a policy of the job removed, so that their end is not an event; of an inference
    set, those of failed pods that have cost a retry.
    ``nominated`` are UIDs of pods that were evicted to make room for it, and when; ``reserved`` the nodes kept for it
    because it waited too long, since ``reserved_at`` (without nodes: when none were found). ``away`` is since when
    none of its pods has a node (ms, 0: some have): former nodes are forgotten 72 hours later.
    ``rescheduled`` counts all of its reschedules, ``records`` holds the newest ones, newest first.
    ``recoveries`` are the newest recoveries, newest last; ``spent`` maps a fault code to the number of recoveries it
    caused and the chip-seconds without progress that they cost. ``small`` is since when it trains without its missing
    pods (0: it is whole). ``accounted`` is the beginning of the newest conversation among its ``recoveries`` (ms).
    ``size`` is the number of pods, or of chips of its one pod, of an elastic Volcano Job (0: as declared), ``roomy``
    since when there has been room for its declared size (ms, 0: there is none), ``grown`` how often it grew back to it.
    ``restarts`` is how many retries an inference set's instances have left. ``commanded`` is the UID of the Command of
    Volcano that was carried out last. ``switches`` holds the annotations of its pods under switch affinity by node,
    while their resource claims are being allocated there.
    ``asked`` holds evictions of its pods that were asked for and are not under way: by UID how often, and when last
    (ms).
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
    records: tuple[RescheduleRecord, ...] = ()
    timeline: tuple[tuple[int, str], ...] = ()
    nominated: dict[str, int] = {}
    reserved: tuple[str, ...] = ()
    reserved_at: int = 0
    away: int = 0
    faults: tuple[JobFault, ...] = ()
    related: tuple[RelationFault, ...] = ()
    blamed: dict[str, str] = {}
    observed: int = 0
    recoveries: tuple[Recovery, ...] = ()
    spent: dict[str, tuple[int, int]] = {}
    small: int = 0
    accounted: int = 0
    size: int = 0
    roomy: int = 0
    grown: int = 0
    restarts: dict[str, int] = {}
    commanded: str = ""
    healing: Healing | None = None
    switches: dict[str, dict[str, str]] = {}
    asked: dict[str, tuple[int, int]] = {}

    @property
    def came_about(self) -> tuple[int, ...]:
        """When pods went by a reschedule: without reschedules of which no eviction is under way."""
        waiting = {at for uid, at in self.evicted.items() if uid in self.asked}
        gone = {at for uid, at in self.evicted.items() if uid not in self.asked}
        return tuple(at for at in self.reschedules if at not in waiting - gone)


class HeldPrune(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Live objects that Git no longer declares: their deletion waits, or was confirmed (``released``) and is under way.

    ``digest`` is what confirms it, ``since`` when it began to wait (Unix ms), ``base`` the revision after which a
    commit may confirm it. ``members`` are short hashes of the objects and their UIDs, sorted; ``chips`` the most chips
    that each was seen to hold, by member and pool, and ``running`` the members that were seen to run pods, so that a
    job whose pods are just away counts as before.
    """

    digest: str
    since: int
    base: str
    members: tuple[str, ...]
    chips: dict[str, dict[str, int]] = {}
    released: bool = False
    running: tuple[str, ...] = ()


class PoolEdit(msgspec.Struct, frozen=True, rename="camel"):
    """The node pools before an edit that took nodes from their pools (canonical JSON), since when (Unix ms), and the
    revision that edited them.
    """

    since: int
    revision: str
    pools: str


class History(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The whole memory: nodes by name, jobs by ``namespace/Kind/name``, spent budget windows by name, deletions that
    wait for a person, when actions were done to the same thing (``repeats``, by action and thing), the pools before
    the last edit that moved nodes, and when Git last changed the pod templates of jobs that run older pods
    (``retemplated``, ms). The last is of the shard that applies Git's objects, whose jobs may be another shard's.
    """

    nodes: dict[str, NodeMemory] = {}
    jobs: dict[str, JobMemory] = {}
    budgets: dict[str, tuple[tuple[int, str, int], ...]] = {}
    ready_drops: dict[str, tuple[int, ...]] = {}
    policy_revision: str = ""
    prunes: tuple[HeldPrune, ...] = ()
    repeats: dict[str, tuple[int, ...]] = {}
    pool_edit: PoolEdit | None = None
    retemplated: dict[str, int] = {}
