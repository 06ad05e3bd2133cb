"""The workbench of a pass: puts pods on nodes one gang at a time, all or nothing, and can take them back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from engine.documents import InitParams
from engine.model.cluster import Pod, ids_of
from engine.plan.place import fit, volumes
from engine.plan.place.coretable import CoreTable
from engine.plan.place.freechips import FreeChips
from engine.plan.place.job import Job
from engine.plan.place.likeness import Keys, Likeness
from engine.plan.place.multilevel import Level, read_trees
from engine.plan.place.neighbours import ANTI, Neighbours
from engine.plan.place.parts import Parts
from engine.plan.place.pending import Story, story
from engine.plan.place.sharing import Dynamic, Soft
from engine.plan.place.softtable import SoftTable
from engine.plan.place.table import Table
from engine.plan.place.verdict import Refusal
from engine.plan.scope import NodeView, Scope
from engine.wire.parts import Share

if TYPE_CHECKING:
    from engine.plan.place.leaves import Board

#: Most entries of ``Plan.scores`` in one pass; beyond it pods are placed without a record of their candidates.
MAX_SCORES: Final = 200_000
#: Most seats that searches for mixed gangs try in one pass.
PASS_TRIALS: Final = 1500


class Seated(NamedTuple):
    """A pod with its node and chips; ``logical`` and ``super_pod`` only under super-pod rules, else -1.

    ``part`` is the template of a vNPU or the share that the pod gets of its chip, empty when it gets all of it.
    """

    pod: Pod
    node: str
    chips: int
    logical: int = -1
    super_pod: int = -1
    part: str | Share = ""

    @property
    def shared(self) -> bool:
        """Whether others may be on the pod's chip too."""
        return bool(self.part)


@dataclass(slots=True)
class Wishes:
    """Where a gang's pods were before, by pod key: former nodes, and seats claimed for a binding that did not happen.

    ``homes`` are the former nodes of all its ranks, ``failed`` those that failed.
    """

    former: Mapping[str, str] = field(default_factory=dict)
    claimed: Mapping[str, Seated] = field(default_factory=dict)
    failed: frozenset[str] = frozenset()
    homes: frozenset[str] = frozenset()


class Bench:
    """Nodes, neighbours and candidate tables of one pass."""

    def __init__(self, scope: Scope, params: InitParams) -> None:
        scope.own_all()
        self.scope = scope
        self.params = params
        self.views: Mapping[str, NodeView] = scope.nodes
        trees = read_trees(params.resource_level_config)
        self.trees: Mapping[str, tuple[Level, ...]] = {} if isinstance(trees, Refusal) else trees
        self._log: list[str] = []
        self._tables: dict[bytes, Table] = {}
        self._grounds: dict[bytes, fit.Grounds] = {}
        self.likeness = Likeness()
        self._keys = Keys(scope)
        self._neighbours: Neighbours | None = None
        self._claims = _claims(scope)
        self._stories: dict[int, tuple[tuple[int, int], Story]] = {}
        self._free: dict[str, FreeChips] = {}
        self._bound: dict[str, int] = {}
        self.parts = Parts(scope.desired)
        self.trials = PASS_TRIALS
        #: Annotations that pods placed in this pass get beside their chips, by pod key.
        self.given: dict[str, Mapping[str, str]] = {}
        #: Leaf switches and the gangs under them, made by ``switches`` for the first job that asks for them.
        self.board: Board | None = None
        self.unrecorded = 0
        #: Nothing is recorded while what-ifs are played.
        self.quiet = False
        self._recorded = sum(len(row) for row in scope.scores.values())

    @property
    def neighbours(self) -> Neighbours:
        """Affinity counts, made when the first pod needs them."""
        if self._neighbours is None:
            self._neighbours = Neighbours(self.scope.observed, self.views)
        return self._neighbours

    def free_chips(self, resource: str) -> int:
        """Free chips of a resource in the whole shard."""
        known = self._free.get(resource)
        if known is None:
            known = self._free[resource] = FreeChips(self.views, resource, len(self._log))
        return known.total(self._log)

    def table(self, job: Job, pod: Pod) -> Table:
        """The candidates of pods like this one, up to date."""
        key = self._keys.of(job, pod)
        found = self._tables.get(key)
        if found is None:
            penalty = self.scope.penalty.get(job.gang.key, {})
            refused = self.scope.refused.get(job.gang.key, {})
            make = self._maker(job, pod)
            found = self._tables[key] = make(job, pod, self.views, self.trees, penalty, refused, self._grounds_of(pod))
        found.refresh(self._log)
        return found

    def serial(self, node: str) -> int:
        """How many pods of this pass were bound to the node before: 0, 1, 2 …"""
        before = self._bound.get(node, 0)
        self._bound[node] = before + 1
        return before

    def put(self, seated: Seated) -> None:
        """Takes a node's room and chips for a pod."""
        view = self.views[seated.node]
        view.own()
        if seated.shared:
            self.parts.give(seated.pod, seated.node, ids_of(seated.chips)[0], seated.part)
        else:
            view.used |= seated.chips
            view.used_by.update(dict.fromkeys(ids_of(seated.chips), seated.pod.key))
        self._account(view, seated.pod, 1)
        view.pods.append(seated.pod)

    def take_back(self, seated: Sequence[Seated]) -> None:
        """Undoes ``put``, newest first."""
        for item in reversed(seated):
            view = self.views[item.node]
            view.own()
            if item.shared:
                self.parts.take_back(item.pod)
            else:
                view.used &= ~item.chips
                for chip in ids_of(item.chips):
                    view.used_by.pop(chip, None)
            view.pods.remove(item.pod)
            self._account(view, item.pod, -1)

    def release_claims(self, pods: Sequence[Pod]) -> dict[str, Seated]:
        """Takes the ledger's claims of waiting pods off their nodes, so that a half-finished binding can be repeated.

        Returns what was claimed, by pod key; ``restore_claims`` puts it back.
        """
        claimed: dict[str, Seated] = {}
        for pod in pods:
            seat = self._claims.get(pod.uid)
            if seat is not None and seat[0] in self.views:
                name, mask = seat
                claimed[pod.key] = Seated(pod, name, mask)
                view = self.views[name]
                view.own()
                view.used &= ~mask
                for chip in ids_of(mask):
                    view.used_by.pop(chip, None)
                self._account(view, pod, -1)
        return claimed

    def restore_claims(self, claimed: Mapping[str, Seated]) -> None:
        """Puts released claims back: they count until the binding is seen or the pod is gone."""
        for item in claimed.values():
            view = self.views[item.node]
            view.own()
            view.used |= item.chips
            for chip in ids_of(item.chips):
                view.used_by.setdefault(chip, item.pod.key)
            self._account(view, item.pod, 1)

    def seat(self, job: Job, pods: Sequence[Pod], wishes: Wishes) -> tuple[list[Seated], list[Pod]]:
        """Places what it can, in this order: (placed, those without a node). Nothing is taken back."""
        placed: list[Seated] = []
        without: list[Pod] = []
        parked: dict[int, tuple[Table, list[str]]] = {}
        for pod in pods:
            table = self.table(job, pod)
            aside = parked.setdefault(id(table), (table, []))[1]
            item = self._claimed(table, wishes.claimed.get(pod.key))
            name = item.node if item else self._pick(table, pod, wishes, aside)
            if name is None:
                without.append(pod)
                continue
            self.record(job, pod, table)
            item = item or self.seated(job, pod, name, table)
            self.put(item)
            placed.append(item)
        for table, names in parked.values():
            for name in names:
                table.offer(name)
        return placed, without

    def touched(self, since: int) -> tuple[list[str], int]:
        """Nodes where something was put or taken back since a mark, and the next mark; the first mark is 0."""
        return list(dict.fromkeys(self._log[since:])), len(self._log)

    def keeps_scores(self, table: Table) -> bool:
        """Whether ``record`` would keep the scores of this table's nodes."""
        return not self.quiet and self._recorded + len(table.scores) <= MAX_SCORES

    def record(self, job: Job, pod: Pod, table: Table, chosen: Mapping[str, int] | None = None) -> None:
        """Notes the raw scores that the pod's candidates have now; ``chosen`` replaces some of them."""
        if self.quiet or not job.scored or not pod.count:
            return
        if self._recorded + len(table.scores) > MAX_SCORES:
            self.unrecorded += 1
            return
        row: dict[str, float] = {**table.scores}
        if self.neighbours.concerns(pod):
            kept_off = [name for name in row if self.neighbours.refusal(pod, self.views[name]) is not None]
            for name in kept_off:
                del row[name]
        row.update(chosen or {})
        self.scope.scores[pod.key] = row
        self._recorded += len(row)

    def story(self, job: Job, pod: Pod, whole: Refusal | None = None, lacking: int = 1) -> Story:
        """Why the pod has no node, told once for all pods that ask alike while nothing changes; ``lacking`` such pods
        have none.
        """
        if self.quiet:
            return Story({}, "", "", None)
        table = self.table(job, pod)
        known = self._stories.get(id(table))
        if whole is None and known is not None and known[0] == (table.revision, lacking) and not table.scores:
            return known[1]
        refusals = dict(table.refusals)
        for name in table.scores:
            kept_off = self.allowed(pod, name)
            if kept_off is not None:
                refusals[name] = kept_off
        told = story(job, pod, whole, refusals, self.views, lacking)
        if whole is None and not table.scores:
            self._stories[id(table)] = ((table.revision, lacking), told)
        return told

    def seated(self, job: Job, pod: Pod, name: str, table: Table) -> Seated:
        """The pod's seat on a fitting node."""
        chips, part = table.chips(name), table.part(name)
        if isinstance(job.shared, Soft) and chips:
            wish = job.shared
            return Seated(pod, name, chips, part=Share(ids_of(chips)[0], wish.cores, wish.memory, wish.policy))
        return Seated(pod, name, chips, part=part)

    def forget(self, pods: Sequence[Pod]) -> None:
        """Drops the recorded scores of pods that were not placed after all."""
        for pod in pods:
            self._recorded -= len(self.scope.scores.pop(pod.key, {}))

    def candidates(self, job: Job, pod: Pod) -> list[str]:
        """Nodes that fit and that no other pod keeps this one off."""
        names = self.table(job, pod).scores
        if not self.neighbours.concerns(pod):
            return list(names)
        return [name for name in names if self.neighbours.refusal(pod, self.views[name]) is None]

    def allowed(self, pod: Pod, name: str) -> Refusal | None:
        """Why other pods keep this one off the node, None when they do not."""
        neighbours = self.neighbours
        return neighbours.refusal(pod, self.views[name]) if neighbours.concerns(pod) else None

    def _claimed(self, table: Table, seat: Seated | None) -> Seated | None:
        """The claimed seat, if the pod still fits there on exactly those chips."""
        if seat is None or seat.node not in table.scores or self.allowed(seat.pod, seat.node) is not None:
            return None
        fits = seat.chips & ~self.views[seat.node].free == 0 and seat.chips.bit_count() == seat.pod.count
        return seat if fits else None

    def _pick(self, table: Table, pod: Pod, wishes: Wishes, parked: list[str]) -> str | None:
        """The best node for the pod, or the one that the preference for previous nodes names."""
        wanted = self._previous(table, pod, wishes)
        if wanted is not None:
            return wanted
        neighbours = self.neighbours
        concerned, picky = neighbours.concerns(pod), neighbours.prefers(pod)
        if not concerned and not picky:
            return table.best()
        aside: list[str] = []
        equals: list[str] = []
        for name in table.best_first():
            refusal = self.neighbours.refusal(pod, self.views[name]) if concerned else None
            if refusal is ANTI:
                parked.append(name)  # more pods of this gang only make it worse
                continue
            aside.append(name)
            if refusal is not None:
                continue
            if equals and table.level(name) != table.level(equals[0]):
                break
            equals.append(name)
            if not picky:
                break
        for name in aside:
            table.offer(name)
        if len(equals) < 2:
            return equals[0] if equals else None
        liking = {name: table.liking(name) + self.neighbours.liking(pod, self.views[name]) for name in equals}
        return min(equals, key=lambda name: (-liking[name], name))

    def _previous(self, table: Table, pod: Pod, wishes: Wishes) -> str | None:
        """The node that gets the bonus of maximum + 100, so that it wins; None when there is no memory or no such node.

        A pod returns to its own former node, else goes to the best node that no rank of the job had, else to a former
        node of another rank. A pod whose node failed prefers a node new to the job, then its own, never a peer's.
        """
        own = wishes.former.get(pod.key)
        if not (pod.count and wishes.homes and table.scores):
            return None
        if own is None:
            return self._elsewhere(table, pod, wishes.homes)
        if own not in wishes.failed and own in table.scores and self.allowed(pod, own) is None:
            return own
        fits = {name: score for name, score in table.scores.items() if self.allowed(pod, name) is None}
        best_other = min((n for n in fits if n not in wishes.homes), key=lambda n: (-fits[n], n), default=None)
        if own in wishes.failed:
            return best_other or (own if own in fits else None)
        return best_other or min(fits, key=lambda n: (-fits[n], n), default=None)

    def _elsewhere(self, table: Table, pod: Pod, homes: frozenset[str]) -> str | None:
        """The best node for a rank that never ran among those that no rank of the job had; None: there is none."""
        aside: list[str] = []
        found = None
        for name in table.best_first():
            aside.append(name)
            if name not in homes and self.allowed(pod, name) is None:
                found = name
                break
        for name in aside:
            table.offer(name)
        return found

    def _grounds_of(self, pod: Pod) -> fit.Grounds:
        """What the pod's selector, affinity and tolerations make of the nodes, once for all pods with the same."""
        bound = volumes.required(pod, self.scope.observed) if pod.claims else ()
        key = msgspec.json.encode((pod.node_selector, pod.affinity, pod.tolerations, bound), order="deterministic")
        found = self._grounds.get(key)
        if found is None:
            found = self._grounds[key] = fit.grounds(pod, self.views, bound)
        return found

    def _account(self, view: NodeView, pod: Pod, sign: int) -> None:
        for name, amount in pod.requests.items():
            view.requested[name] = view.requested.get(name, 0) + sign * amount
        view.requested["pods"] = view.requested.get("pods", 0) + sign
        if self._neighbours is not None:
            self._neighbours.move(pod, view, sign)
        self._log.append(view.node.name)
        self.parts.touch(view.node.name)

    def _maker(self, job: Job, pod: Pod) -> Callable[..., Table]:
        """The kind of table that judges nodes for the pod."""
        match job.shared if pod.count else None:
            case Dynamic() as kind:
                return partial(CoreTable, self.parts, kind)
            case Soft() as wish:
                return partial(SoftTable, self.parts, wish)
        return Table


def _claims(scope: Scope) -> dict[str, tuple[str, int]]:
    """(node, chips) that the ledger holds for pods without a binding yet, by pod UID."""
    claims: dict[str, tuple[str, int]] = {}
    for claim in sorted(scope.observed.ledger):
        name, _, device = claim.rpartition("/")
        tail = device.rpartition("-")[2]
        uid = scope.observed.ledger[claim]
        if tail.isascii() and tail.isdecimal() and claims.get(uid, (name, 0))[0] == name:
            claims[uid] = (name, claims.get(uid, (name, 0))[1] | 1 << int(tail))
    return claims
