"""Signed commits with real ssh-keygen and GnuPG: only commits signed by a listed key come into force."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from belay.engine.source import FetchResult, GitSource, SourceConfig
from belay.engine.source.signatures import Verifier
from tests.gitrepo import Repo, git
from tests.needs import required
from tests.signing import Keyring, allow, ssh_key, ssh_options

needs_gpg = pytest.mark.skipif(shutil.which("gpg") is None and not required(), reason="gnupg is not installed")


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return Repo(tmp_path / "repo")


@pytest.fixture
def keyrings() -> Iterator[tuple[Keyring, Keyring]]:
    # the agent's socket path must stay below 108 characters
    folder = Path(tempfile.mkdtemp(prefix="g"))
    pair = Keyring(folder / "ada", "ada"), Keyring(folder / "eve", "eve")
    yield pair
    for keyring in pair:
        keyring.close()
    shutil.rmtree(folder, ignore_errors=True)


def verifying(repo: Repo, tmp_path: Path, mode: str, signers: Path) -> GitSource:
    config = SourceConfig(url=str(repo.bare), verify_mode=mode, allowed_signers=signers)  # type: ignore[arg-type]
    return GitSource(config, tmp_path / "mirrors")


def verdict(result: FetchResult) -> tuple[str, str]:
    condition = result.condition("Verified")
    assert condition is not None, result.conditions
    return condition.status, condition.reason


def test_a_commit_signed_by_a_listed_key_comes_into_force(repo: Repo, tmp_path: Path) -> None:
    ada = ssh_key(tmp_path, "ada")
    sha = repo.commit({"desired/a.yaml": "1"}, *ssh_options(ada))
    result = verifying(repo, tmp_path, "ssh", allow(tmp_path / "signers", ada=ada)).fetch()
    assert result.revision is not None and result.revision.sha == sha
    assert result.revision.signer is not None and result.revision.signer.startswith("ada@example.org")
    assert verdict(result) == ("True", "Succeeded")


def test_unsigned_and_wrongly_signed_tips_leave_the_last_verified_revision(repo: Repo, tmp_path: Path) -> None:
    ada, eve = ssh_key(tmp_path, "ada"), ssh_key(tmp_path, "eve")
    s = verifying(repo, tmp_path, "ssh", signers := allow(tmp_path / "signers", ada=ada))
    good = repo.commit({"desired/a.yaml": "1"}, *ssh_options(ada))
    first = s.fetch().revision
    unsigned = repo.commit({"desired/a.yaml": "2"})
    result = s.fetch(first)
    assert (
        result.revision is first and result.attempted == unsigned and verdict(result) == ("False", "VerificationFailed")
    )
    assert "not signed" in (result.condition("Verified") or result.conditions[0]).message
    repo.commit({"desired/a.yaml": "3"}, *ssh_options(eve))
    result = s.fetch(first)
    assert (
        result.revision is first and "not on the list" in (result.condition("Verified") or result.conditions[0]).message
    )
    # a restart with nothing in memory falls back to the last verified commit
    restarted = verifying(repo, tmp_path, "ssh", signers).fetch()
    assert restarted.revision is not None and restarted.revision.sha == good and restarted.revision.signer is not None
    # an unverified revision that the caller still holds from before does not stay
    unverified = GitSource(SourceConfig(url=str(repo.bare)), tmp_path / "mirrors").fetch().revision
    assert unverified is not None and unverified.signer is None
    kept = verifying(repo, tmp_path, "ssh", signers).fetch(unverified)
    assert kept.revision is not None and kept.revision.sha == good and kept.changed_ref
    # signed on top of what was not: the tip vouches for it
    mended = repo.commit({"desired/a.yaml": "4"}, *ssh_options(ada))
    result = s.fetch(first)
    assert result.revision is not None and result.revision.sha == mended and verdict(result) == ("True", "Succeeded")


def test_a_force_push_to_an_unsigned_tip_is_refused(repo: Repo, tmp_path: Path) -> None:
    ada = ssh_key(tmp_path, "ada")
    s = verifying(repo, tmp_path, "ssh", allow(tmp_path / "signers", ada=ada))
    repo.commit({"desired/a.yaml": "1"}, *ssh_options(ada))
    first = s.fetch().revision
    git(repo.work, "commit", "-q", "--amend", "-m", "rewritten")
    repo.push("--force")
    result = s.fetch(first)
    assert (
        result.revision is first
        and verdict(result)[1] == "VerificationFailed"
        and result.condition("ForcePushed") is None
    )


def test_a_change_of_the_list_takes_effect_without_a_push(repo: Repo, tmp_path: Path) -> None:
    ada, eve = ssh_key(tmp_path, "ada"), ssh_key(tmp_path, "eve")
    signers = allow(tmp_path / "signers", eve=eve)
    s = verifying(repo, tmp_path, "ssh", signers)
    sha = repo.commit({"desired/a.yaml": "1"}, *ssh_options(ada))
    assert s.fetch().revision is None
    allow(signers, ada=ada, eve=eve)
    accepted = s.fetch()
    assert accepted.revision is not None and accepted.revision.sha == sha
    allow(signers, eve=eve)
    os.utime(signers, ns=(1, 1))
    revoked = s.fetch(accepted.revision)
    assert verdict(revoked) == ("False", "VerificationFailed") and revoked.revision == accepted.revision


def test_a_missing_list_is_named_and_the_revision_stays(repo: Repo, tmp_path: Path) -> None:
    repo.commit({"desired/a.yaml": "1"})
    result = verifying(repo, tmp_path, "ssh", tmp_path / "nowhere").fetch()
    assert result.revision is None and verdict(result) == ("False", "SignersUnreadable")
    assert "nowhere" in (result.condition("Verified") or result.conditions[0]).message


def test_an_address_rule_of_another_namespace_does_not_count(repo: Repo, tmp_path: Path) -> None:
    ada = ssh_key(tmp_path, "ada")
    signers = tmp_path / "signers"
    signers.write_text(f'ada@example.org namespaces="file" {ada.with_suffix(".pub").read_text()}')
    repo.commit({"desired/a.yaml": "1"}, *ssh_options(ada))
    assert verifying(repo, tmp_path, "ssh", signers).fetch().revision is None


@needs_gpg
@pytest.mark.parametrize("form", ["file", "folder"])
def test_gpg_with_a_keyring_outside_the_repository(
    repo: Repo, tmp_path: Path, keyrings: tuple[Keyring, Keyring], form: str
) -> None:
    ada, eve = keyrings
    signers = ada.home if form == "folder" else ada.public(tmp_path / "keys.asc")
    s = verifying(repo, tmp_path, "gpg", signers)
    sha = ada.commit(repo, {"desired/a.yaml": "1"})
    result = s.fetch()
    assert result.revision is not None and result.revision.sha == sha, result.conditions
    assert result.revision.signer is not None and result.revision.signer.startswith("ada <ada@example.org>")
    eve.commit(repo, {"desired/a.yaml": "2"})
    refused = s.fetch(result.revision)
    assert refused.revision is result.revision and verdict(refused) == ("False", "VerificationFailed")
    repo.commit({"desired/a.yaml": "3"})
    assert s.fetch(result.revision).revision is result.revision


@needs_gpg
def test_a_signature_of_the_other_kind_does_not_count(
    repo: Repo, tmp_path: Path, keyrings: tuple[Keyring, Keyring], monkeypatch: pytest.MonkeyPatch
) -> None:
    ada = keyrings[0]
    key = ssh_key(tmp_path, "ssh")
    monkeypatch.setenv("GNUPGHOME", str(ada.home))  # the operator's own keyring must not help
    ada.commit(repo, {"desired/a.yaml": "1"})
    assert verifying(repo, tmp_path, "ssh", allow(tmp_path / "signers", ssh=key)).fetch().revision is None
    repo.commit({"desired/a.yaml": "2"}, *ssh_options(key))
    assert verifying(repo, tmp_path, "gpg", ada.public(tmp_path / "keys.asc")).fetch().revision is None


@pytest.mark.parametrize(
    ("header", "said"),
    [("SIGNED MESSAGE", "a certificate (gitsign, S/MIME), which Belay does not verify,"), ("X", "an unknown format")],
)
def test_another_kind_of_signature_is_named(tmp_path: Path, header: str, said: str) -> None:
    ada = ssh_key(tmp_path, "ada")
    config = SourceConfig(url="ssh://a/b", verify_mode="ssh", allowed_signers=allow(tmp_path / "signers", ada=ada))
    person = "A <a@example.org> 1700000000 +0000"
    signature = f"gpgsig -----BEGIN {header}-----\n MIIB\n -----END {header}-----"
    raw = f"tree {'1' * 40}\nauthor {person}\ncommitter {person}\n{signature}\n\nchange\n".encode()
    found = Verifier(config, tmp_path / "home").check_text("2" * 40, raw)
    assert found.signer is None and f"is signed with {said} where SSH is required" in found.refusal


def test_a_tampered_commit_is_refused(repo: Repo, tmp_path: Path) -> None:
    ada = ssh_key(tmp_path, "ada")
    repo.commit({"desired/a.yaml": "1"}, *ssh_options(ada))
    raw = git(repo.work, "cat-file", "commit", "HEAD")
    forged = git(
        repo.work,
        "hash-object",
        "-t",
        "commit",
        "-w",
        "--stdin",
        data=(raw.replace("change", "chance") + "\n").encode(),
    )
    git(repo.work, "push", "-q", "--force", "origin", f"{forged}:refs/heads/main")
    result = verifying(repo, tmp_path, "ssh", allow(tmp_path / "signers", ada=ada)).fetch()
    assert result.revision is None and verdict(result)[1] == "VerificationFailed"


def test_a_verified_work_tree_counts_only_with_committed_files(repo: Repo, tmp_path: Path) -> None:
    ada = ssh_key(tmp_path, "ada")
    signers = allow(tmp_path / "signers", ada=ada)
    sha = repo.commit({"desired/a.yaml": "signed"}, *ssh_options(ada))
    repo.write({"desired/a.yaml": "uncommitted", "desired/b.yaml": "too"})
    s = GitSource(SourceConfig(url=str(repo.work), verify_mode="ssh", allowed_signers=signers), tmp_path / "mirrors")
    result = s.fetch()
    assert result.revision is not None and result.revision.sha == sha and result.revision.signer is not None
    assert [s.read([b])[b] for b in result.revision.files.values()] == [b"signed"]
    repo.commit({"desired/a.yaml": "unsigned"})
    assert s.fetch(result.revision).revision is result.revision


def test_a_device_as_list_of_signers_is_refused_by_name(repo: Repo, tmp_path: Path) -> None:
    repo.commit({"desired/a.yaml": "1"})
    for mode in ("ssh", "gpg"):
        result = verifying(repo, tmp_path, mode, Path("/dev/zero")).fetch()
        assert result.revision is None and verdict(result) == ("False", "SignersUnreadable")
        assert "/dev/zero is not a regular file" in (result.condition("Verified") or result.conditions[0]).message
