"""Redis behind real Sentinels: the engine's clients and its broker follow the primary when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from celery import Celery

from belay.engine.controller.messages import configuration
from belay.engine.controller.queues import send, waiting
from belay.engine.errors import BelayError
from belay.engine.sandbox.redis_process import find_redis_server
from belay.engine.settings import Settings, from_environment
from belay.engine.store import StoreUnavailable, connect, connect_async, translated
from belay.engine.store.sentinel import parse
from tests.needs import lacking
from tests.ports import free_port

pytestmark = pytest.mark.real_time

PASSWORD = "planted/pass@word:%41"


def test_a_url_says_where_sentinels_are() -> None:
    found = parse(
        "rediss+sentinel://u:p%40w@a.example.com,[fd00::1]:26380,10.0.0.1:1/my-master.1/3?ssl_ca_certs=/ca&sentinel_auth=1"
    )
    assert found.hosts == (("a.example.com", 26379), ("fd00::1", 26380), ("10.0.0.1", 1))
    assert (found.name, found.db, found.user, found.password) == ("my-master.1", 3, "u", "p@w")
    assert found.login() == {"username": "u", "password": "p@w", "ssl": True, "ssl_ca_certs": "/ca"} == found.asking()
    assert found.broker_url() == ";".join(
        f"sentinel://u:p%40w@{place}/3" for place in ("a.example.com:26379", "[fd00::1]:26380", "10.0.0.1:1")
    )
    assert parse("redis+sentinel://:x@a/m").asking() == {}
    tls = configuration(Settings(redis_url="rediss+sentinel://a/m?ssl_ca_certs=/ca&ssl_check_hostname=false"))
    assert tls["broker_use_ssl"] == {"ssl_cert_reqs": "required", "ssl_ca_certs": "/ca", "ssl_check_hostname": False}
    assert tls["broker_transport_options"]["master_name"] == "m"
    assert "broker_use_ssl" not in configuration(Settings())


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis+sentinel:///mymaster/0", "no HOST:PORT"),
        ("redis+sentinel://a,,b/mymaster", "no HOST:PORT"),
        ("redis+sentinel://a:99999/mymaster", "no HOST:PORT"),
        ("redis+sentinel://:planted@a", "name of the primary"),
        ("redis+sentinel://a/my master/0", "name of the primary"),
        ("redis+sentinel://a/m/x", "number of a database"),
        ("redis+sentinel://a/m?speed=1", "no parameter 'speed'"),
        ("redis+sentinel://a/m?ssl_ca_certs=/x", "TLS is rediss.sentinel"),
        ("redis+sentinel://" + ",".join(["a"] * 33) + "/m", "at most 32"),
    ],
)
def test_a_url_that_is_not_understood_is_named_without_its_password(url: str, said: str) -> None:
    with pytest.raises(BelayError, match=said) as caught:
        connect(url)
    assert "planted" not in str(caught.value)


def test_password_and_authority_come_from_files(tmp_path: Path) -> None:
    (tmp_path / "password").write_text(PASSWORD)
    (tmp_path / "ca.crt").write_text("x")
    made = from_environment({
        "BELAY_REDIS_URL": "rediss+sentinel://a:1,b:2/m/0",
        "BELAY_REDIS_PASSWORD_FILE": str(tmp_path / "password"), "BELAY_REDIS_CA_FILE": str(tmp_path / "ca.crt"),
    })  # fmt: skip
    found = parse(made.redis_url)
    assert (found.password, found.hosts) == (PASSWORD, (("a", 1), ("b", 2)))
    assert found.tls is not None and found.tls["ssl_ca_certs"] == str(tmp_path / "ca.crt")


class Site:
    """A primary, a replica and a Sentinel on loopback."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        binary = find_redis_server()
        if binary is None:
            lacking("there is no redis-server: make test-packages")
        self.primary, self.replica, self.sentinel = free_port(), free_port(), free_port()
        common = (
            f'bind 127.0.0.1\nsave ""\nrequirepass "{PASSWORD}"\nmasterauth "{PASSWORD}"\nrepl-diskless-sync-delay 0\n'
        )
        texts = {
            "primary": f"port {self.primary}\n{common}",
            "replica": f"port {self.replica}\nreplicaof 127.0.0.1 {self.primary}\n{common}",
            "sentinel": f"port {self.sentinel}\nbind 127.0.0.1\nsentinel monitor mymaster 127.0.0.1 {self.primary} 1\n"
            f'sentinel auth-pass mymaster "{PASSWORD}"\nsentinel down-after-milliseconds mymaster 60000\n',
        }
        self.processes = {}
        for name, text in texts.items():
            own = folder / name
            own.mkdir()
            (own / "redis.conf").write_text(text)
            command = [binary, str(own / "redis.conf"), *(["--sentinel"] if name == "sentinel" else [])]
            with (own / "log").open("wb") as output:
                process = subprocess.Popen(command, stdout=output, stderr=output, cwd=own)
            stack.callback(process.wait, 30)
            stack.callback(process.terminate)
            self.processes[name] = process

    def promote(self) -> None:
        """What a failover does, without its waiting times: the replica becomes the primary and the Sentinel says so."""
        with redis.Redis(port=self.replica, password=PASSWORD) as client:
            client.replicaof("NO", "ONE")
        with redis.Redis(port=self.sentinel) as client:
            client.execute_command("SENTINEL", "REMOVE", "mymaster")
            client.execute_command("SENTINEL", "MONITOR", "mymaster", "127.0.0.1", self.replica, 1)
            client.execute_command("SENTINEL", "SET", "mymaster", "auth-pass", PASSWORD)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with contextlib.ExitStack() as stack:
        made = Site(tmp_path, stack)
        with redis.Redis(port=made.sentinel) as client:
            within(20, client.ping)
        with redis.Redis(port=made.replica, password=PASSWORD, decode_responses=True) as client:
            within(20, lambda: client.info("replication")["master_link_status"] == "up")
        yield made


def within(seconds: float, true: object) -> None:
    ends = time.monotonic() + seconds
    while True:
        with contextlib.suppress(redis.RedisError, StoreUnavailable, OSError):
            if true():  # type: ignore[operator]
                return
        assert time.monotonic() < ends, "it did not come true"
        time.sleep(0.05)


@pytest.mark.e2e
def test_clients_and_broker_follow_the_primary(site: Site) -> None:
    from urllib.parse import quote

    url = f"redis+sentinel://:{quote(PASSWORD, safe='')}@127.0.0.1:1,127.0.0.1:{site.sentinel}/mymaster/0"
    client = connect(url)
    application = Celery("t")
    application.conf.update(configuration(Settings(redis_url=url)))
    client.set("kept", "1")
    send(client, "belay.reconcile", "main")
    assert waiting(client) == 1
    assert int(client.wait(1, 5000)) == 1
    site.processes["primary"].kill()
    site.processes["primary"].wait()
    with pytest.raises(StoreUnavailable), translated():
        client.get("kept")

    site.promote()

    def answered() -> bool:
        with translated():
            return client.get("kept") == b"1"

    within(20, answered)
    assert client.connection_pool.get_master_address()[1] == site.replica

    async def again() -> object:
        other = connect_async(url)
        try:
            return await other.get("kept")
        finally:
            await other.aclose()

    assert asyncio.run(again()) == b"1"
    taken = []
    with application.connection_for_read() as connection, connection.channel() as channel:
        queue = application.amqp.queues["plan"](channel)
        message = queue.get(no_ack=True)
        taken.append(message.headers["task"])
    assert taken == ["belay.reconcile"] and waiting(client) == 0
    client.close()
