"""The warm process: it has imported PyTorch and compiled the script, and forks a rank in a few milliseconds.

It stays single-threaded (a fork copies only the calling thread), and its objects are frozen for the garbage collector,
so that pages stay shared. Requests are JSON packets on a Unix socket, with the descriptors of the rank's connection and
page. When its node agent is killed it lives on, and serves the agent that follows.
"""

from __future__ import annotations

import gc
import json
import os
import selectors
import signal
import socket
import sys
import traceback
from dataclasses import dataclass
from types import CodeType
from typing import Any

from belay.agents.training.train.home import Home


def main(arguments: list[str]) -> int:
    """Run ``warm DESCRIPTOR SOCKET SUPERVISOR SCRIPT [ARGUMENT…]``, the second and third for `Home`: 0 when it is no
    longer needed, 2 when PyTorch or the script cannot be loaded."""
    sock = socket.socket(fileno=int(arguments[0]))
    home = Home(arguments[1], int(arguments[2]))
    path, rest = arguments[3], arguments[4:]
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    try:
        code = _load(path)
    except Exception as error:
        text = f"{path} cannot be compiled: {error}" if isinstance(error, SyntaxError) else f"{error}"
        if not isinstance(error, (SyntaxError, OSError, ImportError, ValueError)):
            text = traceback.format_exc(limit=3)
        _send(sock, {"t": "unable", "text": text[:1000]})
        return 2
    gc.collect()
    gc.freeze()
    _send(sock, _hello())
    return _Warm(sock, home, _Script(code, path, rest)).serve()


def _load(path: str) -> CodeType:
    with open(path, "rb") as file:
        source = file.read()
    code = compile(source, path, "exec")
    try:
        import torch

        # the first optimizer and backward pass would import these in every rank, which takes seconds
        import torch._dynamo
        import torch.distributed
        import torch.nn.parallel
        import torch.profiler._cupti_monitor
    except ImportError as error:
        raise ImportError(
            f"{sys.executable} cannot import torch ({error}): give --python of your environment"
        ) from None
    # imported once, here, for all ranks
    from belay.agents.training.train.worker import main, protect  # noqa: F401

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    return code


@dataclass(frozen=True)
class _Script:
    """What a rank runs."""

    code: CodeType
    path: str
    arguments: list[str]


class _Warm:
    """Serves the requests of one agent after another."""

    def __init__(self, sock: socket.socket, home: Home, script: _Script) -> None:
        self._sock, self._home, self._script = sock, home, script
        self._wake, self._woken = os.pipe()
        for descriptor in (self._wake, self._woken):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._selector.register(sock, selectors.EVENT_READ)

    def serve(self) -> int:
        """Fork what is asked for until there is no agent any more; the exit code."""
        while True:
            ready = {key.fd for key, _ in self._selector.select()}
            try:
                os.read(self._wake, 4096)
            except BlockingIOError:
                pass
            self._reap()

            # recv_fds() of Python 3.11 takes flags and forgets them: it would wait, and ended ranks with it
            if self._sock.fileno() not in ready:
                continue
            try:
                data, descriptors, _, _ = socket.recv_fds(self._sock, 1 << 16, 4)
            except OSError:
                data, descriptors = b"", []
            if not data:
                if not self._come_back():
                    return 0
                continue

            request = json.loads(data)
            if request.get("end"):
                return 0
            if request.get("standby"):
                self._fork_standby(descriptors)
            else:
                self._fork_rank(request["slot"], descriptors)

    def _come_back(self) -> bool:
        """Whether another agent takes this process, over a connection of its own that keeps packets apart."""
        self._selector.unregister(self._sock)
        self._sock.close()
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            taken = self._home.come_back(_hello, theirs.fileno())
        if taken is None:
            return False
        taken.close()
        self._selector.register(self._sock, selectors.EVENT_READ)
        # ranks may have ended meanwhile
        self._reap()
        return True

    def _fork_rank(self, slot: int, descriptors: list[int]) -> None:
        pid = os.fork()
        if pid == 0:
            self._forget()
            for number in (signal.SIGCHLD, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            os.setpgid(0, 0)
            from belay.agents.training.train.worker import main

            line, page = socket.socket(fileno=descriptors[0]), descriptors[1]
            main.run(line, page, self._home, self._script.code, self._script.path, self._script.arguments)
            os._exit(70)

        for descriptor in descriptors:
            os.close(descriptor)
        watch = os.pidfd_open(pid)
        _send(self._sock, {"t": "forked", "slot": slot, "pid": pid}, [watch])
        os.close(watch)

    def _fork_standby(self, descriptors: list[int]) -> None:
        if os.fork() == 0:
            self._forget()
            sock = socket.socket(fileno=descriptors[0])
            _send(sock, _hello())
            os._exit(_Warm(sock, self._home, self._script).serve())
        for descriptor in descriptors:
            os.close(descriptor)

    def _forget(self) -> None:
        """Close what a fork has of this process."""
        signal.set_wakeup_fd(-1)
        self._selector.close()
        self._sock.close()
        os.close(self._wake)
        os.close(self._woken)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            _send(self._sock, {"t": "ended", "pid": pid, "status": status})


def _hello() -> dict[str, Any]:
    return {"t": "warm", "pid": os.getpid()}


def _send(sock: socket.socket, message: dict[str, Any], descriptors: list[int] | None = None) -> None:
    try:
        socket.send_fds(sock, [json.dumps(message).encode()], descriptors or [])
    except OSError:
        # the agent is gone: the next read notices it
        pass


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
