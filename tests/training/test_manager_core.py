"""The manager's decisions: which plugin acts on what, in which order, once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from belay.agents.training.clusterd import constants
from belay.agents.training.clusterd.state import (
    Command,
    JobSettings,
    LogWarning,
    ReplyStress,
    ReplySwitch,
    ReportFaults,
    Signal,
    StressRequest,
    SwitchRequest,
    ToAgents,
    ToController,
    ToWorkers,
)
from belay.agents.training.compat.bus import codes
from belay.agents.training.compat.bus.message import Body, Received
from belay.agents.training.compat.bus.position import AGENT, WORKER, Position
from belay.agents.training.compat.manager.core import ManagerCore
from belay.agents.training.compat.manager.operations import profiling_command


class Play:
    """A manager of 3 pods with 2 processes each, on a clock that only the test moves."""

    def __init__(self, recovery: bool = True) -> None:
        self.core = ManagerCore(JobSettings("job-1", nodes=3, per_node=2, recovery=recovery))
        self.now = 1000.0

    def agent(self, node: int, code: int, message: str, kind: str = codes.STATUS) -> list[Command]:
        return self.core.message(Received(Position(AGENT, str(node)), Body(kind, code, message)), self.now)

    def started(self) -> Play:
        for node in range(3):
            assert short(self.agent(node, codes.RESTART_TIMES, "5")) == [f"{node}: 210 5"]
        return self

    def workers(self) -> Play:
        for rank in range(6):
            self.worker(rank, Body(codes.REGISTER, codes.WORKER_REGISTERED))
        return self

    def worker(self, rank: int, body: Body) -> list[str]:
        return short(self.core.message(Received(Position(WORKER, str(rank // 2), str(rank)), body), self.now))

    def faults(self, node: int, *ranks: int) -> list[str]:
        report = json.dumps({"fault_ranks": list(ranks), "restart_times": -1})
        return short(self.agent(node, codes.FAULT_RANKS, report))

    def say(self, kind: str, *actions: str, uuid: str = "u1", **fields: Any) -> list[str]:
        return short(self.core.signal(Signal(uuid, kind, actions, **fields), self.now))

    def after(self, seconds: float) -> list[str]:
        self.now += seconds
        return short(self.core.tick(self.now))


def short(commands: list[Command]) -> list[str]:
    found = []
    for one in commands:
        match one:
            case ToAgents():
                found.append(f"{','.join(map(str, one.nodes))}: {one.code} {one.message}".strip())
            case ToController():
                parts = ["controller", *one.actions, one.strategy, one.params]
                parts += [str(dict(one.faults))] if one.faults else []
                found.append(" ".join(part for part in parts if part) + (f" {one.timeout} s" if one.timeout else ""))
            case ToWorkers():
                found.append(f"workers {one.ranks}: {one.code}")
            case ReportFaults():
                found.append(f"report {dict(one.faults)}")
            case ReplySwitch():
                found.append(f"switched {one.ok}")
            case ReplyStress():
                found.append(f"tested {json.dumps(one.results)}")
            case LogWarning():
                found.append(f"note {one.text}")
    return found


def test_a_killed_process_is_recovered_in_place() -> None:
    play = Play().started()
    faults = {2: 1}
    assert play.faults(1, 2) == ["report {2: 1}"]
    assert play.say(constants.STOP_TRAIN, "stop_train") == ["controller stop_train"]
    assert play.say(constants.GLOBAL_FAULT, "on_global_rank", faults=faults, timeout=33) == [
        "controller on_global_rank {2: 1} 33 s"
    ]
    assert play.say(
        constants.CHANGE_STRATEGY, "change_strategy", "fault_nodes_restart",
        faults=faults, nodes=(1,), strategy="recover", extra="recover-in-place",
    ) == ["controller change_strategy recover recover-in-place {2: 1}", '1: 209 ["2"]']  # fmt: skip
    assert play.faults(1) == []
    assert play.core.streams[0].holder is None


def test_each_agent_restarts_its_own_ranks_only() -> None:
    said = Play().started().say(
        constants.CHANGE_STRATEGY, "change_strategy", faults={5: 1, 2: 1, 3: 1}, nodes=(1, 2), strategy="recover",
        extra="recover-in-place",
    )  # fmt: skip
    assert said[1:] == ['1: 209 ["2", "3"]', '2: 209 ["5"]']


def test_faulty_pods_leave_before_the_controller_recovers() -> None:
    said = (
        Play()
        .started()
        .say(
            constants.CHANGE_STRATEGY,
            "change_strategy",
            "fault_nodes_exit",
            faults={2: 1},
            nodes=(1,),
            strategy="recover",
        )
    )
    assert said == ["1: 203", "controller change_strategy recover {2: 1}"]


@pytest.mark.parametrize("strategy", ["retry", "dump", "continue"])
def test_other_strategies_are_the_controllers(strategy: str) -> None:
    play = Play().started()
    assert play.say(constants.CHANGE_STRATEGY, "change_strategy", strategy=strategy) == [
        f"controller change_strategy {strategy}"
    ]
    assert play.say(constants.CHANGE_STRATEGY, "change_strategy", strategy=strategy) == []


def test_a_signal_that_a_returning_server_repeats_is_handled_once() -> None:
    play = Play().started()
    assert play.say(constants.STOP_TRAIN, "stop_train", "stop_train") == ["controller stop_train"]
    assert play.say(constants.STOP_TRAIN, "stop_train", "stop_train") == []
    assert play.say(constants.STOP_TRAIN, "stop_train", uuid="u2") == ["controller stop_train"]
    assert play.say(constants.KEEP_ALIVE, uuid="k") == []


def test_a_second_round_of_the_same_recovery_is_passed_on() -> None:
    play = Play().started()
    play.say(constants.GLOBAL_FAULT, "on_global_rank", faults={2: 0})
    play.say(constants.CHANGE_STRATEGY, "change_strategy", strategy="retry")
    assert play.say(constants.GLOBAL_FAULT, "on_global_rank", faults={2: 0}) == ["controller on_global_rank {2: 0}"]
    assert play.say(constants.CHANGE_STRATEGY, "change_strategy", strategy="recover") == [
        "controller change_strategy recover"
    ]


def test_the_same_decision_after_another_stop_is_carried_out_again() -> None:
    play = Play().started()
    decision = {"faults": {2: 1}, "nodes": (1,), "strategy": "recover", "extra": "recover-in-place"}
    for _ in range(2):
        play.say(constants.STOP_TRAIN, "stop_train")
        assert play.say(constants.CHANGE_STRATEGY, "change_strategy", **decision)[1:] == ['1: 209 ["2"]']
        assert play.say(constants.CHANGE_STRATEGY, "change_strategy", **decision) == []


def test_stop_train_gives_way_to_any_other_signal() -> None:
    play = Play().started()
    play.say(constants.STOP_TRAIN, "pause_train", timeout=900)
    assert play.core.streams[0].holder is not None
    assert play.say(constants.CHANGE_STRATEGY, "change_strategy", strategy="continue") == [
        "controller change_strategy continue"
    ]


def test_pre_exit_ends_the_processes_of_the_named_pods() -> None:
    assert Play().started().say(constants.PRE_EXIT, "pre exit process", nodes=(1,)) == ['1: 213 ["2", "3"]']


def test_save_and_exit_saves_first() -> None:
    assert Play().started().say(constants.SAVE_AND_EXIT, "save_and_exit", nodes=(2,)) == [
        "controller save_and_exit", "2: 203",
    ]  # fmt: skip


def test_elastic_training_holds_on_until_another_signal() -> None:
    play = Play().started()
    params = '{"scale-in-strategy": "DP"}'
    assert play.say(constants.CHANGE_STRATEGY, "change_strategy", strategy="downgrade", extra=params, nodes=(1,)) == [
        f"controller change_strategy downgrade {params}"
    ]
    assert play.say(constants.FAULT_NODES_EXIT, "fault_nodes_exit", nodes=(1,)) == ["1: 203"]
    assert play.core.streams[0].holder is not None
    assert play.say(constants.STOP_TRAIN, "stop_train", uuid="u2") == ["controller stop_train"]


def test_hot_switch_is_prepared_then_migrated() -> None:
    play = Play().started()
    assert play.say(constants.HOT_SWITCH, "hot switch", faults={4: 1}) == ["controller hot switch {4: 1}"]
    assert play.say(constants.HOT_SWITCH, "new pod running") == ["controller new pod running"]
    assert play.say(constants.CHANGE_STRATEGY, "change_strategy", strategy="migration") == [
        "controller change_strategy migration"
    ]


def test_exit_reschedules_pods() -> None:
    play = Play().started()
    assert play.say(constants.CHANGE_STRATEGY, "change_strategy", strategy="exit", faults={2: 1}, nodes=(1,)) == [
        "controller change_strategy exit {2: 1}", "1: 203", "0,2: 208 4", "controller restart_controller",
    ]  # fmt: skip
    assert short(play.agent(1, codes.RESTART_TIMES, "5")) == ["1: 210 4"]


def test_without_recovery_a_faulty_pod_leaves_and_the_others_restart() -> None:
    play = Play(recovery=False).started()
    assert play.faults(2, 4) == ["2: 203", "0,1: 208 4", "controller restart_controller"]
    assert play.faults(2) == []
    assert short(play.core.reset_file(0, False, play.now)) == []
    assert short(play.core.reset_file(1, False, play.now)) == ["0,1,2: 208 3", "controller restart_controller"]


def test_used_up_restarts_are_sent_as_a_negative_number() -> None:
    play = Play(recovery=False)
    for node in range(3):
        play.agent(node, codes.RESTART_TIMES, "0")
    assert play.faults(2, 4)[1] == "0,1: 208 -1"


def test_rank_zeros_faults_end_the_job_at_once_or_after_twenty_five_minutes() -> None:
    assert Play(recovery=False).started().faults(0, 1) == ["controller destroy_controller", "0: 203"]
    play = Play().started()
    assert play.faults(0, 1) == ["report {1: 1}"]
    assert play.after(25 * 60 - 1) == []
    assert play.after(1) == ["controller destroy_controller", "0: 203"]
    assert play.after(3600) == []


def test_kill_master_ends_the_pod_of_rank_zero_once() -> None:
    play = Play().started()
    assert play.say(constants.KILL_MASTER) == ["controller destroy_controller", "0: 203"]
    assert play.after(100) == []


def test_agents_start_unless_clusterd_holds_them_back() -> None:
    play = Play()
    play.say(constants.PAUSE_START, "pause_start_agent")
    assert play.agent(0, codes.RESTART_TIMES, "3") == []
    assert play.agent(2, codes.RESTART_TIMES, "3") == []
    assert play.say(constants.CONTINUE_START, "continue_start_agent") == ["0,2: 210 3"]


def test_a_final_report_without_ranks_is_not_a_fault() -> None:
    play = Play(recovery=False).started()
    assert play.faults(1) == []


def test_unhandled_faults_are_reported_again_when_clusterd_returns() -> None:
    play = Play().started()
    play.faults(1, 2)
    play.faults(2, 4)
    assert short(play.core.subscribed(play.now)) == ["report {2: 1, 4: 1}"]
    play.say(
        constants.CHANGE_STRATEGY, "change_strategy", faults={2: 1, 4: 1}, strategy="recover", extra="recover-in-place"
    )
    assert short(play.core.subscribed(play.now)) == []


def test_a_restarted_manager_continues_a_recovery() -> None:
    play = Play()  # knows nothing; the agents join again and repeat what is true
    assert play.faults(1, 2) == ["report {2: 1}"]
    assert play.say(constants.GLOBAL_FAULT, "on_global_rank", faults={2: 1}) == ["controller on_global_rank {2: 1}"]
    assert play.say(
        constants.CHANGE_STRATEGY,
        "change_strategy",
        faults={2: 1},
        nodes=(1,),
        strategy="recover",
        extra="recover-in-place",
    )[1:] == ['1: 209 ["2"]']


@pytest.mark.parametrize(
    ("src", "body", "wrong"),
    [
        (Position(AGENT, "3"), Body("STATUS", 201, "5"), "no such pod, the job has 3"),
        (Position(AGENT, "1"), Body("STATUS", 201, "five"), "'five' is not a whole number"),
        (Position(AGENT, "1"), Body("STATUS", 202, "[]"), "not a report of fault ranks"),
        (Position(AGENT, "1"), Body("STATUS", 202, '{"fault_ranks": ["x"]}'), "'x' is not a rank"),
        (Position(AGENT, "1"), Body("STATUS", 202, '{"fault_ranks": [77]}'), "reports rank 77, the job has 6"),
        (Position(WORKER, "1", "77"), Body("REGISTER", 101), "no such rank, the job has 6"),
        (Position("Proxy", "1"), Body("STATUS", 201), "neither an agent nor a worker"),
    ],
)  # fmt: skip
def test_reports_that_cannot_be_true_change_nothing_but_the_log(src: Position, body: Body, wrong: str) -> None:
    play = Play().started()
    said = short(play.core.message(Received(src, body), play.now))
    assert len(said) == 1 and said[0].startswith("note") and wrong in said[0]
    assert not any(agent.faults for agent in play.core.state.agents.values())


def test_unknown_signals_and_actions_are_ignored() -> None:
    play = Play().started()
    assert play.say("danceTrain", "dance") == ["note signal 'danceTrain' is unknown and ignored"]
    assert "action 'dance' of stopTrain is unknown" in play.say(constants.STOP_TRAIN, "dance")[0]
    assert play.say(constants.STOP_TRAIN, "stop_train", uuid="u2") == ["controller stop_train"]


def test_links_are_switched_when_every_worker_did() -> None:
    play = Play().workers()
    assert short(play.core.switch(SwitchRequest("s1", ("0", "5"), (True, False)), play.now)) == ["workers None: 204"]
    answer = Body(codes.ACTION, codes.SWITCH_NIC, constants.SWITCH_OK, {constants.SWITCH_UUID: "s1"})
    assert [play.worker(rank, answer) for rank in range(5)] == [[]] * 5
    assert play.worker(5, answer) == ["switched True"]


def test_one_worker_that_fails_or_is_late_fails_the_switch() -> None:
    play = Play().workers()
    play.core.switch(SwitchRequest("s1", ("0",), (True,)), play.now)
    old = Body(codes.ACTION, codes.SWITCH_NIC, constants.SWITCH_FAIL, {constants.SWITCH_UUID: "s0"})
    assert play.worker(2, old) == []
    assert play.worker(
        3, Body(codes.ACTION, codes.SWITCH_NIC, constants.SWITCH_FAIL, {constants.SWITCH_UUID: "s1"})
    ) == ["switched False"]
    play.core.switch(SwitchRequest("s2", ("0",), (True,)), play.now)
    assert play.after(120 * 60) == ["switched False"]
    assert short(Play().core.switch(SwitchRequest("s3", ("0",), (True,)), 0.0)) == ["switched False"]


def test_stress_results_are_gathered_and_silent_workers_count_as_timed_out() -> None:
    play = Play().workers()
    assert short(play.core.stress(StressRequest("t1", {1: (0, 1), 4: (0,)}), play.now)) == ["workers (1, 4): 205"]
    result = json.dumps({"rankResult": {"0": {"code": "0", "result": "ok"}, "1": {"code": "2", "result": "bad"}}})
    assert play.worker(1, Body(codes.ACTION, codes.STRESS_TEST, result, {constants.STRESS_UUID: "t1"})) == []
    assert play.after(29) == []
    assert play.worker(4, Body(codes.KEEP_ALIVE)) == []
    assert play.after(29) == []
    assert play.after(1) == [
        'tested {"1": {"0": ["0", "ok"], "1": ["2", "bad"]}, "4": {"0": ["3", "worker heartbeat timeout"]}}'
    ]


def test_a_stress_test_ends_after_fifteen_minutes_and_unreadable_answers_fail() -> None:
    play = Play().workers()
    play.core.stress(StressRequest("t1", {1: (0,), 2: (0,)}), play.now)
    play.worker(2, Body(codes.ACTION, codes.STRESS_TEST, "[]", {constants.STRESS_UUID: "t1"}))
    for _ in range(90):
        assert play.worker(1, Body(codes.KEEP_ALIVE)) == []
        said = play.after(10)
        if said:
            break
    unread, late = ["1", "the worker's answer cannot be read"], ["3", "no result within 15 min"]
    assert said == ["tested " + json.dumps({2: {0: unread}, 1: {0: late}})]


def test_profiling_is_switched_in_all_workers_and_in_later_ones() -> None:
    play = Play().workers()
    assert short(play.core.profiling(codes.PROFILING_ALL, play.now)) == ["workers None: 711"]
    assert short(play.core.profiling(codes.PROFILING_ALL, play.now)) == []
    assert play.worker(3, Body(codes.REGISTER, 101)) == ["workers (3,): 711"]
    assert play.worker(3, Body(codes.STATUS, 1411)) == []
    assert play.core.state.workers[3].profiling == 1411
    assert short(play.core.profiling(codes.PROFILING_OFF, play.now)) == ["workers None: 700"]


@pytest.mark.parametrize(
    ("on", "command"),
    [((), 700), (("Step",), 710), (("CommunicationOperator",), 711), (("Step", "CommunicationOperator"), 711)],
)
def test_switches_become_commands(on: tuple[str, ...], command: int) -> None:
    assert (
        profiling_command({name: "on" if name in on else "off" for name in ("Step", "CommunicationOperator")})
        == command
    )


def test_a_switch_that_is_not_off_opens_the_default_domain() -> None:
    assert profiling_command({"Step": "yes", "CommunicationOperator": "off"}) == 710
    assert profiling_command({"Step": "", "another": "on"}) == 700


def test_grace_exit_is_sent_once() -> None:
    play = Play().started()
    assert short(play.core.reset_file(0, True, play.now)) == ["0,1,2: GRACE_EXIT"]
    assert short(play.core.reset_file(0, True, play.now)) == []
