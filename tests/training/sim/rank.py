"""A rank's process in the virtual world: a processor, and a train thread whose steps need all ranks of its groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from belay.agents.training.compat.tft import processor_commands as k
from belay.agents.training.compat.tft.constants import Action, RepairType, ReportState
from belay.agents.training.compat.tft.messages import Message
from belay.agents.training.compat.tft.processor import Processor
from belay.agents.training.compat.tft.replicas import ReplicaGroup
from belay.agents.training.compat.tft.steplock import UpdatePermission

if TYPE_CHECKING:
    from .world import Host, World

COLLECTIVE_LIMIT = 600.0


class Rank:
    """One process."""

    def __init__(self, world: World, number: int, index: int) -> None:
        plan = world.plan
        self.world, self.number, self.session = world, number, f"s{index}"
        self.code: int | None = None
        self.step, self.torn = 0, False
        self.comm = 0  # generation of the groups it trains with
        self.place = "boot"
        self.trains = False
        self.stopping = False
        self.error = ""
        self.frozen: list | None = None
        self.host: Host | None = None
        self.link = -1
        self.blocked: list[tuple[int, str]] = []
        self.given: dict[int, dict[int, int]] = {}
        self._wake = 0
        self._visit = 0
        first = next(iter(world.hosts.values()), None)
        own = next((h for h in world.hosts.values() if h.machine.s.rank == number and h.owner is None), None)
        if own is not None:
            own.owner = self
        self.machine = Processor(
            k.ProcessorSettings(
                rank=number, world=plan.world, session=self.session, arf=plan.arf,
                controller=own.address if own else "", addresses=(first.address if first else "host-1:1",),
                action_limit=60.0,
            )
        )  # fmt: skip
        self.machine.set_replicas((ReplicaGroup(0, tuple(range(plan.world)), plan.copies),))
        world.after(world.rng.uniform(0.001, 0.05), self.boot)

    # -- process -------------------------------------------------------------------------------------------------

    def live(self, what) -> None:
        """Do it unless dead; a frozen process does it later."""
        if self.code is not None:
            return
        if self.frozen is not None:
            self.frozen.append(what)
            return
        what()

    def later(self, delay: float, what) -> None:
        """In this process."""
        self.world.after(delay, lambda: self.live(what))

    def die(self, code: int) -> None:
        """The process ends."""
        if self.code is not None:
            return
        self.code, self.trains = code, False
        self.world.note(f"rank {self.number} ({self.session}) ends with {code} in {self.place} at {self.step}")
        if self.host is not None:
            host, link = self.host, self.link
            self.world.after(0.0005, lambda: host.closed(link))
        for held in list(self.world.hosts.values()):
            if held.owner is self:
                held.die()
        self.world.died(self)

    def hang(self, seconds: float) -> None:
        """Frozen for a while, as by SIGSTOP."""
        if self.code is None and self.frozen is None:
            self.frozen = []
            self.world.after(seconds, self.thaw)

    def thaw(self) -> None:
        """Go on."""
        waiting, self.frozen = self.frozen or [], None
        for what in waiting:
            self.live(what)

    # -- processor -----------------------------------------------------------------------------------------------

    def boot(self) -> None:
        """The script starts; it ends when no group takes it in."""
        self.later(40.0, lambda: self.die(2) if self.place == "boot" else None)
        self.live(lambda: self.use(lambda: self.machine.start()))

    def use(self, what) -> None:
        """Change the machine, then carry out what it says and look what the thread may do."""
        what()
        self.pump()

    def pump(self) -> None:
        if self.code is not None:
            return
        deadline = self.machine.tick(self.world.now)
        for command in self.machine.take():
            self.carry_out(command)
            if self.code is not None:
                return
        if deadline is not None:
            self._wake += 1
            wake = self._wake
            self.world.after(
                max(0.0001, deadline - self.world.now),
                lambda: self.live(self.pump) if wake == self._wake else None,
            )
        self.think()

    def carry_out(self, command: k.ProcessorCommand) -> None:
        """One command."""
        if isinstance(command, k.SendToController):
            if self.host is not None:
                host, link = self.host, self.link
                self.world.carry(command.message, lambda: host.hear(link, command.message))
        elif isinstance(command, k.Connect):
            if self.host is not None:
                host, link = self.host, self.link
                self.host = None
                self.world.after(0.0005, lambda: host.closed(link))
            self.later(command.wait + 0.001, lambda: self.connect(command.address))
        elif isinstance(command, k.RunCallback):
            self.later(self.world.rng.uniform(0.0005, 0.02), lambda: self.call_back(command))
        else:
            self.die(command.code)

    def connect(self, address: str) -> None:
        """Reach a controller, if it lives."""
        host = self.world.hosts.get(address)
        if host is None or not host.alive:
            self.later(0.01, lambda: self.use(lambda: self.machine.unlink(self.world.now)))
            return
        self.host, self.link = host, host.connect(self)
        self.use(lambda: self.machine.link(self.world.now))

    def hear(self, host: Host, link: int, message: Message) -> None:
        """A message of the controller."""
        if self.host is host and self.link == link:
            self.live(lambda: self.use(lambda: self.machine.receive(message, self.world.now)))

    def unlinked(self, host: Host, link: int) -> None:
        """The controller's end is gone."""

        def gone() -> None:
            if self.host is host and self.link == link:
                self.host = None
                self.use(lambda: self.machine.unlink(self.world.now))

        self.live(gone)

    # -- callbacks -----------------------------------------------------------------------------------------------

    def call_back(self, run: k.RunCallback) -> None:
        """The framework does what it is asked for."""
        name, given, world = run.callback, run.arguments, self.world
        if name == "stop":
            self.stopping = True
            self._stopped = world.rng.random() >= world.plan.stuck
            blocked, self.blocked = self.blocked, []
            if self._stopped:
                for token, _ in blocked:
                    self.later(world.rng.uniform(0.0005, 0.01), lambda token=token: self.freed(token))
            if self.place in ("compute", "collective", "gather") and self._stopped:
                self.later(world.rng.uniform(0.0005, 0.01), self.force_stop)
            self.done(run, 0)
        elif name in ("rebuild", "repair"):
            self.blocked.append((run.token, name))
            self.meet(run, given)
        elif world.rng.random() < world.plan.failing and name in ("clean", "rollback"):
            self.done(run, 1)
        else:
            if name == "clean":
                self.stopping = False
            elif name == "rollback":
                self.roll_back(given["step"])
            self.done(run, 0)

    def roll_back(self, step: int) -> None:
        """Every rank that trains on holds a copy of all: no finished step may be lost."""
        plan = self.world.plan
        if step < self.step and not self.torn and plan.copies == plan.world:
            raise AssertionError(f"rank {self.number} finished step {self.step} and is rolled back to {step}")
        if step > self.step:
            raise AssertionError(f"rank {self.number} holds step {self.step} and is to go on from {step}")
        self.step, self.torn = step, self.torn and self.step != step

    def meet(self, run: k.RunCallback, given: dict) -> None:
        """What needs other ranks: it waits for them, until it is stopped."""
        if (run.token, run.callback) not in self.blocked:
            return
        generation = self.machine.generation
        if run.callback == "rebuild":
            self.stopping = False
            self.comm = generation
            met = all(self.world.current(n).comm >= generation for n in range(self.world.plan.world))
        elif given["type"] == RepairType.RT_SEND.value:
            for target in given["dst"]:
                self.world.current(target).given.setdefault(generation, {})[self.number] = (
                    -1 if self.torn else self.step
                )
            met = True
        elif given["type"] in (RepairType.RT_LOAD_CKPT.value, RepairType.RT_LOAD_REBUILD.value):
            self.done(run, 1)  # this framework saves no periodic checkpoint
            return
        else:
            gifts = self.given.get(generation, {})
            met = all(source in gifts for source in given["src"])
            if met:
                for source in given["src"]:
                    assert gifts[source] == given["step"], (
                        f"rank {self.number} is given step {gifts[source]} by {source} instead of {given['step']}"
                    )
                self.step, self.torn = given["step"], False
        if met:
            self.done(run, 0)
        else:
            self.later(0.005, lambda: self.meet(run, given))

    def freed(self, token: int) -> None:
        self.use(lambda: self.machine.finished(token, 1))

    def done(self, run: k.RunCallback, result: int) -> None:
        if (run.token, run.callback) in self.blocked:
            self.blocked.remove((run.token, run.callback))
        self.use(lambda: self.machine.finished(run.token, result))

    # -- train thread --------------------------------------------------------------------------------------------

    def go(self, place: str) -> int:
        """The thread is at ``place`` now; a number that is unique to this visit."""
        self.place = place
        self._visit += 1
        return self._visit

    def here(self, visit: int, what) -> None:
        """If the thread is still there."""
        if visit == self._visit:
            what()

    def report(self, state: ReportState) -> None:
        self.trains = False
        self.go("reported")
        self.use(lambda: self.machine.report(state))

    def force_stop(self) -> None:
        """The train function raises FORCE STOP."""
        if self.place in ("compute", "collective", "gather", "gate", "held", "paused"):
            self.report(ReportState.RS_NORMAL)

    def think(self) -> None:
        """Look whether what the thread waits for has come."""
        machine = self.machine
        if self.code is not None or self.frozen is not None:
            return
        if self.place == "boot" and machine.registered:
            if machine.repair_id:
                self.report(ReportState.RS_INIT_FINISH)
            else:
                self.compute()
        elif self.place == "reported":
            if machine.state.name in ("PREREPAIR_FINISH", "STEP_FINISH"):
                self.go("repairing")
                self.think()
            elif machine.next_action() is Action.RETRY:
                visit = self.go("between")
                new = machine.state.name == "INIT_FINISH"
                self.later(0.003, lambda: self.here(visit, lambda: self.between(new)))
        elif self.place == "repairing":
            if machine.repair_action() is Action.RETRY:
                self.comm = machine.generation
                self.trains = True
                self.world.resume(self, machine.generation)
                self.compute()
            else:
                for command in machine.take():
                    self.carry_out(command)
        elif self.place == "gate" and machine.lock.permission() is not UpdatePermission.WAIT:
            self.gate()
        elif self.place == "last" and (machine.lock.limit is None or machine.lock.stopping or not machine.registered):
            self.compute()
        elif self.place == "held" and not machine.lock.past():
            self.rest()
        elif self.place == "paused" and machine.pause_step is None:
            if machine.lock.stopping:
                self.force_stop()
            else:
                self.compute()

    def between(self, new: bool) -> None:
        if new:
            self.report(ReportState.RS_PREREPAIR_FINISH)
        else:
            self.go("repairing")
            self.pump()

    def compute(self) -> None:
        if self.step >= self.world.plan.steps:
            lock = self.machine.lock
            if self.machine.registered and lock.stopping:
                self.report(ReportState.RS_NORMAL)
                return
            if self.machine.registered and lock.limit is not None:
                self.go("last")
                return
            self.go("done")
            self.trains = False
            self.machine.leave()
            self.pump()
            self.later(0.01, lambda: self.die(0))
            return
        self.trains = True
        visit = self.go("compute")
        self.later(self.world.rng.uniform(0.005, 0.08), lambda: self.here(visit, self.computed))

    def computed(self) -> None:
        error, self.error = self.error, ""
        if error == "stray":
            self.report(ReportState.RS_NORMAL)
        elif error:
            self.torn = self.torn or error == "uce"
            self.report(ReportState.RS_HCCL_FAILED if error == "hccl" else ReportState.RS_UCE)
        elif self.stopping and self._stopped:
            self.force_stop()
        else:
            self.join("collective", self.gate)

    def join(self, name: str, then) -> None:
        """A collective of this generation's groups: it ends when every rank is in it."""
        key = (name, self.comm, self.step + 1)
        members = self.world.collectives.setdefault(key, {})
        members[self.number] = self
        visit = self.go(name)
        self.later(COLLECTIVE_LIMIT, lambda: self.here(visit, self.timed_out))
        if len(members) == self.world.plan.world and all(m.code is None for m in members.values()):
            if {m.step for m in members.values()} != {self.step}:
                raise AssertionError(f"ranks at different steps meet in {key}")
            del self.world.collectives[key]
            for member in members.values():
                member.later(self.world.rng.uniform(0.0001, 0.003), member.leaver(name, key))

    def leaver(self, name: str, key: tuple):
        def leave() -> None:
            if self.place == name and (name, self.comm, self.step + 1) == key:
                if name == "collective":
                    self.gate()
                else:
                    self.updated()

        return leave

    def timed_out(self) -> None:
        """A collective that was not freed raises in the end, and the process with it."""
        self.raise_other()

    def raise_other(self) -> None:
        """Any other exception: reported, and the process ends after waiting for an order."""
        self.trains = False
        self.go("unknown")
        self.use(lambda: self.machine.report(ReportState.RS_UNKNOWN))
        self.later(60.0, lambda: self.die(1))

    def gate(self) -> None:
        gate = self.machine.lock.permission()
        if gate is UpdatePermission.WAIT:
            self.go("gate")
        elif gate is UpdatePermission.STOP:
            self.go("gate")
            self.force_stop()
        elif gate is UpdatePermission.DUMP:
            self.raise_other()
        else:
            self.machine.lock.start()
            self.torn = True
            if self.world.plan.gathers:
                self.join("gather", self.updated)
            else:
                visit = self.go("update")
                self.later(self.world.rng.uniform(0.001, 0.02), lambda: self.here(visit, self.updated))

    def updated(self) -> None:
        self.step, self.torn = self.step + 1, False
        self.world.finished_step = max(self.world.finished_step, self.step)
        self.go("held")
        self.use(lambda: self.machine.ended_update(self.step, self.world.now))

    def rest(self) -> None:
        """After a step: a pause, perhaps."""
        self.go("after")
        if self.machine.pause_at(self.step):
            if self.machine.pause_hot:
                self.report(ReportState.RS_STEP_FINISH)
            else:
                self.go("paused")
                self.pump()
            return
        self.compute()
