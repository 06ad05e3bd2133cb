"""The processor of one rank: carries out orders of the controller, holds the train thread, reports its state. Pure:
events in (methods), commands out (`take`), the clock is an argument.

Procedure of MindIO TFT (component/mindio/tft, processor and `framework_ttp`). Belay's own rules: actions carry the
generation of the repair, and those of an older generation are ignored; a repeated order is carried out once and its
answer repeated.
"""

from __future__ import annotations

import statistics
from collections import OrderedDict, deque
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from belay.agents.training.compat.tft import messages as m
from belay.agents.training.compat.tft.constants import (
    FAULT_OF,
    STATE_OF,
    Action,
    RepairType,
    ReportState,
    Result,
    TrainState,
)
from belay.agents.training.compat.tft.controller_link import ControllerLink
from belay.agents.training.compat.tft.messages import Message
from belay.agents.training.compat.tft.processor_commands import ExitProcess, ProcessorSettings, RunCallback

CLEAN_LOW = 2
REMEMBERED = 16
BARRIER = 25.0
EXIT_LIMIT = 10.0
STANDBY_WAIT = 3.0

CALLBACK_OF = {
    m.STOP: "stop", m.CLEAN: "clean", m.REBUILD: "rebuild", m.REPAIR: "repair", m.ROLLBACK: "rollback",
    m.SAVE: "save", m.RENAME: "rename", m.EXIT: "exit", m.DOWNGRADE: "downgrade", m.UP_REBUILD: "upgrade rebuild",
    m.UP_REPAIR: "upgrade repair", m.UP_ROLLBACK: "upgrade rollback",
}  # fmt: skip


@dataclass
class _Job:
    """An action in progress."""

    message: Message
    token: int = -1
    op: str = ""  # the action whose callback runs: an order to rebuild may begin with cleaning
    waits: str = ""  # the event before it is answered or begun: "parked", "barrier", "paused"
    since: float = 0.0


class Processor(ControllerLink):
    """The state machine of one rank."""

    def __init__(self, settings: ProcessorSettings) -> None:
        super().__init__(settings)
        self.hot = False
        self.repair_step = 0
        self.ordered = ""  # the current strategy, or the last one
        self.next_ready = False
        self.in_repair_wait = False
        self.pause_step: int | None = None
        self.pause_hot = False
        self.paused = False
        self.clean_low = False
        self._answers: OrderedDict[int, Message] = OrderedDict()
        self._jobs: dict[int, _Job] = {}
        self._last_sn = 0
        self._token = 0
        self._running: set[int] = set()  # callbacks that have not returned
        self._watch: int | None = None
        self._hurt = False  # a fault was reported since the last stop: the controller decides what follows
        self._resumed = -1  # the generation in which the train thread was last let go
        self._ends: deque[float] = deque(maxlen=21)
        self._exiting: float | None = None

    # -- the end and the clock ------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Training ended regularly."""
        self.leaving = True
        self.state = TrainState.EXIT
        self._send({"op": m.BYE, "status": self.status()})
        self.lock.release()

    def tick(self, now: float) -> float | None:
        """Send heartbeats, check limits; the time of the next call."""
        if self._exiting is not None and now >= self._exiting:
            self._exit("ordered by the controller, and the exit callback did not return")
        if self.linked and now >= self._next_beat:
            self._heartbeat(now)
        if self._standby is not None and now >= self._standby:
            # the standby controller did not take over: the next address
            self._standby = None
            self.linked = False
            self._try += 1
            self._connect(0.0)
        for sn, job in list(self._jobs.items()):
            if job.waits == "barrier" and now - job.since >= BARRIER:
                self._answer(sn, Result.TIMEOUT)

        orphan_limit = self._check_orphaned(now)
        limits = [self._next_beat if self.linked else None, self._exiting, self._standby, orphan_limit]
        limits += [job.since + BARRIER for job in self._jobs.values() if job.waits == "barrier"]
        return min((limit for limit in limits if limit is not None), default=None)

    def _heartbeat(self, now: float) -> None:
        self._next_beat = now + self._beat
        if self.registered:
            self._send_status()
        else:
            self._register()
        if self._replicas_noted < self._replicas_n:
            self._push_replicas()

    def _check_orphaned(self, now: float) -> float | None:
        """End a rank that was held when it lost its controller, and a pause; when to look again, None where that is
        over."""
        if self._orphaned is None:
            return None
        limit = self._orphaned + self.settings.action_limit
        held = (self.reported and not self.resume) or self.lock.limit is not None or self.lock.stopping
        if now >= limit:
            if held:
                self._exit(f"no controller for {self.settings.action_limit:g} s in the middle of a repair")
            if self.pause_step is not None:
                # no controller is left to end the pause
                self.pause_step, self.paused = None, False
        return limit if held or self.pause_step is not None else None

    # -- the controller ------------------------------------------------------------------------------------------

    def receive(self, message: Message, now: float) -> None:
        """A message of the controller."""
        op = message["op"]
        if op in m.ACTIONS:
            self._action(message, now)
        elif op == m.REGISTERED:
            self._on_registered(message, now)
        elif op == m.STANDBY:
            self._standby = now + STANDBY_WAIT
        elif op == m.REFUSED:
            self.refused = str(message["reason"])
            if message["final"]:
                self._exit(self.refused)
        elif op == m.BACKUPS:
            self.addresses = self.addresses[:1] + [str(a) for a in message["addresses"][:2]]
        elif op == m.NOTED:
            self._replicas_noted = max(self._replicas_noted, message["n"])
        elif op == m.GOODBYE:
            self.pause_step, self.paused = None, False
            if not (self.reported and not self.resume):
                self.lock.release()

    def _on_registered(self, message: Message, now: float) -> None:
        if message["term"] < self.term:
            return
        if message["term"] > self.term:
            self.term, self._last_sn = message["term"], 0
            self._answers.clear()
            self._jobs.clear()
        self.registered, self._standby, self._orphaned = True, None, None
        self._try, self.refused = (0 if self.term == 0 else self._try), ""
        self._beat = max(0.1, float(message["heartbeat"]))
        self._next_beat = now + self._beat
        if message["repair_id"] and not self.repair_id and not self.lock.step:
            self.repair_id, self.hot = message["repair_id"], message["hot"]
            self.generation = max(self.generation, self.repair_id)
            self.state = TrainState.ISOLATE
        self._replicas_noted = -1
        self._push_replicas()
        self._send_status()

    def _action(self, message: Message, now: float) -> None:
        sn = message["sn"]
        if message["term"] < self.term or message["gen"] < self.generation or self._exiting is not None:
            return
        if message["term"] > self.term:
            self.term, self._last_sn = message["term"], 0
            self._answers.clear()
            self._jobs.clear()
        if sn in self._answers:
            self._send(self._answers[sn] | {"status": self.status()})
            return
        if sn <= self._last_sn:
            return
        self._last_sn = sn
        if message["gen"] > self.generation:
            self.generation, self._freed = message["gen"], False
        self.ordered = message["strategy"] or self.ordered
        self._jobs.clear()  # one action at a time: the controller has given up the earlier one
        job = self._jobs[sn] = _Job(message, since=now)
        self._begin(sn, job, now)

    def _begin(self, sn: int, job: _Job, now: float) -> None:
        message, op = job.message, job.message["op"]
        if op == m.COLLECT:
            if not message.get("look"):
                self.lock.freeze()
            self._answer(sn, Result.OK, limit=self.lock.step if self.lock.limit is None else self.lock.limit)
        elif op == m.LOCK:
            self.lock.hold(message["step"])
            job.waits = "step"
            self._settle()
        elif op == m.UNLOCK:
            self.lock.release()
            self._answer(sn, Result.OK)
        elif op == m.STOP:
            self.lock.hold(message["step"])
            self.lock.stop()
            self.pause_step, self.resume, self._freed = None, False, False
            self._run(job)
        elif op == m.NORMAL:
            self._normal(sn, message)
        elif op == m.PAUSE:
            self.pause_step, self.pause_hot = message["step"], message["hot"]
            self.lock.release()
            job.waits = "paused"
            self._settle()
        elif op == m.CONTINUE:
            self.pause_step, self.paused = None, False
            self.lock.release()
            self._answer(sn, Result.OK)
        elif op == m.EXIT:
            self._exiting = now + EXIT_LIMIT
            self._answer(sn, Result.OK)
            self._jobs[sn] = job
            self._run(job)
        elif op in (m.REPAIR, m.UP_REPAIR) and not self.in_repair_wait:
            job.waits = "barrier"
        elif op == m.REBUILD and message.get("clean"):
            self._run(job, m.CLEAN)
        else:
            self._run(job)

    def _run(self, job: _Job, first: str = "") -> None:
        message = job.message
        op = job.op = first or message["op"]
        if op == m.SAVE:
            self.lock.dumping = True
        arguments = {k: v for k, v in message.items() if k not in ("op", "term", "gen", "sn", "clean", "resume")}
        if op == m.CLEAN:
            arguments["uce"] = self.state in (TrainState.UCE_HIGH, TrainState.UCE_LOW, TrainState.UCE_CORRUPTED)
        if "step" in message and op != m.STOP:
            self.repair_step = message["step"]
        self._token += 1
        job.token, job.waits = self._token, "callback"
        if op not in (m.STOP, m.EXIT):
            self._running.add(job.token)
        self._out.append(RunCallback(job.token, CALLBACK_OF[op], arguments))

    def finished(self, token: int, result: int) -> None:
        """A callback returned (``result`` 0: success; 2 of clean: no rebuild is needed)."""
        self._running.discard(token)
        self._settle()
        for sn, job in list(self._jobs.items()):
            if job.token == token:
                self._done(sn, job, result)

    def _done(self, sn: int, job: _Job, result: int) -> None:
        op, fine = job.op or job.message["op"], result == 0
        if op == m.EXIT:
            self._exit("ordered by the controller")
        elif op == m.CLEAN:
            self._cleaned(sn, job, result)
        elif op == m.STOP and fine:
            # it is answered once the train thread is parked
            job.waits, job.token, self._freed = "parked", -1, True
            self._settle()
            if sn in self._jobs:
                self._send_status()
        elif op == m.ROLLBACK and fine and job.message.get("resume") and not self._hurt:
            self.lock.restored(self.loaded or job.message["step"])
            self._normal(sn, job.message)
        else:
            if fine:
                self._note_done(op, job.message)
            self._answer(sn, Result.OK if fine else Result.ERROR)

    def _cleaned(self, sn: int, job: _Job, result: int) -> None:
        """The clean callback returned; an order to rebuild that began with it goes on."""
        fine = result in (0, CLEAN_LOW)
        if fine:
            self.clean_low = result == CLEAN_LOW
            if self.state is not TrainState.INIT_FINISH:
                self.next_ready = True
            if self.clean_low and self.state is TrainState.UCE_HIGH:
                self.state = TrainState.UCE_LOW

        if job.message["op"] == m.CLEAN:
            self._answer(sn, Result.OK if fine else Result.ERROR)
        elif fine:
            self._run(job)
        else:
            self._answer(sn, Result.ERROR, unclean=True)

    def _note_done(self, op: str, message: Message) -> None:
        """What an action that has succeeded changes."""
        if op in (m.REBUILD, m.UP_REBUILD):
            self.next_ready = True
        sends = op in (m.REPAIR, m.UP_REPAIR) and message["type"] == RepairType.RT_SEND.value
        if op in (m.REPAIR, m.UP_REPAIR, m.ROLLBACK, m.UP_ROLLBACK) and not sends:
            self.lock.restored(self.loaded or message["step"])

    def _normal(self, sn: int, message: Message) -> None:
        if self.reported and not self.resume and self._resumed == self.generation:
            # It went on in this generation and has stopped since without an order: a fault that needs a generation
            # of its own. Its groups and its step may no longer be those of the others.
            self._answer(sn, Result.ERROR)
            return
        self.state, self.code, self._hurt = TrainState.NORMAL, "", False
        self.pause_step, self.paused = None, False
        self._watch, self._freed = message["step"], False
        self._ends.clear()
        self.lock.release()
        if self.reported:
            self.resume, self._resumed = True, self.generation
        self._answer(sn, Result.OK)
        self.loaded = 0

    def _answer(self, sn: int, result: Result, **more: Any) -> None:
        self._jobs.pop(sn, None)
        reply = {"op": m.REPLY, "term": self.term, "sn": sn, "result": int(result), **more}
        self._answers[sn] = reply
        while len(self._answers) > REMEMBERED:
            self._answers.popitem(last=False)
        self._send(reply | {"status": self.status()})

    def _settle(self) -> None:
        """Answer actions that waited for the train thread."""
        for sn, job in list(self._jobs.items()):
            if job.waits == "step":
                if self.lock.at(job.message["step"]):
                    self._answer(sn, Result.OK)
                elif self.lock.step > job.message["step"]:
                    self._answer(sn, Result.NEED_RETRY)
            elif job.waits == "parked" and self.reported and not self._running:
                self._hurt = False  # the answer says so
                self._answer(sn, Result.OK)
            elif job.waits == "paused" and self.paused:
                if job.message["hot"]:
                    self._answer(sn, Result.OK)
                else:
                    self._token += 1
                    job.token, job.waits = self._token, "callback"
                    self._out.append(RunCallback(job.token, "sync", {}))
            elif job.waits == "barrier" and self.in_repair_wait:
                self._run(job)

    def _exit(self, reason: str) -> None:
        self._exiting = None
        if not self.leaving:
            self.leaving = True
            self._out.append(ExitProcess(2, reason))

    # -- the train thread ----------------------------------------------------------------------------------------

    def ended_update(self, step: int, now: float) -> None:
        """A step is finished. Raises ValueError below 1."""
        self.lock.end(step)
        self._ends.append(now)
        if len(self._ends) > 2:
            ends = list(self._ends)
            self._pace = statistics.median(late - early for early, late in pairwise(ends))
        self._settle()
        if self._watch is not None and step > self._watch:
            self._watch = None
            self._send_status()

    def report(self, state: ReportState, code: str = "") -> None:
        """The train function ended, or a new rank reached ``state``."""
        self.state, self.code = STATE_OF[state], code[:15]
        self._hurt = self._hurt or self.state in FAULT_OF
        if state is ReportState.RS_STEP_FINISH:
            self.paused = True
        self.reported, self.resume, self.in_repair_wait = True, False, False
        self.next_ready = False
        self._settle()
        self._send_status()

    def next_action(self) -> Action | None:
        """After `report`: RETRY once links are stopped and cleaned (a new rank: groups rebuilt); None: wait."""
        if self.leaving:
            return Action.EXIT
        return Action.RETRY if self.next_ready or self.resume else None

    def repair_action(self) -> Action | None:
        """RETRY once the train function is to be entered again; None: wait. Taking RETRY lets the thread run."""
        if self.leaving:
            return Action.EXIT
        if not self.in_repair_wait:
            self.in_repair_wait = True
            self._settle()
        if not self.resume:
            return None
        self.reported = self.resume = self.in_repair_wait = False
        return Action.RETRY

    def pause_at(self, step: int) -> bool:
        """Whether a thread that finished ``step`` must pause; the first such call informs the controller."""
        if self.pause_step is None or step < self.pause_step:
            return False
        if not self.paused:
            self.paused = True
            self._settle()
        return True

    def load_step(self, step: int) -> None:
        """Record the step of the loaded periodic checkpoint."""
        self.loaded = step
