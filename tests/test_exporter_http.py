"""The exporter's server: answers, limits, bad clients, TLS, client certificates, the probe; and text files."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import gzip
import ipaddress
import json
import os
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from belay.agents.exporter import run
from belay.agents.exporter.textfiles import TextFiles
from belay.agents.serving import http, probe
from belay.agents.serving.http import HttpResponse, Server
from belay.agents.serving.limits import Limits, RequestLimiter
from belay.agents.serving.tls import Certificate, TlsError

pytestmark = pytest.mark.real_time


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection counts as stalled, however slow the machine; tests of stalled ones set their own time."""
    monkeypatch.setattr(http, "STALLED_SECONDS", 1e6)


OPEN = Limits(concurrency=512, spacing=0, per_address=128, total=512)
BODY = b"x" * 300_000


def page(path: str, gzip_: bool) -> HttpResponse:
    if path == "/broken":
        raise RuntimeError("a bug")
    return (
        HttpResponse(200, gzip.compress(BODY), encoding="gzip")
        if gzip_
        else HttpResponse(200, BODY if path == "/metrics" else b"<p>")
    )


@contextlib.asynccontextmanager
async def serving(limits: Limits = OPEN, **more: Any) -> AsyncIterator[tuple[Server, int]]:
    server = Server(page, RequestLimiter(limits), **more)
    port = await server.start("127.0.0.1", 0)
    try:
        yield server, port
    finally:
        await server.close()


async def ask(port: int, text: str = "GET /metrics HTTP/1.1\r\n\r\n", **more: Any) -> bytes:
    """Send and read until the server closes or the answer is whole."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, **more)
    try:
        writer.write(text.encode())
        return await answer(reader)
    finally:
        writer.close()


async def answer(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return head + await reader.readexactly(length)


def status(found: bytes) -> int:
    return int(found.split(b" ")[1])


def test_answers() -> None:
    async def go() -> None:
        async with serving() as (_, port):
            found = await ask(port)
            assert found.endswith(BODY) and b"Content-Type: text/plain" in found
            packed = await ask(port, "GET /metrics HTTP/1.1\r\nAccept-Encoding: br;q=1, gzip\r\n\r\n")
            assert b"Content-Encoding: gzip" in packed
            assert gzip.decompress(packed.partition(b"\r\n\r\n")[2]) == BODY
            for path in ("/", "/anything", "/metrics/"):
                assert (await ask(port, f"GET {path} HTTP/1.1\r\n\r\n")).endswith(b"<p>")
            assert (await ask(port, "GET /metrics?a=b HTTP/1.1\r\n\r\n")).endswith(BODY)
            for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS"):
                assert status(await ask(port, f"{method} /metrics HTTP/1.1\r\n\r\n")) == 404
            moved = await ask(port, "GET //a/../metrics HTTP/1.1\r\n\r\n")
            assert status(moved) == 307 and b"Location: /metrics\r\n" in moved
            assert status(await ask(port, "GET /broken HTTP/1.1\r\n\r\n")) == 500
            assert status(await ask(port)) == 200

    asyncio.run(go())


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("GET /metrics\r\n\r\n", 400),
        ("GET metrics HTTP/1.1\r\n\r\n", 400),
        ("GET /metrics HTTP/1.1\r\nno colon\r\n\r\n", 400),
        ("GET /metrics HTTP/1.1\r\nX: " + "a" * 6000 + "\r\n\r\n", 431),
        ("GET /metrics HTTP/1.1\r\nX: " + "a" * 6000, 431),
        ("POST /metrics HTTP/1.1\r\nContent-Length: 10485761\r\n\r\n", 413),
        ("POST /metrics HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 413),
        ("POST /metrics HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 413),
        ("\x00\x01\x02\r\n\r\n", 400),
    ],
)
def test_bad_requests_are_refused_and_cut_off(text: str, code: int) -> None:
    async def go() -> None:
        async with serving() as (server, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(text.encode())
            found = await reader.read()
            writer.close()
            assert status(found) == code and b"Connection: close" in found
            assert status(await ask(port)) == 200
            assert not server.gate._answering

    asyncio.run(go())


def test_a_connection_serves_many_requests_and_skips_bodies() -> None:
    async def go() -> None:
        async with serving() as (server, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(3):
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
                assert status(await answer(reader)) == 200
            # two at once, one with a body that looks like a request
            body = b"GET /broken HTTP/1.1\r\n\r\n"
            writer.write(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n%bGET / HTTP/1.1\r\n\r\n" % (len(body), body))
            assert [status(await answer(reader)), status(await answer(reader))] == [404, 200]
            writer.write(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
            assert status(await answer(reader)) == 200 and await reader.read() == b""
            writer.close()
            await asyncio.sleep(0.01)
            assert not server.open

    asyncio.run(go())


def test_requests_of_one_address_are_spaced() -> None:
    gate = RequestLimiter(Limits(spacing=0.05, addresses=2))
    asked = [(0.0, "a"), (0.01, "a"), (0.01, "b"), (0.049, "a"), (0.05, "a"), (0.06, "c"), (0.07, "b")]
    # b was forgotten when c came, because two addresses are remembered
    assert [gate.request(address, at) for at, address in asked] == [True, False, True, False, True, True, True]
    trusted = RequestLimiter(Limits(spacing=10, trusted=(ipaddress.ip_network("10.0.0.0/8"),)))
    assert [trusted.request(a, 0.0) for a in ("10.1.1.1", "10.1.1.1", "::ffff:10.1.1.1", "11.1.1.1", "11.1.1.1")] == [
        True, True, True, True, False,
    ]  # fmt: skip


def test_beyond_the_documented_limits_it_is_503() -> None:
    async def go() -> None:
        # the defaults: one request per 50 ms, 5 connections per address, 20 in all
        async with serving(Limits()) as (_, port):
            codes = [status(await ask(port)) for _ in range(3)]
            assert codes[0] == 200 and 503 in codes
            await asyncio.sleep(0.06)
            assert status(await ask(port)) == 200
            held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
            await asyncio.sleep(0.06)
            busy = await ask(port)
            assert status(busy) == 503 and busy.endswith(b"503 too busy\n")
            for _, writer in held:
                writer.close()
            await asyncio.sleep(0.06)
            assert status(await ask(port)) == 200

    asyncio.run(go())


def test_a_crowd_gets_503_and_a_flood_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    async def one(port: int) -> int:
        try:
            return status(await ask(port))
        except (ConnectionError, asyncio.IncompleteReadError):
            return 0

    async def go() -> None:
        async with serving(Limits()) as (server, port):
            codes = await asyncio.gather(*(one(port) for _ in range(200)))
            assert codes.count(503) >= 199 and codes.count(503) + codes.count(200) == 200
            monkeypatch.setattr("belay.agents.serving.limits.REFUSED_AT_ONCE", 10)
            codes = await asyncio.gather(*(one(port) for _ in range(200)))
            assert 0 in codes and server.gate._refused <= 10
            await asyncio.sleep(0.06)
            assert status(await ask(port)) == 200 and server.gate._refused == 0

    asyncio.run(go())


def test_so_many_connections_in_all() -> None:
    async def go() -> None:
        async with serving(Limits(spacing=0, per_address=5, total=20)) as (server, port):
            held = []
            for number in range(5):
                local = (f"127.0.0.{number + 1}", 0)
                for _ in range(5):
                    held.append(await asyncio.open_connection("127.0.0.1", port, local_addr=local))
            await asyncio.sleep(0.02)
            assert server.gate._total == 20
            assert status(await ask(port, local_addr=("127.0.0.9", 0))) == 503
            for _, writer in held:
                writer.close()
            await asyncio.sleep(0.02)
            assert server.gate._total == 0
            assert status(await ask(port, local_addr=("127.0.0.9", 0))) == 200

    asyncio.run(go())


def test_answers_at_once_are_counted_until_they_are_out() -> None:
    async def go() -> None:
        big = HttpResponse(200, b"x" * (32 << 20))
        limits = Limits(concurrency=1, spacing=0)
        server = Server(lambda path, gzip_: big, RequestLimiter(limits))
        port = await server.start("127.0.0.1", 0)
        # a client that does not read holds the only place
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await reader.readuntil(b"\r\n")
        assert status(await ask(port)) == 503
        writer.transport.abort()
        await asyncio.sleep(0.05)
        assert status(await ask(port)) == 200
        await server.close()

    asyncio.run(go())


def test_sixty_scrapers_that_never_read_hold_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        big = HttpResponse(200, b"x" * (8 << 20))
        server = Server(lambda path, gzip_: big, RequestLimiter(Limits(spacing=0)))
        port = await server.start("127.0.0.1", 0)
        silent = []
        for number in range(60):
            local = (f"127.0.1.{number % 12 + 1}", 0)
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024, local_addr=local)
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            silent.append((reader, writer))
        while server.gate._answering < 5:
            await asyncio.sleep(0.01)
        assert status(await ask(port, local_addr=("127.0.0.9", 0))) == 503
        monkeypatch.setattr(http, "STALLED_SECONDS", 0.05)
        await asyncio.sleep(0.1)
        for _ in range(10):
            found = await ask(port, local_addr=("127.0.0.9", 0))
            assert status(found) == 200 and len(found) > 8 << 20
        for _, writer in silent:
            writer.transport.abort()
        await server.close()
        assert server.gate._total == server.gate._answering == 0

    asyncio.run(go())


def test_connections_without_requests_give_up_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        async with serving(Limits(spacing=0)) as (server, port):
            held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
            assert status(await ask(port)) == 503, "five of one address are its limit"
            monkeypatch.setattr(http, "STALLED_SECONDS", 0.0)
            assert status(await ask(port)) == 200
            assert await held[0][0].read() == b"", "the one that was silent for longest is closed"
            for _, writer in held:
                writer.close()
            while server.open:
                await asyncio.sleep(0.01)
            assert server.gate._total == 0 and not server.gate._connections

    asyncio.run(go())


def test_a_slow_reader_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "STALLED_SECONDS", 1.0)

    async def go() -> None:
        big = HttpResponse(200, b"x" * (32 << 20))
        server = Server(lambda path, gzip_: big, RequestLimiter(Limits(concurrency=1, spacing=0)))
        port = await server.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await reader.readuntil(b"\r\n")
        (connection,) = server.open
        before = connection.since
        connection._unread += 1  # as if it had read since the last look
        connection._measure()
        assert connection.since > before
        writer.transport.abort()
        await server.close()

    asyncio.run(go())


def test_200_scrapers_at_once_when_the_limits_are_raised() -> None:
    async def go() -> None:
        limits = Limits(concurrency=512, spacing=0.001, per_address=128, total=512,
                        trusted=(ipaddress.ip_network("127.0.0.0/8"),))  # fmt: skip
        async with serving(limits) as (_, port):
            found = await asyncio.gather(*(ask(port) for _ in range(200)))
            assert [status(one) for one in found] == [200] * 200
            assert all(one.endswith(BODY) for one in found)

    asyncio.run(go())


def certificates(folder: Path) -> dict[str, str]:
    """An authority, a server's and a client's certificate, made by openssl."""
    folder.mkdir(exist_ok=True)
    names = {name: str(folder / name) for name in ("ca.crt", "ca.key", "srv.crt", "srv.key", "cli.crt", "cli.key")}

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=30)

    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj",
            "/CN=test-ca", "-keyout", names["ca.key"], "-out", names["ca.crt"])  # fmt: skip
    for who in ("srv", "cli"):
        request = str(folder / f"{who}.csr")
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=localhost",
                "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", names[f"{who}.key"], "-out",
                request)  # fmt: skip
        openssl("x509", "-req", "-in", request, "-CA", names["ca.crt"], "-CAkey", names["ca.key"], "-CAcreateserial",
                "-days", "2", "-copy_extensions", "copy", "-out", names[f"{who}.crt"])  # fmt: skip
        os.chmod(names[f"{who}.key"], 0o600)
    return names


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return certificates(tmp_path_factory.mktemp("tls"))


def client(files: dict[str, str], *, shown: bool) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=files["ca.crt"])
    if shown:
        context.load_cert_chain(files["cli.crt"], files["cli.key"])
    return context


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_tls_and_client_certificates(files: dict[str, str]) -> None:
    async def go() -> None:
        plain = Certificate(files["srv.crt"], files["srv.key"])
        async with serving(tls=plain.context) as (_, port):
            assert (await ask(port, ssl=client(files, shown=False))).endswith(BODY)
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await ask(port)
            old = client(files, shown=False)
            old.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
            old.maximum_version = ssl.TLSVersion.TLSv1_1
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await ask(port, ssl=old)
        strict = Certificate(files["srv.crt"], files["srv.key"], files["ca.crt"])
        async with serving(tls=strict.context) as (_, port):
            assert (await ask(port, ssl=client(files, shown=True))).endswith(BODY)
            with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                await ask(port, ssl=client(files, shown=False))

    asyncio.run(go())


def test_a_new_certificate_is_taken_without_a_restart(files: dict[str, str], tmp_path: Path) -> None:
    own = {name: tmp_path / name for name in ("srv.crt", "srv.key")}
    for name, path in own.items():
        path.write_bytes(Path(files[name]).read_bytes())
        path.chmod(0o600)
    certificate = Certificate(str(own["srv.crt"]), str(own["srv.key"]))
    assert not certificate.renew()
    other = certificates(tmp_path / "other")

    async def go() -> None:
        async with serving(tls=certificate.context) as (_, port):
            own["srv.crt"].write_bytes(b"torn")
            assert not certificate.renew()
            assert status(await ask(port, ssl=client(files, shown=False))) == 200
            for name, path in own.items():
                path.write_bytes(Path(other[name]).read_bytes())
            assert certificate.renew()
            assert status(await ask(port, ssl=client(other, shown=False))) == 200

    asyncio.run(go())


def test_a_key_that_others_can_read_is_refused(files: dict[str, str], tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(Path(files["srv.key"]).read_bytes())
    key.chmod(0o644)
    with pytest.raises(TlsError, match="chmod 0600"):
        Certificate(files["srv.crt"], str(key))
    with pytest.raises(TlsError, match="nowhere"):
        Certificate("/nowhere/a.crt", files["srv.key"])


def test_the_probe() -> None:
    async def go() -> None:
        trouble = [""]
        server = probe.server(lambda: trouble[0])
        port = await server.start("127.0.0.1", 0)
        found = await ask(port, "GET / HTTP/1.1\r\n\r\n")
        assert status(found) == 200 and found.endswith(b"ok")
        trouble[0] = "collection stands still for 130 s"
        found = await ask(port, "GET / HTTP/1.1\r\n\r\n")
        assert status(found) == 503 and found.endswith(trouble[0].encode())
        assert status(await ask(port, "GET /healthz HTTP/1.1\r\n\r\n")) == 404
        assert status(await ask(port, "POST / HTTP/1.1\r\n\r\n")) == 405
        codes = [status(await ask(port, "GET / HTTP/1.1\r\n\r\n")) for _ in range(3)]
        # five at once, and this was the sixth
        assert codes[0] == 503 and 429 in codes
        await server.close()

    asyncio.run(go())


def test_the_probes_bucket_fills_by_one_a_second() -> None:
    bucket = probe.ProbeLimiter()
    assert [bucket.request("a", 100.0) for _ in range(6)] == [True] * 5 + [False]
    assert [bucket.request("b", 101.0), bucket.request("b", 101.5), bucket.request("b", 102.0)] == [True, False, True]


DOCUMENT = {
    "version": "1.0", "name": "room_temperature", "desc": "how warm", "timestamp": 1_700_000_000_000_000,
    "data_list": [{"label": {"rack": "7", "row": "a"}, "value": 21.5}, {"label": {"rack": "8"}, "value": 20}],
}  # fmt: skip


def write(path: Path, **changes: Any) -> Path:
    path.write_text(json.dumps({**DOCUMENT, **changes}))
    path.chmod(0o640)
    return path


def test_text_files(tmp_path: Path) -> None:
    first = write(tmp_path / "a.json")
    files = TextFiles(f" {first} ,")
    (metric,) = files.read()
    assert (metric.name, metric.labels, metric.time_ms) == ("room_temperature", ("rack", "row"), 1_700_000_000_000)
    assert metric.rows == ((("7", "a"), 21.5), (("8", ""), 20.0))
    # a new label is passed over, a missing one is empty
    write(first, data_list=[{"label": {"new": "x", "row": "b"}, "value": 1}])
    assert files.read()[0].rows == ((("", "b"), 1.0),)
    for change in (
        {"name": "other"}, {"desc": "other"}, {"version": "2.0"}, {"data_list": []}, {"timestamp": 0},
        {"data_list": [{"label": {}, "value": "warm"}]},
    ):  # fmt: skip
        write(first, **change)
        assert files.read()[0].rows == ((("", "b"), 1.0),), change
    first.unlink()
    assert len(files.read()) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"version": "1"}, {"name": ""}, {"name": "a" * 129}, {"name": "a-b"}, {"desc": ""}, {"desc": "a" * 1025},
        {"timestamp": -1}, {"data_list": []}, {"data_list": [{"label": {}, "value": 1}] * 129},
        {"data_list": [{"label": {f"l{n}": "" for n in range(11)}, "value": 1}]}, {"data_list": "x"},
        {"data_list": [{"label": {"a b": ""}, "value": 1}]}, {"name": "npu_chip_info_power"}, {"name": 7},
    ],
)  # fmt: skip
def test_text_files_that_break_a_rule_are_not_shown(tmp_path: Path, change: dict[str, Any]) -> None:
    assert TextFiles(str(write(tmp_path / "a.json", **change))).read() == ()


def test_text_files_that_may_not_be_read(tmp_path: Path) -> None:
    good, other = write(tmp_path / "a.json"), write(tmp_path / "b.json")
    link = tmp_path / "link.json"
    link.symlink_to(good)
    assert TextFiles(f"{link},{tmp_path}").read() == ()
    good.chmod(0o750)
    assert TextFiles(str(good)).read() == ()
    good.chmod(0o640)
    # the second file of the same name is passed over
    assert [metric.path for metric in TextFiles(f"{good},{other}").read()] == [str(good)]
    good.write_text(json.dumps(DOCUMENT) + " " * (100 * 1024))
    assert TextFiles(str(good)).read() == ()
    many = [write(tmp_path / f"{n}.json", name=f"metric_{n}") for n in range(12)]
    assert len(TextFiles(",".join(map(str, many))).read()) == 10
    empty = tmp_path / "later.json"
    waiting = TextFiles(f"{empty},{many[0]}")
    assert waiting.waiting == (empty,) and len(waiting.read()) == 1
    waiting.drop(waiting.waiting)
    assert waiting.paths == (many[0],)


def test_a_log_file_is_rotated_and_old_ones_go(tmp_path: Path) -> None:
    import logging

    log = run._Rotated(str(tmp_path / "npu.log"), 3, 7)
    log.maxBytes = 10
    old = tmp_path / "npu.log.2"
    old.write_text("x")
    weeks_ago = (datetime.datetime.now() - datetime.timedelta(days=30)).timestamp()
    os.utime(old, (weeks_ago, weeks_ago))
    for text in ("first line", "second line"):
        log.emit(logging.LogRecord("belay", logging.INFO, "", 0, text, None, None))
    log.close()
    kept = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert kept["npu.log"] == "second line\n" and "x" not in kept.values()
