"""Which alternatives of requests (``firstAvailable``) some node has free devices for; equal questions are asked once.

A cluster has thousands of nodes of a few kinds, and most combinations of alternatives differ in nothing but the order
of their requests. Nodes with equal devices, of which the same ones are taken, have one answer, and so have combinations
that ask for the same. Nodes with more free devices come first; the number of searches is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Final, NamedTuple

from belay.engine.plan.claims.bounds import Ask
from belay.engine.plan.claims.devices import Amounts, ClaimDevice, Counter
from belay.engine.plan.claims.matching import match
from belay.engine.plan.claims.requests import ALL, Request

#: Most kinds of nodes that are tried for one combination, those with the most free devices first.
MAX_KINDS: Final = 1024


class NodeOffer(NamedTuple):
    """A node, its devices, the names of those that are taken, and what is left of the counters they share."""

    node: str
    devices: Sequence[ClaimDevice]
    taken: frozenset[str]
    left: Amounts


def first_available(
    combinations: Sequence[Sequence[Ask]],
    offers: Sequence[NodeOffer],
    suiting: Callable[[Request, str], Collection[str]],
) -> int:
    """The number of the first combination that a node has free devices for; 0 if none has.

    Args:
        suiting: names of the devices of a node that suit a request.
    """
    requests = {(ask.request.key, ask.request.admin): ask.request for asks in combinations for ask in asks}
    places = {key: place for place, key in enumerate(requests)}
    every = {ask.request.key: ask.request for asks in combinations for ask in asks if ask.request.count == ALL}
    attributes = sorted({rule.attribute for asks in combinations for ask in asks for rule in ask.constraints})
    # nodes by the number of devices that are free for each request: most of them are ruled out by that
    rows: dict[tuple[int, ...], list[NodeOffer]] = {}
    for offer in offers:
        suits = (suiting(request, offer.node) for request in requests.values())
        free = (
            len(names) if request.admin else sum(name not in offer.taken for name in names)
            for request, names in zip(requests.values(), suits, strict=True)
        )  # fmt: skip
        rows.setdefault(tuple(free), []).append(offer)
    ordered = sorted(rows.items(), key=lambda row: (-sum(row[0]), row[0]))
    shapes: dict[str, Hashable] = {}

    def shape(offer: NodeOffer) -> Hashable:
        if offer.node not in shapes:
            suits = tuple(frozenset(suiting(request, offer.node)) for request in requests.values())
            # "all" counts devices that are selected and do not suit, for their taints
            selected = tuple(
                sum(one.name in names or request.selects(one) for one in offer.devices)
                for request in every.values()
                for names in (suiting(request, offer.node),)
            )
            shapes[offer.node] = (_shape(offer, attributes), suits, selected)
        return shapes[offer.node]

    refused = set()
    for number, asks in enumerate(combinations):
        wish = _wish(asks)
        if wish in refused:
            continue
        needs = [(places[ask.request.key, ask.request.admin], max(ask.request.count, 1)) for ask in asks]
        tried: set[Hashable] = set()
        for offer in (one for free, some in ordered if all(free[at] >= n for at, n in needs) for one in some):
            if shape(offer) in tried:
                continue
            if len(tried) == MAX_KINDS:
                break
            tried.add(shape(offer))
            if _fits(asks, offer, suiting):
                return number
        refused.add(wish)
    return 0


def _fits(asks: Sequence[Ask], offer: NodeOffer, suiting: Callable[[Request, str], Collection[str]]) -> bool:
    def names(request: Request) -> Collection[str]:
        return suiting(request, offer.node)

    return match(asks, offer.devices, names, offer.taken, None, offer.left) is not None


def _wish(asks: Sequence[Ask]) -> Hashable:
    """What a combination asks for, whatever its requests are called."""
    return tuple(
        sorted(
            (ask.claim, ask.request.key, ask.request.count, ask.request.admin,
             tuple(i for i, rule in enumerate(ask.constraints) if rule.concerns(ask.request)))
            for ask in asks
        )
    )  # fmt: skip


def _shape(offer: NodeOffer, attributes: Sequence[str]) -> Hashable:
    """All that a search sees of a node but what suits; pools are named after nodes, so that their own are left out."""
    # only which devices have the same value counts, not which it is
    numbers: dict[Hashable, int] = {}

    def value(device: ClaimDevice, name: str) -> int | None:
        one = device.values.get(name)
        key = (name, type(one), one if isinstance(one, int | str | tuple) else repr(one))
        return None if one is None else numbers.setdefault(key, len(numbers))

    def of(counter: Counter) -> tuple[str, str, str]:
        return ("" if counter.pool == offer.node else counter.pool, counter.of, counter.name)

    return (
        offer.taken,
        tuple(
            (one.name, one.chip, one.part, tuple(value(one, name) for name in attributes),
             tuple((of(counter), amount) for counter, amount in one.consumes))
            for one in offer.devices
        ),
        tuple(sorted((of(counter), amount) for counter, amount in offer.left.items())),
    )  # fmt: skip


__all__ = ["MAX_KINDS", "NodeOffer", "first_available"]
