"""Signs standing orders for links again: after a key was made or rotated, and where a signature was taken away."""

from __future__ import annotations

from functools import partial

from belay.engine.act import Edge
from belay.engine.documents import Desired
from belay.engine.kube import CONFIGMAP, Conflict, Object, run_many
from belay.engine.log import get
from belay.engine.model.actions import CreateObject, PatchObject
from belay.engine.model.cluster import Observed
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.plan import Plan
from belay.engine.wire import links
from belay.engine.wire.errors import WireError
from belay.engine.wire.names import SYSTEM
from belay.engine.wire.seals import seal_of

SIGNED_PER_PASS = 200
"""Most orders signed again per pass; the rest follows in the next passes."""
_log = get("links")


async def seal_links(edge: Edge, plan: Plan, observed: Observed, desired: Desired) -> bool:
    """Sign standing orders for links that the key in force has not signed; False when some are left for the next pass.

    What another wrote is signed only if this pass, which compared it with the declared links, leaves it as it is and
    every link in it is of a KVLink that is declared: the engine never signs what it did not decide.
    """
    key = edge.keys.signing
    if key is None or not desired.has_git:
        return True
    changed = {action.name for action in plan.actions if isinstance(action, CreateObject | PatchObject)}
    declared = {item.document.name for item in desired.links}
    behind = []
    for node in plan.nodes:
        live = observed.objects.get(ObjectKey("v1", "ConfigMap", SYSTEM, links.name_of(node.node)))
        if live is None or live["metadata"]["name"] in changed:
            continue
        seal = seal_of(live)
        if edge.keys.problem(live):
            if not _is_declared(live, declared):
                continue  # agents with keys keep the last good ones
        elif seal is not None and seal.key == key.key_id:
            continue
        behind.append(live)
    complete = len(behind) <= SIGNED_PER_PASS
    async for outcome in run_many([partial(_seal, edge, live) for live in behind[:SIGNED_PER_PASS]]):
        if outcome.error is not None:
            complete = False
            if not isinstance(outcome.error, Conflict):
                _log.warning("orders for links not signed", reason=str(outcome.error))
    return complete


def _is_declared(live: Object, declared: set[str]) -> bool:
    try:
        _, ends = links.parse_orders(live)
    except WireError:
        return False
    return all(name in declared for end in ends for link in end.links for name in link.links)


async def _seal(edge: Edge, live: Object) -> None:
    body = {**live, "data": dict(live.get("data") or {}), "metadata": dict(live["metadata"])}
    body["metadata"].pop("managedFields", None)
    edge.keys.seal(body, int(edge.now() * 1000), seal_of(live) if not edge.keys.problem(live) else None)
    edge.wrote(await edge.kube.replace(CONFIGMAP, body))


__all__ = ["seal_links"]
