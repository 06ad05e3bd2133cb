"""Who resets together, per product shape."""

from __future__ import annotations

from belay.engine.model.chip_masks import ids_of
from belay.engine.model.resets import group_of, groups, said_by_driver


def _ids(masks: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [ids_of(mask) for mask in masks]


def test_rings_of_the_old_server_and_a_node_with_a_missing_chip() -> None:
    rings = ((0, 1, 2, 3), (4, 5, 6, 7))
    assert _ids(groups(rings, 0xFF)) == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert _ids(groups(rings, 0xFF & ~0b100)) == [(0, 1, 3), (4, 5, 6, 7)]


def test_a_chip_in_no_group_resets_alone() -> None:
    assert _ids(groups(((0, 1),), 0b1111)) == [(0, 1), (2,), (3,)]
    assert _ids(groups((), 0b11)) == [(0,), (1,)]


def test_a3_modules_pair_with_their_neighbour_or_with_what_the_driver_says() -> None:
    assert _ids(groups((), 0xFFFF, scope="a3-module"))[:2] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert _ids(said_by_driver([(c, c + 1, c + 8, c + 9) for c in range(0, 8, 2)], 0xFFFF))[0] == (0, 1, 8, 9)


def test_a_driver_that_leaves_out_a_chip_says_nothing() -> None:
    assert said_by_driver([(0, 1)], 0b111) == () == said_by_driver([], 0b1)
    assert _ids(said_by_driver([(0, 1), (1, 2), (3,), (9,)], 0b1111)) == [(0, 1, 2), (3,)]


def test_overlapping_groups_reset_as_one() -> None:
    assert _ids(groups(((0, 1), (1, 2)), 0b1111)) == [(0, 1, 2), (3,)]


def test_an_unknown_product_resets_as_a_whole_node() -> None:
    assert groups((), 0xFF, known=False) == (0xFF,)
    assert groups((), 0) == ()


def test_group_of_a_chip() -> None:
    assert group_of(5, groups(((0, 1, 2, 3), (4, 5, 6, 7)), 0xFF)) == 0xF0
    assert group_of(9, ()) == 1 << 9
