"""The recovery of one job: golden conversations, and a way out of every state that any history reaches."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belay.engine.model.recovery import (
    Code,
    Conversation,
    FaultyRank,
    JobFacts,
    Report,
    State,
    reset,
    resumed,
    step,
    steps,
)
from belay.engine.model.recovery.conversation import (
    Done,
    Effect,
    Faults,
    Input,
    Label,
    Offered,
    Operation,
    Replied,
    Reset,
    Sent,
    Signal,
    Start,
    StopComplete,
    SubHealthy,
    Tick,
    Written,
)
from belay.engine.model.recovery.machine import HANDLERS, unanswered
from belay.engine.model.recovery.table import NEXT, ROWS, allowed, diagram
from tests.recovery_conversation import ALL, CAN, Play, decided, short, software


def test_a_process_fault_is_recovered_with_new_pods() -> None:
    play = Play(configured=("recover",))
    play.tell(software(("9", "1")))
    assert play.heard() == ["reset flush", "stopTrain stop_train"]
    assert play.state is State.WAIT_STOP
    play.tell(StopComplete(Report()))
    assert play.state is State.WAIT_FLUSHED
    play.after(1)
    assert play.heard() == ["reset faults 8-15", "globalFault on_global_rank+fault_nodes_exit nodes=1"]
    play.set(running=False, replaced=False).tell(Offered(Report(strategies=CAN)))
    assert play.heard() == ["changeStrategy change_strategy recover nodes=1"]
    assert play.state is State.WAIT_RECOVER
    play.set(running=True, replaced=True).after(5)
    assert play.heard() == ["reset clear"]
    play.tell(Done(Report(strategy="recover")))
    assert play.heard() == ["annotate ProcessRecoverStatus=recover-success"]
    assert (play.state, play.talk.ranks, play.talk.uuid) == (State.INIT, (), "")


def test_faults_are_collected_until_none_comes_for_a_fifth_of_a_second() -> None:
    play = Play(configured=("recover",)).tell(software(("9", "1"))).tell(StopComplete(Report()))
    play.heard()
    play.after(0.15).tell(software(("17", "1")))
    assert play.after(0.1).heard() == [], "another one came 0.1 s ago"
    assert "globalFault on_global_rank+fault_nodes_exit nodes=1,2" in play.after(0.1).heard()


def test_faults_that_keep_coming_are_collected_for_a_second() -> None:
    play = Play(configured=("recover",)).tell(software(("9", "1"))).tell(StopComplete(Report()))
    for rank in range(10, 16):
        play.after(0.15).tell(software((str(rank), "1")))
    assert play.state is State.WAIT_FLUSHED
    play.after(0.1)
    assert play.state is not State.WAIT_FLUSHED


def test_a_memory_fault_is_retried_in_the_step() -> None:
    play = decided(Play(configured=ALL), software(("3", "0")))
    assert play.heard() == [
        "reset flush",
        "stopTrain stop_train",
        "annotate belay.dev/step-retry=1000000:3",
        "globalFault on_global_rank",
        "changeStrategy change_strategy retry nodes=0",
    ]
    play.after(7).tell(Done(Report(strategy="retry")))
    assert play.heard() == ["annotate ProcessRecoverStatus=retry-success", "annotate belay.dev/step-retried=1008000"]
    assert play.state is State.INIT


def test_a_hardware_fault_counts_as_reported_once_the_job_has_stopped() -> None:
    play = Play(configured=ALL).tell(Faults((FaultyRank("3", "0"), FaultyRank("4", "0"))))
    assert play.heard() == ["reset flush", "stopTrain stop_train"]
    play.after(6).tell(StopComplete(Report()))
    assert "annotate belay.dev/step-retry=1006000:3-4" in play.heard()
    play.tell(Offered(Report(strategies=CAN)))
    assert play.heard() == ["changeStrategy change_strategy retry nodes=0"], "sent once"
    mixed = Play(configured=ALL).tell(Faults((FaultyRank("3", "0"), FaultyRank("4", "1"))))
    mixed.after(10).after(60).tell(StopComplete(Report()))
    assert not any("step-retry" in text for text in mixed.heard()), "a normal fault is among them"


def test_a_network_fault_waits_for_routes_and_gives_clients_more_time() -> None:
    play = decided(Play(configured=ALL), software(("3", "2")))
    assert "globalFault on_global_rank timeout=33" in play.heard()
    assert (play.state, play.talk.phase) == (State.DECIDED, "route")
    play.after(2.9)
    assert play.heard() == []
    play.after(0.1)
    assert play.heard() == ["changeStrategy change_strategy retry nodes=0"]


def test_routes_that_do_not_converge_end_the_job() -> None:
    play = decided(Play(configured=ALL), software(("3", "2")))
    play.heard()
    play.set(route_failed=True).after(1)
    assert play.heard() == ["killMaster"]
    assert play.state is State.INIT
    assert [note.code for note in play.talk.story if note.state == State.KILL_JOB.value] == [510]


def test_a_retry_that_may_be_repeated_starts_a_normal_round() -> None:
    play = decided(Play(configured=ALL), software(("3", "0")))
    play.heard()
    play.tell(Done(Report(code=405, strategy="retry")))
    assert play.heard() == ["annotate ProcessRecoverStatus=retry-failed"]
    play.after(1)
    assert play.heard() == ["reset faults 0-7", "globalFault on_global_rank+fault_nodes_exit nodes=0"]
    play.tell(Offered(Report(strategies=CAN)))
    assert play.heard()[0] == "changeStrategy change_strategy recover nodes=0"


@pytest.mark.parametrize(("code", "next_change"), [(406, "dump"), (499, "exit")])
def test_an_irrecoverable_retry_falls_back_to_the_remaining_strategies(code: int, next_change: str) -> None:
    play = decided(Play(configured=("retry", "recover", "dump")), software(("3", "0")))
    play.heard()
    play.tell(Done(Report(code=code, strategy="retry")))
    heard = play.heard()
    assert heard[:3] == [
        "annotate ProcessRecoverStatus=retry-failed",
        "pods 0 {'fault-type': 'retry-fault'} {}",
        "reset faults 0-7",
    ]
    assert f"change_strategy {next_change}" in heard[3]


def test_faulty_processes_restart_in_their_pods() -> None:
    play = decided(Play(configured=ALL, in_place=True), software(("9", "1")))
    assert play.heard()[-1] == "changeStrategy change_strategy+fault_nodes_restart recover recover-in-place nodes=1"
    assert play.after(4.9).heard() == [], "agents that look once a second have not all read what to start again"
    assert play.after(0.1).heard() == ["reset clear"]
    play.tell(Done(Report(strategy="recover")))
    assert play.heard() == ["annotate ProcessRecoverStatus=recover-success"]
    assert play.state is State.INIT


def test_pods_whose_processes_restart_in_place_are_not_signalled_to_leave() -> None:
    play = Play(configured=ALL, in_place=True)
    play.tell(software(("9", "1"))).tell(StopComplete(Report()))
    play.after(1)
    (told,) = (one for one in play.said if isinstance(one, Signal) and one.kind == "globalFault")
    assert (told.actions, told.nodes) == (("on_global_rank", "fault_nodes_exit"), ())
    assert [rank.rank for rank in told.ranks] == ["9"]


def test_every_process_of_a_pod_that_leaves_counts_as_lost() -> None:
    play = Play(configured=ALL)
    play.tell(software(("9", "1"), ("16", "1"))).tell(StopComplete(Report()))
    play.after(1)
    play.tell(Offered(Report(strategies=CAN)))
    told = [one for one in play.said if isinstance(one, Signal) and one.kind in ("globalFault", "changeStrategy")]
    assert [one.nodes for one in told] == [("1", "2"), ("1", "2")]
    for one in told:
        assert one.ranks == tuple(FaultyRank(str(number), "1") for number in range(8, 24))


def test_a_replaced_pod_is_not_signalled_to_leave() -> None:
    play = Play(configured=ALL)
    play.tell(software(("9", "1"), ("16", "1"))).tell(StopComplete(Report()))
    play.after(1)
    play.set(changed=("1",)).heard()
    play.tell(Offered(Report(strategies=CAN)))
    assert play.heard()[0] == "changeStrategy change_strategy recover nodes=2"
    play = Play(configured=ALL, changed=("1",))
    play.tell(software(("9", "1"))).tell(StopComplete(Report()))
    play.after(1)
    assert play.heard()[-1] == "globalFault on_global_rank+fault_nodes_exit"
    play.tell(Offered(Report(strategies=CAN)))
    assert play.heard()[0] == "changeStrategy change_strategy recover"


def test_in_place_waits_for_the_fault_to_go_and_then_replaces_pods() -> None:
    play = decided(Play(configured=ALL, in_place=True, in_place_clear=False), software(("9", "1")))
    assert (play.state, play.talk.phase) == (State.DECIDED, "in-place")
    play.heard()
    play.after(15)
    assert play.heard()[0] == "changeStrategy change_strategy+fault_nodes_exit recover nodes=1"
    assert [rank.rank for rank in play.talk.ranks] == [str(number) for number in range(8, 16)]
    play.set(changed=("1",)).tell(Done(Report(code=499, strategy="recover")))
    assert play.heard()[-1] == "changeStrategy change_strategy dump nodes=1", "they got the signal to leave before"


def test_a_fault_that_stays_leads_to_the_next_strategy_that_is_configured() -> None:
    stays = {"in_place": True, "in_place_clear": False}
    play = decided(Play(configured=("recover-in-place", "dump", "exit"), **stays), software(("9", "1"))).after(15)
    assert play.heard()[-1] == "changeStrategy change_strategy+fault_nodes_exit dump nodes=1", "not recover"
    shrinking = Play(configured=("recover-in-place", "elastic-training", "exit"), **stays)
    decided(shrinking.set(pod_rescheduling=True, replaced=False), software(("9", "1"))).after(15)
    assert (shrinking.state, shrinking.talk.phase) == (State.DECIDED, "resources"), "no other wait in place"
    assert "downgrade" in shrinking.after(20).heard()[-1]


def test_a_platform_readies_the_rank_table_after_a_fault_that_stayed() -> None:
    play = Play(configured=("recover-in-place", "recover"), in_place=True, in_place_clear=False, platform="recover")
    decided(play.set(result_fault="9:1"), software(("9", "1"))).after(15)
    assert (play.state, play.talk.phase) == (State.DECIDED, "rank-table")
    assert play.set(rank_table_ready="true").after(3).heard()[-2].endswith(" recover nodes=1")


@pytest.mark.parametrize("named", ["recover-in-place", "", "unheard-of"])
def test_a_result_counts_for_the_decided_strategy_unless_it_names_another_one(named: str) -> None:
    play = decided(Play(configured=ALL, in_place=True), software(("9", "1"))).after(5)
    play.heard()
    assert play.tell(Done(Report(strategy=named))).heard() == ["annotate ProcessRecoverStatus=recover-success"]


def test_only_processes_that_can_recover_restart_in_their_pods() -> None:
    play = decided(Play(configured=ALL, in_place=True), software(("9", "1")), offers=("dump", "exit"))
    assert play.heard()[-1] == "changeStrategy change_strategy+fault_nodes_exit dump nodes=1"


def test_a_normal_fault_of_a_rank_takes_the_place_of_its_retryable_ones() -> None:
    play = Play(configured=ALL).tell(software(("3", "0"), ("4", "2")))
    play.tell(Faults((FaultyRank("3", "1"), FaultyRank("4", "0")), software=True))
    assert play.talk.ranks == (FaultyRank("3", "1"), FaultyRank("4", "0"), FaultyRank("4", "2"))


def test_memory_and_network_faults_together_are_no_retry() -> None:
    play = Play(configured=ALL).tell(software(("3", "0"), ("4", "2"))).tell(StopComplete(Report()))
    play.after(1)
    assert play.heard()[-1] == "globalFault on_global_rank+fault_nodes_exit nodes=0"


@pytest.mark.parametrize(("framework", "change"), [("pytorch", "dump"), ("mindspore", "exit")])
def test_mindspore_writes_no_checkpoint_while_its_links_are_switched(framework: str, change: str) -> None:
    play = Play(configured=("dump", "recover"), framework=framework, nic_switched=True)
    decided(play, software(("9", "1")), offers=("dump",))
    assert play.talk.chosen == change


def test_pods_kept_for_a_restart_are_signalled_to_leave_after_a_worse_fault() -> None:
    play = Play(configured=ALL, in_place=True)
    play.tell(software(("9", "1"))).tell(StopComplete(Report())).after(1).heard()
    play.set(in_place=False).tell(Faults((FaultyRank("10", "1"),)))
    play.tell(Offered(Report(strategies=CAN)))
    assert play.heard()[0] == "changeStrategy change_strategy+fault_nodes_exit recover nodes=1"


def test_a_failed_recovery_falls_back_to_a_dump_and_the_job_restarts() -> None:
    play = decided(Play(), software(("9", "1")))
    play.heard()
    play.tell(Done(Report(code=499, strategy="recover")))
    assert play.heard() == [
        "annotate ProcessRecoverStatus=recover-failed",
        "changeStrategy change_strategy dump nodes=1",
    ]
    play.tell(Done(Report(strategy="dump")))
    assert play.heard() == [
        "annotate ProcessRecoverStatus=dump-success",
        "changeStrategy change_strategy exit dump_exit nodes=1",
    ]
    leave = next(one for one in play.last.effects if isinstance(one, Signal))
    assert leave.ranks == (), "pods leave by their numbers"
    assert play.state is State.LISTEN_SCHEDULE
    play.after(5)
    assert play.heard() == ["reset restart"]
    assert play.state is State.WAIT_RESTART_ALL
    play.after(60)
    assert play.heard() == [
        "reset clear",
        "label process-recover-enable=pause",
        "changeStrategy change_strategy exit dump_exit nodes=1",
    ]
    play.after(5)
    assert play.heard() == ["label process-recover-enable=on"]
    assert play.state is State.INIT


def test_a_successful_retry_does_not_hide_a_later_fault() -> None:
    told = steps.StepRetries(((3, 3, 20_000),), completed=25_000)
    later = 100_000
    assert told.hides(3, 15_000, later), "reported in time, and done in time"
    assert not told.hides(3, 26_000, later), "it was raised when that was over"
    assert not told.hides(4, 15_000, later), "no report on this rank"
    assert not steps.StepRetries(((3, 3, 20_000),), completed=50_001).hides(3, 15_000, later), "it took too long"
    assert not steps.StepRetries(((3, 3, 25_001),), completed=26_000).hides(3, 15_000, later), "reported too late"


@pytest.mark.parametrize(
    ("health", "sub_health", "saves"),
    [
        ("UnHealthy", "ignore", True),
        ("SubHealthy", "graceExit", True),
        ("SubHealthy", "ignore", False),
        ("SubHealthy", "hotSwitch", False),
        ("Healthy", "graceExit", False),
    ],
)
def test_a_job_that_only_dumps_does_so_while_its_faults_last(health: str, sub_health: str, saves: bool) -> None:
    play = Play(configured=("dump",), health=health, sub_health=sub_health).tell(software(("9", "1")))
    assert play.state is (State.WAIT_DUMP if saves else State.WAIT_STOP)


def test_the_decided_strategy_counts_when_the_processes_name_another() -> None:
    play = dumped()
    assert play.state is State.LISTEN_SCHEDULE
    play = Play(configured=("dump",)).tell(software(("9", "1")))
    play.heard()
    play.tell(Done(Report(strategy="recover")))
    assert play.heard()[0] == "annotate ProcessRecoverStatus=dump-success"


def dumped(**facts: object) -> Play:
    """A job that has saved and waits for its pods."""
    play = Play(configured=("dump",), platform=facts.get("platform"))
    play.tell(software(("9", "1"))).set(**facts).tell(Done(Report(strategy="dump")))
    play.heard()
    return play


def test_after_a_dump_replaced_pods_are_waited_for_and_a_job_that_runs_is_enough_at_the_end() -> None:
    play = dumped(replaced=False)
    for _ in range(3):
        assert play.after(5).state is State.LISTEN_SCHEDULE, "it runs, but with the pods that broke"
    assert play.after(5).heard() == ["reset restart"]
    play = dumped(replaced=False)
    play.after(5).set(replaced=True)
    assert play.after(5).heard() == ["reset restart"]
    play = dumped(replaced=True, running=False)
    assert play.after(20).heard()[0] == "reset clear", "nothing runs: no process is asked to start again"


def test_a_platform_restarts_its_jobs() -> None:
    play = dumped(platform="dump", replaced=False, running=False)
    assert play.state is State.FAULT_RETRY
    assert [note.at for note in play.talk.story if note.event == "restartFinish"] == [play.now], "at once"


def test_a_job_that_only_dumps_saves_and_leaves() -> None:
    play = Play(configured=("dump",))
    play.tell(software(("9", "1")))
    assert play.heard() == ["reset faults 8-15", "saveAndExit save_and_exit nodes=1"]
    assert play.state is State.WAIT_DUMP
    play.tell(Done(Report(code=407, strategy="dump")))
    assert play.heard()[0] == "annotate ProcessRecoverStatus=dump-failed"


def test_a_node_lost_without_room_shrinks_and_grows_again() -> None:
    play = Play(configured=("recover", "elastic-training"), pod_rescheduling=True, running=False, replaced=False)
    decided(play, software(("9", "1")))
    play.heard()
    play.after(269)
    assert play.state is State.WAIT_RECOVER
    play.after(1)
    assert play.heard() == ['changeStrategy change_strategy downgrade {"scale-in-strategy": "DP"} nodes=1']
    play.tell(Done(Report(code=201, strategy="downgrade", isolate=("8", "24"))))
    assert play.heard() == ["faultNodesExit fault_nodes_exit nodes=1,3"]
    play.tell(Done(Report(strategy="downgrade")))
    assert play.state is State.SCALE_RUNNING
    play.after(5)
    assert play.heard() == []
    play.set(running=True, replaced=True).after(5)
    assert play.heard() == ['changeStrategy change_strategy upgrade {"scale-out-strategy": "DP"} nodes=1']
    play.tell(Done(Report(strategy="upgrade")))
    assert play.state is State.INIT


def test_rank_zero_lost_is_not_shrunk_away() -> None:
    play = Play(
        configured=("recover", "elastic-training"), pod_rescheduling=True, running=False, replaced=False,
        rank_zero_faulty=True,
    )  # fmt: skip
    decided(play, software(("0", "1")))
    play.heard()
    play.after(270)
    assert play.heard()[0] == "reset clear"
    assert 503 in [note.code for note in play.talk.story]


def test_a_platform_is_asked_at_every_step() -> None:
    play = Play(configured=("recover",), platform="")
    play.tell(software(("9", "1")))
    assert play.heard() == []
    play.set(platform="recover").after(3)
    assert play.heard() == ["reset flush", "stopTrain stop_train"]
    play.tell(StopComplete(Report())).after(1)
    assert play.heard() == ["annotate ProcessConfirmFault=9:1"]
    play.set(result_fault="9:1,17:1").after(3)
    assert play.heard() == ["reset faults 8-23", "globalFault on_global_rank+fault_nodes_exit nodes=1,2"]
    play.tell(Offered(Report(strategies=CAN)))
    assert play.heard() == []
    play.set(rank_table_ready="true").after(3)
    assert play.heard()[0] == "changeStrategy change_strategy recover nodes=1,2"


@pytest.mark.parametrize(
    ("facts", "seconds", "code"),
    [
        ({"platform": ""}, 300, Code.PLATFORM_TIMEOUT),
        ({"platform": "recover", "confirm_fault": "1:1"}, 1, Code.CONFIRM_FAULT),
        ({"platform": "recover"}, 301, Code.CONFIRM_FAULT),
    ],
)
def test_a_platform_that_does_not_answer_hands_over_to_rescheduling(
    facts: dict[str, object], seconds: int, code: Code
) -> None:
    play = Play(configured=("recover",), **facts)
    play.tell(software(("9", "1")))
    if facts["platform"]:
        play.tell(StopComplete(Report())).after(1)
    play.after(seconds)
    assert "label process-recover-enable=pause" in play.heard()
    assert play.state is State.FAULT_RETRY
    assert code in [note.code for note in play.talk.story]


@pytest.mark.parametrize(
    ("at", "seconds"), [(State.WAIT_STOP, 900), (State.WAIT_STRATEGY, 900), (State.WAIT_RECOVER, 900)]
)
def test_a_silent_client_times_out(at: State, seconds: int) -> None:
    play = Play(configured=("recover",))
    play.tell(software(("9", "1")))
    if at is not State.WAIT_STOP:
        play.tell(StopComplete(Report())).after(1)
    if at is State.WAIT_RECOVER:
        play.tell(Offered(Report(strategies=CAN)))
    assert play.state is at
    play.after(seconds - 1)
    assert play.state is at
    play.after(1)
    assert play.state is State.FAULT_RETRY
    assert 507 in [note.code for note in play.talk.story]


@pytest.mark.parametrize(
    ("fails", "code"), [(Reset, Code.CONFIG_MAP), (Signal, Code.SIGNAL_QUEUE_BUSY), (Label, Code.POD_GROUP)]
)
def test_a_failed_write_or_signal_records_its_code(fails: type[Effect], code: Code) -> None:
    play = Play(configured=("recover",))
    play.fails = [fails]
    play.tell(software(("9", "1")))
    play.after(900).after(60).after(60)
    assert code in [note.code for note in play.talk.story]
    play.fails = []
    for _ in range(20):
        play.after(300)
    assert play.state is State.INIT


def test_processes_that_are_not_linked_end_the_job() -> None:
    play = Play()
    play.tell(software(("9", "1"))).tell(StopComplete(Report(code=404)))
    assert play.heard()[-1] == "killMaster"
    assert play.state is State.INIT


def test_a_report_that_comes_early_waits_and_a_second_one_blocks() -> None:
    play = Play()
    play.tell(StopComplete(Report(message="early")))
    assert not play.last.busy
    play.tell(StopComplete(Report(message="second")))
    assert play.last.busy
    assert play.talk.stop == Report(message="early")


def test_processes_of_faulty_chips_get_time_to_report() -> None:
    play = Play()
    hardware = Faults((FaultyRank("9", "1"),))
    play.tell(hardware)
    assert (play.state, play.heard()) == (State.INIT, [])
    play.after(9)
    assert play.heard() == []
    play.after(1)
    assert [one.ranks for one in play.said if isinstance(one, Signal)] == [(FaultyRank("9", "1"),)]
    assert play.heard() == ["preExitProcess pre exit process nodes=1"]
    play.tell(software(("9", "1")))
    assert play.state is State.WAIT_STOP


def test_processes_of_pods_that_were_replaced_meanwhile_are_not_asked_to_leave() -> None:
    both = Faults((FaultyRank("9", "1"), FaultyRank("17", "1")))
    play = Play().tell(both).set(changed=("1",)).after(10)
    assert play.heard() == ["preExitProcess pre exit process nodes=2"]
    play = Play().tell(both).set(changed=("1", "2")).after(10)
    assert play.heard() == []


def test_silent_processes_are_stopped_all_the_same() -> None:
    play = Play()
    play.tell(Faults((FaultyRank("9", "1"),))).after(10).after(60)
    assert play.state is State.WAIT_STOP


def test_the_same_faults_do_not_start_a_second_round() -> None:
    play = Play()
    hardware = Faults((FaultyRank("9", "1"),))
    play.tell(hardware)
    decided(play, software(("9", "1"))).tell(Done(Report(strategy="recover")))
    assert play.state is State.INIT
    play.tell(hardware).after(100)
    assert play.state is State.INIT
    play.tell(Faults(())).tell(hardware).after(10).after(60)
    assert play.state is State.WAIT_STOP


def test_a_fault_during_a_recovery_gets_a_conversation_of_its_own() -> None:
    play = decided(Play(), software(("9", "1")))
    both = Faults((FaultyRank("9", "1"), FaultyRank("20", "1")))
    play.tell(both).tell(Done(Report(strategy="recover")))
    assert (play.state, play.talk.seen) == (State.INIT, (FaultyRank("9", "1"),))
    play.heard()
    play.tell(both).after(10).after(60)
    assert play.heard()[0] == "preExitProcess pre exit process nodes=2"
    assert (play.state, play.talk.ranks) == (State.WAIT_STOP, (FaultyRank("20", "1"),))


def test_a_fault_named_in_the_decision_gets_no_conversation_of_its_own() -> None:
    play = Play().tell(software(("9", "1")))
    hardware = Faults((FaultyRank("9", "1"), FaultyRank("20", "1")))
    play.tell(hardware).tell(StopComplete(Report())).after(1).tell(Offered(Report(strategies=CAN)))
    play.tell(Faults(())).tell(hardware)  # reported twice while they are recovered
    play.tell(Done(Report(strategy="recover")))
    assert play.state is State.INIT
    play.tell(hardware).after(100)
    assert play.state is State.INIT


def test_a_fault_of_a_replaced_pod_gets_a_conversation_of_its_own() -> None:
    play = decided(Play(), software(("9", "1")))
    play.set(changed=("1",)).tell(Faults((FaultyRank("9", "1"),))).tell(Done(Report(strategy="recover")))
    assert (play.state, play.talk.seen) == (State.INIT, ())


def test_a_chip_that_breaks_while_links_move_is_recovered_afterwards() -> None:
    play = Play().tell(Start(Operation("nic", "{}"))).tell(StopComplete(Report())).tell(Replied(Report()))
    hardware = Faults((FaultyRank("9", "1"),))
    play.tell(hardware)
    assert play.state is State.WAIT_CONTINUE
    play.tell(Done(Report(strategy="continue")))
    assert (play.state, play.talk.seen) == (State.INIT, ())
    play.tell(hardware).after(10).after(60)
    assert play.state is State.WAIT_STOP


def test_a_chip_that_breaks_while_the_job_shrinks_stops_the_smaller_one() -> None:
    play = Play(configured=("elastic-training", "exit"), running=False, replaced=False)
    decided(play, software(("9", "1")), ("downgrade", "exit"))
    hardware = Faults((FaultyRank("20", "1"), FaultyRank("9", "1")))
    play.tell(hardware).tell(Done(Report(code=201, strategy="downgrade", isolate=("8", "9"))))
    play.tell(Done(Report(strategy="downgrade")))
    assert play.state is State.SCALE_RUNNING
    play.heard()
    play.tell(hardware)
    assert play.state is State.WAIT_STOP
    assert FaultyRank("20", "1") in play.talk.ranks


def test_a_chip_that_breaks_while_a_backup_is_awaited_is_recovered_afterwards() -> None:
    play = Play(sub_health="hotSwitch").tell(SubHealthy("worker-1", (FaultyRank("9", "1"),)))
    play.tell(Faults((FaultyRank("20", "1"),))).after(60)
    assert (play.state, play.talk.degraded, play.talk.seen) == (State.INIT, True, ())


@pytest.mark.parametrize("leaves", [True, False])
def test_faults_over_which_a_conversation_was_cut_off_begin_the_next(leaves: bool) -> None:
    play, hardware = Play(), Faults((FaultyRank("9", "1"),))
    play.tell(hardware).after(10)
    if leaves:  # no client is subscribed: wait for one
        play.talk = reset(play.talk, play.now)
        assert play.tell(hardware).state is State.INIT and play.talk.ranks == ()
    play.talk = reset(play.talk, play.now, heard=True)
    play.tell(hardware).after(10).after(60)
    assert play.state is State.WAIT_STOP


def test_faults_that_were_handed_to_rescheduling_do_not_come_back_with_the_next_client() -> None:
    play, hardware = Play(running=False), Faults((FaultyRank("9", "1"),))
    play.tell(hardware).after(10).after(60).after(900)
    assert play.state is State.FAULT_RETRY
    play.talk = reset(reset(play.talk, play.now), play.now, heard=True)
    play.tell(hardware).after(100)
    assert (play.state, play.talk.ranks) == (State.INIT, ())


def test_a_job_whose_clients_leave_while_it_is_rescheduled_is_taken_back() -> None:
    play = Play(running=False).tell(software(("9", "1"))).after(900)
    assert play.state is State.FAULT_RETRY
    play.set(paused=True).after(4)
    play.talk = reset(reset(play.talk, play.now), play.now, heard=True)
    play.heard()
    play.after(60)
    assert play.heard() == []
    play.set(running=True).after(1)
    assert play.heard() == ["label process-recover-enable=on"]
    play.after(1)
    assert play.heard() == []
    play.after(5)
    assert play.heard() == ["label process-recover-enable=on"], "the first was not written"
    play.set(paused=False).after(5).after(5)
    assert (play.heard(), play.talk.paused) == ([], None)


def test_a_job_that_was_killed_is_taken_back_when_it_runs() -> None:
    play = Play(running=False).tell(software(("9", "1"))).after(900).set(paused=True).after(135)
    assert play.state is State.INIT
    play.heard()
    play.set(running=True).after(1)
    assert play.heard() == ["label process-recover-enable=on"]


def test_links_are_switched_and_training_goes_on() -> None:
    play = Play()
    play.tell(Start(Operation("nic", "{}")))
    assert play.heard() == ["stopTrain pause_train"]
    play.tell(Start(Operation("stress", "{}")))
    assert play.last.code == Code.OPERATION_RUNNING
    play.tell(StopComplete(Report()))
    assert play.heard() == ["operation nic"]
    play.tell(Replied(Report()))
    assert play.heard() == ["changeStrategy change_strategy continue"]
    play.tell(Done(Report(strategy="continue")))
    assert play.heard() == ["result switch nic finish"]
    assert play.state is State.INIT


def test_processes_that_fail_during_a_link_switch_report_a_status() -> None:
    play = Play().tell(Start(Operation("nic", "{}"))).tell(StopComplete(Report()))
    play.heard()
    play.tell(Done(Report(code=406, strategy="continue")))
    assert play.heard()[:2] == [
        "result switch nic failed, report error when switching nic",
        "stopTrain stop_train",
    ]
    assert play.talk.story[-2].event == "waitSwitchNicRecvFault"


def test_links_that_did_not_move_stop_the_training() -> None:
    play = Play().tell(Start(Operation("nic", "{}"))).tell(StopComplete(Report())).tell(Replied(Report(code=499)))
    assert "result switch nic failed, switch nic failed" in play.heard()
    assert play.talk.story[-2].event == "switchNicFail"


@pytest.mark.parametrize("kind", ["nic", "stress"])
def test_a_status_that_comes_too_early_is_not_the_answer_to_going_on(kind: str) -> None:
    play = Play().tell(Start(Operation(kind, "{}"))).tell(StopComplete(Report())).tell(Done(Report()))
    play.tell(Replied(Report()))
    assert (play.state, play.last.busy) == (State.WAIT_CONTINUE, False)


def test_a_job_that_cannot_go_on_under_stress_is_recovered_when_the_test_is_over() -> None:
    play = Play().tell(Start(Operation("stress", "{}"))).tell(StopComplete(Report()))
    play.heard()
    play.tell(Done(Report(code=406)))
    assert (play.heard(), play.state) == (["result recv fault, when stressing test"], State.WAIT_STRESS_TEST)
    play.tell(Replied(Report(code=499, ranks=(FaultyRank("9", "1"),)), nodes=("node-1",)))
    assert play.heard() == ["isolate ('node-1',)", "stopTrain stop_train"]
    assert [rank.rank for rank in play.last.conversation.ranks] == ["9"]
    play = Play().tell(Start(Operation("stress", "{}"))).tell(StopComplete(Report())).tell(Done(Report(code=406)))
    play.heard()
    play.after(900)
    assert (play.heard(), play.talk.story[-2].event) == (["stopTrain stop_train"], "receiveTimeout")


def test_a_job_that_does_not_go_on_after_a_stress_test_says_so_as_after_a_link_switch() -> None:
    play = Play().tell(Start(Operation("stress", "{}"))).tell(StopComplete(Report())).tell(Replied(Report()))
    play.heard()
    assert play.tell(Done(Report(code=499))).heard()[0] == "result switch nic failed, continue train failed"


def test_a_stress_test_that_finds_a_fault_isolates_the_node() -> None:
    play = Play()
    play.tell(Start(Operation("stress", "{}"))).tell(StopComplete(Report()))
    assert play.heard() == ["stopTrain pause_train timeout=900", "operation stress"]
    play.tell(Replied(Report(code=499, message="3-aic fault"), nodes=("node-1",)))
    assert play.heard()[:2] == [
        "isolate ('node-1',)",
        "result stress test find fault, isolate node:[node-1],result:3-aic fault",
    ]
    assert play.state is State.WAIT_STOP


def test_a_sub_healthy_pod_is_switched_while_training_runs() -> None:
    play = Play(sub_health="hotSwitch")
    play.tell(SubHealthy("worker-1", (FaultyRank("9", "1"),)))
    assert play.heard() == [
        "hot-switch hot switch",
        "pods worker-1 {} {'inHotSwitchFlow': 'true', 'needOperatorOpe': 'create'}",
    ]
    assert [rank.rank for rank in play.talk.ranks] == [str(rank) for rank in range(8, 16)], "the whole pod moves"
    play.set(backup_running=True).after(20)
    assert play.heard() == ["hot-switch new pod running"]
    play.tell(Offered(Report(strategies=("migration",))))
    assert play.heard() == ["pods worker-1 {'fault-type': 'SubHealth'} {'needVolcanoOpe': 'delete'}"]
    play.set(old_pod_gone=True).after(5)
    assert play.heard() == ["changeStrategy change_strategy migration"]
    play.tell(Done(Report(strategy="migration")))
    assert play.heard() == ["pods 8 {} {'inHotSwitchFlow': ''}"]
    assert play.state is State.INIT
    assert not play.talk.degraded


def test_a_backup_that_never_runs_cancels_the_hot_switch() -> None:
    play = Play(sub_health="hotSwitch")
    play.tell(SubHealthy("worker-1", (FaultyRank("9", "1"),))).after(60)
    assert play.heard()[-2:] == ["hot-switch stop switch", "degrade worker-1"]
    play.tell(SubHealthy("worker-1", (FaultyRank("9", "1"),)))
    assert (play.state, play.heard()) == (State.INIT, [])


@pytest.mark.parametrize(
    "told",
    [
        SubHealthy("worker-0", (FaultyRank("0", "1"),), rank_zero=True),
        SubHealthy("worker-1", (FaultyRank("9", "1"),), pods=11),
    ],
)
def test_a_pod_that_must_not_be_switched_stays(told: SubHealthy) -> None:
    play = Play(sub_health="hotSwitch").tell(told)
    assert (play.state, play.heard()) == (State.INIT, [])


def test_a_server_that_takes_over_repeats_the_unanswered_effect() -> None:
    talk = Conversation(job="job-1")
    result = step(talk, software(("9", "1")), JobFacts(configured=("recover",)), 0, "u")
    kept = msgspec.json.decode(msgspec.json.encode(result.conversation), type=Conversation)
    assert resumed(kept) == (Reset("flush"),)
    result = step(kept, Written(True), JobFacts(configured=("recover",)), 0, "u2")
    assert [short(effect) for effect in resumed(result.conversation)] == ["stopTrain stop_train"]


def test_a_client_that_subscribes_again_gets_a_new_conversation() -> None:
    play = decided(Play(), software(("9", "1")))
    fresh = reset(play.talk, play.now)
    assert (fresh.state, fresh.ranks, fresh.stop, fresh.pending) == (State.INIT, (), None, None)
    assert fresh.story[-1].code == 506


def test_every_state_has_a_handler_and_a_way_out() -> None:
    assert set(HANDLERS) == set(State)
    for state in State:
        assert allowed(state), state
    assert {row.to for row in ROWS} == set(State)
    assert len(NEXT) == len(ROWS)


def test_the_diagram_in_the_readme_is_the_table() -> None:
    readme = Path(__file__).parent.parent / "engine" / "model" / "recovery" / "README.md"
    assert f"```mermaid\n{diagram()}```" in readme.read_text()


RANK = st.builds(FaultyRank, st.integers(0, 31).map(str), st.sampled_from("012"))
REPORT = st.builds(
    Report,
    code=st.sampled_from([0, 0, 0, 201, 404, 405, 406, 499]),
    strategy=st.sampled_from(["", "retry", "recover", "dump", "exit", "downgrade", "upgrade"]),
    strategies=st.lists(st.sampled_from([*CAN, "migration"]), max_size=5, unique=True).map(tuple),
    isolate=st.lists(st.integers(0, 31).map(str), max_size=2).map(tuple),
)
TOLD = st.one_of(
    st.just(Tick()),
    st.builds(Faults, st.lists(RANK, max_size=3).map(tuple), st.booleans()),
    st.builds(SubHealthy, st.just("p"), st.lists(RANK, min_size=1, max_size=2).map(tuple)),
    st.builds(StopComplete, REPORT),
    st.builds(Offered, REPORT),
    st.builds(Done, REPORT),
    st.builds(Replied, REPORT, st.just(())),
    st.builds(Start, st.builds(Operation, st.sampled_from(["nic", "stress"]))),
    st.builds(Sent, st.booleans()),
    st.builds(Written, st.booleans()),
)
FACTS = st.builds(
    JobFacts,
    configured=st.lists(st.sampled_from(ALL), unique=True).map(tuple),
    platform=st.sampled_from([None, None, None, "", "retry", "recover", "dump"]),
    result_fault=st.sampled_from(["", "3:1", "rubbish"]),
    rank_table_ready=st.sampled_from([None, "true", "no"]),
    running=st.booleans(),
    replaced=st.booleans(),
    exists=st.sampled_from([True, True, False]),
    health=st.sampled_from(["UnHealthy", "SubHealthy"]),
    sub_health=st.sampled_from(["ignore", "graceExit", "hotSwitch"]),
    in_place=st.booleans(),
    in_place_clear=st.booleans(),
    rank_zero_faulty=st.booleans(),
    pod_rescheduling=st.booleans(),
    hot_reset=st.sampled_from([False, False, True]),
    route_failed=st.sampled_from([False, False, True]),
    backup_running=st.booleans(),
    old_pod_gone=st.booleans(),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(TOLD, FACTS, st.sampled_from([0, 1, 10, 300, 900])), max_size=25), st.integers())
def test_every_history_ends_by_timeouts_alone(history: list[tuple[Input, JobFacts, int]], seed: int) -> None:
    """Whatever was said, by many clients in any order: outcomes and time alone lead back to INIT, codes stay known."""
    talk, now = Conversation(job="j"), 0
    for told, facts, seconds in history:
        now += seconds * 1000
        talk = step(talk, told, facts, now, "u").conversation
        assert all(note.code != Code.ORDER_MIX for note in talk.story), talk.story
        assert all(note.code != Code.INNER for note in talk.story)
        assert len(msgspec.json.encode(talk)) < 64_000
    chance = random.Random(seed)
    facts = JobFacts(exists=False)
    for _ in range(200):
        if talk.state is State.INIT and not talk.ranks and talk.pre_exit is None:
            break
        if talk.awaiting:
            ok = chance.random() < 0.5
            talk = step(talk, Sent(ok) if talk.awaiting == "sent" else Written(ok), facts, now, "u").conversation
        else:
            now += 1_000 * chance.choice([1, 60, 900])
            talk = step(talk, Tick(), facts, now, "u").conversation
    assert talk.state is State.INIT, (talk.state, talk.phase)


def test_every_row_of_the_table_is_taken_and_every_reached_state_can_end() -> None:
    """Breadth first over the features that distinguish conversations; from each the ways on are drawn, seeded."""
    chance = random.Random(7)
    inputs = _inputs(chance)
    taken: set[tuple[str, str]] = set()
    known: dict[tuple[object, ...], Conversation] = {}
    queue = [Conversation(job="j")]
    while queue:
        talk = queue.pop(0)
        for _ in range(160):
            told, now = next(inputs), talk.since + chance.choice([0, 1, 5, 70, 300, 900, 8000]) * 1000
            if talk.awaiting and chance.random() < 0.7:
                ok = chance.random() < 0.7
                told = Sent(ok) if talk.awaiting == "sent" else Written(ok)
            after = step(msgspec.structs.replace(talk, story=()), told, _facts(chance), now, "u").conversation
            state = talk.state.value
            for note in after.story:
                taken.add((state, note.event))
                state = note.state
            key = (
                after.state, after.phase, after.awaiting, after.chosen, after.last, bool(after.ranks), after.in_place,
                after.operation.kind if after.operation else "", after.pre_exit is None, after.degraded,
            )  # fmt: skip
            if key not in known:
                known[key] = after
                queue.append(after)
    assert {key[0] for key in known} == set(State) - {State.CHECK}  # a result is judged at once
    assert {(row.state.value, row.event.value) for row in ROWS} - taken == set()


def _inputs(chance: random.Random):  # type: ignore[no-untyped-def]
    def report() -> Report:
        offers = tuple(name for name in [*CAN, "migration"] if chance.random() < 0.6)
        return Report(
            code=chance.choice([0, 0, 0, 201, 404, 405, 406, 499]),
            strategy=chance.choice(["", "", "", "retry", "recover", "downgrade"]),
            strategies=offers,
        )

    def ranks() -> tuple[FaultyRank, ...]:
        return tuple(
            FaultyRank(str(chance.randrange(32)), chance.choice("012")) for _ in range(chance.choice([1, 1, 2]))
        )

    makers = [
        Tick, lambda: Faults(ranks(), chance.random() < 0.7), lambda: SubHealthy("p", ranks()),
        lambda: StopComplete(report()), lambda: Offered(report()), lambda: Done(report()),
        lambda: Replied(report(), chance.choice([(), ("n",)])),
        lambda: Start(Operation(chance.choice(["nic", "stress"]))), Tick, Tick,
    ]  # fmt: skip
    while True:
        yield chance.choice(makers)()


def _facts(chance: random.Random) -> JobFacts:
    def coin(p: float = 0.5) -> bool:
        return chance.random() < p

    return JobFacts(
        configured=tuple(name for name in ALL if coin(0.6)),
        platform=chance.choice([None, None, None, None, "", "retry", "recover", "dump"]),
        confirm_fault=chance.choice(["", "", "", "1:1"]),
        result_fault=chance.choice(["", "3:1"]),
        rank_table_ready=chance.choice([None, None, "true", "no"]),
        running=coin(), replaced=coin(), exists=coin(0.9), health=chance.choice(["UnHealthy", "SubHealthy"]),
        sub_health=chance.choice(["ignore", "graceExit", "hotSwitch", "hotSwitch"]), in_place=coin(),
        in_place_clear=coin(), rank_zero_faulty=coin(0.3), pod_rescheduling=coin(), hot_reset=coin(0.1),
        route_failed=coin(0.1), backup_running=coin(), old_pod_gone=coin(),
    )  # fmt: skip


def test_a_signal_that_may_be_lost_with_its_server_is_known_until_it_is_answered() -> None:
    play = Play()
    play.tell(software(("9", "1")))
    assert play.state is State.WAIT_STOP
    lost = unanswered(play.talk, play.now + 5_000)
    assert lost is not None and (lost.kind, lost.uuid) == ("stopTrain", play.talk.uuid)
    assert unanswered(play.talk, play.now + 31_000) is None, "it surely arrived"
    play.tell(StopComplete(Report()))
    assert unanswered(play.talk, play.now) is None, "nothing is asked"
    play.after(1)
    assert (unanswered(play.talk, play.now) or Signal("none")).kind == "globalFault"
    play.tell(Offered(Report(strategies=CAN)))
    assert (unanswered(play.talk, play.now) or Signal("none")).change == "recover"
    play.tell(Done(Report(strategy="recover")))
    assert play.state is State.INIT and unanswered(play.talk, play.now) is None
