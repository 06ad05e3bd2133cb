"""Where a rank waits, as it says itself; what its coordinator makes of it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

import pytest

from tests.needs import lacking

try:
    import torch
except ImportError:
    lacking("torch is not installed: make venv-training")

from belay.agents.training.train.decide.coordinator import Coordinator
from belay.agents.training.train.decide.coordinator_commands import EndJob, JoinGeneration, OperatorMessage
from belay.agents.training.train.worker import waiting
from belay.agents.training.train.worker.link_failures import _raised_by_a_library, is_link_failure
from tests.training.test_coordinator import training


def kernel_call(wait: Callable[[], object]) -> tuple[str, float]:
    """What is seen of a thread that waits so."""
    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    for _ in range(200):
        found = waiting._kernel_call(thread.native_id or 0)
        if found[0]:
            return found
        thread.join(0.01)
    return found


def test_a_wait_for_a_socket_is_outside_of_the_group_and_has_no_known_end() -> None:
    near, far = socket.socketpair()
    with near, far:
        assert kernel_call(lambda: near.recv(1)) == ("recvfrom", waiting.UNBOUNDED)
        far.send(b"x")


def test_a_sleep_says_when_it_ends() -> None:
    name, seconds = kernel_call(lambda: time.sleep(50))
    assert name == "sleep" and 40 < seconds <= 50


def test_a_lock_may_be_that_of_a_collective() -> None:
    released = threading.Event()
    thread = threading.Thread(target=released.wait, daemon=True)
    thread.start()
    thread.join(0.2)
    assert waiting._kernel_call(thread.native_id or 0)[1] == 0.0
    released.set()


def test_the_line_of_the_script_is_named() -> None:
    assert waiting.of_main_thread().text.endswith(f"test_waiting.py:{here()}")


def here() -> int:
    import inspect

    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return frame.f_back.f_lineno


class Links:
    """In the place of a rank's groups."""

    def __init__(self, broken: bool, device: object = None) -> None:
        self.sockets, self.device, self._broken = self, device, broken

    def broken(self, generation: int) -> bool:
        return self._broken


def caught(call: Callable[[], object]) -> Exception:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError


def raises(text: str) -> None:
    raise RuntimeError(text)


@pytest.mark.parametrize(
    ("call", "broken", "expected"),
    [
        # words decide nothing
        (lambda: raises("gloo NCCL HCCL Interrupted Broken pipe"), True, False),
        (lambda: torch.zeros(2) @ torch.zeros(3), False, False),
        # an error of C++ while links are broken
        (lambda: torch.zeros(2) @ torch.zeros(3), True, True),
        (lambda: raises_class(torch.distributed.DistNetworkError), False, True),
        (lambda: raises_class(ConnectionResetError), True, False),
    ],
)
def test_class_and_origin_of_an_error_decide(call: Callable[[], object], broken: bool, expected: bool) -> None:
    assert is_link_failure(caught(call), Links(broken), 1) is expected  # type: ignore[arg-type]


def raises_class(kind: type[Exception]) -> None:
    raise kind("")


def test_the_origin_of_an_error_that_was_raised_again_is_where_it_came_from() -> None:
    def again() -> None:
        try:
            torch.zeros(2) @ torch.zeros(3)
        except RuntimeError as error:
            raise error

    assert _raised_by_a_library(caught(again)) == __file__
    assert _raised_by_a_library(caught(lambda: raises("x"))) is None


def quiet(machine: Coordinator, now: float) -> list[object]:
    return list(machine.tick(now))


def stepping() -> Coordinator:
    machine = training(2)
    machine.stepped(0, 1, 3, 1.0)
    return machine


def test_the_same_hang_again_and_again_ends_the_job_and_says_who_waited_where() -> None:
    machine = stepping()
    now = 1.0
    for turn in range(machine.limits.hangs + 1):
        for rank in range(2):
            machine.waits(rank, 1, "in all_reduce, train.py:41", 0.0, now)
        now += 11.0
        commands = quiet(machine, now)
        if turn < machine.limits.hangs:
            assert isinstance(commands[0], OperatorMessage) and isinstance(commands[1], JoinGeneration)
            assert "ranks 0, 1 are in all_reduce, train.py:41; limit 10 s" in commands[0].text
            for rank in range(2):
                machine.ready(rank, 1, machine.generation, 3, "", now)
            for rank in range(2):
                machine.entered(rank, 1, machine.generation, now)
    (end,) = commands
    assert isinstance(end, EndJob) and end.code == 1
    assert "6 hangs in a row without a finished step" in end.text and "train.py:41" in end.text


def test_a_rank_that_works_or_waits_outside_has_the_longer_limit() -> None:
    machine = stepping()
    for now in range(2, 601):
        machine.working(float(now))
        assert quiet(machine, float(now)) == []
    machine.working(602.0)
    assert isinstance(quiet(machine, 602.0)[1], JoinGeneration)


def test_a_wait_on_purpose_has_the_limit_that_the_script_gives() -> None:
    machine = stepping()
    machine.waits(0, 1, "in wait, train.py:9", 1000.0, 2.0)
    assert quiet(machine, 1001.0) == []
    assert quiet(machine, 1003.0) != []


def test_the_first_step_has_longer_and_pauses_are_learned() -> None:
    machine = training(2)
    assert quiet(machine, 59.0) == []
    machine.stepped(0, 1, 1, 59.0)
    machine.stepped(0, 1, 2, 68.0)
    # an evaluation of 9 s: the next may take 18
    assert quiet(machine, 85.0) == []
    assert quiet(machine, 87.0) != []
