"""When objects that Git no longer declares may be deleted: at once, within budget windows, or once a person confirms.

Deletions that would remove more objects, free more chips or end more running jobs than a safety budget ever allows wait
together as one set, and so does what a layer declared that declares nothing any more.
The set is named by a digest over its objects and their UIDs. A commit confirms exactly that set (trailer
``Belay-Confirm``); deletions that come later need another confirmation. Chips are not part of the digest, because pods
come and go; the most that each object was seen to hold is remembered, so that a set does not shrink below a limit while
a job restarts.

A confirmed set, and objects whose document carried ``belay.dev/prune: confirmed`` when it was applied, count against no
window. Copies of Belay's own documents interrupt nothing and never wait.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Final

from belay.engine.documents import CLUSTER, SHIPPED, Desired
from belay.engine.gangs.forming import gang_key
from belay.engine.gangs.owners import annotations_of, controller_of, metadata
from belay.engine.model.actions import DeleteObject
from belay.engine.model.chip_masks import mask_of
from belay.engine.model.cluster import Pod
from belay.engine.model.codes.passes import PassCode
from belay.engine.model.diagnostics import Diagnostic, ObjectKey
from belay.engine.model.history import HeldPrune
from belay.engine.model.labels import BELAY_PREFIX, POD_TEMPLATE_HASH, PRUNE_ANNOTATION
from belay.engine.model.plan import CONFIRM, PrunedObject, PruneHold
from belay.engine.model.reasons import ActionReason
from belay.engine.model.times import rfc3339
from belay.engine.model.wording import counted
from belay.engine.plan.budgets import NO_CHIPS, NO_POOL, BudgetDemand, BudgetRefusal, BudgetTracker
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.grouping import PassGangs
from belay.engine.plan.node_view import PassNodes
from belay.engine.plan.views import chip_ids

KIND: Final = "DeleteObject"
#: Reason of deletions of objects that Git no longer declares.
PRUNED: Final = ActionReason.PRUNED
CONFIRMED: Final = "confirmed"
#: In place of a budget's name: ``desired/`` declares nothing any more.
EMPTIED: Final = "emptied-layer"
#: Beginnings of paths that do not belong to ``desired/``.
_OTHER_LAYERS: Final = ("policies/", SHIPPED, CLUSTER)
#: Kinds that run pods, counted as jobs in messages.
_JOBS: Final = frozenset(
    {"AscendJob", "Job", "Deployment", "StatefulSet", "InferServiceSet", "InferService", "InstanceSet"}
)
#: Largest set whose members are remembered one by one (100 KiB of a ConfigMap). If deletions of a larger confirmed set
#: fail, the rest needs another confirmation.
MAX_MEMBERS: Final = 5000
#: Hex digits of a digest: short enough for a commit message, long enough to be unique.
_DIGITS: Final = 32
_SHOWN: Final = 5
#: How long a job that has run may lack pods and still count as running (15 min).
_AWAY_MS: Final = 15 * 60 * 1000

Chips = Mapping[str, int]


class Pruning:
    """Decides all deletions of one pass that Git asks for; sets ``memory.prunes``.

    ``held``: the deletions that wait for a person, None if none do.
    """

    def __init__(self, facts: Facts, draft: Draft, nodes: PassNodes, gangs: PassGangs, ledger: BudgetTracker) -> None:
        self._facts, self._draft, self._ledger = facts, draft, ledger
        asked = [action for action in draft.actions if isinstance(action, DeleteObject) and is_prune(action)]
        self._going = {_member(action): action for action in asked if not self._free(action)}
        self._chips, self._running = _freed(facts, draft, nodes, gangs, self._going)
        self._released: set[str] = set()
        self._refusal: BudgetRefusal | None = None
        self.held: PruneHold | None = None
        self._digest = ""
        #: Deletions within every limit for which the windows have no room yet.
        self._delayed: list[tuple[DeleteObject, BudgetRefusal]] = []
        if asked or (draft.memory.prunes and self._knows()):
            self._settle()

    def refusal(self, action: DeleteObject) -> BudgetRefusal | None:
        """Why a deletion may not be done now; None takes it from the budgets."""
        member = _member(action)
        if member not in self._going or member in self._released:
            return None
        unit = f"{action.object_kind}/{action.namespace}/{action.name}"
        demand = BudgetDemand(KIND, unit, 1, (), self._chips.get(member, NO_CHIPS), int(member in self._running))
        if self._refusal is not None:
            return self._refusal
        refusal = self._ledger.take(demand)
        if refusal is not None:
            self._delayed.append((action, refusal))
        return refusal

    def report_delayed(self) -> None:
        """Say of deletions that wait for a window that they go later without a person, and how to change that."""
        if not self._delayed:
            return
        names = [str(_key(action)) for action, _ in self._delayed]
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        ends = [refusal.until for _, refusal in self._delayed if refusal.until is not None]
        budget = self._delayed[0][1].budget
        until = f"until {rfc3339(max(ends))}; then they go without confirmation" if ends else "until a person decides"
        message = (
            f"{len(names)} of the objects that are no longer declared wait, as SafetyBudget {budget} is used up, "
            f"{until}: {', '.join(names[:_SHOWN])}{more}. To delete them now, push a commit whose message ends with "
            f"the trailer '{CONFIRM}: {self._digest}'; to keep them, restore their documents"
        )
        self._draft.diagnostics.append(
            Diagnostic("warning", "SafetyBudget", "", 0, 0, "", message, PassCode.PRUNE_DELAYED)
        )

    def confirm(self, action: DeleteObject) -> str:
        """The digest with which a commit confirms this deletion; empty where it needs none."""
        member = _member(action)
        return self._digest if member in self._going and member not in self._released else ""

    def _knows(self) -> bool:
        """Whether this pass knows what Git declares; while it does not, waiting sets are kept."""
        desired = self._facts.desired
        return desired.has_git and not desired.incomplete and self._facts.observed.inventory is not None

    def _free(self, action: DeleteObject) -> bool:
        if action.api_version.startswith(BELAY_PREFIX):
            return True
        live = self._facts.observed.objects.get(_key(action))
        return live is not None and annotations_of(live).get(PRUNE_ANNOTATION) == CONFIRMED

    def _settle(self) -> None:
        """Determine what is released, what waits, and what to remember of it."""
        memory, going = self._draft.memory, set(self._going)
        confirmed = set(self._facts.desired.confirmed)
        rows = [row for row in memory.prunes if self._about(row)]
        kept = [row for row in rows if row.released and row.digest in confirmed]
        for row in kept:
            self._released |= going.intersection(row.members) if row.members else going
        waiting = [row for row in rows if row not in kept]
        memory.prunes = tuple(kept)
        rest = sorted(going - self._released)
        if not rest:
            return
        for row in waiting:
            for member in rest:
                self._chips[member] = _maximum(self._chips.get(member, NO_CHIPS), row.chips.get(member, NO_CHIPS))
            self._running |= set(rest).intersection(row.running)
        known = next((row for row in waiting if self._same(row, rest)), None)
        self._digest = known.digest if known else digest_of(self._going[member] for member in rest)
        row = HeldPrune(
            digest=self._digest,
            since=known.since if known else self._facts.now_ms,
            base=rows[0].base if rows else self._facts.observed.applied_revision,
            members=known.members if known else tuple(rest) if len(rest) <= MAX_MEMBERS else (),
            chips={m: dict(chips) for m in rest[:MAX_MEMBERS] if (chips := self._chips.get(m))},
            released=self._digest in confirmed,
            running=tuple(m for m in rest[:MAX_MEMBERS] if m in self._running),
        )
        memory.prunes = (*kept, row)
        if row.released:
            self._released |= set(rest)
            return
        freed = _sum(self._chips.get(member, NO_CHIPS) for member in rest)
        ended = len(self._running.intersection(rest))
        beyond = self._ledger.beyond(BudgetDemand(KIND, "", len(rest), (), freed, ended))
        if emptied := emptied_layer(self._facts.desired, self._facts.observed.inventory or ()):
            beyond.insert(0, (EMPTIED, emptied))
        if beyond:
            self._hold(row, rest, beyond)

    def _about(self, row: HeldPrune) -> bool:
        """Whether any object of a remembered set is still to be deleted; of a set too large to list, all of them."""
        if not row.members:
            return row.digest == self._whole
        return not self._going.keys().isdisjoint(row.members)

    @cached_property
    def _whole(self) -> str:
        return digest_of(self._going.values())

    def _same(self, row: HeldPrune, rest: list[str]) -> bool:
        """Whether the rest is a remembered set, from which at most some objects have disappeared."""
        if not row.members:
            return len(rest) == len(self._going)
        missing = set(row.members).difference(rest)
        if len(row.members) - len(missing) != len(rest):
            return False  # another object has joined the set
        return not missing or missing.isdisjoint(self._live())

    def _live(self) -> set[str]:
        """Every live object, to distinguish one that Git declares again from one that is gone."""
        objects = self._facts.observed.objects
        return {member_of(key, objects[key]) for key in objects if not metadata(objects[key]).get("deletionTimestamp")}

    def _hold(self, row: HeldPrune, rest: list[str], beyond: list[tuple[str, str]]) -> None:
        budget = beyond[0][0]
        self._refusal = BudgetRefusal(budget, None)
        listed = [(sum(self._chips.get(member, NO_CHIPS).values()), self._going[member]) for member in rest]
        listed.sort(key=lambda item: (-item[0], _key(item[1])))
        hold = self.held = PruneHold(
            digest=row.digest,
            budget=budget,
            limits=tuple(dict.fromkeys(text for _, text in beyond)),
            since=rfc3339(row.since / 1000),
            jobs=sum(action.object_kind in _JOBS for _, action in listed),
            chips=dict(_sum(self._chips.get(member, NO_CHIPS) for member in rest)),
            objects=tuple(PrunedObject(str(_key(action)), chips) for chips, action in listed),
        )
        shown = ", ".join(item.object for item in hold.objects[:_SHOWN])
        more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
        why = "is more than may go at once" if budget == EMPTIED else f"is more than SafetyBudget {budget} allows"
        message = (
            f"deleting what is no longer declared, {hold.size}, {why} "
            f"({'; '.join(hold.limits)}), so all of it waits for a person: {shown}{more}. To delete exactly these, "
            f"push a commit whose message ends with the trailer '{hold.trailer}'; to keep them, restore their documents"
        )
        self._draft.diagnostics.append(
            Diagnostic("warning", "SafetyBudget", "", 0, 0, "", message, PassCode.PRUNE_HELD)
        )


def emptied_layer(desired: Desired, inventory: Iterable[ObjectKey]) -> str:
    """That ``desired/`` declared objects and declares none now, in words; empty while it declares something.

    Only ``desired/`` may hold manifests, so the objects of the inventory that are not Belay's own came from there. A
    folder that was renamed or never copied looks like that, and no one who means to delete everything is hindered by a
    confirmation.
    """
    if any(not origin.file.startswith(_OTHER_LAYERS) for origin in desired.origins):
        return ""
    objects = sum(not key.api_version.startswith(BELAY_PREFIX) for key in inventory)
    return f"layer desired/ declared {counted(objects, 'object')} and declares none now" if objects else ""


def is_prune(action: DeleteObject) -> bool:
    """Whether the deletion is a prune, rather than a job's own clean-up."""
    return action.reason == PRUNED


def identity(key: ObjectKey, uid: str) -> str:
    """Identity of one object, distinct from a later object of the same name."""
    return "|".join((key.api_version, key.kind, key.namespace, key.name, uid))


def short_hash(text: str) -> str:
    """Short hash of an identity, for the memory."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def member_of(key: ObjectKey, live: Mapping[str, Any]) -> str:
    """Short hash of a live object."""
    return short_hash(identity(key, str(metadata(live).get("uid") or "")))


def digest_of(actions: Iterable[DeleteObject]) -> str:
    """Digest of a set of deletions in any order: 32 hex digits over the objects and their UIDs."""
    lines = sorted(identity(_key(action), _uid(action)) for action in actions)
    return hashlib.sha256("\n".join(("belay-prune", *lines)).encode()).hexdigest()[:_DIGITS]


def _key(action: DeleteObject) -> ObjectKey:
    return ObjectKey(action.api_version, action.object_kind, action.namespace, action.name)


def _uid(action: DeleteObject) -> str:
    return action.preconditions.uid or ""


def _member(action: DeleteObject) -> str:
    return short_hash(identity(_key(action), _uid(action)))


def _maximum(one: Chips, other: Chips) -> Chips:
    return {pool: max(one.get(pool, 0), other.get(pool, 0)) for pool in sorted({*one, *other})}


def _sum(rows: Iterable[Chips]) -> Chips:
    total: Counter[str] = Counter()
    for row in rows:
        total.update(row)
    return dict(sorted(total.items()))


def _freed(
    facts: Facts, draft: Draft, nodes: PassNodes, gangs: PassGangs, going: Mapping[str, DeleteObject]
) -> tuple[dict[str, Chips], set[str]]:
    """Chips that each deletion frees, by pool, and the deletions that end running pods: garbage collection removes the
    pods with the object.

    A chip that several pods share counts once. Pods that a running job is just re-creating count as if they were bound.
    """
    if not going:
        return {}, set()
    members = {_key(action): member for member, action in going.items()}
    above = _OwnerChain(facts, members)
    found: dict[str, Counter[str]] = {}
    running: set[str] = set()
    seen: dict[str, int] = {}
    for name in sorted(facts.observed.pods):
        pod = facts.observed.pods[name]
        if pod.finished or not pod.node:
            continue
        member = above.of(pod)
        if member is None:
            continue
        running.add(member)
        taken = seen.get(pod.node, 0)
        chips = mask_of(chip_ids(pod)) & ~taken
        seen[pod.node] = taken | chips
        if chips:
            found.setdefault(member, Counter())[_pool(nodes, pod.node)] += chips.bit_count()
    for key, member in members.items():
        _add_absent(facts, draft, nodes, gangs, key, found.setdefault(member, Counter()))
    freed: dict[str, Chips] = {member: dict(chips) for member, chips in found.items() if chips}
    return freed, running | freed.keys()


def _add_absent(
    facts: Facts, draft: Draft, nodes: PassNodes, gangs: PassGangs, key: ObjectKey, found: Counter[str]
) -> None:
    """Add pods that a job that has run is re-creating or that wait for placement, by their requests."""
    gang = gangs.get(gang_key(key.api_version, key.kind, key.namespace, key.name))
    memory = draft.memory.jobs.get(gang.key) if gang else None
    if gang is None or memory is None or not memory.nodes:
        return
    if memory.away and memory.away < facts.now_ms - _AWAY_MS:
        return  # without pods for so long, the job no longer counts as holding chips
    pods = gangs.members.get(gang.key, ())
    asked = max((pod.count for pod in pods), default=0)
    here = sum(1 for pod in pods if pod.finished or (pod.chips and pod.node))
    away = min(len(memory.nodes), gang.replicas) - here
    if asked and away > 0:
        found[_pool(nodes, memory.nodes[min(memory.nodes)])] += asked * away


def _pool(nodes: PassNodes, node: str) -> str:
    view = nodes.get(node)
    return view.pool if view else NO_POOL


class _OwnerChain:
    """Finds the deleted object at the top of a pod's chain of controllers."""

    def __init__(self, facts: Facts, members: Mapping[ObjectKey, str]) -> None:
        self._objects, self._members = facts.observed.objects, members
        self._known: dict[ObjectKey, str | None] = {}

    def of(self, pod: Pod) -> str | None:
        """The member whose deletion removes the pod; None when none does."""
        if not pod.owner_kind:
            return None
        return self._climb(ObjectKey(pod.owner_api, pod.owner_kind, pod.namespace, pod.owner_name), pod)

    def _climb(self, key: ObjectKey, pod: Pod, depth: int = 8) -> str | None:
        if key in self._known:
            return self._known[key]
        found = self._members.get(key)
        if found is None and depth:
            higher = self._controller(key, pod)
            found = self._climb(higher, pod, depth - 1) if higher is not None else None
        self._known[key] = found
        return found

    def _controller(self, key: ObjectKey, pod: Pod) -> ObjectKey | None:
        raw = self._objects.get(key)
        if raw is None:  # lists often lack ReplicaSets; their names contain the Deployment's
            suffix = "-" + pod.labels.get(POD_TEMPLATE_HASH, "")
            if key.kind == "ReplicaSet" and len(suffix) > 1 and key.name.endswith(suffix):
                return ObjectKey("apps/v1", "Deployment", key.namespace, key.name.removesuffix(suffix))
            return None
        above = controller_of(raw)
        if not above:
            return None
        return ObjectKey(str(above.get("apiVersion")), str(above.get("kind")), key.namespace, str(above.get("name")))
