"""A private repository by https: token, certificate authority and proxy, as deploy/components gives them."""

from __future__ import annotations

import base64
import contextlib
import http.server
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from belay.engine.source import GitSource, SourceConfig
from tests.gitrepo import Repo

pytestmark = pytest.mark.real_time

ROOT = Path(__file__).resolve().parents[1]
TOKEN = "s3cret-token"


class _Remote(http.server.BaseHTTPRequestHandler):
    """Git's smart protocol (gitprotocol-http) for those who know the token."""

    repository: Path

    def do_GET(self) -> None:
        advertised = b"001e# service=git-upload-pack\n0000" + self._git("--advertise-refs")
        self._answer("application/x-git-upload-pack-advertisement", advertised)

    def do_POST(self) -> None:
        wanted = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer("application/x-git-upload-pack-result", self._git(given=wanted))

    def _git(self, *options: str, given: bytes = b"") -> bytes:
        command = ["git", "upload-pack", "--stateless-rpc", *options, str(self.repository)]
        return subprocess.run(command, input=given, capture_output=True, check=True).stdout

    def _answer(self, kind: str, body: bytes) -> None:
        known = base64.b64encode(f"robot:{TOKEN}".encode()).decode()
        allowed = self.headers.get("Authorization") == f"Basic {known}"
        self.send_response(200 if allowed else 401)
        if not allowed:
            self.send_header("WWW-Authenticate", 'Basic realm="git"')
            body = b""
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class _Proxy(http.server.BaseHTTPRequestHandler):
    """Connects to where it is asked to; counts that."""

    asked: list[str]

    def do_CONNECT(self) -> None:
        self.asked.append(self.path)
        host, _, port = self.path.partition(":")
        with socket.create_connection((host, int(port)), timeout=30) as there:
            self.send_response(200)
            self.end_headers()
            back = threading.Thread(target=_carry, args=(there, self.connection))
            back.start()
            _carry(self.connection, there)
            back.join(30)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def _carry(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def serving(handler: type[http.server.BaseHTTPRequestHandler], tls: ssl.SSLContext | None = None) -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def test_a_token_an_authority_and_a_proxy_reach_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = Repo(tmp_path / "git")
    tip = repo.commit({"desired/a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: default}\n"})
    certificate, key = tmp_path / "ca.crt", tmp_path / "ca.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
         "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key),
         "-out", str(certificate)],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "username").write_text("robot\n")
    (secret / "token").write_text(TOKEN)
    script = yaml.safe_load((ROOT / "deploy/components/git-token/askpass.yaml").read_text())["data"]["askpass"]
    askpass = tmp_path / "askpass"
    askpass.write_text(script.replace("/etc/belay/git/", f"{secret}/"))
    askpass.chmod(0o555)
    remote = type("Remote", (_Remote,), {"repository": repo.bare})
    proxy = type("Proxy", (_Proxy,), {"asked": []})
    for name in ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with serving(remote, tls) as port, serving(proxy) as way:
        config = SourceConfig(url=f"https://127.0.0.1:{port}/state.git")

        def ready(folder: str) -> tuple[str, str]:
            found = GitSource(config, tmp_path / folder).fetch().condition("Ready")
            assert found is not None and TOKEN not in found.message
            return found.reason, found.message

        assert ready("a")[0] == "Unreachable" and "certificate" in ready("a")[1]
        monkeypatch.setenv("GIT_SSL_CAINFO", str(certificate))
        assert ready("b")[0] == "AccessDenied"
        monkeypatch.setenv("GIT_ASKPASS", str(askpass))
        fetched = GitSource(config, tmp_path / "c").fetch()
        assert fetched.revision is not None and fetched.revision.sha == tip
        assert proxy.asked == []  # type: ignore[attr-defined]
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{way}")
        fetched = GitSource(config, tmp_path / "d").fetch()
        assert fetched.revision is not None and fetched.revision.sha == tip
        assert set(proxy.asked) == {f"127.0.0.1:{port}"}  # type: ignore[attr-defined]
        (secret / "token").write_text("revoked")
        assert ready("e")[0] == "AccessDenied"
