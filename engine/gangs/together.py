"""How many pods of a workload start together, by the row of its kind or by the rule for kinds without one.

The rule: pods of one workload that ask for chips start together or not at all. Its object says how many they are; where
nothing says it, those that are there when no more come.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from belay.engine.gangs.declared import (
    DeclaredSize,
    declared_size,
    is_stepwise,
    label_or_annotation,
    says_size,
    size_of_group,
    value_at,
)
from belay.engine.gangs.owners import JobOwner
from belay.engine.model.cluster import Pod
from belay.engine.model.quantities import whole_number
from belay.engine.model.workload_kinds import StartTogether

#: How long pods wait for more where nothing says how many they are; controllers make pods in batches without pauses.
SETTLE_SECONDS: Final = 5.0
#: How long they wait where an object says it that was not seen: its kind may have come to be served just now.
UNSEEN_SECONDS: Final = 60.0


class GangStart(NamedTuple):
    """How many pods start together, how many the workload has, and how many of them with chips its object declares (0:
    it does not say). ``settles``: the seconds for which no pod may have come where the number is not known."""

    least: int
    replicas: int
    declared: int = 0
    settles: float = 0.0


class StatedFields(NamedTuple):
    """What the fields of an object that its row names say about its gang."""

    queue: str = ""
    priority_class: str = ""
    annotations: Mapping[str, str] = {}


def start_of(owner: JobOwner, pods: Sequence[Pod]) -> GangStart:
    """How the pods of a workload start, finished ones included."""
    live = [pod for pod in pods if not pod.finished]
    # pods without chips are neither waited for nor left behind: a launcher may come when the workers run
    others = sum(1 for pod in pods if not pod.count and pod.phase != "Failed")
    row, raw = owner.sized_by or (owner.row, owner.raw)
    if row is not None and is_stepwise(row, raw):
        return GangStart(1, max(1, len(live)))
    if number := _size_by_labels(owner, live):
        return GangStart(number, number, declared=number)

    size = declared_size(row, raw) if row is not None else None
    if size is None or not size.with_chips:
        there = sum(1 for pod in live if pod.count)
        unseen = row is not None and says_size(row) and not raw
        return _unsaid(there, others, size, len(live), UNSEEN_SECONDS if unseen else SETTLE_SECONDS)

    least = (size.minimum or size.with_chips) + (0 if size.counts_all else others)
    return GangStart(least, max(size.pods, len(live)), declared=least)


def _size_by_labels(owner: JobOwner, live: Sequence[Pod]) -> int:
    """How many pods one group of a workload has by the labels of its pods; 0 where they do not say it.

    They speak for kinds that start by groups, and for workloads whose own object was not seen.
    """
    row, raw = owner.sized_by or (owner.row, owner.raw)
    number = 0
    if row is not None and row.together is StartTogether.GROUPS:
        number = size_of_group(row, raw, live)
    if not number and owner.row is not None and not owner.raw:
        number = size_of_group(owner.row, {}, live)
    return number


def _unsaid(there: int, others: int, size: DeclaredSize | None, live: int, settles: float) -> GangStart:
    """Of a workload whose object does not say how many pods ask for chips."""
    if size is not None and size.minimum:
        return GangStart(size.minimum, max(live, size.minimum), declared=size.minimum)
    return GangStart(there + others, live, settles=settles)


def in_order(owner: JobOwner, pods: list[Pod]) -> list[Pod]:
    """Pods in the order of the numbers that the row's keys give them, else as they are."""
    keys = owner.row.rank_keys if owner.row is not None else ()
    return sorted(pods, key=lambda pod: _rank(keys, pod)) if keys else pods


def stated_fields(owner: JobOwner) -> StatedFields:
    """Queue, priority class and annotations of a gang that stand in fields of its object."""
    row = owner.row
    if row is None or not owner.raw:
        return StatedFields()
    notes = {key: text for key, path in row.annotations if (text := _text_at(owner.raw, path))}
    return StatedFields(_first_text(owner, row.queue), _first_text(owner, row.priority_class), notes)


def _first_text(owner: JobOwner, path: tuple[str, ...]) -> str:
    return _text_at(owner.raw, path) if path else ""


def _text_at(raw: Mapping[str, object], path: Iterable[str]) -> str:
    value = value_at(raw, path)
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def _rank(keys: Iterable[str], pod: Pod) -> int:
    numbers = (whole_number(label_or_annotation(pod, key)) for key in keys)
    return next((number for number in numbers if number is not None), 1 << 30)
