"""Several nodes over TCP: two launchers on one host, whose ranks reach each other as those of two hosts would."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.training.conftest import Launch
from tests.training.launched import Job, agent_of, descendants, history, signalled

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.xdist_group("training"),
    pytest.mark.timeout(600),
]

STEPS = 60
RANKS = 4


def node(launch: Launch, rank: int, port: int, folder: Path) -> Job:
    """One launcher of two, whose ranks write into ``folder``."""
    options = ("--nproc", "2", "--nnodes", "2", "--node-rank", str(rank), "--master-addr", "127.0.0.1")
    job = launch("ddp.py", STEPS, 0.1, 32, options=(*options, "--master-port", str(port)), folder=folder)
    return job


def test_a_lost_node_that_comes_back_gets_its_state_from_the_other_one(launch: Launch, tmp_path: Path) -> None:
    port = free_port()
    first = node(launch, 0, port, tmp_path / "both")
    second = node(launch, 1, port, tmp_path / "both")
    calm = launch("ddp.py", STEPS, 0, 32, options=("--nproc", "4"))
    first.reached(3, RANKS)

    # a rank, seen from the other node
    first.next_step_of_all(first.kill(3), RANKS)
    # an agent: its ranks keep their processes
    pids = [first.pid(rank) for rank in range(RANKS)]
    os.kill(agent_of(second), signal.SIGKILL)
    first.until(lambda: "is lost" in first.errors())
    step = first.steps(0)[-1].step
    first.reached(step + 2, RANKS)
    assert [first.pid(rank) for rank in range(RANKS)] == pids
    # the node of the coordinator: the same
    os.kill(agent_of(first), signal.SIGKILL)
    first.until(lambda: "another one takes over" in first.errors())
    first.reached(first.steps(0)[-1].step + 2, RANKS)
    assert [first.pid(rank) for rank in range(RANKS)] == pids
    # everything of a node, which is then started again
    at = first.steps(3)[-1].at
    for pid in [second.process.pid, *descendants(second.process.pid)]:
        signalled(pid)
    third = node(launch, 1, port, tmp_path / "both")
    first.next_step_of_all(at, RANKS, 90)

    assert first.end(90) == 0, first.errors()
    assert third.end(90) == 0, third.errors()
    assert calm.end(90) == 0, calm.errors()
    seen, wanted = history(first, RANKS), history(calm, RANKS)
    assert {key for key in seen if seen[key] != wanted[key]} == set()
    assert all((rank, STEPS - 1) in seen for rank in range(RANKS))


def test_a_node_of_another_job_is_refused_with_both_names(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    monkeypatch.setenv("MINDX_TASK_ID", "ours")
    node(launch, 0, port, tmp_path / "both")
    monkeypatch.setenv("MINDX_TASK_ID", "theirs")
    stranger = node(launch, 1, port, tmp_path / "both")
    assert stranger.process.wait(60) == 2
    assert "'ours'" in stranger.errors() and "'theirs'" in stranger.errors()
