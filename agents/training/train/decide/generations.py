"""Generations of native recovery: how one begins, and at which step it trains. Pure.

A *generation* is one attempt to train with all ranks. Each fault starts the next one, and work for an older one is
abandoned, so that a second fault during a repair is handled like the first. All ranks leave their training function and
report the step that they hold completely (READY). Training continues at the highest step of which some rank holds every
shard; ranks at another step, healthy ones too, get it from a donor: a step counts once one rank finished it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from belay.agents.training.train.decide.coordinator_commands import (
    AskCheckpoint,
    Commit,
    CoordinatorCommand,
    EndJob,
    GenerationPlan,
    JoinGeneration,
    Leave,
    StartRank,
)
from belay.agents.training.train.decide.donors import donors, ranks_text, shard_text
from belay.agents.training.train.decide.members import Limits, Phase, RankStatus, Recovery, RunningRank
from belay.agents.training.train.decide.pace import Costs, given
from belay.agents.training.train.decide.recomputed import Recomputed
from belay.agents.training.train.decide.witness import Witness


@dataclass
class Generations:
    """The ranks of a job and its generations. ``places``: rank → node, for all ranks of the job."""

    places: dict[int, int]
    limits: Limits = field(default_factory=Limits)
    generation: int = 0
    ended: EndJob | None = None
    recovery: Recovery | None = None
    """The recovery in progress; the owner removes it when ``entered`` is set."""
    median: float = 0.0
    """Median duration of the last steps, in seconds."""
    finished_before: bool = False
    """Whether all ranks had finished under a former coordinator."""

    def __post_init__(self) -> None:
        # who trains, and who is away
        self.members = {rank: RankStatus(rank, node) for rank, node in sorted(self.places.items())}
        """The ranks that train."""
        self.away: dict[int, RankStatus] = {}
        """Those of nodes without which the job goes on."""
        self.nodes: set[int] = set()
        self._living: dict[int, list[RunningRank]] = {}
        """Node → the ranks with which it joined, until the first generation."""
        self._lost_nodes: dict[int, float] = {}
        self._given_up: set[int] = set()
        """Nodes without which the job goes on."""
        self._ordered: set[int] = set()
        """Those of them that come back on an order only."""
        self._divides: bool | None = None
        """Whether the script does the shares of ranks that are away; None while that is not known."""
        self._unable = ""
        """Why the job waits for lost nodes, as it was said."""
        self._waiting_since: float | None = None

        # this generation: what is still awaited
        self._unready: set[int] = set()
        self._unentered: set[int] = set()
        """Ranks that have not reported READY in this generation, and that have not entered: counted, not looked for
        among all ranks with every message."""
        self._asked = False
        self._planned_at: float | None = None
        self._broken_at: float | None = None
        self._broken_why = ""
        self._stepped_on = False
        """Whether a step was finished in this generation."""

        # steps, and how long none may be finished
        self._highest = -1
        self._progress_at = 0.0
        self._longest = 0.0
        """Longest pause between finished steps that ended without a recovery."""
        self._worked_at = 0.0
        """When a rank last worked, or waited for something outside of its group."""
        self._allowed_until = 0.0
        """Until when a rank waits on purpose."""

        # faults without a finished step between them, against the limits that end a job
        self._failures = self._deaths = self._broken = self._hangs = 0

        # what ranks hold, and whether they computed it right
        self._samples: dict[tuple[int, str], tuple[int, dict[str, int]]] = {}
        """Finished steps and shard → the first rank that said what it holds, and its checksums."""
        self.witness = Witness()
        self.recomputes = Recomputed()
        self.pace = given(self.limits.proof)
        """How often ranks compare what they hold."""
        self._costs: dict[int, Costs] = {}
        """Rank → what that costs."""
        self._back = False
        """Whether the next plan goes back to a proven step, until a rank has made an update after it: only then are the
        objects that functions make in each entry known to have gone back."""
        self._lies = 0
        self._furthest = -1
        """Wrong results since the furthest proven step."""
        self._alone_at: float | None = None
        self._told_alone = False
        """Whether it was said which shards have no copy."""

        # the end
        self._finishing_at: float | None = None
        self._closing = False

    def grace(self) -> float:
        """Seconds for a survivor to leave its collective."""
        return max(self.limits.grace, 3 * self.median)

    def _start(self, member: RankStatus, now: float) -> StartRank:
        member.incarnation += 1
        member.phase, member.done, member.offers, member.patience = Phase.STARTING, -1, None, 0.0
        member.kept = frozenset()
        member.deadline = now + self.limits.start
        return StartRank(member.node, member.rank, member.incarnation, self.generation, self._active())

    def _active(self) -> tuple[int, ...]:
        """The ranks that train, where these are not all."""
        return tuple(self.members) if self.away else ()

    def _arrange(self) -> None:
        """Sort ranks into those that train and those of nodes without which the job goes on. One that comes back holds
        nothing: others have done its last steps again, with sums in another order."""
        every = {**self.members, **self.away}
        back = [rank for rank, member in self.away.items() if member.node not in self._given_up]
        for rank in back:
            self._forget(every[rank])
        self.away = {rank: one for rank, one in every.items() if one.node in self._given_up}
        self.members = {rank: every[rank] for rank in sorted(every) if rank not in self.away}

    @staticmethod
    def _forget(member: RankStatus) -> None:
        """Forget a lost process; its late messages are recognised by their incarnation."""
        member.phase, member.done, member.offers, member.patience = Phase.ABSENT, -1, None, 0.0
        member.kept = frozenset()

    def _begin(
        self, cause: str, now: float, ranks: Iterable[int] = (), explained: bool = True
    ) -> list[CoordinatorCommand]:
        """Begin the next generation; ``ranks``: those whose processes were lost."""
        self._arrange()
        self.generation += 1
        self._unready, self._unentered = set(self.members), set(self.members)
        self._broken_at = self._finishing_at = self._planned_at = None
        self._asked = self._stepped_on = False
        self._samples.clear()
        self.witness.begin()
        self.recomputes.begin()
        if self.recovery is None or self.recovery.entered is not None:
            self.recovery = Recovery(cause, now)
        else:
            self.recovery.cause += "; " + cause
        self.recovery.generation = self.generation
        self.recovery.ranks.update(ranks)
        starts: list[CoordinatorCommand] = []
        living = []
        for member in self.members.values():
            member.prepared = -1
            if member.node not in self.nodes:
                continue
            if member.phase in (Phase.ABSENT, Phase.LEAVING, Phase.GONE):
                starts.append(self._start(member, now))
                continue
            living.append(member.rank)
            if member.phase is not Phase.STARTING:
                member.patience = member.patience or now + max(self.limits.last, self.grace())
                member.phase, member.deadline = Phase.FREEING, now + self.grace()
        # survivors first: they have collectives to leave
        return [JoinGeneration(self.generation, tuple(living), explained, self._active()), *starts]

    def _commit(self, now: float) -> list[CoordinatorCommand]:
        """Answer ranks that are ready to make an update, once all that live have left their step or wait like them.

        Where ranks hold different shards, a rank begins its update only when all ranks have come so far (a barrier). So
        if one of those that live has made it, all of them can, without each other; if none has, the step is done
        again. Otherwise some shards would be of this step and others of the next, and no step would be left.
        """
        waiting = [one for one in self.members.values() if one.prepared >= 0]
        if not waiting or any(one.phase is Phase.FREEING and one.prepared < 0 for one in self.members.values()):
            return []
        step = max(one.prepared for one in waiting)
        go = any(one.phase is Phase.READY and one.done > step for one in self.members.values())
        for member in waiting:
            member.prepared, member.deadline = -1, now + self.grace()
        return [Commit(self.generation, tuple(one.rank for one in waiting), go)]

    def _decide(self, now: float) -> list[CoordinatorCommand]:
        held: dict[str, set[int]] = {}
        for member in self.members.values():
            held.setdefault(member.shard, set()).update({member.done} - {-1})
        common = set.intersection(*held.values())

        if self._back:
            beyond = any(member.done > self.witness.newest for member in self.members.values())
            if beyond or not common:
                return self._go_back(now)
            # those that live have gone back already: what they hold is proven
            self._back = False

        unborn = not any(held.values()) and self._highest <= 0
        if unborn and not any(member.checkpoints for member in self.members.values()):
            # no step was finished: training starts at the beginning
            return self._plan(GenerationPlan(self.generation, 0, {}), now)
        if not common:
            self._asked = True
            return [AskCheckpoint(self.generation)]
        step = max(common)
        holders = {one.rank for one in self.members.values() if one.done == step}
        return self._plan(GenerationPlan(self.generation, step, donors(self.members.values(), holders)), now)

    def _go_back(self, now: float) -> list[CoordinatorCommand]:
        """Begin at the newest proven step of which every shard was kept: what was computed since is wrong."""
        kept: dict[str, set[int]] = {}
        for member in self.members.values():
            kept.setdefault(member.shard, set()).update(member.kept)
        steps = set.intersection(*kept.values()) & set(self.witness.proven)
        if not steps and any(member.checkpoints for member in self.members.values()):
            self._asked = True
            return [AskCheckpoint(self.generation)]
        if not steps:
            text = f"a wrong result may be part of the weights: {self.recovery.cause if self.recovery else ''}"
            return self._end(
                2, f"{text}; ranks have kept no copy of a proven step (host memory), start from a checkpoint"
            )
        step = max(steps)
        self.witness.back(step)
        holders = {one.rank for one in self.members.values() if step in one.kept}
        found = donors(self.members.values(), holders)
        return self._plan(GenerationPlan(self.generation, step, found, back=True), now)

    def _load(self, now: float) -> list[CoordinatorCommand]:
        """Begin at the newest step of which every shard has a checkpoint; ranks that lack it get it from a copy."""
        found: dict[str, set[int]] = {}
        for member in self.members.values():
            found.setdefault(member.shard, set()).update(member.offers or ())
        common = set.intersection(*found.values())
        if self._back:
            # later ones may hold a wrong result
            common = {step for step in common if step <= self.witness.newest}
            self.witness.back(max(common, default=-1))
            # it was made before the proven step, so it is as right: another fault may need it again
            self.witness.trust(max(common, default=-1))
        if common:
            step = max(common)
            holders = {one.rank for one in self.members.values() if one.offers and step in one.offers}
            return self._plan(
                GenerationPlan(self.generation, step, donors(self.members.values(), holders), checkpoint=True), now
            )
        without = [one.rank for one in self.members.values() if not one.offers]
        newest = max((step for steps in found.values() for step in steps), default=0)
        if self._highest > 0:
            state = f"{self._unheld()} and {ranks_text(without)} found no complete checkpoint (protect(checkpoint=…))"
            return self._end(2, f"{state}: training would go on without its weights")
        if newest:
            state = f"a checkpoint of step {newest} exists, but {ranks_text(without)} found none of its shard"
            return self._end(2, f"{state}: bring its files back, or move them all away to begin at step 0")
        return self._plan(GenerationPlan(self.generation, 0, {}), now)

    def _unheld(self) -> str:
        held: dict[str, set[int]] = {}
        for member in self.members.values():
            held.setdefault(member.shard, set()).update({member.done} - {-1})
        newest = max((step for steps in held.values() for step in steps), default=-1)
        lost = sorted(shard_text(shard) for shard, steps in held.items() if newest not in steps or newest < 0)
        return f"no rank that lives holds {', '.join(lost[:8])}{' …' if len(lost) > 8 else ''} of one step"

    def _plan(self, plan: GenerationPlan, now: float) -> list[CoordinatorCommand]:
        self._planned_at = now
        self._highest = plan.step if plan.checkpoint or plan.back else max(self._highest, 0)
        if self.recovery:
            self.recovery.planned, self.recovery.step = now, plan.step
        for member in self.members.values():
            member.done = plan.step
        return [plan]

    def _leave(self, phase: Phase) -> list[CoordinatorCommand]:
        ranks = tuple(one.rank for one in self.members.values() if one.phase is phase)
        for rank in ranks:
            self.members[rank].phase = Phase.LEAVING
        return [Leave(ranks, self._closing)] if ranks else []

    def _end(self, code: int, text: str) -> list[CoordinatorCommand]:
        self.ended = EndJob(code, text)
        return [self.ended]
