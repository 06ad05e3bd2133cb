"""Plugins of operations: link switch, stress test, profiling; each in its own stream. Pure.

Rules: component/taskd/taskd/go/framework_backend/manager/plugins (om, faultdig).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from belay.agents.training.clusterd import constants
from belay.agents.training.clusterd.state import (
    JobState,
    ReplyStress,
    ReplySwitch,
    StressRequest,
    SwitchRequest,
    ToWorkers,
)
from belay.agents.training.compat.bus import codes
from belay.agents.training.compat.manager.streams import Outcome

#: The switches of profiling, as ClusterD names them.
SWITCHES: Final = ("CommunicationOperator", "Step", "SaveCheckpoint", "FP", "DataLoader")


class LinkSwitch:
    """Every worker moves links to the partner NIC or back; one that fails, or is late, fails the operation."""

    name, priority = "OMSwitchNic", 1

    def __init__(self) -> None:
        self._done = ""
        self._request: SwitchRequest | None = None
        self._asked: frozenset[int] = frozenset()
        self._since = 0.0

    def wants(self, state: JobState) -> bool:
        """Whether a request is not answered yet."""
        return state.switch is not None and state.switch.uuid != self._done

    def _end(self, uuid: str, ok: bool) -> Outcome:
        self._done, self._request = uuid, None
        return Outcome(True, (ReplySwitch(ok),))

    def handle(self, state: JobState) -> Outcome:
        """Ask the workers once, then wait for their answers."""
        request = state.switch
        if request is None:
            return Outcome(True)
        if self._request is None or self._request.uuid != request.uuid:
            if not state.workers:
                return self._end(request.uuid, False)
            self._request, self._asked, self._since = request, frozenset(state.workers), state.now
            extension = {
                constants.SWITCH_UUID: request.uuid,
                constants.GLOBAL_RANKS: json.dumps(list(request.ranks)),
                constants.GLOBAL_OPS: json.dumps(list(request.ops)),
            }
            return Outcome(False, (ToWorkers(None, codes.SWITCH_NIC, extension),))
        answers = [state.workers[rank].switch for rank in self._asked if rank in state.workers]
        results = [result for uuid, result in answers if uuid == request.uuid]
        if constants.SWITCH_FAIL in results or state.now - self._since >= constants.SWITCH_SECONDS:
            return self._end(request.uuid, False)
        if len(results) == len(self._asked):
            return self._end(request.uuid, all(result == constants.SWITCH_OK for result in results))
        return Outcome(False)


class StressTest:
    """Workers test their chips; one that is silent for 30 s, or not done after 15 min, counts as timed out."""

    name, priority = "OMStressTest", 1

    def __init__(self) -> None:
        self._done = ""
        self._request: StressRequest | None = None
        self._since = 0.0
        self._results: dict[int, dict[int, tuple[str, str]]] = {}

    def wants(self, state: JobState) -> bool:
        """Whether a request is not answered yet."""
        return state.stress is not None and state.stress.uuid != self._done

    def handle(self, state: JobState) -> Outcome:
        """Ask the workers once, then collect results."""
        request = state.stress
        if request is None:
            return Outcome(True)
        if self._request is None or self._request.uuid != request.uuid:
            self._request, self._since, self._results = request, state.now, {}
            asked = json.dumps({str(rank): {"ops": list(ops)} for rank, ops in request.ops.items()})
            extension = {constants.STRESS_UUID: request.uuid, constants.STRESS_OPS: asked}
            if request.ops:
                return Outcome(False, (ToWorkers(tuple(sorted(request.ops)), codes.STRESS_TEST, extension),))
        for rank, ops in request.ops.items():
            if rank not in self._results:
                self._gather(state, request.uuid, rank, ops)
        if len(self._results) < len(request.ops):
            return Outcome(False)
        self._done, self._request = request.uuid, None
        return Outcome(True, (ReplyStress(self._results),))

    def _gather(self, state: JobState, uuid: str, rank: int, ops: tuple[int, ...]) -> None:
        worker = state.workers.get(rank)
        if worker is not None and worker.stress[0] == uuid:
            self._results[rank] = stress_results(worker.stress[1], ops)
            return
        seen = max(self._since, worker.seen if worker is not None else 0.0)
        late = state.now - self._since >= constants.STRESS_SECONDS
        if late or state.now - seen >= constants.HEARTBEAT_SECONDS:
            why = "no result within 15 min" if late else "worker heartbeat timeout"
            self._results[rank] = dict.fromkeys(ops, (constants.STRESS_TIMEOUT, why))


def stress_results(text: str, ops: tuple[int, ...]) -> dict[int, tuple[str, str]]:
    """A worker's answer: operation → (code, text). One that cannot be read counts as failed (code 1)."""
    try:
        found = json.loads(text)["rankResult"]
        return {
            op: (str(found[str(op)].get("code", ""))[:8], str(found[str(op)].get("result", ""))[:256]) for op in ops
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return dict.fromkeys(ops, ("1", "the worker's answer cannot be read"))


class Profiling:
    """Switches profiling on and off in every worker, also in those that register later."""

    name, priority = "Profiling", 1

    def __init__(self) -> None:
        self._sent: dict[int, tuple[int, float]] = {}
        self._last: int | None = None

    def _missing(self, state: JobState) -> tuple[int, ...]:
        return tuple(rank for rank in state.workers if rank not in self._sent)

    def wants(self, state: JobState) -> bool:
        """Whether the command changed, or a worker has not got it."""
        for rank in [rank for rank in self._sent if rank not in state.workers]:
            del self._sent[rank]
        if state.profiling is None or not state.workers:
            return False
        return state.profiling != self._last or bool(self._missing(state))

    def handle(self, state: JobState) -> Outcome:
        """Send the command to all workers, or to those that have not got it."""
        assert state.profiling is not None
        ranks = None if state.profiling != self._last else self._missing(state)
        self._last = state.profiling
        self._sent = dict.fromkeys(state.workers, (state.profiling, state.now))
        return Outcome(True, (ToWorkers(ranks, state.profiling),))

    def forget(self, rank: int) -> None:
        """A worker registered again and needs the command."""
        self._sent.pop(rank, None)


def profiling_command(switches: Mapping[str, Any]) -> int:
    """The command for ClusterD's five switches: any that is not off opens the default domain, CommunicationOperator on
    also its own."""
    if all(switches.get(name) in ("off", "", None) for name in SWITCHES):
        return codes.PROFILING_OFF
    return codes.PROFILING_ALL if switches.get("CommunicationOperator") == "on" else codes.PROFILING_DEFAULT
