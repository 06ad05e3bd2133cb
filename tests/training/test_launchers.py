"""One script under plain Python, the patched torchrun and `belay train`: unchanged, with the same weights."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import needs
from tests.ports import free_port
from tests.training.conftest import Launch
from tests.training.launched import ROOT, SCRIPTS, Job, descendants, gone, history

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.xdist_group("training"),
    pytest.mark.timeout(600),
]

STEPS = 12
PACKAGES = (ROOT, ROOT / "agents/training/packages", ROOT / "agents/training/packages/belay_training/src")
TORCHRUN = "import taskd.python.adaptor.patch; from torch.distributed.run import main; main()"


def command(folder: Path, *words: str) -> subprocess.Popen[str]:
    """The script, started by ``words``."""
    folder.mkdir()
    env = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    env.update(PYTHONPATH=os.pathsep.join(map(str, PACKAGES)), OMP_NUM_THREADS="1")
    env.update(TASKD_PROXY_PORT=str(free_port()), TASKD_LOG_PATH=str(folder / "logs"))
    script = [str(SCRIPTS / "ddp.py"), str(folder), str(STEPS), "0", "16"]
    # a pipe that is read at the end only would stop a process that writes much
    with (folder / "output").open("w") as output:
        return subprocess.Popen(
            [sys.executable, *words, *script],
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
    ours = launch("ddp.py", STEPS, 0, 16, options=("--nproc", "2"))

    below: set[int] = set()
    for name, process in (("alone", alone), ("torchrun", torchrun)):
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
    assert len(under_torchrun) == 2 * STEPS
