"""The sample repository on its sample cluster, and how a story is compared with its golden file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from belay.engine.load import load_directory
from tests.simworld import A2, INFER, Node, World

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


def sample_files() -> dict[str, bytes]:
    """The state repository that ships as the sample."""
    return {path: data for path, data in load_directory(ROOT).items() if path.startswith("desired/")}


def sample_world(seed: int = 0, files: Mapping[str, bytes] | None = None) -> World:
    """Eight 800T A2 servers and one server of 310P cards under the sample repository."""
    nodes = [Node(f"node-{i}", labels=A2) for i in range(1, 9)]
    nodes.append(Node("infer-1", chips=8, kind="Ascend310P", labels=INFER))
    return World(sample_files() if files is None else files, nodes, seed=seed)


def compare(name: str, story: list[str], update: bool) -> None:
    """The story must be the golden one, line by line."""
    path = HERE / f"{name}.txt"
    text = "\n".join(story) + "\n"
    if update:
        path.write_text(text)
    assert path.exists(), f"no golden file {path.name}; run pytest --update-golden and read what it wrote"
    assert text == path.read_text()
