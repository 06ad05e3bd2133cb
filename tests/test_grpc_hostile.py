"""Calls that no client of ClusterD makes: thousands at once, bytes that are no message, handlers that fail."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import pytest

from belay.engine.serve.grpc.limits import Rates
from belay.engine.serve.grpc.recovery.service import RecoverService
from belay.engine.wire.clusterd import recover_pb2 as pb
from tests.grpc_world import World, play

#: gRPC drops calls at random beyond 1,000 that wait, unless its options say otherwise.
CALLS, CONNECTIONS = 2_500, 50
DEEP = b"\x0a\x01a" + b"\x0b" * 5_000
GARBAGE = (b"\xff" * 11, b"\x0a\xff\xff\xff\xff\x0f", DEEP, b"\x0a\x02\xff\xfe", b"\x00")


async def code(channel: grpc.aio.Channel, method: str, data: bytes) -> tuple[grpc.StatusCode, str]:
    call: Any = channel.unary_unary(
        f"/Recover/{method}", request_serializer=lambda raw: raw, response_deserializer=pb.Status.FromString
    )
    try:
        await call(data, timeout=100)
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


def test_calls_at_once_are_answered_or_refused_by_name(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        async with world.server(rates=Rates(business=1_000)) as server:
            target = f"127.0.0.1:{server.port}"
            options = (("grpc.use_local_subchannel_pool", 1),)
            channels = [grpc.aio.insecure_channel(target, options=options) for _ in range(CONNECTIONS)]
            found = await asyncio.gather(
                *(code(channels[number % CONNECTIONS], "HealthCheck", b"") for number in range(CALLS))
            )
            counted = Counter(status for status, _ in found)
            allowed = {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE}
            assert set(counted) <= allowed, counted
            await asyncio.gather(*(channel.close() for channel in channels))

    play(tmp_path, story)


def test_bytes_that_are_no_message_are_an_invalid_argument(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: World) -> None:
        async with world.server() as server, grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            for method in ("Init", "Register", "ReportStopComplete", "ReportProcessFault"):
                for data in GARBAGE:
                    status, said = await code(channel, method, data)
                    assert status is grpc.StatusCode.INVALID_ARGUMENT, (method, data[:20], status, said)
                    assert said.startswith("the request is no ") and len(said) <= 200
            stream: Any = channel.unary_stream(
                "/Recover/SubscribeProcessManageSignal",
                request_serializer=lambda raw: raw,
                response_deserializer=pb.ProcessManageSignal.FromString,
            )
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                async for _ in stream(GARBAGE[0], timeout=100):
                    raise AssertionError("a stream began")
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    with caplog.at_level(logging.INFO):
        play(tmp_path, story)
    assert not [record for record in caplog.records if record.exc_info]


def test_a_handler_that_fails_says_nothing_of_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: object) -> None:
        raise KeyError("password=planted")

    async def story(world: World) -> None:
        async with world.server() as server, grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            assert await code(channel, "HealthCheck", b"") == (grpc.StatusCode.INTERNAL, "internal error")

    monkeypatch.setattr(RecoverService, "HealthCheck", fails)
    play(tmp_path, story)
