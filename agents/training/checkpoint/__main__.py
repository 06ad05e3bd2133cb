"""``python -m belay.agents.training.checkpoint WORK SETTINGS``: starts the writing process and exits once it
listens."""

from __future__ import annotations

import fcntl
import logging
import logging.handlers
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

from belay.agents.training.checkpoint import peers, settings, wire
from belay.agents.training.checkpoint.jobs import NICE
from belay.agents.training.checkpoint.writer import Writer

LOG_LIMIT = 10 << 20


def main(arguments: list[str]) -> int:
    """Start the writing process: 0 when one listens (a new or a running one), 1 with a message otherwise."""
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)  # noqa: T201
        return 2
    work = Path(arguments[0]).absolute()
    try:
        chosen = settings.from_text(arguments[1])
        if chosen.peer or chosen.peer_listen:
            # reported before the fork, while the starter still reads
            peers.secret(chosen.peer_secret)
            for text in filter(None, (chosen.peer, chosen.peer_listen)):
                peers.address(text)
        (work / "uds").mkdir(mode=0o700, parents=True, exist_ok=True)
        os.chmod(work / "uds", 0o700)
        return _start(work, chosen)
    except (OSError, ValueError) as error:
        print(f"the writing process cannot start in {work}: {error}", file=sys.stderr)  # noqa: T201
        return 1


def _start(work: Path, chosen: settings.WriterSettings) -> int:
    pidfile = os.open(work / wire.PIDFILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(pidfile, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0
    name, handle = wire.address(work)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    Path(name).unlink(missing_ok=True)
    listener.bind(name)
    os.close(handle)
    listener.listen(128)
    if os.fork():
        # the child holds the lock and the socket now
        os._exit(0)
    os.setsid()
    _behind_training()
    os.ftruncate(pidfile, 0)
    os.pwrite(pidfile, f"{os.getpid()}\n".encode(), 0)
    os.chdir("/")
    _quiet(work)
    writer = Writer(listener, work, chosen)
    signal.signal(signal.SIGTERM, lambda *_: setattr(writer, "stopping", True))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    writer.serve()
    return 0


def _behind_training() -> None:
    """Where the kernel shares cores among sessions first, a session of its own would get as much as all of training;
    the threads that write are niced themselves.
    """
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(f"{NICE}\n")


def _quiet(work: Path) -> None:
    """Log to a file of bounded size; close the ranks' standard streams."""
    handler = logging.handlers.RotatingFileHandler(work / "writer.log", maxBytes=LOG_LIMIT, backupCount=2)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    empty = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(empty, stream)
    os.close(empty)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
