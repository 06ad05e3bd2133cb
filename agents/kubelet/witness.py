"""The check with kubelet before a reset: it has received the withdrawal, and no record shows a holder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from belay.agents.kubelet.allocator import Allocator
from belay.agents.kubelet.device_holdings import DeviceHoldings, HoldingsError
from belay.agents.node.witness import WitnessError

Parts = tuple[Allocator, DeviceHoldings, Callable[[Sequence[int]], bool]]


class KubeletWitness:
    """Read the pod resources socket, the checkpoint or both (``source``); ``parts`` is empty until the plugin runs."""

    def __init__(self, name: str, source: str, parts: Callable[[], Parts | None]) -> None:
        self._name, self._source, self._parts = name, source, parts

    @property
    def name(self) -> str:
        """The source that is read."""
        return self._name

    async def holders(self, chips: Sequence[int]) -> Mapping[int, str]:
        """Read and return chip → its holder, for those of the chips that have one. Raises WitnessError."""
        parts = self._parts()
        if parts is None:
            raise WitnessError("the device plugin has not started")
        allocator, books, withdrawal_reported = parts
        if not withdrawal_reported(chips):
            raise WitnessError("kubelet has not received yet that the chips are withdrawn")
        try:
            found = await books.listed() if self._source == "socket" else books.checkpoint()
        except HoldingsError as error:
            raise WitnessError(str(error)) from error
        live = allocator.live_uids()
        out: dict[int, str] = {}
        for grant in allocator.grants:
            for chip, _ in grant.chips:
                out.setdefault(chip, f"pod {grant.key}")
        for holding in found:
            # the checkpoint keeps deleted pods until the next pod arrives
            if holding.uid and live is not None and holding.uid not in live:
                continue
            if not holding.uid and live is not None and not allocator.is_live(holding.namespace, holding.name):
                continue
            who = f"pod {holding.namespace}/{holding.name}" if holding.name else f"pod {holding.uid}"
            for chip in allocator.chips_of(holding):
                out.setdefault(chip, who)
        return {chip: who for chip, who in out.items() if chip in chips}
