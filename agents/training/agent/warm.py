"""The warm process: it has imported PyTorch and compiled the script, and forks a rank in a few milliseconds.

It stays single-threaded (a fork copies only the calling thread), and its objects are frozen for the garbage collector,
so that pages stay shared. Requests are JSON packets on a Unix socket, with the descriptors of the rank's connection and
page.
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
from types import CodeType


def main(arguments: list[str]) -> int:
    """Run ``warm DESCRIPTOR SCRIPT [ARGUMENT…]``: 0 when the node agent closes the connection, 2 when PyTorch or the
    script cannot be loaded."""
    sock = socket.socket(fileno=int(arguments[0]))
    path, rest = arguments[1], arguments[2:]
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    try:
        code = _load(path)
    except Exception as error:
        text = f"{path} cannot be compiled: {error}" if isinstance(error, SyntaxError) else f"{error}"
        if not isinstance(error, (SyntaxError, OSError, ImportError, ValueError)):
            text = traceback.format_exc(limit=3)
        sock.send(json.dumps({"t": "unable", "text": text[:1000]}).encode())
        return 2
    threads = len(os.listdir("/proc/self/task"))
    gc.collect()
    gc.freeze()
    sock.send(json.dumps({"t": "warm", "pid": os.getpid(), "threads": threads}).encode())
    return _serve(sock, code, path, rest)


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
    from agents.training.worker import main, protect  # noqa: F401

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    return code


def _serve(sock: socket.socket, code: CodeType, path: str, arguments: list[str]) -> int:
    wake, woken = os.pipe()
    for descriptor in (wake, woken):
        os.set_blocking(descriptor, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    selector = selectors.DefaultSelector()
    selector.register(sock, selectors.EVENT_READ)
    selector.register(wake, selectors.EVENT_READ)
    while True:
        selector.select()
        try:
            os.read(wake, 4096)
        except BlockingIOError:
            pass
        _reap(sock)
        try:
            data, descriptors, _, _ = socket.recv_fds(sock, 1 << 16, 4, socket.MSG_DONTWAIT)
        except BlockingIOError:
            continue
        except OSError:
            return 0
        if not data:
            return 0
        request = json.loads(data)
        pid = os.fork()
        if pid == 0 and request.get("standby"):
            signal.set_wakeup_fd(-1)
            selector.close()
            sock.close()
            for descriptor in (wake, woken):
                os.close(descriptor)
            sock = socket.socket(fileno=descriptors[0])
            sock.send(json.dumps({"t": "warm", "pid": os.getpid(), "threads": 1}).encode())
            return _serve(sock, code, path, arguments)
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            selector.close()
            sock.close()
            os.close(wake)
            os.close(woken)
            os.setpgid(0, 0)
            from agents.training.worker import main

            main.run(socket.socket(fileno=descriptors[0]), descriptors[1], code, path, arguments)
            os._exit(70)
        for descriptor in descriptors:
            os.close(descriptor)
        if request.get("standby"):
            continue
        watch = os.pidfd_open(pid)
        socket.send_fds(sock, [json.dumps({"t": "forked", "slot": request["slot"], "pid": pid}).encode()], [watch])
        os.close(watch)


def _reap(sock: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        try:
            sock.send(json.dumps({"t": "ended", "pid": pid, "status": status}).encode())
        except OSError:
            return


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
