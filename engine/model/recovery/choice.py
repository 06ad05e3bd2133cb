"""Which strategy comes next: ClusterD's order, as one function of what failed before, what is configured and offered.

Source: MindCluster's resumable-training documentation and the strategy choice of ClusterD's recovery controller.
"""

from __future__ import annotations

from typing import NamedTuple

from engine.model.recovery.conversation import Conversation, Facts
from engine.model.recovery.words import ELASTIC_DEFAULT_WAIT, HCCL, UCE, Change, Strategy


class Choice(NamedTuple):
    """A strategy, and whether the faulty processes restart in their pods."""

    strategy: Strategy
    in_place: bool = False


def usable_retry(facts: Facts) -> bool:
    """Whether a step may be tried again: configured, and the platform, if any, wants it."""
    return Strategy.RETRY in facts.configured and _platform(facts, Strategy.RETRY)


def choose(talk: Conversation, facts: Facts) -> Choice:
    """The next strategy.

    First: retry, in place, recover, elastic, dump, exit. After a failed retry: in place, recover, elastic, dump, exit.
    After recover or elastic: dump, exit. After anything else: exit.
    """
    if talk.last == "":
        if not talk.normal and talk.ranks and usable_retry(facts):
            return Choice(Strategy.RETRY) if _offers(talk, Change.RETRY) else _dump_or_exit(talk, facts)
        return _from_in_place(talk, facts)
    if talk.last == Change.RETRY:
        return _from_in_place(talk, facts)
    if talk.last in (Change.RECOVER, Change.DOWNGRADE, Change.UPGRADE):
        return _dump_or_exit(talk, facts)
    return Choice(Strategy.EXIT)


def _from_in_place(talk: Conversation, facts: Facts) -> Choice:
    if _in_place(talk, facts):
        return Choice(Strategy.RECOVER, in_place=True)
    if _recovers(talk, facts):
        return Choice(Strategy.RECOVER)
    if may_shrink(talk, facts) and (
        not (facts.pod_rescheduling or facts.job_rescheduling) or not (facts.running and facts.replaced)
    ):
        return Choice(Strategy.ELASTIC)
    return _dump_or_exit(talk, facts)


def _in_place(talk: Conversation, facts: Facts) -> bool:
    return (
        facts.in_place
        and Strategy.IN_PLACE in facts.configured
        and _offers(talk, Change.RECOVER)
        and _platform(facts, Strategy.RECOVER)
    )


def _recovers(talk: Conversation, facts: Facts) -> bool:
    return Strategy.RECOVER in facts.configured and _platform(facts, Strategy.RECOVER) and _offers(talk, Change.RECOVER)


def may_shrink(talk: Conversation, facts: Facts) -> bool:
    """Whether elastic training may go on without the faulty ranks: configured, offered, rank 0 unharmed."""
    return Strategy.ELASTIC in facts.configured and _offers(talk, Change.DOWNGRADE) and not facts.rank_zero_faulty


def waits_for_resources(talk: Conversation, facts: Facts) -> float:
    """Seconds to wait for replacements before elastic training goes on without them; 0 when it does not wait."""
    if talk.last not in ("", Change.RETRY) or not may_shrink(talk, facts):
        return 0.0
    if not (facts.pod_rescheduling or facts.job_rescheduling):
        return 0.0
    retries = not talk.normal and bool(talk.ranks) and usable_retry(facts) and talk.last == ""
    if retries or _in_place(talk, facts) or _recovers(talk, facts):
        return 0.0
    wait = facts.mindio_wait
    return float(wait - 10) if wait is not None and 10 <= wait <= 3600 else float(ELASTIC_DEFAULT_WAIT)


def _dump_or_exit(talk: Conversation, facts: Facts) -> Choice:
    if Strategy.DUMP in facts.configured and _platform(facts, Strategy.DUMP) and _offers(talk, Change.DUMP):
        # MindSpore cannot write a checkpoint while its links are switched over
        if facts.framework == "mindspore" and facts.nic_switched:
            return Choice(Strategy.EXIT)
        return Choice(Strategy.DUMP)
    return Choice(Strategy.EXIT)


def dump_only(facts: Facts) -> bool:
    """Whether the first thing that the job is configured to do is a last checkpoint."""
    order = [strategy for strategy in Strategy if strategy in facts.configured]
    if facts.platform is not None:
        return facts.platform == Strategy.DUMP and Strategy.DUMP in facts.configured
    return bool(order) and order[0] is Strategy.DUMP


def all_normal(talk: Conversation, facts: Facts) -> bool:
    """Whether the retryable faults must be treated as normal ones.

    So when a retry has just failed, when normal faults exist beside them, when retry is not possible, or when memory
    and network faults come together.
    """
    kinds = {rank.kind for rank in talk.ranks}
    return talk.last == Change.RETRY or bool(talk.normal) or not usable_retry(facts) or {UCE, HCCL} <= kinds


def _platform(facts: Facts, strategy: Strategy) -> bool:
    return facts.platform is None or facts.platform == strategy


def _offers(talk: Conversation, change: Change) -> bool:
    return change in talk.agent


__all__ = ["Choice", "all_normal", "choose", "dump_only", "may_shrink", "usable_retry", "waits_for_resources"]
