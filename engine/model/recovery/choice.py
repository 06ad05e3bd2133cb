"""The next strategy: ClusterD's order, as a function of what failed before, is configured and is offered.

Source: MindCluster's resumable-training documentation and the strategy choice of ClusterD's recovery controller.
"""

from __future__ import annotations

from typing import NamedTuple

from belay.engine.model.recovery.conversation import Conversation, JobFacts
from belay.engine.model.recovery.protocol import ELASTIC_DEFAULT_WAIT, HCCL, UCE, ChangeStrategy, RecoveryStrategy


class StrategyChoice(NamedTuple):
    """A strategy, and whether the faulty processes restart in their pods."""

    strategy: RecoveryStrategy
    in_place: bool = False


def usable_retry(facts: JobFacts) -> bool:
    """Whether a step retry is possible: configured, and wanted by the platform, if any."""
    return RecoveryStrategy.RETRY in facts.configured and _platform(facts, RecoveryStrategy.RETRY)


def choose(conversation: Conversation, facts: JobFacts) -> StrategyChoice:
    """The next strategy.

    First: retry, in place, recover, elastic, dump, exit. After a failed retry: in place, recover, elastic, dump, exit.
    After recover or elastic: dump, exit. After anything else: exit.
    """
    if conversation.last == "":
        if not conversation.normal and conversation.ranks and usable_retry(facts):
            return (
                StrategyChoice(RecoveryStrategy.RETRY)
                if _offers(conversation, ChangeStrategy.RETRY)
                else _dump_or_exit(conversation, facts)
            )
        return _from_in_place(conversation, facts)
    if conversation.last == ChangeStrategy.RETRY:
        return _from_in_place(conversation, facts)
    if conversation.last in (ChangeStrategy.RECOVER, ChangeStrategy.DOWNGRADE, ChangeStrategy.UPGRADE):
        return _dump_or_exit(conversation, facts)
    return StrategyChoice(RecoveryStrategy.EXIT)


def _from_in_place(conversation: Conversation, facts: JobFacts) -> StrategyChoice:
    if _in_place(conversation, facts):
        return StrategyChoice(RecoveryStrategy.RECOVER, in_place=True)
    if _recovers(conversation, facts):
        return StrategyChoice(RecoveryStrategy.RECOVER)
    if may_shrink(conversation, facts) and (
        not (facts.pod_rescheduling or facts.job_rescheduling) or not (facts.running and facts.replaced)
    ):
        return StrategyChoice(RecoveryStrategy.ELASTIC)
    return _dump_or_exit(conversation, facts)


def _in_place(conversation: Conversation, facts: JobFacts) -> bool:
    return (
        facts.in_place
        and not conversation.in_place_failed
        and RecoveryStrategy.IN_PLACE in facts.configured
        and _offers(conversation, ChangeStrategy.RECOVER)
        and _platform(facts, RecoveryStrategy.RECOVER)
    )


def _recovers(conversation: Conversation, facts: JobFacts) -> bool:
    return (
        RecoveryStrategy.RECOVER in facts.configured
        and _platform(facts, RecoveryStrategy.RECOVER)
        and _offers(conversation, ChangeStrategy.RECOVER)
    )


def may_shrink(conversation: Conversation, facts: JobFacts) -> bool:
    """Whether elastic training may continue without the faulty ranks: configured, offered, rank 0 healthy."""
    return (
        RecoveryStrategy.ELASTIC in facts.configured
        and _offers(conversation, ChangeStrategy.DOWNGRADE)
        and not facts.rank_zero_faulty
    )


def waits_for_resources(conversation: Conversation, facts: JobFacts) -> float:
    """Seconds to wait for replacements before elastic training continues without them; 0 when it does not wait."""
    if conversation.last not in ("", ChangeStrategy.RETRY) or not may_shrink(conversation, facts):
        return 0.0
    if not (facts.pod_rescheduling or facts.job_rescheduling):
        return 0.0
    retries = not conversation.normal and bool(conversation.ranks) and usable_retry(facts) and conversation.last == ""
    if retries or _in_place(conversation, facts) or _recovers(conversation, facts):
        return 0.0
    wait = facts.mindio_wait
    return float(wait - 10) if wait is not None and 10 <= wait <= 3600 else float(ELASTIC_DEFAULT_WAIT)


def _dump_or_exit(conversation: Conversation, facts: JobFacts) -> StrategyChoice:
    if (
        RecoveryStrategy.DUMP in facts.configured
        and _platform(facts, RecoveryStrategy.DUMP)
        and _offers(conversation, ChangeStrategy.DUMP)
    ):
        # MindSpore cannot write a checkpoint while its links are switched over
        if facts.framework == "mindspore" and facts.nic_switched:
            return StrategyChoice(RecoveryStrategy.EXIT)
        return StrategyChoice(RecoveryStrategy.DUMP)
    return StrategyChoice(RecoveryStrategy.EXIT)


def dump_only(facts: JobFacts) -> bool:
    """Whether the first configured strategy is a last checkpoint."""
    order = [strategy for strategy in RecoveryStrategy if strategy in facts.configured]
    if facts.platform is not None:
        return facts.platform == RecoveryStrategy.DUMP and RecoveryStrategy.DUMP in facts.configured
    return bool(order) and order[0] is RecoveryStrategy.DUMP


def all_normal(conversation: Conversation, facts: JobFacts) -> bool:
    """Whether retryable faults must be treated as normal ones.

    So when a retry has just failed, when normal faults exist beside them, when retry is not possible, or when memory
    and network faults come together.
    """
    kinds = {rank.kind for rank in conversation.ranks}
    return (
        conversation.last == ChangeStrategy.RETRY
        or bool(conversation.normal)
        or not usable_retry(facts)
        or {UCE, HCCL} <= kinds
    )


def _platform(facts: JobFacts, strategy: RecoveryStrategy) -> bool:
    return facts.platform is None or facts.platform == strategy


def _offers(conversation: Conversation, change: ChangeStrategy) -> bool:
    return change in conversation.agent


__all__ = ["StrategyChoice", "all_normal", "choose", "dump_only", "may_shrink", "usable_retry", "waits_for_resources"]
