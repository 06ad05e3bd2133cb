"""Whether ranks work: threads as the kernel shows them, in a folder of ours."""

from __future__ import annotations

import shutil
from pathlib import Path

from belay.agents.training.train.agent.work import Work


class Proc:
    """A process with threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "7"
        self.io(0)

    def thread(self, number: int, ticks: int, name: str = "python (x) y") -> None:
        path = self.folder / "task" / str(number) / "stat"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{number} ({name}) S {' '.join(['0'] * 10)} {ticks} 0 0 0\n")

    def io(self, count: int) -> None:
        self.folder.mkdir(exist_ok=True)
        (self.folder / "io").write_text(f"rchar: 5\nread_bytes: {count}\nwrite_bytes: 0\n")

    def end(self, number: int, *, listed: bool = False) -> None:
        folder = self.folder / "task" / str(number)
        (folder / "stat").unlink() if listed else shutil.rmtree(folder)


def test_processor_time_and_bytes_are_work_and_time_of_gloo_is_not(tmp_path: Path) -> None:
    proc, work = Proc(tmp_path), Work(1.0, tmp_path)
    proc.thread(7, 100)
    proc.thread(8, 100, "gloo_tcp_loop")
    assert not work.since([7], 10.0), "the first look begins a comparison"
    proc.thread(7, 104)
    proc.thread(8, 200, "gloo_tcp_loop")
    assert not work.since([7], 11.0)
    proc.thread(7, 110)
    assert not work.since([7], 11.5), "not due yet"
    assert work.since([7], 12.0)
    proc.io(4096)
    assert work.since([7], 13.0)
    assert not work.since([7], 14.0)
    assert not work.since([], 15.0)


def test_a_thread_that_ends_is_no_work(tmp_path: Path) -> None:
    proc, work = Proc(tmp_path), Work(1.0, tmp_path)
    proc.io(1000)
    for number in (7, 8, 9):
        proc.thread(number, 500)
    work.since([7], 1.0)
    # between the list of threads and its turn
    proc.end(8, listed=True)
    assert not work.since([7], 2.0)
    proc.end(8)
    proc.end(9)
    assert not work.since([7], 3.0)
    proc.thread(7, 520)
    assert work.since([7], 4.0)


def test_what_was_done_while_none_looked_is_not_taken_for_work_now(tmp_path: Path) -> None:
    proc, work = Proc(tmp_path), Work(1.0, tmp_path)
    proc.thread(7, 0)
    work.since([7], 1.0)
    proc.thread(7, 5000)
    assert not work.since([7], 60.0)
    assert not work.since([7], 61.0)
    # a new process has done all of its work since the last look
    proc.folder = tmp_path / "9"
    proc.io(0)
    proc.thread(9, 50)
    assert work.since([7, 9], 62.0)


def test_threads_of_gloo_are_read_once(tmp_path: Path) -> None:
    proc, work = Proc(tmp_path), Work(1.0, tmp_path)
    proc.thread(7, 0)
    proc.thread(8, 0, "gloo_tcp_loop")
    work.since([7], 1.0)
    # a thread that was gloo's stays so; its file is not opened again
    proc.thread(8, 5000)
    assert not work.since([7], 2.0)
