"""One raw request to the board's controller, through ipmitool or FreeIPMI as a child process.

The child is bounded in time and output and killed beyond either. A password is never an argument: ipmitool reads it
from its file (``-f``), FreeIPMI from a configuration file that only this user may read.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from belay.agents.common.processes import kill_session
from belay.agents.drivers.base import DriverError

MAX_OUTPUT: Final = 65_536
MAX_PASSWORD: Final = 4_096
_HEX: Final = re.compile(rb"[0-9A-Fa-f]{2}")
_ADDRESS: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}|[0-9A-Fa-f:]{2,39}")

Tool = Literal["ipmitool", "freeipmi"]
Interface = Literal["open", "lanplus"]
_PROGRAMS: Final[dict[Tool, str]] = {"ipmitool": "ipmitool", "freeipmi": "ipmi-raw"}


class BmcError(DriverError):
    """The controller did not answer a request, or refused it."""


class BmcAccess(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach the board management controller.

    ``open`` is the kernel's device of this node (``/dev/ipmi<device>``); ``lanplus`` RMCP+ to ``host``, with
    ``user`` and the first line of ``password_file``. ``cipher`` is the cipher suite; ``workarounds`` are FreeIPMI's.
    """

    tool: Tool = "ipmitool"
    interface: Interface = "open"
    device: int = 0
    host: str = ""
    port: int = 623
    user: str = ""
    password_file: str = ""
    cipher: int = 17
    workarounds: str = ""
    seconds: float = 10.0

    def __post_init__(self) -> None:
        if self.tool not in _PROGRAMS:
            raise ValueError(f"IPMI tool {self.tool!r} is unknown; use ipmitool or freeipmi")
        if self.interface not in ("open", "lanplus"):
            raise ValueError(f"IPMI interface {self.interface!r} is unknown; use open or lanplus")
        if not 0 <= self.device <= 255:
            raise ValueError(f"IPMI device {self.device} is out of range; use 0 to 255")
        if not 0.1 <= self.seconds <= 60:
            raise ValueError(f"an IPMI request may take 0.1 to 60 s, not {self.seconds:g}")
        if self.interface == "lanplus":
            if not _ADDRESS.fullmatch(self.host):
                raise ValueError(f"interface lanplus needs the controller's host; {self.host[:64]!r} is none")
            if not 1 <= self.port <= 65535:
                raise ValueError(f"IPMI port {self.port} is out of range; use 1 to 65535")
            if not self.user or not self.password_file:
                raise ValueError("interface lanplus needs a user and a password file")


class Bmc:
    """Sends raw requests, one at a time."""

    def __init__(self, access: BmcAccess) -> None:
        self.access = access
        self._one = asyncio.Lock()

    async def raw(self, function: int, command: int, data: bytes) -> bytes:
        """Send a request; the answer begins with the completion code, which is 0. Raises BmcError."""
        program = shutil.which(_PROGRAMS[self.access.tool], path=_search_path())
        if program is None:
            raise BmcError(f"{_PROGRAMS[self.access.tool]} is not installed (Debian: {_package(self.access.tool)})")
        async with self._one:
            if self.access.tool == "ipmitool":
                return b"\0" + await self._ipmitool(program, [function, command, *data])
            return await self._freeipmi(program, function, command, data)

    async def _ipmitool(self, program: str, request: Sequence[int]) -> bytes:
        access = self.access
        arguments = [program, "-I", access.interface]
        if access.interface == "open":
            arguments += ["-d", str(access.device)]
        else:
            _password(Path(access.password_file))
            arguments += [
                "-H", access.host, "-p", str(access.port), "-U", access.user, "-f", access.password_file,
                "-C", str(access.cipher), "-N", "2", "-R", "2",
            ]  # fmt: skip
        output = await _run([*arguments, "raw", *(f"0x{byte:02x}" for byte in request)], access.seconds)
        return _bytes(output)

    async def _freeipmi(self, program: str, function: int, command: int, data: bytes) -> bytes:
        access = self.access
        request = ["0", *(f"{byte:02x}" for byte in (function, command, *data))]
        if access.interface == "open":
            output = await _run([program, "--driver-type=OPENIPMI", *request], access.seconds)
        else:
            with _credentials(access) as file:
                arguments = [
                    program, f"--config-file={file}", "--driver-type=LAN_2_0",
                    f"--hostname={access.host}:{access.port}",
                    f"--cipher-suite-id={access.cipher}", "--privilege-level=ADMIN",
                    f"--session-timeout={int(access.seconds * 1000)}", "--retransmission-timeout=1000",
                ]  # fmt: skip
                if access.workarounds:
                    arguments.append(f"--workaround-flags={access.workarounds}")
                output = await _run([*arguments, *request], access.seconds)
        answer = _bytes(output.partition(b"rcvd:")[2])
        # ipmi-raw repeats the command, then gives the completion code whatever it is
        if len(answer) < 2 or answer[0] != command:
            raise BmcError(f"ipmi-raw answered what is no answer to command {command:#x}")
        if answer[1]:
            raise BmcError(f"the controller refuses command {command:#x}: completion code {answer[1]:#x}")
        return answer[1:]


async def _run(arguments: Sequence[str], seconds: float) -> bytes:
    try:
        process = await asyncio.create_subprocess_exec(
            *arguments, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE, start_new_session=True, env={"PATH": _search_path(), "LC_ALL": "C"},
        )  # fmt: skip
    except OSError as error:
        raise BmcError(f"{arguments[0]} cannot be started: {error.strerror}") from error
    assert process.stdout is not None and process.stderr is not None
    name = Path(arguments[0]).name
    try:
        async with asyncio.timeout(seconds):
            output, errors = await asyncio.gather(_bounded(process.stdout, name), _bounded(process.stderr, name))
            status = await process.wait()
    except TimeoutError:
        raise BmcError(f"{name} did not finish in {seconds:g} s and was killed") from None
    finally:
        await kill_session(process)
    if status:
        said = " ".join(errors.decode("utf-8", "replace").split())
        raise BmcError(f"{name} failed with code {status}: {said[:200] or 'it said nothing'}")
    return output


async def _bounded(stream: asyncio.StreamReader, name: str) -> bytes:
    found = bytearray()
    while chunk := await stream.read(4096):
        found += chunk
        if len(found) > MAX_OUTPUT:
            raise BmcError(f"{name} wrote more than {MAX_OUTPUT} bytes and was killed")
    return bytes(found)


def _bytes(output: bytes) -> bytes:
    words = output.split()
    if any(not _HEX.fullmatch(word) for word in words):
        raise BmcError("the answer is not written in hexadecimal bytes")
    return bytes(int(word, 16) for word in words)


def _password(file: Path) -> str:
    """The first line of a file that no other user may read."""
    try:
        with open(file, "rb") as source:
            mode = os.fstat(source.fileno()).st_mode
            if not stat.S_ISREG(mode) or mode & 0o077:
                raise BmcError(f"{file} must be a file with mode 0600 or less; it is {stat.S_IMODE(mode):04o}")
            line = source.read(MAX_PASSWORD).split(b"\n", 1)[0].decode("utf-8", "strict").rstrip("\r")
    except (OSError, UnicodeDecodeError) as error:
        raise BmcError(f"{file} cannot be read: {getattr(error, 'strerror', None) or 'it is not text'}") from error
    if not line:
        raise BmcError(f"{file} is empty; its first line must be the password")
    return line


@contextlib.contextmanager
def _credentials(access: BmcAccess) -> Iterator[str]:
    # mode 0600 from creation, deleted after the request
    password = _password(Path(access.password_file))
    with tempfile.NamedTemporaryFile("w", prefix="belay-ipmi-", suffix=".conf") as file:
        file.write(f"username {_quoted(access.user)}\npassword {_quoted(password)}\n")
        file.flush()
        yield file.name


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _search_path() -> str:
    # ipmitool lives in sbin on some systems, where a service's PATH may not look
    return os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin:/usr/local/sbin"


def _package(tool: Tool) -> str:
    return "ipmitool" if tool == "ipmitool" else "freeipmi-tools"
