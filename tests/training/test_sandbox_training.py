"""The loop closed in the sandbox: from a push to steps of real ranks, a killed one, and a chip that breaks."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from belay import IMPORT_ROOT
from belay.engine.sandbox import git_repository, up
from belay.engine.sandbox.reader import ApiReader
from belay.engine.wire import names
from tests import needs
from tests.e2e.test_up import Up, marked

pytestmark = [pytest.mark.e2e]
STEPS, PAUSE = 900, 0.02


def state(folder: Path) -> Path:
    """The sample cluster with the job that trains, and no other."""
    desired = folder / "desired"
    (desired / "jobs").mkdir(parents=True)
    for part in ("pools", "faults"):
        (desired / part).symlink_to(git_repository.sample() / part, target_is_directory=True)
    text = Path(up.__file__).with_name("training.yaml").read_text()
    (desired / "jobs/curve.yaml").write_text(text.replace('"600", "0.02"', f'"{STEPS}", "{PAUSE}"'))
    return folder


def losses(folder: Path, rank: int) -> dict[int, str]:
    """Step → loss as it was done last; a line that is not written to its end is left out."""
    file = folder / f"losses-{rank}"
    text = file.read_text() if file.exists() else ""
    return {int(step): loss for step, loss in re.findall(r"^(\d+) (\S+)\n", text, re.M)}


@pytest.mark.timeout(900)
def test_training_goes_on_after_a_killed_rank_and_after_a_broken_chip_bit_for_bit(tmp_path: Path) -> None:
    needs.torch()
    run = Up(tmp_path / "data", "--training", "--state", str(state(tmp_path / "state")))
    results = tmp_path / "data/training/shared/host/training"
    reader: ApiReader = run.reader

    def belay(*arguments: str) -> str:
        env = os.environ | {"PYTHONPATH": str(IMPORT_ROOT), "NO_COLOR": "1"}
        env["KUBECONFIG"] = str(tmp_path / "data/kubeconfig")
        command = [sys.executable, "-m", "belay.engine.cli", *arguments]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True).stdout

    def pods() -> dict[str, str]:
        found = reader.list("/api/v1/namespaces/default/pods?labelSelector=job-name%3Dcurve")
        return {str(pod["metadata"]["name"]): str(pod["metadata"]["uid"]) for pod in found}

    def at(step: int) -> Callable[[], bool]:
        return lambda: all(max(losses(results, rank), default=-1) >= step for rank in range(4))

    try:
        run.ready()
        run.until("all ranks train", at(20), 120)
        before = pods()
        first = {rank: int((results / f"pid-{rank}").read_text()) for rank in range(4)}
        os.kill(first[3], signal.SIGKILL)
        reached = max(losses(results, 0))
        run.until("training goes on in the same pods", at(reached + 20))
        assert pods() == before
        again = {rank: int((results / f"pid-{rank}").read_text()) for rank in range(4)}
        assert again[3] != first[3]
        run.until(
            "the recovery is reported",
            lambda: "+0.000 s" in (text := belay("explain", "job", "curve")) or "stepped" in text,
        )
        name = names.job_config_map("default", "AscendJob", "curve")
        body = run.until("it stands in the job's ConfigMap", lambda: reader.config_map(names.SYSTEM, name))
        assert '"event":"stepped"' in "".join(body.values()).replace(" ", "")
        events = reader.list("/api/v1/namespaces/default/events")
        assert [one["involvedObject"]["name"] for one in events if one["reason"] == "TrainingRecovered"] == ["curve"]

        worker = reader.get("/api/v1/namespaces/default/pods/curve-worker-0")
        assert worker is not None
        belay("inject", "fault", f"{worker['spec']['nodeName']}/Ascend910-3", "80C98001")
        run.until(
            "the worker is another pod", lambda: pods().get("curve-worker-0") not in (None, before["curve-worker-0"])
        )
        log = lambda: (reader.get("/api/v1/namespaces/default/pods/curve-master-0") or {})["metadata"]["annotations"]  # noqa: E731
        run.until("all have finished", at(STEPS - 1), 180)
        assert pods()["curve-master-0"] == before["curve-master-0"]
        assert "goes on at step" in log()["sandbox.belay.dev/log"]
    finally:
        code = run.end() if run.process.poll() is None else run.process.returncode
    assert code == 0
    assert marked(run.data) == {}, "processes are left"

    calm = tmp_path / "calm"
    script = next((tmp_path / "data/training/pods").glob("*/volumes/script/train.py"))
    command = ["train", "--nproc", "4", "--spares", "0", str(script), str(calm), str(STEPS), "0"]
    env = os.environ | {"PYTHONPATH": str(IMPORT_ROOT)}
    subprocess.run([sys.executable, "-m", "belay.engine.cli", *command], env=env, timeout=200, check=True)
    for rank in range(4):
        found, expected = losses(results, rank), losses(calm, rank)
        # a rank that is killed or stopped between a step that counts and its line of it does not write that line
        assert len(expected.keys() - found.keys()) <= 2, "one line for each of the two recoveries"
        assert found == {step: expected[step] for step in found}
