"""One script under plain Python, the patched torchrun and `belay train`: unchanged, with the same weights."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import needs
from tests.ports import free_port
from tests.training.conftest import Launch
from tests.training.launched import ROOT, SCRIPTS, Job, descendants, gone, history, signalled

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.xdist_group("training"),
    pytest.mark.timeout(600),
]

STEPS = 12
PACKAGES = (ROOT / "src", ROOT / "agents/training/packages", ROOT / "agents/training/packages/belay_training/src")
TORCHRUN = "import taskd.python.adaptor.patch; from torch.distributed.run import main; main()"


def command(
    folder: Path, *words: str, steps: int = STEPS, pause: float = 0, script: str = "ddp.py"
) -> subprocess.Popen[str]:
    """The script, started by ``words``."""
    folder.mkdir()
    env = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    env.update(PYTHONPATH=os.pathsep.join(map(str, PACKAGES)), OMP_NUM_THREADS="1")
    env.update(TASKD_PROXY_PORT=str(free_port()), TASKD_LOG_PATH=str(folder / "logs"))
    arguments = [str(SCRIPTS / script), str(folder), str(steps), str(pause), "16"]
    # a pipe that is read at the end only would stop a process that writes much
    with (folder / "output").open("w") as output:
        return subprocess.Popen(
            [sys.executable, *words, *arguments],
            cwd=folder,
            env=env,
            text=True,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def test_the_same_script_runs_alone_under_torchrun_and_under_belay_train(launch: Launch, tmp_path: Path) -> None:
    needs.torch()
    alone = command(tmp_path / "alone")
    given = ("--nnodes=1", "--nproc_per_node=2", f"--master_port={free_port()}", "--max_restarts=0")
    torchrun = command(tmp_path / "torchrun", "-c", TORCHRUN, *given)
    plain = command(tmp_path / "plain", "-m", "torch.distributed.run", *given[:2])
    ours = launch("ddp.py", STEPS, 0, 16, options=("--nproc", "2"))

    below: set[int] = set()
    for name, process in (("alone", alone), ("torchrun", torchrun), ("plain", plain)):
        while process.poll() is None:
            below |= set(descendants(process.pid))
            try:
                process.wait(0.2)
            except subprocess.TimeoutExpired:
                continue
        assert process.returncode == 0, (tmp_path / name / "output").read_text()
    gone(below, 10)
    assert ours.end() == 0, ours.errors()

    (single,) = (Job.reader(tmp_path / "alone").steps(0),)
    assert [one.step for one in single] == list(range(STEPS))
    under_torchrun = history(Job.reader(tmp_path / "torchrun"), 2)
    assert under_torchrun == history(ours, 2)
    assert history(Job.reader(tmp_path / "plain"), 2) == under_torchrun
    assert len(under_torchrun) == 2 * STEPS


def test_a_rank_that_is_killed_under_the_patched_torchrun_is_replaced(launch: Launch, tmp_path: Path) -> None:
    needs.torch()
    given = ("--nnodes=1", "--nproc_per_node=2", f"--master_port={free_port()}")
    torchrun = command(tmp_path / "torchrun", "-c", TORCHRUN, *given, steps=40, pause=0.05)
    calm = launch("ddp.py", 40, 0, 16, options=("--nproc", "2"))
    ranks = Job.reader(tmp_path / "torchrun")
    output = tmp_path / "torchrun" / "output"

    def until(holds: Callable[[], bool]) -> None:
        while not holds():
            assert torchrun.poll() is None, output.read_text()
            time.sleep(0.02)

    until(lambda: all(len(ranks.steps(rank)) > 3 for rank in range(2)))
    first, second = ranks.pid(0), ranks.pid(1)
    below = set(descendants(torchrun.pid))
    signalled(second)
    until(lambda: ranks.pid(1) != second)
    assert ranks.pid(0) == first
    below |= set(descendants(torchrun.pid))
    assert torchrun.wait(150) == 0, output.read_text()
    gone(below, 10)
    assert calm.end() == 0, calm.errors()
    seen, wanted = history(ranks, 2), history(calm, 2)
    assert {key for key in seen if seen[key] != wanted[key]} == set()
    assert all((rank, 39) in seen for rank in range(2))


def test_the_code_of_a_script_that_fails_is_that_of_belay_train(tmp_path: Path) -> None:
    needs.torch()
    torchrun = command(tmp_path / "fails", "-c", TORCHRUN, "--nproc_per_node=2", script="raises.py")
    assert torchrun.wait(150) == 1
    assert "ZeroDivisionError" in (tmp_path / "fails" / "output").read_text()
