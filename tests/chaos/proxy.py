"""What lies between processes and API server or Redis, a process of its own: ``python -m tests.chaos.proxy``.

Each client has ports of its own, so that each can be given weather of its own. Line by line on standard input:
``{"client": NAME, "port": N, "address": IP}`` serves the API there, with ``"redis": true`` Redis; ``{"client": NAME,
"weather": {…}}`` changes what happens to it. Each line is answered by one, ``{}`` or ``{"error": …}``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys

import aiohttp
import msgspec
from aiohttp import web
from yarl import URL

from belay.engine.kube.credentials import loader
from belay.engine.kube.endpoint import Endpoint

EXPIRED = (
    b'{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",'
    b'"message":"too old resource version: 1 (2)","reason":"Expired","code":410}}\n'
)
_PASSED_ON = ("Authorization", "Accept", "Accept-Encoding", "Content-Type")
_GIVEN_BACK = ("Content-Type", "Content-Encoding", "Retry-After", "Audit-Id")
_HOLDS = 600.0
"""Seconds after which a request in a hole is given up."""


class Weather(msgspec.Struct, frozen=True):
    """What happens to one client. The defaults are a calm day.

    ``hole``: no byte passes in either direction and no end gets an error; what was sent arrives when the hole closes,
    as segments that TCP sends again. ``refuse``: statuses, one of which answers a share ``often`` of requests.
    ``lose``: the share of requests that are carried out and whose answer is lost. ``expire``: watches end with 410,
    and so do lists that continue. ``slow``: seconds before every answer and every piece of a watch. ``cut``: the share
    of pieces of a watch in whose middle the connection breaks.
    """

    hole: bool = False
    refuse: tuple[int, ...] = ()
    often: float = 0.3
    lose: float = 0.0
    expire: bool = False
    slow: float = 0.0
    cut: float = 0.0


class Command(msgspec.Struct):
    client: str
    port: int = 0
    address: str = "127.0.0.1"
    redis: bool = False
    weather: Weather | None = None


class Client:
    """One process' way out."""

    def __init__(self, name: str, chance: random.Random) -> None:
        self.name = name
        self.chance = chance
        self.weather = Weather()
        self.open = asyncio.Event()
        self.open.set()

    def change(self, weather: Weather) -> None:
        self.weather = weather
        (self.open.clear if weather.hole else self.open.set)()

    async def passage(self) -> None:
        """Wait until the hole, if there is one, is closed."""
        if not self.open.is_set():
            async with asyncio.timeout(_HOLDS):
                await self.open.wait()

    def happens(self, share: float) -> bool:
        return bool(share) and self.chance.random() < share


class Proxy:
    """All clients."""

    def __init__(self, endpoint: Endpoint, redis: str, seed: int) -> None:
        self._endpoint, self._redis, self._seed = endpoint, redis, seed
        self._clients: dict[str, Client] = {}
        self._session: aiohttp.ClientSession | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Carry out commands until standard input ends."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as self._session:
            while line := await reader.readline():
                try:
                    await self._carry_out(msgspec.json.decode(line, type=Command))
                    answer: dict[str, str] = {}
                except (OSError, msgspec.DecodeError) as error:
                    answer = {"error": str(error)}
                sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
                sys.stdout.flush()

    async def _carry_out(self, command: Command) -> None:
        client = self._clients.get(command.client)
        if client is None:
            chance = random.Random(f"{self._seed}/{command.client}")
            client = self._clients[command.client] = Client(command.client, chance)
        if command.weather is not None:
            client.change(command.weather)
        if command.port and command.redis:
            await asyncio.start_server(lambda r, w: self._relay(client, r, w), command.address, command.port)
        elif command.port:
            server = web.Server(lambda request: self._answer(client, request), access_log=None)
            await asyncio.get_running_loop().create_server(server, command.address, command.port)

    # the API

    async def _answer(self, client: Client, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        watch = request.query.get("watch", "") in ("true", "1")
        await client.passage()
        weather = client.weather
        await asyncio.sleep(weather.slow * client.chance.random())
        if weather.refuse and client.happens(weather.often):
            return _refusal(client.chance.choice(weather.refuse))
        if weather.expire and ((watch and client.happens(0.5)) or request.query.get("continue")):
            return _refusal(410)
        assert self._session is not None
        headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        url = URL(self._endpoint.host + request.raw_path, encoded=True)
        call = self._session.request(
            request.method, url, data=body or None, headers=headers, ssl=self._endpoint.tls or False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10), auto_decompress=False,
            skip_auto_headers=("Accept-Encoding",),
        )  # fmt: skip
        try:
            async with call as found:
                if watch and found.status == 200:
                    return await self._stream(client, request, found)
                content = await found.read()
                given = {name: found.headers[name] for name in _GIVEN_BACK if name in found.headers}
                status = found.status
        except aiohttp.ClientError:
            return _broken(request)
        await client.passage()
        if client.happens(client.weather.lose):
            return _broken(request)
        return web.Response(status=status, body=content, headers=given)

    async def _stream(
        self, client: Client, request: web.BaseRequest, found: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        kind = found.headers.get("Content-Type", "application/json")
        answer = web.StreamResponse(status=200, headers={"Content-Type": kind})
        answer.enable_chunked_encoding()
        with contextlib.suppress(ConnectionError):
            await answer.prepare(request)
            async for piece in found.content.iter_any():
                await client.passage()
                weather = client.weather
                await asyncio.sleep(weather.slow * client.chance.random())
                if client.happens(weather.cut):
                    await answer.write(piece[: len(piece) // 2])
                    return _broken(request)
                await answer.write(piece)
                if weather.expire and piece.endswith(b"\n") and "json" in kind:
                    await answer.write(EXPIRED)
                    break
            await answer.write_eof()
        return answer

    # Redis

    async def _relay(self, client: Client, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_unix_connection(self._redis)
        except OSError:
            writer.close()
            return
        pair = (self._copy(client, reader, there[1]), self._copy(client, there[0], writer))
        tasks = [asyncio.ensure_future(one) for one in pair]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for end in (writer, there[1]):
                end.close()

    async def _copy(self, client: Client, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            while piece := await source.read(1 << 16):
                await client.passage()
                target.write(piece)
                await target.drain()


def _refusal(status: int) -> web.Response:
    reasons = {429: "TooManyRequests", 410: "Expired", 500: "InternalError", 503: "ServiceUnavailable"}
    body = {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": status,
        "reason": reasons.get(status, "Unknown"), "message": f"injected: {status}",
    }  # fmt: skip
    return web.json_response(body, status=status, headers={"Retry-After": "1"} if status == 429 else None)


def _broken(request: web.BaseRequest) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=502)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.proxy", description=__doc__)
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--redis", required=True, help="the socket of Redis")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    asyncio.run(Proxy(loader(options.kubeconfig)(), options.redis, options.seed).serve())


if __name__ == "__main__":
    main()
