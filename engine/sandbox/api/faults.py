"""Fault injection: errors, delays, dropped watches and lagging watches, by rule, seeded and bounded."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import msgspec

from engine.sandbox.api.kinds import JSON

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


class _Armed:
    """A rule in force: its generator, hits and end."""

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
    """Rules in force. Rules without faults cost nothing: an empty injector answers at once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._armed: list[_Armed] = []

    def add(self, rule: FaultRule) -> None:
        """Put a rule in force. Raises ValueError beyond MAX_RULES."""
        self._expire()
        if len(self._armed) >= MAX_RULES:
            raise ValueError(f"at most {MAX_RULES} fault rules")
        self._armed.append(_Armed(rule, self._clock()))

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
        self._armed.clear()

    def rules(self) -> list[JSON]:
        """Return the rules in force with their hits."""
        self._expire()
        return [{**msgspec.to_builtins(armed.rule), "hits": armed.hits} for armed in self._armed]

    def _expire(self) -> None:
        now = self._clock()
        self._armed = [armed for armed in self._armed if not armed.over(now)]

    def strike(
        self, modes: tuple[str, ...], verb: str, resource: str, namespace: str = "", name: str = ""
    ) -> list[FaultRule]:
        """Return the rules of these modes that hit this request, counting the hits."""
        if not self._armed:
            return []
        now = self._clock()
        struck: list[FaultRule] = []
        for armed in self._armed:
            if armed.rule.mode not in modes or armed.over(now) or not armed.concerns(verb, resource, namespace, name):
                continue
            if armed.random.random() < armed.rule.probability:
                armed.hits += 1
                struck.append(armed.rule)
        return struck

    def lag(self, resource: str, namespace: str, name: str) -> float:
        """Return for how many seconds one watch event is held back."""
        rules = self.strike(("watch-lag",), "watch", resource, namespace, name)
        return max((rule.latency * self._share(rule) for rule in rules), default=0.0)

    def _share(self, rule: FaultRule) -> float:
        armed = next(armed for armed in self._armed if armed.rule is rule)
        return armed.random.random()
