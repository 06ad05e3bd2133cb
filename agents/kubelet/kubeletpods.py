"""Read this node's pods from kubelet, to reduce the API server's load (``-getPodFromKubelet``).

Source: component/ascend-device-plugin/pkg/kubeclient/client_server.go: ``https://HOST_IP:KUBELET_PORT/pods`` with the
token of the service account.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import aiohttp

from belay.agents.common.client import ApiError

SECONDS: Final = 5.0
MAX_BODY: Final = 64 << 20


class KubeletPods:
    """Reader of kubelet's pods. ``headers`` returns the current token for every request.

    Kubelet's certificate is usually self-signed, so it is not verified: the request never leaves this host, because
    the address must be one of the host's (HOST_IP of the agent's pod).
    """

    def __init__(
        self, host: str, port: int, headers: Callable[[], Mapping[str, str]], *, scheme: str = "https"
    ) -> None:
        if not host:
            raise ValueError("getPodFromKubelet needs HOST_IP, the address of this node")
        self._url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}/pods"
        self._headers = headers
        self._session: aiohttp.ClientSession | None = None

    async def read(self) -> Sequence[Mapping[str, Any]]:
        """Read the pods. Raises ApiError."""
        if self._session is None:
            self._session = aiohttp.ClientSession(trust_env=False)
        timeout = aiohttp.ClientTimeout(total=SECONDS)
        try:
            async with self._session.get(
                self._url, headers=dict(self._headers()), timeout=timeout, ssl=False
            ) as answer:
                raw = await answer.content.read(MAX_BODY + 1)
                while len(raw) <= MAX_BODY and (more := await answer.content.read(MAX_BODY)):
                    raw += more
                if answer.status != 200:
                    raise ApiError(answer.status, raw[:200].decode("utf-8", "replace"))
            if len(raw) > MAX_BODY:
                raise ApiError(0, f"kubelet's list of pods is larger than {MAX_BODY >> 20} MiB")
            items = json.loads(raw).get("items")
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, AttributeError, RecursionError) as error:
            raise ApiError(0, f"{type(error).__name__}: {error}") from error
        return [item for item in items or () if isinstance(item, dict)]

    async def close(self) -> None:
        """Close the connection."""
        if self._session is not None:
            await self._session.close()
