"""Calls without an event loop: bodies, proxies, TLS by another name, and the reads of a command over them."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from belay.engine.errors import BelayError
from belay.engine.http_calls import AnswerTooLarge, HttpAnswer, HttpConnection
from belay.engine.kube import CONFIGMAP, Lister, NotFound, ask_once, one_shot
from tests.certificates import authority, certificate

Answers = Callable[[BaseHTTPRequestHandler], tuple[int, dict[str, str], bytes]]


@contextlib.contextmanager
def serving(answers: Answers, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """The address of a server whose connections stay; ``answers`` may write to the connection itself (status 0)."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, headers, body = answers(self)
            if not status:
                return
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_CONNECT = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"{'https' if tls else 'http'}://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def asked(connection: HttpConnection, path: str = "/", most: int = 1 << 20, within: float = 5.0) -> HttpAnswer:
    return connection.call("GET", path, {}, connect_within=5.0, within=within, most_bytes=most)


def piped(one: socket.socket, other: socket.socket) -> None:
    """Hand on what comes, until it ends."""
    with contextlib.suppress(OSError):
        while data := one.recv(65536):
            other.sendall(data)
    with contextlib.suppress(OSError):
        other.shutdown(socket.SHUT_WR)


def tunnel(seen: list[tuple[str, str]]) -> Answers:
    """A proxy's answers: it connects whom it is asked for, and hands a plain request on."""

    def answers(request: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
        seen.append((f"{request.command} {request.path}", request.headers.get("Proxy-Authorization", "")))
        if request.command != "CONNECT":
            return 200, {}, b"by the proxy"
        host, _, port = request.path.rpartition(":")
        with socket.create_connection((host, int(port)), 5) as far:
            request.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=piped, args=(far, request.connection), daemon=True)
            back.start()
            piped(request.connection, far)
            back.join(5)
        request.close_connection = True
        return 0, {}, b""

    return answers


def contexts(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """TLS of a server named localhost and 127.0.0.1, and of callers who trust its authority."""
    folder.mkdir()
    authority(folder, "ca")
    own, key, trusted = certificate(folder, "server", "ca")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(own, key)
    return server, ssl.create_default_context(cafile=str(trusted))


def test_one_connection_carries_calls_with_and_without_a_body_whole_or_in_chunks() -> None:
    lines: set[int] = set()

    def answers(request: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
        lines.add(request.client_address[1])
        if request.path == "/chunks":
            request.wfile.write(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
            )
            return 0, {}, b""
        if request.path == "/moved":
            return 302, {"Location": "http://elsewhere.invalid"}, b""
        return 200, {}, b"x" * 600_000 if request.path == "/large" else b""

    with serving(answers) as url:
        connection = HttpConnection(url)
        assert asked(connection).body == b""
        assert asked(connection, "/chunks").body == b"abcde"
        assert len(asked(connection, "/large").body) == 600_000
        assert asked(connection, "/moved").status == 302
        assert len(lines) == 1
        with pytest.raises(AnswerTooLarge):
            asked(connection, "/large", most=1000)
        assert asked(connection).status == 200 and len(lines) == 2, "a broken connection is made again"
        connection.close()


def test_a_server_that_says_nothing_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            asked(HttpConnection(f"http://127.0.0.1:{silent.getsockname()[1]}"), within=0.1)
        assert time.monotonic() - began < 3


def test_tls_names_the_server_by_the_given_name(tmp_path: Path) -> None:
    server, trusts = contexts(tmp_path / "tls")
    with serving(lambda _: (200, {}, b"in"), server) as url:
        assert asked(HttpConnection(url, tls=trusts, server_name="localhost")).body == b"in"
        with pytest.raises(ssl.SSLCertVerificationError):
            asked(HttpConnection(url, tls=trusts, server_name="other.example"))


def test_a_proxy_is_asked_for_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, trusts = contexts(tmp_path / "server")
    veil, trusts_veil = contexts(tmp_path / "proxy")
    monkeypatch.setattr(ssl, "create_default_context", lambda *_, **__: trusts_veil)
    seen: list[tuple[str, str]] = []
    proof = "Basic " + base64.b64encode(b"me:pass word").decode()
    with serving(lambda _: (200, {}, b"in" * 100_000), server) as url, serving(tunnel(seen)) as proxy:
        proxy = proxy.replace("//", "//me:pass%20word@")
        connection = HttpConnection(url, tls=trusts, server_name="localhost", proxy=proxy)
        assert len(asked(connection).body) == len(asked(connection).body) == 200_000
        assert seen == [(f"CONNECT {url.partition('//')[2]}", proof)]
        connection.close()
        assert asked(HttpConnection("http://plain.invalid:81/base", proxy=proxy), "/path").body == b"by the proxy"
        assert seen[1:] == [("GET http://plain.invalid:81/base/path", proof)]

        with serving(tunnel(seen), veil) as veiled:
            connection = HttpConnection(url, tls=trusts, server_name="localhost", proxy=veiled)
            assert len(asked(connection).body) == len(asked(connection).body) == 200_000, "TLS within TLS"
            connection.close()


def kubeconfig(folder: Path, url: str, token: str = "first") -> str:
    (folder / "token").write_text(token)
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"tokenFile": str(folder / "token")}}],
    }  # fmt: skip
    (folder / "config").write_text(json.dumps(config))
    return str(folder / "config")


async def names(kube: Lister) -> list[str]:
    return [one["metadata"]["name"] for one in (await kube.list(CONFIGMAP, "belay-system", "a in (b)")).items]


def test_a_read_of_one_shot_follows_pages_retries_and_a_token_that_was_renewed(tmp_path: Path) -> None:
    asked_for: list[tuple[str, str]] = []

    def answers(request: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
        asked_for.append((request.path, request.headers["Authorization"]))
        if request.path == "/version":
            return 200, {}, b"{}"
        if len(asked_for) == 2:
            (tmp_path / "token").write_text("second")
            return 401, {}, b"{}"
        if len(asked_for) == 3:
            return 503, {}, b"busy"
        more = "" if "continue=" in request.path else "next page"
        body: dict[str, Any] = {"metadata": {"continue": more}, "items": [{"metadata": {"name": more or "last"}}]}
        return 200, {}, json.dumps(body).encode()

    with serving(answers) as url:
        assert ask_once(kubeconfig(tmp_path, url), names) == ["next page", "last"]
    assert [token for _, token in asked_for] == ["Bearer first"] * 2 + ["Bearer second"] * 3
    assert asked_for[-1][0] == (
        "/api/v1/namespaces/belay-system/configmaps?labelSelector=a+in+%28b%29&limit=500&continue=next+page"
    )


def test_why_a_read_of_one_shot_fails_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_shot, "ANSWERS_WITHIN", 0.5)
    with serving(lambda _: (404, {}, b'{"message": "no such path"}')) as url:
        with pytest.raises(BelayError, match="no such path"):
            ask_once(kubeconfig(tmp_path, url), names)

        async def gone(kube: Lister) -> bool:
            with pytest.raises(NotFound):
                await kube.list(CONFIGMAP)
            return await kube.get(CONFIGMAP, "a", "b") is None

        assert ask_once(kubeconfig(tmp_path, url), gone)
    with pytest.raises(BelayError, match=r"does not answer \(GET /version: Connection refused\)"):
        ask_once(kubeconfig(tmp_path, url), names)
    server, _ = contexts(tmp_path / "tls")
    with serving(lambda _: (200, {}, b"{}"), server) as url, pytest.raises(BelayError, match="is not trusted"):
        ask_once(kubeconfig(tmp_path, url), names)
    with pytest.raises(BelayError, match=r"there is no context 'd'; it has c\. Give"):
        ask_once(kubeconfig(tmp_path, url), names, context="d")
