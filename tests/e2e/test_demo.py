"""The demo as `make demo` runs it, on the sandbox's API server and on a real kube-apiserver: one scenario, one code
path."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from engine.sandbox import demo
from tests.kube_server import kubeconfig, stores_custom_objects

__all__ = ["kubeconfig"]
pytestmark = pytest.mark.e2e
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(240)
def test_make_demo_ends_by_itself_and_leaves_nothing(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "engine.cli", "demo"], env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("✓") == 8, done.stdout
    assert "desired/jobs/broken.yaml:9:17" in done.stdout
    assert list(tmp_path.iterdir()) == []
    left = [entry for entry in Path("/proc").iterdir() if entry.name.isdigit() and _mentions(entry, str(tmp_path))]
    assert left == []


@pytest.mark.timeout(240)
def test_the_same_scenario_on_a_real_api_server(
    kubeconfig: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    told: list[str] = []
    definitions = stores_custom_objects(Path(kubeconfig))
    code = demo.play(told.append, nodes=4, cluster=kubeconfig, definitions=definitions)
    assert code == 0, "\n".join(told)
    assert sum("✓" in line for line in told) == 8


def test_a_step_that_does_not_happen_ends_the_demo_with_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    told: list[str] = []
    assert demo.play(told.append, cluster="/nowhere") == 1
    assert any("did not happen" in line for line in told)
    assert list(tmp_path.iterdir()) == []


def _mentions(process: Path, text: str) -> bool:
    try:
        return text in (process / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return False
