"""Fault injection: errors, delays, dropped watches and lagging watches, by rule, seeded and bounded."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import msgspec

from belay.engine.sandbox.api.kinds import JSON

MAX_RULES = 100
MODES = ("error", "latency", "drop-watch", "watch-lag")


class FaultRule(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One fault. It hits requests whose verb, resource (plural, or `plural/subresource`), namespace and name are
    listed (empty: any).

    `mode`: `error` answers `status` (with Retry-After `retryAfter` seconds for 429 and 503), `latency` delays requests
    by `latency` seconds, `drop-watch` cuts a watch after `latency` seconds, `watch-lag` delays each watch event by up
    to `latency` seconds. `probability` per request, from a generator seeded with `seed`; the rule ends after `count`
    hits or `duration` seconds (0: never).
    """

    mode: str
    status: int = 500
    retryAfter: int = 1
    latency: float = 0.0
    probability: float = 1.0
    seed: int = 0
    verbs: list[str] = []
    resources: list[str] = []
    namespaces: list[str] = []
    names: list[str] = []
    count: int = 0
    duration: float = 0.0
    message: str = ""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}")
        if not 0.0 <= self.probability <= 1.0:
            raise ValueError("probability must be between 0 and 1")
        if not 0.0 <= self.latency <= 600.0:
            raise ValueError("latency must be between 0 and 600 seconds")
        if not 400 <= self.status <= 599:
            raise ValueError("status must be between 400 and 599")


class _ActiveRule:
    """An active rule: its generator, hits and end."""

    def __init__(self, rule: FaultRule, now: float) -> None:
        self.rule = rule
        self.random = random.Random(rule.seed)
        self.hits = 0
        self.ends = now + rule.duration if rule.duration else float("inf")

    def over(self, now: float) -> bool:
        return now >= self.ends or bool(self.rule.count and self.hits >= self.rule.count)

    def concerns(self, verb: str, resource: str, namespace: str, name: str) -> bool:
        rule = self.rule
        return (
            (not rule.verbs or verb in rule.verbs)
            and (not rule.resources or resource in rule.resources)
            and (not rule.namespaces or namespace in rule.namespaces)
            and (not rule.names or name in rule.names)
        )


class FaultInjector:
    """The active rules; without any, every check returns at once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._active: list[_ActiveRule] = []

    def add(self, rule: FaultRule) -> None:
        """Activate a rule. Raises ValueError beyond MAX_RULES."""
        self._expire()
        if len(self._active) >= MAX_RULES:
            raise ValueError(f"at most {MAX_RULES} fault rules")
        self._active.append(_ActiveRule(rule, self._clock()))

    def load(self, given: Any) -> None:
        """Add the rule or list of rules of a parsed JSON document. Raises ValueError naming the wrong field."""
        try:
            rules = msgspec.convert(given if isinstance(given, list) else [given], list[FaultRule])
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from error
        for rule in rules:
            self.add(rule)

    def clear(self) -> None:
        """End every rule."""
        self._active.clear()

    def rules(self) -> list[JSON]:
        """Return the active rules with their hits."""
        self._expire()
        return [{**msgspec.to_builtins(active.rule), "hits": active.hits} for active in self._active]

    def _expire(self) -> None:
        now = self._clock()
        self._active = [active for active in self._active if not active.over(now)]

    def match(
        self, modes: tuple[str, ...], verb: str, resource: str, namespace: str = "", name: str = ""
    ) -> list[FaultRule]:
        """Return the rules of these modes that hit this request, counting the hits."""
        if not self._active:
            return []
        now = self._clock()
        matched: list[FaultRule] = []
        for active in self._active:
            if (
                active.rule.mode not in modes
                or active.over(now)
                or not active.concerns(verb, resource, namespace, name)
            ):
                continue
            if active.random.random() < active.rule.probability:
                active.hits += 1
                matched.append(active.rule)
        return matched

    def lag(self, resource: str, namespace: str, name: str) -> float:
        """Return the delay of one watch event in seconds."""
        rules = self.match(("watch-lag",), "watch", resource, namespace, name)
        return max((rule.latency * self._share(rule) for rule in rules), default=0.0)

    def _share(self, rule: FaultRule) -> float:
        active = next(active for active in self._active if active.rule is rule)
        return active.random.random()
