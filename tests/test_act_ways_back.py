"""The way back that an act names: it undoes this act, and nothing of other people's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from belay.engine.cli.acts.clone import Clone
from belay.engine.cli.acts.restoring import restoring
from tests.state_clone import git, of_another, pushed, run, state_clone, take_back


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


DIGEST = "0123456789abcdef" * 2
JOB = "desired/jobs/pretrain.yaml"


def holding(folder: Path, base: str) -> str:
    """A cluster where a deletion waits that became pending after ``base``."""
    held = {"digest": DIGEST, "objects": 1, "jobs": 1, "chips": {"training": 16}, "list": []}
    status = {
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "belay-sync", "namespace": "belay-system", "labels": {"belay.dev/about": "sync"}},
        "data": {"heldPrune.json": json.dumps(held), "pruneBase": base},
    }  # fmt: skip
    file = folder / "cluster.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [status]}))
    return str(file)


def documents_but(clone: Path, file: str) -> list[str]:
    """All files of the remote with their contents' ids, without one."""
    listed = git(clone.parent / "remote.git", "ls-tree", "-r", "main").splitlines()
    return [line for line in listed if not line.endswith(f"\t{file}")]


@pytest.mark.parametrize("theirs", ["none", "seen", "unseen"])
def test_what_was_deleted_comes_back_and_what_others_did_since_stays(clone: Path, theirs: str) -> None:
    base, job = git(clone, "rev-parse", "HEAD"), (clone / JOB).read_bytes()
    git(clone, "rm", "-q", JOB)
    git(clone, "commit", "-qm", "Tidy")
    git(clone, "push", "-q")
    if theirs != "none":
        assert run(of_another(clone), "isolate", "node-3", "--reason", "fan", "--cluster", "none").exit_code == 0
    if theirs == "seen":
        git(clone, "pull", "-q")
    others = documents_but(clone, JOB)

    done = run(clone, "confirm", DIGEST, "--cluster", holding(clone.parent, base))
    assert done.exit_code == 0 and "# while the objects are still there" in done.output, done.output
    assert ("belay rollback" in done.output) == (theirs == "none"), done.output
    take_back(clone, done)
    assert (clone / JOB).read_bytes() == job
    assert documents_but(clone, JOB) == others
    assert JOB in git(clone.parent / "remote.git", "ls-tree", "-r", "--name-only", "main").splitlines()


def test_documents_of_a_file_that_others_changed_are_picked_by_hand(tmp_path: Path) -> None:
    """The state repository is a folder of the clone."""
    top = tmp_path / "top"
    state = top / "state dir"
    (state / "desired").mkdir(parents=True)
    git(top, "init", "-q", "--initial-branch=main")
    git(top, "config", "user.name", "Ada")
    git(top, "config", "user.email", "ada@example.com")
    one, two = (f"kind: Job\nmetadata: {{name: {name}}}\n" for name in ("one", "two"))
    bases = []
    for number, text in enumerate((f"{one}---\n{two}", two, f"{two}# theirs\n")):
        (state / "desired/jobs.yaml").write_text(text)
        git(top, "add", "--all")
        git(top, "commit", "-qm", f"{number}")
        bases.append(git(top, "rev-parse", "--short=12", "HEAD"))

    found = Clone(str(state))
    file = "':/state dir/desired/jobs.yaml'"
    commit = f"git commit -m 'Restore documents' -- {file}"
    assert restoring(found, bases[0]) == (f"git checkout --patch {bases[0]} -- {file}", commit, "git push")
    assert restoring(found, bases[1]) == (f"restore the documents from {bases[1]}, and push",), "nothing has gone"
    assert restoring(found, "f" * 40) == ("restore the documents from ffffffffffff, and push",)
