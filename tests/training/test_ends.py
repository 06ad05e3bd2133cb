"""How a job ends: by its script, by its operator, by what it cannot repair."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from belay.agents.training.train.agent.warm_processes import state
from tests.training.conftest import Launch
from tests.training.launched import agent_of, descendants, gone, history, signalled

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.xdist_group("training"),
    pytest.mark.timeout(600),
]


def test_a_repeated_exception_of_the_script_ends_the_job_with_1_and_is_named(launch: Launch) -> None:
    job = launch("raises.py", options=("--nproc", "2"))
    assert job.process.wait(150) == 1
    assert "the script failed in rank 1: ZeroDivisionError: the second step" in job.everything()


def test_a_rank_whose_script_fails_twice_is_replaced_and_the_job_goes_on(launch: Launch, tmp_path: Path) -> None:
    folder = tmp_path / "twice"
    folder.mkdir()
    (folder / "failures").write_text("one\ntwo\n")
    job = launch("raises.py", options=("--nproc", "2"), folder=folder)
    assert job.process.wait(150) == 0
    assert job.everything().count("belay train: rank 1 failed: ZeroDivisionError") == 2
    assert [rank for rank in range(2) if f"rank {rank} has done all" in job.everything()] == [0, 1]


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


def test_the_bits_stay_the_same_when_all_ranks_are_lost_after_each_was_replaced_and_the_agent_too(
    launch: Launch,
) -> None:
    job = launch("ddp.py", 80, 0.05, 16, 10, options=("--nproc", "4"))
    calm = launch("ddp.py", 80, 0, 16, options=("--nproc", "4"))
    job.reached(12, 4)
    job.next_step_of_all(job.kill(0, 1), 4)
    job.next_step_of_all(job.kill(2, 3), 4)
    signalled(agent_of(job))
    job.until(lambda: "taken over all ranks" in job.errors())
    job.next_step_of_all(time.monotonic(), 4)
    job.kill(0, 1, 2, 3)
    assert job.end(120) == 0, job.errors()
    assert calm.end(120) == 0, calm.errors()
    seen, wanted = history(job, 4), history(calm, 4)
    assert {key for key in seen if seen[key] != wanted[key]} == set()


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


def test_a_closed_terminal_ends_the_job(launch: Launch) -> None:
    job = launch("ddp.py", 400, 0.05, 32, options=("--nproc", "2"))
    job.reached(2, 2)
    children = descendants(job.process.pid)
    job.process.send_signal(signal.SIGHUP)
    assert job.end() == 129, job.errors()
    gone(children)


def test_ranks_leave_when_the_launcher_is_killed_and_its_parent_has_not_looked(launch: Launch) -> None:
    job = launch("ddp.py", 4000, 0.05, 32, options=("--nproc", "2"))
    job.reached(2, 2)
    ranks = [job.pid(rank) for rank in range(2)]
    os.kill(job.process.pid, signal.SIGKILL)
    # it stays a zombie: no process waits for it before the ranks have left
    end = time.monotonic() + 15
    while any(state(pid) not in ("", "Z") for pid in ranks):
        assert time.monotonic() < end, "ranks train on without their launcher"
        time.sleep(0.05)
