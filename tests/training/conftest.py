"""Jobs of these tests, ended with them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from belay.agents.training.compat.bus import wire
from tests import needs
from tests.training import checkpoint_world
from tests.training.launched import Job

Launch = Callable[..., Job]


@pytest.fixture(autouse=True, scope="session")
def writing_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests that name no writing process share one of their own, not the user's, and end it."""
    work = tmp_path_factory.mktemp("writing")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINDIO_ACP_LOG_PATH", str(work))
        yield
    pid = checkpoint_world.pid_of(work)
    if pid is not None and checkpoint_world.alive(pid):
        os.kill(pid, signal.SIGTERM)


@pytest.fixture(autouse=True)
def patient_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may answer a message of the bus after more than the 3 s that members wait."""
    monkeypatch.setattr(wire, "ACK_SECONDS", 30.0)


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """``launch(script, *arguments, options=…)`` starts a job in a folder of its own."""
    needs.torch()
    jobs: list[Job] = []

    def start(script: str, *arguments: object, options: tuple[str, ...] = (), folder: Path | None = None) -> Job:
        jobs.append(Job(folder or tmp_path / f"job-{len(jobs)}", script, *arguments, options=options))
        return jobs[-1]

    yield start
    for job in jobs:
        job.close()
