"""How a job ends: by its script, by its operator, by what it cannot repair."""

from __future__ import annotations

import signal

import pytest

from tests.training.conftest import Launch
from tests.training.launched import descendants, gone

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.xdist_group("training"),
    pytest.mark.timeout(600),
]


def test_a_repeated_exception_of_the_script_ends_the_job_with_1_and_is_named(launch: Launch) -> None:
    job = launch("raises.py", options=("--nproc", "2"))
    assert job.process.wait(120) == 1
    assert "ZeroDivisionError" in job.errors()


def test_sigterm_ends_ranks_and_launcher(launch: Launch) -> None:
    job = launch("ddp.py", 10_000, 0.02, 16, options=("--nproc", "2"))
    job.reached(2, 2)
    below = descendants(job.process.pid)
    job.process.send_signal(signal.SIGTERM)
    assert job.process.wait(60) == 143
    gone(below)


def test_all_ranks_lost_at_once_without_a_checkpoint_ends_with_2(launch: Launch) -> None:
    job = launch("ddp.py", 10_000, 0.02, 16, options=("--nproc", "2"))
    job.reached(5, 2)
    job.kill(0, 1)
    assert job.process.wait(120) == 2
    assert "no rank that lives holds the whole state" in job.errors()


def test_all_ranks_lost_at_once_go_on_from_the_newest_checkpoint(launch: Launch) -> None:
    job = launch("ddp.py", 60, 0.02, 16, 10, options=("--nproc", "2"))
    calm = launch("ddp.py", 60, 0, 16, options=("--nproc", "2"))
    job.reached(25, 2)
    job.kill(0, 1)
    assert job.end(120) == 0, job.errors()
    assert calm.end(120) == 0, calm.errors()
    assert [one.digest for one in job.steps(0) if one.step == 59] == [calm.steps(0)[-1].digest]
    assert job.recoveries()[-1]["step"] == 20 or job.recoveries()[-1]["step"] in range(20, 60, 10)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--nproc", "0"), "not a number from 1"),
        (("--nnodes", "2"), "--master-addr"),
        (("--node-rank", "3"), "node ranks count from 0"),
        (("--python", "/bin/false"), "ended with 1 while importing"),
    ],
)
def test_wrong_options_end_with_2_and_name_the_right_ones(launch: Launch, options: tuple[str, ...], text: str) -> None:
    job = launch("ddp.py", 1, 0, 16, options=options)
    assert job.process.wait(60) == 2
    assert text in job.errors()
