"""Messages between ranks and the writing process: one JSON object per packet of a Unix socket, sometimes with a
handle."""

from __future__ import annotations

import array
import json
import os
import socket
from pathlib import Path
from typing import Any

LIMIT = 128 << 10
"""Maximum size of a message in bytes: about sixty paths of maximum length."""
SOCKET = "mindio_memfs_123.s"
PIDFILE = ".ockiod.pid"
VERSION = 1


def work_folder() -> Path:
    """The folder of the socket of this user's writing process: ``$MINDIO_ACP_LOG_PATH``, or ``~/.mindio/server``."""
    chosen = os.environ.get("MINDIO_ACP_LOG_PATH")
    return Path(chosen) if chosen else Path.home() / ".mindio" / "server"


def send(end: socket.socket, message: dict[str, Any], handle: int | None = None) -> None:
    """Send one message. Raises ``ValueError`` when it is too long, ``OSError`` when the other side has closed."""
    data = json.dumps(message, separators=(",", ":")).encode()
    if len(data) > LIMIT:
        raise ValueError(f"a message of {len(data)} bytes is beyond the limit of {LIMIT}: name fewer files at once")
    if handle is None:
        end.send(data)
    else:
        end.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [handle]))])


def receive(end: socket.socket) -> tuple[dict[str, Any], int | None]:
    """Receive a message and its handle. Raises ``EOFError`` at the end, ``ValueError`` for an unreadable one."""
    data, handles, _, _ = socket.recv_fds(end, LIMIT, 1)
    if not data:
        for handle in handles:
            os.close(handle)
        raise EOFError("the other side has closed")
    try:
        message = json.loads(data)
        if not isinstance(message, dict):
            raise ValueError("not an object")
    except (ValueError, RecursionError) as error:
        for handle in handles:
            os.close(handle)
        raise ValueError(f"not a message: {str(error)[:100]}") from error
    return message, handles[0] if handles else None


def address(folder: Path) -> tuple[str, int]:
    """A name of the socket in ``folder/uds`` that is short for any folder, and the handle that keeps it valid."""
    handle = os.open(folder / "uds", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    return f"/proc/self/fd/{handle}/{SOCKET}", handle


def connect(folder: Path, wait_s: float) -> socket.socket:
    """A connection to the writing process of ``folder``. Raises ``OSError``."""
    name, handle = address(folder)
    end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        end.settimeout(wait_s)
        end.connect(name)
        return end
    except BaseException:
        end.close()
        raise
    finally:
        os.close(handle)
