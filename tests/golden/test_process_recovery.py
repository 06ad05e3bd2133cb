"""A job recovers without the planner's help: the real conversation beside the real planner, in one world."""

from __future__ import annotations

from typing import Any

import pytest

from belay.engine.model.actions import kind_of
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.recovery import Conversation, FaultyRank, JobFacts, Report, State, step
from belay.engine.model.recovery.conversation import (
    Annotate,
    Done,
    Faults,
    Input,
    Offered,
    Reset,
    Sent,
    Signal,
    StopComplete,
    Tick,
    Written,
)
from belay.engine.wire import names, recoveryrecord
from belay.engine.wire.recoveryrecord import Record
from tests.golden.stories import compare
from tests.golden.test_recovery_cost import CRD, job
from tests.simworld import A2, Node, World

UCE = "80E01801"


class Served(World):
    """A world with one job under process recovery, and the server that holds its conversation."""

    def __init__(self, strategies: str) -> None:
        super().__init__({}, [Node(f"node-{i}", labels=A2) for i in range(1, 5)])
        self.put(CRD)
        labels = {"process-recover-enable": "on", "fault-scheduling": "force"}
        self.put(job("j", labels, {"recover-strategy": strategies}, int(self.now) - 300))
        self.until_quiet()
        owner = self.objects[ObjectKey("mindxdl.gitee.com/v1", "AscendJob", "default", "j")]
        self.talk = Conversation(job=owner["metadata"]["uid"])
        self.facts = JobFacts(configured=(*strategies.split(","), "exit"), in_place=True, in_place_clear=True)
        self.began, self.states = self.now, dict[str, str]()
        self.story.clear()

    @property
    def worker(self) -> str:
        return str(self.pods()["j-worker-0"]["spec"]["nodeName"])

    def tell(self, told: Input, said: str = "") -> None:
        """One input to the conversation: what it remembers is kept, what it asks for is done."""
        if said:
            self.note(f"the job {said}")
        result = step(self.talk, told, self.facts, int(self.now * 1000), "round")
        if result.conversation.state is not self.talk.state:
            self.note(f"its recovery is at {result.conversation.state.value}")
        self.talk = result.conversation
        key = ObjectKey("v1", "ConfigMap", names.SYSTEM, recoveryrecord.name_of(self.talk.job))
        if self.talk.state is State.INIT and not self.talk.ranks:
            self.delete(key)
        else:
            self.put(recoveryrecord.build(Record(conversation=self.talk)))
        for effect in result.effects:
            if isinstance(effect, Annotate):
                self._annotate({effect.key: effect.value})
            if isinstance(effect, Signal) and effect.answer:
                self.tell(Sent(True))
            elif isinstance(effect, Reset | Annotate) and effect.answer:
                self.tell(Written(True))

    def _annotate(self, notes: dict[str, str]) -> None:
        key = next(key for key in self.objects if key.kind == "PodGroup")
        body: dict[str, Any] = self.objects[key]
        metadata = {**body["metadata"], "annotations": {**body["metadata"].get("annotations", {}), **notes}}
        self.put({**body, "metadata": metadata})

    def after(self, seconds: float) -> None:
        """Time passes, with a pass of the planner each second."""
        end = self.now + seconds
        while self.now < end:
            self.pass_time(min(1.0, end - self.now))
            result = self.step()
            now = {f"{c.node}/{c.chip}": f"{c.state} {c.level}" for c in result.chips if c.state != "healthy"}
            for name in sorted({*now, *self.states}):
                if now.get(name) != self.states.get(name):
                    self.note(f"{name} is {now.get(name, 'healthy')}")
            self.states = now
            for action in result.actions:
                self.note(f"{kind_of(action)} {action.message}")

    def note(self, text: str) -> None:
        self.story.append(f"[{self.now - self.began:4.0f}s] {text}")


def retried(world: Served) -> None:
    """To where the job repeats its step: it reports the fault itself after four seconds."""
    world.fault(world.worker, 3, code=UCE, level="RestartBusiness")
    world.after(4)
    world.tell(Faults((FaultyRank("11", "0"),), software=True), "reports a memory error on rank 11")
    world.tell(StopComplete(Report()), "stands")
    world.tell(Tick())
    world.tell(Offered(Report(strategies=("retry", "recover", "exit"))), "offers to repeat the step")
    assert world.talk.state is State.WAIT_RETRY


def test_a_repeated_step_moves_no_pod(update_golden: bool) -> None:
    world = Served("retry,recover")
    where = world.worker
    retried(world)
    world.after(20)
    world.tell(Done(Report(strategy="retry")), "has repeated it")
    world.after(120)
    assert world.worker == where and world.states == {f"{where}/Ascend910-3": "suspect RestartBusiness"}
    world.heal(where, 3)
    world.after(2)
    assert world.states == {}
    compare("process-retry", world.story, update_golden)


def test_a_fault_that_hardware_reports_first_gets_the_same_time(update_golden: bool) -> None:
    world = Served("retry,recover")
    where = world.worker
    world.fault(where, 3, code=UCE, level="RestartBusiness")
    world.after(2)
    world.tell(Faults((FaultyRank("11", "0"),)), "learns of a memory error on rank 11")
    world.after(5)
    world.tell(StopComplete(Report()), "stands")
    world.tell(Tick())
    world.tell(Offered(Report(strategies=("retry", "recover", "exit"))), "offers to repeat the step")
    world.after(25)
    world.tell(Done(Report(strategy="retry")), "has repeated it")
    world.after(60)
    assert world.worker == where
    compare("process-retry-hardware", world.story, update_golden)


def test_a_step_that_takes_too_long_to_repeat_moves_the_pod(update_golden: bool) -> None:
    world = Served("retry,recover")
    where = world.worker
    retried(world)
    world.after(40)
    assert world.worker != where
    compare("process-retry-late", world.story, update_golden)


def in_place(world: Served) -> None:
    """To where the processes stop: the fault is light, the chip's report takes two minutes to be clean again."""
    world.fault(world.worker, 3, level="RestartRequest")
    world.after(2)
    world.tell(Faults((FaultyRank("11", "1"),)), "has a fault on rank 11")
    for seconds in (10, 60):
        world.after(seconds)
        world.tell(Tick())
    assert world.talk.state is State.WAIT_STOP


def test_processes_that_start_again_in_their_pods_keep_them(update_golden: bool) -> None:
    world = Served("recover-in-place,recover")
    where = world.worker
    in_place(world)
    world.after(50)
    assert world.worker == where
    world.heal(where, 3)
    world.tell(StopComplete(Report()), "stands")
    world.after(1)
    world.tell(Tick())
    world.tell(Offered(Report(strategies=("recover", "exit"))), "offers to start again")
    assert world.talk.in_place
    world.after(30)
    world.tell(Done(Report(strategy="recover")), "trains again")
    world.after(5)
    assert (world.worker, world.states) == (where, {})
    compare("process-in-place", world.story, update_golden)


@pytest.mark.parametrize("served", [True, False])
def test_a_recovery_that_gets_nowhere_frees_the_pod(served: bool, update_golden: bool) -> None:
    world = Served("recover-in-place,recover")
    where = world.worker
    in_place(world)
    world.note("no process reports that training stopped")
    for _ in range(34):
        world.after(30)
        if served:
            world.tell(Tick())
    assert world.worker != where
    compare(f"process-{'stuck' if served else 'unserved'}", world.story, update_golden)
