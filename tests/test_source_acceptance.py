"""What a signature alone does not say: for what a commit was made, when it came, and that it does not go back.

Every case runs with real git and with signatures of SSH and of GnuPG.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from belay.engine.source import FetchResult, GitSource, Limits, SourceConfig
from tests.gitrepo import Repo, git
from tests.needs import required
from tests.signing import Keyring, allow, ssh_key, ssh_options

pytestmark = pytest.mark.skipif(shutil.which("gpg") is None and not required(), reason="gnupg is not installed")
THEN = "2020-01-15T12:00:00+00:00"


class Signer:
    """Ada with a valid key, and a key of hers that expired in February 2020."""

    def __init__(self, mode: str, folder: Path, keys: Path) -> None:
        self.mode, self.folder = mode, folder
        self.config: dict[str, Any] = {"verify_mode": mode}
        if mode == "ssh":
            self.ada, self.old = ssh_key(folder, "ada"), ssh_key(folder, "old")
            self.config["allowed_signers"] = signers = allow(folder / "signers", ada=self.ada)
            old = self.old.with_suffix(".pub").read_text()
            with signers.open("a") as file:
                file.write(f'ada@example.org namespaces="git",valid-before="20200201" {old}')
        else:
            self.ring = Keyring(keys / "ada", "ada")
            self.old_ring = Keyring(keys / "old", "old", then="20200115T120000", expires="2020-02-01")
            public = self.ring.public(folder / "a").read_bytes() + self.old_ring.public(folder / "b").read_bytes()
            self.config["allowed_signers"] = listed = folder / "keys.asc"
            listed.write_bytes(public)

    def commit(self, repo: Repo, files: dict[str, str | bytes], message: str = "signed") -> str:
        if self.mode == "ssh":
            return repo.commit(files, *ssh_options(self.ada), message=message)
        return self.ring.commit(repo, files, message)

    def commit_then(self, repo: Repo, files: dict[str, str | bytes]) -> str:
        """Commit with the expired key, dated back into its life."""
        if self.mode == "gpg":
            return self.old_ring.commit(repo, files, date=THEN)
        repo.write(files)
        git(repo.work, "add", "-A")
        dates = {"GIT_COMMITTER_DATE": THEN, "GIT_AUTHOR_DATE": THEN}
        git(repo.work, *ssh_options(self.old), "commit", "-q", "-m", "signed", env=dates)
        repo.push()
        return repo.head()

    def source(self, repo: Repo, mirrors: str = "mirrors", limits: Limits | None = None, **more: Any) -> GitSource:
        config = SourceConfig(url=str(repo.bare), repository="platform/state", **self.config, **more)
        return GitSource(config, self.folder / mirrors, limits=limits)

    def close(self) -> None:
        if self.mode == "gpg":
            self.ring.close()
            self.old_ring.close()


@pytest.fixture(params=["ssh", "gpg"])
def ada(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Signer]:
    keys = Path(tempfile.mkdtemp(prefix="g"))  # an agent's socket path must stay short
    signer = Signer(request.param, tmp_path, keys)
    yield signer
    signer.close()
    shutil.rmtree(keys, ignore_errors=True)


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return Repo(tmp_path / "repo")


def refusal(result: FetchResult) -> str:
    condition = result.condition("Verified")
    assert condition is not None and condition.status == "False", result.conditions
    return condition.reason


def sha(result: FetchResult) -> str | None:
    return result.revision.sha if result.revision else None


def force(repo: Repo, commit: str, branch: str = "main") -> None:
    git(repo.work, "push", "-q", "--force", "origin", f"{commit}:refs/heads/{branch}")


def test_an_older_signed_commit_never_comes_back(repo: Repo, ada: Signer) -> None:
    old = ada.commit(repo, {"desired/a.yaml": "1"})
    new = ada.commit(repo, {"desired/a.yaml": "2"})
    source = ada.source(repo)
    first = source.fetch()
    assert sha(first) == new
    force(repo, old)
    result = source.fetch(first.revision)
    assert refusal(result) == "RolledBack" and sha(result) == new
    # after a restart the mirror remembers; on another machine, without it, the cluster does
    restarted = ada.source(repo).fetch()
    assert refusal(restarted) == "RolledBack" and sha(restarted) == new
    elsewhere = ada.source(repo, "elsewhere")
    elsewhere.remember({old: time.time(), new: time.time()})
    result = elsewhere.fetch()
    assert refusal(result) == "RolledBack" and result.revision is None
    # the operator may allow one commit
    assert sha(ada.source(repo, allow_rewrite_to=old).fetch()) == old


def test_a_deliberate_revert_is_a_new_commit(repo: Repo, ada: Signer) -> None:
    ada.commit(repo, {"desired/a.yaml": "1"})
    source = ada.source(repo)
    first = source.fetch()
    ada.commit(repo, {"desired/a.yaml": "2"})
    second = source.fetch(first.revision)
    reverted = ada.commit(repo, {"desired/a.yaml": "1"}, message="revert")
    third = source.fetch(second.revision)
    assert sha(third) == reverted and third.revision is not None and first.revision is not None
    assert third.revision.files == first.revision.files


def test_what_the_cluster_knows_to_be_older_bars_nothing(repo: Repo, ada: Signer) -> None:
    """A controller that last led before an allowed rewrite must not insist on what it then had in force."""
    before = ada.commit(repo, {"desired/a.yaml": "1"})
    assert sha(ada.source(repo).fetch()) == before
    git(repo.work, "checkout", "-q", "--orphan", "again")
    git(repo.work, "commit", "-q", "--allow-empty", "-m", "unsigned start")
    force(repo, "HEAD")
    after = ada.commit(repo, {"desired/a.yaml": "2"})
    assert refusal(ada.source(repo).fetch()) == "NotFastForward"
    late = ada.source(repo)
    late.remember({before: time.time(), after: time.time()})
    assert sha(late.fetch()) == after


def test_a_signed_commit_of_another_repository_is_refused(tmp_path: Path, repo: Repo, ada: Signer) -> None:
    root = ada.commit(repo, {"desired/a.yaml": "1"})
    mine = ada.source(repo, anchor=root)
    first = mine.fetch()
    other = Repo(tmp_path / "other")
    foreign = ada.commit(other, {"desired/a.yaml": "theirs"})
    git(repo.bare, "fetch", "-q", str(other.bare), "+refs/heads/main:refs/heads/main")
    result = mine.fetch(first.revision)
    assert refusal(result) == "OtherSource" and sha(result) == root and result.attempted == foreign
    # also for a machine and a cluster that never saw this repository: the anchor is pinned in the Source
    assert refusal(ada.source(repo, "fresh", anchor=root).fetch()) == "OtherSource"
    # without an anchor, what was accepted before is one
    unpinned = ada.source(repo, "fourth")
    unpinned.remember({root: time.time()})
    assert refusal(unpinned.fetch()) == "NotFastForward"


def test_a_signed_commit_of_another_branch_is_refused(repo: Repo, ada: Signer) -> None:
    start = ada.commit(repo, {"desired/a.yaml": "1"}, "start\n\nBelay-Source: platform/state main")
    source = ada.source(repo, require_trailer=True)
    first = source.fetch()
    assert sha(first) == start
    # a fast-forward of main to what was signed for staging
    ada.commit(repo, {"desired/a.yaml": "2"}, "try\n\nBelay-Source: platform/state staging")
    result = source.fetch(first.revision)
    assert refusal(result) == "OtherSource" and sha(result) == start
    assert "platform/state staging" in (result.condition("Verified") or result.conditions[0]).message
    # a trailer that names another source counts even where none is asked for
    assert refusal(ada.source(repo, "lenient").fetch()) == "OtherSource"
    # no trailer at all
    ada.commit(repo, {"desired/a.yaml": "3"})
    result = source.fetch(first.revision)
    assert refusal(result) == "OtherSource" and "requireTrailer" in str(result.conditions)
    # one commit may be for several sources, and may name the folder
    both = "both\n\nBelay-Source: platform/state staging\nBelay-Source: platform/state main"
    ada.commit(repo, {"desired/a.yaml": "4"}, both)
    assert sha(source.fetch(first.revision)) == repo.head()


def test_where_commits_say_what_they_are_for_one_that_does_not_is_refused(repo: Repo, ada: Signer) -> None:
    # people who never use trailers notice nothing
    ada.commit(repo, {"desired/a.yaml": "0"})
    source = ada.source(repo)
    plain = source.fetch()
    ada.commit(repo, {"desired/a.yaml": "1"})
    plain = source.fetch(plain.revision)
    assert sha(plain) == repo.head()
    named = ada.commit(repo, {"desired/a.yaml": "2"}, "start\n\nBelay-Source: platform/state main")
    first = source.fetch(plain.revision)
    assert sha(first) == named
    # a branch that is ahead, signed, and silent about what it is for
    ahead = ada.commit(repo, {"desired/a.yaml": "3"})
    result = source.fetch(first.revision)
    assert refusal(result) == "OtherSource" and sha(result) == named
    assert "as the accepted one before it does" in str(result.conditions)
    # also on a machine that knows it from the cluster only
    fresh = ada.source(repo, "fresh")
    fresh.remember({named: time.time()})
    assert refusal(fresh.fetch()) == "OtherSource"
    # the operator lets this one through, and those after it need none
    allowed = ada.source(repo, "mirror", allow_rewrite_to=ahead)
    second = allowed.fetch(first.revision)
    assert sha(second) == ahead
    last = ada.commit(repo, {"desired/a.yaml": "4"})
    assert sha(allowed.fetch(second.revision)) == last


def test_a_commit_for_another_folder_is_refused(repo: Repo, ada: Signer) -> None:
    ada.commit(repo, {"b/desired/a.yaml": "1"}, "x\n\nBelay-Source: platform/state main clusters/a")
    assert refusal(ada.source(repo, path="b").fetch()) == "OtherSource"
    ada.commit(repo, {"b/desired/a.yaml": "2"}, "x\n\nBelay-Source: platform/state main b")
    assert sha(ada.source(repo, path="b", require_trailer=True).fetch()) == repo.head()


def test_a_commit_dated_back_into_the_life_of_an_expired_key_is_refused(repo: Repo, ada: Signer) -> None:
    good = ada.commit(repo, {"desired/a.yaml": "1"})
    source = ada.source(repo)
    first = source.fetch()
    late = ada.commit_then(repo, {"desired/a.yaml": "2"})
    result = source.fetch(first.revision)
    assert refusal(result) == "VerificationFailed" and sha(result) == good and result.attempted == late
    # one that came while the key was valid stays good after the key expired
    came = ada.source(repo, "elsewhere")
    came.remember({late: 1_579_100_000.0})  # 2020-01-15
    assert sha(came.fetch()) == late


def test_a_commit_with_two_signature_headers_is_refused(repo: Repo, ada: Signer) -> None:
    ada.commit(repo, {"desired/a.yaml": "1"})
    raw = git(repo.work, "cat-file", "commit", "HEAD") + "\n"
    head, _, message = raw.partition("\n\n")
    at = head.index("gpgsig ")
    doubled = f"{head}\n{head[at:]}\n\n{message}"
    forged = git(repo.work, "hash-object", "-t", "commit", "-w", "--stdin", data=doubled.encode())
    force(repo, forged)
    result = ada.source(repo).fetch()
    assert refusal(result) == "VerificationFailed" and result.revision is None
    assert "2 signature headers" in (result.condition("Verified") or result.conditions[0]).message


def test_a_file_of_an_unsigned_ancestor_never_comes_into_force(repo: Repo, ada: Signer) -> None:
    good = ada.commit(repo, {"desired/a.yaml": "good", "desired/b.yaml": "b"})
    repo.commit({"desired/a.yaml": "unsigned"})
    tip = ada.commit(repo, {"desired/a.yaml": "x" * 2000})
    source = ada.source(repo, limits=Limits(blob=1000))
    revision = source.fetch().revision
    assert revision is not None and revision.sha == tip
    assert source.read([revision.files["desired/a.yaml"]]).popitem()[1] == b"good"
    assert [problem.held for problem in revision.problems] == [good]
    # no signed version: none is in force
    repo.commit({"desired/c.yaml": "unsigned"})
    ada.commit(repo, {"desired/c.yaml": "x" * 2000})
    revision = source.fetch(revision).revision
    assert revision is not None and "desired/c.yaml" not in revision.files


def test_a_memory_that_cannot_be_trusted_lets_nothing_new_in(repo: Repo, ada: Signer) -> None:
    old = ada.commit(repo, {"desired/a.yaml": "1"})
    source = ada.source(repo)
    first = source.fetch()
    ada.commit(repo, {"desired/a.yaml": "2"})
    source.remember({}, "entry 3 was changed")
    result = source.fetch(first.revision)
    assert refusal(result) == "LogBroken" and sha(result) == old
