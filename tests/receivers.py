"""Receivers of notifications on loopback: one that takes JSON by HTTP, and a mail server. Both note what they took."""

from __future__ import annotations

import base64
import socketserver
import ssl
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qs, urlsplit

import msgspec

TOOK = b'{"errcode":0,"code":0,"errmsg":"ok"}'


class TakenRequest(NamedTuple):
    """One POST: when, where, and what."""

    at: float
    path: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Answer(NamedTuple):
    """What a receiver answers."""

    status: int = 200
    body: bytes = TOOK
    headers: Mapping[str, str] = {}


class _Threaded:
    """A server in a thread, as long as its block."""

    server: Any

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join(10)

    @property
    def port(self) -> int:
        return int(self.server.server_address[1])

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


class HttpReceiver(_Threaded):
    """Takes POSTs. ``answers`` are given one after the other, then :data:`TOOK`."""

    def __init__(self, clock: Callable[[], float] = lambda: 0.0) -> None:
        self.taken: list[TakenRequest] = []
        self.answers: list[Answer] = []
        self.connections = 0
        taken, answers, owner = self.taken, self.answers, self

        class Handler(BaseHTTPRequestHandler):
            def setup(self) -> None:
                owner.connections += 1
                super().setup()

            def do_POST(self) -> None:
                parts = urlsplit(self.path)
                body = self.rfile.read(int(self.headers["Content-Length"]))
                taken.append(TakenRequest(clock(), parts.path, parse_qs(parts.query), dict(self.headers), body))
                answer = answers.pop(0) if answers else Answer()
                self.send_response(answer.status)
                for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer.body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)


class TakenMail(NamedTuple):
    """One e-mail, and how it came."""

    sender: str
    to: list[str]
    text: bytes
    encrypted: bool
    user: str


class MailReceiver(_Threaded):
    """A mail server. ``tls`` is what STARTTLS (or, with ``wrapped``, the connection) begins; ``password`` is asked for
    where it is set; ``refusals`` are answers by command, such as ``{"RCPT": "450 4.2.1 full"}``.
    """

    def __init__(self, tls: ssl.SSLContext | None = None, *, wrapped: bool = False, password: str = "") -> None:
        self.taken: list[TakenMail] = []
        self.refusals: dict[str, str] = {}
        self.said: list[str] = []
        owner = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                try:
                    if wrapped:
                        self.encrypt()
                    MailTalk(owner, self, tls, password, encrypted=wrapped).run()
                except (OSError, ssl.SSLError):
                    pass

            def encrypt(self) -> None:
                assert tls is not None
                self.connection = self.request = tls.wrap_socket(self.request, server_side=True)
                self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", buffering=0)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads, allow_reuse_address = True, True

        self.server = Server(("127.0.0.1", 0), Handler)


class MailTalk:
    """One connection of a :class:`MailReceiver`."""

    def __init__(
        self, owner: MailReceiver, handler: Any, tls: ssl.SSLContext | None, password: str, *, encrypted: bool
    ) -> None:
        self._owner, self._handler, self._tls, self._password = owner, handler, tls, password
        self._encrypted = encrypted
        self._user, self._sender, self._to = "", "", list[str]()

    def run(self) -> None:
        self._say("220 mail.example.org ready")
        while line := self._handler.rfile.readline().decode().strip():
            word = line.split(" ")[0].upper()
            self._owner.said.append(line)
            if word == "QUIT":
                self._say("221 bye")
                return
            if word in self._owner.refusals:
                self._say(self._owner.refusals[word])
                continue
            getattr(self, f"_{word.lower()}")(line)

    def _say(self, *lines: str) -> None:
        self._handler.wfile.write("".join(f"{line}\r\n" for line in lines).encode())

    def _ehlo(self, _: str) -> None:
        offered = ["STARTTLS"] if self._tls is not None and not self._encrypted else []
        offered += ["AUTH PLAIN"] if self._password else []
        lines = ["mail.example.org", *offered]
        self._say(*(f"250-{line}" for line in lines[:-1]), f"250 {lines[-1]}")

    def _starttls(self, _: str) -> None:
        self._say("220 go ahead")
        self._handler.encrypt()
        self._encrypted = True

    def _auth(self, line: str) -> None:
        _, user, password = base64.b64decode(line.split(" ")[2]).decode().split("\0")
        if password != self._password:
            self._say("535 5.7.8 no such password")
            return
        self._user = user
        self._say("235 welcome")

    def _mail(self, line: str) -> None:
        self._sender = line.partition("<")[2].partition(">")[0]
        self._say("250 ok")

    def _rcpt(self, line: str) -> None:
        self._to.append(line.partition("<")[2].partition(">")[0])
        self._say("250 ok")

    def _rset(self, _: str) -> None:
        self._to = []
        self._say("250 ok")

    def _data(self, _: str) -> None:
        self._say("354 go on")
        lines = []
        while (line := self._handler.rfile.readline()) not in (b".\r\n", b""):
            lines.append(line)
        self._owner.taken.append(
            TakenMail(self._sender, self._to, b"".join(lines), self._encrypted, self._user)
        )  # fmt: skip
        self._say("250 taken")
