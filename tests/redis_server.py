"""A real Redis for tests: `start_redis(directory)`, or the fixture `redis_url` in a module that imports it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from belay.engine.sandbox.redis_process import RedisProcess, find_redis_server, start_redis

__all__ = ["RedisProcess", "find_redis_server", "redis_process", "redis_url", "start_redis"]


@pytest.fixture(scope="module")
def redis_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    directory: Path = tmp_path_factory.mktemp("redis")
    with start_redis(directory) as running:
        yield running


@pytest.fixture
def redis_url(redis_process: RedisProcess) -> str:
    """A Redis of this module, empty."""
    import redis

    with redis.Redis.from_url(redis_process.url) as client:
        client.flushall()
    return redis_process.url
