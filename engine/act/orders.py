"""Orders to nodes: all actions for a node become one compare-and-swap of its ``belay-orders-<node>``."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import msgspec
import orjson

from belay.engine.act.edge import Edge, Refused
from belay.engine.act.pods import pods_on
from belay.engine.kube import CONFIGMAP, FIELD_MANAGER, NODE, Conflict, NotFound, Object
from belay.engine.log import get
from belay.engine.model.actions import IsolateChip, IsolateNode, PartitionChip, ReleaseChip, ReleaseNode, ResetChips
from belay.engine.model.cluster import Orders
from belay.engine.model.labels import CORDONED_ANNOTATION, ISOLATED_ANNOTATION, NPU_CORE, POOL_LABEL, RESET_ATTEMPTS
from belay.engine.model.seals import Seal, Warrant, isolation_warrant, layout_warrant, reset_warrant
from belay.engine.wire.errors import WireError
from belay.engine.wire.names import DEVICE_NAMESPACE, DEVICE_PREFIX, ORDERS_PREFIX, SYSTEM
from belay.engine.wire.objects import held_chips
from belay.engine.wire.orders import ORDERS_KEY, build_orders, chip_number, parse_orders, reset_order
from belay.engine.wire.parts import chip_of
from belay.engine.wire.seals import digests, seal_of

ChipAction = IsolateChip | ReleaseChip | ResetChips | PartitionChip
Busy = Mapping[int, AbstractSet[str]]
OrderResult = bool | Refused
"""True: written; False: unchanged; Refused: a precondition no longer holds."""

TOKENS, TOKENS_MS = 3, 6 * 3_600_000
"""Resets in the device plugin's bucket, and its window in ms."""
_ATTEMPTS_KEPT = 10
_TRIES = 8
#: The API server's name for the oldest writers of an object, once there are many: Belay may be among them.
_FORGOTTEN_WRITERS = "ancient-changes"
_MAX_RULE, _MAX_CODES = 300, 16
_log = get("act")


async def order_chips(edge: Edge, node: str, actions: Sequence[ChipAction]) -> list[OrderResult]:
    """Merge actions for one node's chips into its orders; one answer per action.

    Destructive ones are checked against the node's live pods first. Raises KubeError, or Conflict after eight lost
    races.
    """
    busy: Busy = {}
    report = ("", "")
    if any(isinstance(a, ResetChips | PartitionChip) for a in actions):
        busy, report = await _busy_chips(edge, node), await _report(edge, node)
    for attempt in range(_TRIES):
        live = await edge.kube.get(CONFIGMAP, ORDERS_PREFIX + node, SYSTEM)
        draft = _Draft(node, live, edge, report)
        answers = [draft.add(action, busy) for action in actions]
        if True not in answers:
            return answers
        try:
            body = draft.body(actions)
            edge.wrote(await (edge.kube.replace if live else edge.kube.create)(CONFIGMAP, body))
        except Conflict:
            if attempt == _TRIES - 1:
                raise
            continue
        return answers
    raise AssertionError("unreachable: the last try returns or raises")


async def isolate_node(edge: Edge, action: IsolateNode) -> bool:
    """Annotate the Node for ``kubectl describe``, and cordon it for other schedulers where the action says so;
    placement avoids it by the memory."""

    def change(notes: Mapping[str, str], cordoned: _Cordon) -> _NodeChange:
        # the cordon of others is left as it is, and not ours to take back
        mine = bool(action.cordon) and not cordoned.there
        fresh: dict[str, str | None] = {ISOLATED_ANNOTATION: action.level}
        # the document is named, so that the release can say what ended
        return _NodeChange(
            fresh | ({CORDONED_ANNOTATION: action.evidence.rule or action.level} if mine else {}),
            True if mine else None,
        )

    return await _change_node(edge, action.node, change)


async def release_node(edge: Edge, action: ReleaseNode) -> bool:
    """Remove the isolation's annotation from the Node, and the cordon if it is Belay's.

    It is not where others have uncordoned the node and cordoned it again for reasons of their own.
    """

    def change(notes: Mapping[str, str], cordoned: _Cordon) -> _NodeChange:
        mine = bool(action.uncordon) and CORDONED_ANNOTATION in notes
        fresh: dict[str, str | None] = {ISOLATED_ANNOTATION: None}
        uncordon = mine and cordoned.there and not cordoned.of_others
        return _NodeChange(fresh | ({CORDONED_ANNOTATION: None} if mine else {}), False if uncordon else None)

    return await _change_node(edge, action.node, change)


async def set_policy(edge: Edge, node: str, pool: str, digest: str) -> bool:
    """Name the pool's newest policy in a node's orders; everything else stays as ordered."""
    for attempt in range(_TRIES):
        live = await edge.kube.get(CONFIGMAP, ORDERS_PREFIX + node, SYSTEM)
        body = live or build_orders(_no_orders(node), "")
        orders = _parsed(body)
        labels = body["metadata"].setdefault("labels", {})
        before, forged = seal_of(body), _forged(edge, live)
        same = orders.get("policyDigest") == digest and labels.get(POOL_LABEL) == pool
        if same and not forged and _signed_now(edge, before, orders.get("pool") == pool):
            return False
        if forged:
            orders = _without_acts(orders)
        labels[POOL_LABEL] = pool
        orders |= {"policyDigest": digest, "pool": pool, "generation": int(orders.get("generation") or 0) + 1}
        body["data"][ORDERS_KEY] = orjson.dumps(orders).decode()
        edge.keys.seal(body, int(edge.now() * 1000), None if forged else before)
        try:
            edge.wrote(await (edge.kube.replace if live else edge.kube.create)(CONFIGMAP, body))
        except Conflict:
            if attempt == _TRIES - 1:
                raise
            continue
        return True
    return False


def _parsed(body: Object) -> dict[str, Any]:
    try:
        parse_orders(body)
    except WireError as error:
        raise Refused(f"its orders cannot be read, so it keeps its policy: {error}") from error
    return dict(orjson.loads(body["data"][ORDERS_KEY]))


def _forged(edge: Edge, live: Object | None) -> bool:
    """Whether existing orders are not sealed by a key of ours: what they order to do must not get our seal."""
    if live is None:
        return False
    problem = edge.keys.problem(live)
    if problem:
        name = live["metadata"].get("name")
        _log.warning("orders not ours: resets and layouts in them are dropped", object=name, reason=problem)
    return bool(problem)


def _signed_now(edge: Edge, seal: Seal | None, names_pool: bool) -> bool:
    """Whether orders carry the seal of the key that signs now, over their pool too; True while there is no key."""
    key = edge.keys.signing
    return key is None or (names_pool and seal is not None and seal.key == key.key_id)


def _without_acts(orders: dict[str, Any]) -> dict[str, Any]:
    """Orders that keep chips isolated and do nothing."""
    chips = {name: row | {"reset": None} for name, row in (orders.get("chips") or {}).items() if row.get("isolate")}
    return {key: value for key, value in orders.items() if key not in ("vnpu", "warrants")} | {"chips": chips}


async def _report(edge: Edge, node: str) -> tuple[str, str]:
    """The node's device report that destructive orders rest on, and the SHA-256 over its content."""
    name = DEVICE_PREFIX + node
    live = await edge.kube.get(CONFIGMAP, name, DEVICE_NAMESPACE)
    if live is None:
        return "", ""
    version = str(live["metadata"].get("resourceVersion") or "")
    return f"{DEVICE_NAMESPACE}/{name}@{version}", report_digest(live)


class _NodeChange(NamedTuple):
    """Annotations to set (None: to remove), and whether to cordon (None: leave it)."""

    annotations: dict[str, str | None]
    unschedulable: bool | None


class _Cordon(NamedTuple):
    """Whether a node is cordoned, and whether someone other than Belay wrote that."""

    there: bool
    of_others: bool

    @classmethod
    def on(cls, live: Object) -> _Cordon:
        spec, written = live.get("spec") or {}, live["metadata"].get("managedFields") or []
        writers = {
            entry.get("manager")
            for entry in written
            if "f:unschedulable" in ((entry.get("fieldsV1") or {}).get("f:spec") or {})
        }
        return cls(bool(spec.get("unschedulable")), bool(writers - {FIELD_MANAGER, _FORGOTTEN_WRITERS}))


async def _change_node(edge: Edge, name: str, change: Callable[[Mapping[str, str], _Cordon], _NodeChange]) -> bool:
    """Change a Node as its newest state asks for; a cordon is written only on the node as it was read."""
    for attempt in range(_TRIES):
        live = await edge.kube.get(NODE, name)
        if live is None:
            raise Refused(f"node {name} is gone")
        metadata = live["metadata"]
        notes = metadata.get("annotations") or {}
        wanted = change(notes, _Cordon.on(live))
        fresh = {key: value for key, value in wanted.annotations.items() if notes.get(key) != value}
        if not fresh and wanted.unschedulable is None:
            return False

        body: dict[str, Any] = {"metadata": {"uid": metadata.get("uid"), "annotations": fresh}}
        if wanted.unschedulable is not None:
            body["metadata"]["resourceVersion"] = metadata.get("resourceVersion")
            body["spec"] = {"unschedulable": wanted.unschedulable or None}
        try:
            edge.wrote(await edge.kube.patch(NODE, name, body))
        except NotFound as error:
            raise Refused(f"node {name} is gone") from error
        except Conflict:
            if attempt == _TRIES - 1:
                raise
            continue
        return True
    raise AssertionError("unreachable: the last try returns or raises")


async def _busy_chips(edge: Edge, node: str) -> Busy:
    """Chips that live pods hold, whole or in part, with the pods' UIDs."""
    busy: dict[int, set[str]] = {}
    for pod in await pods_on(edge, node):
        notes = pod["metadata"].get("annotations") or {}
        named = (*held_chips(notes, ""), *str(notes.get(NPU_CORE, "")).split(","))
        for name in named:
            if (chip := chip_of(name.strip())) is not None:
                busy.setdefault(chip, set()).add(str(pod["metadata"].get("uid", "")))
    return busy


class _Draft:
    """The next orders of one node."""

    def __init__(self, node: str, live: Object | None, edge: Edge, report: tuple[str, str] = ("", "")) -> None:
        self._live = live
        self._edge = edge
        self._report = report
        self._now_ms = int(edge.now() * 1000)
        try:
            self._orders = parse_orders(live) if live else _no_orders(node)
        except WireError as error:
            raise Refused(f"the orders of {node} cannot be read, nothing is ordered: {error}") from error
        self._isolate = dict(self._orders.isolate)
        self._resets = dict(self._orders.resets)
        self._layout = dict(self._orders.vnpu_layout)
        self._vnpu_epoch = self._orders.vnpu_epoch
        self._warrants = dict(self._orders.warrants)
        self._attempts = _attempts(live)
        self._destructive = False
        self._forged = _forged(edge, live)
        if self._forged:
            self._resets, self._layout, self._vnpu_epoch, self._warrants = {}, {}, 0, {}
        if 0 < self._orders.not_after_ms < self._now_ms:  # expired orders must not become valid with the new date
            self._resets = {}

    def add(self, action: ChipAction, busy: Busy) -> OrderResult:
        try:
            match action:
                case IsolateChip():
                    changed = self._set_isolation(action.chips, action.level)
                    if changed:
                        self._warrants |= {isolation_warrant(chip): self._warrant(action) for chip in action.chips}
                    return changed
                case ReleaseChip():
                    return self._set_isolation(action.chips, None)
                case ResetChips():
                    return self._reset(action, busy)
                case PartitionChip():
                    return self._partition(action, busy)
        except Refused as refusal:
            return refusal

    def body(self, actions: Sequence[ChipAction]) -> Object:
        """The ConfigMap to write, over the version that was read."""
        orders = self._orders
        life = int(self._edge.order_life * 1000)
        fresh = self._destructive or not orders.issued_ms
        body = build_orders(
            Orders(
                node=orders.node,
                resource_version="",
                generation=orders.generation + 1,
                revision=self._edge.revision or orders.revision,
                policy_digest=orders.policy_digest,
                issued_ms=self._now_ms if fresh else orders.issued_ms,
                not_after_ms=self._now_ms + life if fresh else orders.not_after_ms,
                isolate=self._isolate,
                resets=self._resets,
                vnpu_epoch=self._vnpu_epoch,
                vnpu_layout=self._layout,
                pool=orders.pool,
                warrants=self._standing(self._prefix(actions)),
            ),
            self._prefix(actions),
        )
        self._edge.keys.seal(body, self._now_ms, None if self._forged else orders.seal)
        if self._live is not None:
            labels = {**(self._live["metadata"].get("labels") or {}), **body["metadata"]["labels"]}
            body["metadata"] = {**self._live["metadata"], "labels": labels}
            body["metadata"].pop("managedFields", None)
        if self._attempts:
            notes = {
                **(body["metadata"].get("annotations") or {}),
                RESET_ATTEMPTS: orjson.dumps(self._attempts).decode(),
            }
            body["metadata"]["annotations"] = notes
        return body

    def _standing(self, prefix: str) -> dict[str, Warrant]:
        """The warrants of orders that still stand."""
        names = {isolation_warrant(f"{prefix}{chip}") for chip in self._isolate}
        names |= {reset_warrant(f"{prefix}{chip}") for chip in self._resets}
        names |= {layout_warrant(f"{prefix}{chip}") for chip in self._layout}
        return {name: warrant for name, warrant in sorted(self._warrants.items()) if name in names}

    def _warrant(self, action: ChipAction, epoch: int = 0) -> Warrant:
        evidence = action.evidence
        report, digest = self._report if epoch else ("", "")
        return Warrant(
            rule=evidence.rule[:_MAX_RULE],
            file=evidence.file[:_MAX_RULE],
            line=evidence.line,
            revision=evidence.revision or self._edge.revision,
            codes=evidence.codes[:_MAX_CODES],
            report=report or next(iter(evidence.reports), ""),
            report_digest=digest,
            plan=self._edge.plan,
            epoch=epoch,
        )

    def _set_isolation(self, chips: Sequence[str], level: str | None) -> bool:
        changed = False
        for number in map(chip_number, chips):
            changed |= self._isolate.get(number) != level
            if level is None:
                self._isolate.pop(number, None)
            else:
                self._isolate[number] = level
        return changed

    def _reset(self, action: ResetChips, busy: Busy) -> bool:
        group = tuple(sorted(map(chip_number, action.chips)))
        standing = [self._resets[chip] for chip in group if chip in self._resets]
        if standing and all(order.epoch == action.epoch and order.group == group for order in standing):
            return False
        if any(order.epoch >= action.epoch for order in standing):
            raise Refused(f"epoch {action.epoch} is not above the one that was ordered last")
        order = reset_order(action, self._now_ms, self._left(action))
        owner = {order.online.uid} if order.online is not None else set()
        if taken := sorted(chip for chip in action.chips if busy.get(chip_number(chip), set()) - owner):
            raise Refused(f"{', '.join(taken)} of {action.node} is in use")
        if order.online is not None and not any(owner & busy.get(chip, set()) for chip in group):
            raise Refused(f"pod {order.online.pod} holds none of the chips any more")
        for chip, name in zip(group, sorted(action.chips, key=chip_number), strict=True):
            self._resets[chip] = order
            self._warrants[reset_warrant(name)] = self._warrant(action, action.epoch)
            self._attempts[name] = [*self._attempts.get(name, []), self._now_ms][-_ATTEMPTS_KEPT:]
        self._destructive = True
        return True

    def _left(self, action: ResetChips) -> int:
        """The resets left to the group after this one by the device plugin's bucket, for Events."""
        recent = {
            at for name in action.chips for at in self._attempts.get(name, ()) if at > self._now_ms - TOKENS_MS
        }  # fmt: skip
        return max(0, TOKENS - len(recent) - 1)

    def _partition(self, action: PartitionChip, busy: Busy) -> bool:
        chip = chip_number(action.chip)
        if self._vnpu_epoch >= action.epoch and self._layout.get(chip) == action.templates:
            return False
        if self._vnpu_epoch >= action.epoch and not self._destructive:
            raise Refused(f"epoch {action.epoch} is not above the one that was ordered last")
        if chip in busy:
            raise Refused(f"{action.chip} of {action.node} is in use")
        self._layout[chip] = action.templates
        self._warrants[layout_warrant(action.chip)] = self._warrant(action, action.epoch)
        self._vnpu_epoch = max(self._vnpu_epoch, action.epoch)
        self._destructive = True
        return True

    def _prefix(self, actions: Sequence[ChipAction]) -> str:
        name = next((a.chip if isinstance(a, PartitionChip) else a.chips[0] for a in actions), "")
        return name.rpartition("-")[0] + "-"


def report_digest(config_map: Object) -> str:
    """SHA-256 over what a device report holds, whatever its order."""
    data = config_map.get("data") or {}
    rows = digests({str(key): str(text) for key, text in data.items()})
    return hashlib.sha256("\n".join(f"{key}={rows[key]}" for key in sorted(rows)).encode()).hexdigest()


def _no_orders(node: str) -> Orders:
    return Orders(
        node=node,
        resource_version="",
        generation=0,
        revision="",
        policy_digest="",
        issued_ms=0,
        not_after_ms=0,
        isolate={},
        resets={},
        vnpu_epoch=0,
        vnpu_layout={},
    )


def _attempts(live: Object | None) -> dict[str, list[int]]:
    notes: dict[str, Any] = ((live or {}).get("metadata") or {}).get("annotations") or {}
    try:
        return msgspec.json.decode(notes.get(RESET_ATTEMPTS) or "{}", type=dict[str, list[int]])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}
