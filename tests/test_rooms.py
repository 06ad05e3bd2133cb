"""The map of the rooms, the contracts of their imports, and the door of the planner agree."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import belay.engine.plan

ROOT = Path(__file__).parent.parent
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


def layers(container: str) -> list[set[str]]:
    """The rooms of a package from top to bottom, as the contract lists them."""
    contract = next(one for one in CONTRACTS if one.get("containers") == [container])
    assert contract["exhaustive"]
    return [set(re.split(r" [|:] ", layer)) for layer in contract["layers"]]


def rows(readme: str) -> list[set[str]]:
    """The rooms in the first column of a README's map, row by row."""
    text = (ROOT / readme).read_text().partition("| room |")[2]
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith(("| `", "| [`"))]
    return [{name.removesuffix("/").removesuffix(".py") for name in re.findall(r"`([^`]+)`", cell)} for cell in cells]


@pytest.mark.parametrize(
    ("container", "readme"),
    [
        ("belay.engine", "engine/README.md"),
        ("belay.agents", "agents/README.md"),
        ("belay.agents.training", "agents/training/README.md"),
    ],
)
def test_the_map_has_the_order_of_the_contract(container: str, readme: str) -> None:
    assert rows(readme) == [layer for layer in layers(container) if layer != {"__main__"}]


def test_the_planner_lists_its_rooms_in_the_order_of_the_contract() -> None:
    text = (ROOT / "engine/plan/README.md").read_text().partition("Rooms import downwards only (`make lint`): ")[2]
    line = text.partition(".")[0].replace("\n", " ")
    assert [set(layer.split(", ")) for layer in line.split(" › ")] == layers("belay.engine.plan")


def test_the_readme_of_the_planner_names_its_door() -> None:
    table = (ROOT / "engine/plan/README.md").read_text().partition("## The door")[2]
    named = set(
        re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in table.splitlines() if line.startswith("| `")))
    )
    assert named == set(belay.engine.plan.__all__)


def test_the_door_of_the_planner_gives_every_name_it_lists() -> None:
    for name in belay.engine.plan.__all__:
        assert getattr(belay.engine.plan, name) is not None
    with pytest.raises(AttributeError):
        belay.engine.plan.nothing  # noqa: B018


def test_the_door_of_the_planner_imports_no_pass() -> None:
    code = "import sys, belay.engine.plan; print(*(m for m in sys.modules if m.startswith('belay.engine.plan.')))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    doors = {"belay.engine.plan.rules"}
    assert set(done.stdout.split()) <= doors


@pytest.mark.parametrize(
    ("program", "unwanted"),
    [
        (
            "belay.engine.controller.controller",
            (
                "pydantic",
                "belay.engine.documents",
                "belay.engine.plan",
                "celery",
                "sqlalchemy",
                "grpc",
                "prometheus_client",
                "watchfiles",
            ),
        ),
        (
            "belay.engine.controller.tasks",
            ("sqlalchemy", "grpc", "kubernetes", "prompt_toolkit", "prometheus_client", "cryptography.hazmat"),
        ),
        (
            "belay.engine.serve.http",
            (
                "celery",
                "cryptography.hazmat",
                "belay.engine.documents",
                "belay.engine.load",
                "jinja2",
                "joserfc",
                "kubernetes",
                "pydantic",
            ),
        ),
    ],
)
def test_processes_load_nothing_that_an_idle_cluster_does_not_need(program: str, unwanted: tuple[str, ...]) -> None:
    # spans are wanted only where the environment names a collector
    unwanted = (*unwanted, "opentelemetry")
    code = f"import sys, {program}; print([name for name in {unwanted!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_kinds_of_documents_are_compiled_with_the_first_of_their_kind() -> None:
    code = (
        "from belay.engine.documents import KINDS; "
        "print([name for name, kind in KINDS.items() if kind.__pydantic_complete__])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_readmes_name_files_that_exist() -> None:
    rooms = [ROOT / name for name in ("agents", "deploy", "docs", "engine", "policies", "tests")]
    known = {f"/{path.relative_to(ROOT)}" for room in rooms for path in room.rglob("*.py")}
    readmes = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(path for room in rooms for path in room.rglob("*.md"))]
    missing = [
        f"{readme.relative_to(ROOT)}: {name}"
        for readme in readmes
        for name in re.findall(r"`([\w./-]+\.py)`", readme.read_text())
        if not any(path.endswith(f"/{name.removeprefix('../')}") for path in known)
    ]
    assert not missing
