"""Checks with git that a commit is signed by a key on the operator's list.

The list (an SSH allowed-signers file, or GnuPG public keys) lies outside the repository, so a push cannot extend it.
Formats: git's documentation of gpg.ssh.allowedSignersFile; GnuPG doc/DETAILS for the status lines.
"""

from __future__ import annotations

import hashlib
import re
import stat
import subprocess
from pathlib import Path
from typing import Final

import msgspec

from engine.errors import SourceError, bounded
from engine.source.git import Git
from engine.source.records import SourceConfig

_SSH_GOOD = re.compile(r'^Good "git" signature for (\S.*) with \S+ key (\S+)', re.MULTILINE)
_GPG_GOOD = re.compile(r"^\[GNUPG:\] GOODSIG [0-9A-F]+ (.*)$", re.MULTILINE)
_GPG_VALID = re.compile(r"^\[GNUPG:\] VALIDSIG ([0-9A-F]+) ", re.MULTILINE)
_GPG_BAD = re.compile(r"^\[GNUPG:\] (BADSIG|ERRSIG|EXPSIG|EXPKEYSIG|REVKEYSIG|NODATA)\b", re.MULTILINE)
_RINGS: Final = ("pubring.kbx", "pubring.gpg")
_MAX_KEYRING: Final = 4 << 20
_MAX_SIGNER: Final = 200


class Signature(msgspec.Struct, frozen=True):
    """The result of a check: the signer, or why the signature is not accepted."""

    signer: str | None
    refusal: str = ""


class Verifier:
    """Checks commits against the configured list; `home` is a private folder for GnuPG."""

    def __init__(self, config: SourceConfig, home: Path) -> None:
        self._mode = config.verify_mode
        self._signers = config.allowed_signers
        self._home = home

    @property
    def required(self) -> bool:
        """Whether unsigned commits are refused."""
        return self._mode != "none"

    def stamp(self) -> str:
        """Return a text that changes with the list of signers, so that old results can be dropped."""
        if not self.required or self._signers is None:
            return ""
        stamps = []
        for path in _key_files(self._signers):
            try:
                status = path.stat()
            except OSError:
                continue  # missing; the text changes when it appears
            stamps.append(f"{path.name}:{status.st_mtime_ns}:{status.st_size}:{status.st_ino}")
        return ",".join(stamps) or "missing"

    def check(self, git: Git, sha: str) -> Signature:
        """Check one commit. Raises SourceError (reason SignersUnreadable) when the list itself cannot be used."""
        if self._signers is None or not self._signers.exists():
            raise SourceError(
                "SignersUnreadable",
                f"the list of allowed signers {self._signers} does not exist",
                transient=True,
                hint="Mount it, or change spec.verify.allowedSigners",
            )
        _refuse_endless(self._signers)
        return (
            self._check_ssh(git, sha, self._signers)
            if self._mode == "ssh"
            else self._check_gpg(git, sha, self._signers)
        )

    def _check_ssh(self, git: Git, sha: str, signers: Path) -> Signature:
        # an empty keyring: a commit signed with some GnuPG key must not pass in this mode
        environment = {"GNUPGHOME": str(self._private("empty"))}
        output = git.run(
            "verify-commit",
            "--raw",
            sha,
            ok=(0, 1, 128),
            options=(f"gpg.ssh.allowedSignersFile={signers.resolve()}",),
            environment=environment,
        )
        good = _SSH_GOOD.search(output.complaint)
        if output.code == 0 and good:
            return Signature(bounded(f"{good[1]} ({good[2]})", _MAX_SIGNER))
        return Signature(None, _refusal(sha, output.complaint))

    def _check_gpg(self, git: Git, sha: str, signers: Path) -> Signature:
        home = self._keyring(signers)
        output = git.run(
            "verify-commit",
            "--raw",
            sha,
            ok=(0, 1, 128),
            options=("gpg.minTrustLevel=undefined",),
            environment={"GNUPGHOME": str(home)},
        )
        good, valid = _GPG_GOOD.search(output.complaint), _GPG_VALID.search(output.complaint)
        if output.code == 0 and good and valid and not _GPG_BAD.search(output.complaint):
            return Signature(bounded(f"{good[1]} ({valid[1]})", _MAX_SIGNER))
        return Signature(None, _refusal(sha, output.complaint))

    def _private(self, name: str) -> Path:
        folder = self._home / name
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder

    def _keyring(self, signers: Path) -> Path:
        """Build a private keyring from a keyring folder or a file of public keys, once per content: GnuPG writes into
        its folder, and the operator's is usually a read-only mount."""
        contents = {path.name: _content(path) for path in _key_files(signers) if path.is_file()}
        if not contents:
            raise SourceError(
                "SignersUnreadable",
                f"{signers} holds no pubring.kbx or pubring.gpg",
                hint="Or name a file of exported public keys",
            )
        digest = hashlib.sha256(
            b"".join(name.encode() + b"\0" + content for name, content in contents.items())
        ).hexdigest()
        home = self._private(f"keys-{digest[:16]}")
        done = home / "imported"
        if not done.exists():
            for name, content in contents.items():
                if name in _RINGS:
                    (home / name).write_bytes(content)
                else:
                    _import(home, content, signers)
            done.touch()
        return home


def _key_files(signers: Path) -> list[Path]:
    return [signers / name for name in _RINGS] if signers.is_dir() else [signers]


def _refuse_endless(signers: Path) -> None:
    """Refuse devices, pipes and files that are too large: git and gpg would read them without end."""
    status = signers.stat()
    if stat.S_ISDIR(status.st_mode):
        return
    if not stat.S_ISREG(status.st_mode):
        raise SourceError(
            "SignersUnreadable",
            f"the list of allowed signers {signers} is not a regular file",
            hint="Change spec.verify.allowedSigners",
        )
    if status.st_size > _MAX_KEYRING:
        raise SourceError("SignersUnreadable", f"{signers} is larger than {_MAX_KEYRING} bytes")


def _content(path: Path) -> bytes:
    try:
        if path.stat().st_size > _MAX_KEYRING:
            raise SourceError("SignersUnreadable", f"{path} is larger than {_MAX_KEYRING} bytes")
        return path.read_bytes()
    except OSError as error:
        raise SourceError("SignersUnreadable", f"{path} cannot be read: {error.strerror}", transient=True) from error


def _import(home: Path, keys: bytes, origin: Path) -> None:
    base = ("gpg", "--homedir", str(home), "--batch", "--no-tty", "--quiet", "--no-autostart")
    try:
        # without its agent gpg reports an error for any import, so the keys are listed afterwards
        subprocess.run([*base, "--import"], input=keys, capture_output=True, timeout=30, check=False)
        listing = subprocess.run([*base, "--with-colons", "--list-keys"], capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SourceError("SignersUnreadable", "gpg could not import the public keys", hint="Install gnupg") from error
    if not re.search(rb"^pub:", listing.stdout, re.MULTILINE):
        raise SourceError("SignersUnreadable", f"{origin} holds no usable public keys")


def _refusal(sha: str, complaint: str) -> str:
    short = sha[:12]
    if not complaint:
        return f"commit {short} is not signed"
    if "[GNUPG:] NO_PUBKEY" in complaint or "No principal matched" in complaint or "[GNUPG:] ERRSIG" in complaint:
        return f"commit {short} is signed by a key that is not on the list"
    if "[GNUPG:] EXPKEYSIG" in complaint or "[GNUPG:] REVKEYSIG" in complaint or "[GNUPG:] EXPSIG" in complaint:
        return f"commit {short} is signed with an expired or revoked key"
    if "allowedSignersFile needs to be configured" in complaint:
        return f"commit {short} is signed with SSH where GnuPG is required"
    last = complaint.splitlines()[-1]
    return f"commit {short} has no valid signature: {bounded(last, 160)}"
