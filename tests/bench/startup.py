"""`belay up` until it is ready, and the verbs that people wait for, as whole processes.

"Ready" is when it says so: every agent has reported and the sample repository's revision is in force. `belay plan`
reads the sample's `desired/` and what kubectl prints of the sandbox's 9 nodes, their pods and all ConfigMaps.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.measure import ROOT, RUNS, Result, number, timed
from tests.bench.running import BELAY, environment, kubectl, up

NODES = 8
SETTLED = 10.0
"""Seconds after which the sample's jobs run and nothing moves any more."""


def run() -> list[Result]:
    program = kubectl()
    coming = Result("`belay up` with 8 nodes until ready", "s", 10, remark="9 nodes report, the sample is in force")
    with tempfile.TemporaryDirectory(prefix="belay-bench-") as folder:
        files = [Path(folder) / f"cluster.{form}" for form in ("json", "yaml")]
        for turn in range(RUNS):
            with up(NODES) as running:
                coming.runs.append(running.seconds)
                if turn == RUNS - 1:
                    time.sleep(SETTLED)
                    for file in files:
                        _save(program, running.kubeconfig, file)
        return [coming, *_verbs(files)]


def _save(program: str, kubeconfig: Path, file: Path) -> None:
    """The cluster as kubectl prints it."""
    command = [program, "get", "nodes,pods,configmaps", "-A", "-o", file.suffix[1:]]
    with file.open("wb") as output:
        subprocess.run(command, check=True, stdout=output, env=environment(kubeconfig), timeout=60)


def _verbs(files: list[Path]) -> list[Result]:
    bare = timed("python", None, lambda: _call(sys.executable, "-c", "pass"))
    remark = f"the interpreter alone: {number(bare.value)} ms"
    rows = [timed("`belay version`", 150, lambda: _call(str(BELAY), "version"), remark=remark)]
    for file in files:
        command = [str(BELAY), "plan", "--desired", str(ROOT / "desired"), "--cluster", str(file), "-o", "json"]
        plan = json.loads(_call(*command))
        about = f"{len(plan['nodes'])} nodes, {len(plan['actions'])} actions, file of {file.stat().st_size // 1024} KiB"
        work = f"`belay plan` on the sample, cluster as {file.suffix[1:].upper()}"
        rows.append(timed(work, 1, lambda command=command: _call(*command), unit="s", remark=about))  # type: ignore[misc]
    return rows


def _call(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout
