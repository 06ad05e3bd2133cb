"""Who gives its state to whom in a repair. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from belay.agents.training.train.decide.members import RankStatus

LAYOUT_MARK = "#"
"""Before the checksum of names and shapes that ends the name of a shard: ranks with other parameters hold no copies."""

WHOLE = "the whole state"
"""What a rank holds that names no part."""


def shard_text(shard: str) -> str:
    """A shard in a message."""
    return shard.partition(LAYOUT_MARK)[0] or WHOLE


def donors(members: Iterable[RankStatus], holders: Collection[int]) -> dict[int, int]:
    """Receiver → donor: each rank that is no holder gets its shard from one, from its own node if there is one, and
    each holder gives about equally often. Every shard must have a holder.
    """
    ranks = list(members)
    copies: dict[str, list[RankStatus]] = {}
    for one in ranks:
        if one.rank in holders:
            copies.setdefault(one.shard, []).append(one)
    found: dict[int, int] = {}
    given: dict[int, int] = {}
    for member in ranks:
        if member.rank in holders:
            continue
        order = [(given.get(one.rank, 0), one.node != member.node, one.rank) for one in copies[member.shard]]
        *_, best = min(order)
        given[best] = given.get(best, 0) + 1
        found[member.rank] = best
    return found


def ranks_text(numbers: Sequence[int]) -> str:
    """Ranks in a message, at most 20 of them."""
    text = ", ".join(map(str, numbers[:20])) + (f" and {len(numbers) - 20} more" if len(numbers) > 20 else "")
    return f"rank {text}" if len(numbers) == 1 else f"ranks {text}"
