"""Pages for what is loaded: huge while they come quickly, small where they do not, none beyond the memory itself."""

from __future__ import annotations

import mmap

from belay.agents.training.checkpoint import pages
from belay.agents.training.checkpoint.sources import address

MIB = 1 << 20
RANGES = [(40 * MIB + 64, 32 * MIB), (100 * MIB + 64, 20 * MIB), (200 * MIB, MIB)]


class Kernel:
    """Notes what it is asked; populating takes ``seconds`` for each step in turn."""

    def __init__(self, *seconds: float, knows: bool = True) -> None:
        self.now, self.knows = 0.0, knows
        self.seconds = list(seconds)
        self.said: list[tuple[int, int, str]] = []

    def advise(self, start: int, size: int, what: str) -> bool:
        self.said.append((start, size, what))
        if what == "populate":
            self.now += self.seconds.pop(0) if self.seconds else 0.001
        return self.knows

    def clock(self) -> float:
        return self.now

    def told(self, what: str) -> list[tuple[int, int]]:
        return [(start, size) for start, size, word in self.said if word == what]


def run(kernel: Kernel) -> pages.Ahead:
    ahead = pages.Ahead(RANGES, advise=kernel.advise, clock=kernel.clock)
    ahead.run()
    return ahead


def test_all_whole_pages_are_taken_and_huge_ones_lie_within_the_memory():
    kernel = Kernel()
    assert run(kernel).huge and not kernel.told("small")
    # less than a huge page is left to the first access
    assert kernel.told("huge") == [(42 * MIB, 30 * MIB), (102 * MIB, 18 * MIB)]
    taken = kernel.told("populate")
    assert sum(size for _, size in taken) == 52 * MIB - 2 * 4096 and max(size for _, size in taken) == pages.STEP
    for start, size in taken:
        assert start % 4096 == 0 and any(begin <= start and start + size <= begin + length for begin, length in RANGES)


def test_huge_pages_that_are_slow_are_given_up():
    kernel = Kernel(0.5, 0.5, 0.5)
    assert not run(kernel).huge
    assert kernel.told("small") == [(42 * MIB, 30 * MIB)] == kernel.told("huge")
    assert sum(size for _, size in kernel.told("populate")) == 52 * MIB - 2 * 4096


def test_single_slow_steps_are_a_busy_machine():
    kernel = Kernel(0.5, 0.5, 0.001, 0.5, 0.5)
    assert run(kernel).huge and not kernel.told("small")


def test_a_kernel_that_does_not_take_pages_ahead_is_asked_once():
    kernel = Kernel(knows=False)
    run(kernel)
    assert len(kernel.told("populate")) == 1


def test_the_kernel_takes_the_pages_of_real_memory():
    with mmap.mmap(-1, 16 * MIB) as memory:
        view = memoryview(memory)
        with pages.Ahead([(address(view), len(view))]) as ahead:
            view[5 * MIB] = 7
        assert view[5 * MIB] == 7 and view[0] == 0 and isinstance(ahead.huge, bool)
        view.release()
    with pages.Ahead([]):
        pass
