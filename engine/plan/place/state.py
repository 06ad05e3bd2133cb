"""The assignments of one pass: pods are put on nodes one gang at a time, all or nothing, and can be taken back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

import msgspec

from belay.engine.documents import InitParams
from belay.engine.model.chip_masks import ids_of
from belay.engine.model.cluster import Pod
from belay.engine.model.quantities import whole_number
from belay.engine.plan.facts import Facts
from belay.engine.plan.node_view import NodeView
from belay.engine.plan.place.families.multilevel import Level, read_trees
from belay.engine.plan.place.handler import Refusal
from belay.engine.plan.place.job import SchedulerJob
from belay.engine.plan.place.nodes import claim_table, fit
from belay.engine.plan.place.nodes.attach_limits import AttachLimits
from belay.engine.plan.place.nodes.claim_choices import ClaimChoices
from belay.engine.plan.place.nodes.equivalence import EquivalentJobs, TableKeys
from belay.engine.plan.place.nodes.free_chips import FreeChips
from belay.engine.plan.place.nodes.pod_affinity import ANTI, PodAffinity
from belay.engine.plan.place.nodes.switch_occupancy import SwitchOccupancy
from belay.engine.plan.place.nodes.table import NodeTable
from belay.engine.plan.place.nodes.volume_choices import VolumeChoices
from belay.engine.plan.place.part_requests import DynamicVNPU, SoftShare
from belay.engine.plan.place.parts.core_table import CoreTable
from belay.engine.plan.place.parts.shares import ChipParts
from belay.engine.plan.place.parts.soft_table import SoftTable
from belay.engine.plan.place.pending import PendingExplanation, explain, naming_claims
from belay.engine.plan.scope import Scope
from belay.engine.wire.parts import Share

#: Most entries of ``Plan.scores`` in one pass; beyond it pods are placed without a record of their candidates.
MAX_SCORES: Final = 200_000
#: Most assignments that searches for mixed gangs try in one pass.
SEARCH_STEPS: Final = 1500


class Assignment(NamedTuple):
    """A pod with its node and chips; ``logical`` and ``super_pod`` only under super-pod rules, else -1.

    ``part`` is the template of a vNPU or the soft share that the pod gets of its chip, empty when it gets whole chips.
    """

    pod: Pod
    node: str
    chips: int
    logical: int = -1
    super_pod: int = -1
    part: str | Share = ""

    @property
    def shared(self) -> bool:
        """Whether other pods may use the pod's chip too."""
        return bool(self.part)


@dataclass(slots=True)
class FormerPlacement:
    """Where a gang's pods were before.

    ``node_of``: former node by pod key; ``claimed``: assignments of a binding that was not completed, by pod key;
    ``job_nodes``: former nodes of all ranks; ``failed``: those of them that failed.
    """

    node_of: Mapping[str, str] = field(default_factory=dict)
    claimed: Mapping[str, Assignment] = field(default_factory=dict)
    failed: frozenset[str] = frozenset()
    job_nodes: frozenset[str] = frozenset()


class PlacementState:
    """The nodes, node tables and assignments of one pass."""

    def __init__(self, scope: Scope, params: InitParams) -> None:
        self.scope = scope
        self.params = params
        self.views = scope.nodes
        trees = read_trees(params.resource_level_config)
        self.trees: Mapping[str, tuple[Level, ...]] = {} if isinstance(trees, Refusal) else trees
        self._log: list[str] = []
        self._tables: dict[bytes, NodeTable] = {}
        self._static_fits: dict[bytes, fit.StaticFit] = {}
        self.equivalent_jobs = EquivalentJobs()
        self.volumes = VolumeChoices(scope.facts.observed, scope.facts.claims, scope.nodes)
        self.attach_limits = AttachLimits(scope.facts.observed, self.volumes.cluster)
        self.claims = ClaimChoices(scope.facts.claims)
        self._table_keys = TableKeys(scope.facts, scope.recovery, self.volumes.cluster)
        self._pod_affinity: PodAffinity | None = None
        self._claims = _claims(scope.facts)
        self._explanations: dict[int, tuple[tuple[int, int], PendingExplanation]] = {}
        self._free: dict[str, FreeChips] = {}
        self._bound: dict[str, int] = {}
        self.parts = ChipParts(scope.facts.desired)
        self.search_steps = SEARCH_STEPS
        #: Annotations beside those of chips, of pods placed in this pass, by pod key.
        self.pod_annotations: dict[str, Mapping[str, str]] = {}
        #: Leaf switches and the gangs under them, made for the first job with switch affinity.
        self.switch_occupancy: SwitchOccupancy | None = None
        self.unrecorded = 0
        #: During a what-if nothing is recorded.
        self.dry_run = False
        self._recorded = sum(len(row) for row in scope.scores.values())

    @property
    def pod_affinity(self) -> PodAffinity:
        """Pod affinity counts, made when the first pod needs them."""
        if self._pod_affinity is None:
            self._pod_affinity = PodAffinity(self.scope.facts.observed, self.views)
        return self._pod_affinity

    def free_chips(self, resource: str) -> int:
        """The number of free chips of a resource in the shard."""
        known = self._free.get(resource)
        if known is None:
            known = self._free[resource] = FreeChips(self.views, resource, len(self._log))
        return known.total(self._log)

    def table(self, job: SchedulerJob, pod: Pod) -> NodeTable:
        """The up-to-date node table of all pods that ask for what this one does."""
        key = self._table_keys.of(job, pod)
        found = self._tables.get(key)
        if found is None:
            penalty = self.scope.recovery.penalty.get(job.gang.key, {})
            refused = self.scope.recovery.refused.get(job.gang.key, {})
            new_table = self._table_type(job, pod)
            found = self._tables[key] = new_table(
                job, pod, self.views, self.trees, penalty, refused, self._static_fit_of(pod)
            )
        found.refresh(self._log)
        return found

    def binding_number(self, node: str) -> int:
        """How many pods were bound to the node earlier in this pass: 0, 1, 2 …"""
        before = self._bound.get(node, 0)
        self._bound[node] = before + 1
        return before

    def assign(self, item: Assignment) -> None:
        """Take a node's resources and chips for a pod."""
        view, pod = self.views[item.node], item.pod
        used, used_by = view.used, view.used_by
        if item.shared:
            self.parts.assign(pod, item.node, ids_of(item.chips)[0], item.part)
        else:
            used |= item.chips
            used_by = {**used_by, **dict.fromkeys(ids_of(item.chips), pod.key)}
        self._record_change(view, pod, 1)
        if self.volumes.concerns(pod):
            self.volumes.assume(pod, view.node)
        if pod.resource_claims:
            used |= self.claims.assume(pod, view, item.chips)
        requested = _with_requests(view, pod, 1)
        self.views.change(item.node, used=used, used_by=used_by, requested=requested, pods=(*view.pods, pod))

    def unassign(self, items: Sequence[Assignment]) -> None:
        """Undo ``assign``, newest first."""
        for item in reversed(items):
            view = self.views[item.node]
            used, used_by, pods = view.used, view.used_by, list(view.pods)
            if item.shared:
                self.parts.unassign(item.pod)
            else:
                used &= ~item.chips
                used_by = _without_chips(view, item.chips)
            pods.remove(item.pod)
            self.volumes.give_back(item.pod)
            used &= ~self.claims.give_back(item.pod, item.node)
            requested = _with_requests(view, item.pod, -1)
            self.views.change(item.node, used=used, used_by=used_by, requested=requested, pods=tuple(pods))
            self._record_change(view, item.pod, -1)

    def release_claims(self, pods: Sequence[Pod]) -> dict[str, Assignment]:
        """Take the ledger's claims of waiting pods off their nodes, so that an interrupted binding can be repeated.

        Returns the claims by pod key, for ``restore_claims``.
        """
        claimed: dict[str, Assignment] = {}
        for pod in pods:
            claim = self._claims.get(pod.uid)
            if claim is not None and claim[0] in self.views:
                name, mask = claim
                claimed[pod.key] = Assignment(pod, name, mask)
                view = self.views[name]
                used_by, requested = _without_chips(view, mask), _with_requests(view, pod, -1)
                self.views.change(name, used=view.used & ~mask, used_by=used_by, requested=requested)
                self._record_change(view, pod, -1)
        return claimed

    def restore_claims(self, claimed: Mapping[str, Assignment]) -> None:
        """Put released claims back: they count until the binding is observed or the pod is gone."""
        for item in claimed.values():
            view = self.views[item.node]
            used_by = {**view.used_by}
            for chip in ids_of(item.chips):
                used_by.setdefault(chip, item.pod.key)
            requested = _with_requests(view, item.pod, 1)
            self.views.change(item.node, used=view.used | item.chips, used_by=used_by, requested=requested)
            self._record_change(view, item.pod, 1)

    def place(
        self, job: SchedulerJob, pods: Sequence[Pod], former: FormerPlacement
    ) -> tuple[list[Assignment], list[Pod]]:
        """Assign as many of these pods as fit, in this order: (assignments, pods without a node). Nothing is undone."""
        placed: list[Assignment] = []
        without: list[Pod] = []
        set_aside: dict[int, tuple[NodeTable, list[str]]] = {}
        for pod in pods:
            table = self.table(job, pod)
            unusable = set_aside.setdefault(id(table), (table, []))[1]
            item = self._claimed(table, former.claimed.get(pod.key))
            name = item.node if item else self._choose_node(table, pod, former, unusable)
            if name is None:
                without.append(pod)
                continue
            self.record(job, pod, table)
            item = item or self.assignment(job, pod, name, table)
            self.assign(item)
            placed.append(item)
        for table, names in set_aside.values():
            for name in names:
                table.put_back(name)
        return placed, without

    def changed_nodes(self, since: int) -> tuple[list[str], int]:
        """The nodes whose assignments changed since a mark, and the next mark; the first mark is 0."""
        return list(dict.fromkeys(self._log[since:])), len(self._log)

    def keeps_scores(self, table: NodeTable) -> bool:
        """Whether ``record`` would keep the scores of this table's nodes."""
        return not self.dry_run and self._recorded + len(table.scores) <= MAX_SCORES

    def record(self, job: SchedulerJob, pod: Pod, table: NodeTable, chosen: Mapping[str, int] | None = None) -> None:
        """Record the raw scores of the pod's candidates as they are now; ``chosen`` replaces some of them."""
        if self.dry_run or not job.scored or not pod.count:
            return
        if self._recorded + len(table.scores) > MAX_SCORES:
            self.unrecorded += 1
            return
        row: dict[str, float] = {**table.scores}
        if self.depends_on_others(pod):
            excluded = [name for name in row if self.affinity_refusal(pod, name) is not None]
            for name in excluded:
                del row[name]
        row.update(chosen or {})
        self.scope.scores[pod.key] = row
        self._recorded += len(row)

    def explain(
        self, job: SchedulerJob, pod: Pod, whole: Refusal | None = None, lacking: int = 1
    ) -> PendingExplanation:
        """Why the pod has no node. Pods that share a table share the answer while no node changes.

        Args:
            whole: the refusal of the whole gang, if there is one.
            lacking: how many such pods have no node.
        """
        if self.dry_run:
            return PendingExplanation({}, "", "", "", None)
        table = self.table(job, pod)
        known = self._explanations.get(id(table))
        if whole is None and known is not None and known[0] == (table.revision, lacking) and not table.scores:
            return known[1]
        refusals = dict(table.refusals)
        for name in table.scores:
            refusal = self.affinity_refusal(pod, name)
            if refusal is not None:
                refusals[name] = refusal
        explanation = explain(
            job, pod, whole, refusals, self.views, lacking, templates=self.scope.facts.desired.template_of_suffix
        )
        explanation = naming_claims(explanation, self.scope.facts.observed, refusals)
        if whole is None and not table.scores:
            self._explanations[id(table)] = ((table.revision, lacking), explanation)
        return explanation

    def assignment(self, job: SchedulerJob, pod: Pod, name: str, table: NodeTable) -> Assignment:
        """The pod's assignment to a fitting node."""
        chips, part = table.chips(name), table.part(name)
        if isinstance(job.shared, SoftShare) and chips:
            cores, memory, policy = job.shared.cores, job.shared.memory, job.shared.policy
            return Assignment(pod, name, chips, part=Share(ids_of(chips)[0], cores, memory, policy))
        return Assignment(pod, name, chips, part=part)

    def forget(self, pods: Sequence[Pod]) -> None:
        """Drop the recorded scores of pods that were not placed after all."""
        for pod in pods:
            self._recorded -= len(self.scope.scores.pop(pod.key, {}))

    def candidates(self, job: SchedulerJob, pod: Pod) -> list[str]:
        """Nodes that fit and that pod affinity, spread and volumes allow."""
        names = self.table(job, pod).scores
        if not self.depends_on_others(pod):
            return list(names)
        return [name for name in names if self.affinity_refusal(pod, name) is None]

    def depends_on_others(self, pod: Pod) -> bool:
        """Whether pods that are placed before this one may close nodes to it: by affinity, spread, volumes or
        claims.
        """
        volumes = self.volumes.concerns(pod) or self.attach_limits.concerns(pod)
        return volumes or self.pod_affinity.concerns(pod) or self.claims.concerns(pod)

    def affinity_refusal(self, pod: Pod, name: str) -> Refusal | None:
        """Why pod affinity, spread or the volumes that are left keep the pod off the node, None when they do not."""
        pod_affinity, view = self.pod_affinity, self.views[name]
        refusal = pod_affinity.refusal(pod, view) if pod_affinity.concerns(pod) else None
        if refusal is None and self.volumes.concerns(pod):
            refusal = self.volumes.refusal(pod, view.node)
        if refusal is None and self.attach_limits.concerns(pod):
            refusal = self.attach_limits.refusal(pod, view)
        if refusal is None and self.claims.concerns(pod):
            refusal = self.claims.refusal(pod, view)
        return refusal

    def _claimed(self, table: NodeTable, item: Assignment | None) -> Assignment | None:
        """The claimed assignment, if the pod still fits there on exactly those chips."""
        if item is None or item.node not in table.scores or self.affinity_refusal(item.pod, item.node) is not None:
            return None
        fits = item.chips & ~self.views[item.node].free == 0 and item.chips.bit_count() == item.pod.count
        return item if fits else None

    def _choose_node(self, table: NodeTable, pod: Pod, former: FormerPlacement, unusable: list[str]) -> str | None:
        """The previous node where that preference applies, else the best one; nodes that no pod of the gang can use any
        more are moved to ``unusable``.
        """
        wanted = self._former_node(table, pod, former)
        if wanted is not None:
            return wanted
        pod_affinity = self.pod_affinity
        concerned, has_preferences = self.depends_on_others(pod), pod_affinity.has_preferences(pod)
        if not concerned and not has_preferences:
            return table.best()
        tried: list[str] = []
        equals: list[str] = []
        for name in table.best_first():
            refusal = self.affinity_refusal(pod, name) if concerned else None
            if refusal is ANTI:
                unusable.append(name)  # further pods of the gang cannot lift the conflict
                continue
            tried.append(name)
            if refusal is not None:
                continue
            if equals and table.rank_score(name) != table.rank_score(equals[0]):
                break
            equals.append(name)
            if not has_preferences:
                break
        for name in tried:
            table.put_back(name)
        if len(equals) < 2:
            return equals[0] if equals else None
        preference = {
            name: table.preference(name) + self.pod_affinity.preference(pod, self.views[name]) for name in equals
        }
        return min(equals, key=lambda name: (-preference[name], name))

    def _former_node(self, table: NodeTable, pod: Pod, former: FormerPlacement) -> str | None:
        """The node that the preference for previous nodes selects (bonus: maximum + 100), None when it selects none.

        A pod returns to its own former node, else goes to the best node that no rank of the job had, else to a former
        node of another rank. A pod whose node failed prefers a node new to the job, then its own, never another rank's.
        """
        own = former.node_of.get(pod.key)
        if not (pod.count and former.job_nodes and table.scores):
            return None
        if own is None:
            return self._new_node(table, pod, former.job_nodes)
        if own not in former.failed and own in table.scores and self.affinity_refusal(pod, own) is None:
            return own
        fits = {name: score for name, score in table.scores.items() if self.affinity_refusal(pod, name) is None}
        best_other = min((n for n in fits if n not in former.job_nodes), key=lambda n: (-fits[n], n), default=None)
        if own in former.failed:
            return best_other or (own if own in fits else None)
        return best_other or min(fits, key=lambda n: (-fits[n], n), default=None)

    def _new_node(self, table: NodeTable, pod: Pod, job_nodes: frozenset[str]) -> str | None:
        """The best node that no rank of the job had, for a rank that never ran; None when there is none."""
        tried: list[str] = []
        found = None
        for name in table.best_first():
            tried.append(name)
            if name not in job_nodes and self.affinity_refusal(pod, name) is None:
                found = name
                break
        for name in tried:
            table.put_back(name)
        return found

    def _static_fit_of(self, pod: Pod) -> fit.StaticFit:
        """The static fit of the pod, shared by all pods with the same selector, affinity, tolerations and volumes."""
        volumes = self.volumes.cluster.rules(pod)
        key = msgspec.json.encode((pod.node_selector, pod.affinity, pod.tolerations, volumes), order="deterministic")
        found = self._static_fits.get(key)
        if found is None:
            found = self._static_fits[key] = fit.static_fit(pod, self.views, volumes)
        return found

    def _record_change(self, view: NodeView, pod: Pod, sign: int) -> None:
        if self._pod_affinity is not None:
            self._pod_affinity.count(pod, view, sign)
        self._log.append(view.node.name)
        self.parts.invalidate(view.node.name)

    def _table_type(self, job: SchedulerJob, pod: Pod) -> Callable[..., NodeTable]:
        """A constructor for the kind of table that the pod needs."""
        match job.shared if pod.count else None:
            case DynamicVNPU() as vnpu:
                return partial(CoreTable, self.parts, vnpu)
            case SoftShare() as share:
                return partial(SoftTable, self.parts, share)
        if pod.count and self.scope.facts.claims.claims_chips(pod):
            return claim_table.of(self.scope.facts.claims)
        return NodeTable


def _with_requests(view: NodeView, pod: Pod, sign: int) -> dict[str, int]:
    """What a node's pods request with one more (+1), or one less (-1)."""
    requested = dict(view.requested)
    for name, amount in pod.requests.items():
        requested[name] = requested.get(name, 0) + sign * amount
    requested["pods"] = requested.get("pods", 0) + sign
    return requested


def _without_chips(view: NodeView, mask: int) -> dict[int, str]:
    """Who holds the node's other chips."""
    return {chip: pod for chip, pod in view.used_by.items() if not mask >> chip & 1}


def _claims(facts: Facts) -> dict[str, tuple[str, int]]:
    """(node, chips) that the ledger holds for pods not bound yet, by pod UID."""
    claims: dict[str, tuple[str, int]] = {}
    for claim in sorted(facts.observed.ledger):
        name, _, device = claim.rpartition("/")
        chip = whole_number(device.rpartition("-")[2], digits=4)
        uid = facts.observed.ledger[claim]
        if chip is not None and claims.get(uid, (name, 0))[0] == name:
            claims[uid] = (name, claims.get(uid, (name, 0))[1] | 1 << chip)
    return claims
