"""What is wrong in the network between chips, window by window: two judgements begin a finding, half the limit ends it.

The same windows always lead to the same findings, in whatever order they come.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from belay.engine.model.pings import (
    DISCONNECTED,
    NetworkFinding,
    NetworkPart,
    NetworkProblem,
    NetworkSettings,
    PathEnd,
    finding_key,
)
from belay.engine.slowness.blame import Blame, Element, Weight, blame, concerns, crossed
from belay.engine.slowness.paths import LEARNING, PathExcess, PathHistory, PathKey, PingSample, loss_limit

KEPT_WINDOWS: Final = 3
"""Windows that are collected at the same time; older ones are judged with what was reported."""
MAX_PATHS: Final = 262_144
"""Paths that are judged together; more are not looked at."""
MAX_CHIPS: Final = 64
"""Chips that one finding names."""
_Key = tuple[NetworkProblem, Element]


class NetworkDetector:
    """Judges the networks whose windows are equally long. ``findings`` is what is wrong now, sorted."""

    def __init__(self, settings: NetworkSettings | None = None, known: Mapping[str, float] | None = None) -> None:
        """``known``: what was found before this detector began: excess by the key of the finding."""
        self.settings = settings or NetworkSettings()
        self.findings: tuple[NetworkFinding, ...] = ()
        self._known = dict(known or {})
        self._history = PathHistory(self.settings)
        self._pending: dict[int, dict[str, tuple[PingSample, ...]]] = {}
        self._through: dict[tuple[PathEnd, PathEnd], tuple[Element, ...]] = {}
        self._seen: dict[_Key, int] = {}
        self._since: dict[_Key, int] = {}
        self._judged = -1
        self._count = 0

    @property
    def newest(self) -> int:
        """The newest window that was judged; -1 before the first."""
        return self._judged

    @property
    def settled(self) -> bool:
        """Whether it has learned what is usual, so that finding nothing means that nothing is wrong."""
        return self._count >= LEARNING + self.settings.windows + 1

    def add(self, node: str, number: int, samples: Iterable[PingSample]) -> None:
        """Take what one node measured in one window; what is late or comes twice changes nothing."""
        if number > self._judged:
            self._pending.setdefault(number, {})[node] = tuple(samples)

    def judge(self, nodes: int) -> bool:
        """Judge the windows that are complete: ``nodes`` have reported, or newer ones are long there. Whether one was.

        Windows below ``newest`` are late and are not judged; after clocks were set back, `restart` makes them count.
        """
        judged = False
        for number in sorted(self._pending):
            if len(self._pending[number]) < nodes and number > max(self._pending) - KEPT_WINDOWS:
                break
            if self._judged >= 0 and number > self._judged + KEPT_WINDOWS:
                self._history.forget()  # nothing was measured for a while
            self._judge(number, self._pending.pop(number))
            judged = True
        return judged

    def restart(self) -> None:
        """Begin the newest windows again, with numbers from anywhere: clocks were set back. What is usual stays."""
        self._pending.clear()
        self._history.forget()
        self._judged = -1

    def _judge(self, number: int, reports: Mapping[str, Sequence[PingSample]]) -> None:
        self._judged = number
        self._count += 1
        samples = [one for node in sorted(reports) for one in reports[node]][:MAX_PATHS]
        excesses = self._history.add(samples, self._remembered(samples))
        through = [self._crossed(one.source, one.target) for one in excesses]
        found: dict[_Key, NetworkFinding] = {}
        for problem in (NetworkProblem.LOSS, NetworkProblem.DELAY):
            rows = [at for at, one in enumerate(excesses) if problem is NetworkProblem.LOSS or one.delay is not None]
            weights = [self._weight(problem, excesses[at]) for at in rows]
            known = {element for kind, element in self._since if kind is problem}
            for one in blame(weights, [through[at] for at in rows], known):
                paths = [excesses[rows[at]] for at in one.paths]
                found[(problem, one.element)] = self._finding(problem, one, paths, number)
        self._seen = {key: self._seen.get(key, 0) + 1 for key in found}
        kept = {
            key: finding
            for key, finding in found.items()
            if self._seen[key] > 1 or key in self._since or finding.key in self._known
        }
        self._since = {key: finding.since for key, finding in kept.items()}
        self.findings = tuple(sorted(kept.values()))

    def _weight(self, problem: NetworkProblem, one: PathExcess) -> Weight:
        if problem is NetworkProblem.DELAY:
            chance = self.settings.sigmas * one.spread
            return Weight(one.source, one.target, one.delay or 0.0, self.settings.degradation, chance)
        excess = one.lost / one.sent - one.usual_loss if one.sent else 0.0
        chance = loss_limit(one.sent, one.usual_loss, self.settings) - one.usual_loss
        return Weight(one.source, one.target, excess, self.settings.loss, chance)

    def _finding(self, problem: NetworkProblem, one: Blame, paths: Sequence[PathExcess], number: int) -> NetworkFinding:
        since = self._since.get((problem, one.element), max(0, number - self.settings.windows + 1))
        if problem is NetworkProblem.DELAY:
            usual = sum(path.usual for path in paths) / len(paths) / 1000
            value = usual * (1 + one.excess)
        else:
            usual = sum(path.usual_loss for path in paths) / len(paths)
            value = sum(path.lost for path in paths) / max(1, sum(path.sent for path in paths))
            problem = NetworkProblem.DISCONNECTED if value >= DISCONNECTED else problem
        part, name = one.element
        ends = sorted({end for path in paths for end in (path.source, path.target) if concerns(one.element, end)})
        chips = sorted({(end.node, end.chip) for end in ends if end.node})
        return NetworkFinding(
            part, name, problem, round(one.excess, 6), round(value, 6), round(usual, 6), round(one.limit, 6),
            len(paths), since, tuple(chips[:MAX_CHIPS]), tuple(ends[:2]) if part is NetworkPart.LINK else (),
        )  # fmt: skip

    def _remembered(self, samples: Sequence[PingSample]) -> dict[PathKey, float]:
        """The excess of paths through what was found before this detector began, while it learns what is usual."""
        if not self._known or self.settled:
            self._known = {}
            return {}
        found = {}
        for sample in samples:
            for part, name in self._crossed(sample.source, sample.target):
                excess = self._known.get(finding_key(part, name, NetworkProblem.DELAY))
                if excess is not None:
                    found[sample.key] = excess
        return found

    def _crossed(self, source: PathEnd, target: PathEnd) -> tuple[Element, ...]:
        found = self._through.get((source, target))
        if found is None:
            if len(self._through) > 2 * MAX_PATHS:
                self._through.clear()
            found = self._through[(source, target)] = crossed(source, target)
        return found


__all__ = ["NetworkDetector"]
