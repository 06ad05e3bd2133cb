"""`belay up` as a person runs it: it comes up, survives crashes and restarts, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import pty
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

from belay import IMPORT_ROOT
from belay.engine.errors import BelayError, InputError
from belay.engine.sandbox import git_repository
from belay.engine.sandbox.folder import DataFolder
from belay.engine.sandbox.processes import ChildProcess, ChildProcesses
from belay.engine.sandbox.reader import ApiReader
from belay.engine.sandbox.readiness import settled, silenced
from belay.engine.sandbox.up import Sandbox
from belay.engine.sandbox.up import main as up_main
from belay.engine.source import Limits
from belay.engine.wire import names, sync

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]
ROOT = Path(__file__).resolve().parents[2]
MARK = "TEST_UP_DATA"


def marked(data: Path) -> dict[int, str]:
    """Every process whose environment descends from one `Up`, with its command."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if f"{MARK}={data}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


class Up:
    """A running `belay up` and what it printed."""

    def __init__(self, data: Path, *more: str) -> None:
        environment = os.environ | {"BELAY_TIME_SCALE": "0.05", "PYTHONPATH": str(IMPORT_ROOT), MARK: str(data)}
        command = [sys.executable, "-m", "belay.engine.cli", "up", "--nodes", "3", "--data", str(data), *more]
        self.data = data
        self.process = subprocess.Popen(
            command, cwd=data.parent, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.lines: list[str] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        self.reader = ApiReader(data / "kubeconfig")

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

    def until(self, what: str, check: Callable[[], Any], seconds: float = 150.0) -> Any:
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
        return {pid: command for pid, command in marked(self.data).items() if pid != self.process.pid}

    def end(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        code = self.process.wait(60)
        self._thread.join(60)
        return code


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "data"
    for file in (tmp_path / "data" / "lock",):
        if file.exists() and (text := file.read_text().strip()).isdecimal() and Path(f"/proc/{text}").exists():
            os.kill(int(text), signal.SIGKILL)


def test_up_starts_restarts_ended_children_and_leaves_nothing(data: Path) -> None:
    up = Up(data)
    try:
        up.ready()
        nodes = {node["metadata"]["name"] for node in up.reader.list("/api/v1/nodes")}
        assert nodes == {"node-1", "node-2", "node-3", "infer-1"}
        tip = git_repository.git("--git-dir", str(data / "state.git"), "rev-parse", "main")
        assert up.reader.config_map(names.SYSTEM, names.SYNC).get(sync.APPLIED) == tip
        assert any(f"export KUBECONFIG={data / 'kubeconfig'}" in line for line in up.lines)
        assert any(line.startswith("  export PATH=") for line in up.lines), "the second terminal may lack belay"
        second = subprocess.run(
            [sys.executable, "-m", "belay.engine.cli", "up", "--data", str(data)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
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
    ends = time.monotonic() + 60
    while again.children() and time.monotonic() < ends:
        time.sleep(0.05)
    assert again.children() == {}, "children end with a killed parent"


def test_up_ends_with_its_terminal_even_in_the_background_of_a_killed_shell(data: Path) -> None:
    """Such a job gets no SIGHUP: the kernel sends that to the job in the foreground only."""
    log = data.parent / "log"
    command = f"{sys.executable} -m belay.engine.cli up --nodes 1 --data {data} > {log} 2>&1 &"
    shell, terminal = pty.fork()
    if not shell:
        environment = os.environ | {"BELAY_TIME_SCALE": "0.05", "PYTHONPATH": str(IMPORT_ROOT), MARK: str(data)}
        os.chdir(data.parent)
        os.execvpe("bash", ["bash", "--norc", "-c", f"set -m\n{command}\nwait"], environment)
    try:
        ends = time.monotonic() + 60
        while not (log.exists() and "agents report" in log.read_text()):
            assert time.monotonic() < ends, log.read_text() if log.exists() else "no log"
            time.sleep(0.1)
        assert len(marked(data)) >= 7
    finally:
        os.kill(shell, signal.SIGKILL)
        os.waitpid(shell, 0)
        os.close(terminal)
    ends = time.monotonic() + 60
    while marked(data) and time.monotonic() < ends:
        time.sleep(0.05)
    assert marked(data) == {}
    assert "everything has ended" in log.read_text(), "in order, not by being killed"


def test_ctrl_c_while_coming_up_is_clean(data: Path) -> None:
    up = Up(data)
    up.until("it has begun", lambda: any("API server answers" in line for line in up.lines))
    assert up.end() == 0
    assert up.children() == {}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--product", "atlas-1"], "product 'atlas-1' is unknown"),
        (["--state", "/nowhere"], "is not a folder"),
        (["--state", "."], "where the sandbox keeps its own files"),
        (["--state", ""], "the name of the folder is empty"),
    ],
)
def test_options_that_cannot_work_are_reported(data: Path, arguments: list[str], text: str) -> None:
    up = Up(data, *arguments)
    assert up.process.wait(60) == 2
    up._thread.join(60)
    (line,) = [line for line in up.lines if text in line]
    assert line.startswith("belay: --") and line.count("belay: ") == 1
    assert up.children() == {}


def test_silenced_nodes_are_not_waited_for() -> None:
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


def test_a_data_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match=r"holds other things, thesis\.txt for one"):
        DataFolder(str(tmp_path)).open()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_what_fails_because_of_ctrl_c_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It reaches git too, which ends before it has done its work."""

    def interrupted(_: Sandbox) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        raise BelayError("git push failed: ")

    monkeypatch.setattr(Sandbox, "start", interrupted)
    code = up_main(nodes=1, product="atlas-800t-a2", state=None, data=str(tmp_path / "d"), time_scale=None)
    said = capsys.readouterr().out
    assert code == 0 and "asked to end before it was up" in said and "git push failed" not in said


def test_a_folder_that_is_no_state_is_refused_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, bare = tmp_path / "state", tmp_path / "data" / "state.git"
    for folder in (state, bare.parent):
        folder.mkdir()
    with pytest.raises(InputError, match="is empty"):
        git_repository.ensure(bare, state)
    (state / "below").mkdir()
    os.mkfifo(state / "below" / "pipe")  # reading it would never end
    with pytest.raises(InputError, match="holds no file"):
        git_repository.ensure(bare, state)
    with pytest.raises(InputError, match="keeps its own files"):
        git_repository.ensure(bare, tmp_path)
    (state / "a.yaml").write_text("kind: List\n")
    (state / "b.yaml").write_text("kind: List\n")

    def stop() -> None:
        raise RuntimeError("asked to end")

    with pytest.raises(RuntimeError, match="asked"):
        git_repository.ensure(bare, state, stop)
    monkeypatch.setattr(git_repository, "Limits", lambda: Limits(files=1))
    with pytest.raises(InputError, match="more than 1 files"):
        git_repository.ensure(bare, state)
    assert not bare.exists()
    monkeypatch.undo()
    git_repository.ensure(bare, state)
    assert git_repository.git("--git-dir", str(bare), "ls-tree", "-r", "--name-only", "main").split() == [
        "desired/a.yaml", "desired/b.yaml",
    ]  # fmt: skip


def test_a_repository_is_made_once(tmp_path: Path) -> None:
    state = tmp_path / "state"
    (state / "desired").mkdir(parents=True)
    (state / "desired" / "a.yaml").write_text("kind: List\n")
    bare = tmp_path / "data" / "state.git"
    bare.parent.mkdir()
    tip = git_repository.ensure(bare, state)
    assert git_repository.git("--git-dir", str(bare), "ls-tree", "-r", "--name-only", "main") == "desired/a.yaml"
    (state / "desired" / "a.yaml").write_text("kind: Other\n")
    assert git_repository.ensure(bare, state) == tip
    sample = git_repository.ensure(tmp_path / "sample.git", None)
    files = git_repository.git("--git-dir", str(tmp_path / "sample.git"), "ls-tree", "-r", "--name-only", sample)
    assert "desired/jobs/pretrain.yaml" in files


def test_a_child_is_started_again_and_stopped(tmp_path: Path) -> None:
    said: list[str] = []
    children = ChildProcesses(said.append)
    child = children.start(
        ChildProcess(
            "short", [sys.executable, "-c", "print('last words'); raise SystemExit(3)"], os.environ, tmp_path / "log"
        )
    )
    ends = time.monotonic() + 60
    while (len(said) < 2 or not child.log_end()) and time.monotonic() < ends:
        children.restart_ended()
        time.sleep(0.02)
    assert re.search(r"short ended \(exit code 3\): last words; starting it again in [\d.]+ s", said[0])
    assert "last words" in child.log_end()
    children.stop(1.0)
    assert not child.running
