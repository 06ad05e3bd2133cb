"""What an act leaves in the clone and brings to the remote where the branch, a hook or another person is in the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.state_clone import git, of_another, pushed, run, state_clone


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    return state_clone(tmp_path)


def isolate(clone: Path, target: str = "node-3") -> str:
    """The output of an act that goes well."""
    done = run(clone, "isolate", target, "--reason", "fan", "--cluster", "none")
    assert done.exit_code == 0, done.output
    return done.output


def test_a_lost_race_to_any_words_is_made_again(clone: Path) -> None:
    other = of_another(clone)
    git(other, "commit", "-q", "--allow-empty", "-m", "Optics\u2028\x0b\x0c\u0085fan\rtwice", "--author", "B\x1c <b>")
    git(other, "commit", "-q", "--allow-empty", "-m", "Note")
    git(other, "push", "-q")
    said = isolate(clone)
    assert "on top of:" in said and "Bob: Note" in said and "Optics" in said
    assert "Ada Isolate node-3" in pushed(clone)


def test_without_a_branch_nothing_is_committed(clone: Path) -> None:
    head = git(clone, "rev-parse", "HEAD")
    git(clone, "checkout", "-q", "--detach")
    done = run(clone, "isolate", "node-3", "--reason", "fan", "--cluster", "none")
    assert done.exit_code == 2 and "no branch is checked out" in done.output
    assert (git(clone, "rev-parse", "HEAD"), git(clone, "status", "--porcelain")) == (head, "")
    for option in ("--dry-run", "--no-push"):
        done = run(clone, "isolate", "node-3", "--reason", "fan", "--cluster", "none", option)
        assert done.exit_code == 0, done.output


def test_what_is_staged_stays_staged_where_a_hook_refuses_the_commit(clone: Path) -> None:
    hook = clone / ".git/hooks/pre-commit"
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    (clone / "mine").write_text("my own work\n")
    git(clone, "add", "mine")
    for words in (("confirm", "0123456789abcdef" * 2), ("isolate", "node-3", "--reason", "fan")):
        done = run(clone, *words, "--cluster", "none")
        assert done.exit_code == 2 and "git commit failed" in done.output, done.output
        assert git(clone, "status", "--porcelain") == "A  mine"
