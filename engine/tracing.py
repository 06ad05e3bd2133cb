"""Traces by OpenTelemetry: what one commit or one fault led to, across the processes of Belay.

Off unless the environment names a collector (``OTEL_EXPORTER_OTLP_ENDPOINT``, or the variable for traces alone): then
nothing of the SDK is imported. What else the SDK reads from the environment (``OTEL_RESOURCE_ATTRIBUTES``,
``OTEL_TRACES_SAMPLER``, ``OTEL_EXPORTER_OTLP_HEADERS``, ``OTEL_BSP_MAX_QUEUE_SIZE``, …) counts as in
https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/. Spans go out over HTTP in batches,
from a thread; those that a collector does not take in time are dropped.

Ids of traces come from ``belay.engine.model.traces``.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from belay.engine.errors import InputError
from belay.engine.log import get, in_trace
from belay.engine.model.traces import root_of

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

Attributes = Mapping[str, str | int | float | bool | list[str]]
ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
CLOSE_SECONDS: Final = 3.0
OVER_HTTP: Final = "http/protobuf"

_log = get("tracing")
_tracing: Tracing | None = None
_parent: ContextVar[tuple[str, str]] = ContextVar("belay_span", default=("", ""))
"""Trace and id of the span that is open here."""


def configure(component: str, environ: Mapping[str, str] | None = None) -> None:
    """Send the spans of this process where the environment says, if it does.

    Raises InputError for a protocol other than http/protobuf.
    """
    global _tracing
    given = os.environ if environ is None else environ
    endpoint = next((given[name] for name in ENDPOINTS if given.get(name)), "")
    wanted = given.get("OTEL_TRACES_EXPORTER") or "otlp"
    if not endpoint or wanted != "otlp" or given.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return
    for name in PROTOCOLS:
        if given.get(name) and given[name] != OVER_HTTP:
            raise InputError(
                f"spans cannot be sent by {given[name]}",
                where=name,
                hint=f"Set {OVER_HTTP}, or leave it out, and name the collector's port for it (4318 by default).",
            )

    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    # a collector that is away is said once a minute (WarningLimit), not with a traceback for each batch
    logging.getLogger("opentelemetry").setLevel(logging.WARNING)
    _tracing = Tracing(component, OTLPSpanExporter(), given.get("OTEL_SERVICE_NAME", ""))
    _log.info("traces are sent", endpoint=endpoint)


def on() -> bool:
    """Whether spans of this process go anywhere."""
    return _tracing is not None


def replaced(tracing: Tracing | None) -> Tracing | None:
    """Put another sender in place of this process' one, for tests; returns the one before."""
    global _tracing
    before, _tracing = _tracing, tracing
    return before


@contextlib.contextmanager
def span(name: str, trace: str, attributes: Attributes | None = None, *, root: bool = False) -> Iterator[None]:
    """What is done inside, as a span of ``trace``, below the one that is open here; nothing for an empty trace.

    An exception that leaves it marks the span as failed.
    """
    if _tracing is None or not trace:
        yield
        return
    with _tracing.span(name, trace, attributes or {}, root=root):
        yield


def record(
    name: str, trace: str, began: float, ended: float, attributes: Attributes | None = None, *, root: bool = False
) -> None:
    """A span of what is over already; times in Unix seconds."""
    if _tracing is not None and trace:
        _tracing.record(name, trace, began, ended, attributes or {}, root=root)


class Tracing:
    """Makes spans for one component and hands them to ``exporter``."""

    def __init__(self, component: str, exporter: SpanExporter, service: str = "") -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        from belay.engine import versions

        self._ids = _ids()
        resource = Resource.create(
            {"service.name": service or f"belay-{component}", "service.version": versions.version()}
        )
        self._exporter = exporter
        self._provider = TracerProvider(resource=resource, id_generator=self._ids, shutdown_on_exit=False)
        atexit.register(self.close)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("belay")

    def close(self) -> None:
        """Send what is left, as far as the collector takes it within ``CLOSE_SECONDS``."""
        atexit.unregister(self.close)
        # without it, a collector that is away would hold up the end of the process for 30 s
        enough = threading.Timer(CLOSE_SECONDS, self._exporter.shutdown)
        enough.daemon = True
        enough.start()
        self._provider.shutdown()
        enough.cancel()

    @contextlib.contextmanager
    def span(self, name: str, trace: str, attributes: Attributes, *, root: bool) -> Iterator[None]:
        """An open span."""
        from opentelemetry.trace import StatusCode

        made = self._started(name, trace, attributes, root=root)
        identifier = format(made.get_span_context().span_id, "016x")
        token = _parent.set((trace, identifier))
        try:
            with in_trace(trace, identifier):
                yield
        except BaseException as error:
            made.set_status(StatusCode.ERROR, f"{type(error).__name__}: {error}"[:256])
            raise
        finally:
            _parent.reset(token)
            made.end()

    def record(self, name: str, trace: str, began: float, ended: float, attributes: Attributes, *, root: bool) -> None:
        """A span with given times."""
        made = self._started(name, trace, attributes, root=root, began=began)
        made.end(_nanoseconds(max(began, ended)))

    def _started(self, name: str, trace: str, attributes: Attributes, *, root: bool, began: float = 0.0) -> Any:
        from opentelemetry.context import Context
        from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

        started = _nanoseconds(began) if began else None
        if root:
            with self._ids.fixed(trace, root_of(trace)):
                return self._tracer.start_span(name, Context(), attributes=dict(attributes), start_time=started)

        # spans of other processes need not be here to be the parent; they were sampled by the same rule
        open_trace, parent = _parent.get()
        number = int(trace, 16)
        sampling: Any = self._provider.sampler.should_sample(None, number, name)
        kept = sampling.decision.is_sampled()
        context = SpanContext(
            number,
            int(parent if open_trace == trace else root_of(trace), 16),
            is_remote=open_trace != trace,
            trace_flags=TraceFlags(TraceFlags.SAMPLED if kept else TraceFlags.DEFAULT),
        )
        above = set_span_in_context(NonRecordingSpan(context), Context())
        return self._tracer.start_span(name, above, attributes=dict(attributes), start_time=started)


def _ids() -> Any:
    """A generator of ids that gives a root span the ids of its trace; the class needs the SDK."""
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    class Ids(RandomIdGenerator):
        """Random ids, but while some are fixed."""

        def __init__(self) -> None:
            self._fixed = threading.local()

        @contextlib.contextmanager
        def fixed(self, trace: str, identifier: str) -> Iterator[None]:
            """Give what is made in this thread meanwhile these ids."""
            self._fixed.ids = int(trace, 16), int(identifier, 16)
            try:
                yield
            finally:
                self._fixed.ids = None

        def generate_trace_id(self) -> int:
            ids: tuple[int, int] | None = getattr(self._fixed, "ids", None)
            return ids[0] if ids else super().generate_trace_id()

        def generate_span_id(self) -> int:
            ids: tuple[int, int] | None = getattr(self._fixed, "ids", None)
            return ids[1] if ids else super().generate_span_id()

    return Ids()


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
