"""Log lines: JSON, bounded, without secrets, with the pass they belong to."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from belay.engine import log


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    out = io.StringIO()
    log.configure("DEBUG", component="test", stream=out)
    yield out
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_json_with_a_constant_message_and_fields(stream: io.StringIO) -> None:
    log.get("source").info("revision accepted", sha="abc", files=3, nested={"a": [1, 2]})
    (entry,) = lines(stream)
    assert entry["message"] == "revision accepted"
    assert entry["sha"] == "abc"
    assert entry["files"] == 3
    assert entry["nested"] == {"a": [1, 2]}
    assert entry["logger"] == "belay.source"
    assert entry["level"] == "info"
    assert entry["component"] == "test"
    assert entry["time"].endswith("Z")


def test_lines_inside_a_pass_carry_its_id_and_lines_outside_do_not(stream: io.StringIO) -> None:
    logger = log.get("x")
    with log.in_pass("main-7"):
        logger.info("inside")
    logger.info("outside")
    inside, outside = lines(stream)
    assert inside["pass"] == "main-7"
    assert "pass" not in outside


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("cannot reach https://bob:hunter2@git.example/x.git", "hunter2"),
        ("cannot reach https://bob:hun@ter2@git.example/x.git", "ter2"),
        ("redis://:topsecret@10.0.0.1:6379/0", "topsecret"),
        ("https://oauth-token-1234@git.example/x", "oauth-token-1234"),
        ("Authorization: Bearer abcdef123456", "abcdef123456"),
        ("GET /x?access_token=zzz9&y=1", "zzz9"),
        ('{"password": "p4ss"}', "p4ss"),
        ("eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ4In0.c2ln", "eyJzdWIiOiJ4In0"),
        ("ghp_0123456789abcdef0123", "ghp_0123456789"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNz\n-----END OPENSSH PRIVATE KEY-----", "b3BlbnNz"),
    ],
)
def test_secrets_are_removed_from_messages_and_fields(stream: io.StringIO, text: str, secret: str) -> None:
    log.get("x").info(text)
    log.get("x").info("constant", detail=text, many=[text])
    assert secret not in stream.getvalue()
    assert secret not in log.redact(text)


def test_an_ordinary_url_is_kept(stream: io.StringIO) -> None:
    assert (
        log.redact("https://git.example/a.git at 12:30, see a@b.example")
        == "https://git.example/a.git at 12:30, see a@b.example"
    )


def test_fields_with_secret_names_are_hidden(stream: io.StringIO) -> None:
    log.get("x").info("m", token="abc123", nested={"clientSecret": "s3"}, tokens=4)
    (entry,) = lines(stream)
    assert entry["token"] == "***"
    assert entry["nested"]["clientSecret"] == "***"
    assert entry["tokens"] == 4


def test_a_line_never_exceeds_two_kibibytes_and_keeps_its_message(stream: io.StringIO) -> None:
    log.get("x").error(
        "message kept",
        big="é" * 5000,
        more={str(i): "y" * 100 for i in range(500)},
        small=1,
        **{f"k{i}": "v" * 90 for i in range(60)},
    )
    raw = stream.getvalue()
    assert len(raw.encode()) <= log.MAX_LINE_BYTES
    (entry,) = lines(stream)
    assert entry["message"] == "message kept"
    assert entry["truncated"] is True


def test_a_message_beyond_the_bound_is_cut(stream: io.StringIO) -> None:
    logging.getLogger("foreign").warning("x" * 100_000)
    assert len(stream.getvalue().encode()) <= log.MAX_LINE_BYTES
    assert lines(stream)[0]["message"].startswith("xxx")


def test_exceptions_are_named_bounded_and_redacted(stream: io.StringIO) -> None:
    try:
        raise RuntimeError("https://u:pw@h/ " + "z" * 9000)
    except RuntimeError:
        log.get("x").exception("failed")
    (entry,) = lines(stream)
    assert entry["message"] == "failed"
    assert entry["error"].startswith("RuntimeError")
    assert "pw@" not in stream.getvalue()


def test_foreign_records_with_odd_bytes_stay_one_line() -> None:
    # formatted directly: captured log text with lone surrogates cannot travel between test processes
    record = logging.LogRecord("celery", logging.WARNING, __file__, 1, "\udcff odd %s", ("byte\nnewline",), None)
    line = log.JsonFormatter().format(record)
    assert "\n" not in line and line.isprintable()
    assert json.loads(line)["message"].endswith("byte\nnewline")


def test_bad_format_arguments_do_not_lose_the_line() -> None:
    record = logging.LogRecord("celery", logging.WARNING, __file__, 1, "task %s of %d", ("a", "not a number"), None)
    assert json.loads(log.JsonFormatter().format(record))["message"].startswith("task %s of %d")


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="LOUD"):
        log.configure("LOUD")


def test_a_disabled_level_writes_nothing(stream: io.StringIO) -> None:
    log.configure("WARNING", stream=stream)
    log.get("x").info("quiet")
    assert stream.getvalue() == ""


def test_a_callers_malformed_message_leaves_no_traceback(stream: io.StringIO) -> None:
    from aiohttp.http_exceptions import BadHttpMessage
    from google.protobuf.message import DecodeError

    for error in (BadHttpMessage("no HTTP"), DecodeError("Error parsing message")):
        try:
            raise error
        except Exception:
            logging.getLogger("aiohttp.server").exception("Error handling request")
    try:
        raise KeyError("a bug of ours")
    except KeyError:
        logging.getLogger("aiohttp.server").exception("Error handling request")
    first, second, third = lines(stream)
    assert "traceback" not in first and "traceback" not in second
    assert "no HTTP" in first["error"] and "traceback" in third


def test_a_redis_that_refuses_leaves_no_traceback(stream: io.StringIO) -> None:
    import redis

    for error in (redis.OutOfMemoryError("command not allowed"), redis.ConnectionError("refused")):
        try:
            raise error
        except redis.RedisError as raised:
            logging.getLogger("kombu.asynchronous.hub").error("Error in timer: %r", raised, exc_info=True)
    assert [("traceback" in line, line["error"]) for line in lines(stream)] == [
        (False, "OutOfMemoryError: command not allowed"), (False, "ConnectionError: refused"),
    ]  # fmt: skip


def test_a_storm_of_one_warning_costs_few_lines_and_says_how_many_were_left_out() -> None:
    now = [0.0]
    limit = log.WarningLimit(lambda: now[0])

    def written(seconds: float, text: str = "following stalled", level: int = logging.WARNING) -> bool:
        now[0] = seconds
        record = logging.LogRecord("belay.kube", level, "", 0, text, None, None)
        passed = limit.filter(record)
        left_out.append(getattr(record, "belay_fields", {}).get("left_out", 0) if passed else 0)
        return passed

    left_out: list[int] = []
    storm = [written(second / 15) for second in range(250)]
    assert sum(storm) == log.MOST_REPEATS and all(storm[: log.MOST_REPEATS])
    assert written(17, "another text") and all(written(17, level=logging.ERROR) for _ in range(50))
    assert written(61) and left_out[-1] == 240
    assert written(62) and left_out[-1] == 0
