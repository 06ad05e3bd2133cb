"""Trailers that confirm deletions: which commits count, which texts are trailers, and rewritten branches."""

from __future__ import annotations

from pathlib import Path

import pytest

from belay.engine.source import GitSource, SourceConfig
from belay.engine.source.confirmations import confirmed_in
from tests.gitrepo import Repo, git

ONE, OTHER = "1" * 32, "2" * 32


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    made = Repo(tmp_path / "repo")
    made.commit({"desired/a.yaml": "a: 1"}, message=f"before\n\nBelay-Confirm: {'f' * 32}")
    return made


def confirmed(repo: Repo, base: str, tmp_path: Path) -> tuple[str, ...]:
    source = GitSource(SourceConfig(url=str(repo.bare)), tmp_path / "mirror")
    revision = source.fetch().revision
    assert revision is not None
    found = source.confirmations(base, revision.sha)
    assert found is not None
    assert confirmed_in(repo.work, base) == found
    return found


@pytest.mark.parametrize(
    ("message", "found"),
    [
        (f"clean up\n\nBelay-Confirm: {ONE}", (ONE,)),
        (f"clean up\n\nSigned-off-by: Ada <a@b>\nbelay-confirm: {ONE.upper()}\n", (ONE,)),
        (f"clean up\n\nBelay-Confirm: {ONE}\nBelay-Confirm: {OTHER}", (ONE, OTHER)),
        (f"clean up\n\nBelay-Confirm:\n  {ONE}\n", (ONE,)),
        (f"Belay-Confirm: {ONE}", ()),
        (f"clean up\n\nnever write Belay-Confirm: {ONE} yourself", ()),
        (f"clean up\n\nBelay-Confirm: {ONE}\n\nand more text", ()),
        (f"clean up\n\nBelay-Confirm: {ONE[:-1]}", ()),
        (f"clean up\n\nBelay-Confirm: {ONE} {OTHER}", ()),
        ("clean up\n\nBelay-Confirm: all", ()),
    ],
)
def test_a_trailer_is_what_git_takes_for_one(repo: Repo, tmp_path: Path, message: str, found: tuple[str, ...]) -> None:
    base = repo.head()
    repo.commit(message=message)
    assert confirmed(repo, base, tmp_path) == found


def test_every_commit_since_the_deletion_counts_and_none_before(repo: Repo, tmp_path: Path) -> None:
    base = repo.head()
    repo.commit(message=f"on the way\n\nBelay-Confirm: {ONE}")
    git(repo.work, "checkout", "-q", "-b", "side", base)
    repo.commit({"desired/b.yaml": "b: 1"}, message=f"beside\n\nBelay-Confirm: {OTHER}", push=False)
    git(repo.work, "checkout", "-q", "main")
    git(repo.work, "merge", "-q", "--no-edit", "side")
    repo.commit({"desired/a.yaml": "a: 2"})
    assert confirmed(repo, base, tmp_path) == (ONE, OTHER)
    assert confirmed(repo, repo.head(), tmp_path) == ()


def test_earlier_documents_are_those_that_differ_now(repo: Repo, tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {f"desired/{name}.yaml": f"{name}: 1" for name in ("kept", "gone", "other")}
    base = repo.commit({**files, "desired/note.txt": "no document", "elsewhere/x.yaml": "x: 1"})
    for name in ("desired/gone.yaml", "desired/note.txt", "elsewhere/x.yaml"):
        (repo.work / name).unlink()
    tip = repo.commit({"desired/other.yaml": "other: 2", "desired/new.yaml": "new: 1"})
    source = GitSource(SourceConfig(url=str(repo.bare)), tmp_path / "mirror")
    source.fetch()
    found = source.earlier(base, tip)
    assert {path: source.read([blob])[blob] for path, blob in found.items()} == {
        "desired/gone.yaml": b"gone: 1",
        "desired/other.yaml": b"other: 1",
    }
    assert source.earlier("0" * 40, tip) == {} == source.earlier("", tip)


def test_after_the_branch_was_rewritten_only_its_tip_counts(repo: Repo, tmp_path: Path) -> None:
    repo.commit(message=f"on the way\n\nBelay-Confirm: {ONE}")
    repo.commit(message=f"the tip\n\nBelay-Confirm: {OTHER}")
    for base in ("0" * 40, "", "worktree-" + "0" * 40, "--all"):
        assert confirmed(repo, base, tmp_path) == (OTHER,)


def test_a_folder_without_commits_confirms_nothing(tmp_path: Path) -> None:
    assert confirmed_in(tmp_path, "0" * 40) == ()
    git(tmp_path, "init", "-q", ".")
    assert confirmed_in(tmp_path, "0" * 40) == ()
    source = GitSource(SourceConfig(url=str(tmp_path)), tmp_path.parent / "mirror")
    assert source.confirmations("0" * 40, "worktree-" + "0" * 40) == ()


def test_an_unreadable_repository_is_reported_instead_of_no_confirmation(repo: Repo, tmp_path: Path) -> None:
    source = GitSource(SourceConfig(url=str(repo.bare)), tmp_path / "mirror")
    assert source.confirmations("", repo.head()) is None
