"""The agent's health probe."""

from __future__ import annotations

import argparse
import asyncio

import aiohttp
import pytest

from belay.agents.daemon import health
from belay.agents.daemon.health import START_SECONDS, STUCK_SECONDS, HealthSettings, Liveness
from tests.ports import free_port


class Time:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_unwell_is_an_agent_that_hangs_or_never_saw_its_driver() -> None:
    time, driver = Time(), False
    pulse = Liveness(lambda: driver, time)
    assert pulse.trouble() == ""
    time.now += STUCK_SECONDS
    assert pulse.trouble() == ""
    time.now += 1
    assert pulse.trouble() == "the agent has been stuck for 61 s"
    pulse.beat()
    assert pulse.trouble() == ""
    time.now += START_SECONDS
    pulse.beat()
    assert pulse.trouble() == "the driver has not answered in 961 s"
    driver = True
    assert pulse.trouble() == ""


def test_the_probe_answers_as_those_of_all_agents() -> None:
    async def main() -> None:
        port = free_port()
        task = asyncio.create_task(health.serve(HealthSettings(address="127.0.0.1", port=port), lambda: True))
        try:
            async with aiohttp.ClientSession() as session, asyncio.timeout(20):
                while True:
                    try:
                        async with session.get(f"http://127.0.0.1:{port}/") as answer:
                            assert (answer.status, await answer.text()) == (200, "ok")
                            break
                    except aiohttp.ClientConnectionError:
                        await asyncio.sleep(0.05)
                async with session.get(f"http://127.0.0.1:{port}/healthz") as answer:
                    assert answer.status == 404
                async with session.post(f"http://127.0.0.1:{port}/") as answer:
                    assert answer.status == 405
                seen = [0]
                for _ in range(6):
                    async with session.get(f"http://127.0.0.1:{port}/") as answer:
                        seen.append(answer.status)
                assert seen[-1] == 429
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())


def parsed(*arguments: str) -> HealthSettings | None:
    parser = argparse.ArgumentParser()
    health.add(parser)
    return health.chosen(parser.parse_args(arguments))


def test_flags() -> None:
    assert parsed() is None
    assert parsed("--enable-healthz") == HealthSettings(port=11251)
    with pytest.raises(ValueError, match="1025 to 65535"):
        parsed("--enable-healthz", "--healthz-address=80")
    with pytest.raises(ValueError, match="together"):
        parsed("--enable-healthz", "--tls-cert-file=/x")
    with pytest.raises(ValueError, match="/nowhere/key"):
        parsed("--enable-healthz", "--tls-cert-file=/nowhere/cert", "--tls-private-key-file=/nowhere/key")
