"""What training processes and their managers exchange, and the checkpoints that they write."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import socket
import struct
from typing import Any, Final

from belay.agents.datadist import config as link_config
from belay.agents.datadist import frames as link_frames
from belay.agents.training.checkpoint import layout, peers, sets, sums
from belay.agents.training.checkpoint import settings as checkpoint_settings
from belay.agents.training.checkpoint import wire as checkpoint_wire
from belay.agents.training.checkpoint.errors import CheckpointError
from belay.agents.training.compat import resetfile
from belay.agents.training.compat.bus import message as bus_message
from belay.agents.training.compat.bus import wire as bus_wire
from belay.agents.training.compat.manager import core, operations
from belay.agents.training.compat.mindio import environment, security
from belay.agents.training.compat.taskd.bus_worker import stress_request, switch_request
from belay.agents.training.compat.tft import messages
from belay.agents.training.train import frames, values
from belay.engine.wire.clusterd import tasknet_pb2
from tests.fuzz.harness import Form, Harness, scratch, text

_HAS_TORCH: Final = importlib.util.find_spec("torch") is not None


def _ask(*asks: Any, errors: tuple[type[Exception], ...] = (ValueError,)) -> None:
    for ask in asks:
        try:
            ask()
        except errors as error:
            assert len(str(error)) < 2000, error


def _frames(data: bytes) -> None:
    """A stream in one piece, and cut into two."""
    frames.FrameDecoder().feed(data)
    decoder = frames.FrameDecoder()
    for part in (data[: len(data) // 2], data[len(data) // 2 :]):
        for _, payload in decoder.feed(part):
            _ask(lambda payload=payload: values.split(payload))


def _messages(data: bytes) -> None:
    _ask(lambda: messages.decode(data), lambda: messages.MessageDecoder().feed(data))
    _ask(lambda: messages.MessageDecoder().feed(struct.pack("!I", len(data)) + data))


def _bus(data: bytes) -> None:
    """TaskNet's message, and the body inside it."""
    from google.protobuf.message import DecodeError

    try:
        found = tasknet_pb2.Message.FromString(data)
    except DecodeError:
        return
    if bus_wire.checked(found) == 0:
        bus_wire.from_wire(found.header.src)
        _ask(lambda: bus_message.parse(found.body))


def _body(found: str) -> None:
    _ask(lambda: bus_message.ranks(found), lambda: core._whole(found))
    operations.stress_results(found, (0, 1))
    try:
        body = bus_message.parse(found)
    except ValueError:
        return
    _ask(lambda: switch_request(body.extension), lambda: stress_request(body.extension, 0))


def _datadist(data: bytes) -> None:
    size = link_frames.HEAD.size
    _ask(lambda: link_frames.read_head(data[:size].ljust(size, b"\0")))
    for shape in (link_frames.Hello, link_frames.Welcome, link_frames.Blocks):
        _ask(lambda shape=shape: link_frames.decode(data, shape))


def _options(data: bytes) -> None:
    found = data.decode("utf-8", "surrogateescape")
    _ask(lambda: link_config.addresses("listen", found), errors=(ValueError,))
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        return
    _ask(lambda: link_config.Options.read(body), errors=(ValueError, TypeError))


def _settings(found: str) -> None:
    _ask(lambda: security.parse(found), lambda: checkpoint_settings.from_text(found))
    environment.number({"A": found}, "A", 1, 0, 10)
    try:
        given = json.loads(found)
    except (ValueError, RecursionError):
        return
    _ask(lambda: checkpoint_settings.parse(given))


def _tail(data: bytes) -> None:
    """The map of a `.mindio` file, where the tail says that it is; the tail is made to fit as well."""
    for whole in (data, data + layout.tail(0, len(data))):
        try:
            start, size = layout.read_tail("a", whole[-4096:], len(whole))
            layout.read_map("a", whole[start : start + size], start)
        except CheckpointError as error:
            assert len(str(error)) < 2000


def _sums(data: bytes) -> None:
    """A file of sums, with the digest that makes it whole, beside a set of files."""
    path = scratch(b"x" * 5000, "sets/step-000000100/rank-00000-of-00001.mindio")
    place = sums.place(path)
    place.parent.mkdir(exist_ok=True)
    for whole in (data, data + b"\n" + hashlib.sha256(data).hexdigest().encode() + b"\n"):
        place.write_bytes(whole)
        (place.parent / sets.SHARDS).write_bytes(data)
        (path.parent.parent / sets.TRACKER).write_bytes(data)
        _ask(lambda: sums.read(path), errors=(CheckpointError,))
        sets.scan(path.parent.parent)


def _distributed(data: bytes) -> None:
    folder = scratch(b"", "sets/dcp-100/.metadata").parent
    scratch(data, f"sets/dcp-100/{sums.FOLDER}/{sets.SHARDS}")
    sets.scan(folder.parent)


def _sockets(data: bytes) -> None:
    """Headers between the writing processes of two hosts, and messages of a rank to its own."""
    here, there = socket.socketpair()
    with here, there:
        there.sendall(struct.pack("<I", len(data)) + data[:100_000])
        there.shutdown(socket.SHUT_WR)
        _ask(lambda: peers.content(peers.receive_header(here)), errors=(ValueError, EOFError))
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        there.send(data[:60_000] or b"{}")
        _ask(lambda: checkpoint_wire.receive(here), errors=(ValueError, EOFError))


def _checkpoint(data: bytes) -> None:
    """A whole `.mindio` file, read with torch; nothing but data is unpickled."""
    from belay.agents.training.checkpoint import reading

    _ask(lambda: reading.load(scratch(data, "a.mindio")), errors=(CheckpointError,))


def _import_torch() -> None:
    """It takes seconds and gigabytes of address space."""
    importlib.import_module("belay.agents.training.checkpoint.reading")


def _reset(data: bytes) -> None:
    resetfile.read(scratch(data))


_DECODED: Final = ("agents/training/train/frames.py", "agents/training/train/values.py")
HARNESSES: Final = (
    Harness("rank-frames", _frames, _DECODED, (ValueError,), Form.BYTES),
    Harness("tolerance-messages", _messages, ("agents/training/compat/tft/messages.py",)),
    Harness(
        "tasknet",
        _bus,
        ("agents/training/compat/bus/wire.py", "agents/training/compat/bus/message.py"),
        form=Form.BYTES,
    ),
    Harness(
        "bus-body",
        text(_body),
        (
            "agents/training/compat/bus/message.py",
            "agents/training/compat/manager/operations.py",
            "agents/training/compat/taskd/bus_worker.py",
        ),
    ),
    Harness("datadist-frames", _datadist, ("agents/datadist/frames.py",)),
    Harness("datadist-options", _options, ("agents/datadist/config.py",)),
    Harness(
        "training-settings",
        text(_settings),
        (
            "agents/training/compat/mindio/security.py",
            "agents/training/checkpoint/settings.py",
            "agents/training/compat/mindio/environment.py",
        ),
    ),
    Harness("checkpoint-map", _tail, ("agents/training/checkpoint/layout.py",), form=Form.BYTES, steps=2_000_000),
    Harness("checkpoint-sums", _sums, ("agents/training/checkpoint/sums.py", "agents/training/checkpoint/sets.py")),
    Harness("checkpoint-shards", _distributed, ("agents/training/checkpoint/sets.py",)),
    Harness(
        "checkpoint-sockets",
        _sockets,
        ("agents/training/checkpoint/peers.py", "agents/training/checkpoint/wire.py"),
        steps=1_500_000,
    ),
    Harness("reset-file", _reset, ("agents/training/compat/resetfile.py",), (ValueError,)),
    *(
        (
            Harness(
                "checkpoint",
                _checkpoint,
                ("agents/training/checkpoint/reading.py", "agents/training/checkpoint/unpickling.py"),
                form=Form.BYTES,
                steps=2_000_000,
                prepare=_import_torch,
                tries=0.3,
            ),
        )
        if _HAS_TORCH
        else ()
    ),
)
