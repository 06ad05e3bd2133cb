"""Jobs of these tests, ended with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import needs
from tests.training.launched import Job

Launch = Callable[..., Job]


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
