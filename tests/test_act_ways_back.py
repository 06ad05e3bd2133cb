"""The way back that an act names: it undoes this act, and nothing of other people's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.state_clone import git, pushed, run, state_clone, take_back


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    return state_clone(tmp_path)


def test_an_isolation_beside_another_of_the_same_target_is_reverted_alone(clone: Path) -> None:
    for words in (("node-3", "node-4"), ("node-5/4-5",)):
        assert run(clone, "isolate", *words, "--reason", "rack").exit_code == 0
    before = git(clone, "rev-parse", "HEAD^{tree}")
    for target in ("node-3", "node-5/4"):
        done = run(clone, "isolate", target, "--reason", "fan", "--cluster", "none")
        assert done.exit_code == 0 and "belay release" not in done.output, done.output
        take_back(clone, done)
        assert git(clone, "rev-parse", "HEAD^{tree}") == before, "the other Isolation is whole"
        assert "Revert" in pushed(clone)
    # other chips of the node, or the node around isolated chips, are no obstacle to a release
    for target in ("node-5/6", "node-5"):
        done = run(clone, "isolate", target, "--reason", "fan")
        assert f"take it back: belay release {target}" in done.output
