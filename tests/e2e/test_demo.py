"""The demo as `make demo` runs it, on the sandbox's API server and on a real kube-apiserver: one scenario, one code
path."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from belay import IMPORT_ROOT
from belay.engine.sandbox import demo
from belay.engine.sandbox.up import Sandbox
from tests.kube_server import real_cluster, stores_custom_objects
from tests.needs import assets

pytestmark = [pytest.mark.e2e]
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(500)
def test_make_demo_ends_without_a_signal_and_leaves_nothing(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": str(IMPORT_ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "belay.engine.cli", "demo"], env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    trains = importlib.util.find_spec("torch") is not None
    assert done.stdout.count("✓") == 8 + trains, done.stdout
    assert ("bit for bit" in done.stdout) == trains
    assert "desired/jobs/broken.yaml:9:17" in done.stdout
    assert re.search(r"console: http://127\.0\.0\.1:\d+/console/", done.stdout)
    assert list(tmp_path.iterdir()) == []
    left = [entry for entry in Path("/proc").iterdir() if entry.name.isdigit() and _mentions(entry, str(tmp_path))]
    assert left == []


@pytest.mark.timeout(500)
def test_the_same_scenario_on_a_real_api_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On one of its own: the definitions that it leaves would be news to other tests."""
    programs = assets("etcd", "kube-apiserver")
    (tmp_path / "kube").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    told: list[str] = []
    with real_cluster(programs, tmp_path / "kube") as kubeconfig:
        definitions = stores_custom_objects(kubeconfig)
        code = demo.play(told.append, nodes=4, cluster=str(kubeconfig), definitions=definitions)
    assert code == 0, "\n".join(reversed(told))  # the step that did not happen is among the last
    trains = definitions and importlib.util.find_spec("torch") is not None
    assert sum("✓" in line for line in told) == 8 + trains


def test_a_step_that_does_not_happen_ends_the_demo_with_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    wait = Sandbox.wait
    monkeypatch.setattr(Sandbox, "wait", lambda self, what, check, child=None: wait(self, what, check, child, 2.0))
    told: list[str] = []
    assert demo.play(told.append, cluster="/nowhere") == 1
    assert any("did not happen" in line for line in told)
    assert list(tmp_path.iterdir()) == []


def _mentions(process: Path, text: str) -> bool:
    try:
        return text in (process / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return False
