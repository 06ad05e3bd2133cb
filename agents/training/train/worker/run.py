"""The argument of a training function: its steps, the window in which state changes, and its device."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import torch

from belay.agents.training.train.page import Page
from belay.agents.training.train.worker.interruption import TrainingError
from belay.agents.training.train.worker.periodic import PeriodicCheckpoints
from belay.agents.training.train.worker.protected import Protected
from belay.agents.training.train.worker.randomness import Randomness
from belay.agents.training.train.worker.recomputation import Recomputation
from belay.agents.training.train.worker.sharing import Feed, Shares

CHECKED_WINDOWS = 3
"""Windows of each entry before which it is checked that nothing was changed outside them."""


class Run:
    """One entry into the training function.

    ``rank``, ``world_size``, ``local_rank``: as in ``torch.distributed``; both change when the job goes on with fewer
    hosts, or more.
    ``generation``: which entry this is, from 1; ``resumed``: whether it follows a repair.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        local_rank: int,
        generation: int,
        protected: Protected | None,
        randomness: Randomness,
        check: Callable[[], None],
        page: Page | None,
        adopt: Callable[[Protected], None] = lambda _: None,
        checkpoints: PeriodicCheckpoints | None = None,
        settle: Callable[[], None] | None = None,
        finished: Callable[[], None] = lambda: None,
        agree: Callable[[int], None] | None = None,
        idle: Callable[[float], None] = lambda _: None,
        shares: Shares | None = None,
        recomputation: Recomputation | None = None,
    ) -> None:
        self.rank, self.world_size, self.local_rank = rank, world_size, local_rank
        self.generation = generation
        self.resumed = generation > 1
        self._given, self._randomness, self._check, self._page = protected, randomness, check, page
        self._adopt, self._checkpoints = adopt, checkpoints
        self._settle, self._finished = settle, finished
        self._agree = agree or (lambda _: self._check())
        self._idle = idle
        self._shares = shares or Shares((rank,), world_size, world_size)
        self._recomputation = recomputation or Recomputation(rank, 1, lambda: (), lambda *_, **__: None)
        self._began = self._first = self._count = 0
        self._step: int | None = None
        self._passed = 0
        """Steps that are finished, also those since the last update."""
        self._updated = False
        self._windows, self._versions = 0, -1

    @property
    def _protected(self) -> Protected:
        if self._given is None:
            raise TrainingError("nothing is protected yet: call run.protect(model=…, optimizer=…) before run.steps()")
        return self._given

    def protect(
        self, *, model: Any = None, optimizer: Any = None, schedule: Any = None, state: Any = None, part: str = ""
    ) -> None:
        """Protect objects that are made inside the training function, because they need the process group (FSDP2,
        ``ZeroRedundancyOptimizer``), under ``protect(late=True)``. Every rank calls it once an entry,
        before ``run.steps()``: the state is repaired here. ``part``: where ranks hold different parts of the state
        (stages of a pipeline, experts), which one this rank holds. Raises ``TypeError`` and ``TrainingError``.
        """
        if self._given is not None:
            raise TrainingError("run.protect() comes once an entry, and not where protect(…) was given the objects")
        found = Protected(model, optimizer, schedule, state, self.rank, part)
        found.check()
        self._adopt(found)
        self._given = found

    @property
    def done(self) -> int:
        """Finished steps, which is the number of the next one."""
        return max(self._passed, self._protected.done)

    @property
    def device(self) -> torch.device:
        """The device of this rank."""
        kind = self._protected.device()
        return torch.device(kind) if kind == "cpu" else torch.device(kind, self.local_rank)

    def steps(self, n: int) -> Iterator[int]:
        """Yield the unfinished steps below ``n``. Raises ``Interrupted`` between steps when a rank was lost.

        A step without ``updating`` is one of several whose gradients add up: it counts together with the next update,
        and after a fault it is done again.
        """
        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            raise TypeError(f"run.steps({n!r}): give the number of steps of the whole training, a whole number from 0")
        while (step := self.done) < n:
            self._check()
            self._step, self._updated = step, False
            self._randomness.begin(step)
            self._began = time.monotonic_ns()
            yield step
            if not self._updated:
                self._pass(step)
        self._step = None

    def batches(self, loader: Any, n: int) -> Iterator[tuple[int, Any]]:
        """Yield the unfinished steps below ``n``, each with the batch of ``loader`` that belongs to it, over as many
        epochs as it takes. In the middle of an epoch the batches that were used before are passed over.

        ``loader`` may be a function that makes the loader of a share: then each step comes with a dict of share to
        batch, for ``run.shares``.
        """
        several = callable(loader)
        if not several and len(self._shares.mine) > 1:
            raise TrainingError(
                "run.batches(loader) in a job with fewer ranks: give a function of the share that makes its loader"
            )
        self._recomputation.alone = several
        made = {share: loader(share) for share in self._shares.mine} if several else {self.rank: loader}
        feeds = {share: Feed(one) for share, one in made.items()}
        for step in self.steps(n):
            found = {share: feed.batch(step) for share, feed in feeds.items()}
            yield step, found if several else found[self.rank]

    def shares(self, *modules: Any) -> Iterator[int]:
        """Yield the shares of this step's batch that this rank does, of ``run.share_count``: its own, and in a job that
        has lost hosts those of others too. Gradients add up; ``modules``, the model under DDP or FSDP2, reduces them
        with the last share, and they are then those of the mean over all shares. In few steps the share of another rank
        comes first, whose gradients are compared with those of that rank and dropped."""
        step, protected = self.done, self._protected
        other = self._recomputation.other(step, modules, protected)
        if other is not None:
            self._shares.last = False
            with self._recomputation.computing(other, modules, protected):
                self._randomness.begin(step)
                yield other
        with self._recomputation.own(step, self.generation, protected):
            yield from self._shares.each(modules, self._gradients, lambda: self._randomness.begin(step))

    @property
    def share_count(self) -> int:
        """The number of shares of each batch: of ranks of the whole job, however many train."""
        return self._shares.whole

    @property
    def last_share(self) -> bool:
        """Whether the share under way is this rank's last one, with which gradients are reduced."""
        return self._shares.last

    def _gradients(self) -> Iterator[torch.Tensor]:
        return (one.grad for one in self._protected.parameters() if one.grad is not None)

    @contextlib.contextmanager
    def idle(self, seconds: float = 3600.0) -> Iterator[None]:
        """A context in which this rank may wait for up to ``seconds`` without doing anything, for a service that
        evaluates or for another job: it is not taken for a rank that hangs."""
        self._idle(time.monotonic() + seconds)
        try:
            yield
        finally:
            self._idle(0.0)

    def updating(self, step: int) -> Updating:
        """A context for all changes of protected state in a step. An exception inside it leaves this rank's state torn;
        it is then repaired from a peer."""
        if step != self._step:
            raise TrainingError(
                f"run.updating({step!r}): the step under way is {self._step}; give the step that run.steps() gave"
            )
        if self._updated:
            raise TrainingError(f"run.updating({step}) a second time in one step: put all changes into one window")
        return Updating(self, step)

    def _finish(self, step: int) -> None:
        """The step has ended with an update: it is part of the state."""
        protected = self._protected
        protected.done = step + 1
        protected.settled()
        self._shares.updated()
        self._recomputation.updated()
        self._updated = True
        self._finished()
        if self._checkpoints is not None:
            self._checkpoints.stepped(step + 1)
        self._pass(step)

    def _pass(self, step: int) -> None:
        self._passed = step + 1
        if self._page is not None:
            now = time.monotonic_ns()
            self._first = self._first or now
            self._count += 1
            duration = now - self._began
            self._page.write(self._protected.done, now, duration, self._first, self.generation, self._count)

    def _unchanged(self) -> None:
        """Refuse parameters that were changed between two windows: what a rank that is lost there held is unknown."""
        if self._windows > 0 and self._protected.versions() != self._versions:
            raise TrainingError(
                f"parameters were changed between two updates, before run.updating({self._step}): move "
                "optimizer.step() and whatever else changes protected state into the window"
            )

    def _changed(self) -> None:
        self._windows += 1
        self._versions = self._protected.versions()


class Updating:
    """The window of one step."""

    def __init__(self, run: Run, step: int) -> None:
        self._run, self._step = run, step

    def __enter__(self) -> None:
        run = self._run
        if run._settle is not None:
            # on an accelerator a collective that was stopped may have left half a sum in the gradients
            run._settle()
        if run._windows < CHECKED_WINDOWS:
            run._unchanged()
        run._shares.updating(self._step)
        run._agree(self._step)
        if run._checkpoints is not None:
            run._checkpoints.copied()
        run._protected.whole = False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            run = self._run
            run._protected.whole = True
            if run._windows < CHECKED_WINDOWS:
                run._changed()
            run._finish(self._step)
            run._check()
