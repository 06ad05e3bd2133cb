"""What the API server refused, kept in ``belay-refused``: recorded after a batch, dropped once it is accepted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from belay.engine.act.edge import written
from belay.engine.kube import CONFIGMAP, Conflict, Kube
from belay.engine.log import get
from belay.engine.model.actions import AnyAction
from belay.engine.model.refusals import RefusalCause, RefusalKey, ServerRefusal
from belay.engine.model.refused_actions import refusal_key, refused_again
from belay.engine.store import ActionOutcome, ObjectWrite
from belay.engine.wire import refusals as wire
from belay.engine.wire.errors import WireError
from belay.engine.wire.names import SYSTEM, refusals_config_map

_TRIES = 8
_log = get("act")
Known = dict[RefusalKey, ServerRefusal]


async def record(
    kube: Kube, shard: str, actions: Iterable[tuple[AnyAction, ActionOutcome]], now_ms: int, *, known: bool
) -> ObjectWrite | None:
    """Record what was refused and drop what was accepted; the write, for which the next pass waits, if there was one.

    ``known`` says whether the plan saw refusals: without any there is nothing to drop, and nothing is read.
    """
    tried = [(action, key, outcome) for action, outcome in actions if (key := refusal_key(action)) is not None]
    if not known and not any(outcome.cause for _, _, outcome in tried):
        return None

    def change(before: Known) -> Known:
        after = dict(before)
        for action, key, outcome in tried:
            if outcome.cause:
                cause = RefusalCause(outcome.cause)
                after[key] = refused_again(action, key, cause, outcome.message, before.get(key), now_ms)
            elif outcome.result in ("done", "unchanged"):
                after.pop(key, None)
        return after

    return await _change(kube, shard, change)


async def forget(kube: Kube, shard: str, stale: Mapping[RefusalKey, ServerRefusal]) -> ObjectWrite | None:
    """Drop records of what no pass wants any more, unless they changed meanwhile."""
    return await _change(kube, shard, lambda before: {k: row for k, row in before.items() if stale.get(k) != row})


async def _change(kube: Kube, shard: str, change: Callable[[Known], Known]) -> ObjectWrite | None:
    """Read, change and replace the records; repeated when another batch was faster. Raises KubeError."""
    for attempt in range(_TRIES):
        live = await kube.get(CONFIGMAP, refusals_config_map(shard), SYSTEM)
        before = _readable(live) if live is not None else {}
        after = change(before)
        if after == before:
            return None

        body = wire.build(shard, after.values())
        try:
            if live is None:
                return written(await kube.create(CONFIGMAP, body))
            body["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"]
            return written(await kube.replace(CONFIGMAP, body))
        except Conflict:
            if attempt == _TRIES - 1:
                raise
    return None


def _readable(live: Mapping[str, object]) -> Known:
    """The records; none where they cannot be read, so that they are written again."""
    try:
        return wire.parse(live)
    except WireError as error:
        _log.warning("refusals not readable, written again", reason=str(error))
        return {}
