"""The gangs of one pass, and which shard decides for each of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from belay.engine.gangs.grouping import grouping
from belay.engine.model.cluster import Pod
from belay.engine.model.jobs import Gang
from belay.engine.model.labels import SHARD_LABEL
from belay.engine.plan.facts import Facts
from belay.engine.wire.names import MAIN_SHARD


class PassGangs(dict[str, Gang]):
    """The gangs of one pass by key.

    ``of_pod`` is the gang's key by that of a live pod. ``members`` are all pods of each gang, finished ones included,
    in the order of their keys.
    """

    __slots__ = ("members", "of_pod")

    def __init__(
        self,
        gangs: Mapping[str, Gang] = MappingProxyType({}),
        of_pod: Mapping[str, str] = MappingProxyType({}),
        members: Mapping[str, Sequence[Pod]] = MappingProxyType({}),
    ) -> None:
        super().__init__(gangs)
        self.of_pod = of_pod
        self.members = members


def group_pods(facts: Facts) -> PassGangs:
    """The gangs of the snapshot's pods."""
    found = grouping(facts.observed, facts.cache)
    return PassGangs(found.gangs, found.gang_of, found.members)


def shard_of(facts: Facts, gang: Gang) -> str:
    """The shard that decides for a gang."""
    return shard_for(facts, gang.labels, [facts.observed.pods[key].node_selector for key in gang.pods[:1]])


def shard_for(facts: Facts, labels: Mapping[str, str], selectors: Iterable[Mapping[str, str]]) -> str:
    """The shard that decides for a job: its label, else the only one its node selection can match, else ``main``."""
    label = labels.get(SHARD_LABEL)
    if label:
        return label
    pools = [pool.document for pool in facts.desired.pools]
    if all(pool.spec.shard == MAIN_SHARD for pool in pools):
        return MAIN_SHARD
    wanted = [pair for selector in selectors for pair in selector.items()]
    found: set[str] = set()
    for node in facts.observed.nodes.values():
        if all(node.labels.get(key) == value for key, value in wanted):
            pool = next((pool for pool in pools if pool.spec.selector.matches(node.labels)), None)
            found.add(pool.spec.shard if pool else MAIN_SHARD)
    return found.pop() if len(found) == 1 else MAIN_SHARD
