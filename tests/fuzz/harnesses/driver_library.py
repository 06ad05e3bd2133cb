"""Answers of the driver's library: every out parameter of every call is filled with the input."""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Callable
from typing import Any, Final

from belay.agents.drivers.base import DriverError
from belay.agents.drivers.dcmi import prototypes
from belay.agents.drivers.dcmi.calls import Calls
from belay.agents.drivers.dcmi.errors import DcmiError
from belay.agents.drivers.dcmi.supervisor import Supervisor, _failures
from tests.fuzz.harness import Form, Harness
from tests.fuzz.harnesses.loops import run

LARGEST: Final = 1 << 16


_LISTING: Final[dict[str, dict[int, int]]] = {
    "dcmi_init": {},
    "dcmi_get_card_list": {0: 1, 1: 0},
    "dcmi_get_device_num_in_card": {1: 1},
    "dcmi_get_device_type": {2: 0},
    "dcmi_get_device_logic_id": {0: 0},
    "dcmi_get_device_phyid_from_logicid": {1: 0},
}
"""Out parameters, by their places, of a host with one chip."""


class HostileLibrary:
    """A library with every function. The input is used up from its beginning, then again. Where its first byte is odd,
    the library lists one chip, as a sound one does.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data or b"\0"
        self._at = 0

    def take(self, size: int) -> bytes:
        """The next bytes of the input."""
        start = self._at % len(self._data)
        self._at += size
        return (self._data[start:] + self._data * (size // len(self._data) + 1))[:size]

    def has(self, name: str) -> bool:
        return bool(self.take(1)[0] & 7)

    def call(self, name: str, *arguments: Any) -> None:
        """One call in eight fails, with any code."""
        if self._data[0] & 1 and name in _LISTING:
            for position, value in _LISTING[name].items():
                ctypes.c_int.from_address(
                    ctypes.addressof(getattr(arguments[position], "_obj", arguments[position]))
                ).value = value
            return
        if not self.take(1)[0] & 7:
            raise DcmiError(name, int.from_bytes(self.take(4), "little", signed=True))
        for argument in arguments:
            target = getattr(argument, "_obj", argument)
            if isinstance(target, ctypes._SimpleCData | ctypes.Structure | ctypes.Union | ctypes.Array):
                size = min(ctypes.sizeof(target), LARGEST)
                ctypes.memmove(ctypes.addressof(target), self.take(size), size)

    subscribe = call


def _calls(data: bytes) -> None:
    """Every call of the driver's child process, with small arguments."""
    library = HostileLibrary(data)
    try:
        calls = Calls(library)  # type: ignore[arg-type]
    except DriverError as error:
        assert len(str(error)) < 1000
        return
    assert len(calls.places) <= 512
    for name in _READINGS:
        call: Callable[..., Any] = getattr(calls, name)
        count = call.__code__.co_argcount - 1
        try:
            value = call(*(0,) * count)
        except (DriverError, TypeError) as error:
            assert len(str(error)) < 1000
            continue
        assert len(repr(value)) < 1 << 20


def _is_reading(name: str) -> bool:
    """Whether every argument of a call is a number."""
    call = getattr(Calls, name)
    if name.startswith("_") or not callable(call) or name in ("subscribe", "place"):
        return False
    hints = list(inspect.signature(call).parameters.values())[1:]
    return all(hint.annotation == "int" for hint in hints)


_READINGS: Final = tuple(sorted(name for name in dir(Calls) if _is_reading(name)))


class _Reader:
    """The output of a child process."""

    def __init__(self, data: bytes) -> None:
        self._lines = data.splitlines(keepends=True)
        self.stdout = self
        self.returncode = 0

    async def wait(self) -> int:
        return 0

    async def readline(self) -> bytes:
        return self._lines.pop(0) if self._lines else b""


def _answers(data: bytes) -> None:
    """Lines of the child process, whose library may have written into its memory."""
    from pathlib import Path

    supervisor = Supervisor(Path("/nowhere"))
    run(supervisor._read(_Reader(data)))  # type: ignore[arg-type]
    while not supervisor.events.empty():
        _failures(supervisor.events.get_nowait())


assert prototypes.ALL
HARNESSES: Final = (
    Harness(
        "dcmi",
        _calls,
        (
            "agents/drivers/dcmi/interface.py",
            "agents/drivers/dcmi/control.py",
            "agents/drivers/dcmi/identity.py",
            "agents/drivers/dcmi/gauges.py",
        ),
        form=Form.BYTES,
        steps=2_000_000,
    ),
    Harness("dcmi-answers", _answers, ("agents/drivers/dcmi/supervisor.py",), form=Form.TEXT),
)
