"""Mutual TLS: accepted clients, certificates renewed under a running server, and when plaintext is refused."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import grpc
import pytest

from belay.engine.errors import InputError
from belay.engine.serve.grpc.server import serving
from belay.engine.serve.grpc.tls import Certificates, Files, allowed_plaintext, files_of
from belay.engine.settings import Settings
from belay.engine.wire.clusterd import recover_pb2 as pb
from tests import certificates
from tests.certificates import authority
from tests.grpc_world import Client, World, play


def certificate(folder: Path, name: str, ca: str) -> Files:
    """A certificate for loopback, signed by ``ca``."""
    return Files(*certificates.certificate(folder, name, ca))


async def answers(port: int, credentials: grpc.ChannelCredentials | None) -> bool:
    """Whether a client with these credentials is let in."""
    address = f"127.0.0.1:{port}"
    own = (("grpc.use_local_subchannel_pool", 1),)
    if credentials is None:
        channel = grpc.aio.insecure_channel(address, options=own)
    else:
        channel = grpc.aio.secure_channel(address, credentials, options=own)
    client = Client(port, "job", channel=channel)
    try:
        async with asyncio.timeout(10):
            return (await client.call("HealthCheck", pb.ClientInfo())).code == 0
    except (grpc.aio.AioRpcError, TimeoutError):
        return False
    finally:
        await channel.close(None)


def test_only_clients_of_the_same_authority_are_let_in_and_certificates_may_be_renewed(tmp_path: Path) -> None:
    authority(tmp_path, "one")
    authority(tmp_path, "two")
    server_files, client_files = certificate(tmp_path, "server", "one"), certificate(tmp_path, "client", "one")
    stranger = certificate(tmp_path, "stranger", "two")

    def of(files: Files, trusted: Path, *, shown: bool = True) -> grpc.ChannelCredentials:
        if not shown:
            return grpc.ssl_channel_credentials(trusted.read_bytes())
        return grpc.ssl_channel_credentials(
            trusted.read_bytes(), files.key.read_bytes(), files.certificate.read_bytes()
        )

    async def story(world: World) -> None:
        async with world.server(certificates=Certificates(server_files)) as server:
            assert await answers(server.port, of(client_files, server_files.authority))
            assert not await answers(server.port, None)
            assert not await answers(server.port, of(client_files, server_files.authority, shown=False))
            assert not await answers(server.port, of(stranger, server_files.authority))
            renewed = certificate(tmp_path, "renewed", "two")
            for new, old in zip(renewed, server_files, strict=True):
                os.replace(tmp_path / new.name, old) if new.name != "two.crt" else old.write_bytes(new.read_bytes())
            assert await answers(server.port, of(stranger, tmp_path / "two.crt"))
            assert not await answers(server.port, of(client_files, tmp_path / "two.crt"))
            server_files.certificate.write_text("no certificate")  # the last good ones stay in force
            assert await answers(server.port, of(stranger, tmp_path / "two.crt"))

    play(tmp_path, story)


def test_servers_reach_each_other_with_renewed_certificates(tmp_path: Path) -> None:
    authority(tmp_path, "one")
    authority(tmp_path, "two")
    files = certificate(tmp_path, "server", "one")

    async def story(world: World) -> None:
        async with (
            world.server("server-0", certificates=Certificates(files)),
            world.server("server-1", certificates=Certificates(files)) as stands_by,
        ):
            renewed, client = certificate(tmp_path, "renewed", "two"), certificate(tmp_path, "client", "two")
            os.replace(renewed.certificate, files.certificate)
            os.replace(renewed.key, files.key)
            files.authority.write_bytes((tmp_path / "two.crt").read_bytes())
            known = grpc.ssl_channel_credentials(
                (tmp_path / "two.crt").read_bytes(), client.key.read_bytes(), client.certificate.read_bytes()
            )
            assert await answers(stands_by.port, known), "handed on with what is valid now"

    play(tmp_path, story)


def test_plaintext_beyond_loopback_must_be_asked_for() -> None:
    assert allowed_plaintext(Settings(), "127.0.0.1") and allowed_plaintext(Settings(), "::1")
    assert not allowed_plaintext(Settings(), "10.0.0.7")
    assert allowed_plaintext(Settings(grpc_plaintext=True), "10.0.0.7")

    async def go() -> None:
        with pytest.raises(InputError, match="neither certificates nor plaintext"):
            async with serving(Settings(), None, {"POD_IP": "10.0.0.7"}):  # type: ignore[arg-type]
                pass

    asyncio.run(go())


def test_certificates_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    assert files_of(Settings()) is None
    with pytest.raises(InputError, match="go together"):
        files_of(Settings(grpc_tls_cert="a"))
    files = files_of(Settings(grpc_tls_cert="/nowhere/a", grpc_tls_key="/nowhere/b", grpc_tls_ca="/nowhere/c"))
    assert files is not None
    with pytest.raises(InputError) as caught:
        Certificates(files)
    assert "/nowhere/" in str(caught.value)
    wrong = tmp_path / "x"
    wrong.write_text("hello")
    with pytest.raises(InputError, match="is not a PEM file"):
        Certificates(Files(wrong, wrong, wrong))
