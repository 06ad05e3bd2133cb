"""Wrong results: what follows from the comparison of copies (`witness`). Part of the coordinator of native recovery.
Pure.

A rank that computed a wrong result is replaced by a new process, and all go back to the last proven step: its gradients
have entered what the others have added. Ranks keep a copy of their state at proven steps for that.
"""

from __future__ import annotations

from dataclasses import replace

from belay.agents.training.train.decide.coordinator_commands import CoordinatorCommand, OperatorMessage, SetPace
from belay.agents.training.train.decide.donors import ranks_text
from belay.agents.training.train.decide.nodes import Nodes
from belay.agents.training.train.decide.pace import Costs, given, pace
from belay.agents.training.train.decide.recomputed import Computed
from belay.agents.training.train.decide.witness import Finding, Held, Verdict

UNDECIDED = 3
"""Times that copies may differ after the same step, without a majority, before the job ends."""
SLOWER = 4
"""A pace is made denser only when it becomes so many times denser."""


class Results(Nodes):
    """Events of comparisons."""

    def digested(
        self,
        rank: int,
        incarnation: int,
        generation: int,
        done: int,
        shard: str,
        held: Held,
        costs: Costs,
        now: float,
    ) -> list[CoordinatorCommand]:
        """What a rank holds after its update, and what it cost to find out."""
        member = self.members[rank]
        if member.incarnation != incarnation or generation != self.generation or self.ended:
            return []
        self._costs[rank] = costs
        self._back = False
        verdict = self.witness.answer(rank, done, shard, held, self.members)
        return [] if verdict is None else self._judged(verdict, now)

    def recomputed(
        self, rank: int, incarnation: int, generation: int, done: int, computed: Computed, now: float
    ) -> list[CoordinatorCommand]:
        """What a rank computed for its own share of a step, and for that of another rank."""
        member = self.members[rank]
        if member.incarnation != incarnation or generation != self.generation or self.ended:
            return []
        verdict = self.recomputes.answer(rank, done, computed, self.members)
        if verdict is None:
            return []
        match verdict.outcome:
            case Finding.NEVER_EQUAL:
                self.pace = replace(self.pace, check=0)
                text = (
                    f"{ranks_text(verdict.suspects)} computed other gradients from the same weights and data in step "
                    f"{done}, the first that was compared: gradients are not recomputed (other processors or "
                    "libraries, sums in no fixed order, data that does not follow from step and share)"
                )
                return [OperatorMessage(text), self._set_pace()]
            case Finding.UNDECIDED:
                return self._undecided(verdict, f"in step {done} the gradients of", now)
            case Finding.WRONG:
                text = f"in step {done} its gradients are not those that another rank, or it the second time, computed"
                return self._convict(verdict.liars, text, True, now)
        if verdict.liars:
            text = f"in step {done} its gradients were not those that all have now that it was done again"
            return self._convict(verdict.liars, text, False, now)
        return self._unknown(verdict, f"in step {done}")

    def keeps(self, rank: int, incarnation: int, kept: frozenset[int], proven: int) -> None:
        """The steps of which a rank has kept a copy, and the newest that it knows to be proven."""
        member = self.members[rank]
        if member.incarnation == incarnation:
            member.kept = kept
            self.witness.trust(proven)

    def _judged(self, verdict: Verdict, now: float) -> list[CoordinatorCommand]:
        after = f"after step {verdict.done - 1}"
        match verdict.outcome:
            case Finding.NEVER_EQUAL:
                self.pace = given(-1)
                text = (
                    f"{ranks_text(verdict.suspects)} hold copies, but differ {after}, the first that was compared: "
                    "results are not compared (copies must be equal: see the rules in docs/train.md)"
                )
                return [OperatorMessage(text), self._set_pace()]
            case Finding.UNDECIDED:
                return self._undecided(verdict, after, now)
            case Finding.WRONG:
                text = f"{after} {_its(verdict.liars)} state differs from that of {verdict.agreed} copies that agree"
                return self._convict(verdict.liars, text, True, now)
        commands: list[CoordinatorCommand] = []
        if verdict.outcome is Finding.PROVEN and verdict.done > self._furthest:
            self._furthest, self._lies = verdict.done, 0
        if verdict.outcome is Finding.PROVEN:
            commands.append(self._set_pace())
        if verdict.liars:
            text = f"{after} {_its(verdict.liars)} state was not the one that all have now that it was done again"
            commands += self._convict(verdict.liars, text, False, now)
        return commands + self._unknown(verdict, after)

    @staticmethod
    def _unknown(verdict: Verdict, after: str) -> list[CoordinatorCommand]:
        """Say that a doubt stays one, although all is equal now that the step was done again."""
        if verdict.liars or not verdict.suspects:
            return []
        return [
            OperatorMessage(f"{ranks_text(verdict.suspects)} agree {after} now; which of them was wrong is not known")
        ]

    def _convict(self, liars: tuple[int, ...], text: str, back: bool, now: float) -> list[CoordinatorCommand]:
        found = [self.members[rank] for rank in liars if rank in self.members]
        if not found:
            return []
        nodes = sorted({one.node for one in found})
        where = f"{ranks_text(liars)} on node {', '.join(map(str, nodes))}"
        cause = f"{where} computed a wrong result: {text}"
        if ended := self._too_often(cause):
            return ended
        for one in found:
            self._forget(one)
        self._back = self._back or back
        message = (
            f"{cause}. {self._goes_on(back)}; if it happens again, take the host out of service and test its chips"
        )
        commands = [OperatorMessage(message), *self._begin(cause, now, liars)]
        assert self.recovery is not None
        self.recovery.wrong.update(liars)
        return commands

    def _undecided(self, verdict: Verdict, after: str, now: float) -> list[CoordinatorCommand]:
        nodes = sorted({self.members[rank].node for rank in verdict.suspects if rank in self.members})
        cause = f"a wrong result: {after} {ranks_text(verdict.suspects)} differ, and no majority says which is right"
        if verdict.attempts >= UNDECIDED:
            where = f"node {nodes[0]}" if len(nodes) == 1 else f"one of nodes {nodes[:20]}"
            return self._end(1, f"{cause}, {verdict.attempts} times: {where} computes wrong results; test their chips")
        if ended := self._too_often(cause):
            return ended
        self._back = True
        return [OperatorMessage(f"{cause}. {self._goes_on(True)}, which shows it"), *self._begin(cause, now)]

    def _goes_on(self, back: bool) -> str:
        if not back:
            return "Its process is replaced"
        return f"Training goes back to step {self.witness.newest}, the last one that is proven, and does the rest again"

    def _too_often(self, cause: str) -> list[CoordinatorCommand]:
        """The end of a job whose results are wrong again and again."""
        self._lies += 1
        if self._lies <= self.limits.lies:
            return []
        return self._end(1, f"{self._lies} wrong results without a proven step between them; the last: {cause}")

    def _paced(self) -> list[CoordinatorCommand]:
        """Change the pace when costs or the duration of a step have changed much."""
        if self.limits.proof or self.pace.compare < 0 or self.median <= 0 or self._costs.keys() < self.members.keys():
            return []
        if len({member.shard for member in self.members.values()}) == len(self.members):
            # nothing has a copy
            return []
        costs = [self._costs[rank] for rank in self.members]
        wanted = pace(costs, self.median, len(costs))
        if wanted.compare <= self.pace.compare and wanted.compare * SLOWER > self.pace.compare > 0:
            wanted = replace(wanted, compare=self.pace.compare, keep=max(wanted.keep, self.pace.compare))
        if wanted.keep <= self.pace.keep and wanted.keep * SLOWER > self.pace.keep > 0:
            wanted = replace(wanted, keep=max(self.pace.keep, wanted.compare))
        wanted = replace(wanted, check=self.pace.check)
        if wanted == self.pace:
            return []
        self.pace = wanted
        return [self._set_pace()]

    def _set_pace(self) -> SetPace:
        return SetPace(self.pace.compare, self.pace.keep, self.witness.newest)


def _its(ranks: tuple[int, ...]) -> str:
    return "its" if len(ranks) == 1 else "their"
