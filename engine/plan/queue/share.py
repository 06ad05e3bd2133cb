"""What each queue deserves: the cluster divided by weight, no queue getting more than it asks for or may have.

Source: Volcano's proportion plugin (pkg/scheduler/plugins/proportion); an explicit ``deserved`` is taken as stated, as
its capacity plugin does. The share of a queue is its largest quotient over all resources.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

#: Most rounds of filling; each satisfies a queue or uses up the resource, so real clusters need few.
MAX_ROUNDS: Final = 200
#: Amounts below this are equal (chips are counted in pieces, cpu in milli-cores, memory in bytes).
TINY: Final = 1e-6


class QueueDemand(NamedTuple):
    """The input of one queue to the division; amounts per resource.

    ``request``: everything its jobs run and wait for; ``capability``: the most it may have; ``guarantee``: the least it
    keeps; ``stated``: an explicit deserved share.
    """

    name: str
    weight: int
    request: Mapping[str, int]
    capability: Mapping[str, int]
    guarantee: Mapping[str, int]
    stated: Mapping[str, int]


def divide(total: Mapping[str, int], claims: Sequence[QueueDemand]) -> dict[str, dict[str, float]]:
    """What every queue deserves of each resource."""
    out: dict[str, dict[str, float]] = {claim.name: {} for claim in claims}
    for resource in sorted({name for claim in claims for name in claim.request}):
        for name, amount in _fill(resource, float(total.get(resource, 0)), claims).items():
            out[name][resource] = amount
    return out


def _fill(resource: str, left: float, claims: Sequence[QueueDemand]) -> dict[str, float]:
    """Divide one resource by water-filling: each round gives by weight; queues that have enough leave the rest to the
    others.
    """
    found: dict[str, float] = {}
    open_claims: list[tuple[QueueDemand, float]] = []
    for claim in claims:
        most = float(claim.request.get(resource, 0))
        if resource in claim.capability:
            most = min(most, float(claim.capability[resource]))
        least = float(claim.guarantee.get(resource, 0))
        if resource in claim.stated:
            found[claim.name] = max(least, min(most, float(claim.stated[resource])))
        else:
            found[claim.name] = least
            if most > least + TINY:
                open_claims.append((claim, most))
        left -= found[claim.name]
    for _ in range(MAX_ROUNDS):
        weights = sum(claim.weight for claim, _ in open_claims)
        if not weights or left <= TINY:
            break
        given = 0.0
        still: list[tuple[QueueDemand, float]] = []
        for claim, most in open_claims:
            more = min(left * claim.weight / weights, most - found[claim.name])
            found[claim.name] += more
            given += more
            if most - found[claim.name] > TINY:
                still.append((claim, most))
        left -= given
        open_claims = still
    return found


def share(allocated: Mapping[str, int], of: Mapping[str, float]) -> float:
    """The largest quotient of what is allocated to what is deserved; a resource of which nothing is deserved counts
    1.
    """
    worst = 0.0
    for resource, amount in allocated.items():
        if amount <= 0:
            continue
        whole = of.get(resource, 0.0)
        worst = max(worst, amount / whole if whole > TINY else 1.0)
    return worst


def exceeds(allocated: Mapping[str, int], deserved: Mapping[str, float], resources: Iterable[str]) -> bool:
    """Whether more is allocated than deserved, of any of these resources."""
    return any(allocated.get(name, 0) > deserved.get(name, 0.0) + TINY for name in resources)


def within(allocated: Mapping[str, int], more: Mapping[str, int], deserved: Mapping[str, float]) -> bool:
    """Whether ``more`` stays within what is deserved, of every resource that it asks for."""
    return all(
        allocated.get(name, 0) + amount <= deserved.get(name, 0.0) + TINY for name, amount in more.items() if amount > 0
    )
