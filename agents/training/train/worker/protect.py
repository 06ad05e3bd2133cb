"""``protect``: a decorator for a training function, which is entered again after each repair."""

from __future__ import annotations

import functools
import json
import os
import time
import traceback
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
import torch.distributed as dist

from belay.agents.training.checkpoint.errors import CheckpointError
from belay.agents.training.train import protocol
from belay.agents.training.train.decide.smaller import shares
from belay.agents.training.train.notices import say
from belay.agents.training.train.protocol import Plan
from belay.agents.training.train.worker import repair
from belay.agents.training.train.worker.buckets import Buckets, agreed
from belay.agents.training.train.worker.groups import Groups, accelerator, devices
from belay.agents.training.train.worker.interruption import Interrupted, TrainingError
from belay.agents.training.train.worker.link_failures import is_link_failure
from belay.agents.training.train.worker.loaders import Loaders
from belay.agents.training.train.worker.periodic import PeriodicCheckpoints
from belay.agents.training.train.worker.process import CurrentRank, current
from belay.agents.training.train.worker.proof import Proof
from belay.agents.training.train.worker.protected import Checkpoint, Protected
from belay.agents.training.train.worker.randomness import Randomness
from belay.agents.training.train.worker.recomputation import Recomputation
from belay.agents.training.train.worker.run import Run
from belay.agents.training.train.worker.sharing import Shares

P = ParamSpec("P")
R = TypeVar("R")
EXPLAINED = 2.0
"""Seconds to wait for the fault that explains a failed collective."""
_ENTERED = False


def protect(
    *,
    model: Any = None,
    optimizer: Any = None,
    schedule: Any = None,
    state: Any = None,
    checkpoint: Checkpoint | None = None,
    backend: str | None = None,
    timeout: float = 1800.0,
    random: str = "step",
    late: bool = False,
    part: str = "",
) -> Callable[[Callable[Concatenate[Run, P], R]], Callable[P, R]]:
    """Protect a training function ``train(run, …)``.

    ``model``, ``optimizer``, ``schedule``: the state to repair from a peer, each one object or a list or dict of them;
    ``state``: further state by name: tensors, modules, objects with ``state_dict`` and ``load_state_dict``.
    ``late=True``: the function makes these itself and calls ``run.protect(…)``.
    ``checkpoint``: used when no living rank holds a shard, and by a job that begins again;
    :class:`PeriodicCheckpoints` saves them too. Without it, as ``belay train --checkpoints`` says. ``backend``: of
    ``init_process_group``; by default gloo, plus the backend of the model's device. ``timeout``: of collectives, in
    seconds. ``random="keep"`` leaves the random generators alone; by default they are seeded for each step. ``part``:
    where ranks hold different parts of the state, which one this rank holds. Raises ``TypeError``, ``ValueError``, and
    ``TrainingError`` for state that cannot be copied to another rank.
    """
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
        raise TypeError("protect(checkpoint=…): give an object with latest() and load(step)")
    if random not in ("step", "keep"):
        raise ValueError(f"protect(random={random!r}): give 'step' or 'keep'")
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout <= 86_400 * 30:
        raise ValueError(f"protect(timeout={timeout!r}): give seconds, more than 0")
    if not late:
        # report wrong arguments here, not when training begins
        Protected(model, optimizer, schedule, state, 0, part).check()
    elif part or not model is optimizer is schedule is state is None:
        raise TypeError("protect(late=True): give the model, the optimizer and the rest to run.protect(…)")

    def decorate(train: Callable[Concatenate[Run, P], R]) -> Callable[P, R]:
        if not callable(train):
            raise TypeError(f"protect(…) decorates a function train(run), not a {type(train).__qualname__}")

        @functools.wraps(train)
        def entered(*args: P.args, **kwargs: P.kwargs) -> R:
            global _ENTERED
            if _ENTERED:
                raise TrainingError("a protected function is already running in this process: protect one function")
            _ENTERED = True
            try:
                member = current()
                rank = int(os.environ.get("RANK", "0")) if member is None else -1
                if member is not None:
                    member.identify()
                    rank = member.rank
                given = None if late else Protected(model, optimizer, schedule, state, rank, part)
                if member is None:
                    return _run_unprotected(train, given, rank, backend, random, args, kwargs)
                saved = checkpoint if checkpoint is not None else PeriodicCheckpoints.of_environment()
                session = _Session(member, given, saved, backend, float(timeout), random == "keep")
                return session.train(lambda run: train(run, *args, **kwargs))
            finally:
                _ENTERED = False

        return entered

    return decorate


class _Session:
    """The run of one protected function in one rank, from its first entry to its return."""

    def __init__(
        self,
        member: CurrentRank,
        protected: Protected | None,
        checkpoint: Checkpoint | None,
        backend: str | None,
        timeout: float,
        keep_random: bool,
    ) -> None:
        # of the last entry, where the function makes its objects itself
        self.late, self.protected = protected is None, protected
        self.member, self.checkpoint = member, checkpoint
        self.periodic = checkpoint if isinstance(checkpoint, PeriodicCheckpoints) else None
        self.control = member.control
        self.backend = backend or devices(protected.device() if protected else accelerator())
        self.randomness = Randomness(keep_random)
        self.buckets = Buckets(self._keep_orders)
        self.loaders = Loaders(self.randomness)
        if member.groups is None:
            member.groups = Groups(self.control, member.rank, member.address, timeout)
        self.groups = member.groups
        self.rank, self.world = member.rank, member.world
        """In the group of the present generation."""
        self.entries = 0
        self._sampled = 0
        """Generation whose state was compared with that of copies."""
        self.proof = Proof(self.control.send)
        self._shown = False
        """Whether the traceback of lost links that nothing explained was shown."""
        self.sharded = False
        """Whether ranks hold different shards."""
        self.shares = Shares((member.rank,), member.world, member.world)
        self._began = self._planned = self._formed = 0.0

    def train(self, body: Callable[[Run], R]) -> R:
        """Enter the function until it returns and every rank has finished."""
        while True:
            generation = self.control.generation
            try:
                plan = self._join(generation)
                if not self.late:
                    self._prepare(plan, self.protected, generation)
                run = Run(
                    self.rank,
                    self.world,
                    self.member.local_rank,
                    generation,
                    None if self.late else self.protected,
                    self.randomness,
                    functools.partial(self.control.check, generation),
                    self.member.page,
                    functools.partial(self._adopt, plan, generation),
                    self.periodic,
                    self.groups.device.settle if self.groups.device is not None else None,
                    self._finished_step,
                    functools.partial(self._agree, generation),
                    functools.partial(setattr, self.control, "idle_until"),
                    self.shares,
                    self._recomputation(),
                )
                self.control.send(protocol.Entered(generation))
                result = body(run)
                self.control.check(generation)
                if self.periodic is not None:
                    self.periodic.flush()
                if self.protected is not None and self.member.world > 1:
                    self.proof.finished(self.protected, self.control.pace, generation)
                self.control.send(protocol.Finished(generation, self.protected.done if self.protected else 0))
                self.control.wait_leave(generation)
                return result
            except Exception as error:
                self._explain(error, generation)
                # frames keep the old groups and models alive
                traceback.clear_frames(error.__traceback__)
                error.__traceback__ = None

    def _join(self, generation: int) -> Plan:
        """Join a generation: report the held step, get the plan and the group."""
        began = time.monotonic()
        control, protected = self.control, self.protected
        self.groups.form(generation)
        control.joined = generation
        if protected is not None:
            protected.rewind()
        if self.periodic is not None:
            # a copy that is being made must not see the repaired state
            self.periodic.copied()
        control.send(
            protocol.Ready(
                generation,
                done=protected.done if protected and protected.whole else -1,
                shard=protected.shard() if protected else None,
                checkpoints=self.checkpoint is not None,
                kept=tuple(self.proof.steps()),
                proven=self.control.pace[2],
            )
        )
        plan = control.wait_plan(generation)
        while isinstance(plan, protocol.OfferRequest):
            control.send(protocol.Offered(generation, tuple(_steps(self.checkpoint))))
            plan = control.wait_plan(generation)

        self._began, self._planned = began, time.monotonic()
        if plan.back and protected is not None:
            # what was computed since that step is wrong, whatever happens until it is replaced
            protected.whole = False
        self._place(generation)
        self.groups.install(generation, self.backend)
        self._formed = time.monotonic()
        self.buckets.enter(plan.step)
        self.randomness.enter(plan.step)
        self._hand_over(plan, generation)
        return plan

    def _place(self, generation: int) -> None:
        """Take the number that this rank has in a generation, and its shares of the batch."""
        active = self.control.active(generation)
        self.rank, self.world = active.index(self.member.rank), len(active)
        local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self.shares = Shares(shares(active, local, self.member.world)[self.rank], self.world, self.member.world)
        os.environ.update(RANK=str(self.rank), WORLD_SIZE=str(self.world))

    def _recomputation(self) -> Recomputation | None:
        """Ranks of a smaller job have no time for the shares of others beside those that they do anyway."""
        if self.world != self.member.world:
            return None
        return Recomputation(self.rank, self.world, lambda: self.control.pace[3:], self.control.send)

    def _hand_over(self, plan: Plan, generation: int) -> None:
        """Give and take how DDP reduces and where loaders are, before the function is entered: a DDP that it makes
        before it calls ``run.protect()`` must have the buckets that those of the other ranks have."""
        me, step, donors = self.rank, plan.step, plan.donors
        if plan.checkpoint and step:
            left = json.loads(self.control.orders) if self.control.orders else []
            found: list[Any] = [None] * self.world
            dist.all_gather_object(found, self.buckets.orders or left)
            self.buckets.orders = agreed(found, me)
        if plan.back and me not in donors:
            self.loaders.records = self.proof.loaders(step)
        if me in donors.values():
            self._store_set(generation, f"orders/{me}", json.dumps(self.buckets.orders).encode())
            self._store_set(generation, f"loaders/{me}", json.dumps(self.loaders.records).encode())
        if me in donors:
            store = self.groups.form(generation).store
            self.buckets.orders = json.loads(store.get(f"belay/orders/{donors[me]}"))
            self.loaders.records = json.loads(store.get(f"belay/loaders/{donors[me]}"))
        elif not step:
            self.loaders.records = {}

    def _finished_step(self) -> None:
        self.buckets.finished()
        self.loaders.finished()
        if self.member.world < 2:
            return
        assert self.protected is not None
        control = self.control
        self.proof.updated(self.protected, control.pace, self.loaders.records, control.joined)
        if self._sampled != control.joined:
            # once an entry, after its first update: copies that differ would be mixed by a repair
            self._sampled = control.joined
            done, sums = self.protected.done, self.protected.sample()
            shard, self.control.divides = self.protected.shard(), self.shares.asked
            self.control.send(protocol.Sample(self._sampled, done, shard, sums, self.shares.asked))

    def _adopt(self, plan: Plan, generation: int, made: Protected) -> None:
        """Protect what the function has made in this entry; it takes over the state of the last entry's objects.

        Until that is done those objects are what this rank holds: another fault may come while it waits for a process
        that is still building its model.
        """
        before = self.protected
        replaced = plan.checkpoint or plan.back or self.rank in plan.donors
        if before is not None and before.whole and not replaced:
            made.restore(*before.capture())
        self.control.send(protocol.ShardNamed(generation, made.shard()))
        self._prepare(plan, made, generation)
        self.protected = made

    def _prepare(self, plan: Plan, protected: Protected | None, generation: int) -> None:
        """Bring what is protected to the planned step."""
        assert protected is not None
        step = plan.step
        self.sharded = plan.sharded
        if self.late or self.periodic is not None:
            shards: list[Any] = [None] * self.world
            dist.all_gather_object(shards, protected.shard())
            self.sharded = len(set(shards)) > 1
            if self.periodic is not None:
                self.periodic.bind(protected, self.buckets, self.rank, shards, self.loaders)
        self._restore(plan, protected, step, generation)
        protected.drop_gradients()
        protected.settled()
        if self.periodic is not None:
            self.periodic.begin(step)
        if not plan.checkpoint:
            # a script's own load() may have loaded in rank 0 only
            self.buckets.repaired(protected.of_models())
        if self.entries or step:
            self.control.send(
                protocol.Times(
                    generation,
                    planned=self._planned - self._began,
                    formed=self._formed - self._planned,
                    repaired=time.monotonic() - self._formed,
                )
            )
        self.loaders.enter()
        self.entries += 1

    def _restore(self, plan: Plan, protected: Protected, step: int, generation: int) -> None:
        me, donors = self.rank, plan.donors
        if plan.checkpoint and me not in donors:
            protected.whole = False
            self._load(step)
        if plan.back and me not in donors:
            protected.whole = False
            self.proof.back(protected, step)
        for receiver, donor in sorted(donors.items()):
            if donor == me:
                repair.send_state(protected, receiver, step)
            elif receiver == me:
                repair.receive_state(protected, donor, step)
        protected.done, protected.whole = step, True
        self.proof.enter(step)
        if plan.back and me in donors:
            self.proof.received(protected, step, self.loaders.records)
        self._keep_orders()

    def _keep_orders(self) -> None:
        """Leave the orders with the node agent, for the case that no rank is left to give them."""
        text = json.dumps(self.buckets.orders).encode()
        if self.buckets.orders and text != self.control.orders:
            self.control.send(protocol.KeepOrders(), text)

    def _load(self, step: int) -> None:
        """Load a checkpoint. One that is damaged ends this generation; the next does without it."""
        assert self.checkpoint is not None
        try:
            self.checkpoint.load(step)
        except CheckpointError as error:
            say(str(error), "belay_training: ")
            raise Interrupted(f"the checkpoint of step {step} could not be loaded: {error}") from error

    def _store_set(self, generation: int, key: str, value: bytes) -> None:
        self.groups.form(generation).store.set(f"belay/{key}", value)

    def _agree(self, generation: int, step: int) -> None:
        """Return when this rank may make its update of ``step``. Raises ``Interrupted`` when the step is done again.

        Where ranks hold different shards, none may be left behind by one step: no step would be left of which all
        shards exist. So all wait for each other, and one that is interrupted here asks whether another has gone on.
        """
        self.control.check(generation)
        if not self.sharded:
            return
        try:
            self.groups.meet(generation)
            return
        except (RuntimeError, Interrupted) as error:
            self._await_generation(error, generation)
        while True:
            newest = self.control.generation
            try:
                go = self.control.ask_commit(newest, step)
            except Interrupted:
                continue
            if go:
                return
            self.control.check(generation)

    def _await_generation(self, error: BaseException, generation: int) -> None:
        """Report lost links until the coordinator ends the generation, for them or for the death that explains them."""
        text = f"{type(error).__name__}: {error}"[:500]
        while self.control.generation == generation:
            self.control.send(protocol.Broken(generation, text))
            self.control.wait_called(generation, EXPLAINED)
        if not self.control.explained and not self._shown:
            self._shown = True
            traceback.print_exception(error)

    def _explain(self, error: Exception, generation: int) -> None:
        """Return once a fault explains the error; raise the error when it is the script's own."""
        if self.control.generation > generation:
            return
        if isinstance(error, Interrupted) or is_link_failure(error, self.groups, generation):
            self._await_generation(error, generation)
            return
        raise error


def _steps(checkpoint: Checkpoint | None) -> list[int]:
    """Steps that a checkpoint object can load."""
    if checkpoint is None:
        return []
    if callable(several := getattr(checkpoint, "steps", None)):
        return [int(step) for step in several()]
    newest = checkpoint.latest()
    return [] if newest is None else [int(newest)]


def _run_unprotected(
    train: Callable[..., R],
    protected: Protected | None,
    rank: int,
    backend: str | None,
    random: str,
    args: Any,
    kwargs: Any,
) -> R:
    """Run without a node agent, as one rank or under plain torchrun; nothing is protected."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if protected is not None:
        protected.done = 0
    mine = not dist.is_initialized()
    if mine:
        kind = backend or devices(protected.device() if protected is not None else accelerator())
        if world > 1:
            if rank == 0:
                say(
                    "faults are not repaired: start the script by belay train or a patched torchrun", "belay_training: "
                )
            dist.init_process_group(kind)
        else:
            dist.init_process_group(kind, store=dist.HashStore(), rank=0, world_size=1)
    try:
        local = int(os.environ.get("LOCAL_RANK", "0"))

        def adopt(made: Protected) -> None:
            made.done = 0

        run = Run(rank, world, local, 1, protected, Randomness(random == "keep"), lambda: None, None, adopt)
        return train(run, *args, **kwargs)
    finally:
        if mine and torch.distributed.is_initialized():
            dist.destroy_process_group()
