"""Devices that share chips by counters, and the rules of Kubernetes' allocator for claims."""

from __future__ import annotations

from collections import Counter as Count
from collections.abc import Iterable
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.plan_cache import PlanCache
from belay.engine.plan.claims import alternatives, matching
from belay.engine.plan.claims import devices as offered
from belay.engine.plan.claims.alternatives import NodeOffer, first_available
from belay.engine.plan.claims.bounds import Ask
from belay.engine.plan.claims.cel import parse
from belay.engine.plan.claims.devices import ClaimDevice, Counter
from belay.engine.plan.claims.matching import Given, match
from belay.engine.plan.claims.requests import ALL, MAX_DEVICES, Constraint, Request
from tests import listing
from tests.listing import Item
from tests.test_dra_placement import OWN, asking, claim, gang, given, patches, world

PART = f'{OWN}.type == "vnpu"'
WHOLE = f'{OWN}.type == "npu"'


def chip(number: int, **sizes: int) -> Item:
    """A counter set."""
    return {"name": f"chip-{number}", "counters": {name: {"value": str(value)} for name, value in sizes.items()}}


def device(name: str, number: int, kind: str, **takes: int) -> Item:
    counters = {key: {"value": str(value)} for key, value in takes.items()}
    return {
        "name": name,
        "attributes": {"physicId": {"int": number}, "type": {"string": kind}},
        "consumesCounters": [{"counterSet": f"chip-{number}", "counters": counters}],
    }


def slices(host: str, *chips: int, apart: bool = True, version: str = "v1", cores: int = 8) -> list[Item]:
    """Chips of eight cores, whole, in halves and quarters; counters in a slice of their own, or beside the devices."""
    rows = []
    for number in chips:
        rows.append(device(f"ascend910-{number}", number, "npu", cores=8))
        rows += [device(f"ascend910-{number}-vnpu-half-{i}", number, "vnpu", cores=4) for i in range(2)]
        rows += [device(f"ascend910-{number}-vnpu-quarter-{i}", number, "vnpu", cores=2) for i in range(4)]
    if version == "v1beta1":
        rows = [{"name": row.pop("name"), "basic": row} for row in rows]
    counters = {"sharedCounters": [chip(number, cores=cores) for number in chips]}
    specs = [counters, {"devices": rows}] if apart else [counters | {"devices": rows}]
    pool = {"name": host, "generation": 1, "resourceSliceCount": len(specs)}
    return [
        {
            "apiVersion": f"resource.k8s.io/{version}", "kind": "ResourceSlice",
            "metadata": {"name": f"{host}-npu.huawei.com-{i}"},
            "spec": {"driver": "npu.huawei.com", "nodeName": host, "pool": pool} | spec,
        } for i, spec in enumerate(specs)
    ]  # fmt: skip


def cluster(*items: Item, **kind: Any) -> list[Item]:
    base = [item for item in world("n1") if item["kind"] != "ResourceSlice"]
    return [*base, *slices("n1", 0, 1, **kind), *items]


def part(count: int = 1, size: str = "half", **more: Any) -> Item:
    return asking(count, PART, f'{OWN}.physicId >= 0 && device.driver == "npu.huawei.com"', **more) | {"name": size}


def test_parts_of_a_chip_are_given_until_its_counters_are_used(tmp_path: Path) -> None:
    """Halves first, as they come first by name; a fifth half does not fit into two chips of two."""
    claims = [claim(f"c{i}", part()) for i in range(5)]
    found = listing.plan([*cluster(*claims), *gang(*([f"c{i}"] for i in range(4)), policy="")], tmp_path)
    assert sorted(name for names in given(found).values() for name in names) == [
        f"n1/ascend910-{number}-vnpu-half-{i}" for number in (0, 1) for i in range(2)
    ]
    more = listing.plan([*cluster(*claims), *gang(*([f"c{i}"] for i in range(5)), policy="")], tmp_path)
    assert not patches(more), "all or nothing"
    assert more.pending["nodes"] == {"ResourceClaimDevicesShort": 1}


@pytest.mark.parametrize("kind", [{"apart": False}, {"version": "v1beta1"}, {"version": "v1beta2", "apart": False}])
def test_counters_are_read_wherever_a_version_of_the_api_keeps_them(kind: Any, tmp_path: Path) -> None:
    wanted = claim("c", part(2))
    found = listing.plan([*cluster(wanted, **kind), *gang(["c"], policy="")], tmp_path)
    assert given(found)["c"] == ["n1/ascend910-0-vnpu-half-0", "n1/ascend910-0-vnpu-half-1"]


@pytest.mark.parametrize(
    ("kind", "why"),
    [({"cores": 0}, "nothing left"), ({"cores": 3}, "less than a half")],
)
def test_nothing_is_given_beyond_what_is_counted(kind: Any, why: str, tmp_path: Path) -> None:
    wanted = claim("c", asking(1, WHOLE))
    found = listing.plan([*cluster(wanted, **kind), *gang(["c"], policy="chip8-node8")], tmp_path)
    assert not patches(found), why


@pytest.mark.parametrize("odd", ["unknown", "twice", "again", "unreadable"])
def test_a_pool_whose_counters_do_not_hold_together_offers_nothing(odd: str, tmp_path: Path) -> None:
    items = cluster(claim("c", part()))
    shared, devices = (item["spec"] for item in items if item["kind"] == "ResourceSlice")
    if odd == "unknown":
        devices["devices"][0]["consumesCounters"][0]["counterSet"] = "chip-9"
    elif odd == "twice":
        devices["devices"].append(devices["devices"][0])
    elif odd == "again":
        shared["sharedCounters"].append(shared["sharedCounters"][0])
    else:
        for row in devices["devices"]:
            row["consumesCounters"][0]["counters"]["cores"] = {"value": "much"}
    found = listing.plan([*items, *gang(["c"], policy="")], tmp_path)
    assert not patches(found) and not found.bound


def held(name: str, *devices: str, user: str = "other") -> Item:
    """A claim that has devices of n1."""
    body = claim(name, part(len(devices)))
    rows = [{"request": "half", "driver": "npu.huawei.com", "pool": "n1", "device": one} for one in devices]
    body["status"] = {
        "allocation": {"devices": {"results": rows}},
        "reservedFor": [{"resource": "pods", "name": user, "uid": f"u-train-{user}"}],
    }
    return body


def test_a_chip_is_whole_or_cut_for_claims_and_pods_alike(tmp_path: Path) -> None:
    taken = held("h", "ascend910-0-vnpu-half-0")
    rest = listing.plan([*cluster(taken, claim("c", part(3))), *gang(["c"], policy="")], tmp_path)
    assert given(rest)["c"][0] == "n1/ascend910-0-vnpu-half-1", "the rest of the cut chip first"
    whole = listing.plan([*cluster(taken, claim("c", asking(2, WHOLE))), *gang(["c"])], tmp_path)
    assert not patches(whole), "one whole chip is left"
    plain = listing.plan([*cluster(taken), *listing.job("j", 1, 8, policy="chip8-node8")], tmp_path)
    assert not plain.bound, "a pod that asks by resource gets no cut chip"
    busy = listing.pod("busy", on="n1", chips=[0])
    beside = listing.plan([*cluster(busy, claim("c", part(2))), *gang(["c"], policy="")], tmp_path)
    assert given(beside)["c"] == ["n1/ascend910-1-vnpu-half-0", "n1/ascend910-1-vnpu-half-1"]
    full = listing.plan([*cluster(busy, claim("c", part(3))), *gang(["c"], policy="")], tmp_path)
    assert not [name for name in given(full).get("c", []) if name.startswith("n1/ascend910-0")]


def test_chips_that_are_cut_in_a_pass_are_not_given_whole_in_it(tmp_path: Path) -> None:
    found = listing.plan([*cluster(claim("c", part())), *gang(["c"], policy=""), listing.pod("big", count=8)], tmp_path)
    assert bool(patches(found)) != bool(found.bound), "either the claim or the pod that needs all chips"


def test_all_devices_means_all_or_none(tmp_path: Path) -> None:
    hosts = world("n1")
    every = asking(1, name="npus")
    every["exactly"] |= {"allocationMode": "All"}
    del every["exactly"]["count"]
    fine = listing.plan([*hosts, claim("c", every), *gang(["c"])], tmp_path)
    assert len(given(fine)["c"]) == 8
    taint = {"key": "npu.huawei.com/unhealthy", "value": "true", "effect": "NoSchedule"}
    rows = next(item for item in hosts if item["kind"] == "ResourceSlice")["spec"]["devices"]
    rows[7]["taints"] = [taint]
    short = listing.plan([*hosts, claim("c", every), *gang(["c"], policy="")], tmp_path)
    assert not patches(short), "the faulty one is among all"
    every["exactly"]["tolerations"] = [{"key": taint["key"], "operator": "Exists"}]
    bold = listing.plan([*hosts, claim("c", every), *gang(["c"], policy="")], tmp_path)
    assert len(given(bold)["c"]) == 8


@pytest.mark.parametrize(
    ("selector", "version", "left"),
    [
        (None, "v1beta2", 0),
        ({}, "v1", 0),
        ({"driver": "npu.huawei.com", "pool": "n1", "device": "ascend910-0"}, "v1alpha3", 7),
        ({"device": "ascend910-0"}, "v1beta2", 7),
        ({"pool": "n2"}, "v1beta2", 8),
        ({"driver": "gpu.example.com"}, "v1beta2", 8),
        ({"selectors": [{"cel": {"expression": f"{OWN}.ring == 0"}}]}, "v1alpha3", 4),
        ({"selectors": [{"cel": {"expression": f"{OWN}.none == 0"}}]}, "v1alpha3", 8),
        ({"selectors": [{"cel": {"expression": "device."}}]}, "v1alpha3", 0),
        ({"device": "ascend910-0"}, "v1alpha9", 8),
    ],
)
@pytest.mark.parametrize("effect", ["NoSchedule", "None"])
def test_a_taint_rule_keeps_claims_off(selector: Any, version: str, left: int, effect: str, tmp_path: Path) -> None:
    rule = {
        "apiVersion": f"resource.k8s.io/{version}", "kind": "DeviceTaintRule", "metadata": {"name": "out"},
        "spec": {"deviceSelector": selector, "taint": {"key": "example.com/out", "effect": effect}},
    }  # fmt: skip
    most = left if effect == "NoSchedule" else 8
    for count in (1, 4, 8):
        items = [*world("n1"), rule, claim("c", asking(count)), *gang(["c"], policy="")]
        assert bool(patches(listing.plan(items, tmp_path))) is (count <= most), count


def test_alternatives_are_chosen_for_all_requests_together(tmp_path: Path) -> None:
    """Each request has its first choice alone; together they need nine chips, so the second one steps back."""

    def either(name: str, *counts: int) -> Item:
        forms = [
            {"name": f"of-{n}", "deviceClassName": "npu.huawei.com", "count": n} for n in counts
        ]  # fmt: skip
        return {"name": name, "firstAvailable": forms}

    wanted = claim("c", either("a", 4), either("b", 5, 4))
    found = listing.plan([*world("n1"), wanted, *gang(["c"])], tmp_path)
    results = patches(found)["c"]["patch"]["status"]["allocation"]["devices"]["results"]
    assert sorted({one["request"] for one in results}) == ["a/of-4", "b/of-4"] and len(results) == 8


def test_a_watcher_gets_each_device_once_in_a_claim(tmp_path: Path) -> None:
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {
        "name": "train", "labels": {"resource.kubernetes.io/admin-access": "true"}}}  # fmt: skip
    both = claim("c", asking(4, name="x", adminAccess=True), asking(4, name="y", adminAccess=True))
    found = listing.plan([*world("n1"), space, both, *gang(["c"], policy="")], tmp_path)
    names = given(found)["c"]
    assert len(names) == 8 == len(set(names))


# The rules of k8s.io/dynamic-resource-allocation/structured, written once more and tried on every small choice.

Shape = tuple[list[ClaimDevice], list[Ask], frozenset[str], dict[Counter, Fraction]]


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    devices = []
    for i in range(draw(st.integers(1, 5))):
        number, kind = draw(st.integers(0, 1)), draw(st.sampled_from(["npu", "vnpu"]))
        uses = draw(
            st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 3)), max_size=2, unique_by=lambda u: u[0])
        )
        values: dict[str, Any] = {"d/ring": draw(st.sampled_from([0, 1, True, "x"]))} if draw(st.booleans()) else {}
        devices.append(
            ClaimDevice(
                name=f"d{i}", pool="p", chip=number if not uses else None, part=kind == "vnpu", values=values,
                seen={"n": i, "kind": kind}, taints=(),
                consumes=tuple((Counter("p", "s", name), Fraction(amount)) for name, amount in uses),
            )
        )  # fmt: skip
    asks = []
    rules = draw(st.lists(st.builds(
        Constraint, st.just("d/ring"), st.sampled_from([frozenset[str](), frozenset({"r0"})]), st.booleans()
    ), max_size=1))  # fmt: skip
    for i in range(draw(st.integers(1, 3))):
        text = draw(st.sampled_from(["true", "device.n >= 1", 'device.kind == "vnpu"']))
        asks.append(
            Ask(
                draw(st.integers(0, 1)),
                Request(f"r{i}", draw(st.sampled_from([1, 2, ALL])), draw(st.integers(0, 4)) == 0, (parse(text),), ()),
                tuple(rules),
            )
        )
    taken = draw(st.frozensets(st.sampled_from([one.name for one in devices]), max_size=2))
    left = {Counter("p", "s", name): Fraction(draw(st.integers(0, 6))) for name in ("a", "b")}
    return devices, asks, taken, left


def legal(shape: Shape, chosen: Iterable[Given]) -> bool:
    """Whether an allocation keeps the rules."""
    devices, asks, taken, left = shape
    rows = list(chosen)
    own = [one for one in rows if not one.ask.request.admin]
    if len({one.device.name for one in own}) < len(own) or any(one.device.name in taken for one in own):
        return False
    for ask in asks:
        mine = [one.device for one in rows if one.ask is ask]
        fitting = [one for one in devices if ask.request.selects(one)]
        if len(mine) != (len(fitting) if ask.request.count == ALL else ask.request.count) or not mine:
            return False
        if len({one.name for one in mine}) < len(mine) or any(one not in fitting for one in mine):
            return False
    for ask in (ask for ask in asks if ask.request.admin):
        for one in (one for one in rows if one.ask is ask):
            others = [other for other in rows if other is not one and other.ask.claim == ask.claim]
            if any(other.device.name == one.device.name for other in others):
                return False
    for counter, amount in left.items():
        if sum((more for one in own for name, more in one.device.consumes if name == counter), Fraction(0)) > amount:
            return False
    for one, other in product(own, own):
        same = one is not other and one.device.chip is not None and one.device.chip == other.device.chip
        if same and not (one.device.part and other.device.part):
            return False
    for number in {ask.claim for ask in asks}:
        for rule in next(ask.constraints for ask in asks if ask.claim == number):
            bound = [one.device for one in rows if one.ask.claim == number and rule.concerns(one.ask.request)]
            values = [(type(v := one.values.get(rule.attribute)), v) for one in bound]
            if any(value is None for _, value in values):
                return False
            if len(set(values)) != (len(values) if rule.distinct else min(1, len(values))):
                return False
    return all(number <= MAX_DEVICES for number in Count(one.ask.claim for one in rows).values())


def exists(shape: Shape) -> bool | None:
    """Whether any allocation keeps the rules, by trying all; None where these are too many."""
    devices, asks, _, _ = shape
    slots = []
    for ask in asks:
        every = sum(ask.request.selects(one) for one in devices)
        slots += [ask] * (every if ask.request.count == ALL else ask.request.count)
    if len(slots) > 5:
        return None
    return any(
        legal(shape, [Given(ask, one) for ask, one in zip(slots, choice, strict=True)])
        for choice in product(devices, repeat=len(slots))
    )


@settings(max_examples=150, deadline=None)
@drawn(shapes())
def test_an_allocation_is_found_where_the_rules_allow_one_and_keeps_them(shape: Shape) -> None:
    devices, asks, taken, left = shape
    names = {ask.request: frozenset(one.name for one in devices if ask.request.takes(one)) for ask in asks}
    found = match(asks, devices, names.__getitem__, taken, None, left)
    if found is None:
        assert not exists(shape)
    else:
        assert legal(shape, found)


def test_a_claim_has_at_most_32_devices() -> None:
    devices = [ClaimDevice(f"d{i}", "p", None, False, {}, {}, ()) for i in range(40)]
    asks = [Ask(0, Request(f"r{i}", 20, False, (), ()), ()) for i in range(2)]
    everything = frozenset(one.name for one in devices)
    assert match(asks, devices, lambda _: everything, ()) is None
    apart = [ask._replace(claim=i) for i, ask in enumerate(asks)]
    found = match(apart, devices, lambda _: everything, ())
    assert found is not None and len(found) == 40


@settings(max_examples=150, deadline=None)
@drawn(shapes())
def test_bounds_change_no_assignment(shape: Shape) -> None:
    devices, asks, taken, left = shape
    names = {ask.request: frozenset(one.name for one in devices if ask.request.takes(one)) for ask in asks}
    found = match(asks, devices, names.__getitem__, taken, None, left)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matching, "narrowed", lambda wanted, _: wanted)
        assert match(asks, devices, names.__getitem__, taken, None, left) == found


def chips(number: int = 16, **more: Any) -> list[ClaimDevice]:
    return [
        ClaimDevice(f"d{i:02}", "p", i, False, {"d/ring": i // 4, "d/slot": i % 4}, {}, (), **more)
        for i in range(number)
    ]


def halves() -> list[ClaimDevice]:
    """Four parts of each of four chips, of which counters allow two."""
    return [
        ClaimDevice(f"d{i:02}", "p", i // 4, True, {}, {}, (), ((Counter("p", str(i // 4), "cores"), Fraction(4)),))
        for i in range(16)
    ]


def asks_for(*counts: int, rules: tuple[Constraint, ...] = ()) -> list[Ask]:
    return [Ask(0, Request(f"r{i}", count, False, (), ()), rules) for i, count in enumerate(counts)]


ANY = frozenset[str]()
SAME, APART = Constraint("d/ring", ANY, False), Constraint("d/ring", ANY, True)


@pytest.mark.parametrize(
    ("asks", "devices", "fits"),
    [
        pytest.param(asks_for(16), chips(15), False, id="one-chip-busy"),
        pytest.param(asks_for(16), chips(16), True, id="whole-node"),
        pytest.param(asks_for(8, 8), chips(15), False, id="together"),
        pytest.param(asks_for(5, rules=(SAME,)), chips(16), False, id="no-value-has-five"),
        pytest.param(asks_for(2, 3, rules=(SAME,)), chips(16), False, id="no-value-has-five-together"),
        pytest.param(asks_for(4, rules=(SAME,)), chips(16)[1:], True, id="the-second-value-has-four"),
        pytest.param(asks_for(5, rules=(APART,)), chips(16), False, id="four-values"),
        pytest.param(asks_for(2, rules=(SAME, Constraint("d/slot", ANY, False))), chips(16), False, id="two-values"),
        pytest.param(asks_for(9), halves(), False, id="counters"),
    ],
)
def test_an_impossible_wish_is_refused_without_a_search(
    asks: list[Ask], devices: list[ClaimDevice], fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = []
    clashes = matching._Search._clashes
    monkeypatch.setattr(matching._Search, "_clashes", lambda *args: steps.append(1) or clashes(*args))
    everything = frozenset(one.name for one in devices)
    left = {Counter("p", str(i), "cores"): Fraction(8) for i in range(4)}
    assert (match(asks, devices, lambda _: everything, (), None, left) is not None) is fits
    assert len(steps) == (sum(ask.request.count for ask in asks) if fits else 0)


def test_equal_nodes_and_equal_combinations_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    real = alternatives.match
    monkeypatch.setattr(alternatives, "match", lambda *args: tried.append(1) or real(*args))

    def offer(host: int, taken: frozenset[str]) -> NodeOffer:
        return NodeOffer(f"n{host}", chips(), taken, {})

    everything = frozenset(one.name for one in chips())
    forms = [Request(f"r/of-{n}", n, False, (), (), (), "any") for n in (10, 9)]
    # two requests of ten or nine chips of one ring: four combinations of three kinds, all too many
    wishes = [[Ask(0, one, (SAME,)), Ask(0, other, (SAME,))] for one, other in product(forms, forms)]
    busy, free = frozenset({"d00"}), ANY
    nodes = [offer(i, free if i % 2 else busy) for i in range(500)]
    assert first_available(wishes, nodes, lambda *_: everything) == 0
    assert len(tried) == 6, "three combinations on two kinds of nodes"
    tried.clear()
    whole = [[Ask(0, Request("r/a", 16, False, (), (), (), "any"), ())], [Ask(0, forms[0], ())]]
    assert first_available(whole, [offer(i, busy) for i in range(500)], lambda *_: everything) == 1
    assert len(tried) == 1, "sixteen of fifteen are refused by their number"
    assert first_available(list(reversed(whole)), nodes, lambda *_: everything) == 0
    assert first_available(whole, nodes, lambda *_: everything) == 0, "every other node is free"


def test_taint_rules_are_read_once_while_they_and_the_devices_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed, computed = [], []
    parse_text, evaluate = offered.parse, offered.holds
    monkeypatch.setattr(offered, "parse", lambda text: parsed.append(text) or parse_text(text))
    monkeypatch.setattr(offered, "holds", lambda *args: computed.append(1) or evaluate(*args))
    objects = {
        ObjectKey(one["apiVersion"], one["kind"], "", one["metadata"]["name"]): one
        for host in ("n1", "n2")
        for one in slices(host, 0, 1)
    }
    key = ObjectKey("resource.k8s.io/v1beta2", "DeviceTaintRule", "", "out")

    def rule(kind: str) -> Item:
        selector = {"selectors": [{"cel": {"expression": f'{OWN}.type == "{kind}"'}}]}
        return {"spec": {"deviceSelector": selector, "taint": {"key": "example.com/out", "effect": "NoSchedule"}}}

    def tainted(kind: str) -> int:
        found = offered.devices({**objects, key: rule(kind)}, cache)
        return sum(bool(one.taints) for some in found.devices.values() for one in some)

    cache = PlanCache()
    assert tainted("npu") == 4
    assert len(parsed) == 1 and len(computed) == 28, "one rule; each of 28 devices"
    assert tainted("npu") == 4
    assert len(parsed) == 2 and len(computed) == 28, "nothing has changed"
    assert tainted("vnpu") == 24
    assert len(parsed) == 3 and len(computed) == 56
