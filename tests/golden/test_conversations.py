"""What is said between a job's processes and process recovery, story by story, with every time and status code.

Each story is one file ``conversation-<name>.txt``: ``<`` is received, ``>`` sent or written, ``=`` is an event with the
state that it leads to. Together the stories take every row of the transition table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from belay.engine.model.recovery import Conversation, FaultyRank, Report, State, reset, summary
from belay.engine.model.recovery.conversation import (
    Done,
    Effect,
    Faults,
    Input,
    Label,
    NotifyOperation,
    Offered,
    Operation,
    Replied,
    Reset,
    Signal,
    Start,
    StopComplete,
    SubHealthy,
    Tick,
)
from belay.engine.model.recovery.table import ROWS
from tests.golden.stories import compare
from tests.recovery_conversation import ALL, CAN, Talk, answer, short, software

Story = Callable[["Telling"], Any]
STORIES: Final[dict[str, Story]] = {}

#: The codes that are due, by event, or by state and event; 0 elsewhere.
DUE: Final[dict[tuple[str, str], set[int]]] = {
    ("", "receiveTimeout"): {507}, ("", "scheduleTimeout"): {503}, ("", "needTryScaleStrategyInEvent"): {503},
    ("", "notifyFail"): {504}, (State.WAIT_FLUSHING, "notifyFail"): {501}, (State.RESTART_ALL, "notifyFail"): {501},
    ("", "clearFail"): {501}, ("", "changeSwitchPauseError"): {502}, ("", "changeSwitchEnableError"): {502},
    ("", "waitPlatStrategyTimeout"): {508}, ("", "waitRankTableTimeout"): {508},
    ("", "writeConfirmFaultOrWaitResultFaultTimeout"): {509}, ("", "waitHCCLRoutingConvergenceFail"): {510},
    ("", "processNotReadyEvent"): {499}, ("", "reset"): {506},
    # what the clients themselves said
    ("", "recoverableRetryError"): {405}, ("", "unRecoverableRetryError"): {406}, ("", "recoverFail"): {499},
    (State.CHECK_ISOLATE, "recoverFail"): {406}, ("", "RestartFaildEvent"): {499}, ("", "checkFinish"): {0, 407},
}  # fmt: skip


class Telling(Talk):
    """A conversation that is written down. Effects succeed unless ``failing`` says otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.taken: set[tuple[State, str, str]] = set()
        self.failing: Callable[[Effect], bool] = lambda _: False

    def set(self, what: str = "", **facts: object) -> Telling:
        self.change(**facts)
        if what:
            self._say(f"({what})")
        return self

    def after(self, seconds: float) -> Telling:
        self.now += round(seconds * 1000)
        return self.tell(Tick())

    def fails(self, kind: type[Effect], name: str = "") -> Telling:
        """From now on such effects fail."""
        self.failing = lambda effect: isinstance(effect, kind) and name in short(effect)
        return self

    def well(self) -> Telling:
        self.failing = lambda _: False
        return self

    def hung_up(self) -> Telling:
        """The last client left."""
        before = self.talk
        self.talk = reset(before, self.now)
        self._say("< the client hung up")
        self._steps(before)
        over = summary.summary_write(before, self.talk, self.facts)
        if over is not None and self.accounted(over):
            self._account()
        return self

    def tell(self, told: Input) -> Telling:
        inputs = [told]
        while inputs:
            one = inputs.pop(0)
            if what := heard(one):
                self._say(what)
            before = self.talk
            done = self.take(one)
            if done.busy or done.code:
                self._say(f"  busy: code {done.code}")
            self._steps(before)
            for effect in done.effects:
                if self.accounted(effect):
                    self._account()
                    continue
                bad = self.failing(effect)
                self._say(f"> {short(effect)}{' FAILS' if bad else ''}")
                if (heard_of := answer(effect, not bad)) is not None:
                    inputs.append(heard_of)
        return self

    def broken(self, *ranks: tuple[str, str]) -> Telling:
        return self.tell(software(*ranks))

    def decided(self, *ranks: tuple[str, str], offers: tuple[str, ...] = CAN) -> Telling:
        self.broken(*(ranks or (("9", "1"),))).tell(StopComplete(Report())).after(1)
        return self.tell(Offered(Report(strategies=offers)))

    def done(self, strategy: str, code: int = 0, isolate: tuple[str, ...] = ()) -> Telling:
        return self.tell(Done(Report(code=code, strategy=strategy, isolate=isolate)))

    def to_the_end(self) -> Telling:
        """Rescheduling takes over: time passes until the conversation is over."""
        for _ in range(400):
            if self.talk.state is State.INIT:
                return self
            self.after(5)
        raise AssertionError(f"it never ends: {self.talk.state}")

    def _say(self, what: str) -> None:
        self.lines.append(f"{(self.now - 1_000_000) / 1000:7.1f} s  {what}")

    def _steps(self, before: Conversation) -> None:
        known, at = len(before.story), before.state
        for note in self.talk.story[known:]:
            self.taken.add((at, note.event, note.state))
            self._say(f"= {note.event} → {note.state}{f'  (code {note.code})' if note.code else ''}")
            at = State(note.state)

    def _account(self) -> None:
        one = summary.read(self.facts.accounts)[-1]
        codes = f", codes {', '.join(one.codes)}" if one.codes else ""
        end = "training goes on" if one.good else "not recovered here"
        self._say(f"> account: {one.level}, {(one.ended - one.begun) / 1000:.1f} s{codes}, {end}")


def heard(told: Input) -> str:
    match told:
        case Faults():
            who = "the processes report" if told.software else "the hardware reports"
            return f"< {who} {', '.join(f'{rank.rank}:{rank.kind}' for rank in told.ranks)}"
        case StopComplete():
            return f"< ReportStopComplete {told.report.code}"
        case Offered():
            return f"< ReportRecoverStrategy {' '.join(told.report.strategies)}"
        case Done():
            isolate = f" isolate {','.join(told.report.isolate)}" if told.report.isolate else ""
            return f"< ReportRecoverStatus {told.report.strategy} {told.report.code}{isolate}"
        case Start():
            return f"< {told.operation.kind} is asked for"
        case Replied():
            return f"< the operation's reply: {told.report.code} {told.report.message}".rstrip()
        case SubHealthy():
            return f"< {told.pod} is sub-healthy"
    return ""


def story(told: Story) -> Story:
    STORIES[told.__name__.replace("_", "-")] = told
    return told


# -- faults


@story
def software_fault(talk: Telling) -> None:
    talk.decided().set("pods are replaced").after(40).done("recover")


@story
def hardware_fault(talk: Telling) -> None:
    """Processes of a broken chip get time to speak, then are asked to leave, then all are stopped."""
    talk.set(codes=("80C98001",)).tell(Faults((FaultyRank("9", "1"),))).after(10).after(60)
    talk.tell(StopComplete(Report())).after(1).set(replaced=False).tell(Offered(Report(strategies=CAN)))
    talk.after(30).set("pods are replaced", replaced=True).after(5).after(20).done("recover")


@story
def uce(talk: Telling) -> None:
    talk.set(configured=ALL, codes=("80E01801",)).tell(Faults((FaultyRank("3", "0"),)))
    talk.after(2).tell(StopComplete(Report())).tell(Offered(Report(strategies=CAN))).after(6).done("retry")


@story
def uce_retried_again(talk: Telling) -> None:
    """A device that could not be cleaned: the step is given up, pods move."""
    talk.set(configured=ALL).decided(("3", "0")).done("retry", 405).after(1)
    talk.tell(Offered(Report(strategies=CAN))).done("recover")


@story
def uce_retry_lost(talk: Telling) -> None:
    talk.set(configured=("retry", "recover", "dump")).decided(("3", "0")).done("retry", 406)
    talk.done("dump").to_the_end()


@story
def uce_retry_unanswered(talk: Telling) -> None:
    talk.set(configured=ALL).decided(("3", "0")).after(900).to_the_end()


@story
def link_loss(talk: Telling) -> None:
    talk.set(configured=("retry", "exit")).decided(("2", "2"), ("9", "2")).after(3).after(5).done("retry")


@story
def link_loss_routes_fail(talk: Telling) -> None:
    talk.set(configured=("retry", "exit")).decided(("2", "2")).set("routes do not converge", route_failed=True).after(1)
    talk.to_the_end()


@story
def in_place(talk: Telling) -> None:
    talk.set(configured=ALL, in_place=True).decided().after(20).done("recover")


@story
def in_place_fault_stays(talk: Telling) -> None:
    talk.set(configured=ALL, in_place=True, in_place_clear=False).decided().after(15).after(30).done("recover")


@story
def node_loss_shrinks_and_grows(talk: Telling) -> None:
    talk.set(configured=("recover", "elastic-training"), pod_rescheduling=True, running=False, replaced=False)
    talk.decided().after(270).done("downgrade", 201, ("8", "9")).after(30).done("downgrade")
    talk.after(5).set("a node is back", running=True, replaced=True).after(5).after(40).done("upgrade")


@story
def node_loss_decided_to_shrink(talk: Telling) -> None:
    talk.set(configured=("elastic-training",), running=False, replaced=False)
    talk.decided(offers=("downgrade", "exit")).done("downgrade", 201, ("8",)).done("downgrade")
    talk.broken(("17", "1")).tell(StopComplete(Report())).after(1).tell(Offered(Report(strategies=("exit",))))
    talk.set(running=True, replaced=True).to_the_end()


@story
def node_loss_without_room(talk: Telling) -> None:
    talk.set(running=False, replaced=False).decided().after(270).set("the job was rescheduled", running=True)
    talk.to_the_end()


@story
def dump_only(talk: Telling) -> None:
    talk.set(configured=("dump",)).broken(("9", "1")).after(90).done("dump").to_the_end()


@story
def recovery_fails_dump_exit(talk: Telling) -> None:
    talk.decided().done("recover", 499).done("dump", 407).to_the_end()


@story
def exit_only(talk: Telling) -> None:
    talk.set(configured=("exit",)).decided(offers=("exit",)).to_the_end()


@story
def exit_without_rescheduling(talk: Telling) -> None:
    talk.set(configured=("exit",), running=False).decided(offers=("exit",)).after(20).after(135).to_the_end()


@story
def client_leaves(talk: Telling) -> None:
    talk.broken(("9", "1")).after(3).hung_up()


@story
def report_before_and_twice(talk: Telling) -> None:
    talk.broken(("9", "1")).tell(Offered(Report(strategies=CAN))).tell(Offered(Report(strategies=("exit",))))
    talk.tell(StopComplete(Report())).after(1).done("recover")


# -- a platform takes part


@story
def platform(talk: Telling) -> None:
    talk.set(configured=("recover",), platform="").broken(("9", "1")).after(3)
    talk.set("it decides: recover", platform="recover").after(3).tell(StopComplete(Report())).after(1)
    talk.set("it adds a rank", result_fault="9:1,17:1").after(3).tell(Offered(Report(strategies=CAN)))
    talk.set("the rank table is ready", rank_table_ready="true").after(3).after(30).done("recover")


@story
def platform_never_decides(talk: Telling) -> None:
    talk.set(configured=("recover",), platform="").broken(("9", "1")).after(300).to_the_end()


@story
def platform_never_confirms(talk: Telling) -> None:
    talk.set(platform="recover").broken(("9", "1")).tell(StopComplete(Report())).after(1).after(300).to_the_end()


@story
def platform_never_readies_the_rank_table(talk: Telling) -> None:
    talk.set(platform="recover", result_fault="9:1").decided().after(300).to_the_end()


@story
def platform_fails_the_rank_table(talk: Telling) -> None:
    talk.set(platform="recover", result_fault="9:1").decided().set("it fails", rank_table_ready="false").after(3)
    talk.done("dump").to_the_end()


# -- what does not arrive, is not answered, cannot be written


@story
def stop_unanswered(talk: Telling) -> None:
    talk.broken(("9", "1")).after(900).to_the_end()


@story
def strategy_unanswered(talk: Telling) -> None:
    talk.broken(("9", "1")).tell(StopComplete(Report())).after(1).after(900).to_the_end()


@story
def status_unanswered(talk: Telling) -> None:
    talk.decided().after(900).to_the_end()


@story
def dump_unanswered(talk: Telling) -> None:
    talk.decided().done("recover", 499).after(900).to_the_end()


@story
def processes_not_linked(talk: Telling) -> None:
    talk.broken(("9", "1")).tell(StopComplete(Report(code=404))).to_the_end()


@story
def reset_config_map_missing(talk: Telling) -> None:
    talk.fails(Reset).broken(("9", "1")).to_the_end()


@story
def stop_not_delivered(talk: Telling) -> None:
    talk.fails(Signal, "stop_train").broken(("9", "1")).to_the_end()


@story
def save_not_delivered(talk: Telling) -> None:
    talk.set(configured=("dump",)).fails(Signal, "saveAndExit").broken(("9", "1")).to_the_end()


@story
def global_fault_not_delivered(talk: Telling) -> None:
    talk.broken(("9", "1")).fails(Signal, "globalFault").tell(StopComplete(Report())).after(1).to_the_end()


@story
def decision_not_delivered(talk: Telling) -> None:
    talk.fails(Signal, "changeStrategy").decided().to_the_end()


@story
def reset_not_cleared(talk: Telling) -> None:
    talk.fails(Reset, "clear").decided().to_the_end()


@story
def faults_not_cleared(talk: Telling) -> None:
    talk.fails(Reset, "clear").broken(("9", "1")).after(900).to_the_end()


@story
def restart_not_written(talk: Telling) -> None:
    talk.fails(Reset, "restart").decided(offers=("exit",)).to_the_end()


@story
def pod_group_not_paused(talk: Telling) -> None:
    talk.fails(Label, "pause").broken(("9", "1")).after(900).to_the_end()


@story
def pod_group_not_enabled(talk: Telling) -> None:
    talk.fails(Label, "=on").broken(("9", "1")).after(900).to_the_end()


@story
def job_not_rescheduled(talk: Telling) -> None:
    talk.broken(("9", "1")).set(running=False).after(900).after(135).to_the_end()


# -- smaller and larger


@story
def scale_in_not_delivered(talk: Telling) -> None:
    talk.set(configured=("recover", "elastic-training"), pod_rescheduling=True, running=False, replaced=False)
    talk.decided().fails(Signal, "downgrade").after(270).set(running=True).to_the_end()


@story
def isolation_unanswered(talk: Telling) -> None:
    talk.set(configured=("elastic-training", "dump"), running=False, replaced=False)
    talk.decided().after(900).set(running=True).to_the_end()


@story
def isolation_fails(talk: Telling) -> None:
    talk.set(configured=("elastic-training", "dump"), running=False, replaced=False)
    talk.decided().done("downgrade", 406).done("dump").set(running=True).to_the_end()


@story
def isolation_not_delivered(talk: Telling) -> None:
    talk.set(configured=("elastic-training", "dump"), running=False, replaced=False).fails(Signal, "faultNodesExit")
    talk.decided().done("downgrade", 201, ("8",)).set(running=True).to_the_end()


@story
def scale_in_unanswered(talk: Telling) -> None:
    talk.set(configured=("elastic-training",), running=False, replaced=False)
    talk.decided().done("downgrade", 201, ("8",)).after(900).set(running=True).to_the_end()


@story
def scale_out_not_delivered_then_unanswered(talk: Telling) -> None:
    talk.set(configured=("elastic-training",), running=False, replaced=False)
    talk.decided().done("downgrade", 201, ("8",)).done("downgrade").set(running=True, replaced=True)
    talk.fails(Signal, "upgrade").after(5).well().after(5).after(900).to_the_end()


@story
def shrunk_job_goes_away(talk: Telling) -> None:
    talk.set(configured=("elastic-training",), running=False, replaced=False)
    talk.decided().done("downgrade", 201, ("8",)).done("downgrade").set("its PodGroup goes", exists=False).after(5)


# -- links, stress tests, backup pods


@story
def links_moved(talk: Telling) -> None:
    talk.tell(Start(Operation("nic", "{}"))).tell(Start(Operation("stress", "{}"))).tell(StopComplete(Report()))
    talk.tell(Replied(Report())).done("continue")


@story
def stress_test(talk: Telling) -> None:
    talk.tell(Start(Operation("stress", "{}"))).tell(StopComplete(Report())).tell(Replied(Report())).done("continue")


@story
def stress_test_finds_a_fault(talk: Telling) -> None:
    talk.tell(Start(Operation("stress", "{}"))).tell(StopComplete(Report()))
    talk.tell(Replied(Report(code=499, message="3-aic fault"), nodes=("node-1",))).after(900).to_the_end()


def _operation(kind: str, name: str, act: Callable[[Telling], Any]) -> None:
    def told(talk: Telling) -> None:
        talk.tell(Start(Operation(kind, "{}")))
        act(talk)
        talk.to_the_end()

    STORIES[name] = told


def _replied(talk: Telling, code: int = 0) -> Telling:
    return talk.tell(StopComplete(Report())).tell(Replied(Report(code=code)))


_operation("nic", "links-pause-unanswered", lambda talk: talk.after(900))
_operation("nic", "links-pause-fails", lambda talk: talk.tell(StopComplete(Report(code=499))))
_operation("nic", "links-not-moved", lambda talk: _replied(talk, 499))
_operation("nic", "links-unanswered", lambda talk: talk.tell(StopComplete(Report())).after(900))
_operation("nic", "links-fault-meanwhile", lambda talk: talk.tell(StopComplete(Report())).broken(("9", "1")).after(1))
_operation("stress", "stress-test-unanswered", lambda talk: talk.tell(StopComplete(Report())).after(900))
_operation("nic", "continue-unanswered", lambda talk: _replied(talk).after(900))
_operation("nic", "continue-fails", lambda talk: _replied(talk).done("continue", 499))
_operation("nic", "continue-not-delivered", lambda talk: _replied(talk.fails(Signal, "continue")))
_operation("nic", "links-not-handed-over", lambda talk: talk.fails(NotifyOperation).tell(StopComplete(Report())))
_operation("stress", "stress-test-not-handed-over", lambda t: t.fails(NotifyOperation).tell(StopComplete(Report())))


@story
def pause_not_delivered(talk: Telling) -> None:
    talk.fails(Signal, "pause_train").tell(Start(Operation("nic", "{}"))).to_the_end()


def _moved(talk: Telling, steps: int) -> Telling:
    """A hot switch, as far as its so manieth step."""
    talk.set(sub_health="hotSwitch").tell(SubHealthy("worker-1", (FaultyRank("9", "1"),)))
    if steps > 0:
        talk.set("the backup runs", backup_running=True).after(20)
    if steps > 1:
        talk.tell(Offered(Report(strategies=("migration",))))
    if steps > 2:
        talk.set("the old pod is gone", old_pod_gone=True).after(5)
    return talk


@story
def hot_switch(talk: Telling) -> None:
    _moved(talk, 3).done("migration")


STORIES["hot-switch-no-backup"] = lambda talk: _moved(talk, 0).after(60)
STORIES["hot-switch-no-backup-not-delivered"] = lambda talk: _moved(talk, 0).fails(Signal).after(60)
STORIES["hot-switch-not-prepared"] = lambda talk: _moved(talk.fails(Signal), 0)
STORIES["hot-switch-unanswered"] = lambda talk: _moved(talk, 1).after(900)
STORIES["hot-switch-refused"] = lambda talk: _moved(talk, 1).tell(Offered(Report(strategies=("exit",))))
STORIES["hot-switch-running-not-delivered"] = lambda talk: _moved(talk.fails(Signal, "new pod"), 3).done("migration")
STORIES["hot-switch-old-pod-stays"] = lambda talk: _moved(talk, 2).after(900)
STORIES["hot-switch-restart-not-delivered"] = lambda talk: _moved(talk.fails(Signal, "migration"), 3)
STORIES["hot-switch-restart-fails"] = lambda talk: _moved(talk, 3).done("migration", 499)
STORIES["hot-switch-restart-unanswered"] = lambda talk: _moved(talk, 3).fails(Signal).after(900)


@pytest.mark.parametrize("name", sorted(STORIES))
def test_the_conversation(name: str, request: pytest.FixtureRequest) -> None:
    talk = Telling()
    STORIES[name](talk)
    assert talk.talk.state is State.INIT
    compare(f"conversation-{name}", talk.lines, bool(request.config.getoption("--update-golden")))


def test_together_they_take_every_row_of_the_table() -> None:
    taken: set[tuple[State, str, str]] = set()
    codes: dict[tuple[str, str], set[int]] = {}
    for told in STORIES.values():
        talk = Telling()
        told(talk)
        taken |= talk.taken
        for at, note in zip((State.INIT, *(note.state for note in talk.talk.story)), talk.talk.story, strict=False):
            codes.setdefault((at, note.event), set()).add(note.code)
    rows = {(row.state, row.event.value, row.to.value) for row in ROWS}
    assert rows - taken == set()
    assert taken - rows == {(State.WAIT_STOP, "reset", "INIT")}, "only a client that leaves goes beside the table"
    for (at, event), found in codes.items():
        assert found == DUE.get((at, event), DUE.get(("", event), {0})), f"{event} in {at}"
