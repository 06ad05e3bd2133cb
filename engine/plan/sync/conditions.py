"""The pass that writes the status of objects of Belay's kinds: condition ``Ready``, and ``Ignored`` without effect.

``Ready`` is True while what the object's present generation says is in force and done, so that
`kubectl wait --for=condition=Ready` works. It runs late, so that it sees what earlier passes found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from belay.engine.documents import CLUSTER, Declared, FaultPolicy, Isolation, KVLink, NodePool, VNPULayout
from belay.engine.documents.kinds import API_VERSION
from belay.engine.model.actions import Evidence, PatchObject, PatchType, Preconditions
from belay.engine.model.chip_masks import ids_of
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.links import LINKED, LinkState
from belay.engine.model.plan import IgnoredObject
from belay.engine.model.reasons import ActionReason
from belay.engine.model.refusals import ServerRefusal
from belay.engine.model.states import NodeHealth
from belay.engine.model.times import rfc3339
from belay.engine.model.unstructured import nested_map
from belay.engine.model.wording import counted
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.node_view import NodeView, PassNodes
from belay.engine.plan.sync.foreign import SETTING, declared_documents
from belay.engine.wire.names import MAIN_SHARD

READY: Final = "Ready"
IGNORED: Final = "Ignored"
RULE: Final = "cluster-documents"
_CRD: Final = ("apiextensions.k8s.io/v1", "CustomResourceDefinition")
_GROUP: Final = API_VERSION.partition("/")[0]
_MAX_MESSAGE: Final = 1000
_MAX_NAMED: Final = 3
_OWN: Final = frozenset({READY, IGNORED})
_UNDELETED: Final = "Git no longer declares it, so it does not count; the API server refuses its deletion"


class _Verdict(NamedTuple):
    """What the conditions of one object say; ``fields`` are further fields of its status."""

    ready: bool
    reason: str
    message: str
    fields: Mapping[str, Any] = {}


def write_conditions(
    facts: Facts,
    draft: Draft,
    nodes: PassNodes,
    links: Sequence[LinkState],
    ignored: Sequence[IgnoredObject],
    refusals: Sequence[ServerRefusal],
) -> None:
    """Patch the status of every object whose status differs; one shard does it for all."""
    if facts.shard != MAIN_SHARD:
        return
    served = _with_status(facts)
    keys = sorted(key for key in facts.observed.objects if key.api_version == API_VERSION and key.kind in served)
    if not keys:
        return
    documents = {(one.document.KIND, one.document.name): one for one in declared_documents(facts.desired)}
    without_effect = {row.object: row for row in ignored}
    errors = {row.object: row.message for row in reversed(draft.diagnostics) if row.severity == "error"}
    undeleted = {row.key.object for row in refusals if row.key.verb == "DeleteObject"}
    pending = {
        (action.object_kind, action.name)
        for action in draft.actions
        if isinstance(action, PatchObject) and action.api_version == API_VERSION
    }
    for key in keys:
        raw = facts.observed.objects[key]
        if (key.kind, key.name) in pending or nested_map(raw, "metadata").get("deletionTimestamp"):
            continue  # a newer generation is on its way, and the next pass judges that
        name, declared = f"{key.kind}/{key.name}", documents.get((key.kind, key.name))
        if declared is not None:
            verdict = _judge(facts, nodes, links, key, declared, errors.get(name, ""))
            counts = declared.origin.file.startswith(CLUSTER)
            text = f"{SETTING} names {key.kind}, so this object counts beside Git"
            mark = ("False", "Counts", text) if counts else None
        elif name in without_effect:
            verdict = _Verdict(False, without_effect[name].reason, without_effect[name].message)
            mark = ("True", without_effect[name].reason, without_effect[name].message)
        elif key in undeleted:
            verdict, mark = _Verdict(False, "NotDeclared", _UNDELETED), None
        else:
            continue
        _patch(facts, draft, key, raw, verdict, mark)


def _judge(
    facts: Facts, nodes: PassNodes, links: Sequence[LinkState], key: ObjectKey, declared: Declared[Any], error: str
) -> _Verdict:
    """Whether a document in force is done."""
    document = declared.document
    if str(key) in facts.desired.held:
        return _Verdict(
            False, "Refused", "a newer version in Git cannot be used, so this one stays in force: "
            "`belay status` says what is wrong there",
        )  # fmt: skip
    fields = _pool_fields(facts, nodes, document) if isinstance(document, NodePool) else {}
    if error:
        return _Verdict(False, "Error", error, fields)
    done = _in_progress(facts, nodes, links, document, fields)
    if done is not None:
        return done._replace(fields=fields)
    # not where it was read: commands read the copy, the engine Git's file, and both must say the same
    return _Verdict(True, "InForce", "what it says is in force", fields)


def _in_progress(
    facts: Facts, nodes: PassNodes, links: Sequence[LinkState], document: Any, fields: Mapping[str, Any]
) -> _Verdict | None:
    """What a kind has to say of its own; None: it is in force, and nothing more can be said."""
    match document:
        case NodePool():
            if document.spec.suspend:
                return _Verdict(True, "Suspended", "spec.suspend is set: Belay leaves its nodes as they are")
            if document.spec.shard == facts.shard and not fields["nodes"]:
                return _Verdict(False, "NoNodes", "no node has the labels of spec.selector")
        case Isolation():
            until = document.spec.until
            if until is not None and until <= facts.now:
                return _Verdict(False, "Expired", f"it ended at {rfc3339(until)}: remove the document")
        case FaultPolicy():
            if document.spec.mode == "shadow":
                return _Verdict(True, "Shadow", "what it would change is reported and not carried out (spec.mode)")
        case VNPULayout():
            uncut = list(_uncut(facts, nodes, document)) if document.spec.mode == "static" else []
            if uncut:
                named = ", ".join(uncut[:_MAX_NAMED]) + (" and others" if len(uncut) > _MAX_NAMED else "")
                return _Verdict(
                    False,
                    "NotCut",
                    f"{counted(len(uncut), 'chip')} not cut as declared yet: {named}",
                )
        case KVLink():
            rows = [row.state for row in links if row.link == document.name]
            up = rows.count(LINKED)
            if up < len(rows) or not rows:
                return _Verdict(False, "NotLinked", f"{up} of {len(rows)} links are up")
            return _Verdict(True, "Linked", f"all {up} links are up")
    return None


def _pool_fields(facts: Facts, nodes: PassNodes, pool: NodePool) -> dict[str, Any]:
    """The pool's number of nodes, and of those that are healthy; empty for pools of other shards."""
    if pool.spec.shard != facts.shard:
        return {}
    views = [view for _, view in _views(nodes) if view.pool == pool.name]
    healthy = sum((view.assessed.node.state if view.assessed else view.state) == NodeHealth.HEALTHY for view in views)
    return {"nodes": len(views), "healthyNodes": healthy}


def _uncut(facts: Facts, nodes: PassNodes, layout: VNPULayout) -> Iterator[str]:
    """The chips of this shard's nodes that hold other vNPUs than the layout lists."""
    spec = layout.spec
    wanted = {chip: sorted(row.templates) for row in spec.chips for chip in row.chips}
    for name, view in _views(nodes):
        chosen = spec.selector.matches(view.node.labels) if spec.selector is not None else view.pool == spec.pool
        agent = facts.observed.agents.get(name) if chosen else None
        held: dict[int, list[str]] = {}
        for device in agent.vnpus if agent is not None else ():
            held.setdefault(device.chip, []).append(device.template)
        for chip in ids_of(view.base) if chosen else ():
            if chip in wanted and sorted(held.get(chip, ())) != wanted[chip]:
                yield f"{name}/{view.chip(chip)}"


def _views(nodes: PassNodes) -> Iterator[tuple[str, NodeView]]:
    yield from nodes.items()


def _patch(
    facts: Facts,
    draft: Draft,
    key: ObjectKey,
    raw: Mapping[str, Any],
    verdict: _Verdict,
    mark: tuple[str, str, str] | None,
) -> None:
    """Patch the status where it differs; a condition keeps its time while its status stays."""
    status, metadata = nested_map(raw, "status"), nested_map(raw, "metadata")
    listed = status.get("conditions")
    rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    before = {str(row.get("type")): row for row in rows}
    generation = metadata.get("generation")
    observed = {"observedGeneration": generation} if isinstance(generation, int) else {}
    said = [(IGNORED, *mark)] if mark is not None else []
    said.append((READY, "True" if verdict.ready else "False", verdict.reason, verdict.message[:_MAX_MESSAGE]))
    wanted = [_row(before.get(kind, {}), kind, value, reason, text, observed, facts.now)
              for kind, value, reason, text in said]  # fmt: skip
    fields = {**observed, **verdict.fields}
    if [row for row in rows if row.get("type") in _OWN] == wanted and fields == {
        name: status.get(name) for name in fields
    }:
        return
    uid = metadata.get("uid")
    how = "ready" if verdict.ready else "not ready"
    draft.actions.append(
        PatchObject(
            reason=ActionReason.STATUS_CHANGED,
            message=f"{key.kind}/{key.name} is {how}: {verdict.message[:_MAX_MESSAGE]}",
            evidence=Evidence(rule=RULE, file=f"{CLUSTER}{key.kind}/{key.name}", revision=facts.desired.revision),
            patch_type=PatchType.MERGE,
            preconditions=Preconditions(uid=str(uid) if uid else None),
            api_version=key.api_version,
            object_kind=key.kind,
            namespace=key.namespace,
            name=key.name,
            patch={"status": {**fields, "conditions": [*(r for r in rows if r.get("type") not in _OWN), *wanted]}},
        )
    )


def _row(
    before: Mapping[str, Any], kind: str, value: str, reason: str, text: str, observed: Mapping[str, int], now: float
) -> dict[str, Any]:
    since = before.get("lastTransitionTime") if before.get("status") == value else None
    return {
        "type": kind, "status": value, "reason": reason, "message": text, **observed,
        "lastTransitionTime": since or rfc3339(float(int(now))),
    }  # fmt: skip


def _with_status(facts: Facts) -> frozenset[str]:
    """Belay's kinds whose CRD has a status subresource."""
    found = set()
    for key, raw in facts.observed.objects.items():
        spec = nested_map(raw, "spec") if (key.api_version, key.kind) == _CRD else {}
        if spec.get("group") != _GROUP:
            continue
        versions = spec.get("versions")
        for version in versions if isinstance(versions, list) else ():
            if isinstance(version, dict) and "status" in nested_map(version, "subresources"):
                found.add(str(nested_map(spec, "names").get("kind") or ""))
    return frozenset(found)
