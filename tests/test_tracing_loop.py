"""The trace of a commit, through a whole loop: from the fetch to the bound pods and their Events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from belay.engine import tracing
from belay.engine.kube import EVENT, Object
from belay.engine.model.labels import EVENT_TRACE
from belay.engine.sandbox import definitions
from tests.gitrepo import Repo
from tests.loop_world import Cluster, Loop, cluster, until
from tests.redis_server import redis_process, redis_url  # noqa: F401

__all__ = ["cluster"]

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(300)]

JOB = (Path(__file__).parent.parent / "desired/jobs/pretrain.yaml").read_text()
PODS = 2


class Sent:
    """What controller and worker send."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self._tracing = tracing.Tracing("test", self._exporter)
        self._before = tracing.replaced(self._tracing)

    def end(self) -> tuple[ReadableSpan, ...]:
        """All spans; none are sent any more."""
        tracing.replaced(self._before)
        self._tracing.close()
        return self._exporter.get_finished_spans()


@pytest.fixture
def sent() -> Iterator[Sent]:
    """What controller and worker send."""
    made = Sent()
    yield made
    made.end()


def test_the_trace_of_a_commit_leads_from_its_fetch_to_the_bound_pods(
    cluster: Cluster,
    sent: Sent,
    redis_url: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    repo = Repo(tmp_path / "git")
    cluster.run(definitions.ensure(cluster.kube))
    for number in range(1, PODS + 1):
        cluster.add_node(f"node-{number}")
    sha = repo.commit({"desired/pretrain.yaml": JOB})
    trace, root = sha[:32], sha[16:32]

    def announced() -> list[Object]:
        return [event for event in cluster.run(cluster.kube.list(EVENT)).items if event["reason"] == "Scheduled"]

    loop = Loop(cluster, redis_url, tmp_path / "data", source_url=str(repo.bare), source_interval=1.0)
    try:
        until(lambda: len(announced()) == PODS, what="the Events of the bound pods")
    finally:
        loop.close()
    # people who look at the Event of a pod find the trace of the commit
    assert {event["metadata"]["annotations"][EVENT_TRACE] for event in announced()} == {trace}

    spans = [span for span in sent.end() if format(span.context.trace_id, "032x") == trace]
    names = [span.name for span in spans]
    assert Counter(names)["act BindPod"] == PODS and Counter(names)["act CreatePod"] == PODS
    assert {"fetch", "read", "pass", "act CreateObject"} <= set(names)
    # one tree: the fetch is the root, by an id that follows from the commit, and everything else is below it
    (first,) = (span for span in spans if span.parent is None)
    assert first.name == "fetch" and format(first.context.span_id, "016x") == root
    assert first.attributes is not None and first.attributes["vcs.ref.head.revision"] == sha
    assert {format(span.parent.span_id, "016x") for span in spans if span.parent is not None} == {root}
    bound = [span.attributes or {} for span in spans if span.name == "act BindPod"]
    assert {str(one["k8s.pod.name"]) for one in bound} == cluster.bound()
    assert all(one["k8s.node.name"] for one in bound)
