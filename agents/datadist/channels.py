"""The two ways over which the bytes of a link travel: as they are, or in TLS.

With a certificate both ends prove who they are: each must hold one that the same authority signed. Names in it are not
compared, since pods change their addresses; the authority therefore signs for the links of one cluster only.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import socket
import ssl
from collections.abc import Mapping
from typing import Final, Protocol

#: Options of ``init``, and the variables that stand in for them, so that scripts need no change.
OPTIONS: Final = {"cert": "belay.TlsCert", "key": "belay.TlsKey", "ca": "belay.TlsCa"}
VARIABLES: Final = {"cert": "BELAY_LINKS_CERT", "key": "BELAY_LINKS_KEY", "ca": "BELAY_LINKS_CA"}
_PIECE: Final = 256 * 1024  # bytes that are encrypted or read at a time


@dataclasses.dataclass(frozen=True)
class TlsFiles:
    """Files in PEM: this end's certificate and key, and the authority that signed those of both ends.

    They are read again for each link, so that renewed certificates need no restart.
    """

    cert: str
    key: str
    ca: str

    @classmethod
    def read(cls, options: Mapping[str, str], environment: Mapping[str, str]) -> TlsFiles | None:
        """The files that are named in the options, else in the environment; None when neither names any.

        Raises ValueError that says which name is missing, or which file cannot be used and why.
        """
        found = {part: options.get(OPTIONS[part]) or environment.get(VARIABLES[part], "") for part in OPTIONS}
        if not any(found.values()):
            return None

        for part, path in found.items():
            if not path:
                raise ValueError(f"links with TLS need {OPTIONS[part]} ({VARIABLES[part]}) too: name a file in PEM")
        files = cls(**found)
        try:
            files.context(server=True)
        except OSError as error:
            names = ", ".join(
                f"{OPTIONS[part] if options.get(OPTIONS[part]) else VARIABLES[part]} {path}"
                for part, path in found.items()
            )
            raise ValueError(f"links with TLS: {error} ({names})") from error
        return files

    def context(self, *, server: bool) -> ssl.SSLContext:
        """What one handshake needs. Raises OSError (ssl.SSLError is one) for files that cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(self.ca)
        # an encrypted key would make OpenSSL ask on the terminal
        context.load_cert_chain(self.cert, self.key, password=_no_password)
        return context


class Channel(Protocol):
    """One connection, read by one task and written by one at a time."""

    async def receive_into(self, view: memoryview) -> int:
        """Fill a part of ``view``; 0 when the peer ended the connection. Raises OSError."""

    async def send(self, data: bytes | bytearray | memoryview) -> None:
        """Send everything. Raises OSError."""

    def tcp_info(self, size: int) -> bytes:
        """The kernel's ``struct tcp_info``. Raises OSError."""

    def close(self) -> None:
        """Close now; may be called again."""


class PlainChannel:
    """Bytes as they are: blocks travel without a copy."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    async def receive_into(self, view: memoryview) -> int:
        """Fill a part of ``view``."""
        return await asyncio.get_running_loop().sock_recv_into(self._sock, view)

    async def send(self, data: bytes | bytearray | memoryview) -> None:
        """Send everything."""
        await asyncio.get_running_loop().sock_sendall(self._sock, data)

    def tcp_info(self, size: int) -> bytes:
        """The kernel's ``struct tcp_info``."""
        return self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size)

    def close(self) -> None:
        """Close now."""
        self._sock.close()


class TlsChannel:
    """The same in TLS 1.3. ``shake_hands`` comes first."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, *, server: bool) -> None:
        self._sock = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server)
        self._flushing = asyncio.Lock()

    async def shake_hands(self) -> None:
        """Prove both ends to each other. Raises OSError."""
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await self._flush()
                if not await self._feed():
                    raise ConnectionResetError(
                        "the peer ended the TLS handshake: does it use TLS, with a certificate of the same authority?"
                    ) from None
        await self._flush()

    async def receive_into(self, view: memoryview) -> int:
        """Fill a part of ``view``."""
        while True:
            try:
                return self._tls.read(len(view), view)  # type: ignore[return-value]
            except ssl.SSLWantReadError:
                await self._flush()
                await self._feed()
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return 0

    async def send(self, data: bytes | bytearray | memoryview) -> None:
        """Send everything."""
        view = memoryview(data).cast("B")
        for start in range(0, len(view), _PIECE):
            self._tls.write(view[start : start + _PIECE])
            await self._flush()

    def tcp_info(self, size: int) -> bytes:
        """The kernel's ``struct tcp_info``."""
        return self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size)

    def close(self) -> None:
        """Close now."""
        self._sock.close()

    async def _flush(self) -> None:
        """Send what TLS has made, in the order in which it was made."""
        async with self._flushing:
            while data := self._outgoing.read(_PIECE):
                await asyncio.get_running_loop().sock_sendall(self._sock, data)

    async def _feed(self) -> bool:
        """Give TLS what has arrived; False at the end of the connection."""
        data = await asyncio.get_running_loop().sock_recv(self._sock, _PIECE)
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
        return bool(data)


async def channel(sock: socket.socket, files: TlsFiles | None, *, server: bool) -> Channel:
    """The channel over a connected socket, which belongs to it from now on. Raises OSError."""
    if files is None:
        return PlainChannel(sock)
    secured = TlsChannel(sock, files.context(server=server), server=server)
    await secured.shake_hands()
    return secured


def environment() -> Mapping[str, str]:
    """The variables of this process."""
    return os.environ


def _no_password() -> str:
    raise OSError("the key is encrypted, and a process has no terminal to ask for its password: name one that is not")
