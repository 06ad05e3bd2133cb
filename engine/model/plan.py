"""The plan as a document: `belay plan` prints it, ``act`` runs it, status shows it, replay derives it again."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any, Final

import msgspec

from belay.engine.model.action_documents import document
from belay.engine.model.actions import AnyAction
from belay.engine.model.cluster import Node, SwitchReport
from belay.engine.model.diagnostics import Diagnostic
from belay.engine.model.history import History
from belay.engine.model.holds import Held
from belay.engine.model.links import LinkState
from belay.engine.model.pending_reasons import RejectedAt
from belay.engine.model.refusals import ServerRefusal
from belay.engine.model.remedies import Remedy
from belay.engine.model.states import ChipHealth, NodeHealth

CONFIRM: Final = "Belay-Confirm"
"""Trailer of a commit's message that confirms a held deletion by its digest."""
REFUSED: Final = "refused-by-api-server"
"""What defers an action that the API server refused, in place of a budget."""
CONTRADICTED: Final = "product:contradicted"
"""What defers a reset or a cut of chips whose node reports another product than the declared one."""


#: Prefix of the budget's name in what the brake of repeated actions defers (``SafetyBudget.spec.repeats``).
REPEATED: Final = "repeats:"
#: Prefix of the budget's name in evictions that a PodDisruptionBudget refuses.
REFUSING: Final = "PodDisruptionBudget/"


class Deferred(msgspec.Struct, frozen=True, omit_defaults=True):
    """An action that a budget or a hold defers; ``until`` is RFC 3339, or None when only a person ends it.

    ``confirm`` is, for a deletion by Git, the digest by which a commit confirms it together with all other held ones
    (:class:`PruneHold`).
    """

    action: AnyAction
    budget: str
    until: str | None
    confirm: str = ""


class BudgetUse(msgspec.Struct, frozen=True):
    """What the window of a limit of a SafetyBudget holds in one scope.

    ``budget`` is the limit (``name#index``), ``scope`` its kind and name (``pool/default``), ``actions`` the kinds of
    actions that it counts, joined by ``+``. ``spent`` and ``allowed`` are in the limit's unit; ``allowed`` is None for
    a percentage of things that this pass had no reason to count.
    """

    budget: str
    scope: str
    actions: str
    spent: int
    allowed: int | None


class PrunedObject(msgspec.Struct, frozen=True):
    """One object to delete, as ``Kind/namespace/name``, and how many chips its deletion frees."""

    object: str
    chips: int


class PruneHold(msgspec.Struct, frozen=True):
    """A deletion that exceeds the budgets and waits for a person.

    ``digest`` identifies exactly this set of objects; ``budget`` and ``limits`` are those exceeded; ``chips`` is per
    pool; ``objects`` has the largest first.
    """

    digest: str
    budget: str
    limits: tuple[str, ...]
    since: str
    jobs: int
    chips: dict[str, int]
    objects: tuple[PrunedObject, ...]

    @property
    def freed(self) -> int:
        """Chips of all pools."""
        return sum(self.chips.values())

    @property
    def size(self) -> str:
        """Number of objects, jobs and chips, in words."""
        parts = (
            (len(self.objects), "object", "objects"), (self.jobs, "job", "jobs"), (self.freed, "chip", "chips"),
        )  # fmt: skip
        objects, jobs, chips = (f"{number} {one if number == 1 else many}" for number, one, many in parts)
        return f"{objects} ({jobs} on {chips})"

    @property
    def trailer(self) -> str:
        """The line of a commit's message that confirms the deletion."""
        return f"{CONFIRM}: {self.digest}"

    def document(self) -> dict[str, Any]:
        """The entry of `belay plan` beside the deferred actions."""
        return {
            "digest": self.digest,
            "budget": self.budget,
            "limits": list(self.limits),
            "since": self.since,
            "objects": len(self.objects),
            "jobs": self.jobs,
            "chips": dict(sorted(self.chips.items())),
            "release": self.trailer,
        }


MAX_NEAR: Final = 64
"""Nodes that a way out names at most: a map shows them, a person reads the first."""


class Pending(msgspec.Struct, frozen=True, omit_defaults=True):
    """A gang or single pod that was not placed, with nodes counted by reason and the cheapest way to unblock it.

    ``near`` are the nodes that this way out concerns, the nearest first: where work would end, or where little lacks.
    ``remedy`` is the way out as values, where it is one definite step. ``state`` is the beginning of the message
    that is Belay's own, ``rejected`` the step at which MindCluster would refuse the job.
    """

    kind: str
    namespace: str
    name: str
    pods: tuple[str, ...]
    reason: str
    message: str
    nodes: dict[str, int]
    unblock: str | None
    near: tuple[str, ...] = ()
    remedy: Remedy | None = None
    state: str = ""
    rejected: RejectedAt = RejectedAt.PREDICATE

    @property
    def line(self) -> str:
        """The message in the words of MindCluster alone."""
        return self.message.removeprefix(f"{self.state}; ") if self.state else self.message


class NodeState(msgspec.Struct, frozen=True, gc=False):
    """State of one node in a plan, with its level and fault codes."""

    node: str
    pool: str
    state: NodeHealth
    level: str
    codes: tuple[str, ...]


class ChipState(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """State of one chip in a plan; ``used_by`` is the pod (``namespace/name``) that holds it, None without one."""

    node: str
    chip: str
    state: ChipHealth
    level: str
    codes: tuple[str, ...]
    fault_type: tuple[str, ...]
    used_by: str | None


class PlaneLevels(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The planes of a chip, which :class:`ChipState` combines.

    ``chip`` is the level of the chip plane; ``network`` maps codes of the network plane to the levels that duration and
    frequency rules gave them, whether the code is present or only held.
    """

    chip: str
    network: dict[str, str] = {}


class RepeatOffender(msgspec.Struct, frozen=True, rename="camel"):
    """A chip with its decayed number of failures, and whether placement avoids it among equals."""

    node: str
    chip: str
    failures: float
    threshold: float
    avoided: bool


class ShadowChange(msgspec.Struct, frozen=True):
    """A change by a shadow policy: an action that it would add (``new``) or remove (``avoided``).

    ``budget`` is the one that defers the action, if any.
    """

    policy: str
    change: str
    action: AnyAction
    budget: str = ""


class IgnoredObject(msgspec.Struct, frozen=True):
    """An object of Belay's kinds in the cluster (``Kind/name``) that has no effect, and why."""

    object: str
    reason: str
    message: str


class ServerChips(msgspec.Struct, frozen=True, gc=False):
    """The chips of a node: prefix of their device names, mask of their ids, and whether a valid report names them.

    ``suspended``: its pool is suspended, so nothing is placed on it and nothing moved.
    """

    prefix: str
    base: int
    reported: bool
    suspended: bool = False


def takes_no_pods(server: ServerChips | None, node: Node | None) -> bool:
    """Whether a node takes no new pods however well it is: its pool is suspended, or others are about to remove it."""
    return (server is not None and server.suspended) or (node is not None and node.departure is not None)


#: State of a chip without a report that the plan does not list.
UNREPORTED: Final = "unknown"


class Plan(msgspec.Struct, frozen=True):
    """The decisions of one pass.

    ``actions`` are in execution order, every other list is sorted; ``history`` is the next value
    of the memory, written before any disruptive action. ``planes`` holds the planes of chips separately, by node and
    chip, for ConfigMaps that need them; it is not part of the document. Nor is ``switches``: by node, its switch
    without the faults that jobs tolerate for now, where there are any. ``shadows`` are the changes by shadow policies,
    shown in the status ConfigMaps and, as diagnostics, in the document. ``repeat_offenders`` are the chips that failed
    recently, ``links`` the states of the links that KVLinks declare. ``servers`` are all chips
    of each node, ``ignored`` the objects of Belay's kinds in the cluster that have no effect.
    ``held_prune`` is the deletion that waits for a person, ``budgets`` what was spent of limits, which is not part of
    the document either. ``refusals`` are what the API server refuses of what this pass wants, ``holds`` what keeps
    chips and nodes out of service.
    """

    revision: str
    now: float
    actions: tuple[AnyAction, ...] = ()
    deferred: tuple[Deferred, ...] = ()
    pending: tuple[Pending, ...] = ()
    nodes: tuple[NodeState, ...] = ()
    chips: tuple[ChipState, ...] = ()
    scores: dict[str, dict[str, float]] = {}
    diagnostics: tuple[Diagnostic, ...] = ()
    history: History = History()
    planes: dict[str, dict[int, PlaneLevels]] = {}
    switches: dict[str, SwitchReport] = {}
    shadows: tuple[ShadowChange, ...] = ()
    repeat_offenders: tuple[RepeatOffender, ...] = ()
    links: tuple[LinkState, ...] = ()
    servers: dict[str, ServerChips] = {}
    ignored: tuple[IgnoredObject, ...] = ()
    held_prune: PruneHold | None = None
    budgets: tuple[BudgetUse, ...] = ()
    refusals: tuple[ServerRefusal, ...] = ()
    holds: tuple[Held, ...] = ()

    def document(self, *, explain: bool = False) -> dict[str, Any]:
        """The output of `belay plan`: plain JSON values, deterministic."""
        from belay.engine.model.times import rfc3339

        body: dict[str, Any] = {
            "revision": self.revision,
            "now": rfc3339(self.now),
            "actions": [document(action) for action in self.actions],
            "deferred": [{"action": document(row.action)} | _rest(row) for row in self.deferred],
            "pending": msgspec.to_builtins(self.pending),
            "nodes": msgspec.to_builtins(self.nodes),
            "chips": msgspec.to_builtins(self.chips),
            "scores": {pod: dict(sorted(by_node.items())) for pod, by_node in sorted(self.scores.items())}
            if explain
            else {},
            "diagnostics": msgspec.to_builtins(self.diagnostics),
        }
        if self.held_prune is not None:
            body["heldPrune"] = self.held_prune.document()
        if self.holds:
            body["holds"] = msgspec.to_builtins(self.holds)
        if self.refusals:
            body["refused"] = [row.document() for row in self.refusals]
        return body

    def chip_states(self) -> dict[str, int]:
        """Number of chips per state, over all chips: used, free, faulty, and without a report."""
        found: Counter[str] = Counter(chip.state for chip in self.chips)
        named: Counter[str] = Counter(chip.node for chip in self.chips)
        for node, server in self.servers.items():
            rest = server.base.bit_count() - named[node]
            if rest > 0:
                found[ChipHealth.HEALTHY.value if server.reported else UNREPORTED] += rest
        return dict(sorted(found.items()))

    def digest(self) -> str:
        """SHA-256 of the canonical document and history: equal plans have equal digests."""
        whole = {"plan": self.document(explain=True), "history": msgspec.to_builtins(self.history, str_keys=True)}
        return hashlib.sha256(msgspec.json.encode(whole, order="deterministic")).hexdigest()


def _rest(row: Deferred) -> dict[str, Any]:
    """A deferred action's document without the action."""
    rest = {"budget": row.budget, "until": row.until}
    return rest | {"confirm": row.confirm} if row.confirm else rest
