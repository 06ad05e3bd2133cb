"""`belay up` as a person runs it: it comes up, survives crashes and restarts, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.errors import InputError
from engine.sandbox import depot
from engine.sandbox.folder import DataFolder
from engine.sandbox.processes import Child, Crew
from engine.sandbox.reader import Reader
from engine.sandbox.up import settled, silenced
from engine.wire import names, sync

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).resolve().parents[2]


class Up:
    """A running `belay up` and what it printed."""

    def __init__(self, data: Path, *more: str) -> None:
        environment = os.environ | {"BELAY_TIME_SCALE": "0.05", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "engine.cli", "up", "--nodes", "3", "--data", str(data), *more]
        self.data = data
        self.process = subprocess.Popen(
            command, cwd=data.parent, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.lines: list[str] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        self.reader = Reader(data / "kubeconfig")

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

    def until(self, what: str, check: Callable[[], Any], seconds: float = 60.0) -> Any:
        ends = time.monotonic() + seconds
        while True:
            if found := check():
                return found
            if self.process.poll() is not None or time.monotonic() > ends:
                raise AssertionError(f"not within {seconds:.0f} s: {what}\n" + "\n".join(self.lines))
            time.sleep(0.05)

    def ready(self) -> None:
        self.until("it is up", lambda: any("Ctrl-C ends everything" in line for line in self.lines), 90)

    def children(self) -> dict[int, str]:
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                except OSError:
                    continue
                if str(self.data) in command and int(entry.name) != self.process.pid:
                    found[int(entry.name)] = command
        return found

    def end(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        code = self.process.wait(20)
        self._thread.join(5)
        return code


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "data"
    for file in (tmp_path / "data" / "lock",):
        if file.exists() and (text := file.read_text().strip()).isdecimal() and Path(f"/proc/{text}").exists():
            os.kill(int(text), signal.SIGKILL)


def test_it_comes_up_restarts_what_dies_and_leaves_nothing(data: Path) -> None:
    up = Up(data)
    try:
        began = time.monotonic()
        up.ready()
        assert time.monotonic() - began < 30  # ten seconds on a machine that does nothing else
        nodes = {node["metadata"]["name"] for node in up.reader.list("/api/v1/nodes")}
        assert nodes == {"node-1", "node-2", "node-3", "infer-1"}
        tip = depot.git("--git-dir", str(data / "state.git"), "rev-parse", "main")
        assert up.reader.config_map(names.SYSTEM, names.SYNC).get(sync.APPLIED) == tip
        assert any(f"export KUBECONFIG={data / 'kubeconfig'}" in line for line in up.lines)
        second = subprocess.run(
            [sys.executable, "-m", "engine.cli", "up", "--data", str(data)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert second.returncode == 2 and "another sandbox uses this folder" in second.stderr
        (victim,) = [pid for pid, command in up.children().items() if "sandbox.host" in command]
        os.kill(victim, signal.SIGKILL)
        up.until("the world is started again", lambda: any("world ended (signal SIGKILL)" in line for line in up.lines))
        up.until("a new process", lambda: any("sandbox.host" in c for p, c in up.children().items() if p != victim))
        version = up.reader.get("/api/v1/namespaces/default")["metadata"]["uid"]
        (victim,) = [pid for pid, command in up.children().items() if "sandbox.api" in command]
        os.kill(victim, signal.SIGKILL)
        up.until("the API server is started again", lambda: any("api ended" in line for line in up.lines))
        up.until("it answers under the old address", lambda: up.reader.answers)
        assert up.reader.get("/api/v1/namespaces/default")["metadata"]["uid"] == version, "a crash loses nothing"
    finally:
        assert up.end() == 0, up.lines
    assert up.children() == {}
    again = Up(data)
    try:
        again.ready()
        assert again.reader.get("/api/v1/namespaces/default")["metadata"]["uid"] == version, "state survives a restart"
    finally:
        again.process.kill()
        again.process.wait()
    ends = time.monotonic() + 10
    while again.children() and time.monotonic() < ends:
        time.sleep(0.05)
    assert again.children() == {}, "children end with a killed parent"


def test_ctrl_c_while_coming_up_is_clean(data: Path) -> None:
    up = Up(data)
    up.until("it has begun", lambda: any("API server answers" in line for line in up.lines))
    assert up.end() == 0
    assert up.children() == {}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [(["--product", "atlas-1"], "product 'atlas-1' is unknown"), (["--state", "/nowhere"], "is no folder")],
)
def test_what_cannot_work_is_said(data: Path, arguments: list[str], text: str) -> None:
    up = Up(data, *arguments)
    assert up.process.wait(60) == 2
    up._thread.join(5)
    (line,) = [line for line in up.lines if text in line]
    assert line.startswith("belay: --") and line.count("belay: ") == 1
    assert up.children() == {}


def test_nobody_waits_for_a_node_that_was_made_silent() -> None:
    def control(node: str, text: str) -> dict[str, Any]:
        return {"metadata": {"name": f"belay-sim-{node}"}, "data": {"node.json": text}}

    def node(name: str, ready: str) -> dict[str, Any]:
        return {"metadata": {"name": name}, "status": {"conditions": [{"type": "Ready", "status": ready}]}}

    said = [control("a", '{"paused": true}'), control("b", '{"ready": false}'), control("c", "{}"), control("d", "{")]
    assert silenced(said) == {"a", "b"}
    nodes = [node("a", "Unknown"), node("b", "True"), node("c", "False"), node("e", "True")]
    assert settled(nodes, silenced(said)) == ["a", "b", "e"]


def test_a_folder_has_one_user(tmp_path: Path) -> None:
    first, second = DataFolder(str(tmp_path / "d")), DataFolder(str(tmp_path / "d"))
    first.open()
    with pytest.raises(InputError, match=f"process {os.getpid()}"):
        second.open()
    first.close()
    second.open()
    second.close()


def test_a_repository_is_made_once(tmp_path: Path) -> None:
    state = tmp_path / "state"
    (state / "desired").mkdir(parents=True)
    (state / "desired" / "a.yaml").write_text("kind: List\n")
    bare = tmp_path / "state.git"
    tip = depot.ensure(bare, state)
    assert depot.git("--git-dir", str(bare), "ls-tree", "-r", "--name-only", "main") == "desired/a.yaml"
    (state / "desired" / "a.yaml").write_text("kind: Other\n")
    assert depot.ensure(bare, state) == tip
    sample = depot.ensure(tmp_path / "sample.git", None)
    files = depot.git("--git-dir", str(tmp_path / "sample.git"), "ls-tree", "-r", "--name-only", sample)
    assert "desired/jobs/pretrain.yaml" in files


def test_a_child_is_started_again_and_stopped(tmp_path: Path) -> None:
    said: list[str] = []
    crew = Crew(said.append)
    child = crew.start(
        Child("short", [sys.executable, "-c", "print('last words'); raise SystemExit(3)"], os.environ, tmp_path / "log")
    )
    ends = time.monotonic() + 20
    while (len(said) < 2 or not child.last_words()) and time.monotonic() < ends:
        crew.tend()
        time.sleep(0.02)
    assert re.search(r"short ended \(exit code 3\): last words; starting it again in [\d.]+ s", said[0])
    assert "last words" in child.last_words()
    crew.stop(1.0)
    assert not child.running
