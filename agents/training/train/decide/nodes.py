"""Nodes that join, are lost and come back, or do not: part of the coordinator of native recovery. Pure.

With ``Limits.least`` a job goes on without nodes that do not come back: their ranks are *away*, the others do their
shares of the batch (`smaller.shares`), and all of that ends when the nodes join again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from belay.agents.training.train.decide.coordinator_commands import (
    CoordinatorCommand,
    EndJob,
    EndRank,
    Leave,
    OperatorMessage,
)
from belay.agents.training.train.decide.donors import WHOLE, ranks_text, shard_text
from belay.agents.training.train.decide.generations import Generations
from belay.agents.training.train.decide.members import Phase, RunningRank
from belay.agents.training.train.decide.smaller import refusal, unique


class Nodes(Generations):
    """Events of nodes."""

    def node_joined(self, node: int, now: float, living: Iterable[RunningRank] = ()) -> list[CoordinatorCommand]:
        """A node joined. ``living``: ranks that it already runs, from before its connection was lost or before this
        coordinator replaced another one. Once all nodes have joined, a generation begins, unless all ranks train in
        the same one."""
        self.nodes.add(node)
        self._lost_nodes.pop(node, None)
        living = list(living)
        for one in living:
            self._divides = one.divides if self._divides is None else self._divides
        if self.generation == 0:
            self._living[node] = living
            if self.finished_before or any(one.leaving for one in living):
                return self._dismiss()
            if (absent := self._absent()) - self._apart():
                return []
            self._given_up = absent
            return self._take_over(now)
        if node in self._given_up and (self._closing or node in self._ordered):
            return [EndRank(node, one.rank, one.incarnation, "the job goes on without it") for one in living]
        if self._closing:
            return self._let_go(node, living)
        if node in self._given_up:
            self._given_up.discard(node)
            for one in living:
                # they may be of a time that this coordinator has not seen
                self.away[one.rank].incarnation = max(self.away[one.rank].incarnation, one.incarnation)
            return self._begin(f"node {node} is back", now)
        for one in living:
            member = self.members.get(one.rank)
            if member and member.incarnation == one.incarnation and member.phase is Phase.ABSENT:
                member.phase, member.done = Phase.FREEING, one.done
        return self._begin(f"node {node} is back", now)

    def _take_over(self, now: float) -> list[CoordinatorCommand]:
        """Begin the first generation, or continue the newest one of ranks that a former coordinator had started."""
        self._progress_at = now
        found = [one for living in self._living.values() for one in living]
        self._living.clear()
        self._arrange()
        if not found:
            self.generation = 1
            self._unready, self._unentered = set(self.members), set(self.members)
            return [self._start(member, now) for member in self.members.values()]
        self.generation = max(one.generation for one in found)
        used = max(one.incarnation for one in found)
        for member in (*self.members.values(), *self.away.values()):
            member.incarnation = used
        newest = next((one.active for one in found if one.generation == self.generation), ())
        for one in found:
            if newest and one.rank not in newest:
                # it was away, or is to begin: others have gone on
                continue
            member = self.members[one.rank]
            member.incarnation, member.done = one.incarnation, one.done
            member.phase = Phase.FREEING
            if one.generation == self.generation and one.entered:
                member.phase = Phase.FINISHED if one.finished else Phase.TRAINING
            self._highest = max(self._highest, one.done, 0)
        self._unready, self._unentered = set(self.members), set(self.members)
        if all(member.phase is Phase.TRAINING for member in self.members.values()):
            return [OperatorMessage(f"a new coordinator has taken over all ranks in generation {self.generation}")]
        return self._begin("the coordinator was lost", now)

    def _let_go(self, node: int, living: list[RunningRank]) -> list[CoordinatorCommand]:
        """A node has a new agent while ranks leave: those that it does not have any more have left."""
        known = self.members
        still = {one.rank for one in living if one.rank in known and one.incarnation == known[one.rank].incarnation}
        for member in self.members.values():
            if member.node == node and member.rank not in still:
                member.phase = Phase.GONE
        return [Leave(tuple(sorted(still)), True), *self._done()]

    def _done(self) -> list[CoordinatorCommand]:
        """End a job whose ranks have all left."""
        if all(one.phase is Phase.GONE for one in self.members.values()):
            self.ended = EndJob(0, "done")
            return [self.ended]
        return []

    def all_finished(self) -> list[CoordinatorCommand]:
        """The node of this coordinator knows that all ranks had finished under a former one: nodes that joined before
        it was said hear it too."""
        return [] if self.finished_before or self.generation else self._dismiss()

    def _dismiss(self) -> list[CoordinatorCommand]:
        """All ranks had finished under a former coordinator: let those that are still there leave, and begin nothing.
        Their nodes end by themselves; which have ended already is not known."""
        self.finished_before = True
        found = [one for living in self._living.values() for one in living]
        for one in found:
            self.members[one.rank].incarnation, self.members[one.rank].phase = one.incarnation, Phase.LEAVING
        return [Leave(tuple(one.rank for one in found), True)]

    def node_lost(self, node: int, why: str, now: float) -> list[CoordinatorCommand]:
        """A node was lost, and its ranks with it. They start again when it comes back."""
        if node not in self.nodes or self.ended:
            return []
        self.nodes.discard(node)
        if self.generation == 0:
            self._living.pop(node, None)
            return []
        if node in self._given_up:
            return []
        self._lost_nodes[node] = now
        if self._closing:
            # its ranks leave without it; a new agent says which are still there
            return []
        lost = [member for member in self.members.values() if member.node == node]
        for member in lost:
            self._forget(member)
        return [
            OperatorMessage(f"node {node} is lost: {why}"),
            *self._begin(f"node {node} lost", now, {one.rank for one in lost}),
        ]

    def shrink(self, nodes: Collection[int], why: str, now: float) -> list[CoordinatorCommand]:
        """An order to go on without these nodes; those that are there come back on the order `grow` only."""
        lost = {node for node in nodes if node in set(self.places.values())} - self._given_up
        if not lost or self._closing or self.ended or self.generation == 0:
            return []
        if text := self.unable(lost):
            return [OperatorMessage(f"the order to go on without nodes {sorted(lost)[:20]} is not carried out: {text}")]
        ends = [
            EndRank(one.node, one.rank, one.incarnation, "the job goes on without it")
            for one in self.members.values()
            if one.node in lost & self.nodes and one.phase is not Phase.ABSENT
        ]
        # one that was lost is another process when it comes
        self._ordered |= lost & self.nodes
        return [*self._go_on_without(lost, why, now), *ends]

    def grow(self, now: float) -> list[CoordinatorCommand]:
        """An order to go on with all nodes that are there again."""
        self._ordered.clear()
        back = self._given_up & self.nodes
        if not back or self._closing or self.ended or self.generation == 0:
            return []
        self._given_up -= back
        return self._begin(f"nodes {sorted(back)[:20]} take part again", now)

    def lost(self) -> frozenset[int]:
        """The nodes that were lost and have not come back."""
        return frozenset(self._lost_nodes) | self._given_up

    def training(self) -> frozenset[int] | None:
        """The nodes that train; None while a rank of them does not."""
        if any(one.phase not in (Phase.TRAINING, Phase.FINISHED) for one in self.members.values()):
            return None
        return frozenset(one.node for one in self.members.values())

    def unable(self, lost: Collection[int]) -> str:
        """Why the job does not go on without these nodes too; empty when it does."""
        gone = self._given_up | set(lost)
        every = set(self.places.values())
        if text := refusal(every - gone, len(every), self.limits):
            return text
        if text := self._undivided():
            return text
        kept = [one for one in self.members.values() if one.node not in gone]
        if self._highest > 0 and not any(one.checkpoints for one in kept):
            # a process that was just started has nothing to give; a node that is cut off may be all that is left
            kept = [one for one in kept if one.done >= 0 and one.phase not in (Phase.ABSENT, Phase.STARTING)]
        if alone := unique((one for one in self.members.values() if one.node in gone), kept):
            held = "holds" if len(alone) == 1 else "hold"
            return f"{ranks_text(alone)} {held} state of which no other node has a copy"
        return ""

    def _undivided(self) -> str:
        return "the script asks for no run.shares(…), so the batch would be smaller" if self._divides is False else ""

    def _lacking(self) -> str:
        """What the ranks that have joined before the first generation do not hold, although ranks of their own nodes
        did; empty when they hold all of it. Nodes that have not joined may hold it."""
        found = [one for living in self._living.values() for one in living]
        if not any(one.entered or one.done > 0 for one in found):
            return ""
        newest = max(one.generation for one in found)
        active = next((set(one.active) for one in found if one.generation == newest and one.active), set(self.places))
        # an agent need not know how far a rank has come that it has started
        holders = {one.rank for one in found if one.entered or one.done >= 0}
        held = {self.members[rank].shard for rank in holders}
        if all(shard_text(shard) == WHOLE for shard in held):
            # what a node held that has lost its memory is not known: here it was the same
            held.add("")
        lost = [
            rank
            for rank in sorted(active - holders)
            if self.places[rank] in self.nodes and self.members[rank].shard not in held
        ]
        return f"of what {ranks_text(lost)} held no rank that has joined has a copy" if lost else ""

    def _go_on_without(self, lost: Collection[int], why: str, now: float) -> list[CoordinatorCommand]:
        self._given_up |= set(lost)
        for node in lost:
            self._lost_nodes.pop(node, None)
        return [self._said(why), *self._begin(why, now)]

    def _said(self, why: str) -> OperatorMessage:
        count = self._count()
        ranks = sum(node not in self._given_up for node in self.places.values())
        return OperatorMessage(
            f"{why}: the job goes on with {count - len(self._given_up)} of {count} nodes, {ranks} of "
            f"{len(self.places)} ranks, which do the shares of the others too (the batch stays the same)"
        )

    def _without_nodes(self, now: float) -> list[CoordinatorCommand]:
        """What follows from lost nodes that have not come back."""
        if self._closing:
            gone = self._later_than(self.limits.farewell, now)
            for member in self.members.values():
                if member.node in gone:
                    member.phase = Phase.GONE
            return self._done() if gone else []
        late = self._later_than(self.limits.shrink, now) if self.limits.least else []
        if late and not (text := self.unable(late)):
            return self._go_on_without(late, f"nodes {late[:20]} have not come back for {self.limits.shrink:g} s", now)
        if given_up := self._later_than(self.limits.join, now):
            return self._end(1, f"node {given_up[0]} has not come back for {self.limits.join:g} s")
        return self._waits_for(late, text) if late else []

    def _waits_for(self, nodes: Collection[int], why: str) -> list[CoordinatorCommand]:
        """Say once for what reason the job does not go on without these nodes."""
        if why == self._unable:
            return []
        self._unable = why
        return [OperatorMessage(f"the job waits for nodes {sorted(nodes)[:20]}: {why}")]

    def _later_than(self, seconds: float, now: float) -> list[int]:
        """The nodes that have been lost for longer."""
        return sorted(node for node, since in self._lost_nodes.items() if now - since > seconds)

    def _count(self) -> int:
        return len(set(self.places.values()))

    def _absent(self) -> set[int]:
        return set(self.places.values()) - self.nodes

    def _apart(self) -> set[int]:
        """Nodes without which the ranks that have joined, before the first generation, train already."""
        found = [one for living in self._living.values() for one in living]
        newest = max((one.generation for one in found), default=0)
        ranks = {one.rank for one in found if one.generation == newest}
        active = next((set(one.active) for one in found if one.generation == newest), set())
        if not active or not active <= ranks:
            return set()
        return set(self.places.values()) - {self.places[rank] for rank in active}

    def _await_nodes(self, now: float) -> list[CoordinatorCommand]:
        """Begin without nodes that do not come, where that may be, or end the job.

        Where those that have come run no ranks, or lack a part of the state, the others may hold steps: they wait as
        long for a coordinator, so that after that time none does.
        """
        self._waiting_since = now if self._waiting_since is None else self._waiting_since
        waited = now - self._waiting_since
        lacking = self._lacking()
        patience = self.limits.shrink if any(self._living.values()) and not lacking else self.limits.join
        text = refusal(self.nodes, self._count(), self.limits) or self._undivided()
        if waited > patience and not text and not self.finished_before:
            self._given_up = self._absent()
            why = f"nodes {sorted(self._given_up)[:20]} have not joined for {waited:.0f} s"
            return [self._said(why), *self._take_over(now)]
        missing = sorted(self._absent())
        if waited <= self.limits.join:
            due = self.limits.least and waited > self.limits.shrink and any(self._living.values())
            return self._waits_for(missing, lacking or text) if due else []
        return self._end(1, f"nodes {missing[:20]} have not joined for {self.limits.join:g} s: are they up?")
