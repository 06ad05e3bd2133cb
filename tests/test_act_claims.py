"""Concurrent claims, written between a read and a write, and the order of actions in a batch."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from belay.engine.act import TABLE, Batch, Edge, Fence, Superseded, claim, claims, run
from belay.engine.kube import CONFIGMAP, Kube, Object
from belay.engine.kube.lease import shard_lease
from belay.engine.model import actions as act
from belay.engine.model.actions import AnyAction, Owner
from belay.engine.store import PassRecord
from belay.engine.wire import ledger, names
from tests import worlds
from tests.loop_world import Cluster

WHY: dict[str, Any] = {"reason": "Test", "message": "a test"}
NOW = 1_800_000_000.0
LEDGER = names.LEDGER_PREFIX + "main"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.close()


def _bind(name: str, chip: int) -> act.BindPod:
    return act.BindPod(
        **WHY, namespace="default", pod=name, node="node-1", chips=(f"Ascend910-{chip}",), annotations={},
        preconditions=act.Preconditions(uid=f"u{name}"),
    )  # fmt: skip


def _evict(name: str) -> act.EvictPod:
    return act.EvictPod(
        **WHY, namespace="default", pod=name, grace_period_seconds=0, force=False, owner=Owner("Pod", name),
        budget_unit=name,
    )  # fmt: skip


@pytest.mark.parametrize("before", [(), ("c",)], ids=["the first ledger", "one that is there"])
def test_a_claim_between_a_read_and_a_write_is_not_lost(cluster: Cluster, before: tuple[str, ...]) -> None:
    """The chip both want is one's; the chip that only one of them wants stays claimed as well."""
    pods = [worlds.pod(name, uid=f"u{name}") for name in "abc"]

    async def both() -> tuple[dict[str, str], dict[str, str], dict[str, ledger.Claim]]:
        async with Kube.from_config(cluster.kubeconfig) as mine, Kube.from_config(cluster.kubeconfig) as rivals:
            await mine.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": names.SYSTEM}})
            await claim(mine, "main", [_bind(name, 7) for name in before], pods, NOW, claims.SettlingClaims())
            read, rival = mine.get, {}

            async def late(*arguments: Any) -> Any:
                found = await read(*arguments)
                if arguments[1] == LEDGER and not rival:
                    rival.update(
                        (await claim(rivals, "main", [_bind("a", 0)], pods, NOW, claims.SettlingClaims())).refused,
                        done="yes",
                    )
                return found

            mine.get = late  # type: ignore[method-assign]
            refused = (
                await claim(mine, "main", [_bind("b", 0), _bind("c", 7)], pods, NOW, claims.SettlingClaims())
            ).refused
            live = await read(CONFIGMAP, LEDGER, names.SYSTEM)
            assert live is not None
            return refused, rival, ledger.parse(live)

    refused, rival, held = asyncio.run(both())
    assert set(refused) == {"ub"} and rival == {"done": "yes"}
    assert {uid: one.chips() for uid, one in held.items()} == {
        "ua": ("node-1/Ascend910-0",), "uc": ("node-1/Ascend910-7",),
    }  # fmt: skip


def test_neighbours_of_a_kind_run_together_and_kinds_one_after_the_other(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evictions are carried out before the bindings that replace them."""
    told: list[str] = []
    here = 0

    async def evict(_edge: Edge, action: act.EvictPod) -> bool:
        nonlocal here
        here += 1
        while here < 2:  # both are on their way, or this never ends
            await asyncio.sleep(0)
        for _ in range(200):  # long enough for anything that does not wait for it
            await asyncio.sleep(0)
        told.append(action.pod)
        return True

    async def bind(_edge: Edge, action: act.BindPod) -> bool:
        told.append(action.pod)
        return True

    monkeypatch.setitem(TABLE, act.EvictPod, evict)
    monkeypatch.setitem(TABLE, act.BindPod, bind)
    row: list[AnyAction] = [_evict("x"), _evict("y")]
    actions = [_bind("first", 0), *row, _bind("last", 1)]

    async def carried() -> list[str]:
        async with Kube.from_config(cluster.kubeconfig) as kube:
            lease = shard_lease(kube, "main", "me")
            epoch = await lease.acquire()
            assert epoch is not None
            edge = Edge(kube, "main", Fence(kube, "main", epoch), now=lambda: NOW)
            result = await run(
                edge, Batch(PassRecord("p", "main", epoch, "d", 1, 0.0, 30.0), 1, list(enumerate(actions)))
            )
            return [outcome.result for outcome in result.outcomes]

    assert asyncio.run(asyncio.wait_for(carried(), 60)) == ["done"] * 4
    assert told[0] == "first" and sorted(told[1:3]) == ["x", "y"] and told[3] == "last"


class _Leases:
    """Answers with one Lease, slowly: every read takes so many seconds of the clock."""

    def __init__(self, epoch: int | None, seconds: float = 0.0) -> None:
        self.now, self.reads, self._epoch, self._seconds = 0.0, 0, epoch, seconds

    async def get(self, *_name: str) -> Object | None:
        self.reads += 1
        self.now += self._seconds
        if self._epoch is None:
            return None
        return {"metadata": {"name": "belay-shard-main"}, "spec": {"leaseTransitions": self._epoch}}


@pytest.mark.parametrize("newest", [None, 2, 4])
def test_any_epoch_but_our_own_is_not_ours(newest: int | None) -> None:
    """Also none, and an older one: a user deleted the Lease or restored an old one."""
    fence = Fence(_Leases(newest), "main", 3)  # type: ignore[arg-type]
    with pytest.raises(Superseded):
        asyncio.run(fence.check())


def test_a_read_of_the_lease_counts_from_its_start() -> None:
    """What a slow API server answers was true when it was asked, at the latest."""
    leases = _Leases(3, seconds=0.8)
    fence = Fence(leases, "main", 3, clock=lambda: leases.now, seconds=1.0)  # type: ignore[arg-type]
    asyncio.run(fence.check())
    asyncio.run(fence.check())
    assert leases.reads == 1, "0.8 s ago"
    leases.now += 0.3
    asyncio.run(fence.check())
    assert leases.reads == 2, "1.1 s ago"


def test_a_ledger_with_overlapping_claims_frees_no_held_chip() -> None:
    """A chip stays claimed when one of two claims on it ends; of several claims the last one counts."""

    def bind(name: str, *chips: int, node: str = "node-1") -> act.BindPod:
        return msgspec.structs.replace(_bind(name, 0), node=node, chips=tuple(f"Ascend910-{chip}" for chip in chips))

    held = {
        "ufirst": ledger.Claim("default/first", "node-1", "Ascend910-", "3", 1),
        "ulast": ledger.Claim("default/last", "node-1", "Ascend910-", "6", 1),
    }
    moved = bind("first", 5, node="node-2")
    after, refused = claims._added(held, [moved, bind("third", 1, 2), bind("last", 1, 2)], 2)
    assert refused == {"uthird": "node-1/Ascend910-1 is claimed by pod default/last"}
    assert after == {
        "ufirst": ledger.Claim("default/first", "node-2", "Ascend910-", "20", 2, again=True),
        "ufirst~2": held["ufirst"],
        "ulast": ledger.Claim("default/last", "node-1", "Ascend910-", "6", 1, again=True),
    }
    for chips, whose in (((0, 1), "0 is claimed by pod default/first"), ((1, 2), "1 is claimed by pod default/last")):
        assert claims._added(held, [bind("other", *chips)], 2)[1] == {"uother": f"node-1/Ascend910-{whose}"}
    assert claims._added(after, [bind("other", 0, 3)], 2)[1] == {
        "uother": "node-1/Ascend910-0 is claimed by pod default/first"
    }
    assert claims._added(after, [bind("other", 3, 4)], 2)[1] == {}
