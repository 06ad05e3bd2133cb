"""Runs the git command with a closed environment, a deadline and a bound on its output.

No setting of a repository or user may run a program here: no system or global configuration, no hooks, no file system
monitor, no prompts, no protocol but file, ssh and https (gitprotocol-v2; git's documentation of
GIT_ALLOW_PROTOCOL).
"""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from belay.engine.errors import SourceError, bounded
from belay.engine.log import redact

PASSED_ON: Final = (
    "PATH", "HOME", "TMPDIR", "USER", "LOGNAME", "SSH_AUTH_SOCK", "GIT_SSH_COMMAND", "GIT_SSH",
    "GIT_ASKPASS", "SSH_ASKPASS",
    "GIT_SSL_CAINFO", "GIT_SSL_CAPATH", "SSL_CERT_FILE", "SSL_CERT_DIR",
    "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy",
)  # fmt: skip
_FIXED: Final = {
    "LC_ALL": "C",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_ALLOW_PROTOCOL": "file:ssh:https",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_PAGER": "cat",
}
_OPTIONS: Final = (
    "core.hooksPath=/dev/null", "core.fsmonitor=false", "core.attributesFile=/dev/null", "core.quotePath=false",
    "credential.helper=",
    "gc.auto=0", "maintenance.auto=false", "submodule.recurse=false", "fetch.recurseSubmodules=false",
    "log.showSignature=false",
    "gpg.openpgp.program=gpg", "gpg.program=gpg", "gpg.ssh.program=ssh-keygen", "gpg.x509.program=/bin/false",
)  # fmt: skip

_MAX_ERROR: Final = 16 << 10
_LOOK_SECONDS: Final = 0.5
_ending = threading.Event()
DEFAULT_OUTPUT: Final = 32 << 20


class GitOutput(msgspec.Struct, frozen=True):
    """Result of a git command: exit code, standard output, and standard error, bounded and without credentials."""

    code: int
    data: bytes
    complaint: str


class GitFailed(SourceError):
    """git ended with an unexpected exit code, too late or with too much output. Reasons: GitFailed, GitTimeout,
    GitOutputTooLarge, GitMissing."""


class Git:
    """git in one repository folder (or in none, to query a remote)."""

    def __init__(
        self,
        directory: Path,
        *,
        repository: bool = True,
        timeout: float = 30.0,
        file_limit: int = 0,
        lock: int | None = None,
    ) -> None:
        self.directory = directory
        self.lock = lock
        self._repository = repository
        self._timeout = timeout
        self._file_limit = file_limit

    def run(
        self,
        *args: str,
        data: bytes = b"",
        ok: Sequence[int] = (0,),
        timeout: float | None = None,
        limit: int = DEFAULT_OUTPUT,
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> GitOutput:
        """Run `git args` with `data` on its standard input. Raises GitFailed for an exit code outside `ok`, for output
        beyond `limit` bytes and when it takes longer than `timeout` seconds."""
        command = ["git", "--no-pager", *(part for option in (*_OPTIONS, *options) for part in ("-c", option)), *args]
        with self._start(command, environment or {}) as process:
            with contextlib.suppress(ProcessLookupError):
                self._limit_files(process.pid)
            stdout, stderr = _exchange(process, data, time.monotonic() + (timeout or self._timeout), limit, args[0])
            code = process.wait()
        complaint = bounded(redact(stderr.decode("utf-8", "replace")).strip(), 4000)
        if code not in ok:
            raise GitFailed("GitFailed", f"git {args[0]} failed ({code}): {bounded(complaint, 300)}", transient=True)
        return GitOutput(code, stdout, complaint)

    def _start(self, command: list[str], extra: Mapping[str, str]) -> subprocess.Popen[bytes]:
        environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        environment.setdefault("GIT_SSH_COMMAND", "ssh -o BatchMode=yes -o ConnectTimeout=10")
        environment |= {**_FIXED, **extra}
        if not self._repository:
            # a query to a remote must not depend on a repository that contains the working directory
            environment |= {"GIT_DIR": "/nonexistent", "GIT_CEILING_DIRECTORIES": "/"}
        try:
            return subprocess.Popen(
                command,
                cwd=self.directory,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                # a git process that outlives this one keeps the lock, so that no other process cleans up under it
                pass_fds=() if self.lock is None else (self.lock,),
            )
        except FileNotFoundError as error:
            if self.directory.is_dir():
                raise GitFailed(
                    "GitMissing", "the git command is not on PATH", hint="Install git 2.34 or newer"
                ) from error
            raise GitFailed("GitFailed", "the repository folder is gone", transient=True) from error
        except OSError as error:
            raise GitFailed("GitFailed", f"git could not be started: {error.strerror}", transient=True) from error

    def _limit_files(self, pid: int) -> None:
        if self._file_limit and hasattr(resource, "prlimit"):
            with contextlib.suppress(PermissionError):  # a hardened container may forbid it; deadlines still hold
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (self._file_limit, self._file_limit))


def stop_all() -> None:
    """Kill running git commands within half a second, and later ones at once: this process is ending."""
    _ending.set()


def _exchange(
    process: subprocess.Popen[bytes], data: bytes, deadline: float, limit: int, verb: str
) -> tuple[bytes, bytes]:
    assert process.stdin and process.stdout and process.stderr
    out, complaints, pending = bytearray(), bytearray(), memoryview(data)
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, out)
        selector.register(process.stderr, selectors.EVENT_READ, complaints)
        if data:
            os.set_blocking(process.stdin.fileno(), False)
            selector.register(process.stdin, selectors.EVENT_WRITE)
        else:
            process.stdin.close()
        while selector.get_map():
            remaining = deadline - time.monotonic()
            if remaining <= 0 or _ending.is_set():
                _kill(process)
                late = "was ended with this process" if _ending.is_set() else "did not finish in time"
                raise GitFailed("GitTimeout", f"git {verb} {late}", transient=True)
            for key, _ in selector.select(min(remaining, _LOOK_SECONDS)):
                if key.fileobj is process.stdin:
                    try:
                        pending = pending[os.write(key.fd, pending[: 1 << 16]) :]
                    except BrokenPipeError:  # git stopped listening; its exit code says why
                        pending = pending[:0]
                    if not pending:
                        selector.unregister(process.stdin)
                        process.stdin.close()
                    continue
                chunk = os.read(key.fd, 1 << 16)
                if not chunk:
                    selector.unregister(key.fileobj)
                elif key.data is out:
                    out += chunk
                else:
                    complaints += chunk[: _MAX_ERROR - len(complaints)]
            if len(out) > limit:
                _kill(process)
                raise GitFailed("GitOutputTooLarge", f"git {verb} wrote more than {limit} bytes")
    return bytes(out), bytes(complaints)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
