"""The copy of a remote repository: fetched once for all processes that read it, and mended where git was killed."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from belay.engine.errors import SourceError
from belay.engine.source.branches import FETCH_SECONDS, Branches
from tests.gitrepo import Repo, git


class Copies:
    """A repository that counts as remote, and readers of one copy of it, as different processes are."""

    def __init__(self, folder: Path) -> None:
        self.now, self.data = 1_000_000.0, folder / "data"
        self.url = str(folder / "state" / "bare.git")
        self.first, self.second = self.reader(), self.reader()
        self.repo = Repo(folder / "state")
        self.repo.commit({"desired/a.yaml": "{}"}, message="one")

    def reader(self) -> Branches:
        return Branches(self.url, "", self.data, lambda: self.now)

    @property
    def copy(self) -> Path:
        (found,) = self.data.glob("branches-*.git")
        return found


def subjects(branches: Branches) -> list[str]:
    return [tip.subject for tip in branches.tips()]


def test_readers_of_one_copy_fetch_once_in_an_interval(tmp_path: Path) -> None:
    copies = Copies(tmp_path)
    assert subjects(copies.first) == ["one"]
    copies.repo.commit(message="two")
    copies.now += FETCH_SECONDS - 1
    assert subjects(copies.first) == subjects(copies.second) == ["one"]
    copies.now += 2
    assert subjects(copies.second) == ["two"]
    copies.repo.commit(message="three")
    assert subjects(copies.first) == ["two"]
    copies.now -= 3600  # the clock was set back: what was fetched in the future is fetched again
    assert subjects(copies.first) == ["three"]


def test_readers_that_come_at_one_time_wait_for_each_other(tmp_path: Path) -> None:
    copies = Copies(tmp_path)
    found: list[list[str]] = []
    threads = [threading.Thread(target=lambda: found.append(subjects(copies.reader()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [["one"]] * 4


def test_what_a_killed_git_left_is_removed(tmp_path: Path) -> None:
    copies = Copies(tmp_path)
    assert subjects(copies.first) == ["one"]
    copies.repo.commit(message="two")
    left = [
        copies.copy / "shallow.lock",
        copies.copy / "refs" / "heads" / "main.lock",
        copies.copy / "packed-refs.lock",
    ]
    for file in left:
        file.write_bytes(b"half")
    copies.now += FETCH_SECONDS + 1
    assert subjects(copies.first) == ["two"]
    assert not any(file.exists() for file in left)


def test_a_repository_that_cannot_be_reached_is_not_asked_for_each_question(tmp_path: Path) -> None:
    copies = Copies(tmp_path)
    aside = copies.repo.bare.rename(tmp_path / "aside.git")
    with pytest.raises(SourceError, match="cannot be read"):
        copies.first.tips()
    aside.rename(copies.repo.bare)
    copies.now += FETCH_SECONDS - 1
    with pytest.raises(SourceError, match="cannot be read"):
        copies.second.tips()
    copies.now += 2
    assert subjects(copies.second) == ["one"]


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    copies = Copies(tmp_path)
    copies.data.write_text("no folder")
    with pytest.raises(SourceError, match="cannot be kept"):
        copies.first.tips()


def test_requests_are_read_beside_the_branches_and_forgotten_when_they_are_gone(tmp_path: Path) -> None:
    copies = Copies(tmp_path)
    repo = copies.repo
    base = git(repo.work, "rev-parse", "HEAD")
    made = {}
    for ref in ("refs/pull/7/head", "refs/merge-requests/3/head", "refs/pull/6/merge", "refs/pull/x/head"):
        made[ref] = git(repo.work, "commit-tree", f"{base}^{{tree}}", "-p", base, "-m", f"of {ref}")
        git(repo.work, "push", "--quiet", "origin", f"{made[ref]}:{ref}")
    git(repo.work, "push", "--quiet", "origin", f"{base}:refs/pull/5/head")  # merged already
    found = {tip.name: tip.revision for tip in copies.first.tips("main")}
    assert found == {
        "main": base,
        "pull/7": made["refs/pull/7/head"],
        "merge-requests/3": made["refs/merge-requests/3/head"],
    }
    assert copies.first.resolve("pull/7") == found["pull/7"]
    assert copies.first.documents(found["pull/7"]) == {"desired/a.yaml": b"{}"}
    for name in ("pull/6", "pull/x", "pull/../heads/main", "pull/8"):
        with pytest.raises(SourceError, match="there is no branch"):
            copies.first.resolve(name)
    git(repo.work, "push", "--quiet", "origin", ":refs/pull/7/head")
    copies.now += FETCH_SECONDS + 1
    assert [tip.name for tip in copies.second.tips("main")] == ["main", "merge-requests/3"]


def test_of_many_requests_the_newest_are_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("belay.engine.source.branches.MOST_REQUESTS", 2)
    copies = Copies(tmp_path)
    base = git(copies.repo.work, "rev-parse", "HEAD")
    for number in (8, 9, 10):
        commit = git(copies.repo.work, "commit-tree", f"{base}^{{tree}}", "-p", base, "-m", f"number {number}")
        git(copies.repo.work, "push", "--quiet", "origin", f"{commit}:refs/pull/{number}/head")
    assert {tip.name for tip in copies.first.tips("main")} == {"main", "pull/9", "pull/10"}


def test_a_repository_on_this_machine_shows_its_requests(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "state")
    base = repo.commit({"desired/a.yaml": "{}"}, message="one")
    commit = git(repo.work, "commit-tree", f"{base}^{{tree}}", "-p", base, "-m", "asked for")
    git(repo.work, "push", "--quiet", "origin", f"{commit}:refs/pull/1/head")
    here = Branches(f"file://{repo.bare}", "", tmp_path)
    assert [(tip.name, tip.subject) for tip in here.tips("main")] == [("main", "one"), ("pull/1", "asked for")]
    assert here.resolve("pull/1") == commit
