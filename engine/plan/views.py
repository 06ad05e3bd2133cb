"""The views pass: one view per node, with its pool, product, chips, their pods and the requests of pods.

Free chips follow component/ascend-for-volcano's ``self-maintain-available-card``: the node's base devices without
unhealthy and recovering chips and those of live pods; terminating pods hold theirs until they are gone. Only the
device plugin knows which chips of a node with vNPUs are partitioned: there its own list counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Final, cast

import msgspec

from belay.engine.documents import Desired, InitParams, NodePool, Product
from belay.engine.gangs import live_pods
from belay.engine.model.chip_masks import mask_of
from belay.engine.model.cluster import DeviceReport, Node, Observed, Pod
from belay.engine.model.codes.passes import PassCode
from belay.engine.model.diagnostics import Diagnostic
from belay.engine.model.labels import ASCEND_310, ASCEND_310P, ASCEND_910, NPU
from belay.engine.model.plan_cache import CacheKey, Memo, PlanCache
from belay.engine.model.resets import groups, said_by_driver
from belay.engine.plan import node_cache
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.memberships import PoolSelectors
from belay.engine.plan.node_cache import ResetGroups
from belay.engine.plan.node_view import NodeView, PassNodes
from belay.engine.plan.products import Products, chip_name, contradiction, findings
from belay.engine.plan.rules.in_force import previous_pools
from belay.engine.wire import schedulerconf
from belay.engine.wire.names import DEFAULT_POOL, MAIN_SHARD
from belay.engine.wire.parts import chip_of

#: NPU resources in the order in which one is looked for on a node that has no report.
RESOURCES: Final = (ASCEND_910, ASCEND_310P, ASCEND_310, NPU)

Holding = tuple[int, Mapping[int, str], Mapping[str, int]]
"""Mask of the chips that a node's pods hold, the pod on each, and the sums of the pods' requests."""

_NO_HOLDING: Final[Holding] = (0, MappingProxyType({}), MappingProxyType({}))
#: Holdings by node name.
_HOLDINGS: Final = CacheKey("what pods of nodes hold", Memo[Holding], limit=32768)


def init_params(desired: Desired, observed: Observed) -> InitParams:
    """The scheduler's ``init-params`` in force: the cluster's own before the policies'."""
    base, configured = desired.settings.init_params, schedulerconf.CONFIG_MAP in observed.objects
    return InitParams.from_arguments(observed.init_params, base, configured=configured)


def derive_views(facts: Facts, draft: Draft) -> PassNodes:
    """One view per node of the shard, in the order of names."""
    observed = facts.observed
    pools, products, reset_groups = _Pools(facts, draft), Products(facts.desired), _Groups()
    live = live_pods.by_node(observed, facts.cache)
    maintain = init_params(facts.desired, observed).self_maintain_available_card
    known = node_cache.views(facts, live, maintain)
    names = sorted(observed.nodes)
    # most are known: their places in the order of names come without a loop
    out = PassNodes(zip(names, cast("Iterable[NodeView]", map(known.get, names)), strict=True))
    for name in sorted(observed.nodes.keys() - known.keys()) if len(known) < len(names) else ():
        node = observed.nodes[name]
        pool = pools.of(node)
        if (pool.spec.shard if pool else MAIN_SHARD) != facts.shard:
            del out[name]
            continue
        product = products.of(node, pool)
        report, pods = observed.reports.get(name), live.get(name, ())
        said = node_cache.reset_groups(observed.agents.get(name))
        view = _view(node, pool, product, report, pods, maintain, reset_groups, said, facts.cache)
        chip = chip_name(node, observed.agents.get(name))
        if differs := contradiction(facts.desired, product, report, chip):
            view = msgspec.structs.replace(view, contradiction=differs)
        out[name] = view
        out.unassessed.append(name)
    _claims(observed, out)
    for name, mask in facts.claims.chips.items():
        if name in out and mask & ~out[name].used:
            out.change(name, used=out[name].used | mask & out[name].base)

    out.contested = pools.contested
    draft.diagnostics += findings(facts.desired, {name: out[name] for name in out.unassessed})
    return out


def chip_ids(pod: Pod) -> tuple[int, ...]:
    """Physical ids of the chips that a pod's annotations name."""
    return _ids(pod.chips)


@lru_cache(maxsize=65536)
def _ids(names: tuple[str, ...]) -> tuple[int, ...]:
    found = (device_id(name) for name in names)
    return tuple(sorted({chip for chip in found if chip is not None}))


@lru_cache(maxsize=4096)
def device_id(name: str) -> int | None:
    """The physical chip behind a device name; None when it names none."""
    return chip_of(name)


def _view(
    node: Node,
    pool: NodePool | None,
    product: Product | None,
    report: DeviceReport | None,
    pods: Sequence[Pod],
    maintain: bool,
    reset_groups: _Groups,
    said: ResetGroups,
    cache: PlanCache,
) -> NodeView:
    resource = _resource(node, product, report)
    listed = report.listed if report else 0
    base = (node.base_chips or listed if maintain else node.base_chips | listed) if resource else 0
    used, used_by, requested = _held(node.name, pods, cache)
    unhealthy = report.unhealthy & base if report else 0
    unavailable = unhealthy | (report.recovering & base if report else 0)
    if report and not maintain:
        unavailable |= base & ~report.free & ~used
    cut = base & ~report.free & ~used & ~unavailable if report and _offers_vnpus(node, resource) else 0
    network = None if report is None or report.network_unhealthy is None else report.network_unhealthy & base
    return NodeView(
        node=node,
        pool=pool.name if pool else DEFAULT_POOL,
        product=product,
        report=report,
        resource=resource,
        prefix=_prefix(node, product, report),
        base=base,
        unhealthy=unhealthy,
        unavailable=unavailable,
        network=network,
        used=used & base if base else used,
        used_by=used_by,
        pods=pods,
        requested=requested,
        groups=reset_groups.of(product, base, said),
        suspended=bool(pool and pool.spec.suspend),
        cut=cut,
    )


def _offers_vnpus(node: Node, resource: str) -> bool:
    """Whether the node's device plugin offers static vNPUs, such as ``huawei.com/Ascend910-4c``."""
    head = f"{resource}-"
    return any(
        amount and name[:-1].startswith(head) and name[len(head)].isdecimal()
        for name, amount in node.allocatable.items()
    )


def _held(node: str, pods: Sequence[Pod], cache: PlanCache) -> Holding:
    """The chips that a node's pods hold, and their requests."""
    return cache[_HOLDINGS].of(node, tuple(pods), lambda: _holding(pods)) if pods else _NO_HOLDING


def _holding(pods: Iterable[Pod]) -> Holding:
    used = 0
    used_by: dict[int, str] = {}
    requested: dict[str, int] = {}
    for pod in pods:
        if pod.chips:
            ids = chip_ids(pod)
            used |= mask_of(list(ids))
            for chip in ids:
                used_by.setdefault(chip, pod.key)
        _request(requested, pod)
    return used, used_by, requested


def _request(requested: dict[str, int], pod: Pod) -> None:
    for resource, amount in pod.requests.items():
        requested[resource] = requested.get(resource, 0) + amount
    requested["pods"] = requested.get("pods", 0) + 1


def _resource(node: Node, product: Product | None, report: DeviceReport | None) -> str:
    if report:
        return report.resource
    if product and product.spec.resource != "*":
        return product.spec.resource
    return next((name for name in RESOURCES if node.allocatable.get(name) or node.capacity.get(name)), "")


def _prefix(node: Node, product: Product | None, report: DeviceReport | None) -> str:
    if report:
        return report.prefix
    for name in node.base_devices:
        return name.rpartition("-")[0] + "-"
    return product.spec.device_prefix if product else "Ascend910-"


def _claims(observed: Observed, out: PassNodes) -> None:
    """Count chips and requests of pods with a claim in the ledger whose binding is not observed yet.

    A claim of no pod in the snapshot holds its chips too: a binding may still be under way to a pod of that name.
    """
    if not observed.ledger:
        return
    waiting = {pod.uid: pod for pod in observed.pods.values() if not pod.node and not pod.finished}
    known = {pod.uid for pod in observed.pods.values()}
    counted: set[tuple[str, str]] = set()
    for claim in sorted(observed.ledger):
        name, _, device = claim.rpartition("/")
        uid = observed.ledger[claim]
        pod, view, chip = waiting.get(uid), out.get(name), device_id(device)
        if view is None or chip is None or (pod is None and uid in known):
            continue
        if pod is None:
            out.change(name, used=view.used | 1 << chip)
            continue
        used_by, requested = dict(view.used_by), dict(view.requested)
        used_by.setdefault(chip, pod.key)
        if (name, pod.uid) not in counted:
            counted.add((name, pod.uid))
            _request(requested, pod)
        out.change(name, used=view.used | 1 << chip, used_by=used_by, requested=requested)


class _Groups:
    """Reset groups of nodes: the driver's, as the agent reports them, else the product's.

    Computed once per product, chips and report of groups, which most nodes share.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, int, ResetGroups], tuple[int, ...]] = {}

    def of(self, product: Product | None, base: int, said: ResetGroups) -> tuple[int, ...]:
        key = product.name if product else "", base, said
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = said_by_driver(said, base) or _of_product(product, base)
        return found


def _of_product(product: Product | None, base: int) -> tuple[int, ...]:
    rule = product.spec.reset if product else None
    written = product.reset_groups if product else ()
    # a server with more chips than its model is another one: an 8-chip A2 with 16 resets as a whole box
    known = rule is not None and product is not None and base.bit_length() <= product.spec.chips_per_node
    return groups(written, base, scope=rule.scope if rule else None, known=known)


class _Pools:
    """The pool of a node; two matching pools are an error, and the node stays in its previous one."""

    def __init__(self, facts: Facts, draft: Draft) -> None:
        self._draft = draft
        #: Names of nodes that several pools select.
        self.contested: set[str] = set()
        self._declared = facts.desired.pools
        self._selectors = PoolSelectors([item.document for item in self._declared])
        self._previous: tuple[NodePool, ...] | None = None

    def of(self, node: Node) -> NodePool | None:
        if not self._declared:
            return None
        found = self._selectors.of(node.labels)
        if len(found) < 2:
            return found[0] if found else None
        return self._keep(node, found)

    def _keep(self, node: Node, found: tuple[NodePool, ...]) -> NodePool:
        if self._previous is None:
            self._previous = previous_pools(self._draft.memory.policy_revision)
        before = {pool.name for pool in self._previous if pool.spec.selector.matches(node.labels)}
        kept = min(found, key=lambda pool: (pool.name not in before, pool.name))
        names = ", ".join(pool.name for pool in found)
        stays = f"it stays in {kept.name}: let only one selector match"
        origin = next(item.origin for item in self._declared if item.document.name == found[-1].name)
        self.contested.add(node.name)
        self._draft.diagnostics.append(
            Diagnostic(
                severity="error",
                object=f"Node/{node.name}",
                file=origin.file,
                line=origin.line,
                column=origin.column,
                field="spec.selector",
                message=f"node {node.name} is matched by the pools {names}; {stays}",
                code=PassCode.TWO_POOLS,
            )
        )
        return kept
