"""What a person sees: lines as wide as the terminal, times from now, answers that go on, progress."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from belay.engine.cli import ages, layout, output, simulation
from belay.engine.cli.narrative import narrate
from belay.engine.cli.progress import SWITCH, progress
from belay.engine.cli.watching import ended_by_signals
from belay.engine.kube import NAMESPACE, resource_for
from belay.engine.model.times import rfc3339
from tests.loop_world import Cluster
from tests.test_cli import ROOT, as_list, belay, refused, world

NOW = 1_788_249_600.0
WORDS = st.text(alphabet="abc,- ", max_size=60)


@pytest.fixture
def cluster_file(tmp_path: Path) -> str:
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps(as_list(world())))
    return str(file)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


# widths


@given(WORDS, st.integers(5, 40))
def test_wrapping_loses_nothing_and_breaks_no_word(text: str, room: int) -> None:
    lines = layout.wrapped(text, room)
    assert " ".join(lines).split() == text.split() or "".join("".join(lines).split()) == "".join(text.split())
    longest = max((layout.width(piece) for piece in re.findall(r"[^\s,]*,+|[^\s,]+", text)), default=0)
    indent = len(text) - len(text.lstrip(" "))
    assert all(layout.width(line) <= max(room, longest + indent) for line in lines)


@given(st.lists(st.tuples(WORDS, WORDS, WORDS), min_size=1, max_size=4), st.integers(30, 90))
def test_a_table_keeps_every_word_and_its_width(rows: list[tuple[str, str, str]], room: int) -> None:
    frame = output.ScreenText(room, colours=False)
    output.table(("first", "second", "third"), rows, frame)
    text = frame.getvalue()
    longest = max((len(word) for row in rows for cell in row for word in re.findall(r"[^\s,]+,?", cell)), default=0)
    assert all(len(line) <= max(room, 3 * longest + 24) for line in text.splitlines())
    shown = re.sub(r"[\s,]|-", "", text)
    for row in rows:
        for value in row:
            for word in re.findall(r"[abc]+", value):
                assert word in shown


@pytest.mark.parametrize(
    "verb",
    [("plan",), ("get", "nodes"), ("get", "chips"), ("get", "jobs"), ("get", "faults"), ("get", "queues"), ("top",),
     ("top", "chips"), ("top", "jobs"), ("explain", "job", "big"), ("explain", "chip", "node-00003/3"),
     ("explain", "node", "node-00003"), ("explain", "pod", "big-master-0")],
)  # fmt: skip
def test_eighty_columns_are_enough(verb: tuple[str, ...], cluster_file: str) -> None:
    wide = belay(*verb, "--cluster", cluster_file)
    narrow = belay(*verb, "--cluster", cluster_file, env={"COLUMNS": "80"})
    assert (wide.exit_code, narrow.exit_code) == (0, 0), narrow.output
    assert max(map(len, narrow.stdout.splitlines())) <= 80
    nothing = {"-"}  # an empty cell, which a line below the row leaves out
    assert _words(wide.stdout) - nothing <= _words(narrow.stdout), "every word is whole"
    assert "\x1b" not in wide.stdout + narrow.stdout


def _words(text: str) -> set[str]:
    """Words, and the parts of lists; a heading above its column is a name before a colon below the row."""
    return {part.rstrip(":") for word in text.casefold().split() for part in re.findall(r"[^,]+,?", word)}


def test_a_pipe_has_no_width_and_one_row_a_line(cluster_file: str) -> None:
    lines = belay("get", "jobs", "--cluster", cluster_file).stdout.splitlines()
    assert len(lines) == 3 and len(lines[1]) > 160


def test_a_terminal_of_unknown_size_has_eighty_columns() -> None:
    assert output.room(Terminal()) == 80
    assert output.room(io.StringIO()) is None


# times


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (119, "119s"), (120, "2m"), (330, "5m30s"), (3600, "60m"), (4 * 3600 + 60, "4h1m"), (30 * 3600, "30h"),
     (3 * 86400 + 5 * 3600, "3d5h"), (300 * 86400, "300d"), (3 * 365 * 86400, "3y"), (9 * 365 * 86400, "9y")],
)  # fmt: skip
def test_lengths_are_written_as_kubectl_writes_ages(seconds: float, text: str) -> None:
    assert ages.length(seconds) == text


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([f"Ascend910-{number}" for number in range(8)], "Ascend910-[0-7]"),
        (["Ascend910-0", "Ascend910-1", "Ascend910-3"], "Ascend910-0,Ascend910-1,Ascend910-3"),
        (["npu-2", "npu-3", "npu-4", "Ascend310P-5"], "npu-[2-4],Ascend310P-5"),
        # names that people copy stay whole: nodes, and vNPUs, whose last number is not the chip's
        (["node-1", "node-2", "node-3"], "node-1,node-2,node-3"),
        (["Ascend310P-2c-100-0", "Ascend310P-2c-101-0"], "Ascend310P-2c-100-0,Ascend310P-2c-101-0"),
    ],
)
def test_chips_in_a_row_are_shown_as_one(names: list[str], text: str) -> None:
    assert output.cell(names) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.25, "0.25s"), (59.9999, "1m00s"), (65, "1m05s"), (7138.999, "1h58m59s")]
)
def test_virtual_times_have_whole_seconds_from_a_minute_on(seconds: float, text: str) -> None:
    assert simulation._clock(seconds) == text


def test_times_are_distances_from_now() -> None:
    assert ages.readable(rfc3339(NOW - 330), NOW) == "5m30s ago"
    assert ages.readable(rfc3339(NOW + 2700), NOW) == "in 45m"
    assert ages.readable(f"held until {rfc3339(NOW + 60)}, then free", NOW) == (
        f"held until {rfc3339(NOW + 60)} (in 60s), then free"
    )
    assert ages.readable("2026-13-40T99:00:00Z", NOW) == "2026-13-40T99:00:00Z"
    assert ages.readable("0001-01-01T00:00:00Z", NOW) == "0001-01-01T00:00:00Z", "a placeholder is no moment"
    assert ages.readable(rfc3339(NOW), None) == rfc3339(NOW)


def test_tables_show_distances_and_documents_times(cluster_file: str) -> None:
    table = belay("get", "faults", "--cluster", cluster_file).stdout
    rows = json.loads(belay("get", "faults", "--cluster", cluster_file, "-o", "json").stdout)
    assert "8s ago" in table and rows[0]["since"] == "2026-09-01T07:59:50Z"


# get


def test_a_name_selects_and_gives_one_object(cluster_file: str) -> None:
    def ask(*words: str) -> Any:
        return json.loads(belay("get", *words, "--cluster", cluster_file, "-o", "json").stdout)

    assert ask("node", "node-00003")["unhealthy"] == 1
    assert ask("chip", "node-00003/3") == ask("chips", "node-00003/Ascend910-3")
    assert len(ask("chips", "node-00003")) == 8
    assert ask("job", "big")["phase"] == "Pending" and ask("job", "train/big")["name"] == "big"
    assert ask("queue", "default")["waiting"] == 1
    assert [row["code"] for row in ask("faults", "node-00003")] == ["80C98001"]
    refused(belay("get", "node", "node-3", "--cluster", cluster_file), "'node-3'", "Did you mean node-0000")
    refused(belay("get", "queue", "x", "--cluster", cluster_file), "'x'", "belay get queues")


def test_names_are_printed_for_other_commands(cluster_file: str) -> None:
    names = belay("get", "chips", "--cluster", cluster_file, "--filter", "state=isolated", "-o", "name").stdout
    assert names == "chip/node-00003/Ascend910-3\n"
    jobs = belay("get", "jobs", "--cluster", cluster_file, "-o", "name").stdout.splitlines()
    assert jobs == ["job/train/AscendJob/big", "job/train/AscendJob/job-00000"]


@pytest.mark.parametrize(
    ("kind", "conditions", "number"),
    [
        ("nodes", ["unhealthy>0"], 1), ("nodes", ["node=node-0000[12]"], 2), ("nodes", ["cordoned=false"], 4),
        ("chips", ["state!=healthy"], 1), ("chips", ["codes=80C98001,x"], 1), ("chips", ["used by=train/*"], 16),
        ("chips", ["node=node-00003", "usedBy=-"], 8), ("faults", ["since<1m"], 1), ("faults", ["since>1m"], 0),
        ("jobs", ["ready<1"], 1), ("jobs", ["NODES=node-00001"], 1), ("jobs", ["created<2d"], 2),
    ],
)  # fmt: skip
def test_filters(kind: str, conditions: list[str], number: int, cluster_file: str) -> None:
    options = [word for condition in conditions for word in ("--filter", condition)]
    rows = json.loads(belay("get", kind, *options, "--cluster", cluster_file, "-o", "json").stdout)
    assert len(rows) == number


@pytest.mark.parametrize(
    ("condition", "words"),
    [("state", ("is not a condition", "COLUMN=VALUE")), ("colour=red", ("no column 'colour'", "cordoned")),
     ("chips>many", ("neither a number nor a duration",)), ("=", ("is not a condition",)),
     ("x" * 5000, ("is not a condition",))],
)  # fmt: skip
def test_a_wrong_filter_is_refused(condition: str, words: tuple[str, ...], cluster_file: str) -> None:
    refused(belay("get", "nodes", "--filter", condition, "--cluster", cluster_file), "--filter", *words)


def test_watching_a_file_is_refused(cluster_file: str) -> None:
    for verb in (("get", "nodes"), ("top",)):
        refused(belay(*verb, "-w", "--cluster", cluster_file), "a file does not change", "--cluster")


# top

PAGE = """# TYPE npu_chip_info_utilization gauge
npu_chip_info_utilization{id="0",model_name="x"} 40 1788249600000
npu_chip_info_utilization{id="1",model_name="x"} 60
npu_chip_info_hbm_used_memory{id="0"} 32768
npu_chip_info_hbm_total_memory{id="0"} 65536
npu_chip_info_power{id="0"} 90.5
npu_chip_info_temperature{id="0"} 45
npu_chip_info_temperature{id="1"} -1
"""


def test_top_counts_what_is_used(cluster_file: str) -> None:
    result = belay("top", "--cluster", cluster_file)
    assert "chips: 32, 16 in use (50 %), 15 free, 1 out of service" in result.stdout
    assert "jobs: 1 Pending, 1 Running" in result.stdout
    rows = json.loads(belay("top", "nodes", "--sort", "free", "--cluster", cluster_file, "-o", "json").stdout)
    assert [(row["node"], row["free"], row["out"]) for row in rows[:2]] == [("node-00002", 8, 0), ("node-00003", 7, 1)]
    last = json.loads(
        belay("top", "--sort-by", "NODE", "-r", "-n", "1", "--cluster", cluster_file, "-o", "json").stdout
    )
    assert [row["node"] for row in last] == ["node-00003"]
    refused(belay("top", "--sort", "beauty", "--cluster", cluster_file), "--sort", "no column 'beauty'", "free")


def test_top_shows_what_an_exporters_page_says(cluster_file: str, tmp_path: Path) -> None:
    page = tmp_path / "page"
    page.write_text(PAGE)
    options = ("--metrics", f"node-00001={page}", "--cluster", cluster_file)
    (row,) = json.loads(belay("top", "nodes", *options, "-n", "1", "-o", "json").stdout)
    assert (row["node"], row["utilization"], row["hbm"], row["power"], row["temperature"]) == (
        "node-00001", 50, 50, 90, 45,
    )  # fmt: skip
    (job,) = json.loads(belay("top", "jobs", *options, "-n", "1", "-o", "json").stdout)
    assert (job["name"], job["utilization"], job["hbmGiB"]) == ("job-00000", 50, 32.0)
    refused(belay("top", "--metrics", str(page), "--cluster", cluster_file), "which node", "NODE=")
    refused(belay("top", "--metrics", f"node-9={page}", "--cluster", cluster_file), "'node-9'")
    refused(belay("top", "--metrics", "node-00001=/no/such", "--cluster", cluster_file), "/no/such", "cannot be read")
    page.write_text('npu_chip_info_power{id="0} oops\n')
    refused(belay("top", "--metrics", f"node-00001={page}", "--cluster", cluster_file), "is not a page of metrics")


class Answers:
    """An HTTP server that gives the same answer to everything."""

    def __init__(self, body: bytes) -> None:
        from http.server import BaseHTTPRequestHandler, HTTPServer

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                return

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.address = f"http://127.0.0.1:{self.server.server_port}"


def test_top_asks_prometheus(cluster_file: str) -> None:
    def sample(node: str, chip: str, value: str) -> dict[str, Any]:
        labels = {"__name__": "npu_chip_info_utilization", "instance": node, "id": chip}
        return {"metric": labels, "value": [NOW, value]}

    rows = [sample("node-00002", "0", "80"), sample("elsewhere", "0", "9"), sample("node-00002", "x", "9")]
    server = Answers(json.dumps({"status": "success", "data": {"result": rows}}).encode())
    odd = Answers(b"<html>")
    try:
        found = belay("top", "--metrics", server.address, "-n", "1", "--cluster", cluster_file, "-o", "json")
        (row,) = json.loads(found.stdout)
        assert (row["node"], row["utilization"]) == ("node-00002", 80)
        place = odd.address.replace("//", "//user:hidden@")
        result = belay("top", "--metrics", odd.address, "--cluster", cluster_file)
        refused(result, "does not answer as Prometheus does", "/metrics")
        assert "hidden" not in belay("top", "--metrics", place, "--cluster", cluster_file).stderr
    finally:
        server.server.shutdown()
        odd.server.shutdown()


# explain


def test_explain_reads_as_text(cluster_file: str) -> None:
    text = belay("explain", "chip", "node-00003/3", "--cluster", cluster_file).stdout
    assert text.startswith("chip node-00003/Ascend910-3 is isolated, level RestartNPU by 80C98001\n")
    assert "8s ago" in text and "what comes next\n  IsolateChip: Ascend910-3 of node" in text
    job = belay("explain", "job", "big", "--cluster", cluster_file).stdout
    assert (
        job.startswith("AscendJob train/big waits: 0 of 1 pods run\n")
        and "  way out: label node-00000 with nowhere=yes" in job
    )
    assert yaml.safe_load(belay("explain", "job", "big", "--cluster", cluster_file, "-o", "yaml").stdout)["pending"]


def test_explain_shows_every_value_of_the_document(monkeypatch: pytest.MonkeyPatch) -> None:
    pod = {"pod": "x-0", "phase": "Running", "chips": ["npu-1", "npu-2", "npu-3"]}
    held = {"action": "EvictPod", "deferredBy": "b#0", "until": None, "message": "later", "confirm": "Belay-Confirm: 1"}
    body = {
        "job": "train/x", "kind": "Job", "pods": [pod], "next": [held],
        "diagnosis": {"root": "rank 3: first", "rootZh": "第三", "roots": [{"rank": 3, "deep": {"code": "E1"}}]},
        "story": ["one", "  +0.000 s stepped"],
    }  # fmt: skip
    for variable in ("LC_ALL", "LC_MESSAGES"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("LANG", "C.UTF-8")
    out = io.StringIO()
    narrate("job", body, out, NOW)
    text = out.getvalue()
    parts = ("1 of 1 pods run", "npu-1..3", "root: rank 3: first", "code: E1", "    +0.000 s stepped",
             "held back by b#0", "until a person decides", "Belay-Confirm: 1")  # fmt: skip
    for part in parts:
        assert part in text, text
    assert "第三" not in text
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    narrate("job", body, out, NOW)
    assert "root: 第三" in out.getvalue()


# progress


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SWITCH)


def _after(label: str, stream: io.StringIO, done: int = 0, **options: Any) -> str:
    """What work shows that goes on until something is shown, or until half a second has passed."""
    with progress(label, patience=0.01, **options) as step:
        step(done, note="here")
        end = time.monotonic() + (5 if options.get("plain", True) else 0.1)
        while not stream.getvalue() and time.monotonic() < end:
            time.sleep(0.005)
    return stream.getvalue()


def test_long_work_is_one_plain_line_elsewhere(shown: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    assert _after("replaying", stream, total=3) == "replaying …\n"
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    assert _after("planning", stream, plain=False) == ""


def test_long_work_is_a_bar_on_a_terminal(shown: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    text = _after("replaying", stream, 1, total=4)
    assert "replaying" in text and "25%" in text and "1/4" in text and "here" in text
    assert text.endswith("\x1b[2K"), "it takes itself away"


def test_short_work_and_silenced_work_show_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    with progress("silenced", patience=0.0):
        time.sleep(0.02)
    monkeypatch.delenv(SWITCH)
    with progress("short", patience=60.0):
        pass
    assert stream.getvalue() == ""


def test_a_command_of_make_goes_on_with_its_label_and_exit_code() -> None:
    script = str(ROOT / "deploy" / "progress.sh")
    done = subprocess.run([script, "working", "sh", "-c", "echo out; exit 3"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "working\n")


# watching a cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    made.ensure(NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "train"}})
    for item in world():
        if item["kind"] in ("Node", "Pod", "ConfigMap"):
            for field in ("resourceVersion", "uid"):
                item["metadata"].pop(field, None)
            made.ensure(None, item)
    yield made
    made.close()


class Typed:
    """A command on a terminal of 80 × 24: what it printed so far, and keys for it."""

    def __init__(self, *arguments: str) -> None:
        self.text = ""
        self.master, slave = pty.openpty()
        os.set_blocking(self.master, False)
        import fcntl
        import struct
        import termios

        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        environment = {**os.environ, "TERM": "xterm"}
        command = [sys.executable, "-m", "belay.engine.cli", *arguments]
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, cwd=ROOT, start_new_session=True
        )
        os.close(slave)

    def until(self, words: str, after: int = 0) -> int:
        """Wait for words in what is printed after a position; returns the position behind them."""
        end = time.monotonic() + 60
        while (found := self.text.find(words, after)) < 0:
            assert time.monotonic() < end, self.text[-3000:]
            if select.select([self.master], [], [], 0.2)[0]:
                try:
                    self.text += os.read(self.master, 65536).decode("utf-8", "replace")
                except OSError:
                    break
        assert found >= 0, self.text[-3000:]
        return found + len(words)

    def key(self, key: str) -> None:
        os.write(self.master, key.encode())

    def end(self) -> int:
        self.until("\x1b[?1049l")  # read all the time: a full terminal would hold the command
        code = self.process.wait(30)
        os.close(self.master)
        return code


def test_top_is_drawn_in_place_and_follows_keys(cluster: Cluster) -> None:
    seen = Typed("top", "-w", "--kubeconfig", cluster.kubeconfig)
    place = seen.until("\x1b[?1049h")
    place = seen.until("q ends", seen.until("node-00003", place))
    seen.key("c")
    place = seen.until("Ascend910-3", place)
    seen.until("more lines below", place)
    seen.key("q")
    assert seen.end() == 0
    frames = [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", frame) for frame in seen.text.split("\x1b[H")[1:]]
    drawn = [frame.splitlines() for frame in frames if frame]
    assert len(drawn) >= 2
    for lines in drawn:
        assert len(lines) <= 24 and max(map(len, lines)) <= 80


def test_a_signal_gives_the_terminal_back(cluster: Cluster) -> None:
    seen = Typed("status", "-w", "--kubeconfig", cluster.kubeconfig)
    seen.until("nothing is published yet", seen.until("\x1b[?1049h"))
    seen.process.send_signal(signal.SIGTERM)
    assert seen.end() == 143
    assert "Traceback" not in seen.text


def test_a_signal_inside_a_callback_of_a_weak_reference_is_not_lost() -> None:
    class Kept:
        pass

    cleaned = []

    async def run() -> None:
        kept = Kept()
        reference = weakref.ref(kept, lambda _: os.kill(os.getpid(), signal.SIGTERM))
        with ended_by_signals():
            try:
                del kept
                await asyncio.sleep(30)
            finally:
                cleaned.append(reference())

    with pytest.raises(SystemExit) as ended:
        asyncio.run(run())
    assert (ended.value.code, cleaned) == (143, [None])
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_get_streams_what_changes(cluster: Cluster) -> None:
    command = [
        sys.executable,
        "-m",
        "belay.engine.cli",
        "get",
        "nodes",
        "-w",
        "--every",
        "0.5",
        "--output-watch-events",
    ]
    node = resource_for("v1", "Node")
    with subprocess.Popen(
        [*command, "--kubeconfig", cluster.kubeconfig],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as watching:
        assert watching.stdout is not None
        first = [watching.stdout.readline().split() for _ in range(5)]
        assert first[0][:2] == ["EVENT", "NODE"] and [row[0] for row in first[1:]] == ["ADDED"] * 4
        cluster.run(cluster.kube.patch(node, "node-00002", {"spec": {"unschedulable": True}}))
        assert watching.stdout.readline().split()[:5] == ["MODIFIED", "node-00002", "default", "unknown", "yes"]
        cluster.run(cluster.kube.delete(node, "node-00002"))
        assert watching.stdout.readline().split()[:2] == ["DELETED", "node-00002"]
        watching.send_signal(signal.SIGINT)
        rest, errors = watching.communicate(timeout=30)
    assert (watching.returncode, rest, errors) == (130, "", "")
