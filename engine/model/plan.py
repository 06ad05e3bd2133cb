"""The plan as a document: printed by `belay plan`, run by ``act``, shown by status, re-derived by replay."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from engine.model.actions import AnyAction
from engine.model.diagnostics import Diagnostic
from engine.model.history import History
from engine.model.links import LinkState


class Deferred(msgspec.Struct, frozen=True):
    """An action that a budget or a hold keeps back; ``until`` is RFC 3339 or None when only a person ends it."""

    action: AnyAction
    budget: str
    until: str | None


class Pending(msgspec.Struct, frozen=True):
    """A gang (or single pod) that was not placed, with counted reasons per node and the cheapest way out."""

    kind: str
    namespace: str
    name: str
    pods: tuple[str, ...]
    reason: str
    message: str
    nodes: dict[str, int]
    unblock: str | None


class NodeState(msgspec.Struct, frozen=True, gc=False):
    """healthy | sub-healthy | pre-isolated | isolated | not-ready | manually-isolated | unknown."""

    node: str
    pool: str
    state: str
    level: str
    codes: tuple[str, ...]


class ChipState(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """healthy | sub-healthy | suspect | isolated | resetting | recovering | manually-isolated."""

    node: str
    chip: str
    state: str
    level: str
    codes: tuple[str, ...]
    fault_type: tuple[str, ...]
    used_by: str | None


class PlaneLevels(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What :class:`ChipState` says of both planes of a chip at once, apart.

    ``chip`` is the level of the chip's own plane; ``network`` the levels that duration and frequency rules raised codes
    of the parameter plane to, by code, whether the code is there or its hold only lasts.
    """

    chip: str
    network: dict[str, str] = {}


class LemonState(msgspec.Struct, frozen=True, rename="camel"):
    """How often a chip fails: its decayed number of failures, and whether placement avoids it among equals."""

    node: str
    chip: str
    failures: float
    threshold: float
    avoided: bool


class ShadowChange(msgspec.Struct, frozen=True):
    """What a shadow policy would change: an action that it would add (``new``) or spare (``avoided``).

    ``budget`` defers the action, where one does.
    """

    policy: str
    change: str
    action: AnyAction
    budget: str = ""


class Plan(msgspec.Struct, frozen=True):
    """What one pass decided.

    ``actions`` are in execution order, every other list is sorted; ``history`` is the next value
    of the memory, written before any disruptive action. ``planes`` tells, by node and chip, the planes of chips apart,
    for ConfigMaps that do; it is not part of the document. ``shadows`` is what shadow policies would change; it is
    shown in the status ConfigMaps and, as diagnostics, in the document. ``lemons`` are the chips that have failed of
    late, ``links`` how the links are that KVLinks declare.
    """

    revision: str
    now: float
    actions: tuple[AnyAction, ...] = ()
    deferred: tuple[Deferred, ...] = ()
    pending: tuple[Pending, ...] = ()
    nodes: tuple[NodeState, ...] = ()
    chips: tuple[ChipState, ...] = ()
    scores: dict[str, dict[str, float]] = {}
    diagnostics: tuple[Diagnostic, ...] = ()
    history: History = History()
    planes: dict[str, dict[int, PlaneLevels]] = {}
    shadows: tuple[ShadowChange, ...] = ()
    lemons: tuple[LemonState, ...] = ()
    links: tuple[LinkState, ...] = ()

    def document(self, *, explain: bool = False) -> dict[str, Any]:
        """The output of `belay plan`: plain JSON values, deterministic."""
        from engine.model.times import rfc3339

        body: dict[str, Any] = {
            "revision": self.revision,
            "now": rfc3339(self.now),
            "actions": msgspec.to_builtins(self.actions),
            "deferred": msgspec.to_builtins(self.deferred),
            "pending": msgspec.to_builtins(self.pending),
            "nodes": msgspec.to_builtins(self.nodes),
            "chips": msgspec.to_builtins(self.chips),
            "scores": {pod: dict(sorted(by_node.items())) for pod, by_node in sorted(self.scores.items())}
            if explain
            else {},
            "diagnostics": msgspec.to_builtins(self.diagnostics),
        }
        return body

    def digest(self) -> str:
        """SHA-256 over the canonical document and history: equal plans, equal digests."""
        whole = {"plan": self.document(explain=True), "history": msgspec.to_builtins(self.history, str_keys=True)}
        return hashlib.sha256(msgspec.json.encode(whole, order="deterministic")).hexdigest()
