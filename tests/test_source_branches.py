"""The copy of a remote repository: fetched once for all processes that read it, and mended where git was killed."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from engine.errors import SourceError
from engine.source.branches import FETCH_SECONDS, Branches
from tests.gitrepo import Repo


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
