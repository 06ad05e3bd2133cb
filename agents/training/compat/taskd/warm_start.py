"""A process that has imported PyTorch and forks a training process in milliseconds, for restarted ranks.

Run as `python -m belay.agents.training.compat.taskd.warm_start DESCRIPTOR`. It stays single-threaded, since a fork
copies only the calling thread. A request is one JSON packet {env, argv, cwd, stdout, stderr}; answers are {"t":
"ready"}, then {"t": "forked", "pid"} for each request in order, and {"t": "ended", "pid", "status"}. When the
connection is closed it ends; the launcher ends the forked processes.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import sys
from typing import Any, Final

MAX_REQUEST: Final = 1 << 20


def main(arguments: list[str]) -> int:
    """Serve until the connection is closed; 2 when PyTorch cannot be imported."""
    line = socket.socket(fileno=int(arguments[0]))
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, MAX_REQUEST)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    try:
        import torch

        # the first optimizer and backward pass would import these in every rank, which takes seconds
        import torch._dynamo
        import torch.distributed
        import torch.nn.parallel
        import torch.profiler._cupti_monitor  # noqa: F401

        # imported by scripts under TaskD and MindIO; gRPC starts threads with its first channel only
        import belay.agents.training.compat.mindio.controller_api
        import belay.agents.training.compat.mindio.framework_api
        import belay.agents.training.compat.taskd.bus_worker  # noqa: F401
    except ImportError as error:
        line.send(json.dumps({"t": "unable", "text": str(error)[:300]}).encode())
        return 2
    gc.collect()
    gc.freeze()
    wake, woken = os.pipe()
    for descriptor in (wake, woken):
        os.set_blocking(descriptor, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    line.send(b'{"t": "ready"}')
    poll = select.poll()
    poll.register(line, select.POLLIN)
    poll.register(wake, select.POLLIN)
    while True:
        events = dict(poll.poll())
        if wake in events:
            os.read(wake, 4096)
            _reap(line)
        if line.fileno() not in events:
            continue
        data = line.recv(MAX_REQUEST)
        if not data:
            return 0
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for descriptor in (wake, woken):
                os.close(descriptor)
            line.close()
            _become(json.loads(data))
        line.send(json.dumps({"t": "forked", "pid": pid}).encode())


def _reap(line: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        try:
            line.send(json.dumps({"t": "ended", "pid": pid, "status": os.waitstatus_to_exitcode(status)}).encode())
        except OSError:
            return


def _become(request: dict[str, Any]) -> None:
    """In the child: set up the state of a new interpreter, then run the script. Does not return."""
    code = 1
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for name, descriptor in (("stdout", 1), ("stderr", 2)):
            if request[name]:
                file = os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
                os.dup2(file, descriptor)
                os.close(file)
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["env"])
        code = _run(request["argv"])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run(argv: list[str]) -> int:
    """Run the script, or the module after -m, as ``__main__``; the exit code."""
    import atexit
    import runpy
    import traceback

    import torch

    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdigit() and int(threads):
        torch.set_num_threads(int(threads))
    status = 0
    try:
        if argv[0] == "-m":
            sys.argv = argv[1:]
            sys.path[0] = os.getcwd()
            runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = argv
            sys.path[0] = os.path.dirname(os.path.abspath(argv[0]))
            runpy.run_path(argv[0], run_name="__main__")
    except SystemExit as leave:
        status = leave.code if isinstance(leave.code, int) else int(leave.code is not None)
        if leave.code is not None and not isinstance(leave.code, int):
            sys.stderr.write(f"{leave.code}\n")
    except BaseException:
        traceback.print_exc()
        status = 1
    try:
        import threading

        # like the interpreter at its end: join non-daemon threads, then run exit handlers
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
        status = status or 1
    return status & 0xFF


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
