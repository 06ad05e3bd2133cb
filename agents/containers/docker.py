"""Docker through its socket: the Engine API (docs.docker.com/reference/api/engine) over HTTP."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import aiohttp

from belay.agents.common.log import Log
from belay.agents.containers.runtime import Container, RuntimeFailure
from belay.agents.containers.usage import UsageError, chips_of_environment, chips_of_paths

NAMESPACE: Final = "default"
MAX_BODY: Final = 32 << 20
READ_SECONDS: Final = 10.0
#: Docker itself kills a container ten seconds after asking it to stop.
STOP_SECONDS: Final = 60.0
_log = Log("docker")


class Docker:
    """One Docker engine, reached through its socket."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._session: aiohttp.ClientSession | None = None
        self._chips: dict[str, tuple[int, ...]] = {}

    async def containers(self) -> Sequence[Container]:
        """List the containers that use chips. A container's configuration does not change, so it is read once."""
        listed = await self._call("GET", "/containers/json?all=1", READ_SECONDS)
        if not isinstance(listed, list):
            raise RuntimeFailure("Docker's list of containers is not a list")
        found, known = [], {}
        for entry in listed:
            name = str(entry.get("Id", ""))
            if not name:
                continue
            if name not in self._chips:
                try:
                    self._chips[name] = await self._used(name)
                except UsageError as error:
                    _log.warning("container is not managed", container=name, error=error)
                    self._chips[name] = ()
                except RuntimeFailure as error:
                    # it may have gone since it was listed
                    _log.warning("container cannot be looked at", container=name, error=error)
                    continue
            known[name] = self._chips[name]
            if known[name]:
                status, state = str(entry.get("Status", "")), str(entry.get("State", "running"))
                running = "Exited" not in status and state not in ("exited", "created", "dead")
                found.append(Container(name, NAMESPACE, known[name], running))
        self._chips = known
        return found

    async def _used(self, name: str) -> tuple[int, ...]:
        described = await self._call("GET", f"/containers/{quote(name, safe='')}/json", READ_SECONDS)
        if not isinstance(described, dict):
            raise RuntimeFailure("Docker's description of a container is not an object")
        config, host = described.get("Config") or {}, described.get("HostConfig") or {}
        chips = chips_of_environment([str(entry) for entry in config.get("Env") or ()])
        if chips is None:
            chips = chips_of_paths(str(device.get("PathInContainer", "")) for device in host.get("Devices") or ())
        return chips

    async def stop(self, namespace: str, container: str) -> None:
        """Stop one as Docker does: its stop signal, then a kill."""
        await self._call("POST", f"/containers/{quote(container, safe='')}/stop", STOP_SECONDS, (204, 304, 404))

    async def start(self, namespace: str, container: str) -> None:
        """Start a stopped container."""
        await self._call("POST", f"/containers/{quote(container, safe='')}/start", STOP_SECONDS, (204, 304))

    async def close(self) -> None:
        """Close the socket."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _call(self, method: str, path: str, seconds: float, wanted: Sequence[int] = (200,)) -> Any:
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.UnixConnector(path=str(self._socket), limit=8))
        limit = aiohttp.ClientTimeout(total=seconds)
        try:
            async with self._session.request(method, f"http://docker{path}", timeout=limit) as answer:
                data = await _bounded(answer.content)
                if answer.status not in wanted:
                    raise RuntimeFailure(f"Docker answers {answer.status} to {method} {path[:80]}: {_said(data)}")
                return json.loads(data) if answer.status == 200 and data else None
        except TimeoutError as error:
            raise RuntimeFailure(f"Docker did not answer {method} {path[:80]} in {seconds:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise RuntimeFailure(f"Docker cannot be reached at {self._socket}: {str(error)[:200]}") from error
        except (ValueError, RecursionError) as error:
            raise RuntimeFailure(f"Docker's answer to {path[:80]} is not JSON") from error


async def _bounded(stream: aiohttp.StreamReader) -> bytes:
    data = bytearray()
    async for chunk in stream.iter_chunked(65_536):
        data += chunk
        if len(data) > MAX_BODY:
            raise RuntimeFailure(f"Docker's answer is longer than {MAX_BODY} bytes")
    return bytes(data)


def _said(data: bytes) -> str:
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        body = None
    text = body.get("message") if isinstance(body, Mapping) else data.decode("utf-8", "replace")
    return " ".join(str(text).split())[:200]
