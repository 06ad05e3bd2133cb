"""The child Redis: comes up, keeps nothing, refuses to evict, and dies with its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis

from belay.engine.errors import BelayError
from belay.engine.sandbox.redis_process import start_redis

pytestmark = pytest.mark.real_time


def test_answers_on_a_private_unix_socket_and_never_evicts(tmp_path: Path) -> None:
    with start_redis(tmp_path) as running, redis.Redis.from_url(running.url) as client:
        assert running.url.startswith("unix://")
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert client.config_get("save") == {"save": ""}
        assert (tmp_path / "redis.sock").stat().st_mode & 0o077 == 0
    assert not running.running


def test_a_path_too_long_for_a_socket_falls_back_to_a_guarded_loopback_port(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 110)
    with start_redis(folder) as running:
        assert running.url.startswith("redis://:")
        with redis.Redis.from_url(running.url) as client:
            assert client.ping()
        with (
            redis.Redis.from_url("redis://" + running.url.split("@")[1]) as stranger,
            pytest.raises(redis.AuthenticationError),
        ):
            stranger.ping()


def test_it_dies_with_its_parent_even_when_the_parent_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys, time\nfrom belay.engine.sandbox.redis_process import start_redis\n"
        "r = start_redis(sys.argv[1]); sys.stdout.write(str(r.pid) + '\\n'); sys.stdout.flush(); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
    ends = time.monotonic() + 5
    while _alive(pid):
        assert time.monotonic() < ends, "redis outlived its parent"
        time.sleep(0.02)


def test_without_redis_the_error_names_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("belay.engine.sandbox.redis_process.find_redis_server", lambda: None)
    with pytest.raises(BelayError, match="redis-server"):
        start_redis(tmp_path)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
