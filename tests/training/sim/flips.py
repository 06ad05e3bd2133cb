"""Bits that flip in ranks of a job, and who finds them: ``python -m tests.training.sim.flips STEPS [SEED]``.

Ranks are rows of real tensors: weights, and the two moments of Adam. In each step every row computes a gradient from
its own weights, the mean of all enters every row, and bits flip at a given rate in what a rank computed (its reduced
gradient), in its weights, and in its moments. Checksums, comparison, conviction and the way back are the product's
(`digests`, `Coordinator`); copies are kept as `proof` keeps them. What is counted: flips that changed the weights, how
many steps they took to be found, and ranks that were convicted without one.
"""

from __future__ import annotations

import random
import sys
import time
from dataclasses import dataclass, field

import torch

from belay.agents.training.train.decide.coordinator import Coordinator
from belay.agents.training.train.decide.coordinator_commands import (
    CoordinatorCommand,
    GenerationPlan,
    JoinGeneration,
    StartRank,
)
from belay.agents.training.train.decide.members import Limits
from belay.agents.training.train.decide.pace import Costs, Pace
from belay.agents.training.train.decide.witness import Held
from belay.agents.training.train.worker.digests import digest

COMPARE, KEEP = 10, 50
SIZE, CALM = 1500, 64
"""Weights of a rank; of one in a job without faults."""
PLACES = ("results", "weights", "first moment", "second moment")
RATE, DECAY = 1e-3, 0.01
WITHIN = 50


@dataclass
class Flip:
    """A bit that flipped in a rank, at a step."""

    rank: int
    step: int
    place: str
    bit: int
    changed: bool = False
    """Whether the weights of its rank still differ after the next step."""
    found: int = -1
    """Steps until its rank was convicted, those that were done again too."""
    at: int = 0
    """Steps that its job had computed then."""


@dataclass
class FlippedJob:
    """One job. ``rate``: of flips, for each rank and step."""

    ranks: int
    rate: float
    seed: int
    size: int = SIZE
    flips: list[Flip] = field(default_factory=list)
    false: int = 0
    """Convictions of a rank in which no bit had flipped."""
    worked: int = 0
    """Steps that were computed, those done again too."""

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        source = torch.Generator().manual_seed(self.seed)
        self.weights = torch.randn(self.size, generator=source).mul_(0.1).repeat(self.ranks, 1)
        self.first, self.second = torch.zeros_like(self.weights), torch.zeros_like(self.weights)
        self.data = torch.randn(self.ranks, self.size, generator=source)
        self.done = 0
        self.open: list[Flip] = []
        """Flips since the last way back that were not found yet."""
        self.again: list[Flip] = []
        """Flips in steps that are done again to see who was wrong: the second result convicts."""
        self.fresh: list[Flip] = []
        self.kept: list[dict[int, tuple[torch.Tensor, ...]]] = [{} for _ in range(self.ranks)]
        self.machine = Coordinator({rank: rank for rank in range(self.ranks)}, Limits(proof=1, lies=1 << 30))
        self.machine.pace = Pace(COMPARE, KEEP, 0)
        self._begin()

    def _begin(self) -> None:
        for rank in range(self.ranks):
            self.machine.node_joined(rank, 0.0)
        for rank in range(self.ranks):
            self.machine.ready(rank, 1, 1, -1, "", 0.0)
        for rank in range(self.ranks):
            self.machine.entered(rank, 1, 1, 0.0)

    def run(self, steps: int) -> None:
        """Train to this step."""
        while self.done < steps:
            self.step()
            before = self.done - 1
            if before == 0 or self.done % KEEP == 0:
                self.compare(whole=True)
            elif self.done % COMPARE == 0 or self.done == steps:
                self.compare(whole=False)

    def step(self) -> None:
        """Compute gradients, add them up, update; bits flip in between."""
        self.worked += 1
        local = torch.sin(self.weights * 3 + self.data * (1 + self.done % 7)) + self.data * 0.01
        reduced = local.mean(0).repeat(self.ranks, 1)
        flips = self.draw()
        self.flip(flips, "results", reduced)
        self.first.mul_(0.9).add_(reduced, alpha=0.1)
        self.second.mul_(0.999).addcmul_(reduced, reduced, value=0.001)
        number = self.done + 1
        scale = (self.second / (1 - 0.999**number)).sqrt_().add_(1e-8)
        self.weights.mul_(1 - RATE * DECAY).addcdiv_(self.first, scale, value=-RATE / (1 - 0.9**number))
        self.flip(flips, "weights", self.weights)
        self.flip(flips, "first moment", self.first)
        self.flip(flips, "second moment", self.second)
        self.done = number
        for one in self.fresh:
            one.changed = one.changed or not self.alike(one.rank)
        # a moment changes the weights with the next update
        self.fresh = [one for one in self.fresh if one.step == number - 1] + flips
        self.open += flips

    def draw(self) -> list[Flip]:
        """The flips of this step."""
        if not self.rate or not self.done:
            # copies that were never equal are not compared
            return []
        wrong = [rank for rank in range(self.ranks) if self.chance.random() < self.rate]
        return [
            Flip(rank, self.done, self.chance.choice(PLACES), self.chance.randrange(32), at=self.worked)
            for rank in wrong
        ]

    def flip(self, flips: list[Flip], place: str, rows: torch.Tensor) -> None:
        for one in flips:
            if one.place == place:
                words = rows.view(torch.int32)
                mask = 1 << one.bit if one.bit < 31 else -(1 << 31)
                words[one.rank, self.chance.randrange(self.size)] ^= mask
                self.flips.append(one)

    def alike(self, rank: int) -> bool:
        """Whether a rank has the weights that most others have, bit for bit."""
        words = self.weights.view(torch.int32)
        same = (words == words[rank]).all(1).sum().item()
        return bool(2 * same > self.ranks)

    def rows(self, rank: int) -> tuple[torch.Tensor, ...]:
        return self.weights[rank], self.first[rank], self.second[rank]

    def compare(self, whole: bool) -> None:
        """All ranks say what they hold."""
        found: list[CoordinatorCommand] = []
        generation = self.machine.generation
        for rank in range(self.ranks):
            incarnation = self.machine.members[rank].incarnation
            self.machine.stepped(rank, incarnation, self.done, 0.0)
            weights = digest([self.weights[rank]])
            held = Held(weights, digest(self.rows(rank), self.done) if whole else None)
            if whole:
                newest = self.machine.witness.newest
                old = {step: rows for step, rows in self.kept[rank].items() if step == newest}
                self.kept[rank] = old | {self.done: tuple(one.clone() for one in self.rows(rank))}
            found += self.machine.digested(rank, incarnation, generation, self.done, "", held, Costs(0, 0), 0.0)
        assert self.machine.ended is None, self.machine.ended
        starts = [one.rank for one in found if isinstance(one, StartRank)]
        for rank in starts:
            self.convicted(rank)
        if any(isinstance(one, JoinGeneration) for one in found):
            self.join(starts)
        else:
            # or a message: which of two was wrong may stay unknown
            assert self.machine.pace == Pace(COMPARE, KEEP, 0), found
            if whole:
                self.forget(self.again)
                self.again = []

    def convicted(self, rank: int) -> None:
        mine = [one for one in (*self.again, *self.open) if one.rank == rank]
        self.false += not mine
        for one in mine:
            one.found = self.worked - one.at + 1
        self.kept[rank] = {}

    def forget(self, flips: list[Flip]) -> None:
        """What they changed is gone with the steps that are done again."""
        for one in flips:
            one.changed = one.changed and one.found >= 0

    def join(self, starts: list[int]) -> None:
        """A generation: ranks say what they hold, and take over what the plan gives them."""
        found: list[CoordinatorCommand] = []
        for rank, member in self.machine.members.items():
            self.machine.keeps(rank, member.incarnation, frozenset(self.kept[rank]), self.machine.witness.newest)
            done = -1 if rank in starts else self.done
            found += self.machine.ready(rank, member.incarnation, self.machine.generation, done, "", 0.0)
        [plan] = [one for one in found if isinstance(one, GenerationPlan)]
        for rank in range(self.ranks):
            state = self.kept[plan.donors.get(rank, rank)][plan.step]
            self.kept[rank] = {plan.step: tuple(one.clone() for one in state)}
            for row, kept in zip(self.rows(rank), state, strict=True):
                row.copy_(kept)
        self.done = plan.step
        if starts:
            self.forget([*self.again, *self.open])
            self.again = []
        else:
            self.again += self.open
        self.open, self.fresh = [], []
        for rank, member in self.machine.members.items():
            self.machine.entered(rank, member.incarnation, self.machine.generation, 0.0)


def summary(jobs: list[FlippedJob]) -> tuple[int, int, int, int]:
    """Flips; those that changed the weights, and how many of these were found in time; false convictions."""
    flips = [one for job in jobs for one in job.flips]
    changed = [one for one in flips if one.changed]
    found = [one for one in changed if 0 <= one.found <= WITHIN]
    return len(flips), len(changed), len(found), sum(job.false for job in jobs)


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> int:
    """Play jobs of 4 to 16 ranks at several rates, then one without faults; exit code 1 below 99 % or at a false
    conviction."""
    steps, seed = int(arguments[0]), int(arguments[1]) if len(arguments) > 1 else 1
    torch.set_num_threads(1)
    jobs: list[FlippedJob] = []
    for rate in (1e-3, 1e-4, 1e-5, 1e-6):
        some = [FlippedJob(ranks, rate, seed) for ranks in (4, 8, 16)]
        for job in some:
            job.run(steps // 10)
        jobs += some
        say(f"rate {rate:g}: flips, changed, found, false: {summary(some)}")
    began, calm = time.monotonic(), FlippedJob(4, 0.0, seed, CALM)
    calm.run(steps)
    seconds = time.monotonic() - began
    generation = calm.machine.generation
    say(f"{steps} steps without a fault in {seconds:.0f} s: {calm.false} convictions, generation {generation}")
    flips, changed, found, false = summary(jobs)
    say(f"{flips} flips, {changed} changed the weights, {found} of these found within {WITHIN} steps; {false} false")
    return 0 if found >= 0.99 * changed and not false and not calm.false and generation == 1 else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
