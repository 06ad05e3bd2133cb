"""The argument of a training function: its steps, the window in which state changes, and its device."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import torch

from agents.training.page import Page
from agents.training.worker.interruption import TrainingError
from agents.training.worker.periodic import PeriodicCheckpoints
from agents.training.worker.protected import Protected
from agents.training.worker.randomness import Randomness

KEPT_STEPS = 20
"""Number of durations for the median of a step."""


class Run:
    """One entry into the training function.

    ``rank``, ``world_size``, ``local_rank``: as in ``torch.distributed``. ``done``: steps that are finished.
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
        settle: Callable[[], None] = lambda: None,
        finished: Callable[[], None] = lambda: None,
    ) -> None:
        self.rank, self.world_size, self.local_rank = rank, world_size, local_rank
        self.generation = generation
        self.resumed = generation > 1
        self._given, self._randomness, self._check, self._page = protected, randomness, check, page
        self._adopt, self._checkpoints = adopt, checkpoints
        self._settle, self._finished = settle, finished
        self._durations: deque[int] = deque(maxlen=KEPT_STEPS)
        self._began = self._first = 0
        self._step: int | None = None
        self._updated = False

    @property
    def _protected(self) -> Protected:
        if self._given is None:
            raise TrainingError("nothing is protected yet: call run.protect(model=…, optimizer=…) before run.steps()")
        return self._given

    def protect(self, *, model: Any = None, optimizer: Any = None, schedule: Any = None, state: Any = None) -> None:
        """Protect objects that are made inside the training function, because they need the process group (FSDP2,
        ``ZeroRedundancyOptimizer``), under ``protect(late=True)``. Every rank calls it once an entry,
        before ``run.steps()``: the state is repaired here. Raises ``TypeError`` and ``TrainingError``.
        """
        if self._given is not None:
            raise TrainingError("run.protect() comes once an entry, and not where protect(…) was given the objects")
        found = Protected(model, optimizer, schedule, state, self.rank)
        self._adopt(found)
        self._given = found

    @property
    def done(self) -> int:
        """Finished steps, which is the number of the next one."""
        return self._protected.done

    @property
    def device(self) -> torch.device:
        """The device of this rank."""
        kind = self._protected.device()
        return torch.device(kind) if kind == "cpu" else torch.device(kind, self.local_rank)

    def steps(self, n: int) -> Iterator[int]:
        """Yield the unfinished steps below ``n``. Raises ``Interrupted`` between steps when a rank was lost."""
        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            raise TypeError(f"run.steps({n!r}): give the number of steps of the whole training, a whole number from 0")
        while self._protected.done < n:
            self._check()
            step = self._protected.done
            self._step, self._updated = step, False
            self._randomness.begin(step)
            self._began = time.monotonic_ns()
            yield step
            if not self._updated:
                # a step that changed nothing (gradients that overflowed)
                self._finish(step)
        self._step = None

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
        self._protected.done = step + 1
        self._updated = True
        self._finished()
        if self._checkpoints is not None:
            self._checkpoints.stepped(step + 1)
        if self._page is not None:
            now = time.monotonic_ns()
            self._durations.append(now - self._began)
            self._first = self._first or now
            median = sorted(self._durations)[len(self._durations) // 2]
            self._page.write(step + 1, now, median, self._first, self.generation)


class Updating:
    """The window of one step."""

    def __init__(self, run: Run, step: int) -> None:
        self._run, self._step = run, step

    def __enter__(self) -> None:
        # on an accelerator a collective that was stopped may have left half a sum in the gradients
        self._run._settle()
        self._run._check()
        if self._run._checkpoints is not None:
            self._run._checkpoints.copied()
        self._run._protected.whole = False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._run._protected.whole = True
            self._run._finish(self._step)
            self._run._check()
