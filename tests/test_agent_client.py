"""The agent's client of the API server before answers as real servers send them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from belay.agents.common import client, credentials
from belay.agents.common.client import ApiError, KubeClient
from belay.agents.common.credentials import load
from tests.certificates import authority, certificate


def kubeconfig(folder: Path, host: str, port: int) -> Path:
    """A file that names a server of this machine."""
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "c", "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": f"http://{host}:{port}"}}],
    }  # fmt: skip
    (folder / "kubeconfig").write_text(json.dumps(config))
    return folder / "kubeconfig"


async def answer(folder: Path, pieces: list[bytes]) -> dict[str, object] | None:
    """What the client makes of an answer that comes in these pieces, its length untold."""

    async def serve(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
            # the reader has had its turn: what it then reads is a piece and not the whole
            await asyncio.sleep(0.02)
        await response.write_eof()
        return response

    app = web.Application()
    app.router.add_get("/{path:.*}", serve)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    asked = KubeClient(load(str(kubeconfig(folder, host, port))))
    try:
        found = await asked.get_config_map("belay-system", "belay-orders-n")
        return None if found is None else dict(found)
    finally:
        await asked.close()
        await runner.cleanup()


def test_an_answer_in_pieces_is_read_to_its_end(tmp_path: Path) -> None:
    body = {"kind": "ConfigMap", "data": {"orders.json": "x" * 5000}}
    raw = json.dumps(body).encode()
    assert asyncio.run(answer(tmp_path, [raw[:700], raw[700:4000], raw[4000:]])) == body


def test_an_endless_answer_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_BODY", 1 << 20)
    with pytest.raises(ApiError, match="the answer is larger than 1 MiB"):
        asyncio.run(answer(tmp_path, [b" " * (1 << 19)] * 4))


def test_a_write_names_its_annotations_and_leaves_those_of_others(tmp_path: Path) -> None:
    sent: list[object] = []

    async def story() -> None:
        async def take(request: web.Request) -> web.Response:
            sent.append(await request.json())
            return web.json_response({})

        app = web.Application()
        app.router.add_patch("/{path:.*}", take)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        asked = KubeClient(load(str(kubeconfig(tmp_path, *runner.addresses[0][:2]))))
        try:
            metadata = {"namespace": "n", "name": "a", "annotations": {"belay.dev/format": "1"}}
            await asked.put_config_map({"metadata": metadata, "data": {"k": "v"}})
            await asked.put_config_map({"metadata": {"namespace": "n", "name": "b"}, "data": {}})
        finally:
            await asked.close()
            await runner.cleanup()

    asyncio.run(story())
    assert sent == [
        {"metadata": {"annotations": {"belay.dev/format": "1"}}, "data": {"k": "v"}},
        {"metadata": {}, "data": {}},
    ]


def test_a_renewed_certificate_serves_new_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubelet renews the certificate that its kubeconfig names; an agent that uses it runs for longer."""
    now = [1000.0]
    monkeypatch.setattr(credentials.time, "monotonic", lambda: now[0])
    root = authority(tmp_path, "ca")
    pem = tmp_path / "kubelet-client-current.pem"
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(root))
    own, key, _ = certificate(tmp_path, "localhost", "ca")
    server.load_cert_chain(own, key)
    server.verify_mode = ssl.CERT_REQUIRED

    def issue(name: str) -> None:
        signed, key, _ = certificate(tmp_path, name, "ca")
        pem.write_bytes(signed.read_bytes() + key.read_bytes())

    issue("first")
    config = json.loads(kubeconfig(tmp_path, "127.0.0.1", 1).read_text())
    config["users"][0]["user"] = {"client-certificate": str(pem), "client-key": str(pem)}
    config["clusters"][0]["cluster"]["certificate-authority"] = str(root)
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    access = load(str(tmp_path / "kubeconfig"))

    def shown() -> str:
        access.headers()
        assert isinstance(access.tls, ssl.SSLContext)
        return _client_of(access.tls, server)

    assert shown() == "first"
    issue("second")
    assert shown() == "first", "within the minute"
    now[0] += 61
    assert shown() == "second"
    pem.write_text("half written")
    now[0] += 61
    assert shown() == "second"


def _client_of(client: ssl.SSLContext, server: ssl.SSLContext) -> str:
    """The name that a client shows in a handshake in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    far = server.wrap_bio(to_server, to_client, server_side=True)
    for side in (near, far, near, far):
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    subject: Any = (far.getpeercert() or {})["subject"]
    return str(dict(subject[0])["commonName"])
