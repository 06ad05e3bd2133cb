"""The patched torchrun, on one or two nodes, with a script that protects itself: ranks that die are replaced."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.training.launched import ROOT, SCRIPTS, Job, history
from tests.training.taskd_world import free_port, patched_run

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(600)]
RANKS = 4
STEPS = 120


class Torchruns:
    """Torchrun as MindCluster's image build patches it, on ``nodes`` nodes of this host."""

    def __init__(self, folder: Path, nodes: int) -> None:
        folder.mkdir()
        (folder / "run.py").write_text(patched_run())
        port = str(free_port())
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "agents/training/packages")])
        known = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
        self.job = Job.reader(folder)
        self.logs = [(folder / f"torchrun-{node}").open("w+") for node in range(nodes)]
        self.processes = [
            subprocess.Popen(
                [sys.executable, str(folder / "run.py"), "--nproc_per_node", str(RANKS // nodes),
                 "--nnodes", str(nodes), "--node_rank", str(node), "--master_addr", "127.0.0.1", "--master_port", port,
                 str(SCRIPTS / "ddp.py"), str(folder), str(STEPS), "0.05", "16"],
                cwd=ROOT, env={**known, "PYTHONPATH": path}, stdout=log, stderr=log,
            )
            for node, log in enumerate(self.logs)
        ]  # fmt: skip
        # what the reading side watches while it waits
        self.job.process, self.job._errors = self.processes[-1], self.logs[-1]

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for log in self.logs:
            log.close()


@pytest.fixture(params=[1, 2], ids=["one node", "two nodes"])
def launched(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Torchruns]:
    found = Torchruns(tmp_path / "job", request.param)
    yield found
    found.close()


def test_a_killed_rank_is_replaced_and_the_others_stay(launched: Torchruns) -> None:
    job = launched.job
    job.reached(5, RANKS)
    before = [job.pid(rank) for rank in range(RANKS)]
    for victim in (RANKS - 1, 0):
        job.next_step_of_all(job.kill(victim), RANKS)
    after = [job.pid(rank) for rank in range(RANKS)]
    assert [one == two for one, two in zip(before, after, strict=True)] == [False, True, True, False]
    assert [process.wait(150) for process in launched.processes] == [0] * len(launched.processes), job.errors()
    found = history(job, RANKS)
    for step in range(STEPS):
        assert len({found[rank, step][1] for rank in range(RANKS)}) == 1, f"weights differ after step {step}"
