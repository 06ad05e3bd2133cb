"""The page about training: its whole script runs, and its options exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from belay import IMPORT_ROOT
from belay.agents.training.train.agent.launcher import parser
from tests import needs

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "train.md").read_text()


def script() -> str:
    """The indented block below "A whole script"."""
    block = PAGE.partition("## A whole script\n")[2].partition("\n## ")[0]
    lines = [line[4:] for line in block.splitlines() if line.startswith("    ") or not line]
    return "\n".join(lines).replace("STEPS, PARTS = 200, 2", "STEPS, PARTS = 12, 2")


@pytest.mark.e2e
@pytest.mark.xdist_group("training")
@pytest.mark.timeout(300)
def test_the_whole_script_runs(tmp_path: Path) -> None:
    needs.torch()
    (tmp_path / "script.py").write_text(script())
    env = {**os.environ, "PYTHONPATH": str(IMPORT_ROOT)}
    command = [sys.executable, "-m", "belay.agents.training.train.agent.launcher", "--nproc", "2", "script.py"]
    command[1:3] = ["-m", "belay.engine.cli", "train"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


def test_every_option_has_a_text_and_those_of_the_page_exist() -> None:
    known = {option for action in parser()._actions for option in action.option_strings}
    assert all(action.help for action in parser()._actions)
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE))
    assert named <= known, named - known
