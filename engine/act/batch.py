"""A batch of actions in one message, carried out in order, many at a time, with an outcome for each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import msgspec

from belay.engine import tracing
from belay.engine.act import orders
from belay.engine.act.edge import Edge, Refused, Superseded
from belay.engine.act.permitted import check
from belay.engine.act.pod_watch import MIN_BINDINGS
from belay.engine.act.table import TABLE
from belay.engine.kube import Conflict, KubeError, run_many
from belay.engine.log import get
from belay.engine.model.action_documents import action_of, document
from belay.engine.model.actions import (
    AnyAction,
    BindPod,
    IsolateChip,
    PartitionChip,
    ReleaseChip,
    ResetChips,
    kind_of,
)
from belay.engine.store import ActionOutcome, BatchResult, PassRecord

_log = get("act")
_CHIP_ACTIONS = (IsolateChip, ReleaseChip, ResetChips, PartitionChip)

Numbered = tuple[int, AnyAction]
"""An action and its place in the plan."""


class Batch(msgspec.Struct, frozen=True):
    """A message in queue ``act``: its pass, its number there, and the actions with their places in the plan."""

    record: PassRecord
    number: int
    actions: list[Numbered]
    revision: str = ""
    refusals: bool = False
    """Whether the plan saw that the API server refused something."""
    traces: list[str] = []
    """The trace of each action; empty where no spans are sent."""


class _Message(msgspec.Struct, frozen=True):
    """A batch whose actions are encoded already."""

    record: PassRecord
    number: int
    actions: list[tuple[int, msgspec.Raw]]
    revision: str
    refusals: bool
    traces: list[str]


class _Received(msgspec.Struct, frozen=True):
    """A batch whose actions are documents still."""

    record: PassRecord
    number: int
    actions: list[tuple[int, dict[str, Any]]]
    revision: str = ""
    refusals: bool = False
    traces: list[str] = []


def split(
    record: PassRecord,
    actions: Sequence[Numbered],
    revision: str,
    count: int,
    size: int,
    *,
    refusals: bool = False,
    traces: Sequence[str] = (),
) -> list[str]:
    """Messages with batches of at most ``count`` actions and about ``size`` bytes, in the plan's order; batch 0 is the
    pass itself. ``refusals``: whether the plan saw that the API server refused something; ``traces``: by an action's
    place in the plan, where spans are sent.
    """
    parts: list[list[tuple[int, msgspec.Raw]]] = []
    used = 0
    for index, action in actions:
        text = msgspec.json.encode(document(action))
        if not parts or len(parts[-1]) >= count or used + len(text) > size:
            parts.append([])
            used = 0
        parts[-1].append((index, msgspec.Raw(text)))
        used += len(text)
    whole = msgspec.structs.replace(record, batches=len(parts) + 1)
    messages = []
    for number, part in enumerate(parts, start=1):
        own = [traces[index] for index, _ in part] if traces else []
        message = _Message(whole, number, part, revision, refusals, own)
        messages.append(msgspec.json.encode(message).decode())
    return messages


def decode(text: str) -> Batch:
    """The batch in a message. Raises msgspec.DecodeError for anything else."""
    try:
        message = msgspec.json.decode(text, type=_Received)
        actions = [(index, action_of(plain)) for index, plain in message.actions]
    except (UnicodeError, RecursionError) as error:  # half of a surrogate pair; lists in lists
        raise msgspec.DecodeError(f"cannot be read: {type(error).__name__}") from error
    return Batch(message.record, message.number, actions, message.revision, message.refusals, message.traces)


async def run(edge: Edge, batch: Batch, in_flight: int = 64) -> BatchResult:
    """Carry out a batch. Errors of the cluster become outcomes.

    Adjacent actions of one kind run together, different kinds one after another in the plan's order. Many bindings are
    checked by a watch instead of reading every pod before and after.
    """
    if edge.pods is None or sum(isinstance(action, BindPod) for _, action in batch.actions) < MIN_BINDINGS:
        return await _run(edge, batch, in_flight)
    async with edge.pods.from_version(batch.record.pods_version) as edge.follows:
        return await _run(edge, batch, in_flight)


async def _run(edge: Edge, batch: Batch, in_flight: int) -> BatchResult:
    outcomes: list[ActionOutcome] = []
    superseded = False
    for _, part in groupby(batch.actions, key=_group_key):
        group = list(part)
        if superseded:
            outcomes += _all(group, "dropped", "a newer epoch writes for the shard")
            continue
        async for found in _results(edge, group, in_flight):
            outcomes += found
        superseded = any(outcome.result == "dropped" for outcome in outcomes)
    outcomes.sort(key=lambda outcome: outcome.index)
    for outcome in outcomes:
        if outcome.result == "failed":
            _log.warning("action failed", index=outcome.index, reason=outcome.message)
    return BatchResult(batch.number, list(edge.writes), outcomes)


def dropped(batch: Batch, why: str) -> BatchResult:
    """The result of a batch that expired."""
    return BatchResult(batch.number, [], _all(batch.actions, "dropped", why))


def _group_key(numbered: Numbered) -> str:
    """The key of actions that run together; orders to a node's chips have one key, since they share a ConfigMap."""
    return "orders" if isinstance(numbered[1], _CHIP_ACTIONS) else kind_of(numbered[1])


async def _results(edge: Edge, group: list[Numbered], in_flight: int) -> AsyncIterator[list[ActionOutcome]]:
    async for outcome in run_many(_calls(edge, group), in_flight):
        if outcome.value is not None:
            yield outcome.value


def _calls(edge: Edge, group: list[Numbered]) -> Iterable[Callable[[], Awaitable[list[ActionOutcome]]]]:
    if isinstance(group[0][1], _CHIP_ACTIONS):
        by_node: dict[str, list[Numbered]] = {}
        for numbered in group:
            by_node.setdefault(getattr(numbered[1], "node", ""), []).append(numbered)
        return [partial(_run_orders, edge, node, part) for node, part in by_node.items()]
    return [partial(_run_one, edge, *numbered) for numbered in group]


async def _run_one(edge: Edge, index: int, action: AnyAction) -> list[ActionOutcome]:
    try:
        check(action)
        with tracing.span(f"act {kind_of(action)}", edge.traces.get(index, ""), _attributes(action)):
            await edge.fence.check()
            return [ActionOutcome(index, _result(await TABLE[type(action)](edge, action)))]
    except (Refused, Superseded, KubeError) as error:
        return [_failed(index, error)]


async def _run_orders(edge: Edge, node: str, part: list[Numbered]) -> list[ActionOutcome]:
    chips = [action for _, action in part if isinstance(action, _CHIP_ACTIONS)]
    try:
        with tracing.span("order", edge.traces.get(part[0][0], ""), _attributes(*chips)):
            await edge.fence.check()
            answers = await orders.order_chips(edge, node, chips)
    except (Refused, Superseded, KubeError) as error:
        return [_failed(index, error) for index, _ in part]
    return [
        ActionOutcome(index, _result(answer)) if isinstance(answer, bool) else _failed(index, answer)
        for (index, _), answer in zip(part, answers, strict=True)
    ]


def _attributes(*actions: AnyAction) -> dict[str, str | int]:
    """What a span says of its actions: objects and places, no text for people."""
    if not tracing.on():
        return {}
    one = actions[0]
    said = {
        "belay.action": ",".join(dict.fromkeys(map(kind_of, actions))),
        "belay.reason": one.reason,
        "k8s.namespace.name": getattr(one, "namespace", ""),
        "k8s.pod.name": getattr(one, "pod", ""),
        "k8s.node.name": getattr(one, "node", ""),
        "belay.object": getattr(one, "name", ""),
    }
    return {name: text for name, text in said.items() if text}


def _failed(index: int, error: Exception) -> ActionOutcome:
    word = (
        "dropped" if isinstance(error, Superseded) else "refused" if isinstance(error, Refused | Conflict) else "failed"
    )
    refusal = error.refusal if isinstance(error, KubeError) else None
    return ActionOutcome(index, word, str(error)[:256], refusal or "")


def _result(wrote: bool) -> str:
    return "done" if wrote else "unchanged"


def _all(actions: Sequence[Numbered], word: str, message: str) -> list[ActionOutcome]:
    return [ActionOutcome(index, word, message) for index, _ in actions]
