"""A local work tree or plain folder as the source, uncommitted changes included, and when to fetch again."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

from belay.engine.source import GitSource, Limits, SourceConfig, blob_id
from tests.gitrepo import Repo, git


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return Repo(tmp_path / "repo")


def folder(path: Path, tmp_path: Path, limits: Limits | None = None) -> GitSource:
    return GitSource(SourceConfig(url=str(path)), tmp_path / "mirrors", limits=limits)


def test_blob_ids_are_gits(repo: Repo) -> None:
    for content in (b"", b"a: 1\n", os.urandom(5000)):
        assert blob_id(content) == git(repo.work, "hash-object", "--stdin", data=content)


def test_a_clean_work_tree_is_its_commit(repo: Repo, tmp_path: Path) -> None:
    sha = repo.commit({"desired/a.yaml": "1", "policies/p.yaml": "2"})
    s = folder(repo.work, tmp_path)
    revision = s.fetch().revision
    assert revision is not None and revision.sha == sha and revision.author.startswith("Ada")
    assert revision.files == {"desired/a.yaml": blob_id(b"1"), "policies/p.yaml": blob_id(b"2")}
    assert s.read(revision.files.values())[blob_id(b"1")] == b"1"
    assert s.fetch(revision).revision is revision


def test_uncommitted_changes_count_and_can_be_read(repo: Repo, tmp_path: Path) -> None:
    sha = repo.commit({"desired/a.yaml": "1", "desired/b.yaml": "2"})
    s = folder(repo.work, tmp_path)
    clean = s.fetch().revision
    repo.write({"desired/a.yaml": "changed", "desired/new.yaml": "untracked"})
    (repo.work / "desired/b.yaml").unlink()
    dirty = s.fetch(clean).revision
    assert dirty is not None and dirty.sha.startswith("worktree-") and len(dirty.sha) == 49
    assert dirty.changed == ("desired/a.yaml", "desired/b.yaml", "desired/new.yaml")
    assert s.read(dirty.files.values()) == {blob_id(b"changed"): b"changed", blob_id(b"untracked"): b"untracked"}
    assert s.history("desired/a.yaml") == [(sha, blob_id(b"1"))]
    assert s.fetch(dirty).revision is dirty
    # what a revision names stays readable although the file changed since
    repo.write({"desired/new.yaml": "changed again"})
    assert s.read([blob_id(b"untracked")]) == {blob_id(b"untracked"): b"untracked"}
    committed = repo.commit({"desired/new.yaml": "untracked"})
    back = s.fetch(dirty)
    assert (
        back.revision is not None
        and back.revision.sha == committed
        and back.revision.changed == ()
        and back.changed_ref
    )


def test_a_change_that_keeps_size_and_time_is_seen(repo: Repo, tmp_path: Path) -> None:
    repo.commit({"desired/a.yaml": "1111"})
    s = folder(repo.work, tmp_path)
    first = s.fetch().revision
    path = repo.work / "desired/a.yaml"
    before = path.stat()
    path.write_text("2222")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    second = s.fetch(first).revision
    assert second is not None and second.files["desired/a.yaml"] == blob_id(b"2222")


def test_unchanged_files_are_not_read_again(repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repo.commit({f"desired/f{i}.yaml": str(i) for i in range(50)})
    for path in (repo.work / "desired").iterdir():
        os.utime(path, ns=(10**18, 10**18))
    s = folder(repo.work, tmp_path)
    revision = s.fetch().revision
    repo.write({"desired/f1.yaml": "new"})
    opened: list[bytes] = []
    real = os.open
    monkeypatch.setattr(
        "belay.engine.source.worktree.os.open", lambda path, *a, **k: (opened.append(path), real(path, *a, **k))[1]
    )
    second = s.fetch(revision).revision
    assert second is not None and second.changed == ("desired/f1.yaml",)
    assert [os.path.basename(p) for p in opened] == [b"f1.yaml"]


def test_a_plain_folder_works_without_git(tmp_path: Path) -> None:
    root = tmp_path / "plain"
    (root / "desired").mkdir(parents=True)
    (root / "desired/a.yaml").write_text("1")
    s = folder(root, tmp_path)
    revision = s.fetch().revision
    assert revision is not None and revision.sha.startswith("worktree-")
    assert s.read(revision.files.values()) == {blob_id(b"1"): b"1"} and s.history("desired/a.yaml") == []


def test_a_repository_without_commits_is_read_from_disk(repo: Repo, tmp_path: Path) -> None:
    repo.write({"desired/a.yaml": "1"})
    revision = folder(repo.work, tmp_path).fetch().revision
    assert revision is not None and set(revision.files) == {"desired/a.yaml"}


def test_a_folder_refuses_the_same_files_as_a_commit(repo: Repo, tmp_path: Path) -> None:
    sha = repo.commit({"desired/ok.yaml": "ok", "desired/big.yaml": "small"})
    repo.write(
        {
            "desired/big.yaml": "x" * 2000,
            "shared.txt": "shared",
            "desired/nested/.git/HEAD": "x",
            "desired/nested/n.yaml": "n",
        }
    )
    desired = repo.work / "desired"
    (desired / "in.yaml").symlink_to("../shared.txt")
    (desired / "out.yaml").symlink_to("/etc/passwd")
    (desired / "git.yaml").symlink_to("../.git/config")
    (desired / ".#lock.yaml").symlink_to("user@host.123:456")
    os.mkfifo(desired / "pipe.yaml")
    s = folder(repo.work, tmp_path, Limits(blob=1000))
    result = s.fetch()
    revision = result.revision
    assert revision is not None
    assert revision.files == {
        "desired/ok.yaml": blob_id(b"ok"),
        "desired/in.yaml": blob_id(b"shared"),
        "desired/big.yaml": blob_id(b"small"),
    }
    assert {(p.path, p.reason) for p in revision.problems} == {
        ("desired/big.yaml", "FileTooLarge"),
        ("desired/nested", "SubmoduleRefused"),
        ("desired/out.yaml", "LinkRefused"),
        ("desired/git.yaml", "LinkRefused"),
        ("desired/pipe.yaml", "NotAFile"),
    }
    assert next(p.held for p in revision.problems if p.path == "desired/big.yaml") == sha
    assert len(s.read(revision.files.values())) == 3


def test_ignored_files_are_left_out(repo: Repo, tmp_path: Path) -> None:
    repo.commit({"desired/a.yaml": "1", ".gitignore": "scratch/\n*.tmp.yaml\n"})
    repo.write({"desired/scratch/x.yaml": "no", "desired/y.tmp.yaml": "no", "desired/z.yaml": "yes"})
    revision = folder(repo.work, tmp_path).fetch().revision
    assert revision is not None and set(revision.files) == {"desired/a.yaml", "desired/z.yaml"}


def test_an_emptied_folder_and_a_vanished_one_keep_the_last_revision(repo: Repo, tmp_path: Path) -> None:
    repo.commit({"desired/a.yaml": "1"})
    s = folder(repo.work, tmp_path)
    first = s.fetch().revision
    (repo.work / "desired/a.yaml").unlink()
    emptied = s.fetch(first)
    assert emptied.revision is first and emptied.conditions[-1].reason == "EmptyTree"
    repo.work.rename(tmp_path / "away")
    gone = s.fetch(first)
    assert gone.revision is first and gone.conditions[-1].reason == "Unreachable"


def test_a_running_checkout_is_not_mistaken_for_deletions(repo: Repo, tmp_path: Path) -> None:
    repo.commit({"desired/a.yaml": "1", "desired/b.yaml": "2"})
    s = folder(repo.work, tmp_path)
    first = s.fetch().revision
    (repo.work / ".git/index.lock").write_text("")
    (repo.work / "desired/b.yaml").unlink()
    result = s.fetch(first)
    assert result.revision is first and result.conditions[-1].reason == "WorkTreeBusy" and s.next_delay() < 3
    os.utime(repo.work / ".git/index.lock", (0, 0))  # left by a git that died long ago
    after = s.fetch(first).revision
    assert after is not None and after.changed == ("desired/b.yaml",)


async def _causes(s: GitSource, stop: asyncio.Event, found: asyncio.Queue[str]) -> None:
    async for cause in s.watch(stop):
        await found.put(cause)


def test_edits_pokes_and_polls_wake_the_watcher(repo: Repo, tmp_path: Path) -> None:
    repo.commit({"desired/a.yaml": "1"})

    async def scenario() -> list[str]:
        s = GitSource(SourceConfig(url=str(repo.work), interval=1000.0), tmp_path / "mirrors")
        stop, found = asyncio.Event(), asyncio.Queue[str]()
        task = asyncio.create_task(_causes(s, stop, found))
        causes = [await asyncio.wait_for(found.get(), 60)]
        s.fetch_soon()
        causes.append(await asyncio.wait_for(found.get(), 60))
        (repo.work / "unrelated.txt").write_text("x")
        for attempt in range(50):  # inotify needs a moment to be armed
            repo.write({"desired/a.yaml": str(attempt)})
            try:
                causes.append(await asyncio.wait_for(found.get(), 0.3))
                break
            except TimeoutError:
                continue
        stop.set()
        await asyncio.wait_for(task, 60)
        return causes

    assert asyncio.run(scenario()) == ["start", "request", "files"]


def test_polls_follow_the_interval_and_a_poke_before_watching_is_remembered(repo: Repo, tmp_path: Path) -> None:
    async def scenario() -> list[str]:
        config = SourceConfig(url=str(repo.bare), interval=1.0)
        s = GitSource(config, tmp_path / "mirrors", chance=random.Random(1))
        s.fetch_soon()
        s.fetch_soon()
        stop, found = asyncio.Event(), asyncio.Queue[str]()
        task = asyncio.create_task(_causes(s, stop, found))
        causes = [await asyncio.wait_for(found.get(), 60) for _ in range(3)]
        stop.set()
        await asyncio.wait_for(task, 60)
        return causes

    assert asyncio.run(scenario()) == ["start", "request", "poll"]
