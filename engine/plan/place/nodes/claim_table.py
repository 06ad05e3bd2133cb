"""Candidates of pods whose claims (DRA) ask for whole chips: the family chooses among chips that suit the claims."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from belay.engine.model.chip_masks import ids_of, mask_of
from belay.engine.model.cluster import Pod
from belay.engine.plan.claims.holding import DeviceClaims
from belay.engine.plan.node_view import NodeView
from belay.engine.plan.place.causes import NoDevices, UnsuitableDevices
from belay.engine.plan.place.handler import NodeChips, Refusal, ScoreOrRefusal, listed
from belay.engine.plan.place.nodes.table import NodeTable

SHORT: Final = "ResourceClaimDevicesShort"
ELSEWHERE: Final = Refusal(
    "ResourceClaimNodeMismatch", "node(s) cannot use the devices allocated to the resource claim"
)
_NONE: Final = Refusal(SHORT, "node(s) have no free devices that suit the resource claims together")


class ClaimTable(NodeTable):
    """A table whose answers hold for chips and claims together; Kubernetes counts no devices of claims."""

    def __init__(self, claims: DeviceClaims, *others: Any) -> None:
        self._claims = claims
        self._chosen: dict[tuple[str, int, int], tuple[int, int] | Refusal] = {}
        super().__init__(*others)

    def chips(self, name: str) -> int:
        """The chips that the pod would take on a fitting node."""
        found = self._choice(self._views[name])
        return 0 if isinstance(found, Refusal) else found[1]

    def _offer_refusal(self, view: NodeView) -> Refusal | None:
        name = view.node.name
        fixed = {
            self._claims.allocated[key].node for key in self._claims.of(self._sample) if key in self._claims.allocated
        }
        if fixed - {name}:
            return ELSEWHERE
        if not self._claims.by_node.get(name) and not fixed:
            return Refusal(SHORT, "node(s) publish no devices for resource claims", NoDevices(name))
        if view.resource != self._sample.resource:
            return Refusal("NPUResourceMissing", f"not has(or not same) {self._sample.resource}")
        return None

    def _score_npus(self, view: NodeView) -> ScoreOrRefusal:
        found = self._choice(view)
        return found if isinstance(found, Refusal) else found[0]

    def _choice(self, view: NodeView) -> tuple[int, int] | Refusal:
        """(score, chips) of the best choice on a node, or why there is none."""
        key = (view.node.name, view.free, view.network or 0)
        known = self._chosen.get(key)
        if known is None:
            known = self._chosen[key] = self._choose(view)
        return known

    def _choose(self, view: NodeView) -> tuple[int, int] | Refusal:
        pod, claims, family = self._sample, self._claims, self._job.family
        if family is None:
            return _NONE
        fixed = mask_of(list(claims.held_by(pod)))
        allowed = self._node_chips(view, view.free, 0)[0]
        if fixed & ~allowed:
            return Refusal(SHORT, f"chips {listed(fixed & ~allowed)} of the resource claim are not free for it")
        if not claims.open_of(pod):
            score = family.score(NodeChips(fixed, 0, fixed.bit_count()), self._request)
            return (0 if isinstance(score, Refusal) else score), fixed
        best: tuple[int, int] | None = None
        why = _NONE
        for mask in self._restrictions(view, allowed & ~fixed):
            chips = NodeChips(*self._node_chips(view, mask | fixed, (mask | fixed).bit_count()))
            score = family.score(chips, self._request)
            if isinstance(score, Refusal):
                why = score
                continue
            chosen = family.choose(chips, self._request)
            if fixed & ~chosen or not self._suits(view, chosen & ~fixed):
                continue
            if best is None or score > best[0]:
                best = score, chosen
        if best is not None:
            return best

        # where the family would take the free chips, it is the claims that these do not suit
        everything = NodeChips(*self._node_chips(view, allowed, allowed.bit_count()))
        never = never_suited(claims, pod, view.node.name)
        if why is _NONE or never or not isinstance(family.score(everything, self._request), Refusal):
            return _NONE._replace(cause=never)
        return why

    def _restrictions(self, view: NodeView, free: int) -> Iterator[int]:
        """Sets of chips to let the family choose from: all that suit, those with one value of an attribute that must be
        equal, and one set that is known to suit.
        """
        pod, claims, name = self._sample, self._claims, view.node.name
        asks, taken = claims.asks.get(pod.key, ()), claims.taken(name)
        offered = [
            one for one in claims.by_node.get(name, ())
            if one.chip is not None and not one.part and free >> one.chip & 1 and one.name not in taken
        ]  # fmt: skip
        suiting = [
            one
            for one in offered
            if any(one.name in claims.suiting(ask.request, name) for ask in asks if not ask.request.admin)
        ]
        yield mask_of([one.chip for one in suiting if one.chip is not None])
        for attribute in sorted({c.attribute for ask in asks for c in ask.constraints if not c.distinct}):
            groups: dict[str, list[int]] = {}
            for one in suiting:
                if attribute in one.values and one.chip is not None:
                    groups.setdefault(repr(one.values[attribute]), []).append(one.chip)
            yield from (mask_of(groups[value]) for value in sorted(groups))
        blocked = {
            one.name for one in claims.by_node.get(name, ()) if one.chip is not None and not free >> one.chip & 1
        }
        closed = claims.closed_parts(name, free, view.used_by)
        found = claims.given(pod, name, {*taken, *blocked, *closed}, None)
        yield mask_of([one.device.chip for one in found or () if one.device.chip is not None and not one.device.part])

    def _suits(self, view: NodeView, chips: int) -> bool:
        name = view.node.name
        taken = {*self._claims.taken(name), *self._claims.closed_parts(name, view.free, view.used_by)}
        return self._claims.given(self._sample, view.node.name, taken, ids_of(chips)) is not None


def never_suited(claims: DeviceClaims, pod: Pod, node: str) -> UnsuitableDevices | None:
    """That no devices of the node suit the pod's claims, even if all were free; None when some would, or where devices
    share counters that others have spent.
    """
    asking = claims.open_of(pod)
    if not asking or node in claims.counters or claims.given(pod, node, set(), None) is not None:
        return None
    return UnsuitableDevices(node, asking[0].key.name)


def of(claims: DeviceClaims) -> partial[ClaimTable]:
    """A constructor for tables over these claims."""
    return partial(ClaimTable, claims)


__all__ = ["ELSEWHERE", "SHORT", "ClaimTable", "never_suited", "of"]
