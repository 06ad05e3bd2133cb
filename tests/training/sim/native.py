"""Histories of `belay train` on a virtual clock: ``python -m tests.training.sim.native FIRST [COUNT [LEAST]]``.

Node agents and coordinator are the real ones (`NodeAgent.turn`, `CoordinatorHost`); ranks, their processes and the
network are models. Ranks are killed, blocked and stopped, agents (with the coordinator) and whole hosts are killed at
any moment, also at the very end, and the network between hosts is cut. With LEAST hosts the job goes on smaller, and
some hosts never come back. With one seed the story is printed.
"""

from __future__ import annotations

import contextlib
import heapq
import random
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

from belay.agents.training.train.agent import coordinator_host, node_ranks
from belay.agents.training.train.agent import node as nodes
from belay.agents.training.train.agent.node import NodeAgent

from .native_hosts import Broken, Host, Listener, Process, Wire

SILENT = 3.0
LIMIT = 2000.0
"""Seconds of the virtual clock after which a wait counts as one for ever."""


class World:
    """One history."""

    def __init__(self, seed: int, least: int = 0) -> None:
        """``least``: number of hosts with which the job goes on; 0: all, and every lost host comes back."""
        self.seed, self.least, self.chance = seed, least, random.Random(seed)
        self.now = 1.0
        self.nodes = self.chance.choice((2, 3, 4) if least else (1, 2, 2, 3))
        self.apart: set[int] = set()
        """Hosts without which the job had gone on when it ended."""
        self.nproc = self.chance.choice((1, 2, 2, 4)) if self.nodes > 1 else self.chance.choice((2, 4))
        self.ranks, self.steps = self.nodes * self.nproc, self.chance.randint(3, 25) * (10 if least else 1)
        self.sharded = self.chance.random() < 0.3 and self.ranks % 2 == 0 and self.ranks > 2
        self.story: list[str] = []
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._count = self.pids = 0
        self.cut = 0.0
        self.listener: Listener | None = None
        self.processes: list[Process] = []
        self.lost = False
        """Whether no living rank held some shard at some moment after a step was finished."""
        self.over = False
        """Whether a rank knows that all have finished."""
        self.late = False
        """Whether a rank was lost after that."""
        self.finished_step = 0
        self.hosts: list[Host] = []

    def name(self) -> str:
        return f"belay-sim-{id(self)}-{self._count}-{self.chance.getrandbits(32)}"

    def note(self, text: str) -> None:
        self.story.append(f"{self.now:9.4f} {text}")

    def after(self, delay: float, what: Callable[[], object]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + delay, self._count, what))

    def short(self) -> float:
        return self.chance.uniform(0.0005, 0.003)

    def carry(self, node: int, deliver: Callable[[], object]) -> None:
        """A message between hosts: after a cut, where there is one, and never before an earlier one."""
        at = max(self.now + 0.002, self.cut + 0.05)
        self.after(at - self.now, deliver)

    def shard(self, rank: int | None) -> str:
        return str((rank or 0) % 2) if self.sharded else ""

    def living(self) -> dict[int, Process]:
        """Rank → its newest process that lives."""
        return {one.rank: one for one in self.processes if one.alive and one.rank is not None}

    def members(self, generation: int) -> dict[int, Process]:
        """The ranks of a generation, once all of them have joined it; none before."""
        found = {rank: one for rank, one in self.living().items() if one.joined == one.generation == generation}
        active = next((one.active for one in found.values()), ())
        return {rank: found[rank] for rank in active} if active and set(active) <= found.keys() else {}

    def form(self, generation: int) -> None:
        """The group of a generation forms once every rank has the plan; then state goes from donors to receivers."""
        found = self.members(generation)
        if not found or any(one.plan is None for one in found.values()):
            return
        plan = next(iter(found.values())).plan
        assert plan is not None
        if plan.get("ask"):
            for one in found.values():
                one.plan = None
                one.say("offered", gen=generation, steps=[])
            return
        step, donors = plan["step"], plan["donors"]
        held = [one.done for one in found.values() if one.whole]
        for shard in {self.shard(rank) for rank in found}:
            owners = [one for one in found.values() if one.whole and self.shard(one.rank) == shard]
            if all(one.done < step for one in owners) and step > 0:
                raise Broken(f"generation {generation} goes on at step {step}, which no rank of shard {shard!r} holds")
        if max(held, default=-1) > step and not self.sharded:
            raise Broken(f"generation {generation} goes on at step {step}, {max(held)} is held")
        order = sorted(found)
        for rank, one in found.items():
            if str(order.index(rank)) in donors:
                donor = found[order[donors[str(order.index(rank))]]]
                if donor.done != step or not donor.whole or self.shard(donor.rank) != self.shard(rank):
                    raise Broken(f"rank {donor.rank} is the donor of rank {rank} and does not hold step {step}")
                one.past = donor.past
            elif step and (one.done != step or not one.whole):
                raise Broken(f"rank {rank} holds step {one.done}, has no donor and is to go on at {step}")
        if step and len({one.past for one in found.values()}) > 1:
            # sums in another order: equal steps, but not equal weights
            raise Broken(f"generation {generation} mixes states of step {step} that smaller and larger jobs have made")
        for one in found.values():
            one.past = one.past if step else 0
            one.done, one.whole, one.entered = step, True, True
            one.say("entered", gen=generation)
            self.finish(one, generation)
        self.note(f"generation {generation} at step {step}")
        self.after(self.chance.uniform(0.005, 0.03), lambda: self.reduce(generation))

    def reduce(self, generation: int) -> None:
        """All ranks meet in the collective of a step; each of them updates alone."""
        found = self.members(generation)
        if not found or not all(one.entered for one in found.values()):
            return
        if any(one.stuck > self.now for one in found.values()):
            self.after(0.5, lambda: self.reduce(generation))
            return
        steps = {one.done for one in found.values()}
        if len(steps) > 1:
            # one of them is still in its update
            self.after(0.003, lambda: self.reduce(generation))
            return
        if steps == {self.steps}:
            return
        for one in found.values():
            one.whole = False
            self.after(self.chance.uniform(0.0, 0.004), lambda one=one: self.updated(one, generation))
        self.after(self.chance.uniform(0.01, 0.03), lambda: self.reduce(generation))

    def updated(self, one: Process, generation: int) -> None:
        if not one.alive or one.whole:
            return
        one.whole, one.done = True, one.done + 1
        one.past = hash((one.past, one.trains)) if self.least else 0
        one.shown = one.done
        self.finished_step = max(self.finished_step, one.done)
        if one.first[0] != one.joined:
            one.first = (one.joined, round(self.now * 1e9))
        self.finish(one, generation)

    def finish(self, one: Process, generation: int) -> None:
        """Its function returns after the last step."""
        if one.done == self.steps and one.generation == one.joined == generation:
            one.finished = True
            one.say("finished", gen=generation, done=one.done)

    def faults(self) -> None:
        """What happens to this job."""
        moment = self.chance.choice((0.2, 1.0, 1.2, 1.2))
        for _ in range(self.chance.randint(0, 8)):
            kind = self.chance.choice(SMALLER if self.least else FAULTS)
            self.after(moment, lambda kind=kind: self.fault(kind))
            moment += self.chance.choice(
                [self.chance.expovariate(200), self.chance.expovariate(20), self.chance.expovariate(2)]
            )

    def fault(self, kind: str) -> None:
        host = self.chance.choice(self.hosts)
        found = self.living()
        some = self.chance.sample(sorted(found), min(len(found), self.chance.choice((1, 1, 1, 2, 3))))
        self.note(f"{kind} {some if 'rank' in kind else host.number}")
        match kind:
            case "ranks killed":
                for rank in some:
                    self.kill(found[rank])
            case "rank blocked":
                for rank in some[:1]:
                    found[rank].stuck = self.now + self.chance.choice((0.5, 5.0, 1e9))
            case "machine busy, a rank killed":
                busy = self.now + self.chance.choice((2.0, 8.0))
                for one in found.values():
                    one.stuck = busy
                for rank in some[:1]:
                    self.kill(found[rank])
            case "agent killed":
                host.kill_agent()
            case "all agents killed":
                for each in self.hosts:
                    each.kill_agent()
            case "host lost" if self.nodes > 1 and not self.over:
                host.lose()
            case "cut" if self.nodes > 1:
                self.begin_cut(self.chance.choice((0.3, 6.0, 12.0) if self.least else (0.3, 2.0, 6.0)))
        self.look()

    def kill(self, process: Process) -> None:
        self.late = self.late or process.finished
        process.die("was killed")

    def begin_cut(self, seconds: float) -> None:
        """No packet passes; a connection that is silent for too long is lost on both sides."""
        self.cut = max(self.cut, self.now + seconds)
        if seconds > SILENT and self.listener is not None:
            for one in list(self.listener.wires):
                self.after(SILENT, lambda one=one: self.silence(one))

    def silence(self, one: Wire) -> None:
        one.up_lost = one.up_lost or "silent"
        one.down_lost = "silent"

    def look(self) -> None:
        """Note whether the state of some shard is held by no living rank."""
        if self.finished_step:
            # one that stays blocked for ever is given up in the end
            able = {rank: one for rank, one in self.living().items() if one.done >= 0 and one.stuck < self.now + 25}
            held = {self.shard(rank) for rank in able}
            self.lost = self.lost or held != {self.shard(rank) for rank in range(self.ranks)}

    def run(self) -> None:
        """Play to the end."""
        with self._clock():
            self.hosts = [Host(self, number) for number in range(self.nodes)]
            self.faults()
            while self._events and self.now < LIMIT:
                self.now, _, what = heapq.heappop(self._events)
                what()
                if not self.over and any(one.all_finished for one in self.processes):
                    self.over = True
                    for _ in range(self.chance.choice((0, 0, 1, 2))):
                        kind = self.chance.choice(("agent killed", "agent killed", "all agents killed", "cut"))
                        self.after(self.chance.expovariate(10), lambda kind=kind: self.fault(kind))
                if all(host.code is not None or host.gone for host in self.hosts):
                    break
        self.judge()

    @contextlib.contextmanager
    def _clock(self) -> Iterator[None]:
        real_time, real_say, real_reap = nodes.time, nodes.say, NodeAgent._reap
        nodes.time = node_ranks.time = SimpleNamespace(monotonic=lambda: self.now)  # type: ignore[assignment]
        nodes.say = lambda text, *_: self.note(text)
        NodeAgent._reap = staticmethod(lambda: None)  # type: ignore[method-assign]
        coordinator_say, coordinator_host.say = coordinator_host.say, lambda text, *_: self.note(text)
        try:
            yield
        finally:
            nodes.time, node_ranks.time, nodes.say = real_time, real_time, real_say
            coordinator_host.say = coordinator_say
            NodeAgent._reap = staticmethod(real_reap)  # type: ignore[method-assign]

    def judge(self) -> None:
        """What must hold at the end."""
        codes = {host.number: host.code for host in self.hosts if not host.gone}
        if None in codes.values():
            raise Broken(f"hosts {[number for number, code in codes.items() if code is None]} wait for ever")
        # one that comes when the others have ended waits for them
        wrong = {number: code for number, code in codes.items() if code and number not in self.apart}
        if wrong and not self.lost and not self.late:
            raise Broken(f"ended with {codes}, although every shard was held by a rank that lived")
        if not wrong and self.finished_step < self.steps:
            raise Broken(f"ended with 0 after {self.finished_step} of {self.steps} steps")


FAULTS = ["ranks killed"] * 8 + ["rank blocked"] * 2 + ["agent killed"] * 4
FAULTS += ["all agents killed", "host lost", "cut", "cut", "machine busy, a rank killed"]
SMALLER = [*FAULTS, *["host lost"] * 8, *["cut"] * 4]


def main(arguments: list[str]) -> int:
    """Play histories; exit code 1 when one is broken."""
    first, count = int(arguments[0]), int(arguments[1]) if len(arguments) > 1 else 1
    least = int(arguments[2]) if len(arguments) > 2 else 0
    began, broken, ends = time.monotonic(), 0, dict[str, int]()
    for seed in range(first, first + count):
        world = World(seed, least)
        try:
            world.run()
        except Exception as error:
            broken += 1
            print(f"seed {seed}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            if count == 1:
                print(*world.story, sep="\n")
                raise
        else:
            codes = str(sorted({host.code or 0 for host in world.hosts}))
            ends[codes] = ends.get(codes, 0) + 1
            if count == 1:
                print(*world.story, sep="\n")
    print(f"{count} histories, {broken} broken, {time.monotonic() - began:.1f} s; exit codes: {ends}")
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
