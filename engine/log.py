"""Logging: one JSON object a line, a constant message with fields, and the id of the pass it belongs to.

A line is at most 2 KiB, so that no log shipper cuts one in half, and secrets (passwords in URLs, tokens, keys) are
removed on the way out. Everything goes through the standard `logging` module: lines of Celery, aiohttp and the
Kubernetes client come out in the same form.

    log = get("reconcile")
    with in_pass("main-184"):
        log.info("plan computed", actions=3, deferred=1)
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Final, TextIO

MAX_LINE_BYTES: Final = 2048
"""Longest log line including its newline."""
REPEAT_SECONDS: Final = 60.0
MOST_REPEATS: Final = 10
"""Warnings of one text that are written in ``REPEAT_SECONDS``."""
_MOST_TEXTS: Final = 1000

_MAX_DEPTH: Final = 4
_MAX_ITEMS: Final = 32
_SHORT_VALUE: Final = 200
_FIELDS: Final = "belay_fields"
_HIDDEN: Final = "***"
#: Modules whose exceptions say all there is to say: a caller sent malformed HTTP or a malformed message, or Redis does
#: not answer or refuses, as when it is full.
_OUTSIDE: Final = ("google.protobuf", "google._upb", "aiohttp.http_exceptions", "redis.exceptions")

_pass_id: ContextVar[str] = ContextVar("belay_pass_id", default="")
_span: ContextVar[tuple[str, str]] = ContextVar("belay_log_span", default=("", ""))

_SECRET_NAME = re.compile(
    r"token|passw|secret|credential|authorization|cookie|api[-_]?key|private[-_]?key|client[-_]?key", re.IGNORECASE
)
_SECRET_TEXT: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    # user and password of any URL; greedy, because a password may hold an "@"
    (re.compile(r"\b([a-zA-Z][a-zA-Z0-9+.-]*://)[^\s/?#'\"]*@"), rf"\1{_HIDDEN}@"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[a-z0-9._~+/=-]{6,}"), rf"\1 {_HIDDEN}"),
    (
        re.compile(
            r"(?i)\b((?:access|private|auth|id|refresh)?_?(?:token|passwd|password|secret|api_?key))(\"?\s*[=:]\s*\"?)[^\s&,;\"']+"
        ),
        rf"\1\2{_HIDDEN}",
    ),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(\.[A-Za-z0-9_-]+)?"), _HIDDEN),
    (re.compile(r"\b(gh[pousr]_|github_pat_|glpat-|xox[abprs]-)[A-Za-z0-9_-]{8,}"), _HIDDEN),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), _HIDDEN),
)


def redact(text: str) -> str:
    """Return `text` without secrets of known forms: user and password of URLs, bearer tokens, `token=…` and similar,
    JSON web tokens, tokens of the large Git hosts, private keys."""
    for pattern, replacement in _SECRET_TEXT:
        text = pattern.sub(replacement, text)
    return text


class Log:
    """A named log whose methods take a constant message and fields."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def debug(self, message: str, **fields: object) -> None:
        """Write details that only help while developing."""
        self._write(logging.DEBUG, message, fields)

    def info(self, message: str, **fields: object) -> None:
        """Write what happened in normal operation."""
        self._write(logging.INFO, message, fields)

    def warning(self, message: str, **fields: object) -> None:
        """Write what was unexpected and was handled."""
        self._write(logging.WARNING, message, fields)

    def error(self, message: str, **fields: object) -> None:
        """Write what needs an operator."""
        self._write(logging.ERROR, message, fields)

    def exception(self, message: str, **fields: object) -> None:
        """Write what needs an operator, with the exception being handled."""
        self._write(logging.ERROR, message, fields, exc_info=True)

    def _write(self, level: int, message: str, fields: Mapping[str, object], exc_info: bool = False) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, message, exc_info=exc_info, extra={_FIELDS: fields}, stacklevel=3)


class JsonFormatter(logging.Formatter):
    """Turns a record into one bounded JSON line without secrets."""

    def __init__(self, component: str = "") -> None:
        super().__init__()
        self._component = component

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": _timestamp(record.created),
            "level": record.levelname.lower(),
            "message": redact(_message(record)),
            "logger": record.name,
        }
        if self._component:
            entry["component"] = self._component
        if current := _pass_id.get():
            entry["pass"] = current
        if (open_span := _span.get())[0]:
            entry["trace_id"], entry["span_id"] = open_span
        fields = getattr(record, _FIELDS, None)
        if isinstance(fields, Mapping):
            for name, value in fields.items():
                entry.setdefault(str(name), _clean(str(name), value, _MAX_DEPTH))
        if record.exc_info and record.exc_info[1] is not None:
            entry["error"] = redact(f"{type(record.exc_info[1]).__name__}: {record.exc_info[1]}")
            if _from_outside(record.exc_info[1]):
                return _bounded_line(entry)  # where it was noticed says nothing
            # the end of a traceback names the cause
            entry["traceback"] = redact(self.formatException(record.exc_info))[-900:]
        return _bounded_line(entry)


class WarningLimit(logging.Filter):
    """Lets a few warnings of one text through per window, and says with the next one how many were left out.

    Every text is a constant (``Log``), so that one cause, such as an API server that is away, costs a bounded number of
    lines, however many parts meet it. Errors are never left out.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        #: by logger and text: when the window began, lines in it, lines left out
        self._windows: dict[tuple[str, str], tuple[float, int, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written."""
        if record.levelno != logging.WARNING:
            return True
        key, now = (record.name, str(record.msg)), self._clock()
        began, written, left_out = self._windows.get(key, (now, 0, 0))
        if now - began >= REPEAT_SECONDS:
            began, written = now, 0
        if written >= MOST_REPEATS:
            self._windows[key] = (began, written, left_out + 1)
            return False

        if left_out:
            fields = getattr(record, _FIELDS, None)
            setattr(record, _FIELDS, {**(fields if isinstance(fields, Mapping) else {}), "left_out": left_out})
        if len(self._windows) >= _MOST_TEXTS:
            self._windows.clear()
        self._windows[key] = (began, written + 1, 0)
        return True


def _from_outside(error: BaseException) -> bool:
    """Whether a library of the network refused what others sent, or met what others refuse."""
    return type(error).__module__.startswith(_OUTSIDE)


def get(name: str) -> Log:
    """Return the log of that name below `belay`; `get("source")` writes as `belay.source`."""
    return Log(logging.getLogger(f"belay.{name}"))


def configure(level: str = "INFO", component: str = "", stream: TextIO | None = None) -> None:
    """Send every log of this process to `stream` (default: standard error) as JSON. `level` is a name that `logging`
    knows; an unknown one raises ValueError. Calling it again replaces the earlier configuration."""
    numeric = logging.getLevelNamesMapping().get(level.upper())
    if numeric is None:
        raise ValueError(f"unknown log level {level!r}; use DEBUG, INFO, WARNING or ERROR")
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(component))
    handler.addFilter(WarningLimit())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(numeric)
    logging.captureWarnings(True)


@contextlib.contextmanager
def in_pass(pass_id: str) -> Iterator[None]:
    """Give every line written inside (also by called code and by tasks started from here) the field `pass`."""
    token = _pass_id.set(pass_id)
    try:
        yield
    finally:
        _pass_id.reset(token)


@contextlib.contextmanager
def in_trace(trace: str, span: str) -> Iterator[None]:
    """Give every line written inside the fields `trace_id` and `span_id`, as OpenTelemetry names them in JSON."""
    token = _span.set((trace, span))
    try:
        yield
    finally:
        _span.reset(token)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError, KeyError) as error:  # a library's bad format arguments must not silence its line
        return f"{record.msg} (arguments not formatted: {type(error).__name__})"


def _timestamp(seconds: float) -> str:
    millis = int(seconds * 1000) % 1000
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{millis:03d}Z"


def _clean(name: str, value: object, depth: int) -> object:
    if _SECRET_NAME.search(name) and isinstance(value, str | bytes):
        return _HIDDEN
    match value:
        case None | bool() | int() | float():
            return value
        case str():
            return redact(value)
        case Mapping() if depth:
            return {str(k): _clean(str(k), v, depth - 1) for k, v in list(value.items())[:_MAX_ITEMS]}
        case list() | tuple() | set() | frozenset() if depth:
            return [_clean("", item, depth - 1) for item in list(value)[:_MAX_ITEMS]]
        case _:
            return redact(str(value))


def _bounded_line(entry: dict[str, object]) -> str:
    line = _encode(entry)
    if _fits(line):
        return line
    entry = {name: _shorten(value) for name, value in entry.items()} | {"truncated": True}
    for name in sorted((n for n in entry if n not in _KEPT), key=lambda n: len(_encode({n: entry[n]})), reverse=True):
        if _fits(line := _encode(entry)):
            return line
        del entry[name]
    return _encode(entry)


_KEPT: Final = frozenset(
    {"time", "level", "message", "logger", "component", "pass", "trace_id", "span_id", "truncated"}
)


def _shorten(value: object) -> object:
    if isinstance(value, str):
        return value if len(value) <= _SHORT_VALUE else value[:_SHORT_VALUE] + "…"
    encoded = _encode({"": value})
    return value if len(encoded) <= 2 * _SHORT_VALUE else encoded[:_SHORT_VALUE] + "…"


def _encode(entry: Mapping[str, object]) -> str:
    # ensure_ascii: a lone surrogate or an odd byte must not break the stream
    return json.dumps(entry, ensure_ascii=True, default=str, separators=(",", ":"))


def _fits(line: str) -> bool:
    return len(line) + 1 <= MAX_LINE_BYTES
