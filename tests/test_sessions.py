"""Ten tasks of people: each takes one command or two, and docs/sessions.md shows what they print today."""

from __future__ import annotations

from tests.sessions import PAGE, TASKS, page


def test_each_task_takes_one_command_or_two_and_the_page_shows_them() -> None:
    text, codes = page()
    assert len(TASKS) == 10 and all(1 <= len(commands) <= 2 for _, commands in TASKS)
    assert {command: code for command, code in codes.items() if code} == {}
    assert text == PAGE.read_text(), "run make sessions and read what it wrote"
