"""Which launches of the patched torchrun run under Belay's node agent."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from belay.agents.training.compat.taskd.native_script import NotHere, arguments, possible, protects_itself


def launch(**given: Any) -> SimpleNamespace:
    """The settings of ``torchrun --nproc_per_node 4``."""
    logs = SimpleNamespace(_redirects=0, _tee={0: 0})
    usual = {
        "nproc_per_node": 4,
        "min_nodes": 1,
        "max_nodes": 1,
        "rdzv_backend": "c10d",
        "rdzv_endpoint": "localhost:0",
    }
    return SimpleNamespace(**{**usual, "rdzv_configs": {}, "logs_specs": logs, "numa_options": None, **given})


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text("import torch\nimport belay_training as bt\n")
    return str(path)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import belay_training", True),
        ("import os, belay_training as bt", True),
        ("from belay_training import protect", True),
        ("if True:\n    import belay_training", True),
        ("import belay_training_extra", False),
        ("from .belay_training import protect", False),
        ("text = 'import belay_training'", False),
        ("import torch", False),
        ("import belay_training\nthis is no Python", False),
        ("import belay_training\0", False),
    ],
)
def test_a_script_is_known_by_what_it_imports(tmp_path: Path, text: str, found: bool) -> None:
    (tmp_path / "script.py").write_text(text)
    assert protects_itself(str(tmp_path / "script.py")) is found


def test_a_script_that_cannot_be_read_is_left_to_torch(tmp_path: Path) -> None:
    assert not protects_itself(str(tmp_path / "none.py"))
    assert not protects_itself(str(tmp_path))


def test_options_of_one_node_and_of_several(script: str) -> None:
    assert arguments(launch(), [script, "--lr", "1"]) == ["--nproc", "4", script, "--lr", "1"]
    several = launch(
        min_nodes=2, max_nodes=2, rdzv_backend="static", rdzv_endpoint="[fd00::1]:29500", rdzv_configs={"rank": 1}
    )
    nodes = ["--nnodes", "2", "--node-rank", "1", "--master-addr", "fd00::1", "--master-port", "29500"]
    assert arguments(several, [script]) == ["--nproc", "4", *nodes, script]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"logs_specs": SimpleNamespace(_redirects=3, _tee=0)}, "--redirects"),
        ({"logs_specs": SimpleNamespace(_redirects=0, _tee={0: 0, 1: 2})}, "--tee"),
        ({"numa_options": object()}, "--numa-binding"),
        ({"max_nodes": 2}, "--nnodes 1:2"),
        ({"min_nodes": 2, "max_nodes": 2}, "--rdzv-backend c10d"),
        ({"min_nodes": 2, "max_nodes": 2, "rdzv_backend": "static", "rdzv_endpoint": "host"}, "--master-addr"),
    ],
)
def test_a_launch_that_the_node_agent_cannot_run_is_torchs_and_the_log_says_why(
    script: str, caplog: pytest.LogCaptureFixture, given: dict[str, Any], why: str
) -> None:
    with pytest.raises(NotHere, match=why):
        arguments(launch(**given), [script])
    assert possible(launch(**given), [script]) is None
    assert why in caplog.text and script in caplog.text


def test_other_scripts_modules_and_commands_are_torchs(script: str, tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("import torch\n")
    for argv in (None, ["-m", "belay_training"], [str(tmp_path / "other.py")]):
        assert possible(launch(), argv) is None


def test_a_script_that_is_given_its_local_rank_is_torchs(script: str) -> None:
    assert possible(launch(), [script, "--local-rank=${local_rank}"]) is None


def test_signals_are_handled_by_the_main_thread_only(script: str) -> None:
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(possible(launch(), [script])))
    thread.start()
    thread.join()
    assert found == [None]
    assert possible(launch(), [script]) is not None
