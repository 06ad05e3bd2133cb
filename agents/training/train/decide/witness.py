"""Copies that must be equal are witnesses of each other's results: which steps are proven, and who computed a wrong
one. Pure.

After an update, ranks that hold copies have the same weights, bit for bit: all have added the same reduced gradients.
So checksums that differ are a wrong result (of a sum, an update, a memory cell). Where more than half of the copies
agree the others are wrong. Otherwise training goes back and does the steps again: then the rank whose first answer
was not the one that all now give was wrong. Nothing is decided before copies were found equal once: a job whose copies
differ by nature is not compared at all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

OPEN = 8
"""How many steps are kept while some of their answers are missing."""
DOUBTS = 16
"""Undecided steps whose answers are kept until the steps are done again."""
PROVEN = 8
"""Proven steps that are remembered; a rank keeps the state of two."""


@dataclass(frozen=True)
class Held:
    """What a rank holds after an update: checksums of its weights and, where it has computed it, of all that is
    protected."""

    weights: int
    whole: int | None = None

    def differs(self, other: Held) -> bool:
        """Whether two ranks cannot hold the same."""
        return self.weights != other.weights or (None not in (self.whole, other.whole) and self.whole != other.whole)


class Finding(StrEnum):
    """What the answers of all ranks to one step say."""

    EQUAL = "equal"
    PROVEN = "proven"
    WRONG = "wrong"
    """Some ranks have computed a wrong result, it is known which."""
    UNDECIDED = "undecided"
    NEVER_EQUAL = "never equal"
    """Copies differ, and were never found equal: they are not compared any more."""


@dataclass(frozen=True)
class Verdict:
    """``liars``: ranks that are convicted, ``agreed`` the number of answers that speak against each;
    ``suspects``: ranks that differ, or differed before, without a majority. ``attempts``: how often this step was
    undecided."""

    outcome: Finding
    done: int
    liars: tuple[int, ...] = ()
    agreed: int = 0
    suspects: tuple[int, ...] = ()
    attempts: int = 0


class Witness:
    """The answers of the ranks of a job."""

    def __init__(self) -> None:
        self.proven: list[int] = []
        """Finished steps after which all copies were equal in everything, the newest last."""
        self.off = False
        """Whether copies differ by nature."""
        self._armed = False
        self._open: dict[int, dict[int, tuple[str, Held]]] = {}
        self._doubts: dict[int, dict[int, Held]] = {}
        self._attempts: dict[int, int] = {}

    @property
    def newest(self) -> int:
        """The newest proven step, -1 without one."""
        return max(self.proven, default=-1)

    def begin(self) -> None:
        """A generation begins: steps are done again."""
        self._open.clear()

    def trust(self, done: int) -> None:
        """A former coordinator has found this step proven."""
        if done >= 0 and done not in self.proven:
            self.proven = sorted([*self.proven, done])[-PROVEN:]
            self._armed = True

    def back(self, step: int) -> None:
        """Training goes back to a step: what was proven after it does not hold."""
        self.proven = [done for done in self.proven if done <= step]

    def answer(self, rank: int, done: int, shard: str, held: Held, ranks: Collection[int]) -> Verdict | None:
        """What a rank holds of ``shard`` after ``done`` steps; the verdict once all ``ranks`` have answered."""
        if self.off:
            return None
        answers = self._open.setdefault(done, {})
        answers[rank] = shard, held
        if not set(ranks) <= answers.keys():
            while len(self._open) > OPEN:
                del self._open[min(self._open)]
            return None
        del self._open[done]
        return self._judge(done, answers)

    def _judge(self, done: int, answers: Mapping[int, tuple[str, Held]]) -> Verdict | None:
        copies: dict[str, dict[int, Held]] = {}
        for rank, (shard, held) in answers.items():
            copies.setdefault(shard, {})[rank] = held
        compared = [group for group in copies.values() if len(group) > 1]
        if not compared:
            return None
        different = [group for group in compared if not _equal(group)]
        if not different:
            return self._agreed(done, {rank: held for rank, (_, held) in answers.items()})
        if not self._armed:
            self.off = True
            return Verdict(Finding.NEVER_EQUAL, done, suspects=tuple(sorted(different[0])))
        return self._differs(done, different)

    def _agreed(self, done: int, answers: dict[int, Held]) -> Verdict:
        """All copies are equal. Where they were not when this step was first done, it is now known who was wrong."""
        proven = all(held.whole is not None for held in answers.values())
        if proven:
            self._armed = True
            self.trust(done)
        earlier = self._doubts.pop(done, {})
        self._attempts.pop(done, None)
        wrong = [rank for rank, held in earlier.items() if rank in answers and held.differs(answers[rank])]
        outcome = Finding.PROVEN if proven else Finding.EQUAL
        if not wrong or len(wrong) == len(earlier):
            # a wrong gradient has entered what every rank has added, or the fault does not show in what is compared
            return Verdict(outcome, done, suspects=tuple(sorted(earlier)))
        return Verdict(outcome, done, tuple(sorted(wrong)), len(answers) + len(earlier) - len(wrong))

    def _differs(self, done: int, different: list[dict[int, Held]]) -> Verdict:
        liars: list[int] = []
        suspects: list[int] = []
        agreed = 0
        for group in different:
            most = max((_agreeing(group, held) for held in group.values()), key=len)
            if 2 * len(most) > len(group):
                liars += [rank for rank in group if rank not in most]
                agreed = max(agreed, len(most))
            else:
                suspects += list(group)
        if not suspects:
            return Verdict(Finding.WRONG, done, tuple(sorted(liars)), agreed)
        self._attempts[done] = self._attempts.get(done, 0) + 1
        self._doubts.setdefault(done, {rank: held for group in different for rank, held in group.items()})
        while len(self._doubts) > DOUBTS:
            oldest = min(self._doubts)
            del self._doubts[oldest]
            self._attempts.pop(oldest, None)
        return Verdict(
            Finding.UNDECIDED, done, tuple(sorted(liars)), agreed, tuple(sorted(suspects)), self._attempts[done]
        )


def _agreeing(group: Mapping[int, Held], held: Held) -> list[int]:
    return [rank for rank, other in group.items() if not held.differs(other)]


def _equal(group: Mapping[int, Held]) -> bool:
    first = next(iter(group.values()))
    return len(_agreeing(group, first)) == len(group)
