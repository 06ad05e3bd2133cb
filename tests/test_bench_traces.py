"""What the fragmentation benchmark rests on: legal places, an optimum that is one, and the real planner as a policy."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.bench import fragmentation, traces
from tests.bench.fragmentation import Planner, gap, optimum
from tests.bench.traces import (
    Choice,
    FirstFit,
    Gated,
    Look,
    Place,
    Policy,
    Reference,
    Request,
    State,
    clairvoyant,
    play,
    trace,
)


def jobs(*sizes: int, cores: bool = False) -> list[Request]:
    return [Request(number, 0.0, 5.0, size, cores) for number, size in enumerate(sizes)]


def state(*rings: int) -> State:
    full = State()
    full.rings = [*rings, *[0] * (traces.RING_NODES - len(rings))]
    full.cores = [[(0, 0)] * traces.CORE_CHIPS for _ in range(traces.CORE_NODES)]
    return full


@pytest.mark.parametrize(
    ("rings", "sizes", "best"),
    [
        ((0xFF,), (8, 8), 8.0),
        ((0xFE,), (8,), 0.0),  # not one chip of it may go to the job
        ((0b0111, 0b0011), (4,), 0.0),
        ((0b0111, 0b0011), (2, 2, 2), 4.0),
        ((0b0111,), (2, 1, 1), 3.0),
        ((0x0F,), (4, 2, 1), 4.0),
        ((0xFF,), (8, 4, 1), 8.0),
        ((0x0F, 0xF0), (4, 4, 8), 8.0),
    ],
)
def test_the_programme_of_the_instant(rings: tuple[int, ...], sizes: tuple[int, ...], best: float) -> None:
    assert optimum(state(*rings), jobs(*sizes)) == pytest.approx(best)


def test_vnpus_in_the_programme_are_bounded_by_ai_cpus_too() -> None:
    one = state()
    one.cores[0][0] = (8, 3)
    assert optimum(one, jobs(4, 4, cores=True)) == pytest.approx(0.5)


def test_a_gap_is_what_was_left_out_of_what_could_run() -> None:
    free, queue = state(0xFF), jobs(4, 4)
    assert gap(Look(free, queue, 8.0)) == 0.0
    assert gap(Look(free, queue, 0.0)) == pytest.approx(8 / traces.CAPACITY)
    assert gap(Look(free, [], 0.0)) == 0.0


class Mover:
    """Starts what waits on the first server, and moves job 0 to the second at six o'clock."""

    def choose(
        self, now: float, state: State, waiting: Sequence[Request], running: dict[int, tuple[Request, Place]]
    ) -> list[Choice]:
        if now == 6.0 and 0 in running and running[0][1].node == 0:
            return [(running[0][0], None)]
        return [(job, Place(int(now >= 6.0), 1 << job.number)) for job in waiting]


def test_who_is_moved_does_a_little_of_his_work_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "DAYS", 1)
    work = [Request(0, 0.0, 10.0, 1, False)]
    found = play(work, Mover())
    assert found.moves == 1 and found.used == pytest.approx(10.0 / (traces.CAPACITY * 24)), "all of it, and once"
    late = [Request(0, 0.0, 24.0, 1, False)]
    lost = traces.LOST / (traces.CAPACITY * 24)
    assert play(late, Mover()).used == pytest.approx(24.0 / (traces.CAPACITY * 24) - lost)
    with pytest.raises(ValueError, match="job 0 may not be moved"):
        play([Request(0, 0.0, 24.0, 4, False)], Torn())


class Torn(Mover):
    """The same with a training job."""

    def choose(
        self, now: float, state: State, waiting: Sequence[Request], running: dict[int, tuple[Request, Place]]
    ) -> list[Choice]:
        return [(job, Place(0, 0x0F)) for job in waiting] or [(job, None) for job, _ in running.values()]


def test_what_is_taken_twice_or_torn_between_rings_is_refused() -> None:
    four = jobs(4)[0]
    with pytest.raises(ValueError, match="does not fit"):
        state(0xFF).take(four, Place(0, 0b00111100))
    with pytest.raises(ValueError, match="does not fit"):
        state(0x07).take(four, Place(0, 0x0F))


def test_all_policies_keep_the_rules_and_stay_below_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "DAYS", 2)
    work = trace(1)
    bound = clairvoyant(work)
    policies: tuple[Policy, ...] = (Planner(), FirstFit(), Reference(1), Gated(1), Reference(1, largest_first=True))
    shares = [play(work, policy).used for policy in policies]  # raises for an illegal place
    assert all(0.3 < share <= bound for share in shares)
    assert play(work, Planner()).used == shares[0]


def test_the_interval_covers_the_mean() -> None:
    mean, half = fragmentation.interval([1.0, 2.0, 3.0])
    assert mean == 2.0 and half == pytest.approx(2.093 / 3**0.5)


def test_the_default_queue_keeps_room_for_a_job_that_fits_nowhere() -> None:
    """Eight chips are free, none of their servers whole: the job of eight is let in, and no job behind it."""
    scattered = state(0x0F, 0xF0)
    queue = jobs(8, 1)
    assert Gated(0).choose(0.0, scattered.copy(), queue, {}) == []
    assert [job for job, _ in Reference(0).choose(0.0, scattered.copy(), queue, {})] == queue[1:]
    gated = Gated(0)
    assert len(gated.choose(0.0, state(0xFF, 0x01), queue, {})) == 2
    assert gated.choose(1.0, scattered.copy(), jobs(4, 4), {}) != []  # what has started keeps nothing any more


def test_large_jobs_go_first_in_any_order_of_arrival() -> None:
    queue = jobs(1, 8)
    assert [job.size for job, _ in Reference(0).choose(0.0, state(0xFF), queue, {})] == [1]
    assert [job.size for job, _ in Reference(0, largest_first=True).choose(0.0, state(0xFF), queue, {})] == [8]


def test_waiting_times_and_idle_chips_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "DAYS", 1)
    full = [Request(number, 0.0, 12.0, 8, False) for number in range(traces.RING_NODES + 1)]
    found = play(full, FirstFit())
    assert found.waits[8] == pytest.approx(12.0 / len(full)) and found.waits[1] == 0.0
    assert found.contended == 0.5
    assert found.idle == pytest.approx(traces.CORE_NODES * traces.CORE_CHIPS / traces.CAPACITY)


def test_the_planner_remembers_from_look_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that waits long gets nodes kept, as it would in a cluster."""
    planner = Planner()
    nodes = traces.RING_NODES
    running = [Request(number, 0.0, 50.0, 4, False) for number in range(nodes)]
    waiting = Request(nodes, 0.0, 5.0, 8, False)
    nothing = State()
    placed = planner.choose(0.0, nothing, running, {})
    spread = {job.number: (job, place) for job, place in placed}
    busy = [Request(nodes + 1 + n, 0.0, 50.0, 4, False) for n in range(nodes)]
    full = planner.choose(0.5, nothing, busy, spread)
    spread |= {job.number: (job, place) for job, place in full}
    assert planner.choose(1.0, nothing, [waiting], spread) == []
    gone = {number: row for number, row in spread.items() if number}  # one of four chips ends: a hole of half a node
    late = Request(99, 1.5, 5.0, 4, False)
    assert planner.choose(1.5, nothing, [waiting, late], gone) == []
