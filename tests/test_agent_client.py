"""The agent's client of the API server before answers as real servers send them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from aiohttp import web

from agents.node import client
from agents.node.client import ApiError, KubeClient
from agents.node.credentials import load


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
