"""torchrun of torch 2.13 with the patch line, manager.py as users write it, and a scripted ClusterD."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from belay.engine.wire.clusterd import recover_pb2 as pb
from tests.needs import lacking
from tests.training.taskd_world import JOB, PATIENCE, ClusterD, Job, clusterd, torch_installed, until

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.timeout(600),
]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[tuple[ClusterD, Job]]:
    with contextlib.ExitStack() as stack:
        server, port = stack.enter_context(clusterd())
        job = Job(tmp_path, port)
        stack.callback(job.close)
        yield server, job


def test_only_the_killed_process_is_started_again(world: tuple[ClusterD, Job]) -> None:
    server, job = world
    job.manager()
    torchrun = job.torchrun()
    pids = job.started()
    os.kill(pids[2], signal.SIGKILL)
    until(lambda: len(job.lives(2)) == 2, lambda: f"rank 2 is back\n{job.output()}")
    until(
        lambda: server.names() == ["fault", "stopped", "offers", "result"], lambda: f"{server.names()}\n{job.output()}"
    )
    assert {rank: [life["pid"] for life in job.lives(rank)] for rank in (0, 1, 3)} == {
        rank: [pids[rank]] for rank in (0, 1, 3)
    }
    first, second = job.lives(2)
    assert (first["RESTART_FAULT_PROCESS_TYPE"], second["RESTART_FAULT_PROCESS_TYPE"]) == ("pod", "worker")
    same = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "WORLD_SIZE", "LOCAL_RANK")
    assert [first[name] for name in same] == [second[name] for name in same]
    assert [[(rank.rankId, rank.faultType) for rank in found.faultRanks] for name, found in server.heard[:1]] == [
        [("2", "1")]
    ]
    assert set(server.roles) == {"taskd"} and {found.jobId for _, found in server.heard} == {JOB}
    assert [call[0] for call in job.calls()] == ["init", "start", "stop", "global", "change"]
    assert job.calls()[0] == ["init", -1, 4, False, True, False]
    assert sorted(path.name for path in (job.folder / "logs-0/2").iterdir()) == ["attempt_0", "attempt_1"]
    assert sorted(path.name for path in (job.folder / "logs-0/1").iterdir()) == ["attempt_0"]
    job.finish()
    assert torchrun.wait(PATIENCE) == 0, job.output()


def test_ranks_are_forked_from_a_warm_process_and_its_loss_costs_nothing(world: tuple[ClusterD, Job]) -> None:
    _, job = world
    job.manager()
    torchrun = job.torchrun()
    job.started()

    def kill(rank: int) -> int:
        """The parent of the process that comes in its place."""
        lives = len(job.lives(rank))
        os.kill(job.lives(rank)[-1]["pid"], signal.SIGKILL)
        until(lambda: len(job.lives(rank)) == lives + 1, lambda: f"rank {rank} is back\n{job.output()}")
        return int(job.lives(rank)[-1]["ppid"])

    def forked() -> int:
        parent = kill(1)
        return parent if parent != torchrun.pid else 0

    warm = until(forked, lambda: f"a rank is forked\n{job.output()}")
    assert kill(3) == warm
    os.kill(warm, signal.SIGKILL)
    assert kill(0) == torchrun.pid
    until(lambda: kill(2) not in (warm, torchrun.pid), lambda: f"another warm process is there\n{job.output()}")
    job.finish()
    # ranks 1 and 3 lost their parent, the code of their end is known all the same
    assert torchrun.wait(PATIENCE) == 0, job.output()


def test_the_exit_code_of_a_forked_rank_is_awaited_while_its_parent_lives() -> None:
    if not torch_installed():
        lacking("torch is not installed: make venv-training")
    from belay.agents.training.compat.taskd.warm_ranks import WarmStart

    warm = WarmStart()
    warm._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert warm.outcome(ended.pid) is None
    theirs.send(json.dumps({"t": "ended", "pid": ended.pid, "status": 0}).encode())
    assert warm.outcome(ended.pid) == 0
    theirs.close()
    assert warm.outcome(ended.pid + (1 << 22)) == -signal.SIGKILL


class Silent(ClusterD):
    """Records reports of faults and answers none of them until ``silent`` is cleared."""

    def __init__(self) -> None:
        super().__init__()
        self.silent = True

    def ReportProcessFault(self, request: object, context: object) -> object:
        if self.silent:
            self.heard.append(("fault", request))
            return pb.Status(code=0)
        return super().ReportProcessFault(request, context)


def test_a_manager_that_was_killed_in_mid_recovery_finishes_it_when_it_is_back(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        silent = Silent()
        server, port = stack.enter_context(clusterd(silent))
        job = Job(tmp_path, port)
        stack.callback(job.close)
        manager = job.manager()
        torchrun = job.torchrun()
        pids = job.started()
        os.kill(pids[0], signal.SIGKILL)
        os.kill(pids[3], signal.SIGKILL)
        # two deaths a moment apart are one report or two
        until(lambda: "fault" in server.names(), lambda: f"the fault is reported\n{job.output()}")
        manager.kill()
        manager.wait()
        silent.silent = False
        job.manager()
        until(lambda: len(job.lives(0)) == len(job.lives(3)) == 2, lambda: f"both are back\n{job.output()}")
        assert [len(job.lives(rank)) for rank in (1, 2)] == [1, 1]
        # the pod is ended by ClusterD's last resort: code 1, no process stays
        server.say(
            "changeStrategy",
            "change_strategy",
            changeStrategy="exit",
            faultRanks=[pb.FaultRank(rankId="0", faultType="1")],
        )
        assert torchrun.wait(PATIENCE) == 1, job.output()
        for rank in range(4):
            for life in job.lives(rank):
                with pytest.raises(ProcessLookupError):
                    os.kill(life["pid"], 0)


MEET = """
import json, os, time
from pathlib import Path
import torch, torch.distributed as dist
rank = int(os.environ["RANK"])
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
with open(f"{os.environ['STORY']}/rank-{rank}", "a") as stream:
    stream.write(json.dumps({"pid": os.getpid(), "attempt": attempt, "sum": total.item()}) + "\\n")
while not Path(os.environ["STORY"], "end").exists():
    time.sleep(0.02)
"""


def test_without_recovery_the_other_pods_restart_and_join_the_replaced_one(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        _, port = stack.enter_context(clusterd())
        job = Job(tmp_path, port, nproc=1, nnodes=2, PROCESS_RECOVER="off")
        stack.callback(job.close)
        job.manager()
        first, second = job.torchrun(MEET), job.torchrun(MEET, node=1)
        pids = job.started()
        assert [job.lives(rank)[0]["sum"] for rank in (0, 1)] == [2.0, 2.0]
        os.kill(pids[1], signal.SIGKILL)
        assert second.wait(PATIENCE) == 1, job.output()
        replaced = job.torchrun(MEET, node=1)
        until(lambda: len(job.lives(0)) == len(job.lives(1)) == 2, lambda: f"both train again\n{job.output()}")
        assert [job.lives(rank)[1]["sum"] for rank in (0, 1)] == [2.0, 2.0]
        assert [job.lives(rank)[1]["attempt"] for rank in (0, 1)] == ["1", "1"]
        job.finish()
        assert (first.wait(PATIENCE), replaced.wait(PATIENCE)) == (0, 0), job.output()


FAILS_ONCE = """
import json, os, sys
with open(f"{os.environ['STORY']}/rank-0", "a") as stream:
    stream.write(json.dumps({"pid": os.getpid(), "attempt": os.environ["TORCHELASTIC_RESTART_COUNT"]}) + "\\n")
import torch.distributed as dist
dist.init_process_group("gloo")
sys.exit(3 if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" else 0)
"""


@pytest.mark.parametrize(("announced", "restarts", "code", "lives"), [("on", "0", 1, 1), ("off", "2", 0, 2)])
def test_without_a_job_and_a_manager_torch_restarts_as_configured(
    announced: str, restarts: str, code: int, lives: int, tmp_path: Path
) -> None:
    job = Job(tmp_path, 1, nproc=1, controller=False)
    del job.environ["MINDX_TASK_ID"]
    job.environ["TASKD_PROCESS_ENABLE"] = announced
    try:
        torchrun = job.torchrun(FAILS_ONCE, restarts=restarts)
        assert torchrun.wait(100) == code, job.output()
        assert len(job.lives(0)) == lives
        # a manager that nothing announces is not waited for
        assert ("the bus was not joined" in job.output()) == (announced == "on")
    finally:
        job.close()
