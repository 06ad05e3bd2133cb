"""Runs plans, one after the other: a process that has imported torch forks the controller's host and every rank, starts
lost ranks again when ClusterD (scripted, in the controller's host) says so, and ends when all are gone.

    python -m tests.training.megatron_like.launcher PLAN.json…

Prints one JSON object a plan: exit codes by rank, ranks that had not ended in time, when processes ended.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import sys
import time
import traceback
from pathlib import Path

import torch

from .clusterd import ClusterD
from .training import Trainer

LIMIT = 90.0


def child(work) -> int:
    """Fork; ``work()`` in the child, whose code is 0, or 1 when it raised."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    except SystemExit as error:
        code = int(error.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        if code == 0:
            # what a normal end of the interpreter does for threads and exit hooks
            import atexit

            atexit._run_exitfuncs()
        os._exit(code)


def main() -> None:
    """Run the plans."""
    torch.set_num_threads(1)
    os.environ.pop("MINDX_TASK_ID", None)
    gc.freeze()
    for path in sys.argv[1:]:
        print(json.dumps(run(json.loads(Path(path).read_text()))), flush=True)  # noqa: T201


def run(plan: dict) -> dict:
    """One plan."""
    events = plan["events"]
    Path(events).touch()
    read, write = os.pipe()
    port_read, port_write = os.pipe()
    host = child(lambda: ClusterD(plan, events, write, port_write).serve())
    store_port = int(os.read(port_read, 16))

    def start(rank: int) -> int:
        return child(lambda: Trainer(plan, rank, store_port, events).run())

    pids = {start(rank): rank for rank in range(plan["world"])}
    codes: dict[str, list[int]] = {}
    wanted: set[int] = set()  # ranks to start again when the process that they have is lost
    started, buffer, ends = time.monotonic(), b"", []
    while pids and time.monotonic() - started < plan.get("limit", LIMIT):
        ready, _, _ = select.select([read], [], [], 0.01)
        if ready:
            buffer += os.read(read, 4096)
            *lines, buffer = buffer.split(b"\n")
            for line in lines:
                what, rank = line.decode().split()
                if what == "ensure":
                    # its process may not be collected yet; one that has trained to the end is not started again
                    if int(rank) in pids.values() or codes.get(rank, [-9])[-1] != 0:
                        wanted.add(int(rank))
                elif what == "start":
                    wanted.discard(int(rank))
                    if int(rank) in pids.values() or codes.get(rank, [-9])[-1] != 0:
                        pids[start(int(rank))] = int(rank)
                elif what == "kill":
                    for pid in [pid for pid, own in pids.items() if own == int(rank)]:
                        os.kill(pid, signal.SIGKILL)
        for pid in list(pids):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                code = os.waitstatus_to_exitcode(status)
                rank = pids.pop(pid)
                codes.setdefault(str(rank), []).append(code)
                if code == 0:
                    wanted.discard(rank)  # it has trained to the end
                ends.append((time.monotonic(), code))
        for rank in wanted - set(pids.values()):
            wanted.discard(rank)
            pids[start(rank)] = rank
    left = sorted(pids.values())
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    os.kill(host, signal.SIGKILL)
    os.waitpid(host, 0)
    for end in (read, write, port_read, port_write):
        os.close(end)
    return {"codes": codes, "left": left, "ends": ends}


if __name__ == "__main__":
    main()
