"""What the training side is given by mistake or by malice: each public function, each port, each message.

Functions are called with values of every wrong type. Each one answers as its reference does (False, 1, 400, None with a
line in the log), or raises TypeError, ValueError or RuntimeError with a text that says what is wrong.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import pickle
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from belay.agents.training.compat.mindio import framework_api, processor_runner
from belay.agents.training.train.agent.coordinator_host import CoordinatorHost
from belay.agents.training.train.agent.link import VERSION, NodeListener
from belay.agents.training.train.decide.election import Claim
from belay.agents.training.train.decide.members import Limits
from belay.agents.training.train.frames import Connection, Message, pack

ANSWERS = (None, False, 0, 1, 400)
WRONG: list[Any] = [
    None, -1, 10**30, True, 1.5, float("nan"), "x", "\0", "x" * 100_000, b"x", [], [None], {}, {"a": 1}, [{}],
    [{"rank_list": "x"}], object(),
]  # fmt: skip
PACKAGES = Path(__file__).resolve().parents[2] / "agents/training/packages"
MODULES = (
    "taskd.api", "taskd.api.taskd_worker_api", "taskd.api.taskd_manager_api", "mindio_ttp.framework_ttp",
    "mindio_ttp.controller_ttp", "mindio_ttp.utils", "mindx_elastic.recover_manager",
)  # fmt: skip
HARMLESS = {"tft_exception_handler"}
"""They may return what they were given."""
BEGINS = {"init_taskd_proxy", "init_taskd_worker", "init_taskd_manager"}
"""They may accept an empty dict, and then begin something: not called here with one."""


def functions(module: str) -> Iterator[tuple[str, Callable[..., Any], int]]:
    """The public functions of a module that have parameters, and how many each needs."""
    found = importlib.import_module(module)
    for name in found.__all__:
        function = getattr(found, name)
        if not inspect.isfunction(function):
            continue
        needed = [
            one
            for one in inspect.signature(function).parameters.values()
            if one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
        ]
        if needed:
            yield name, function, len(needed)


@pytest.fixture(autouse=True)
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No environment of a job, and logs of this test only."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MINDX_TASK_ID", "MINDX_SERVER_IP", "POD_IP", "TTP_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.syspath_prepend(str(PACKAGES))
    monkeypatch.setenv("TTP_LOG_PATH", str(tmp_path))
    monkeypatch.setenv("TASKD_LOG_PATH", str(tmp_path))

    def ends(code: int, text: str) -> None:
        raise RuntimeError(f"ends with {code}: {text}")

    # what ends the process of a rank, in the reference too, is an exception here
    monkeypatch.setattr(framework_api, "end_process", ends)
    monkeypatch.setattr(processor_runner, "end_process", ends)


@pytest.mark.parametrize("module", MODULES)
def test_wrong_types_get_a_clear_answer(module: str) -> None:
    for short, function, count, value in [(*one, value) for one in functions(module) for value in WRONG]:
        if (short in BEGINS and value == {}) or (short.startswith("tft_register") and value is None):
            continue
        try:
            answer = function(*[value] * count)
        except (TypeError, ValueError, RuntimeError) as error:
            assert len(str(error)) > 10, f"{short}({value!r:.40}): {error!r}"
            assert len(str(error)) < 2000
        else:
            assert short in HARMLESS or any(answer is one or answer == one for one in ANSWERS), (short, value, answer)


@pytest.mark.parametrize("given", ["12", 1.0, True, b"1", [1], {}])
def test_times_that_are_no_times_never_allow_a_repair(given: Any) -> None:
    utils = importlib.import_module("mindio_ttp.utils")
    with pytest.raises(TypeError, match="microseconds"):
        utils.tft_can_do_uce_repair(given)
    with pytest.raises(TypeError, match="microseconds"):
        utils.tft_set_update_start_time(given)
    assert utils.tft_can_do_uce_repair(None) is False


class Evil:
    """An object whose pickle makes a folder when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


class Port:
    """A listener of two other nodes, with a node 1 that has joined."""

    def __init__(self) -> None:
        self.listener = NodeListener("127.0.0.1", 0, "job", 3, 2, node=0, claim=lambda: Claim(0, 1, 0, 2))
        self.address = self.listener._sock.getsockname()
        self.now = 0.0
        self.first = self.connect()
        self.joined = self.say(self.first, self.body(1))

    def connect(self) -> socket.socket:
        sock = socket.create_connection(self.address)
        sock.settimeout(5)
        return sock

    def body(self, node: object, **more: object) -> Message:
        return {"t": "join", "version": VERSION, "job": "job", "nodes": 3, "nproc": 2, "node": node, **more}

    def say(self, sock: socket.socket, message: Message) -> list[tuple[int, Message, bytes]]:
        return self.write(sock, pack(message))

    def write(self, sock: socket.socket, data: bytes) -> list[tuple[int, Message, bytes]]:
        """Send bytes and let the listener take them; what came of joined nodes."""
        sock.sendall(data)
        found: list[tuple[int, Message, bytes]] = []
        for _ in range(3):
            came, lost = self.listener.handle({descriptor for descriptor, _ in self.listener.descriptors()}, self.now)
            assert not [node for node, _ in lost if node == 1], lost
            found += came
        return found

    def answer(self, sock: socket.socket) -> Message | None:
        """The next message; None when the connection was closed."""
        line = Connection(sock)
        sock.settimeout(5)
        try:
            while not (messages := line.receive()):
                if messages is None:
                    return None
        except ConnectionResetError:
            return None
        return messages[0][0]


@pytest.fixture
def port() -> Iterator[Port]:
    made = Port()
    assert [node for node, _, _ in made.joined] == [1]
    yield made
    made.listener.close()


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"version": VERSION - 1}, f"version {VERSION}"),
        ({"version": VERSION + 1}, f"version {VERSION}"),
        ({"version": None}, f"version {VERSION}"),
        ({"job": "another"}, "job 'job'"),
        ({"nodes": 4}, "nodes 3"),
        ({"nproc": 8}, "nproc 2"),
        ({"node": 0}, "--node-rank"),
        ({"node": 3}, "--node-rank"),
        ({"node": True}, "--node-rank"),
        ({"node": "1"}, "--node-rank"),
        ({"node": 10**30}, "--node-rank"),
        ({"t": "who", "term": -1, "leader": -1, "joined": 0}, "term -1"),
        ({"t": "who", "term": "x", "leader": -1, "joined": 0}, "whole numbers"),
        ({"t": "who", "node": 0, "term": 1, "leader": -1, "joined": 0}, "both are node 0"),
    ],
)
def test_a_node_that_does_not_fit_is_refused_with_the_reason(port: Port, more: Message, text: str) -> None:
    stranger = port.connect()
    assert port.say(stranger, port.body(2) | more) == []
    answer = port.answer(stranger)
    assert answer is not None and answer["t"] == "refused" and text in answer["text"]
    assert port.listener.joined() == {1}
    stranger.close()


def test_bytes_that_are_no_frame_close_their_connection_and_nothing_is_unpickled(port: Port, tmp_path: Path) -> None:
    evil = pickle.dumps(Evil(tmp_path / "evil"))
    header = json.dumps(port.body(2)).encode()
    for data in (
        b"GET / HTTP/1.1\r\n\r\n",
        evil,
        struct.pack("!II", len(evil), 0) + evil,
        struct.pack("!II", 0xFFFFFFFF, 0xFFFFFFFF),
        struct.pack("!II", 2, 0) + b"[]",
        struct.pack("!II", 900_000, 0) + b"[" * 900_000,
        pack({"t": "lost", "rank": 0}),
        struct.pack("!II", len(header), 0) + header + b"\xff" * 8,
    ):
        stranger = port.connect()
        port.write(stranger, data)
        stranger.close()
    assert 1 in port.listener.joined()
    assert not (tmp_path / "evil").exists()
    # node 1 is heard as before
    assert port.say(port.first, {"t": "progress"}) == [(1, {"t": "progress"}, b"")]


@pytest.mark.parametrize(
    "message",
    [
        {"t": "lost"},
        {"t": "lost", "rank": 99, "inc": 1, "why": "x"},
        {"t": "lost", "rank": "x", "inc": 1, "why": "x"},
        {"t": "rank"},
        {"t": "rank", "rank": 1, "inc": 1, "m": "x"},
        {"t": "rank", "rank": 1, "inc": 1, "m": {}},
        {"t": "rank", "rank": 1, "inc": 1, "m": {"t": "ready", "gen": "x"}},
        {"t": "rank", "rank": 1, "inc": 1, "m": {"t": "ready", "gen": 1, "done": None, "shard": ""}},
        {"t": "rank", "rank": 1, "inc": 1, "m": {"t": "store", "gen": 1, "id": 1, "verb": "get", "keys": 3}},
        {"t": "rank", "rank": 1, "inc": 1, "m": {"t": "offered", "gen": 1, "steps": 5}},
        {"t": "progress"},
        {"t": "progress", "steps": [[1]]},
        {"t": "progress", "steps": [], "median": "fast"},
        {"t": "progress", "steps": [], "median": 1e999, "firsts": [[1, 1, 1, "x"]]},
        {"t": "unknown", "rank": []},
    ],
)
def test_a_message_that_cannot_be_read_is_ignored_and_the_job_goes_on(message: Message) -> None:
    host = CoordinatorHost({0: 0, 1: 1}, Limits(), lambda recovery: None)
    host.node_joined(0, [], 0.0)
    host.node_joined(1, [], 0.0)
    host.take([(message, b"\0\0\0\1")], 0.1)
    assert host.ended is None
    for rank in (0, 1):
        ready = {"t": "ready", "gen": host.coordinator.generation, "done": -1, "shard": ""}
        incarnation = host.coordinator.members[rank].incarnation
        out = host.take([({"t": "rank", "rank": rank, "inc": incarnation, "m": ready}, b"")], 0.2)
    assert [message["m"]["t"] for _, message, _ in out] == ["plan", "plan"]
