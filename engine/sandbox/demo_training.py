"""The demo with real processes: a rank is killed, a chip fails, and training ends with the same losses."""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from belay import IMPORT_ROOT
from belay.engine.errors import BelayError
from belay.engine.sandbox.processes import end_with_parent
from belay.engine.sandbox.up import Sandbox

JOB: Final = "curve"
RANKS: Final = 4
STEPS: Final = 600
PAUSE: Final = "0.02"
CODE: Final = "80C98001"
"""Level RestartNPU: the pod on the chip is evicted."""
WAIT_S: Final = 90.0
_WIDTH, _HEIGHT = 60, 8
_LINE: Final = re.compile(r"^(\d+) (\S+)\n", re.M)

Until = Callable[..., Any]


class TrainingSteps:
    """``until`` waits for a condition, ``push`` commits the tree, ``belay`` runs a command; all raise BelayError."""

    def __init__(
        self,
        sandbox: Sandbox,
        tree: Path,
        until: Until,
        push: Callable[[str], str],
        belay: Callable[..., str],
    ) -> None:
        self._sandbox, self._tree = sandbox, tree
        self._until, self._push, self._belay = until, push, belay
        self._folder = sandbox.folder.root / "training/shared/host/training"
        self._calm = tree.parent / "calm"

    def run(self) -> list[str]:
        """Push the job, inject two failures, and compare its losses with those of an undisturbed run."""
        text = Path(__file__).with_name("training.yaml").read_text()
        (self._tree / "desired/jobs/curve.yaml").write_text(text)
        out = [self._push("Train for real on two servers")]
        script = self._tree.parent / "train.py"
        script.write_text(_script(text))
        with self._undisturbed(script) as calm:
            self._until("four ranks train", lambda: self._step() >= 20, seconds=WAIT_S)
            out.append(self._kill(RANKS - 1))
            out += self._break_chip()
            self._until("training ends", lambda: self._least() >= STEPS - 1, seconds=WAIT_S)
            calm.wait(WAIT_S)
        found, plain = _losses(self._folder / "losses-0"), _losses(self._calm / "losses-0")
        if found != plain:
            raise BelayError(f"{_differing(found, plain)} of {STEPS} losses differ from the undisturbed run")
        out += ["", *drawn(found, plain), f"all {STEPS} losses are those of the undisturbed run, bit for bit"]
        return out

    @contextlib.contextmanager
    def _undisturbed(self, script: Path) -> Any:
        command = [sys.executable, "-m", "belay.engine.cli", "train", "--nproc", str(RANKS), "--spares", "0"]
        parent = os.getpid()
        process = subprocess.Popen(
            [*command, str(script), str(self._calm), str(STEPS), PAUSE],
            env=os.environ
            | {
                "PYTHONPATH": str(IMPORT_ROOT),
                "TORCHINDUCTOR_CACHE_DIR": str(self._calm.parent / "torchinductor"),
            },
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, start_new_session=True,
            preexec_fn=lambda: end_with_parent(parent),
        )  # fmt: skip
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _kill(self, rank: int) -> str:
        pid, before = int((self._folder / f"pid-{rank}").read_text()), self._step()
        os.kill(pid, signal.SIGKILL)
        # a step that had begun may still be counted
        self._until("training goes on without the killed rank's process", lambda: self._new_pid(rank, pid))
        self._until("training goes on", lambda: self._least() > before + 2)
        return (
            f"$ kill -9 {pid}   rank {rank} after step {before}: training goes on, the other ranks kept their processes"
        )

    def _break_chip(self) -> list[str]:
        path = f"/api/v1/namespaces/default/pods/{JOB}-worker-0"
        pod = self._until("the worker runs", lambda: self._sandbox.reader.get(path))
        node, uid = pod["spec"]["nodeName"], pod["metadata"]["uid"]
        said = self._belay("inject", "fault", f"{node}/Ascend910-1", CODE)

        def moved() -> Any:
            found = self._sandbox.reader.get(path)
            if found is None or found["metadata"]["uid"] == uid or found["status"].get("phase") == "Pending":
                return None
            return found

        fresh = self._until("its pod is replaced", moved, seconds=WAIT_S)
        return [said, f"{JOB}-worker-0 trains on {fresh['spec']['nodeName']}, with the state of {JOB}-master-0's ranks"]

    def _new_pid(self, rank: int, old: int) -> bool:
        text = (self._folder / f"pid-{rank}").read_text()
        return text.isdecimal() and int(text) != old

    def _step(self) -> int:
        return max(_losses(self._folder / "losses-0"), default=-1)

    def _least(self) -> int:
        return min(max(_losses(self._folder / f"losses-{rank}"), default=-1) for rank in range(RANKS))


def drawn(found: Mapping[int, float], plain: Mapping[int, float]) -> list[str]:
    """Draw two curves in one frame, with one mark where they are equal. Losses are on a logarithmic scale."""
    steps = sorted(set(found) | set(plain))
    values = [max(value, 1e-12) for value in (*found.values(), *plain.values())]
    if not steps or not values:
        return []
    low, high = math.log(min(values)), math.log(max(values))
    rows = [[" "] * _WIDTH for _ in range(_HEIGHT)]

    def mark(curve: Mapping[int, float], sign: str) -> None:
        for column, value in enumerate(_columns(curve, steps)):
            if value is not None:
                row = round((high - math.log(max(value, 1e-12))) / ((high - low) or 1.0) * (_HEIGHT - 1))
                rows[row][column] = "●" if rows[row][column] not in (" ", sign) else sign

    mark(plain, "○")
    mark(found, "+")
    lines = [f"{math.exp(high - (high - low) * i / (_HEIGHT - 1)):9.4f} │{''.join(row)}" for i, row in enumerate(rows)]
    legend = f"{' ' * 10}└{'─' * _WIDTH} loss by step; + disturbed, ○ undisturbed, ● both"
    return [*lines, legend]


def _columns(curve: Mapping[int, float], steps: Sequence[int]) -> list[float | None]:
    """The mean of each column's steps; None if there is none."""
    first, last = steps[0], steps[-1]
    cells: list[list[float]] = [[] for _ in range(_WIDTH)]
    for step, value in curve.items():
        cells[min(_WIDTH - 1, (step - first) * _WIDTH // max(1, last - first + 1))].append(value)
    return [sum(cell) / len(cell) if cell else None for cell in cells]


def _losses(file: Path) -> dict[int, float]:
    """Step → loss of its last run; an incomplete last line is left out."""
    text = file.read_text() if file.exists() else ""
    return {int(step): float.fromhex(loss) for step, loss in _LINE.findall(text)}


def _differing(found: Mapping[int, float], plain: Mapping[int, float]) -> int:
    return sum(found.get(step) != plain.get(step) for step in set(found) | set(plain))


def _script(text: str) -> str:
    """The job's script from its ConfigMap."""
    document = next(one for one in yaml.safe_load_all(text) if one["kind"] == "ConfigMap")
    return str(document["data"]["train.py"])


__all__ = ["TrainingSteps", "drawn"]
