"""Deserved shares by water-filling, against the examples of Volcano's proportion plugin and its properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belay.engine.plan.queue.share import QueueDemand, divide, exceeds, share, within

NPU = "huawei.com/Ascend910"


def _claim(
    name: str, weight: int, request: int, *, most: int | None = None, least: int = 0, stated: int | None = None
) -> QueueDemand:
    return QueueDemand(
        name,
        weight,
        {NPU: request},
        {} if most is None else {NPU: most},
        {NPU: least} if least else {},
        {} if stated is None else {NPU: stated},
    )


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ([_claim("a", 1, 16), _claim("b", 1, 16)], {"a": 8, "b": 8}),
        ([_claim("a", 3, 16), _claim("b", 1, 16)], {"a": 12, "b": 4}),
        ([_claim("a", 1, 2), _claim("b", 1, 16)], {"a": 2, "b": 14}),
        ([_claim("a", 1, 16, most=4), _claim("b", 1, 16)], {"a": 4, "b": 12}),
        ([_claim("a", 1, 16, least=10), _claim("b", 1, 16)], {"a": 13, "b": 3}),
        ([_claim("a", 1, 16, stated=6), _claim("b", 1, 16), _claim("c", 1, 16)], {"a": 6, "b": 5, "c": 5}),
        ([_claim("a", 1, 2), _claim("b", 1, 3)], {"a": 2, "b": 3}),
        ([_claim("a", 1, 0, least=4), _claim("b", 1, 16)], {"a": 4, "b": 12}),
    ],
)
def test_what_queues_deserve_of_sixteen_chips(claims: list[QueueDemand], expected: dict[str, float]) -> None:
    assert {name: row[NPU] for name, row in divide({NPU: 16}, claims).items()} == pytest.approx(expected)


@given(
    st.integers(0, 64),
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 64), st.one_of(st.none(), st.integers(0, 64))), max_size=6),
)
def test_shares_are_fair_and_leave_nothing_unused_that_is_wanted(
    total: int, rows: list[tuple[int, int, int | None]]
) -> None:
    claims = [_claim(f"q{i}", w, r, most=m) for i, (w, r, m) in enumerate(rows)]
    found = {name: row.get(NPU, 0.0) for name, row in divide({NPU: total}, claims).items()}
    wishes = {c.name: min(c.request[NPU], c.capability.get(NPU, 1 << 30)) for c in claims}
    assert sum(found.values()) <= total + 1e-6
    assert all(found[name] <= wishes[name] + 1e-6 for name in wishes)
    if claims:
        assert sum(found.values()) == pytest.approx(min(total, sum(wishes.values())), abs=1e-3)
    hungry = [c for c in claims if found[c.name] < wishes[c.name] - 1e-3]
    for one in hungry:
        for other in claims:
            # no queue gets more per weight than one that asks for more
            assert found[other.name] / other.weight <= found[one.name] / one.weight + 1e-3


def test_share_is_the_largest_quotient() -> None:
    assert share({"cpu": 4, NPU: 8}, {"cpu": 16.0, NPU: 16.0}) == 0.5
    assert share({NPU: 1}, {}) == 1.0 and share({}, {}) == 0.0
    assert exceeds({NPU: 9}, {NPU: 8.0}, [NPU]) and not exceeds({NPU: 8}, {NPU: 8.0}, [NPU])
    assert within({NPU: 4}, {NPU: 4}, {NPU: 8.0}) and not within({NPU: 5}, {NPU: 4}, {NPU: 8.0})
