"""Checks that a commit is signed by a key on the operator's list, valid when the commit was made and when it came.

The list (an SSH allowed-signers file, or GnuPG public keys) lies outside the repository, so a push cannot extend it.
The author of a commit chooses its date. So a key must also have been valid when Belay first saw the commit, and a
commit dated back into the life of an expired key does not count.
Formats: ssh-keygen(1), ALLOWED SIGNERS; GnuPG doc/DETAILS for the status lines.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from belay.engine.errors import SourceError, bounded
from belay.engine.source.git import Git
from belay.engine.source.records import SourceConfig
from belay.engine.wire.committext import MAX_COMMIT, CommitText, parse

_SSH_GOOD = re.compile(r'^Good "git" signature for (\S.*) with \S+ key (\S+)', re.MULTILINE)
_GPG_GOOD = re.compile(r"^\[GNUPG:\] GOODSIG [0-9A-F]+ (.*)$", re.MULTILINE)
_GPG_VALID = re.compile(r"^\[GNUPG:\] VALIDSIG ([0-9A-F]+) ", re.MULTILINE)
_GPG_BAD = re.compile(r"^\[GNUPG:\] (BADSIG|ERRSIG|EXPSIG|EXPKEYSIG|REVKEYSIG|NODATA)\b", re.MULTILINE)
_PASSED_ON: Final = ("PATH", "HOME", "TMPDIR", "TZ")
_TOOL_SECONDS: Final = 30.0
_MAX_PRINCIPALS: Final = 16
_MAX_SAID: Final = 16 << 10
_RINGS: Final = ("pubring.kbx", "pubring.gpg")
_MAX_KEYRING: Final = 4 << 20
_MAX_SIGNER: Final = 200


class Signature(msgspec.Struct, frozen=True):
    """The result of a check: the signer, or why the signature is not accepted. A good one comes with the commit, taken
    apart and as it is."""

    signer: str | None
    refusal: str = ""
    text: CommitText = CommitText()
    raw: bytes = b""


class Verifier:
    """Checks commits against the configured list; `home` is a private folder for GnuPG."""

    def __init__(self, config: SourceConfig, home: Path, clock: Callable[[], float] = time.time) -> None:
        self._mode = config.verify_mode
        self._signers = config.allowed_signers
        self._home = home
        self._clock = clock
        self.seen: Mapping[str, float] = {}
        """When commits that were accepted came, by commit; in Unix seconds. Others came now."""

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
        """Check one commit. Raises SourceError (reason SignersUnreadable) when the list itself cannot be used, and
        GitFailed when git cannot read the commit."""
        raw = git.run("cat-file", "commit", sha, limit=MAX_COMMIT + (64 << 10)).data
        return self.check_text(sha, raw)

    def check_text(self, sha: str, raw: bytes) -> Signature:
        """Check the content of a commit object. Raises SourceError (reason SignersUnreadable)."""
        if self._signers is None or not self._signers.exists():
            raise SourceError(
                "SignersUnreadable",
                f"the list of allowed signers {self._signers} does not exist",
                transient=True,
                hint="Mount it, or change spec.verify.allowedSigners",
            )
        _refuse_endless(self._signers)
        short, text = sha[:12], parse(raw, len(sha))
        if text.refusal:
            return Signature(None, f"commit {short} {text.refusal}")
        came = self.seen.get(sha, self._clock())
        if self._mode == "ssh":
            if not text.is_ssh:
                return Signature(None, f"commit {short} is signed with {text.kind} where SSH is required")
            found = self._check_ssh(text, self._signers, came)
        else:
            if not text.is_pgp:
                return Signature(None, f"commit {short} is signed with {text.kind} where GnuPG is required")
            found = self._check_gpg(text, self._keyring(self._signers), came)
        if found.signer is None:
            return Signature(None, f"commit {short} {found.refusal}")
        return msgspec.structs.replace(found, text=text, raw=raw)

    def _check_ssh(self, text: CommitText, signers: Path, came: float) -> Signature:
        with tempfile.NamedTemporaryFile(prefix="sig-", dir=self._private("empty")) as file:
            file.write(text.signature)
            file.flush()
            signed = ("-s", file.name, "-f", str(signers.resolve()))
            found = Signature(None)
            # as git judges it, by the committer's date, and by the time at which the commit came
            for moment in (text.committed, came):
                when = f"-Overify-time={time.strftime('%Y%m%d%H%M%S', time.localtime(moment))}"
                code, names, said = _run(("ssh-keygen", "-Y", "find-principals", *signed, when))
                if code:
                    return Signature(None, _ssh_refusal(said, found.signer is not None))
                principals = [line for line in names.splitlines() if line][:_MAX_PRINCIPALS]
                found = Signature(None)
                for principal in principals:
                    verify = ("ssh-keygen", "-Y", "verify", "-n", "git", "-I", principal, *signed, when)
                    code, _, said = _run(verify, text.payload)
                    good = _SSH_GOOD.search(said)
                    if code == 0 and good:
                        found = Signature(bounded(f"{good[1]} ({good[2]})", _MAX_SIGNER))
                        break
                if found.signer is None:
                    return Signature(None, _ssh_refusal(said, False))
            return found

    def _check_gpg(self, text: CommitText, home: Path, came: float) -> Signature:
        with tempfile.NamedTemporaryFile(prefix="sig-", dir=self._private("empty")) as file:
            file.write(text.signature)
            file.flush()
            # an accepted commit is judged as of then: its key may have expired since. `!` stops the clock there
            then = (f"--faked-system-time={int(came)}!",) if self._clock() - came > 1 else ()
            code, _, said = _run(
                ("gpg", "--homedir", str(home), "--batch", "--no-tty", "--no-autostart", "--status-fd=1", *then,
                 "--verify", file.name, "-"),
                text.payload,
            )  # fmt: skip
        good, valid = _GPG_GOOD.findall(said), _GPG_VALID.findall(said)
        if code == 0 and len(good) == len(valid) == 1 and not _GPG_BAD.search(said):
            return Signature(bounded(f"{good[0]} ({valid[0]})", _MAX_SIGNER))
        return Signature(None, _gpg_refusal(said))

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


def _run(command: tuple[str, ...], data: bytes = b"") -> tuple[int, str, str]:
    """Run ssh-keygen or gpg: the exit code, its output, and output and complaints together. Raises SourceError
    SignersUnreadable."""
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ} | {"LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, input=data, capture_output=True, env=environment, timeout=_TOOL_SECONDS, check=False
        )
    except FileNotFoundError as error:
        raise SourceError(
            "SignersUnreadable", f"{command[0]} is not on PATH", hint="Install openssh-client and gnupg"
        ) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SourceError(
            "SignersUnreadable", f"{command[0]} did not answer within {_TOOL_SECONDS:.0f} s", transient=True
        ) from error
    output, complaints = (stream[:_MAX_SAID].decode("utf-8", "replace") for stream in (done.stdout, done.stderr))
    return done.returncode, output, f"{output}\n{complaints}".strip()


def _ssh_refusal(said: str, was_good: bool) -> str:
    if was_good:
        return "came after its key's life, whatever its own date says"
    if "expired" in said or "not yet valid" in said:
        return "is signed with a key outside its valid-after and valid-before"
    if not said or "No principal matched" in said:
        return "is signed by a key that is not on the list"
    return f"has no valid signature: {bounded(said.splitlines()[-1], 160)}"


def _gpg_refusal(said: str) -> str:
    if "[GNUPG:] NO_PUBKEY" in said or "[GNUPG:] ERRSIG" in said:
        return "is signed by a key that is not on the list"
    if "[GNUPG:] EXPKEYSIG" in said or "[GNUPG:] REVKEYSIG" in said or "[GNUPG:] EXPSIG" in said:
        return "is signed with an expired or revoked key"
    last = said.splitlines()[-1] if said else "gpg said nothing"
    return f"has no valid signature: {bounded(last, 160)}"
