"""`belay logs`: the pods of a job as one log, and those that a recovery puts in their places."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any, cast

import pytest
from click.testing import CliRunner, Result

from belay.engine.cli import log_follower, main
from belay.engine.cli.job_pods import SELECTOR
from belay.engine.cli.log_follower import MOST_FOLLOWED, next_wait
from belay.engine.cli.log_lines import ContinuedLog, LogLine, merged, read_line, shown
from belay.engine.cli.log_sources import LogPrinter, LogQuestion
from belay.engine.cli.logs import rank_numbers
from belay.engine.errors import InputError
from belay.engine.kube import CONFIGMAP, NAMESPACE, POD, Kube, transport
from belay.engine.kube.lister import Listing
from belay.engine.model.labels import ABOUT_LABEL, SANDBOX_LOG
from belay.engine.wire import history, names
from tests.loop_world import Cluster, until

pytestmark = pytest.mark.real_time


def publish(cluster: Cluster, phase: str, *pods: str) -> None:
    placement = {pod: {"node": "node-1", "chips": ["Ascend910-0"], "phase": "Running"} for pod in pods}
    data = {
        history.JOB_NAME_KEY: "train/AscendJob/llm",
        "phase": phase,
        "status.json": json.dumps({"placement": placement}),
    }
    metadata = {"name": f"{names.JOB_PREFIX}llm", "namespace": names.SYSTEM, "labels": {ABOUT_LABEL: "job"}}
    cluster.ensure(CONFIGMAP, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})


def run_pod(cluster: Cluster, name: str, rank: int, log: str, phase: str = "Running") -> None:
    marks = {"hccl/rankIndex": str(rank), SANDBOX_LOG: log}
    pod: dict[str, Any] = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "train", "annotations": marks},
        "spec": {"nodeName": "node-1", "containers": [{"name": "main", "image": "i"}, {"name": "side", "image": "i"}]},
    }  # fmt: skip
    cluster.ensure(POD, pod)
    cluster.run(cluster.kube.patch_status(POD, name, {"status": {"phase": phase}}, "train"))


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        for namespace in ("train", names.SYSTEM):
            made.ensure(NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        yield made
    finally:
        made.close()


def logs(cluster: Cluster, *words: str) -> Result:
    return CliRunner().invoke(main, ["logs", *words, "--kubeconfig", str(cluster.kubeconfig)])


def test_the_pods_of_a_job_are_one_log_and_a_recovery_goes_on_in_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(cluster, "Pending")
    waits = logs(cluster, "llm")
    assert waits.exit_code == 1 and "belay explain job train/llm says why" in waits.stderr

    run_pod(cluster, "llm-1", 1, "")
    publish(cluster, "Running", "llm-1")
    silent = logs(cluster, "llm")
    assert silent.exit_code == 0 and not silent.stdout and "no line in what was asked for" in silent.stderr

    run_pod(cluster, "llm-1", 1, "one\ntwo\n")
    run_pod(cluster, "llm-0", 0, "zero\n")
    run_pod(cluster, "other-0", 0, "not of the job\n")
    publish(cluster, "Running", "llm-0", "llm-1")
    assert logs(cluster, "llm").stdout == "[0 llm-0] zero\n[1 llm-1] one\n[1 llm-1] two\n"
    assert logs(cluster, "train/llm", "--rank", "1", "--tail", "1").stdout == "two\n", "one pod needs no prefix"
    assert logs(cluster, "llm", "--no-prefix", "--rank", "0-1").stdout == "zero\none\ntwo\n"
    assert "it has 0, 1" in logs(cluster, "llm", "--rank", "7").output
    assert "it has main, side" in logs(cluster, "llm", "-c", "other").output
    assert "there is no job 'gpt'" in logs(cluster, "gpt").output

    monkeypatch.setattr(log_follower, "_EVERY", 0.05)
    lines: list[str] = []
    monkeypatch.setattr(LogPrinter, "line", lambda self, prefix, line: lines.append(f"{prefix} {line.text}"))
    out: list[Result] = []
    following = threading.Thread(target=lambda: out.append(logs(cluster, "llm", "-f")))
    following.start()
    until(lambda: len(lines) == 3, what="the lines that were there")
    run_pod(cluster, "llm-0", 0, "zero\nmore\n", "Succeeded")
    cluster.run(cluster.kube.delete(POD, "llm-1", "train", grace=0))
    run_pod(cluster, "llm-1-again", 1, "resumed\n", "Succeeded")
    publish(cluster, "Running", "llm-0", "llm-1-again")
    until(lambda: len(lines) == 5, what="the lines of the pod that took the place")
    publish(cluster, "Succeeded", "llm-0", "llm-1-again")
    following.join(30)
    (result,) = out
    assert result.exit_code == 0, result.output
    assert [line for line in lines if "llm-0]" in line] == ["[0 llm-0] zero", "[0 llm-0] more"], "each line once"
    assert [line for line in lines if "llm-1]" in line] == ["[1 llm-1] one", "[1 llm-1] two"]
    assert lines.count("[1 llm-1-again] resumed") == 1 and "[1 llm-1-again] on node-1" in result.stderr


class CountedCluster:
    """A job of 3 pods beside many others. Its phase ends after some looks; what is read is written down."""

    def __init__(self, looks: int) -> None:
        self.looks = looks
        self.read: list[str] = []

    def published(self) -> dict[str, Any]:
        pods = {f"llm-{rank}": {"node": "node-1", "phase": "Running"} for rank in range(3)}
        data = {
            history.JOB_NAME_KEY: "train/AscendJob/llm", "phase": "Running" if self.looks > 0 else "Succeeded",
            "status.json": json.dumps({"placement": pods}),
        }  # fmt: skip
        metadata = {"name": f"{names.JOB_PREFIX}llm", "labels": {ABOUT_LABEL: "job"}}
        return {"metadata": metadata, "data": data}

    def pod(self, rank: int) -> dict[str, Any]:
        labels = {"volcano.sh/job-name": "llm"}
        metadata = {"name": f"llm-{rank}", "namespace": "train", "uid": f"uid-{rank}", "labels": labels,
                    "annotations": {"hccl/rankIndex": str(rank)}}  # fmt: skip
        spec = {"nodeName": "node-1", "containers": [{"name": "main"}]}
        return {"metadata": metadata, "spec": spec, "status": {"phase": "Running"}}

    async def list(self, res: Any, ns: str, labels: str | None = None) -> Listing:
        self.read.append(f"list {res.kind} {labels or ''}".strip())
        return Listing([self.published()] if res is CONFIGMAP else [self.pod(rank) for rank in range(3)], "1")

    async def get(self, res: Any, name: str, ns: str) -> dict[str, Any]:
        self.read.append(f"get {res.kind} {name}")
        self.looks -= 1
        return self.published()

    async def log(self, ns: str, pod: str, params: Any, *, quiet: float) -> AsyncIterator[str]:
        yield f"2026-11-29T10:00:00Z line of {pod}"
        while self.looks > 0:
            await asyncio.sleep(0)


def test_looks_read_the_job_alone_and_leave_connections_free(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(log_follower, "_EVERY", 0.001)
    monkeypatch.setattr(log_follower, "_LONGEST", 0.001)
    monkeypatch.setattr(log_follower, "MOST_FOLLOWED", 2)
    cluster = CountedCluster(looks=3)
    asked = LogQuestion("llm", None, frozenset(), "", None, None, False)
    printer = LogPrinter(prefixed=None, timestamps=False)
    assert asyncio.run(log_follower.LogFollower(cast("Kube", cluster), asked, printer).run())
    selected = "list Pod volcano.sh/job-name=llm"
    again = [f"get ConfigMap {names.JOB_PREFIX}llm", selected]
    assert cluster.read == [f"list ConfigMap {SELECTOR}", "list Pod", *again * 3]
    shown_lines = capsys.readouterr()
    assert shown_lines.err.count("1 pod left out: 2 are followed at once. --rank chooses which") == 1
    assert "[0 llm-0] line of llm-0" in shown_lines.out and "llm-1" in shown_lines.out
    assert MOST_FOLLOWED < transport._CONNECTIONS - 32, "the looks need connections too"


def test_looks_are_rarer_while_nothing_changes() -> None:
    waits = [2.0]
    while len(waits) < 5:
        waits.append(next_wait(waits[-1], changed=False))
    assert waits == [2.0, 4.0, 8.0, 10.0, 10.0] and next_wait(10.0, changed=True) == 2.0


def test_lines_of_several_pods_are_in_order_of_time() -> None:
    first = [read_line("2026-11-29T10:00:00.5Z a"), LogLine("", "its second line"), read_line("2026-11-29T10:00:03Z c")]
    second = [read_line("2026-11-29T10:00:01Z b")]
    found = [(prefix, line.text) for prefix, line in merged([("[0]", first), ("[1]", second)])]
    assert found == [("[0]", "a"), ("[0]", "its second line"), ("[1]", "b"), ("[0]", "c")]


def test_a_log_that_is_read_again_gives_what_is_new() -> None:
    seen = ContinuedLog()
    seen.begin()
    assert seen.takes(LogLine("", "step 1")) and seen.takes(LogLine("", "step 2")) and seen.takes(LogLine("", "step 2"))
    seen.begin()
    again = [line for line in ("step 2", "step 2", "step 3") if seen.takes(LogLine("", line))]
    assert again == ["step 3"], "the server dropped the first line"

    stamped = ContinuedLog()
    old, same, new = (read_line(f"2026-11-29T10:00:0{at}Z {text}") for at, text in ((1, "a"), (1, "b"), (2, "a")))
    assert stamped.takes(old) and stamped.takes(same)
    stamped.begin()
    assert [line.text for line in (old, same, new) if stamped.takes(line)] == ["a"], "of the second asked from"
    assert stamped.last == new.stamp == "2026-11-29T10:00:02.000000000Z"


def test_a_line_cannot_control_the_terminal() -> None:
    line = "\x1b[32mok\x1b[0m\tx\x1b]0;title\x07\x1b[2J"
    assert shown(line, terminal=True) == "\x1b[32mok\x1b[0m\tx\\u001b]0;title\\u0007\\u001b[2J"
    assert shown(line, terminal=False) == line


@pytest.mark.parametrize("text", ["", "x", "1-", "-1", "1,,2"])
def test_what_names_no_ranks_is_refused(text: str) -> None:
    assert rank_numbers("0,4-6") == {0, 4, 5, 6}
    with pytest.raises(InputError, match="Write 0, 0,3 or 4-7"):
        rank_numbers(text)
