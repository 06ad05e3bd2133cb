"""Allocation of devices: which ids are healthy, which chips a container gets, and which requests are refused.

Rules: component/ascend-device-plugin/pkg/server/plugin.go (Allocate, GetPreferredAllocation is Belay's own). Belay
adds: an answer is on disk before kubelet receives it, a pod whose answer was lost is served again, and a chip that
another live pod holds, or that is withheld from new work, is refused.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from belay.agents.common.client import ApiError
from belay.agents.common.clock import Clock
from belay.agents.common.log import Log
from belay.agents.kubelet import choice, holders, mapping, names
from belay.agents.kubelet.choice import Demand, Wanted
from belay.agents.kubelet.cutting import Cutter, Refused
from belay.agents.kubelet.device_holdings import DeviceHoldings, Holding, HoldingsError
from belay.agents.kubelet.inventory import Offer, cores_of
from belay.agents.kubelet.ledger import Grant, Ledger
from belay.agents.kubelet.podcache import PodCache
from belay.agents.kubelet.pods import MAX_TIME, UNKNOWN_POD, PodFacts
from belay.agents.kubelet.settings import PluginSettings
from belay.agents.node.state import NodeState
from belay.engine.model.labels import ASCEND_REAL
from belay.engine.wire.podannotations import physical_names

#: Seconds of each wait of GetPreferredAllocation for a pod that fits.
PREFER_WAIT: Final = 0.2
_log = Log("kubelet")


class Allocator:
    """Allocate devices and keep the grants. All methods belong to one event loop; calls are answered one at a time."""

    def __init__(
        self, state: NodeState, settings: PluginSettings, ledger: Ledger, books: DeviceHoldings, pods: PodCache,
        clock: Clock, cutter: Cutter,
    ) -> None:  # fmt: skip
        self._state, self._settings, self._ledger, self._books = state, settings, ledger, books
        self._pods, self._clock, self._cutter = pods, clock, cutter
        self._lock = asyncio.Lock()
        self._started_ms = clock.now_ms()
        self._asked = self._applied = 0
        self.offers: dict[str, Offer] = {}
        self.problem = ""

    # ---- chips and ids

    @property
    def grants(self) -> list[Grant]:
        """All answers whose devices a pod holds or may hold."""
        return self._ledger.grants

    def chip_of(self, name: str) -> int:
        """Return the physical id of a device name of an annotation. Raises ValueError."""
        chips = self._state.chips
        offered = physical_names({self._state.name(c.id): {"DeviceID": c.logic_id} for c in chips})
        return names.parse(offered.get(name, name), shared=False).chip

    def _annotated(self, name: str) -> int:
        """Like chip_of, also for a share, whose name has the chip in the middle."""
        device = name.rsplit("-", 1)[0] if name.count("-") == 2 and self._settings.share > 1 else name
        return self.chip_of(device)

    def real_name(self, chip: int) -> str:
        """The name of a whole chip in annotations: Ascend950 servers offer logic ids."""
        logic = next((c.logic_id for c in self._state.chips if c.id == chip), chip)
        return f"{self._state.machine.prefix}{logic if self._state.machine.generation.logical_names else chip}"

    def stands_for(self, offer: Offer) -> dict[str, int | None]:
        """Return id → the chip that it represents now."""
        ids, taken = holders.held(self.grants, offer)
        return mapping.stands_for(offer.own, offer.parts, ids, taken)

    def health(self, offer: Offer) -> dict[str, bool]:
        """Return id → whether it is healthy: held ids always are, a free id is if the chip that it represents is.

        A fault on a chip in use does not reduce the free ids; the chip is withdrawn once its holder has gone. So
        kubelet's allocatable minus its allocated ids always equals the free healthy chips, in number too: schedulers
        compare that number with the device report.
        """
        ids, taken = holders.held(self.grants, offer)
        stands = mapping.stands_for(offer.own, offer.parts, ids, taken)
        free = {chip: self._offered(chip) for chip in offer.parts}
        return {name: name in ids or (chip is not None and free.get(chip, False)) for name, chip in stands.items()}

    def _offered(self, chip: int) -> bool:
        return self._state.healthy(chip) and self._state.withheld(chip) is None

    def live_uids(self) -> set[str] | None:
        """UIDs of pods that are not finished; None while pods are not known."""
        known = self._pods.known
        return None if known is None else {pod.uid for pod in known.values() if pod.live}

    def is_live(self, namespace: str, name: str) -> bool:
        """Whether a pod of that name is not finished."""
        return any(p.live and p.namespace == namespace and p.name == name for p in (self._pods.known or {}).values())

    def chips_of(self, holding: Holding) -> set[int]:
        """Return the chips of a holding: those of the plugin's answer, else those in the names of its ids."""
        asked = set(holding.ids)
        for grant in reversed(self.grants):
            if grant.resource == holding.resource and asked & set(grant.ids):
                return {chip for chip, _ in grant.chips}
        offer = self.offers.get(holding.resource)
        own = offer.own if offer is not None else {}
        if offer is not None and offer.kind == "whole" and (holding.visible or holding.nodes):
            return {int(text) for text in holding.visible} or set(holding.nodes)
        return {own[name] for name in holding.ids if name in own}

    # ---- reconciliation

    async def reconcile(self, *, allocating: bool = False) -> list[Holding] | None:
        """Reconcile the grants with kubelet and the pods; with ``allocating``, kubelet must have recorded all older
        grants. Returns kubelet's holdings, None when they cannot be read."""
        pods = self._pods.known
        uids = {pod.key: pod.uid for pod in (pods or {}).values() if pod.live}
        holdings: list[Holding] | None = None
        self._asked += 1
        turn = self._asked
        try:
            holdings = await self._books.all(uids)
            self.problem = ""
        except HoldingsError as error:
            self.problem = f"kubelet's books: {error}"[:160]
        if turn < self._applied:
            # a later call was answered first: its result is newer
            return holdings
        self._applied = turn
        pods = self._pods.known
        now = self._clock.now_ms()
        limit = int(self._settings.confirm * 1000)

        def expired(grant: Grant) -> bool:
            return allocating or grant.at_ms < self._started_ms or now - grant.at_ms > limit

        found = holders.reconcile_grants(self.grants, holdings, pods, expired)
        adopted: list[Grant] = []
        for stranger in found.strangers:
            pod = (pods or {}).get(stranger.uid)
            offer = self.offers.get(stranger.resource)
            if pod is None or offer is None or not pod.live:
                continue
            number = self._ledger.next() + len(adopted)
            grant = holders.adopt(
                stranger,
                pod,
                offer,
                number,
                volcano=self._settings.volcano,
                chip_of=self._annotated,
                vnpu_name=self._vnpu_name,
            )
            if grant is not None:
                adopted.append(grant)
        self._ledger.change([*found.put, *adopted], found.drop)
        return holdings

    def withdraw(self, grant: Grant) -> None:
        """Withdraw an answer that kubelet will not receive; its chips may be given again. Raises OSError."""
        if grant.meant:
            self._ledger.put(grant.as_lost())
        else:
            self._ledger.change((), [grant.number])

    def vdevs(self) -> set[int]:
        """Return the vNPUs that a pod holds or may hold."""
        out = {grant.vdev for grant in self.grants if grant.vdev}
        for pod in (self._pods.known or {}).values():
            if pod.live and pod.served:
                for name in pod.annotations[ASCEND_REAL].split(","):
                    try:
                        out.add(names.parse(name.strip()).vdev or 0)
                    except ValueError:
                        continue
        return out

    async def tidy(self) -> None:
        """Destroy unused vNPUs while no answer is being prepared: a vNPU that is being cut for a container is not
        listed as used yet. Raises DriverError and TimeoutError."""
        async with self._lock:
            await self._cutter.clear(self.vdevs())

    def _vnpu_name(self, vdev: int) -> str:
        return next((self._cutter.name(vnpu) for vnpu in self._state.vnpus if vnpu.id == vdev), "")

    # ---- GetPreferredAllocation

    async def prefer(self, offer: Offer, available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
        """Return the ids that kubelet should take: those of the chips that the pod will get.

        Kubelet may know a pod a moment before this agent does, so the method waits for its pods.
        """
        wanted: Mapping[int, int] = {}
        if self._follows(offer) and len(must) < size < len(offer.own):
            for attempt in range(self._settings.attempts):
                found, _ = self._candidates(self._pods.known or {}, offer, size)
                best = next((w for w in found if not self._blocked(w, offer)), None)
                if found or attempt == self._settings.attempts - 1:
                    break
                await self._pods.news(PREFER_WAIT)
            wanted = dict(best.chips) if best is not None else {}
        return mapping.preferred(available, must, size, offer.own, wanted, self.stands_for(offer))

    # ---- Allocate

    async def allocate(self, resource: str, ids: Sequence[str]) -> Grant:
        """Decide which devices a container gets for these ids; the decision is on disk when this returns.

        Raises Refused; its text is shown in the pod's status.
        """
        async with self._lock:
            offer = self.offers.get(resource)
            if offer is None:
                raise Refused(f"resource {resource} is not offered here")
            self._validate(offer, ids)
            holdings = await self.reconcile(allocating=True)
            if again := self._again(resource, ids, holdings):
                return again
            meant = self._follows(offer) and not self._is_everything(offer, ids)
            return await self._grant(offer, ids, await self._meant(offer, len(ids)) if meant else None)

    def _validate(self, offer: Offer, ids: Sequence[str]) -> None:
        if not ids or len(ids) > names.MAX_IDS:
            raise Refused(f"{len(ids)} ids of {offer.resource}, 1 to {names.MAX_IDS} may be asked for")
        for name in ids:
            if name not in offer.own:
                raise Refused(f"device {name[: names.MAX_NAME]!r} of {offer.resource} is not known here")
        if len(set(ids)) != len(ids):
            raise Refused(f"a device of {offer.resource} is asked for twice")
        if offer.kind in ("share", "static") and len(ids) != 1:
            raise Refused(f"{len(ids)} of {offer.resource} are asked for, a container may have one")

    def _follows(self, offer: Offer) -> bool:
        return self._settings.volcano and offer.kind != "static"

    def _is_everything(self, offer: Offer, ids: Sequence[str]) -> bool:
        return self._settings.preset and not self._settings.soft and len(ids) == len(offer.own)

    def _again(self, resource: str, ids: Sequence[str], holdings: Sequence[Holding] | None) -> Grant | None:
        """Return the grant of an init container for a later container of its pod with the same ids."""
        asked = set(ids)
        for grant in reversed(self.grants):
            if grant.resource != resource or not grant.confirmed or not asked <= set(grant.ids):
                continue
            pod = (self._pods.known or {}).get(grant.uid)
            listed = any(asked <= set(h.ids) and h.name == grant.name for h in holdings or ())
            if pod is None or not pod.live or not listed or not pod.initial.get(resource):
                return None
            return grant if asked == set(grant.ids) else _part(grant, ids)
        return None

    async def _meant(self, offer: Offer, quantity: int) -> Wanted:
        """Return the pod that this request is for; the last attempt reads the pods again."""
        why: list[str] = []
        for attempt in range(self._settings.attempts):
            last = attempt == self._settings.attempts - 1
            pods = await self._live() if last or why else self._pods.known or {}
            found, odd = self._candidates(pods, offer, quantity)
            blocked = [(wanted, self._blocked(wanted, offer)) for wanted in found]
            for wanted, reason in blocked:
                if not reason:
                    return wanted
            if blocked and why:
                break
            why = [f"{wanted.pod.key}: {reason}" for wanted, reason in blocked] or odd
            if not last and not blocked:
                await self._pods.news(self._settings.pause)
        if why:
            raise Refused("; ".join(why)[:400])
        raise Refused(f"NoNPUResource: no pod on this node was given {quantity} of {offer.resource} by the scheduler")

    async def _live(self) -> Mapping[str, PodFacts]:
        try:
            return await self._pods.fresh()
        except ApiError as error:
            _log.warning("pods cannot be read, those known last are taken", error=error)
            return self._pods.known or {}

    def _candidates(self, pods: Mapping[str, PodFacts], offer: Offer, quantity: int) -> tuple[list[Wanted], list[str]]:
        cores = cores_of(self._state.machine) if offer.kind == "core" else 0
        demand = Demand(offer.resource, quantity, cores, offer.kind == "soft")
        times = {g.meant: int(g.predicate) if g.lost else MAX_TIME for g in self.grants if g.meant}
        return choice.candidates(pods.values(), demand, times=times, chip_of=self._annotated)

    def _blocked(self, wanted: Wanted, offer: Offer) -> str:
        """Return why a pod cannot have the chips that the scheduler chose; empty when it can."""
        users = holders.users(self.grants, (self._pods.known or {}).values(), self._annotated)
        for chip, parts in wanted.chips:
            if chip not in offer.parts:
                return f"there is no {self.real_name(chip)} to give"
            if reason := self._state.withheld(chip):
                return f"{self.real_name(chip)} is not given: {reason}"
            others = users.get(chip, [])
            if others and sum(count for _, _, count in others) + parts > offer.parts[chip]:
                return f"{self.real_name(chip)} is held by pod {others[0][1]}"
        return ""

    async def _grant(self, offer: Offer, ids: Sequence[str], wanted: Wanted | None) -> Grant:
        """Grant chips and keep that on the disk. ``wanted``: the pod that the scheduler chose them for, None for one
        that is not known. Raises Refused."""
        chips = wanted.chips if wanted is not None else self._as_asked(offer, ids)
        if wanted is None and (reason := self._blocked(Wanted(UNKNOWN_POD, chips), offer)):
            raise Refused(reason)

        real, visible, vdev = self._named(offer, ids, chips)
        if wanted is not None and wanted.template:
            name, vdev = await self._cutter.cut(chips[0][0], wanted.template, self.vdevs())
            real, visible = (name,), (str(vdev),)
            # cutting takes time, in which a fault may have come
            if reason := self._blocked(wanted, offer):
                raise Refused(reason)

        grant = Grant(
            number=self._ledger.next(),
            resource=offer.resource,
            ids=tuple(sorted(ids, key=names.order)),
            real=real,
            chips=chips,
            visible=visible,
            at_ms=self._clock.now_ms(),
            vdev=vdev,
        )
        if wanted is not None:
            pod = wanted.pod
            grant = msgspec.structs.replace(
                grant, uid=pod.uid, namespace=pod.namespace, name=pod.name, meant=pod.uid, predicate=str(wanted.time)
            )
        self._keep(grant)
        return grant

    def _keep(self, grant: Grant) -> None:
        """Write a grant to the ledger. Earlier ones of its ids are released, a lost answer to its pod is replaced."""
        ids = set(grant.ids)
        released = [
            msgspec.structs.replace(earlier, ids=())
            for earlier in self.grants
            if earlier.resource == grant.resource and ids & {*earlier.ids}
        ]
        again = [lost.number for lost in self.grants if lost.lost and grant.meant and lost.meant == grant.meant]
        try:
            self._ledger.change([*released, grant], again)
        except OSError as error:
            raise Refused(f"the answer cannot be kept on the disk: {error.strerror}") from error

    def _as_asked(self, offer: Offer, ids: Sequence[str]) -> tuple[tuple[int, int], ...]:
        """Return the chips that kubelet's ids represent: the chips in their names, unless another pod holds those."""
        stands = self.stands_for(offer)
        chips: Counter[int] = Counter()
        for name in ids:
            chip = offer.own[name] if offer.kind == "static" else stands.get(name)
            if chip is None:
                raise Refused(f"no chip is free for {name}")
            chips[chip] += 1
        return tuple(sorted(chips.items()))

    def _named(
        self, offer: Offer, ids: Sequence[str], chips: Sequence[tuple[int, int]]
    ) -> tuple[tuple[str, ...], tuple[str, ...], int]:
        """Return the devices' names in annotations and in the environment, and the vNPU's id."""
        if offer.kind == "static":
            device = names.parse(ids[0])
            return (ids[0],), (str(device.vdev),), device.vdev or 0
        if offer.kind == "share":
            chip = chips[0][0]
            own = [name for name in ids if offer.own[name] == chip]
            return (own[0] if own else self.real_name(chip),), (str(chip),), 0
        real = [self.real_name(chip) for chip, _ in chips]
        if self._settings.mixed:
            prefix = ids[0].rsplit("-", 1)[0]
            real = [f"{prefix}-{chip}" for chip, _ in chips]
        return tuple(real), tuple(name.rsplit("-", 1)[1] for name in real), 0


def _part(grant: Grant, ids: Sequence[str]) -> Grant:
    """Return the part of an init container's grant for a container that asks for fewer devices."""
    keep = len(ids)
    return msgspec.structs.replace(
        grant, ids=tuple(ids), real=grant.real[:keep], chips=grant.chips[:keep], visible=grant.visible[:keep]
    )
