"""The same readings of many chips in one message to the driver process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from belay.agents.drivers.dcmi.errors import TIMED_OUT, DcmiError
from belay.agents.drivers.failures import DriverError


class AskDriver(Protocol):
    """A call to the driver process, with its deadline."""

    async def __call__(self, call: str, *arguments: Any, timeout: float) -> Any:
        """Return the answer. Raises DriverError."""
        ...


class ChipReadings:
    """Asks chips together: on an idle machine a message for each costs more than all that is read.

    A chip that hangs would keep the others waiting, so as long as one does, each is asked alone.
    """

    def __init__(self, ask: AskDriver) -> None:
        self._ask = ask
        self._hanging: set[tuple[str, ...]] = set()

    async def read(self, chips: Sequence[int], *calls: str, seconds: float) -> Mapping[int, Sequence[Any]]:
        """What each chip answers to these calls, at most so many seconds for a message. An error stands in the place
        of the value."""
        turns = [[[call, chip] for call in calls] for chip in chips]
        if chips and calls not in self._hanging:
            try:
                answers = await self._ask("turns", turns, timeout=seconds)
                return {chip: [_value(one) for one in turn] for chip, turn in zip(chips, answers, strict=True)}
            except DriverError as error:
                # one whose process ended is started again by the next call
                if _timed_out(error):
                    self._hanging.add(calls)

        found: dict[int, Sequence[Any]] = {}
        for chip, turn in zip(chips, turns, strict=True):
            try:
                found[chip] = [_value(one) for one in await self._ask("several", turn, timeout=seconds)]
            except DriverError as error:
                found[chip] = [error] * len(calls)
        if not any(_timed_out(answers[0]) for answers in found.values()):
            self._hanging.discard(calls)
        return found


def _value(answer: Mapping[str, Any]) -> Any:
    """A reading of a batch: its value, or its error as an exception."""
    if "error" not in answer:
        return answer["value"]
    return DcmiError(answer["function"], answer["code"]) if "code" in answer else DriverError(answer["error"])


def _timed_out(answer: Any) -> bool:
    return isinstance(answer, DcmiError) and answer.code == TIMED_OUT
