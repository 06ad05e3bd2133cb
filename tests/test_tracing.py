"""Spans: what they say, where they go, and that nothing is imported or lost where none are wanted."""

from __future__ import annotations

import gzip
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from belay.engine import tracing
from belay.engine.act.batch import decode
from belay.engine.controller.pass_traces import PassTraces
from belay.engine.documents import Desired
from belay.engine.errors import InputError
from belay.engine.log import JsonFormatter
from belay.engine.model import traces
from belay.engine.model.actions import AnyAction, BindPod, EvictPod, Evidence, IsolateChip, ResetChips
from belay.engine.model.causes import Cause, CauseKind
from belay.engine.model.cluster import Observed
from belay.engine.model.history import (
    ChipMemory,
    CodeMemory,
    History,
    JobMemory,
    NodeMemory,
    Recovery,
    RescheduleRecord,
)
from belay.engine.model.plan import Plan
from belay.engine.model.traces import TraceOrigin
from belay.engine.store import PassRecord

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NOW = 1_800_000_000.0
MS = int(NOW * 1000)


class Collector:
    """A stand-in for an OpenTelemetry collector: takes OTLP over HTTP, answers ``status``."""

    def __init__(self, status: int = 200) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                assert self.path == "/v1/traces"
                collector.requests.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Sent:
    """Spans of this process, kept instead of sent."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self._tracing = tracing.Tracing("test", self._exporter)
        self._before = tracing.replaced(self._tracing)

    def end(self) -> tuple[ReadableSpan, ...]:
        tracing.replaced(self._before)
        self._tracing.close()
        return self._exporter.get_finished_spans()


@pytest.fixture
def sent() -> Iterator[Sent]:
    made = Sent()
    yield made
    made.end()


def trace_of(span: ReadableSpan) -> str:
    return format(span.get_span_context().trace_id, "032x")  # type: ignore[union-attr]


def test_where_no_collector_is_named_nothing_of_the_sdk_is_imported() -> None:
    script = (
        "import sys; from belay.engine import tracing\n"
        "tracing.configure('worker', {'OTEL_SERVICE_NAME': 'x'}); assert not tracing.on()\n"
        "with tracing.span('act', 'ab' * 16): pass\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr


def test_spans_reach_the_collector_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    collector = Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.cluster.name=blue")
    tracing.configure("worker")
    with tracing.span("act BindPod", traces.of_commit(COMMIT), {"k8s.pod.name": "train-0"}):
        pass
    made = tracing.replaced(None)
    assert made is not None
    made.close()
    collector.close()

    ((resource,),) = ([*request.resource_spans] for request in collector.requests)
    told = {one.key: one.value.string_value for one in resource.resource.attributes}
    assert told["service.name"] == "belay-worker" and told["k8s.cluster.name"] == "blue"
    (span,) = resource.scope_spans[0].spans
    assert (span.name, span.trace_id.hex(), span.parent_span_id.hex()) == ("act BindPod", COMMIT[:32], COMMIT[16:32])
    assert {one.key: one.value.string_value for one in span.attributes} == {"k8s.pod.name": "train-0"}


def test_another_protocol_is_refused_in_words_that_help() -> None:
    with pytest.raises(InputError) as refused:
        tracing.configure("worker", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
    assert "OTEL_EXPORTER_OTLP_PROTOCOL: spans cannot be sent by grpc. Set http/protobuf" in str(refused.value)
    assert not tracing.on()


def test_a_span_in_a_span_is_below_it_and_log_lines_name_both(sent: Sent) -> None:
    lines: list[dict[str, Any]] = []

    def line(text: str) -> None:
        record = logging.LogRecord("belay", logging.INFO, "f", 1, text, None, None)
        lines.append(json.loads(JsonFormatter().format(record)))

    trace = traces.of_commit(COMMIT)
    with tracing.span("pass", trace), pytest.raises(ValueError), tracing.span("order", trace):
        line("inside")
        raise ValueError("the node does not answer")
    line("outside")

    inner, outer = sent.end()
    assert inner.parent is not None and inner.parent.span_id == outer.get_span_context().span_id  # type: ignore[union-attr]
    assert inner.status.description == "ValueError: the node does not answer" and outer.status.is_unset
    assert lines[0]["trace_id"] == trace and lines[0]["span_id"] == format(inner.get_span_context().span_id, "016x")  # type: ignore[union-attr]
    assert "trace_id" not in lines[1]


def test_a_collector_that_refuses_or_is_away_costs_spans_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "CLOSE_SECONDS", 0.2)
    for url in ("http://127.0.0.1:9", (refusing := Collector(400)).url):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        tracing.configure("worker")
        for _ in range(5000):
            tracing.record("act BindPod", traces.of_commit(COMMIT), NOW, NOW + 1)
        made = tracing.replaced(None)
        assert made is not None
        made.close()
    assert len(refusing.requests) >= 1
    refusing.close()


# which trace


def bind(pod: str, gang: str | None = None, cause: Cause | None = None) -> BindPod:
    evidence = Evidence(cause=cause) if cause is not None else Evidence()
    return BindPod(
        reason="Placed",
        message="",
        namespace="ml",
        pod=pod,
        node="n1",
        chips=(),
        annotations={},
        gang=gang,
        evidence=evidence,
    )


def evict(pod: str, unit: str) -> EvictPod:
    return EvictPod(
        reason="Fault",
        message="",
        namespace="ml",
        pod=pod,
        grace_period_seconds=0,
        force=False,
        owner=None,
        budget_unit=unit,
    )


def isolate(node: str, codes: tuple[str, ...] = ("80C98001",)) -> IsolateChip:
    return IsolateChip(
        reason="Fault",
        message="",
        node=node,
        chips=("Ascend910-1",),
        level="SeparateNPU",
        evidence=Evidence(codes=codes),
    )


def plan_of(*actions: AnyAction, jobs: dict[str, JobMemory] | None = None) -> Plan:
    seen = {"80C98001": CodeMemory(MS - 900, MS), "old": CodeMemory(MS - 99_000, MS - 98_000, present=False)}
    nodes = {name: NodeMemory(chips={1: ChipMemory(codes=seen)}) for name in ("n1", "n2")}
    return Plan(revision=COMMIT, now=NOW, actions=actions, history=History(nodes=nodes, jobs=jobs or {}))


def recovering(back: int = 0) -> JobMemory:
    recovery = Recovery(MS, "restart", "Fault", seen=MS - 900, placed=MS + 50, running=MS + 300, back=back)
    return JobMemory(recoveries=(recovery,), records=(RescheduleRecord(MS, (("Fault", "train-0", "n1", "0"),)),))


def test_what_a_recovery_does_is_one_trace_from_the_isolation_to_the_new_binding() -> None:
    reset = ResetChips(reason="R", message="", node="n9", chips=(), epoch=1, out_of_band=False, job="ml/train")
    plan = plan_of(
        isolate("n1"),
        evict("train-0", "ml/train/worker"),
        bind("train-1", "ml/train"),
        reset,
        jobs={"ml/train": recovering()},
    )
    found = traces.of_actions(plan, "main-1-x", lambda _: COMMIT)
    assert set(found) == {traces.Trace(traces.of_recovery("ml/train", MS), TraceOrigin.RECOVERY, MS)}


def test_a_fault_without_a_recovery_has_the_trace_of_its_node_and_time() -> None:
    found = traces.of_actions(plan_of(isolate("n1"), isolate("n2"), isolate("n1", ())), "main-1-x", lambda _: "")
    assert found[0] == traces.Trace(traces.of_fault("n1", MS - 900), TraceOrigin.FAULT, MS - 900)
    assert found[1].id != found[0].id and found[2] == traces.Trace(traces.of_pass("main-1-x"), TraceOrigin.PASS)


def test_a_binding_has_the_trace_of_the_commit_that_is_its_cause_or_declares_its_job() -> None:
    other = "f" * 40
    cause = Cause(kind=CauseKind.DOCUMENT, subject="Queue/q", commit=other)
    plan = plan_of(bind("a"), bind("b", cause=cause))
    found = traces.of_actions(plan, "main-1-x", lambda action: COMMIT)
    assert [trace.id for trace in found] == [COMMIT[:32], other[:32]]
    # a work tree with changes that were not committed is no commit, and has a trace as well
    assert len(traces.of_commit("worktree-0123")) == 32 and traces.of_commit("worktree-0123") != traces.of_commit(
        "worktree-0124"
    )


def test_a_recovery_that_ended_comes_with_its_stages(sent: Sent) -> None:
    before = Observed(history=History(jobs={"ml/train": recovering()}))
    plan = plan_of(jobs={"ml/train": recovering(back=MS + 2000)})
    spans = PassTraces("main", lambda: NOW + 2)
    assert spans.of(plan, "main-1-x", Desired(), before) == []
    spans.passed(plan, before, 0.01)
    # the next pass sees nothing new
    spans.passed(plan, Observed(history=plan.history), 0.01)

    found = {span.name: span for span in sent.end()}
    assert {trace_of(span) for span in found.values()} == {traces.of_recovery("ml/train", MS)}
    took = {name: round(((span.end_time or 0) - (span.start_time or 0)) / 1e9, 3) for name, span in found.items()}
    assert took == {"recovery": 2.9, "decide": 0.9, "schedule": 0.05, "start": 0.25, "resume": 1.7}
    assert found["recovery"].parent is None and found["decide"].parent is not None


def test_a_fault_begins_its_trace_once(sent: Sent) -> None:
    spans, plan = PassTraces("main", lambda: NOW), plan_of(isolate("n1"))
    for _ in range(2):
        assert spans.of(plan, "main-1-x", Desired(), Observed()) == [traces.of_fault("n1", MS - 900)]
        spans.passed(plan, Observed(), 0.01)
    assert [span.name for span in sent.end()] == ["fault", "pass", "pass"]


def test_messages_of_an_earlier_release_have_no_traces() -> None:
    record = PassRecord("main-1-x", "main", 1, "", 2, 1.0, 2.0)
    message = {"record": record, "number": 1, "actions": [], "revision": COMMIT, "refusals": False}
    assert decode(msgspec.json.encode(message).decode()).traces == []
