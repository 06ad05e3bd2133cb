"""Derives one view per node: its pool, product, chips, who holds them, and what its pods request.

Free chips follow component/ascend-for-volcano's ``self-maintain-available-card``: the node's base devices less the
unhealthy, the recovering and the ones that live pods hold; terminating pods hold theirs until they are gone. Nobody
but the device plugin knows which chips of a node with vNPUs are cut: there its own list counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, cast

from engine.documents import Desired, InitParams, NodePool, Product
from engine.model.cluster import DeviceReport, Node, Observed, Pod, mask_of
from engine.model.diagnostics import Diagnostic
from engine.model.resets import groups
from engine.plan import livepods, settled
from engine.plan.inforce import previous_pools
from engine.plan.memo import Memo
from engine.plan.scope import NodeView, Scope
from engine.wire.parts import chip_of

DEFAULT_POOL: Final = "default"
MAIN_SHARD: Final = "main"

#: NPU resources in the order in which one is looked for on a node that has no report.
RESOURCES: Final = ("huawei.com/Ascend910", "huawei.com/Ascend310P", "huawei.com/Ascend310", "huawei.com/npu")

Holding = tuple[int, dict[int, str], dict[str, int]]
"""Mask of the chips that a node's pods hold, who holds each, and what the pods request."""

#: What the pods of each node hold, by node name.
_HOLDINGS: Final[Memo[Holding]] = Memo(32768)


def run(scope: Scope) -> None:
    """Fills ``scope.nodes`` with the nodes of this shard, by name, and ``scope.unsettled``."""
    scope.nodes = views(scope)


def init_params(desired: Desired, observed: Observed) -> InitParams:
    """The scheduler's ``init-params`` in force: the cluster's own before the policies'."""
    return InitParams.from_arguments(observed.init_params, base=desired.settings.init_params)


def views(scope: Scope) -> dict[str, NodeView]:
    """One view per node of the shard, in the order of names; ``scope.unsettled`` gets those that are not settled."""
    observed = scope.observed
    pools, products, reset_groups = _Pools(scope), _Products(scope.desired), _Groups()
    live = livepods.by_node(observed)
    maintain = init_params(scope.desired, observed).self_maintain_available_card
    known = settled.views(scope, live, maintain)
    names = sorted(observed.nodes)
    # most are known: their places in the order of names come without a loop
    out = cast("dict[str, NodeView]", dict(zip(names, map(known.get, names), strict=True)))
    scope.unsettled = {}
    for name in sorted(observed.nodes.keys() - known.keys()) if len(known) < len(names) else ():
        node = observed.nodes[name]
        pool = pools.of(node)
        if (pool.spec.shard if pool else MAIN_SHARD) != scope.shard:
            del out[name]
            continue
        product = products.of(node, pool)
        view = _view(node, pool, product, observed.reports.get(name), live.get(name, []), maintain)
        view.groups = reset_groups.of(product, view.base)
        out[name] = scope.unsettled[name] = view
    _claims(observed, out)
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
    pods: list[Pod],
    maintain: bool,
) -> NodeView:
    resource = _resource(node, product, report)
    listed = report.listed if report else 0
    base = (node.base_chips or listed if maintain else node.base_chips | listed) if resource else 0
    used, used_by, requested = _held(node.name, pods)
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
        pods=list(pods),
        requested=requested,
        suspended=bool(pool and pool.spec.suspend),
        cut=cut,
    )


def _offers_vnpus(node: Node, resource: str) -> bool:
    """Whether the node's device plugin has cut chips beforehand, such as ``huawei.com/Ascend910-4c``."""
    head = f"{resource}-"
    return any(
        amount and name[:-1].startswith(head) and name[len(head)].isdecimal()
        for name, amount in node.allocatable.items()
    )


def _held(node: str, pods: Sequence[Pod]) -> Holding:
    """What the pods of a node hold, as a copy that the pass may change."""
    if not pods:
        return 0, {}, {}
    used, used_by, requested = _HOLDINGS.of(node, tuple(pods), lambda: _holding(pods))
    return used, dict(used_by), dict(requested)


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


def _claims(observed: Observed, out: Mapping[str, NodeView]) -> None:
    """Chips claimed in the ledger by pods whose binding is not seen yet are taken, and so are their requests."""
    if not observed.ledger:
        return
    waiting = {pod.uid: pod for pod in observed.pods.values() if not pod.node and not pod.finished}
    counted: set[tuple[str, str]] = set()
    for claim in sorted(observed.ledger):
        name, _, device = claim.rpartition("/")
        pod, view, chip = waiting.get(observed.ledger[claim]), out.get(name), device_id(device)
        if pod is None or view is None or chip is None:
            continue
        view.own()
        view.used |= 1 << chip
        view.used_by.setdefault(chip, pod.key)
        if (name, pod.uid) not in counted:
            counted.add((name, pod.uid))
            _request(view.requested, pod)


class _Groups:
    """The chips that reset together on a node; remembered per product and chips, which most nodes share."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], tuple[int, ...]] = {}

    def of(self, product: Product | None, base: int) -> tuple[int, ...]:
        key = product.name if product else "", base
        found = self._known.get(key)
        if found is None:
            rule = product.spec.reset if product else None
            written = product.reset_groups if product else ()
            # a server with more chips than its model is another one: an 8-chip A2 with 16 resets as a whole box
            known = rule is not None and product is not None and base.bit_length() <= product.spec.chips_per_node
            found = groups(written, base, scope=rule.scope if rule else None, known=known)
            self._known[key] = found
        return found


class _Products:
    """The product of a node: its pool's, else the one its labels tell; remembered per set of telling labels."""

    def __init__(self, desired: Desired) -> None:
        self._desired = desired
        self._keys = sorted(
            {key for row in desired.products.values() for labels in row.document.spec.node_labels for key in labels}
        )
        self._known: dict[tuple[str | None, ...], Product | None] = {}

    def of(self, node: Node, pool: NodePool | None) -> Product | None:
        if pool and pool.spec.product:
            declared = self._desired.products.get(pool.spec.product)
            return declared.document if declared else None
        telling = tuple(node.labels.get(key) for key in self._keys)
        if telling not in self._known:
            self._known[telling] = self._desired.product_of(node.labels)
        return self._known[telling]


class _Pools:
    """The pool of a node. Two pools that match are an error of the declaration; the previous pool is kept."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._declared = scope.desired.pools
        self._keys = sorted({key for item in self._declared for key in _telling(item.document)})
        self._known: dict[tuple[str | None, ...], tuple[NodePool, ...]] = {}
        self._previous: tuple[NodePool, ...] | None = None

    def of(self, node: Node) -> NodePool | None:
        if not self._declared:
            return None
        telling = tuple(node.labels.get(key) for key in self._keys)
        found = self._known.get(telling)
        if found is None:
            found = tuple(item.document for item in self._scope.desired.pools_of(node.labels))
            self._known[telling] = found
        if len(found) < 2:
            return found[0] if found else None
        return self._keep(node, found)

    def _keep(self, node: Node, found: tuple[NodePool, ...]) -> NodePool:
        if self._previous is None:
            self._previous = previous_pools(self._scope.memory.policy_revision)
        before = {pool.name for pool in self._previous if pool.spec.selector.matches(node.labels)}
        kept = min(found, key=lambda pool: (pool.name not in before, pool.name))
        names = ", ".join(pool.name for pool in found)
        origin = next(item.origin for item in self._declared if item.document.name == found[-1].name)
        self._scope.diagnostics.append(
            Diagnostic(
                severity="error",
                object=f"Node/{node.name}",
                file=origin.file,
                line=origin.line,
                column=origin.column,
                field="spec.selector",
                message=f"node is matched by the pools {names}; it stays in {kept.name}: let only one selector match",
            )
        )
        return kept


def _telling(pool: NodePool) -> Iterable[str]:
    yield from pool.spec.selector.match_labels
    for expression in pool.spec.selector.match_expressions:
        yield expression.key
