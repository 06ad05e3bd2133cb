"""A client of one API server for tests: synchronous, records what it saw in a form that can be compared."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable
from typing import Any

import aiohttp

from belay.engine.sandbox.api import ApiServer

JSON = dict[str, Any]
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
PATCH, APPLY = "application/json-patch+json", "application/apply-patch+yaml"
SETTLE_SECONDS = 20.0


class Client:
    """One server, synchronously; `records` collects what a scenario saw."""

    def __init__(self, loop: asyncio.AbstractEventLoop, base: str, token: str, session: aiohttp.ClientSession) -> None:
        self._loop, self._base, self._session = loop, base, session
        self._headers = {"Authorization": f"Bearer {token}"}
        self.records: list[tuple[str, Any]] = []
        self.namespace = "default"

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    def send(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> tuple[int, JSON]:
        """Send one request; `~` in the path stands for the scenario's namespace."""

        async def go() -> tuple[int, JSON]:
            url = self._base + path.replace("~", f"namespaces/{self.namespace}")
            data = None if body is None else json.dumps(body).encode()
            headers = {**self._headers, "Content-Type": kind, "User-Agent": "differential/1"}
            async with self._session.request(method, url, data=data, headers=headers) as response:
                text = await response.text()
                return response.status, json.loads(text) if text.startswith("{") else {"text": text}

        return self._run(go())  # type: ignore[no-any-return]

    def watch(self, path: str, count: int, seconds: int = 3) -> list[JSON]:
        """Read a watch until `count` events or its timeout."""

        async def go() -> list[JSON]:
            separator = "&" if "?" in path else "?"
            url = (
                self._base
                + path.replace("~", f"namespaces/{self.namespace}")
                + f"{separator}watch=1&timeoutSeconds={seconds}"
            )
            events: list[JSON] = []
            async with self._session.get(url, headers=self._headers) as response:
                if response.status != 200:
                    return [json.loads(await response.text())]
                async for line in response.content:
                    events.append(json.loads(line))
                    if len(events) >= count:
                        break
            return events

        return self._run(go())  # type: ignore[no-any-return]

    def note(self, label: str, value: Any) -> None:
        """Record something seen."""
        self.records.append((label, value))

    def do(
        self,
        label: str,
        method: str,
        path: str,
        body: Any = None,
        kind: str = "application/json",
        *,
        see: str = "",
        say: bool = True,
    ) -> JSON:
        """Send a request and record its status and the paths in `see`.

        Of a refusal reason, message (unless not `say`) and causes.
        """
        status, answer = self.send(method, path, body, kind)
        if answer.get("kind") == "Status":
            details = answer.get("details") or {}
            shown: JSON = {key: answer.get(key) for key in ("status", "reason", "code")}
            shown["details"] = {key: details.get(key) for key in ("name", "group", "kind")}
            if say:
                shown["message"] = normal_text(answer.get("message", ""))
                shown["causes"] = [(c.get("reason"), c.get("field")) for c in details.get("causes") or ()]
        else:
            shown = {path: at(answer, path) for path in see.split()}
        self.note(label, (status, shown))
        return answer

    def until(self, path: str, condition: Callable[[int, JSON], bool]) -> bool:
        """Ask again until the condition holds; the real server's background work takes a moment."""

        async def pause() -> None:
            await asyncio.sleep(0.1)

        for _ in range(int(SETTLE_SECONDS / 0.1)):
            if condition(*self.send("GET", path)):
                return True
            self._run(pause())
        return False


def at(obj: Any, path: str) -> Any:
    """Return the value at a dotted path (`[n]` allowed); `#` at the end gives a length, `?` whether it is there."""
    want_length, want_there = path.endswith("#"), path.endswith("?")
    for step in re.findall(r"[^.\[\]]+", path.rstrip("#?")):
        step = step.replace("~1", ".")
        if isinstance(obj, list):
            obj = obj[int(step)] if int(step) < len(obj) else None
        else:
            obj = obj.get(step) if isinstance(obj, dict) else None
    if want_length:
        return len(obj or ())
    return obj is not None if want_there else obj


def normal_text(text: str) -> str:
    """Mask what differs from run to run."""
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "UID", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "TIME", text)
    return re.sub(r"\b\d{3,}\b", "N", text)


class LoopThread:
    """An event loop in a thread, for tests that are not asynchronous themselves."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def call(self, coroutine: Any) -> Any:
        """Run a coroutine to its end and return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)

    def close(self) -> None:
        """End the loop."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


class Sandbox(LoopThread):
    """A sandbox API server that runs beside the test."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.server = ApiServer(**{"bookmark_seconds": 0.2, **options})
        self.call(self._open())

    async def _open(self) -> None:
        await self.server.start()
        self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, ssl=False))

    async def _close(self) -> None:
        await self.session.close()
        await self.server.stop()

    def client(self) -> Client:
        """Return a client in namespace default."""
        return Client(self.loop, self.server.url, self.server.token, self.session)

    def close(self) -> None:
        """Stop the server and the loop."""
        self.call(self._close())
        super().close()
