"""The coordinator of native recovery: events of ranks, and time limits. Pure: every event has the time as an argument,
and returns commands. Events of nodes are in `nodes`, generations, which follow from all of them, in `generations`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from belay.agents.training.train.decide.coordinator_commands import (
    CoordinatorCommand,
    EndRank,
    OperatorMessage,
)
from belay.agents.training.train.decide.donors import ranks_text, shard_text
from belay.agents.training.train.decide.members import Phase, RankStatus
from belay.agents.training.train.decide.results import Results


class Coordinator(Results):
    """The coordinator of one job as a state machine."""

    def ranks_lost(self, lost: Iterable[tuple[int, int, str]], now: float) -> list[CoordinatorCommand]:
        """Processes ended: (rank, incarnation, why)."""
        commands: list[CoordinatorCommand] = []
        lost = list(lost)
        if self.generation == 0:
            ended = {(rank, incarnation) for rank, incarnation, _ in lost}
            for node, living in self._living.items():
                self._living[node] = [one for one in living if (one.rank, one.incarnation) not in ended]
            return []
        causes, ranks = [], set()
        for rank, incarnation, why in lost:
            member = self.members[rank]
            if member.incarnation != incarnation or self.ended:
                continue
            if member.phase is Phase.GONE:
                continue
            if member.phase is Phase.LEAVING and self._closing:
                return self._end(1, f"rank {rank} {why} after its training had finished, before the script had ended")
            causes.append(f"rank {rank} {why}")
            ranks.add(rank)
            self._forget(member)
        if not causes:
            return []
        self._deaths += len(causes)
        if self._deaths > self.limits.deaths:
            return self._end(1, f"{self._deaths} faults without a finished step between them; the last: {causes[-1]}")
        commands.append(OperatorMessage("; ".join(causes)))
        return commands + self._begin("; ".join(causes), now, ranks)

    def failed(
        self, rank: int, incarnation: int, text: str, now: float, final: bool = False
    ) -> list[CoordinatorCommand]:
        """The script raised an exception in a rank, whose process ends now. ``final``: it would raise it again."""
        member = self.members[rank]
        if member.incarnation != incarnation or self.ended:
            return []
        self._failures += 1
        if final or self._failures > self.limits.failures or self._closing or self._highest < 0:
            return self._end(1, f"the script failed in rank {rank}: {text}")
        return []

    def ready(
        self,
        rank: int,
        incarnation: int,
        generation: int,
        done: int,
        shard: str | None,
        now: float,
        checkpoints: bool = False,
    ) -> list[CoordinatorCommand]:
        """A rank has left its training function and holds ``shard`` of step ``done`` completely (-1: nothing).

        ``shard`` is None when this process has not built its model yet: then the shard of its predecessor counts.
        ``checkpoints``: whether it can load checkpoints.
        """
        member = self.members[rank]
        if member.incarnation != incarnation or generation != self.generation or self.ended:
            return []
        member.phase, member.done, member.offers, member.checkpoints = Phase.READY, done, None, checkpoints
        member.shard, member.patience = member.shard if shard is None else shard, 0.0
        member.prepared = -1
        self._unready.discard(rank)
        if self._unready:
            return self._commit(now)
        if self.recovery:
            self.recovery.freed = now
        return self._decide(now)

    def prepared(self, rank: int, incarnation: int, generation: int, step: int, now: float) -> list[CoordinatorCommand]:
        """A rank was interrupted when its gradients were complete and others may have made their update of ``step``."""
        member = self.members[rank]
        if member.incarnation != incarnation or generation != self.generation or self.ended:
            return []
        if member.phase is not Phase.FREEING:
            return []
        member.prepared = step
        return self._commit(now)

    def sampled(
        self,
        rank: int,
        incarnation: int,
        generation: int,
        done: int,
        shard: str,
        sums: dict[str, int],
        divides: bool | None = None,
    ) -> list[CoordinatorCommand]:
        """What a rank holds after its first update of a generation: ranks of one shard must hold the same.
        ``divides``: whether its script does the shares of ranks that are away."""
        member = self.members[rank]
        if member.incarnation != incarnation or generation != self.generation or self.ended:
            return []
        self._back = False
        commands = self._divided(divides)
        return commands or self._compare(rank, done, shard, sums)

    def _divided(self, divides: bool | None) -> list[CoordinatorCommand]:
        before, self._divides = self._divides, self._divides if divides is None else divides
        if not self.limits.least or self._divides is not False or before is False:
            return []
        return [
            OperatorMessage(
                "--nodes MIN:MAX has no effect: the script does not ask which shares of the batch a rank does, so a "
                "smaller job would train with a smaller batch. In each step: for share in run.shares(model): …"
            )
        ]

    def _compare(self, rank: int, done: int, shard: str, sums: dict[str, int]) -> list[CoordinatorCommand]:
        other, first = self._samples.setdefault((done, shard), (rank, sums))
        different = sorted(name for name in first.keys() | sums.keys() if first.get(name) != sums.get(name))
        if not different:
            return []
        return self._end(
            1,
            f"ranks {other} and {rank} both hold {shard_text(shard)}, but differ in {', '.join(different[:5])} after "
            f"step {done - 1}: a repair would mix them. Where ranks hold different parts (stages, experts), name the "
            'parts: run.protect(…, part="stage 1"); what each rank has alone is not protected state',
        )

    def _alone(self, now: float) -> list[CoordinatorCommand]:
        """Say once which shards have no copy and are saved nowhere. A rank that still builds its model, and has named
        no shard, may hold the copy of another: it is waited for."""
        if self._told_alone:
            return []
        if not all(member.shard for member in self.members.values()):
            self._alone_at = now + self.limits.quiet / 2
            return []
        self._told_alone = True
        holders: dict[str, list[int]] = {}
        for member in self.members.values():
            holders.setdefault(member.shard, []).append(member.rank)
        alone = [ranks[0] for ranks in holders.values() if len(ranks) == 1]
        if not alone or any(member.checkpoints for member in self.members.values()):
            return []
        held = shard_text(self.members[alone[0]].shard)
        return [
            OperatorMessage(
                f"not protected: {ranks_text(alone)} {'holds' if len(alone) == 1 else 'hold'} state of which no other "
                f"rank has a copy ({held}), and nothing is saved: the job is lost with "
                f"{'it' if len(alone) == 1 else 'any of them'}. Give --checkpoints, or a mesh with copies"
            )
        ]

    def named(self, rank: int, incarnation: int, shard: str) -> None:
        """A rank has built its model, and says which shard it holds: its successor may need it before it knows."""
        if self.members[rank].incarnation == incarnation:
            self.members[rank].shard = shard

    def offered(
        self, rank: int, incarnation: int, generation: int, steps: Iterable[int], now: float
    ) -> list[CoordinatorCommand]:
        """The steps of the complete checkpoints that a rank can load."""
        member = self.members[rank]
        if member.incarnation != incarnation or generation != self.generation or self.ended or not self._asked:
            return []
        member.offers = frozenset(step for step in steps if step > 0)
        if any(one.offers is None for one in self.members.values()):
            return []
        return self._load(now)

    def entered(self, rank: int, incarnation: int, generation: int, now: float) -> list[CoordinatorCommand]:
        """A rank is in its training function again."""
        member = self.members[rank]
        if member.incarnation != incarnation or generation != self.generation or member.phase is not Phase.READY:
            return []
        member.phase = Phase.TRAINING
        self._unentered.discard(rank)
        if not self._unentered:
            self._planned_at = None
            self._progress_at = now
            if self.recovery:
                self.recovery.entered = now
            # objects that the function makes are named after it was entered
            self._alone_at = now + self.limits.quiet / 2
        return []

    def stepped(self, rank: int, incarnation: int, done: int, now: float) -> list[CoordinatorCommand]:
        """A rank finished a step; the counts of faults start again at 0."""
        member = self.members[rank]
        if member.incarnation == incarnation:
            if done > self._highest:
                self._highest = done
                self._failures = self._deaths = self._broken = self._hangs = 0
            if self._stepped_on:
                self._longest = max(self._longest, now - self._progress_at)
            self._stepped_on = True
            self._progress_at = now
        return []

    def working(self, now: float) -> list[CoordinatorCommand]:
        """A rank works, or waits for something outside of its group, although no step was finished: then only the limit
        ``busy`` applies."""
        self._worked_at = now
        return []

    def waits(self, rank: int, incarnation: int, text: str, idle: float, now: float) -> None:
        """Where a rank is while no step is finished; ``idle``: seconds for which it waits on purpose."""
        member = self.members[rank]
        if member.incarnation == incarnation:
            member.waits = text
            if idle > 0:
                self._allowed_until = max(self._allowed_until, now + idle)

    def broken(self, rank: int, incarnation: int, generation: int, text: str, now: float) -> list[CoordinatorCommand]:
        """A collective failed in a rank; usually the death of another rank explains it at once."""
        member = self.members[rank]
        if member.incarnation == incarnation and generation == self.generation and self._broken_at is None:
            self._broken_at, self._broken_why = now, f"rank {rank} lost its links: {text}"
        return []

    def finished(self, rank: int, incarnation: int, generation: int, done: int, now: float) -> list[CoordinatorCommand]:
        """A rank's training function has returned."""
        member = self.members[rank]
        if member.incarnation != incarnation or generation != self.generation or self.ended:
            return []
        member.phase, member.done = Phase.FINISHED, done
        if self._finishing_at is None:
            self._finishing_at = now
        if all(one.phase in (Phase.FINISHED, Phase.LEAVING, Phase.GONE) for one in self.members.values()):
            self._closing = True
            return self._leave(Phase.FINISHED)
        return []

    def finished_meanwhile(self, rank: int, incarnation: int, generation: int, done: int) -> None:
        """A rank's function has returned after its node joined, and before the others did: it will not say so again."""
        for node, living in self._living.items():
            self._living[node] = [
                replace(one, finished=True, done=done)
                if (one.rank, one.incarnation, one.generation) == (rank, incarnation, generation)
                else one
                for one in living
            ]

    def left(self, rank: int, incarnation: int, code: int, now: float) -> list[CoordinatorCommand]:
        """The script of a rank ended with this exit code."""
        member = self.members[rank]
        if member.incarnation != incarnation or self.ended:
            return []
        if code:
            return self._end(1, f"rank {rank} ended with {code}")
        if member.phase not in (Phase.LEAVING, Phase.GONE) and self._highest < 0 and member.done < 0:
            # a script without a protected function: the job ends when all ranks have ended
            self._closing = self._closing or all(one.done < 0 for one in self.members.values())
        member.phase = Phase.GONE
        return self._done()

    def tick(self, now: float) -> list[CoordinatorCommand]:
        """Check the time limits."""
        if self.ended:
            return []
        if self.generation == 0:
            return self._await_nodes(now)

        commands = self._paced()
        if self._broken_at is not None and now - self._broken_at >= self._settle():
            # no death has explained the lost links: a generation begins, in which other limits do not count
            return self._form_again(now)
        if self._lost_nodes:
            commands += self._without_nodes(now)
            if self.ended:
                return commands

        for member in self.members.values():
            if self._is_overdue(member, now):
                why = self._not_freed(member) if member.phase is Phase.FREEING else "did not come up in time"
                commands.append(EndRank(member.node, member.rank, member.incarnation, why))
                member.deadline = now + self.limits.grace
        if self._planned_at is not None and now - self._planned_at > self.limits.repair:
            commands += self._end_slow_repairs()
            self._planned_at = now

        if self._alone_at is not None and now >= self._alone_at:
            self._alone_at = None
            commands += self._alone(now)
        if self._finishing_at is not None and now - self._finishing_at >= self.limits.leave:
            commands += self._leave(Phase.FINISHED)
        if all(member.phase is Phase.TRAINING for member in self.members.values()) and self._hangs_now(now):
            commands += self._hung(now)
        return commands

    def _form_again(self, now: float) -> list[CoordinatorCommand]:
        """Begin a generation for links that were lost without a death; too many without a step end the job."""
        self._broken += 1
        if self._broken > self.limits.deaths:
            return self._end(1, f"groups broke {self._broken} times without a step; the last: {self._broken_why}")
        message = OperatorMessage(f"{self._broken_why}; the group is formed again")
        return [message, *self._begin(self._broken_why, now, explained=False)]

    def _is_overdue(self, member: RankStatus, now: float) -> bool:
        """Whether a rank should have left its collective, or come up, by now."""
        if member.phase not in (Phase.FREEING, Phase.STARTING) or now <= member.deadline:
            return False
        if member.prepared >= 0:
            # it waits for others
            return False
        is_spared = member.phase is Phase.FREEING and now < member.patience and not self._held_elsewhere(member)
        return not is_spared

    def _end_slow_repairs(self) -> list[CoordinatorCommand]:
        return [
            EndRank(member.node, member.rank, member.incarnation, "did not finish its repair")
            for member in self.members.values()
            if member.phase is Phase.READY
        ]

    def _hangs_now(self, now: float) -> bool:
        """Whether ranks finish no step, for no reason that is known."""
        since = now - self._progress_at
        if now < self._allowed_until:
            return False
        return (
            since > max(self.limits.busy, self._quiet())
            or now - max(self._progress_at, self._worked_at) > self._quiet()
        )

    def _hung(self, now: float) -> list[CoordinatorCommand]:
        """Begin again after a hang, and say who waited where; the same hang again and again ends the job."""
        self._hangs += 1
        cause = f"no step was finished for {now - self._progress_at:.1f} s{self._waiting()}"
        if self._hangs > self.limits.hangs:
            return self._end(1, f"{self._hangs} hangs in a row without a finished step; the last: {cause}")
        hint = "where a wait is meant: run.idle(), or --quiet-limit"
        message = OperatorMessage(f"{cause}; limit {self._quiet():g} s ({hint})")
        return [message, *self._begin(cause, now)]

    def _waiting(self) -> str:
        """Where ranks are, those at one place together."""
        places: dict[str, list[int]] = {}
        for member in self.members.values():
            if member.waits:
                places.setdefault(member.waits, []).append(member.rank)
        found = [f"{ranks_text(ranks)} {'is' if len(ranks) == 1 else 'are'} {place}" for place, ranks in places.items()]
        return ": " + "; ".join(found[:5]) + (" …" if len(found) > 5 else "") if found else ""

    def _not_freed(self, member: RankStatus) -> str:
        if not member.waits:
            return "could not be freed"
        return f"could not be freed ({member.waits}; where a wait is meant: run.idle(), or --quiet-limit)"

    def _held_elsewhere(self, member: RankStatus) -> bool:
        """Whether another rank has reported that it holds the same shard of this step or a later one."""
        return any(
            one.phase is Phase.READY and one.shard == member.shard and one.done >= max(member.done, 0)
            for one in self.members.values()
        )

    def _settle(self) -> float:
        """The pause in seconds, doubled each time that groups break without a known cause: a network may need time."""
        return min(self.limits.settle * (1 << min(self._broken, 10)), 5.0)

    def _quiet(self) -> float:
        """Seconds without a step, while all ranks are idle, after which they hang: learned from the steps of the
        job."""
        if self._highest <= 0:
            # connections, data sets, a first compilation
            return max(self.limits.quiet * self.limits.beginning, 10 * self.median)
        return max(self.limits.quiet, 10 * self.median, 2 * self._longest)
