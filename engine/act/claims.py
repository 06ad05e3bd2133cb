"""The shard's ledger: chips are claimed for pods by compare-and-swap before any of them is bound.

A claim counts as occupied until the binding is seen, so two passes can never hand one chip to two pods, however late
the second one's snapshot is. The claim of a pod that has gone ends at once when its binding was answered. Where one may
still be under way, the chips stay claimed for ``SETTLE_SECONDS`` more: before 1.23 (measured on 1.20) a late Binding
binds the pod of its name which exists by then, whatever its UID.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

import msgspec

from belay.engine.act.edge import written
from belay.engine.kube import CONFIGMAP, Conflict, Kube
from belay.engine.model.actions import BindPod
from belay.engine.model.chip_masks import mask_of
from belay.engine.model.cluster import Pod
from belay.engine.model.labels import SHARE_CORES
from belay.engine.store import ObjectWrite
from belay.engine.wire import ledger
from belay.engine.wire.errors import WireError
from belay.engine.wire.ledger import Claim
from belay.engine.wire.names import LEDGER_PREFIX, SYSTEM
from belay.engine.wire.orders import chip_number

_TRIES = 8
LIMIT = 960 * 1024
"""Most bytes of claims in a ledger, as a ConfigMap holds 1 MiB. A pass that binds more leaves the rest to the next."""
SETTLE_SECONDS = 25.0
"""How long a binding that nothing is known of may be under way: ``belay.engine.kube.BIND_SECONDS`` until its sender
gives up, as long until the server does (parameter ``timeout``), and time on the way."""
OVERHEAD = 70
"""Bytes of a claim beside its texts: UID, time, quotes and commas."""


class ClaimResult(msgspec.Struct, frozen=True):
    """The result of claiming: uids of pods that must not be bound, with the reason, and the write, if any."""

    refused: dict[str, str]
    write: ObjectWrite | None


class SettlingClaims:
    """Since when this worker has known of each claim of which a binding may be under way (s, on its monotonic clock).

    A clock that jumps must not free chips too early, so no wall clock counts; another worker begins with none.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[str, float] = {}
        self._answered: set[str] = set()
        self._repeated: set[str] = set()

    def answer(self, uids: Iterable[str]) -> None:
        """The bindings of these pods were answered, and the snapshot has seen them: none is under way."""
        self._answered.update(uids)

    def over(self, keys: Iterable[str]) -> set[str]:
        """Those of the claims that have settled. The first look at a claim begins its time."""
        now = self._clock()
        known = self._answered - self._repeated
        return {key for key in keys if key in known or now - self._since.setdefault(key, now) >= SETTLE_SECONDS}

    def keep(self, claims: Mapping[str, Claim]) -> None:
        """Forget all claims but these. One that several bindings were sent for is not answered by one answer."""
        self._since = {key: self._since[key] for key in claims if key in self._since}
        self._answered &= claims.keys()
        self._repeated = {key for key, held in claims.items() if held.again}


def ended(uids: Iterable[str], pods: Iterable[Pod], settling: SettlingClaims) -> set[str]:
    """Those of the ledger's keys whose claim has ended: the binding was seen, or none can be under way any more."""
    found = {pod.uid: pod for pod in pods}
    standing = {uid for uid in uids if (pod := found.get(uid)) is not None and not (pod.node or pod.finished)}
    bound = {uid for uid in uids if (pod := found.get(uid)) is not None and pod.node}
    return bound | settling.over(sorted(set(uids) - standing - bound))


async def claim(
    kube: Kube, shard: str, binds: Sequence[BindPod], pods: Iterable[Pod], now: float, settling: SettlingClaims
) -> ClaimResult:
    """Claim the chips of every binding and drop ended claims. ``pods`` are those of the pass' snapshot.

    An open claim wins over a new one. Raises KubeError when the ledger cannot be written; then no pod may be bound.
    """
    standing = list(pods)
    for attempt in range(_TRIES):
        live = await kube.get(CONFIGMAP, LEDGER_PREFIX + shard, SYSTEM)
        try:
            before = ledger.parse(live) if live else {}
        except WireError as error:
            return ClaimResult({_uid(bind): str(error) for bind in binds}, None)
        settling.keep(before)
        over, now_ms = ended(before, standing, settling), int(now * 1000)
        open_claims = {uid: held for uid, held in before.items() if uid not in over}
        for uid in sorted(uid for uid in over if before[uid].again and ledger.SETTLING not in uid):
            # bound, but by which of several bindings? another may come after the pod has gone
            _settle(open_claims, uid, before[uid], now_ms)
        after, refused = _added(open_claims, binds, now_ms)
        if after == before:
            return ClaimResult(refused, None)
        body = ledger.build(shard, after)
        try:
            if live is None:
                stored = await kube.create(CONFIGMAP, body)
            else:
                body["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"]
                stored = await kube.replace(CONFIGMAP, body)
        except Conflict:
            if attempt == _TRIES - 1:
                raise
            continue
        return ClaimResult(refused, written(stored))
    raise AssertionError("unreachable: the last try returns or raises")


def _added(
    claims: Mapping[str, Claim], binds: Sequence[BindPod], now_ms: int
) -> tuple[dict[str, Claim], dict[str, str]]:
    after = dict(claims)
    refused: dict[str, str] = {}
    holders = _Holders(claims)
    room = LIMIT - sum(map(_size, claims.values()))
    asked = [(bind, wanted) for bind in binds if (wanted := claim_of(bind, now_ms)) is not None]
    fits = _fitting(asked, room)
    for bind, wanted in asked:
        uid = _uid(bind)
        foreign = holders.foreign(uid, wanted)
        if foreign is not None:
            chip, other = foreign
            refused[uid] = f"{chip} is claimed by pod {after[other].pod}"
            continue
        before = after.get(uid)
        if before is not None and msgspec.structs.replace(before, time=wanted.time, again=False) == wanted:
            after[uid] = msgspec.structs.replace(before, again=True)
            continue
        if before is None and uid not in fits:
            refused[uid] = "the ledger is full; it is bound once earlier bindings have been seen"
            continue
        if before is not None:  # the earlier binding may be under way
            _settle(after, uid, before, now_ms)
            wanted = msgspec.structs.replace(wanted, again=True)
        holders.add(uid, wanted)
        after[uid] = wanted
    return after, refused


def _settle(claims: dict[str, Claim], uid: str, held: Claim, now_ms: int) -> None:
    """Enter a claim that a pod has no more, under a key that none has yet."""
    while (key := ledger.settling_key(uid, now_ms)) in claims:
        now_ms += 1
    claims[key] = held


class _Holders:
    """The claims on each node's chips, as masks; the last of several claims on a chip holds it."""

    def __init__(self, claims: Mapping[str, Claim]) -> None:
        self._rows: dict[tuple[str, str], list[tuple[int, str]]] = {}
        for uid, held in claims.items():
            self._rows.setdefault((held.node, held.prefix), []).append((int(held.mask, 16), uid))

    def foreign(self, uid: str, wanted: Claim) -> tuple[str, str] | None:
        """The first wanted chip (``node/device name``) that another pod holds, and its uid; None without one."""
        left, taken = int(wanted.mask, 16), dict[int, str]()
        for mask, other in reversed(self._rows.get((wanted.node, wanted.prefix), ())):
            if other.partition(ledger.SETTLING)[0] != uid and left & mask:
                taken[left & mask & -(left & mask)] = other
            left &= ~mask
        if not taken:
            return None
        lowest = min(taken)
        return f"{wanted.node}/{wanted.prefix}{lowest.bit_length() - 1}", taken[lowest]

    def add(self, uid: str, wanted: Claim) -> None:
        """Enter the pod's claim; one that it had before holds its chips on."""
        self._rows.setdefault((wanted.node, wanted.prefix), []).append((int(wanted.mask, 16), uid))


def _fitting(asked: Sequence[tuple[BindPod, Claim]], room: int) -> set[str]:
    """UIDs of the pods whose claims the ledger can hold: gangs in the plan's order, each whole or not at all; only the
    first may be larger than the ledger, and is then claimed in parts.
    """
    gangs: dict[str, list[tuple[str, int]]] = {}
    for bind, wanted in asked:
        gang = bind.gang or _uid(bind)
        gangs.setdefault(gang, []).append((_uid(bind), _size(wanted)))
    fits: set[str] = set()
    for rows in gangs.values():
        whole = sum(size for _, size in rows)
        if whole > room and (fits or whole <= LIMIT):
            continue
        for uid, size in rows:
            if size <= room:
                room -= size
                fits.add(uid)
    return fits


def _size(held: Claim) -> int:
    """The approximate bytes of a claim in the ledger, with its pod's UID."""
    return len(held.pod) + len(held.node) + len(held.prefix) + len(held.mask) + OVERHEAD


def claim_of(bind: BindPod, now_ms: int) -> Claim | None:
    """The claim on whole chips; None for a pod without chips or with only a part of one (templates, shares, vNPUs)."""
    if not bind.chips or bind.template is not None or SHARE_CORES in bind.annotations:
        return None
    named = _prefix_and_mask(bind.chips)
    return Claim(f"{bind.namespace}/{bind.pod}", bind.node, *named, now_ms) if named else None


@lru_cache(maxsize=4096)
def _prefix_and_mask(chips: tuple[str, ...]) -> tuple[str, str] | None:
    """Prefix and mask of whole chips in a ledger; None for vNPUs, which kubelet's accounting and the agent guard."""
    try:
        numbers = [chip_number(chip) for chip in chips]
    except ValueError:
        return None
    return chips[0].rpartition("-")[0] + "-", f"{mask_of(numbers):x}"


def _uid(bind: BindPod) -> str:
    return bind.preconditions.uid or ""
