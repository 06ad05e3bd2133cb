"""Keys that sign commits in tests: real ssh-keygen and GnuPG."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.gitrepo import Repo, git


def ssh_key(folder: Path, name: str) -> Path:
    key = folder / name
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(key)], check=True)
    return key


def ssh_options(key: Path) -> tuple[str, ...]:
    return ("-c", "gpg.format=ssh", "-c", f"user.signingKey={key}", "-c", "commit.gpgSign=true")


def allow(path: Path, **keys: Path) -> Path:
    lines = [f'{name}@example.org namespaces="git" {key.with_suffix(".pub").read_text()}' for name, key in keys.items()]
    path.write_text("".join(lines))
    return path


class Keyring:
    """A GnuPG home with one signing key."""

    def __init__(self, home: Path, name: str, *, then: str = "", expires: str = "never") -> None:
        """``then`` (such as ``20200101T000000``) is the time at which gpg believes to be, for ever; empty: now."""
        self.home, self.name, self.then = home, name, then
        home.mkdir(mode=0o700)
        self._gpg("--quick-gen-key", "--passphrase", "", f"{name} <{name}@example.org>", "ed25519", "sign", expires)

    def _gpg(self, *args: str) -> bytes:
        frozen = [f"--faked-system-time={self.then}!"] if self.then else []
        command = [
            "gpg",
            *frozen,
            "--homedir",
            str(self.home),
            "--batch",
            "--no-tty",
            "--pinentry-mode",
            "loopback",
            *args,
        ]
        return subprocess.run(command, check=True, capture_output=True).stdout

    def public(self, path: Path) -> Path:
        path.write_bytes(self._gpg("--armor", "--export"))
        return path

    def commit(self, repo: Repo, files: dict[str, str | bytes], message: str = "signed", date: str = "") -> str:
        repo.write(files)
        git(repo.work, "add", "-A")
        options = ["-c", f"user.signingKey={self.name}@example.org", "-c", "gpg.format=openpgp"]
        if self.then:
            program = self.home / "gpg-then"
            program.write_text(f'#!/bin/sh\nexec gpg --faked-system-time={self.then}! "$@"\n')
            program.chmod(0o700)
            options += ["-c", f"gpg.program={program}"]
        dates = {"GIT_COMMITTER_DATE": date, "GIT_AUTHOR_DATE": date} if date else {}
        git(repo.work, *options, "commit", "-q", "-S", "-m", message, env={"GNUPGHOME": str(self.home)} | dates)
        repo.push()
        return repo.head()

    def close(self) -> None:
        subprocess.run(["gpgconf", "--homedir", str(self.home), "--kill", "all"], check=False, capture_output=True)
