"""Code → level, windows and filters: pure functions of rules, history and now."""

from __future__ import annotations

import pytest

from belay.engine.model.faults import (
    CARD,
    MAX_OCCURRENCES,
    NETWORK,
    PUBLIC,
    CodeRules,
    Duration,
    Frequency,
    absent,
    code_key,
    companion,
    level_of,
    lingering,
    moment,
    parse_filters,
    present,
    released,
    timed_out,
    too_often,
)
from belay.engine.model.history import CodeMemory

NOW = 1_788_249_600_000
HOUR = 3_600_000


@pytest.mark.parametrize(
    ("one", "other"), [("80c98001", "80C98001"), ("20001002", "020001002"), ("0x80C98001", "80C98001")]
)
def test_codes_compare_without_case_and_lost_zeros(one: str, other: str) -> None:
    assert code_key(one) == code_key(other)


def test_switch_codes_keep_their_shape() -> None:
    assert code_key("[0x00F1FEF5,155913,CPU,na]") == "[0x00f1fef5,155913,cpu,na]"


def test_policy_wins_over_report_over_table_over_the_unlisted_rule() -> None:
    rules = CodeRules(
        overrides={"A1": ("SubHealthFault", "FaultPolicy/p")}, table={"A1": "RestartNPU", "B2": "RestartNPU"}
    )
    assert level_of(rules, CARD, "a1", "SeparateNPU") == ("SubHealthFault", "FaultPolicy/p")
    assert level_of(rules, CARD, "B2", "RestartRequest") == ("RestartRequest", "report")
    assert level_of(rules, CARD, "B2", "") == ("RestartNPU", "table")
    assert level_of(rules, CARD, "C3", "") == ("SeparateNPU", "unlisted")
    assert level_of(rules, CARD, "C3", "", severity=1) == ("NotHandleFault", "unlisted")
    assert level_of(rules, NETWORK, "C3", "") == ("PreSeparateNPU", "unlisted")


def test_the_network_plane_knows_four_levels_only() -> None:
    rules = CodeRules(table={"A1": "RestartNPU", "B2": "SubHealthFault"})
    assert level_of(rules, NETWORK, "A1", "")[0] == "NotHandleFault"
    assert level_of(rules, NETWORK, "B2", "")[0] == "SubHealthFault"


@pytest.mark.parametrize(
    ("time", "expected"), [(0, NOW), (-5, NOW), (NOW + 5, NOW), (NOW // 1000, NOW), (NOW - 7, NOW - 7)]
)
def test_fault_times_in_seconds_or_unknown(time: int, expected: int) -> None:
    assert moment(time, NOW) == expected


def test_an_occurrence_is_a_first_report_a_return_or_a_newer_time() -> None:
    rules = CodeRules()
    seen = present(None, NOW - 600_000, NOW, rules, "A1")
    assert seen.occurrences == (NOW - 600_000,)
    assert present(seen, NOW - 600_000, NOW + 5000, rules, "A1") is seen
    newer = present(seen, NOW + 1000, NOW + 5000, rules, "A1")
    assert newer.occurrences == (NOW - 600_000, NOW + 1000)
    gone = CodeMemory(first=1, last=1, present=False, occurrences=(1,), recovered=NOW)
    back = present(gone, 1, NOW + 9000, rules, "A1")
    assert back.present and back.occurrences == (1, NOW)


def test_occurrences_are_bounded() -> None:
    rules, seen = CodeRules(), None
    for i in range(MAX_OCCURRENCES + 50):
        seen = present(seen, NOW + i, NOW + i, rules, "A1")
    assert seen is not None and len(seen.occurrences) == MAX_OCCURRENCES


def test_frequency_counts_within_its_window() -> None:
    rule = Frequency(times=2, window_ms=24 * HOUR, level="ManuallySeparateNPU")
    assert too_often(CodeMemory(1, 1, occurrences=(NOW - 24 * HOUR, NOW)), rule, NOW)
    assert not too_often(CodeMemory(1, 1, occurrences=(NOW - 24 * HOUR - 1, NOW)), rule, NOW)


def test_release_needs_the_window_without_the_fault() -> None:
    rule = Frequency(2, HOUR, "PreSeparateNPU", release_ms=HOUR)
    gone = CodeMemory(1, 1, present=False, recovered=NOW)
    assert not released(gone, NOW - 10 * HOUR, rule, NOW + HOUR)
    assert released(gone, NOW - 10 * HOUR, rule, NOW + HOUR + 1)
    assert not released(CodeMemory(1, 1), NOW - 10 * HOUR, rule, NOW + 9 * HOUR)
    assert not released(gone, 0, Frequency(2, HOUR, "ManuallySeparateNPU"), NOW + 1000 * HOUR)


RULE = Duration(timeout_ms=20_000, recover_ms=60_000, level="PreSeparateNPU")
TIMED = CodeRules(duration={"81078603": RULE})


def test_duration_is_strictly_longer_than_the_timeout() -> None:
    seen = present(None, NOW, NOW, TIMED, "81078603")
    assert not timed_out(seen, RULE, NOW + 20_000)
    assert timed_out(seen, RULE, NOW + 20_001)


def test_a_short_recovery_keeps_the_upgrade_and_continues_the_episode() -> None:
    seen = present(None, NOW, NOW, TIMED, "81078603")
    late = present(seen, NOW, NOW + 25_000, TIMED, "81078603")
    gone = absent(late, NOW + 30_000, TIMED, "81078603")
    assert gone is not None and lingering(gone, RULE, NOW + 90_000) and not lingering(gone, RULE, NOW + 90_001)
    back = present(gone, NOW + 60_000, NOW + 60_000, TIMED, "81078603")
    assert timed_out(back, RULE, NOW + 60_000)
    assert absent(gone, NOW + 90_001, TIMED, "81078603") is None


def test_with_a_duration_rule_frequency_counts_timeouts() -> None:
    seen = present(None, NOW, NOW, TIMED, "81078603")
    assert seen.occurrences == ()
    late = present(seen, NOW, NOW + 21_000, TIMED, "81078603")
    assert late.occurrences == (NOW + 20_000,)
    assert present(late, NOW, NOW + 50_000, TIMED, "81078603") is late
    again = present(late, NOW + 40_000, NOW + 50_000, TIMED, "81078603")
    assert again is late, "another event of a fault that has timed out is no other time-out"


def test_an_absent_code_is_remembered_only_while_a_rule_needs_it() -> None:
    seen = CodeMemory(NOW, NOW, occurrences=(NOW,))
    assert absent(seen, NOW + 1, CodeRules(), "A1") is None
    counted = CodeRules(frequency={"A1": Frequency(2, HOUR, "PreSeparateNPU", HOUR)})
    gone = absent(seen, NOW + 1, counted, "A1")
    assert gone is not None and not gone.present and gone.recovered == NOW + 1
    assert absent(gone, NOW + HOUR + 1, counted, "A1") is None


def test_bus_errors_beside_an_uncorrectable_error_are_by_products() -> None:
    assert companion("80C98009", NOW - 3000, (NOW - 7000,), NOW) == "drop"
    assert companion("80C98009", NOW - 3000, (NOW - 8000,), NOW) == "drop", "five seconds count"
    assert companion("80C98009", NOW - 3000, (NOW + 2000,), NOW + 2000) == "drop", "before it as well as after"
    assert companion("80C98009", NOW - 8000, (NOW - 13_001,), NOW) == "keep"
    assert companion("80C98009", NOW - 3000, (), NOW) == "wait"
    assert companion("80C98009", NOW - 4999, (), NOW) == "wait"
    assert companion("80CB8009", NOW - 5000, (), NOW) == "wait", "an error five seconds later still counts"
    assert companion("80CB8009", NOW - 5001, (), NOW) == "keep"
    assert companion("80C98001", NOW - 3000, (NOW - 3000,), NOW) == "keep"


def test_filters_parse_and_a_code_beats_a_level() -> None:
    found = parse_filters("80c98000:120, bad:x ,A1", "RestartRequest,RestartBusiness:90000")
    assert found.tolerance("80C98000", "RestartRequest") == 120_000
    assert found.tolerance("A1", "SeparateNPU") == 60_000
    assert found.tolerance("B2", "RestartRequest") == 60_000
    assert found.tolerance("B2", "RestartBusiness") == 60_000, "more than a day"
    assert found.tolerance("bad", "SeparateNPU") == 60_000
    assert found.tolerance("B2", "SeparateNPU") is None


@pytest.mark.parametrize("seconds", ["²", "9" * 5000, "-1", "1.5", "0x3c", ""])
def test_a_filter_with_an_invalid_time_hides_a_fault_for_a_minute(seconds: str) -> None:
    assert parse_filters(f"A1:{seconds}", f"RestartRequest:{seconds}") == parse_filters("A1:60", "RestartRequest:60")


def test_filters_name_codes_and_levels_of_switches() -> None:
    code = "[0x08520003,na,L2,na]"
    found = parse_filters(f"A1:5,{code}:300 ,B2", "SeparateFault:7,ResetFault:8,RestartRequestFault,PreSeparateFault:9")
    assert found.codes == {"A1": 5_000, code.lower(): 300_000, "B2": 60_000}
    assert found.levels == {"Separate": 8_000, "RestartRequest": 60_000, "PreSeparate": 9_000}
    assert parse_filters("[0x1,na:30", "").codes == {"[0x1,na": 30_000}, "a bracket that is not closed"
    assert parse_filters("A1\uff1a10\uff0cB2", "") == parse_filters("A1:10,B2", ""), "signs of Chinese keyboards"


def test_public_codes_have_the_level_of_the_report() -> None:
    assert level_of(CodeRules(table={"220001001": "SeparateNPU"}), PUBLIC, "220001001", "") == ("SeparateNPU", "table")
