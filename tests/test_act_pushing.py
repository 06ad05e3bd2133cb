"""What an act leaves in the clone and brings to the remote where the branch, a hook or another person is in the way."""

from __future__ import annotations

import re
import subprocess
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


@pytest.mark.parametrize("operation", ["merge", "rebase", "cherry-pick"])
def test_an_act_waits_for_what_git_has_under_way(clone: Path, operation: str) -> None:
    git(clone, "checkout", "-q", "-b", "side")
    for branch in ("side", "main"):
        git(clone, "checkout", "-q", branch)
        (clone / "notes").write_text(f"of {branch}\n")
        git(clone, "add", "notes")
        git(clone, "commit", "-qm", f"Notes of {branch}")
    subprocess.run(["git", operation, "side"], cwd=clone, capture_output=True, check=False)  # conflicts
    before = git(clone, "status", "--porcelain")
    assert before == "AA notes"
    done = run(clone, "isolate", "node-3", "--reason", "fan", "--cluster", "none")
    said = " ".join(done.output.split())
    assert done.exit_code == 2 and f"a {operation} is under way" in said and f"git {operation} --abort" in said
    assert git(clone, "status", "--porcelain") == before and "+kind" not in said
    git(clone, operation, "--abort")
    git(clone, "checkout", "-q", "main")
    isolate(clone)


def test_a_linked_document_is_left_to_the_person(clone: Path) -> None:
    document, beside = clone / "desired/jobs/pretrain.yaml", clone / "elsewhere.yaml"
    document.rename(beside)
    document.symlink_to("../../elsewhere.yaml")
    git(clone, "add", "--all")
    git(clone, "commit", "-qm", "Link")
    before = beside.read_bytes()
    done = run(clone, "scale", "pretrain", "3", "--cluster", "none")
    assert done.exit_code == 2 and "a symbolic link to ../../elsewhere.yaml" in " ".join(done.output.split())
    assert beside.read_bytes() == before and git(clone, "status", "--porcelain") == ""
    isolate(clone)  # other files are as before


def test_a_clone_that_lacks_documents_or_history_says_how_to_get_them(clone: Path) -> None:
    remote = clone.parent / "remote.git"
    sparse, shallow = clone.parent / "sparse", clone.parent / "shallow"
    git(clone, "commit", "-q", "--allow-empty", "-m", "Later")
    git(clone, "push", "-q")
    git(clone.parent, "clone", "-q", "--sparse", str(remote), str(sparse))
    git(sparse, "sparse-checkout", "set", "desired/pools")
    done = run(sparse, "scale", "pretrain", "3", "--cluster", "none", "--dry-run")
    said = " ".join(done.output.split())
    assert done.exit_code == 2 and "a sparse checkout leaves out" in said, done.output
    (way_out,) = re.findall(r"git (sparse-checkout add \S+ \S+)", said)
    git(sparse, *way_out.split())
    assert run(sparse, "scale", "pretrain", "3", "--cluster", "none", "--dry-run").exit_code == 0

    git(clone.parent, "clone", "-q", "--depth", "1", f"file://{remote}", str(shallow))
    done = run(shallow, "rollback", "--cluster", "none", "--dry-run")
    assert done.exit_code == 2 and "This clone is shallow: git fetch --unshallow" in " ".join(done.output.split())


def local_work(clone: Path) -> None:
    """A commit of the person's own that is not pushed."""
    (clone / "mine").write_text("my own work\n")
    git(clone, "add", "mine")
    git(clone, "commit", "-qm", "My local work")


def test_commits_that_a_push_takes_along_are_shown_before_it(clone: Path) -> None:
    local_work(clone)
    own = git(clone, "rev-parse", "--short=12", "HEAD")
    before = run(clone, "isolate", "node-1", "--reason", "fan", "--cluster", "none", "--no-push").output
    assert "takes along" not in before, "nothing is pushed"

    for option in ("--dry-run", "--cluster=none"):
        said = run(clone, "isolate", "node-3", "--reason", "fan", "--cluster", "none", option).output
        shown, _, _ = said.partition("committed ")
        assert "the push takes along what origin/main has not yet:\n" in shown, said
        assert f"  {own} Ada: My local work (no document)\n" in shown
        assert "Ada: Isolate node-1 (desired/isolations" in shown
    assert "takes along" not in isolate(clone, "node-2"), "now the remote has them"
    # with no branch of the remote seen here yet, nothing is taken for pushed
    git(clone, "update-ref", "-d", "refs/remotes/origin/main")
    assert "Ada: Begin" in run(clone, "drain", "node-5", "--cluster", "none", "--dry-run").output


@pytest.mark.parametrize("changed", [False, True])
def test_what_is_refused_on_top_of_others_is_in_no_later_push(clone: Path, changed: bool) -> None:
    other = of_another(clone)
    (other / "desired/by-hand.yaml").write_text(
        "apiVersion: belay.dev/v1alpha1\nkind: Isolation\nmetadata: {name: node-2}\n"
        "spec: {nodes: [node-2], reason: fan}\n"
    )
    git(other, "add", "--all")
    git(other, "commit", "-qm", "Isolate by hand")
    git(other, "push", "-q")
    local_work(clone)
    if changed:
        (clone / "mine").write_text("not committed\n")

    done = run(clone, "isolate", "node-2", "--reason", "optics", "--cluster", "none")
    assert done.exit_code == 2 and "so the commit was not pushed" in done.output, done.output
    newest = git(clone, "log", "-1", "--format=%s")
    if changed:
        assert newest == "Isolate node-2" and "git reset --keep HEAD~1 drops the commit" in done.output
        assert (clone / "mine").read_text() == "not committed\n"
        return
    assert newest == "My local work", "the act's own commit has gone, and no other"
    isolate(clone)
    subjects = git(clone.parent / "remote.git", "log", "--format=%s", "main").splitlines()
    assert subjects == ["Isolate node-3", "My local work", "Isolate by hand", "Begin"]
