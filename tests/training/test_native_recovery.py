"""Real ranks on gloo under ``belay train``: killed, stopped, replaced; weights stay those of an undisturbed run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.training.conftest import Launch
from tests.training.launched import ROOT, Job, agent_of, descendants, gone, history, signalled

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.xdist_group("training"),
    pytest.mark.timeout(600),
]

RANKS = 4
STEPS = 80
FOUR = ("--nproc", "4")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], tuple[str, str]]:
    """(rank, step) → loss and digest of weights, of a run that nothing disturbs."""
    job = Job(tmp_path_factory.mktemp("undisturbed"), "ddp.py", STEPS, 0, 32, options=FOUR)
    try:
        assert job.end(120) == 0, job.errors()
        return history(job, RANKS)
    finally:
        job.close()


def equal(job: Job, undisturbed: dict[tuple[int, int], tuple[str, str]]) -> None:
    """Every step that a rank wrote has the loss and the weights of the undisturbed run, and the last one is there."""
    seen = history(job, RANKS)
    assert {key for key in seen if seen[key] != undisturbed[key]} == set()
    assert all((rank, STEPS - 1) in seen for rank in range(RANKS))


def test_a_killed_rank_is_replaced_and_the_losses_stay_those_of_an_undisturbed_run(
    launch: Launch, undisturbed: dict[tuple[int, int], tuple[str, str]]
) -> None:
    job = launch("ddp.py", STEPS, 0.02, 32, options=FOUR)
    job.reached(5, RANKS)
    before = [job.pid(rank) for rank in range(RANKS)]
    at = job.kill(2)
    job.next_step_of_all(at, RANKS)
    after = [job.pid(rank) for rank in range(RANKS)]
    assert [old == new for old, new in zip(before, after, strict=True)] == [True, True, False, True]
    assert job.end() == 0, job.errors()
    equal(job, undisturbed)

    # start, fault, repair and end of four ranks: one line for the death, one for the generation, none for each rank
    said = job.everything().splitlines()
    assert 0 < len(said) <= 2 * len(job.recoveries()), said


def test_rank_0_then_three_of_four_at_once_are_replaced(
    launch: Launch, undisturbed: dict[tuple[int, int], tuple[str, str]]
) -> None:
    job = launch("ddp.py", STEPS, 0.02, 32, options=FOUR)
    job.reached(3, RANKS)
    job.next_step_of_all(job.kill(0), RANKS)
    job.next_step_of_all(job.kill(0, 1, 3), RANKS)
    assert job.end() == 0, job.errors()
    equal(job, undisturbed)


def test_a_second_death_in_the_middle_of_a_recovery_starts_it_again(
    launch: Launch, undisturbed: dict[tuple[int, int], tuple[str, str]]
) -> None:
    job = launch("ddp.py", STEPS, 0.02, 32, options=(*FOUR, "--spares", "0"))
    job.reached(3, RANKS)
    job.kill(1)
    time.sleep(0.015)
    job.next_step_of_all(job.kill(2), RANKS)
    assert job.end() == 0, job.errors()
    equal(job, undisturbed)


def test_ranks_that_compute_for_long_join_the_new_group_without_breaking_it(launch: Launch) -> None:
    # they leave their step long after they have been freed for the last time
    job = launch("ddp.py", 8, 0.8, 32, options=FOUR)
    job.reached(1, RANKS)
    job.next_step_of_all(job.kill(1), RANKS)
    assert job.end() == 0, job.errors()
    assert [one["generation"] for one in job.recoveries()] == [2], job.errors()


def test_a_stopped_rank_is_ended_and_replaced(
    launch: Launch, undisturbed: dict[tuple[int, int], tuple[str, str]]
) -> None:
    job = launch("ddp.py", STEPS, 0.02, 32, options=FOUR)
    job.reached(3, RANKS)
    job.next_step_of_all(job.kill(3, number=signal.SIGSTOP), RANKS)
    assert job.end() == 0, job.errors()
    assert "SIGSTOP" in job.errors()
    equal(job, undisturbed)


def test_training_continues_without_spare_and_warm_process_and_the_next_fault_is_repaired(
    launch: Launch, undisturbed: dict[tuple[int, int], tuple[str, str]]
) -> None:
    job = launch("ddp.py", STEPS, 0.05, 32, options=FOUR)
    job.reached(3, RANKS)
    ranks = {job.pid(rank) for rank in range(RANKS)}
    helpers = [pid for pid in descendants(job.process.pid) if pid not in ranks]
    for pid in helpers:
        signalled(pid)
    job.next_step_of_all(job.kill(1), RANKS)
    assert job.end() == 0, job.errors()
    equal(job, undisturbed)


def test_stopped_spares_warm_processes_and_a_stopped_agent_are_replaced(
    launch: Launch, undisturbed: dict[tuple[int, int], tuple[str, str]]
) -> None:
    job = launch("ddp.py", STEPS, 0.1, 32, options=FOUR)
    job.reached(3, RANKS)
    ranks = {job.pid(rank) for rank in range(RANKS)}
    helpers = {pid for pid in descendants(job.process.pid) if pid not in ranks} - {agent_of(job)}
    for pid in helpers:
        signalled(pid, signal.SIGSTOP)
    job.next_step_of_all(job.kill(1), RANKS)
    agent = agent_of(job)
    signalled(agent, signal.SIGSTOP)
    job.next_step_of_all(job.kill(2), RANKS)
    assert agent_of(job) != agent
    assert job.end() == 0, job.errors()
    gone(helpers | {agent})
    equal(job, undisturbed)


def test_a_stopped_rank_whose_agent_is_killed_does_not_outlive_the_job(
    launch: Launch, undisturbed: dict[tuple[int, int], tuple[str, str]]
) -> None:
    job = launch("ddp.py", STEPS, 0.05, 32, options=FOUR)
    job.reached(3, RANKS)
    stopped = job.pid(3)
    at = job.kill(3, number=signal.SIGSTOP)
    signalled(agent_of(job))
    job.next_step_of_all(at, RANKS)
    gone([stopped])
    assert job.end() == 0, job.errors()
    equal(job, undisturbed)


def test_another_node_agent_takes_over_ranks_spare_and_warm_processes_of_a_killed_one(
    launch: Launch, undisturbed: dict[tuple[int, int], tuple[str, str]]
) -> None:
    job = launch("ddp.py", STEPS, 0.1, 32, options=FOUR)
    job.reached(3, RANKS)
    pids = [job.pid(rank) for rank in range(RANKS)]
    # spare, warm process and standby; a new one would take seconds to import PyTorch
    job.until(lambda: len(descendants(job.process.pid)) == RANKS + 4)
    helpers = set(descendants(job.process.pid)) - {agent_of(job), *pids}
    os.kill(agent_of(job), signal.SIGKILL)
    job.until(lambda: "taken over all ranks" in job.errors())
    assert [job.pid(rank) for rank in range(RANKS)] == pids
    job.next_step_of_all(job.kill(2), RANKS)
    assert job.pid(2) in helpers
    # the spare is a rank now, the two others are at work still
    assert helpers <= set(descendants(job.process.pid))
    assert job.end() == 0, job.errors()
    gone(helpers)
    equal(job, undisturbed)


WARM = """
import json, os, socket, time
from belay.agents.training.train.agent.warm import _Script, _Warm
from belay.agents.training.train.home import Home

ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
if os.fork() == 0:
    ours.close()
    warm = _Warm(theirs, Home("", 0), _Script(compile("", "", "exec"), "", []))
    for turn in range(3):
        if os.fork() == 0:
            time.sleep(0.3 * turn)
            os._exit(turn)
    os._exit(warm.serve())
theirs.close()
ours.settimeout(30)
for _ in range(3):
    print(os.waitstatus_to_exitcode(json.loads(ours.recv(1000))["status"]), flush=True)
"""


def test_a_standby_that_is_asked_for_nothing_reaps_each_rank_that_ends() -> None:
    command = [sys.executable, "-c", WARM]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ended.stdout.split() == ["0", "1", "2"], ended.stderr


def test_nothing_of_a_job_is_left_when_it_has_ended(launch: Launch) -> None:
    job = launch("ddp.py", 5, 0.0, 32, options=FOUR)
    job.reached(4, RANKS)
    children = descendants(job.process.pid)
    assert job.end() == 0, job.errors()
    gone(children)


def test_an_agent_that_is_killed_at_the_end_does_not_begin_the_training_again(launch: Launch) -> None:
    job = launch("ddp.py", 20, 0.0, 32, options=FOUR)
    agent = agent_of(job)
    job.reached(19, RANKS)
    signalled(agent)
    assert job.end() == 0, job.errors()
    assert [len(job.steps(rank)) for rank in range(RANKS)] == [20] * RANKS
