"""Custom kinds behind a real kube-apiserver that cannot store them itself: Kubernetes' own aggregation layer.

An `APIService` per group sends its requests on to the sandbox's API server, which holds the definitions and objects, so
that clients of the real API server list, watch and write AscendJobs there as anywhere. The way on is TLS, which the
aggregation layer asks for.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from engine.kube import Kube
from engine.sandbox import definitions
from engine.sandbox.api import ApiServer
from engine.sandbox.reader import Reader

SERVICE, SPACE = "custom-kinds", "kube-system"
_CHUNK = 1 << 16


@contextlib.contextmanager
def custom_kinds(folder: Path, kubeconfig: Path, apply: Callable[[dict[str, Any]], object]) -> Iterator[None]:
    """Let the cluster of ``kubeconfig`` serve every kind that Belay ships a definition of.

    ``apply`` creates an object there; ``folder`` gets a key and a certificate.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="custom-kinds", daemon=True)
    thread.start()

    def run(work: Any, seconds: float = 30.0) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(seconds)

    backend = ApiServer(token="")
    try:
        run(backend.start())
        found = run(_define(backend, folder))
        front = _Front(int(backend.url.rpartition(":")[2]))
        try:
            for body in _registration(found, run(front.start(*_certificate(folder)))):
                apply(body)
            for group, version in found:
                _await(Reader(kubeconfig), f"/apis/{group}/{version}")
            yield
        finally:
            run(front.stop())
    finally:
        run(backend.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def _await(reader: Reader, path: str, seconds: float = 90.0) -> None:
    ends = time.monotonic() + seconds
    while not (reader.get(path) or {}).get("resources"):
        assert time.monotonic() < ends, f"{path} is not served within {seconds:g} s"
        time.sleep(0.1)


async def _define(backend: ApiServer, folder: Path) -> list[tuple[str, str]]:
    backend.write_kubeconfig(folder / "custom-kinds.kubeconfig")
    async with Kube.from_config(str(folder / "custom-kinds.kubeconfig")) as kube:
        await definitions.ensure(kube)
    return sorted(
        {
            (one["spec"]["group"], version["name"])
            for one in definitions.shipped()
            for version in one["spec"]["versions"]
            if version["served"]
        }
    )


def _registration(groups: list[tuple[str, str]], port: int) -> Iterator[dict[str, Any]]:
    yield {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": SERVICE, "namespace": SPACE},
        "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port, "protocol": "TCP"}]},
    }  # fmt: skip
    for group, version in groups:
        yield {
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": f"{version}.{group}"},
            "spec": {
                "group": group, "version": version, "groupPriorityMinimum": 1000, "versionPriority": 15,
                "insecureSkipTLSVerify": True, "service": {"name": SERVICE, "namespace": SPACE, "port": port},
            },
        }  # fmt: skip


class _Front:
    """TLS before a server that speaks plain HTTP."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._ways: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self, certificate: Path, key: Path) -> int:
        """Listen; the port."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, key)
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=context)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """End every connection."""
        if self._server is not None:
            self._server.close()
        for way in self._ways:
            way.cancel()
        await asyncio.gather(*self._ways, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            try:
                inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._to)
            except OSError:
                return
            with contextlib.closing(inner_writer):
                ways = {
                    asyncio.ensure_future(_pump(reader, inner_writer)),
                    asyncio.ensure_future(_pump(inner_reader, writer)),
                }
                self._ways |= ways
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
                self._ways -= ways


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()


def _certificate(folder: Path) -> tuple[Path, Path]:
    certificate, key = folder / "custom-kinds.crt", folder / "custom-kinds.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    return certificate, key


__all__ = ["custom_kinds"]
