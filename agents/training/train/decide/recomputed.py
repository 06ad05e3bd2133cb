"""Gradients that a second rank has computed too: who computed a wrong one. Pure.

A wrong gradient of one rank enters the sum that all add, so that copies stay equal and wrong. In some steps each rank
computes, beside its own share of the batch, that of another one, from the same weights; both say the checksum of the
gradients before they are reduced. Two that differ are a doubt: training goes back and does the step again, where
another rank checks. A value that two ranks gave is right; otherwise the rank that is part of every doubt is wrong.
A rank that has computed its own share twice, and not alike, is wrong at once. Nothing is judged before all ranks were
found to compute alike once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from belay.agents.training.train.decide.witness import OPEN, Finding, Verdict

DOUBTS = 4
"""Undecided steps whose answers are kept."""


@dataclass(frozen=True)
class Computed:
    """What a rank computed in one step: from weights with the checksum ``weights``, for its own share, and for the
    share of another rank."""

    weights: int
    own: int
    other: int
    found: int


@dataclass
class _Doubt:
    """Answers to an undecided step: (weights, share) → value → ranks; the pairs that differed, an owner and a rank that
    checked it, one set for each time that the step was done."""

    votes: dict[tuple[int, int], dict[int, set[int]]]
    pairs: list[set[tuple[int, int]]]


class Recomputed:
    """The answers of the ranks of a job."""

    def __init__(self) -> None:
        self.off = False
        """Whether ranks do not compute alike by nature."""
        self.attempts = 0
        """How often the newest doubt was met: other ranks check each time."""
        self._armed = False
        self._open: dict[int, dict[int, Computed]] = {}
        self._doubts: dict[int, _Doubt] = {}

    def begin(self) -> None:
        """A generation begins: steps are done again."""
        self._open.clear()

    def answer(self, rank: int, done: int, computed: Computed, ranks: Collection[int]) -> Verdict | None:
        """What a rank computed in the step after ``done`` steps; the verdict once all ``ranks`` have answered."""
        if self.off:
            return None
        answers = self._open.setdefault(done, {})
        answers[rank] = computed
        if not set(ranks) <= answers.keys():
            while len(self._open) > OPEN:
                del self._open[min(self._open)]
            return None
        del self._open[done]
        return self._judge(done, answers)

    def _judge(self, done: int, answers: Mapping[int, Computed]) -> Verdict | None:
        pairs = {
            (one.other, rank)
            for rank, one in answers.items()
            if one.other in answers and one.found != answers[one.other].own
        }
        if not pairs and done not in self._doubts:
            self._armed = True
            return None
        if not self._armed:
            self.off = True
            return Verdict(Finding.NEVER_EQUAL, done, suspects=_members(pairs))
        if twice := tuple(sorted(owner for owner, rank in pairs if owner == rank)):
            return Verdict(Finding.WRONG, done, twice, 1)
        doubt = self._doubts.setdefault(done, _Doubt({}, []))
        while len(self._doubts) > DOUBTS:
            del self._doubts[min(self._doubts)]
        _count(doubt, answers, pairs)
        liars = _outvoted(doubt) or _in_every(doubt.pairs)
        if liars or not pairs:
            del self._doubts[done]
            self.attempts = 0
            suspects = () if liars else _members(doubt.pairs[0])
            return Verdict(Finding.WRONG if pairs else Finding.EQUAL, done, liars, 2, suspects)
        self.attempts = len(doubt.pairs)
        return Verdict(Finding.UNDECIDED, done, suspects=_members(pairs), attempts=self.attempts)


def _count(doubt: _Doubt, answers: Mapping[int, Computed], pairs: set[tuple[int, int]]) -> None:
    if pairs:
        doubt.pairs.append(pairs)
    for rank, one in answers.items():
        for share, value in ((rank, one.own), (one.other, one.found)):
            doubt.votes.setdefault((one.weights, share), {}).setdefault(value, set()).add(rank)


def _outvoted(doubt: _Doubt) -> tuple[int, ...]:
    """The ranks that gave another value than two others, or another one and they themselves when asked again."""
    wrong: set[int] = set()
    for values in doubt.votes.values():
        right = [value for value, ranks in values.items() if len(ranks) > 1]
        if len(values) > 1 and len(right) == 1:
            wrong |= {rank for value, ranks in values.items() if value != right[0] for rank in ranks}
    return tuple(sorted(wrong))


def _in_every(pairs: list[set[tuple[int, int]]]) -> tuple[int, ...]:
    """The rank that is part of every doubt, where it is the only one, and one met by two others."""
    if not pairs:
        return ()
    common = set.intersection(*({rank for pair in found for rank in pair} for found in pairs))
    others = {rank for found in pairs for pair in found for rank in pair} - common
    return tuple(common) if len(common) == 1 and len(others) > 1 else ()


def _members(pairs: set[tuple[int, int]]) -> tuple[int, ...]:
    return tuple(sorted({rank for pair in pairs for rank in pair}))
