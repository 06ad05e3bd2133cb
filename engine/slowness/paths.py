"""What each path of pings usually takes, and by how much it is slower now.

A path is compared with its own past, since cables and hops differ, after what slows all paths alike has been taken out
(`_common`). Until its usual delay is known, it is compared with paths like it, and only gross excesses count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Final, NamedTuple

import msgspec

from belay.engine.model.pings import NetworkSettings, PathEnd

LEARNING: Final = 5
"""Windows, in each of which enough paths alike answered, after which a path's usual delay is known."""
FOLLOWING: Final = 0.01
"""Part of a sound window's deviation that the usual delay follows, once it is known well."""
LEAST_ALIKE: Final = 5
"""Paths alike from which what slows all of them is known."""
QUANTILE: Final = 0.2
"""Where the delays of sound paths are looked for: up to three quarters of the paths may have the same fault."""
LEAST_SPREAD: Final = 0.002
LEAST_LOSS: Final = 1e-4
"""Share of lost packets that is always taken as usual."""
FEW: Final = 6
"""Lost packets that are never a finding, whatever their share."""
_MAD: Final = 1.4826
"""Median absolute deviation → standard deviation of a normal distribution."""


PathKey = tuple[int, str, int, str]
"""Super pod and address of both ends."""


class PingSample(NamedTuple):
    """One path in one window: nanoseconds (0: no packet came back), packets."""

    source: PathEnd
    target: PathEnd
    delay: int
    sent: int
    lost: int

    @property
    def key(self) -> PathKey:
        """Names the path: super device ids are equal in every super pod."""
        source, target = self.source, self.target
        return (source.super_pod, source.address, target.super_pod, target.address)


class PathExcess(NamedTuple):
    """What a path's newest windows say. ``delay`` is the mean excess as a share of ``usual`` (nanoseconds), None
    where no packet came back; ``spread`` its standard deviation among paths alike.
    """

    source: PathEnd
    target: PathEnd
    delay: float | None
    usual: float
    spread: float
    sent: int
    lost: int
    usual_loss: float


class _Path(msgspec.Struct):
    """One path's past."""

    source: PathEnd
    target: PathEnd
    kind: tuple[bool, bool, int]
    first: list[float] = []  # as shares of what paths alike took then
    usual: float = 0.0
    known: int = 0
    newest: list[float | None] = []
    packets: list[tuple[int, int]] = []
    absent: int = 0


class PathHistory:
    """The past of all paths of the networks that share one window length."""

    def __init__(self, settings: NetworkSettings) -> None:
        self._settings = settings
        self._paths: dict[PathKey, _Path] = {}
        self._low: dict[tuple[bool, bool, int], float] = {}
        self._spreads: dict[tuple[bool, bool, int], float] = {}
        self._losses: dict[tuple[bool, bool, int], float] = {}

    def forget(self) -> None:
        """Begin the newest windows again; what is usual stays known."""
        for path in self._paths.values():
            path.newest, path.packets = [], []

    def add(self, samples: Sequence[PingSample], remembered: Mapping[PathKey, float]) -> list[PathExcess]:
        """Take one window and give the excess of every path in it that has enough windows.

        ``remembered``: excess of paths that were found slow before this history began, by path; what is measured of
        them now is not usual.
        """
        alike: dict[tuple[bool, bool, int], list[tuple[_Path, PingSample]]] = defaultdict(list)
        present = set()
        for sample in sorted(samples, key=lambda one: one.key):
            path = self._paths.get(sample.key)
            if path is None:
                kind = _kind(sample.source, sample.target)
                path = self._paths[sample.key] = _Path(sample.source, sample.target, kind)
            path.source, path.target, path.absent = sample.source, sample.target, 0
            present.add(sample.key)
            alike[path.kind].append((path, sample))
        for key in [key for key in self._paths if key not in present]:
            self._paths[key].absent += 1
            if self._paths[key].absent >= self._settings.windows:
                del self._paths[key]
        return [one for kind in sorted(alike) for one in self._judge(kind, alike[kind], remembered)]

    def _judge(
        self,
        kind: tuple[bool, bool, int],
        rows: Sequence[tuple[_Path, PingSample]],
        remembered: Mapping[PathKey, float],
    ) -> list[PathExcess]:
        settings = self._settings
        answered = [sample.delay for _, sample in rows if sample.delay > 0]
        middle = median(answered) if len(answered) >= LEAST_ALIKE else 0.0
        common = self._common(kind, [one.delay / path.usual for path, one in rows if path.usual and one.delay > 0])
        for path, sample in rows:
            path.packets = [*path.packets, (sample.sent, sample.lost)][-settings.windows :]
            excess: float | None = None
            if sample.delay > 0 and path.usual:
                excess = sample.delay / (path.usual * common) - 1 if common else 0.0
            elif sample.delay > 0:
                excess = self._learn(path, sample.delay, middle, remembered.get(sample.key, 0.0))
            path.newest = [*path.newest, excess][-settings.windows :]
        full = [(path, _mean(path.newest)) for path, _ in rows if len(path.newest) >= settings.windows]
        spread = self._spread(kind, [value for path, value in full if value is not None and path.known])
        limit = max(settings.degradation, settings.sigmas * spread)
        usual_loss = self._usual_loss(kind, [path for path, _ in full])
        # while half of the paths are slow, what is common to all is less exact: then nothing is learnt from the others
        middling = [path.newest[-1] or 0.0 for path, value in full if path.usual and value is not None]
        sound = bool(middling) and abs(median(middling)) < settings.degradation / 3
        found = []
        for path, value in full:
            sent, lost = sum(one for one, _ in path.packets), sum(one for _, one in path.packets)
            usual = path.usual or middle
            found.append(PathExcess(path.source, path.target, value, usual, spread, sent, lost, usual_loss))
            if sound and path.usual and value is not None and abs(value) < limit / 2:
                path.known += 1
                path.usual *= 1 + max(FOLLOWING, 1 / (LEARNING + path.known)) * (path.newest[-1] or 0.0)
        return found

    def _learn(self, path: _Path, delay: int, middle: float, remembered: float) -> float:
        """Take a delay while the usual one is not known, and give its excess over paths alike: gross ones only."""
        slow = max(remembered, delay / middle - 1 if middle else 0.0)
        gross = slow > self._settings.unknown
        if middle:
            # as a share of what paths alike take now: what slows all of them meanwhile is not learnt. Where too few
            # paths alike answered there is no such share, and nothing is judged either: such a window teaches nothing
            path.first.append(delay / (1 + remembered) / middle)
        if len(path.first) >= LEARNING:
            path.usual, path.first = median(path.first) * middle, []
            if gross and not remembered:
                path.usual = middle  # slow for as long as it is known: what paths alike take is usual
        return slow if gross or remembered else 0.0

    def _common(self, kind: tuple[bool, bool, int], ratios: Sequence[float]) -> float:
        """By how much all paths of a kind are slower alike; 0 where too few are known."""
        if len(ratios) < LEAST_ALIKE:
            return 0.0
        low = sorted(ratios)[int(len(ratios) * QUANTILE)]
        # how far noise alone puts that quantile below the middle, learnt while no fault moves the middle
        now = low / median(ratios)
        below = self._low.setdefault(kind, now)
        if abs(now - below) < self._settings.degradation / 3:
            self._low[kind] = below + 0.05 * (now - below)
        return low / self._low[kind]

    def _spread(self, kind: tuple[bool, bool, int], values: Sequence[float]) -> float:
        """The standard deviation among sound paths, from those that are not slower than usual."""
        below = [-value for value in values if value <= 0]
        if len(below) >= LEAST_ALIKE:
            now = _MAD * median(below)
            self._spreads[kind] = now + 0.8 * (self._spreads.get(kind, now) - now)
        return max(LEAST_SPREAD, self._spreads.get(kind, LEAST_SPREAD))

    def _usual_loss(self, kind: tuple[bool, bool, int], paths: Sequence[_Path]) -> float:
        """The share of packets that paths of one kind lose when nothing is wrong, at most what counts as a fault."""
        sent = sum(one for path in paths for one, _ in path.packets)
        now = sum(one for path in paths for _, one in path.packets) / max(1, sent)
        usual: float = self._losses.get(kind, min(now, self._settings.loss))
        if now <= usual + self._settings.loss / 10:
            usual += 0.05 * (now - usual)
        self._losses[kind] = usual
        return usual


def loss_limit(sent: int, usual: float, settings: NetworkSettings) -> float:
    """The smallest share of lost packets that counts: beyond chance where ``usual`` is the share that always is."""
    chance = max(LEAST_LOSS, usual) * sent
    beyond: float = (chance + settings.sigmas * chance**0.5 + FEW) / max(1, sent)
    return max(settings.loss + usual, beyond)


def _kind(source: PathEnd, target: PathEnd) -> tuple[bool, bool, int]:
    """Paths of one kind have as many hops: same node, same rack, level of the network."""
    same_node = bool(source.node) and source.node == target.node
    same_rack = source.rack >= 0 and (source.super_pod, source.rack) == (target.super_pod, target.rack)
    return (same_node, same_rack, source.layer)


def _mean(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return fmean(numbers) if len(numbers) == len(values) else None


__all__ = ["PathExcess", "PathHistory", "PathKey", "PingSample", "loss_limit"]
