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

from agents.training.frames import Message
from agents.training.notices import say
from agents.training.worker import repair
from agents.training.worker.buckets import Buckets
from agents.training.worker.groups import Groups, devices
from agents.training.worker.interruption import Interrupted, TrainingError
from agents.training.worker.process import CurrentRank, current
from agents.training.worker.protected import Checkpoint, Protected
from agents.training.worker.randomness import Randomness
from agents.training.worker.run import Run

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
) -> Callable[[Callable[Concatenate[Run, P], R]], Callable[P, R]]:
    """Protect a training function ``train(run, …)``.

    ``model``, ``optimizer``, ``schedule``: the state to repair from a peer, each one object or a list or dict of them;
    ``state``: further state by name: tensors, modules, objects with ``state_dict`` and ``load_state_dict``.
    ``checkpoint``: used when no living rank holds a shard. ``backend``: of ``init_process_group``; by default gloo,
    plus the backend of the model's device. ``timeout``: of collectives, in seconds. ``random="keep"`` leaves the random
    generators alone; by default they are seeded for each step. Raises ``TypeError`` and ``ValueError``.
    """
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
        raise TypeError("protect(checkpoint=…): give an object with latest() and load(step)")
    if random not in ("step", "keep"):
        raise ValueError(f"protect(random={random!r}): give 'step' or 'keep'")
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout <= 86_400 * 30:
        raise ValueError(f"protect(timeout={timeout!r}): give seconds, more than 0")
    # report wrong arguments here, not when training begins
    Protected(model, optimizer, schedule, state, 0)

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
                if member is None:
                    return _run_unprotected(train, model, optimizer, schedule, state, backend, random, args, kwargs)
                member.identify()
                protected = Protected(model, optimizer, schedule, state, member.rank)
                session = _Session(member, protected, checkpoint, backend, float(timeout), random == "keep")
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
        protected: Protected,
        checkpoint: Checkpoint | None,
        backend: str | None,
        timeout: float,
        keep_random: bool,
    ) -> None:
        self.member, self.protected, self.checkpoint = member, protected, checkpoint
        self.control = member.control
        self.backend = backend or devices(protected.device())
        self.randomness = Randomness(keep_random)
        self.buckets = Buckets()
        if member.groups is None:
            member.groups = Groups(self.control, member.rank, member.world, member.address, timeout)
        self.groups = member.groups
        self.entries = 0

    def train(self, body: Callable[[Run], R]) -> R:
        """Enter the function until it returns and every rank has finished."""
        while True:
            generation = self.control.generation
            try:
                self._join(generation)
                self.entries += 1
                run = Run(
                    self.member.rank,
                    self.member.world,
                    self.member.local_rank,
                    generation,
                    self.protected,
                    self.randomness,
                    functools.partial(self.control.check, generation),
                    self.member.page,
                )
                self.control.send("entered", gen=generation)
                result = body(run)
                self.control.check(generation)
                self.control.send("finished", gen=generation, done=self.protected.done)
                self.control.wait_leave(generation)
                return result
            except Exception as error:
                self._explain(error, generation)
                # frames keep the old groups and models alive
                traceback.clear_frames(error.__traceback__)
                error.__traceback__ = None

    def _join(self, generation: int) -> None:
        """Join a generation: report the held step, get the plan, the group and the state."""
        began = time.monotonic()
        control, protected = self.control, self.protected
        self.groups.form(generation)
        control.joined = generation
        control.send("ready", gen=generation, done=protected.done if protected.whole else -1, shard=protected.shard())
        plan = control.wait_plan(generation)
        while plan["t"] == "plan" and plan.get("ask"):
            newest = self.checkpoint.latest() if self.checkpoint is not None else None
            control.send("offered", gen=generation, step=-1 if newest is None else int(newest))
            plan = control.wait_plan(generation)
        planned = time.monotonic()
        self.groups.install(generation, self.backend)
        formed = time.monotonic()
        step = int(plan["step"])
        self._restore(plan, step, generation)
        protected.drop_gradients()
        self.buckets.enter(step)
        if self.entries or step:
            control.send(
                "times",
                gen=generation,
                planned=planned - began,
                formed=formed - planned,
                repaired=time.monotonic() - formed,
            )

    def _restore(self, plan: Message, step: int, generation: int) -> None:
        protected = self.protected
        donors = {int(receiver): int(donor) for receiver, donor in plan["donors"].items()}
        if plan.get("checkpoint"):
            assert self.checkpoint is not None
            protected.whole = False
            self.checkpoint.load(step)
        me = self.member.rank
        if donors and me == min(set(donors.values())):
            self._store_set(generation, "orders", json.dumps(self.buckets.orders).encode())
        for receiver, donor in sorted(donors.items()):
            try:
                if donor == me:
                    repair.send_state(protected, receiver, step)
                elif receiver == me:
                    repair.receive_state(protected, donor, step)
            except RuntimeError as error:
                if _is_link_failure(error):
                    raise
                raise
        if me in donors:
            self.buckets.orders = json.loads(self.groups.form(generation).store.get("belay/orders"))
        protected.done, protected.whole = step, True

    def _store_set(self, generation: int, key: str, value: bytes) -> None:
        self.groups.form(generation).store.set(f"belay/{key}", value)

    def _explain(self, error: Exception, generation: int) -> None:
        """Return once a fault explains the error; raise the error when it is the script's own."""
        if self.control.generation > generation:
            return
        if isinstance(error, Interrupted) or _is_link_failure(error):
            text = f"{type(error).__name__}: {error}"[:500]
            self.control.send("broken", gen=generation, text=text)
            # the coordinator ends the generation: for a death, or for the broken links
            while not self.control.wait_called(generation, EXPLAINED):
                self.control.send("broken", gen=generation, text=text)
            return
        raise error


def _is_link_failure(error: BaseException) -> bool:
    """Whether a failed collective caused the error, and not the script."""
    if isinstance(error, (dist.DistError, ConnectionError)):
        return True
    if not isinstance(error, RuntimeError):
        return False
    text = str(error)
    return any(
        mark in text
        for mark in (
            "gloo",
            "Connection closed by peer",
            "Connection reset by peer",
            "Broken pipe",
            "Socket closed",
            "Timed out waiting",
            "Application timeout caused pair closure",
            "NCCL",
            "HCCL",
            "Interrupted",
        )
    )


def _run_unprotected(
    train: Callable[..., R],
    model: Any,
    optimizer: Any,
    schedule: Any,
    state: Any,
    backend: str | None,
    random: str,
    args: Any,
    kwargs: Any,
) -> R:
    """Run without a node agent, as one rank or under plain torchrun; nothing is protected."""
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    protected = Protected(model, optimizer, schedule, state, rank)
    protected.done = 0
    mine = not dist.is_initialized()
    if mine:
        kind = backend or devices(protected.device())
        if world > 1:
            say("faults are not repaired: the script was not started by belay train", "belay_training: ")
            dist.init_process_group(kind)
        else:
            dist.init_process_group(kind, store=dist.HashStore(), rank=0, world_size=1)
    try:
        local = int(os.environ.get("LOCAL_RANK", "0"))
        run = Run(rank, world, local, 1, protected, Randomness(random == "keep"), lambda: None, None)
        return train(run, *args, **kwargs)
    finally:
        if mine and torch.distributed.is_initialized():
            dist.destroy_process_group()
