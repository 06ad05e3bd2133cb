"""Kubelet as a witness before a reset: it must have been told, and nobody may hold the chips in its books or ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from agents.kubelet.allocator import Allocator
from agents.kubelet.books import Books, BooksError
from agents.node.witness import WitnessError

Parts = tuple[Allocator, Books, Callable[[Sequence[int]], bool]]


class KubeletWitness:
    """Asks the pod resources socket, the checkpoint or both (``source``); ``parts`` is empty until the plugin runs."""

    def __init__(self, name: str, source: str, parts: Callable[[], Parts | None]) -> None:
        self._name, self._source, self._parts = name, source, parts

    @property
    def name(self) -> str:
        """What is asked."""
        return self._name

    async def holders(self, chips: Sequence[int]) -> Mapping[int, str]:
        """Return who holds which of the chips, read now. Raises WitnessError."""
        parts = self._parts()
        if parts is None:
            raise WitnessError("the device plugin has not started")
        allocator, books, told = parts
        if not told(chips):
            raise WitnessError("kubelet has not been told yet that the chips are withdrawn")
        try:
            found = await books.listed() if self._source == "socket" else books.checkpoint()
        except BooksError as error:
            raise WitnessError(str(error)) from error
        live = allocator.live_uids()
        out: dict[int, str] = {}
        for grant in allocator.grants:
            for chip, _ in grant.chips:
                out.setdefault(chip, f"pod {grant.key}")
        for holding in found:
            # the checkpoint keeps pods that are gone until the next one comes
            if holding.uid and live is not None and holding.uid not in live:
                continue
            if not holding.uid and live is not None and not allocator.is_live(holding.namespace, holding.name):
                continue
            who = f"pod {holding.namespace}/{holding.name}" if holding.name else f"pod {holding.uid}"
            for chip in allocator.chips_of(holding):
                out.setdefault(chip, who)
        return {chip: who for chip, who in out.items() if chip in chips}
