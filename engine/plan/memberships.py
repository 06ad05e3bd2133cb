"""The pools of nodes, and what declarations about pools are about: who left a pool, and what selects nothing.

An edit of a selector moves no pod, but fault policies, budgets and layouts no longer cover the nodes that leave. The
memory keeps the pools before such an edit, so that it is reported for a while, not only in the pass that saw it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import msgspec

from belay.engine.documents import SHIPPED, Declared, Desired, FaultPolicy, NodePool, SafetyBudget
from belay.engine.model.cluster import Node
from belay.engine.model.codes.findings import FindingCode
from belay.engine.model.codes.passes import PassCode
from belay.engine.model.diagnostics import Diagnostic, Origin, Severity
from belay.engine.model.history import PoolEdit
from belay.engine.model.plan_cache import CacheKey, PlanCache, Slot, differing
from belay.engine.model.times import rfc3339
from belay.engine.model.wording import counted
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.products import Products
from belay.engine.plan.rules.in_force import previous_pools
from belay.engine.wire.names import DEFAULT_POOL, MAIN_SHARD

#: For how long an edit of pools is reported (24 h).
SHOWN_MS: Final = 86_400_000
#: A larger text of pools is not kept.
MAX_CHARS: Final = 100_000
_SHOWN: Final = 5


class PoolMove(NamedTuple):
    """Nodes that an edit takes from one pool to another, and how many the first one had."""

    source: str
    target: str
    nodes: tuple[str, ...]
    total: int


class PoolSelectors:
    """The pools whose selectors match a node; computed once per set of values of the labels that they name."""

    def __init__(self, pools: Sequence[NodePool]) -> None:
        self._pools = pools
        self._keys = sorted({key for pool in pools for key in _labels_in(pool)})
        self._known: dict[tuple[str | None, ...], tuple[NodePool, ...]] = {}

    def of(self, labels: Mapping[str, str]) -> tuple[NodePool, ...]:
        """All that match; more than one is an error of the declaration."""
        telling = tuple([labels.get(key) for key in self._keys])
        found = self._known.get(telling)
        if found is None:
            found = tuple(pool for pool in self._pools if pool.spec.selector.matches(labels))
            self._known[telling] = found
        return found


class _Places(NamedTuple):
    """Pool and product of every node, for a desired state and its nodes; ``counts`` of each pair.

    A node that several pools match counts for each of them: which of them it stays in depends on what was before.
    """

    desired: Desired
    nodes: Mapping[str, Node]
    of_node: dict[str, tuple[tuple[str, str], ...]]
    counts: Mapping[tuple[str, str], int]


_PLACES: Final = CacheKey("pools and products of nodes", Slot[_Places])


def report_memberships(facts: Facts, draft: Draft) -> None:
    """Report what selects or covers nothing, and nodes that the last edits took from their pools; one shard does it for
    all.
    """
    if not facts.observed.nodes or facts.shard != MAIN_SHARD:
        return
    draft.diagnostics += idle_declarations(facts.desired, facts.observed.nodes, facts.cache)
    _remember_edit(facts, draft)
    draft.diagnostics += _edit_findings(facts, draft)


# what selects nothing


def idle_declarations(desired: Desired, nodes: Mapping[str, Node], cache: PlanCache | None = None) -> list[Diagnostic]:
    """Warnings for selectors, policies and maintenance windows that are about no node."""
    policies = [item for item in desired.fault_policies if not item.origin.file.startswith(SHIPPED)]
    found = list(_idle_selectors(desired, nodes))
    if policies or desired.budgets:
        places = _places(desired, nodes, PlanCache() if cache is None else cache)
        found += [one for item in policies for one in _idle_policy(item, places)]
        found += [one for item in desired.budgets for one in _idle_windows(item, places)]
    return found


def _idle_selectors(desired: Desired, nodes: Mapping[str, Node]) -> Iterator[Diagnostic]:
    pools = [(one.document, one.document.spec.selector, one.origin) for one in desired.pools]
    layouts = [(one.document, one.document.spec.selector, one.origin) for one in desired.layouts]
    for document, selector, origin in (*pools, *layouts):
        if selector is None or any(selector.matches(node.labels) for node in nodes.values()):
            continue
        near = _near_labels(selector.match_labels, nodes)
        text = f"matches none of {counted(len(nodes), 'node')} of the cluster{near}"
        yield _covers_nothing(document.KIND, document.name, origin, "spec.selector", text)


def _near_labels(wanted: Mapping[str, str], nodes: Mapping[str, Node]) -> str:
    """The values that nodes have for the first label that none matches."""
    for key, value in sorted(wanted.items()):
        found = {node.labels[key] for node in nodes.values() if key in node.labels}
        if value not in found:
            return f": {key} is {_listed(sorted(found))} there, not {value}" if found else f": no node has label {key}"
    return ""


def _idle_policy(item: Declared[FaultPolicy], places: _Places) -> Iterator[Diagnostic]:
    """A finding for a policy whose scope holds no node."""
    scope = item.document.spec.scope
    named = chain.from_iterable(places.of_node.get(name, ()) for name in scope.nodes)
    among = named if scope.nodes else places.counts
    if any(_is_in(pool, scope.pools) and _is_in(product, scope.products) for pool, product in among):
        return
    parts = (("node", scope.nodes), ("pool", scope.pools), ("product", scope.products))
    words = " with ".join(f"{word} {' or '.join(names)}" for word, names in parts if names)
    text = f"covers nothing: the cluster has no {words}; correct spec.scope, or remove the policy"
    yield _covers_nothing(item.document.KIND, item.document.name, item.origin, "spec.scope", text)


def _idle_windows(item: Declared[SafetyBudget], places: _Places) -> Iterator[Diagnostic]:
    """Of a budget, the pools of its windows that have no node."""
    here = {pool for pool, _ in places.counts}
    for index, window in enumerate(item.document.spec.windows):
        if window.pools and here.isdisjoint(window.pools):
            text = f"covers nothing: no node is in pool {' or '.join(window.pools)}; correct the names or the selectors"
            yield _covers_nothing(
                item.document.KIND, item.document.name, item.origin, f"spec.windows[{index}].pools", text
            )


def _is_in(name: str, wanted: Sequence[str]) -> bool:
    return not wanted or name in wanted


def _places(desired: Desired, nodes: Mapping[str, Node], cache: PlanCache) -> _Places:
    """Pool and product of every node; only nodes that changed since the last pass are looked at again."""
    slot = cache[_PLACES]
    last = slot.value if slot.value is not None and slot.value.desired is desired else None
    if last is not None and last.nodes is nodes:
        return last

    selectors, products = PoolSelectors([item.document for item in desired.pools]), Products(desired)
    of_node = dict(last.of_node) if last is not None else {}
    for name in differing(nodes, last.nodes) if last is not None else nodes:
        of_node.pop(name, None)
        if name in nodes:
            pools = selectors.of(nodes[name].labels) or (None,)
            of_node[name] = tuple(_place(nodes[name], pool, products) for pool in pools)
    slot.value = _Places(desired, nodes, of_node, Counter(chain.from_iterable(of_node.values())))
    return slot.value


def _place(node: Node, pool: NodePool | None, products: Products) -> tuple[str, str]:
    """The names of the pool and of the product that a node has in it."""
    product = products.of(node, pool)
    return (pool.name if pool else DEFAULT_POOL, product.name if product else "")


# who left a pool


def pool_moves(before: Sequence[NodePool], after: Sequence[NodePool], nodes: Mapping[str, Node]) -> list[PoolMove]:
    """The nodes that are in another pool by the selectors ``after`` than by those ``before``, by pools."""
    old, new = PoolSelectors(before), PoolSelectors(after)
    totals: Counter[str] = Counter()
    moved: dict[tuple[str, str], list[str]] = {}
    for name in sorted(nodes):
        labels = nodes[name].labels
        was, now = old.of(labels), new.of(labels)
        source = was[0].name if was else DEFAULT_POOL
        totals[source] += 1
        if source not in ([pool.name for pool in now] or [DEFAULT_POOL]):
            moved.setdefault((source, now[0].name if now else DEFAULT_POOL), []).append(name)
    return [PoolMove(*pair, tuple(names), totals[pair[0]]) for pair, names in sorted(moved.items())]


def _remember_edit(facts: Facts, draft: Draft) -> None:
    """Keep the pools before an edit that moves nodes; of several edits, those before the first."""
    edit = draft.memory.pool_edit
    if edit is not None and facts.now_ms - edit.since >= SHOWN_MS:
        draft.memory.pool_edit = edit = None
    if edit is not None or not draft.memory.policy_revision:
        return

    before = previous_pools(draft.memory.policy_revision)
    declared = [item.document for item in facts.desired.pools]
    if not before or _selected(before) == _selected(declared):
        return
    if pool_moves(before, declared, facts.observed.nodes):
        kept = json.dumps([pool.manifest() for pool in before], sort_keys=True, separators=(",", ":"))
        if len(kept) <= MAX_CHARS:
            draft.memory.pool_edit = PoolEdit(facts.now_ms, facts.desired.revision, kept)


def _selected(pools: Iterable[NodePool]) -> list[tuple[str, Any]]:
    """What decides who is in which pool."""
    return sorted((pool.name, msgspec.json.encode(pool.manifest()["spec"]["selector"])) for pool in pools)


def _edit_findings(facts: Facts, draft: Draft) -> Iterator[Diagnostic]:
    """Who left a pool by the edit that the memory keeps; the edit is forgotten once all are back."""
    edit = draft.memory.pool_edit
    if edit is None:
        return
    declared = [item.document for item in facts.desired.pools]
    moves = pool_moves(_read_pools(edit.pools), declared, facts.observed.nodes)
    if not moves:
        draft.memory.pool_edit = None
        return
    lost = Counter[str]()
    for move in moves:
        lost[move.source] += len(move.nodes)
    for move in moves:
        many = move.source != DEFAULT_POOL and 2 * lost[move.source] >= move.total
        yield _move_finding(facts.desired, edit, move, "warning" if many else "info")


def _read_pools(text: str) -> list[NodePool]:
    try:
        return [NodePool.model_validate(row) for row in json.loads(text)]
    except (ValueError, TypeError, RecursionError):
        return []


def _move_finding(desired: Desired, edit: PoolEdit, move: PoolMove, severity: Severity) -> Diagnostic:
    declared = desired.pool_index.get(move.source)
    origin = declared.origin if declared is not None else Origin("", 0, 0)
    revision = f" (revision {edit.revision[:12]})" if edit.revision else ""
    seen, end = rfc3339(edit.since / 1000), rfc3339((edit.since + SHOWN_MS) / 1000)

    text = (
        f"{_who_left(move, declared is not None)} with an edit seen at {seen}{revision}: {_where_now(move)}"
        f"{_uncovered(desired, move)}. Nothing to do if that was meant: this is shown until {end}; else correct "
        "spec.selector"
    )
    return Diagnostic(
        severity,
        f"NodePool/{move.source}",
        origin.file,
        origin.line,
        origin.column,
        "spec.selector",
        text,
        PassCode.NODES_LEFT,
    )


def _who_left(move: PoolMove, declared: bool) -> str:
    if move.source == DEFAULT_POOL:
        return f"{counted(len(move.nodes), 'node')} left pool {DEFAULT_POOL}"
    gone = "" if declared else ", which is no longer declared,"
    return f"{len(move.nodes)} of {move.total} nodes left pool {move.source}{gone}"


def _where_now(move: PoolMove) -> str:
    where = "no declared pool" if move.target == DEFAULT_POOL else f"pool {move.target}"
    return f"{_listed(move.nodes)} {'is' if len(move.nodes) == 1 else 'are'} in {where} now"


def _uncovered(desired: Desired, move: PoolMove) -> str:
    """The fault policies that name the pool which the nodes left, and not the one in which they are."""
    scopes = [(item.document.name, item.document.spec.scope.pools) for item in desired.fault_policies]
    lost = [name for name, pools in scopes if move.source in pools and move.target not in pools]
    return f"; FaultPolicy {_listed(lost)} no longer covers them" if lost else ""


def _labels_in(pool: NodePool) -> Iterator[str]:
    yield from pool.spec.selector.match_labels
    for expression in pool.spec.selector.match_expressions:
        yield expression.key


def _covers_nothing(kind: str, name: str, origin: Origin, field: str, text: str) -> Diagnostic:
    place = (origin.file, origin.line, origin.column)
    return Diagnostic("warning", f"{kind}/{name}", *place, field, text, FindingCode.COVERS_NOTHING)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
