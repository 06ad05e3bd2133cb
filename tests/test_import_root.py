"""No name of Belay's hides a module of the user, and none of the user's hides Belay's."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from belay import IMPORT_ROOT, SHIPPED

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ROOT / "agents/training/packages"
OWN = ("agents", "engine", "policies", "tests")
"""What scripts call their own modules; Belay's folders have the same names."""
SCRIPT = """
import sys
from agents import PPO
import engine, policies, tests
import belay.engine, belay.agents
from taskd.api import taskd_manager_api
import mindio_ttp.framework_ttp
import mindx_elastic
assert PPO == engine.MINE == policies.MINE == tests.MINE == 1
print("own", belay.engine.__name__, taskd_manager_api.__name__)
"""


def users_folder(folder: Path) -> Path:
    """A script beside packages and a module with the names of Belay's folders."""
    for name in ("agents", "policies", "tests"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text("PPO = MINE = 1\n")
    (folder / "engine.py").write_text("MINE = 1\n")
    (folder / "train.py").write_text(SCRIPT)
    return folder


def installed(kind: str, folder: Path) -> list[str]:
    """What stands on the path for an installation of this kind."""
    if kind == "editable":
        return [str(IMPORT_ROOT), str(PACKAGES), str(PACKAGES / "belay_training/src")]
    project = ROOT if kind == "wheel" else PACKAGES / "belay_training"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--target", str(folder), str(project)], check=True, capture_output=True, timeout=200)
    return [str(folder), *([str(folder / "belay/agents/training/packages")] if kind == "wheel" else [])]


@pytest.fixture(scope="module", params=["editable", "light", "wheel"])
def paths(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return installed(request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("order", ["first", "last", "script"])
@pytest.mark.parametrize("place", ["beside", "parent", "elsewhere"])
def test_a_script_keeps_its_own_names(paths: list[str], place: str, order: str, tmp_path: Path) -> None:
    own = users_folder(tmp_path / "project")
    where = {"beside": own, "parent": tmp_path, "elsewhere": Path("/")}[place]
    path = {"first": [str(own), *paths], "last": [*paths, str(own)], "script": paths}[order]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(path)}
    script = [sys.executable, os.path.relpath(own / "train.py", where)]
    done = subprocess.run(script, cwd=where, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["own", "belay.engine", "taskd.api.taskd_manager_api"], done.stderr


def test_programs_of_belay_start_beside_such_names(tmp_path: Path) -> None:
    own = users_folder(tmp_path)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(IMPORT_ROOT)}
    for module in ("belay.engine", "belay.agents.daemon", "belay.agents.training.train.agent.launcher"):
        command = [sys.executable, "-m", module, "--help"]
        done = subprocess.run(command, cwd=own, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and "usage" in done.stdout.lower(), (module, done.stderr)


IMPORT = re.compile(rb"^[ \t]*(from[ \t]+(agents|engine)\b|import\b.*\b(agents|engine)\b)", re.MULTILINE)
"""What may be an import by such a name: only these files are parsed, a minute of work for all."""


def imports(file: Path) -> Iterator[str]:
    text = file.read_bytes()
    if not IMPORT.search(text):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def test_everything_is_imported_from_the_root() -> None:
    """In a checkout the folders could be imported by their own names too, as second copies of every module."""
    files = (file for room in ("agents", "deploy", "engine", "tests") for file in sorted((ROOT / room).rglob("*.py")))
    found = [
        f"{file.relative_to(ROOT)}: {name}"
        for file in files
        for name in imports(file)
        if name.partition(".")[0] in ("agents", "engine")
    ]
    assert found == []


def test_the_data_of_a_checkout_are_those_of_the_repository() -> None:
    assert SHIPPED == ROOT and Path(str(IMPORT_ROOT)) == ROOT / "src"
