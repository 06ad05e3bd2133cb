"""The summary of a conversation of process recovery: level, codes, steps with times."""

from __future__ import annotations

from belay.engine.model.recovery import FaultyRank, Report, State, reset, summary
from belay.engine.model.recovery.conversation import Done, Faults
from tests.recovery_conversation import ALL, Play, decided, software


def told(play: Play) -> summary.RecoverySummary:
    return summary.read(play.facts.accounts)[-1]


def test_the_summary_of_a_retry_has_level_codes_and_steps_with_times() -> None:
    play = decided(Play(configured=ALL), software(("3", "0")))
    begun = play.talk.story[0].at
    play.after(7).tell(Done(Report(strategy="retry")))
    one = told(play)
    assert (one.level, one.good, one.pods, one.codes) == ("retry", True, (0,), ("80E01801",))
    assert (one.begun, one.ended) == (begun, play.now)
    assert [(note.event, note.state) for note in one.steps][-2:] == [
        ("receiveReport", "CheckRecoverResultState"), ("recoverSuccess", "INIT"),
    ]  # fmt: skip
    assert [note.at for note in one.steps] == sorted(note.at for note in one.steps)


def test_the_summary_of_an_in_place_restart_has_its_level() -> None:
    play = decided(
        Play(configured=ALL, in_place=True, codes=("8C084E00",)), Faults((FaultyRank("9", "1"),), software=True)
    )
    play.tell(Done(Report(strategy="recover")))
    one = told(play)
    assert (one.level, one.good, one.pods, one.codes) == ("in-place", True, (1,), ("8C084E00",))


def test_a_failed_recovery_has_a_summary() -> None:
    play = decided(Play(), software(("9", "1")))
    play.after(15 * 60)  # no client reports the result
    while play.state is not State.INIT:
        play.after(60)
    assert (told(play).level, told(play).good) == ("rescheduled", False)
    assert 507 in {note.code for note in told(play).steps}


def test_a_conversation_that_its_clients_leave_is_cancelled() -> None:
    play = decided(Play(), software(("9", "1")))
    over = summary.summary_write(play.talk, reset(play.talk, play.now + 5), play.facts)
    assert over is not None and summary.read(over.value)[-1].level == "cancelled"
    assert summary.summary_write(play.talk, play.talk, play.facts) is None, "it goes on"


def test_only_the_newest_summaries_are_kept_and_invalid_text_gives_none() -> None:
    play = Play(configured=ALL)
    moments = []
    for _ in range(5):
        decided(play.after(100), software(("3", "0"))).tell(Done(Report(strategy="retry")))
        moments.append(told(play).begun)
        assert len(play.facts.accounts) < 4096
    assert [one.begun for one in summary.read(play.facts.accounts)] == moments[-3:]
    for text in ("", "{", "[1]", '[{"begun":5,"ended":1,"level":"retry"}]', "[" * 70_000):
        assert summary.read(text) == ()
