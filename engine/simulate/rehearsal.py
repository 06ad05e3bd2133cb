"""Play the tests of fault policies: a timeline of codes, and the expected state of chips.

Each test has its own servers in the policy's scope, with the policy enforced (a shadow policy too) and every other
policy of the tree in force. The planner assesses the chips at every event, at every expectation, and when a duration,
a release or a recovery that the events started comes due.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Any, Final, NamedTuple

import msgspec

from belay.engine.documents import (
    Declared,
    Desired,
    Expectation,
    FaultPolicy,
    NodePool,
    PolicyTest,
    Product,
    TimelineEvent,
)
from belay.engine.documents.fault_policy import IDLE, TRAINING
from belay.engine.model.chip_masks import mask_of
from belay.engine.model.cluster import ChipFault, DeviceReport, Node, Observed, Pod
from belay.engine.model.faults import CARD, NETWORK, PUBLIC, code_key
from belay.engine.model.history import History
from belay.engine.model.labels import ASCEND_910, ASCEND_REAL, POLICY_TEST_LABEL
from belay.engine.model.levels import (
    IN_SERVICE,
    NORMAL,
    NOT_HANDLE,
    PRE_SEPARATE,
    SEPARATE,
    worst,
)
from belay.engine.model.plan_cache import PlanCache
from belay.engine.plan import HealthOutcome, assess

#: Start time of every test (Unix seconds).
START: Final = 1_800_000_000.0
#: Most assessments of one test.
MAX_MOMENTS: Final = 5_000
#: The node of events and expectations that name none.
ANY_NODE: Final = "node"
_USUAL: Final = "atlas-800t-a2"
_AFTER: Final = 0.001

Path = tuple[str | int, ...]


class PolicyTestFailure(NamedTuple):
    """A failed expectation: its path in the document and a message."""

    policy: Declared[FaultPolicy]
    path: Path
    message: str


def rehearse(desired: Desired, policy: Declared[FaultPolicy]) -> list[PolicyTestFailure]:
    """Play every test of one policy together with everything that the tree declares."""
    return [
        PolicyTestFailure(policy, ("spec", "tests", index, *path), message)
        for index, test in enumerate(policy.document.spec.tests)
        for path, message in _PolicyTestRun(desired, policy, test).run()
    ]


class _PolicyTestRun:
    """One test on its own servers."""

    def __init__(self, desired: Desired, policy: Declared[FaultPolicy], test: PolicyTest) -> None:
        scope = policy.document.spec.scope
        self.test = test
        self.name = f"test {test.name!r}" if test.name else "the test"
        self.pool = scope.pools[0] if scope.pools else "policy-test"
        self.first_node = scope.nodes[0] if scope.nodes else ANY_NODE
        self.default_use = scope.workloads[0] if scope.workloads else IDLE
        self.product = _product(desired, policy.document)
        self.desired = _enforced(desired, policy, self.pool, self.product.name if self.product else None)
        self.items: list[TimelineEvent | Expectation] = [*test.timeline, *test.expect]
        self.named = {(self._node(item.node), item.chip) for item in self.items}
        self.nodes = sorted({node for node, _ in self.named})
        self.events: dict[float, list[TimelineEvent]] = {}
        for event in test.timeline:
            self.events.setdefault(event.at, []).append(event)
        self.wanted: dict[float, list[tuple[int, Expectation]]] = {}
        for index, wanted in enumerate(test.expect):
            self.wanted.setdefault(wanted.at, []).append((index, wanted))
        self.history = History()
        self._cache = PlanCache()
        self.codes: dict[tuple[str, int], dict[str, int]] = {}
        self.use: dict[tuple[str, int], str] = {}
        self.due: list[float] = []

    def run(self) -> Iterator[tuple[Path, str]]:
        """Yield failed expectations, or the reason why the test cannot run."""
        problem = self._unplayable()
        if problem is not None:
            yield problem
            return
        for item in self.items:
            heappush(self.due, item.at)
        last, moments, done = max(item.at for item in self.test.expect), 0, -1.0
        while self.due and self.due[0] <= last:
            at = heappop(self.due)
            if at <= done:
                continue
            moments, done = moments + 1, at
            if moments > MAX_MOMENTS:
                yield ("timeline",), f"{self.name} asks for more than {MAX_MOMENTS} judgements: make it shorter"
                return
            yield from self._moment(at)

    def _unplayable(self) -> tuple[Path, str] | None:
        chips = self.product.spec.chips_per_node if self.product else 8
        for position, item in enumerate(self.items):
            if item.chip >= chips:
                late = position - len(self.test.timeline)
                part, index = ("expect", late) if late >= 0 else ("timeline", position)
                product = self.product.name if self.product else "unknown"
                text = f"{self.name} names chip {item.chip}, a server of product {product} has chips 0 to {chips - 1}"
                return (part, index, "chip"), text
        for index, event in enumerate(self.test.timeline):
            for plane in ("node", "switch"):
                table = self.desired.tables.get(plane)
                if table is not None and table.level_of(event.code) is not None and not self._of_chips(event.code):
                    text = f"{event.code} is a {plane} code; tests of policies play faults of chips"
                    return ("timeline", index, "code"), text
        return None

    def _of_chips(self, code: str) -> bool:
        tables = [self.desired.tables.get(plane) for plane in ("chip", "public")]
        return any(table is not None and table.level_of(code) is not None for table in tables)

    def _moment(self, at: float) -> Iterator[tuple[Path, str]]:
        now = START + at
        events = self.events.get(at, [])
        once = []
        for event in events:
            key = (self._node(event.node), event.chip)
            if event.use is not None:
                self.use[key] = event.use
            codes = self.codes.setdefault(key, {})
            code = event.code.upper()
            if event.assertion == "recover":
                codes.pop(code, None)
            else:
                codes[code] = round(now * 1000)
            if event.assertion == "once":
                once.append((key, code))
        outcome = self._assess(now)
        for event in events:
            self._plan_ahead(outcome, event)
        for index, wanted in self.wanted.get(at, ()):
            yield from self._check(outcome, index, wanted)
        for key, code in once:
            self.codes[key].pop(code, None)
            heappush(self.due, at + 2 * _AFTER)

    def _plan_ahead(self, outcome: HealthOutcome, event: TimelineEvent) -> None:
        """Times at which a rule that this event started may come due."""
        node = self._node(event.node)
        for wait in outcome.waits(node, self._use((node, event.chip)), event.code):
            heappush(self.due, event.at + wait + _AFTER)

    def _assess(self, now: float) -> HealthOutcome:
        outcome = assess(self.desired, self._observed(now), now, cache=self._cache)
        self.history = outcome.history
        return outcome

    def _check(self, outcome: HealthOutcome, index: int, wanted: Expectation) -> Iterator[tuple[Path, str]]:
        node = self._node(wanted.node)
        use = self._use((node, wanted.chip))
        chip = outcome.chip(node, wanted.chip, use)
        found: dict[str, Any] = {
            "level": chip.level,
            "in_service": chip.in_service,
            "distributed": chip.distributed,
            "action": chip.action,
        }
        for field, value in found.items():
            expected = getattr(wanted, field)
            if expected is not None and expected != value:
                where = f"chip {wanted.chip}" + (f" of {wanted.node}" if wanted.node != ANY_NODE else "")
                shown = {"in_service": "inService"}.get(field, field)
                codes = ", ".join(chip.codes) or "no code"
                text = (
                    f"{self.name}: {wanted.at:g}s after its start {where} has {shown} {_text(value)}, "
                    f"expected {_text(expected)} (used for {use}; {codes})"
                )
                yield ("expect", index, shown), text

    def _node(self, name: str) -> str:
        return self.first_node if name == ANY_NODE else name

    def _use(self, key: tuple[str, int]) -> str:
        return self.use.get(key, self.default_use)

    # the servers

    def _observed(self, now: float) -> Observed:
        pods = [self._pod(node, chip) for node, chip in sorted(self.named) if self._use((node, chip)) != IDLE]
        return Observed(
            nodes={name: self._server(name) for name in self.nodes},
            reports={name: self._report(name, now) for name in self.nodes},
            pods={pod.key: pod for pod in sorted(pods, key=lambda pod: pod.key)},
            history=self.history,
            newest_report=now,
        )

    def _chips(self) -> range:
        return range(self.product.spec.chips_per_node if self.product else 8)

    def _names(self) -> tuple[str, str]:
        spec = self.product.spec if self.product else None
        resource = spec.resource if spec and spec.resource != "*" else ASCEND_910
        return resource, (spec.device_prefix if spec and spec.device_prefix else f"{resource.rpartition('/')[2]}-")

    def _server(self, name: str) -> Node:
        resource, _ = self._names()
        room = {"cpu": 192_000, "memory": 1 << 40, "pods": 110, resource: len(self._chips())}
        return Node(
            name=name, uid=f"uid-{name}", resource_version="1", labels={POLICY_TEST_LABEL: "true"}, annotations={},
            created=START - 86_400, ready=True, ready_changed=START - 86_400, unschedulable=False, taints=(),
            capacity=room, allocatable=room, internal_ip="", base_chips=mask_of(list(self._chips())), base_devices={},
        )  # fmt: skip

    def _report(self, name: str, now: float) -> DeviceReport:
        resource, prefix = self._names()
        faults: list[ChipFault] = []
        unhealthy = network = 0
        for (node, chip), codes in sorted(self.codes.items()):
            if node != name:
                continue
            for code, raised in sorted(codes.items()):
                kind = self._kind(code)
                faults.append(ChipFault(kind=kind, chip=chip, code=code, level="", time_ms=raised))
                level = self._table_level(code)
                if kind == NETWORK:
                    network |= 0 if level in (NORMAL, NOT_HANDLE) else 1 << chip
                elif level not in IN_SERVICE and not (level == PRE_SEPARATE and self._use((node, chip)) != IDLE):
                    unhealthy |= 1 << chip
        full = mask_of(list(self._chips()))
        return DeviceReport(
            node=name, resource_version="1", resource=resource, prefix=prefix, listed=full, free=full & ~unhealthy,
            unhealthy=unhealthy, network_unhealthy=network, recovering=0, faults=tuple(faults), manual=0, upgrades=(),
            switch=None, update_time=now, super_pod_id=-2, server_index=-2, rack_id=-1,
        )  # fmt: skip

    def _kind(self, code: str) -> str:
        table = self.desired.tables.get("chip")
        if table is not None and any(
            code_key(known) == code_key(code) and detail.plane is not None for known, detail in table.details.items()
        ):
            return NETWORK
        public = self.desired.tables.get("public")
        known_chip = table is not None and table.level_of(code) is not None
        return PUBLIC if public is not None and public.level_of(code) is not None and not known_chip else CARD

    def _table_level(self, code: str) -> str:
        found = [
            level
            for plane in ("chip", "public")
            if (table := self.desired.tables.get(plane)) is not None and (level := table.level_of(code)) is not None
        ]
        return worst(*found) if found else SEPARATE

    def _pod(self, node: str, chip: int) -> Pod:
        resource, prefix = self._names()
        training = self._use((node, chip)) == TRAINING
        device = f"{prefix}{chip}"
        name = f"on-{node}-{chip}"
        return Pod(
            namespace="policy-test", name=name, uid=name, resource_version="1", labels={},
            annotations={ASCEND_REAL: device, resource: device},
            owner_api="mindxdl.gitee.com/v1" if training else "apps/v1",
            owner_kind="AscendJob" if training else "ReplicaSet", owner_name=name, owner_uid=f"uid-{name}",
            node=node, phase="Running", deleting=None, grace_seconds=30, created=START - 3600, started=START - 3600,
            scheduler="belay", priority=0, priority_class="", requests={resource: 1}, resource=resource, count=1,
            chips=(device,), node_selector={}, affinity={}, tolerations=(), gates=(), pod_ip="", host_ip="",
            host_network=False, containers=(), volumes=(), reason="",
        )  # fmt: skip


def _enforced(desired: Desired, policy: Declared[FaultPolicy], pool: str, product: str | None) -> Desired:
    """The same desired state with the policy enforced, and one pool with the test's servers."""
    spec = policy.document.spec.model_copy(update={"mode": "enforce"})
    document = policy.document.model_copy(update={"spec": spec})
    body: dict[str, Any] = {"selector": {"matchLabels": {POLICY_TEST_LABEL: "true"}}}
    if product:
        body["product"] = product
    row = {"apiVersion": "belay.dev/v1alpha1", "kind": "NodePool", "metadata": {"name": pool}, "spec": body}
    policies = tuple(
        dataclasses.replace(item, document=document) if item is policy else item for item in desired.fault_policies
    )
    pools = (Declared(NodePool.model_validate(row), policy.origin),)
    return dataclasses.replace(
        desired, fault_policies=policies, pools=pools, manifests=(), layouts=(), isolations=(), budgets=(), links=()
    )


def _product(desired: Desired, policy: FaultPolicy) -> Product | None:
    """The product of the test's servers: the scope's, its pool's, else a common training server."""
    scope = policy.spec.scope
    wanted = scope.products[0] if scope.products else None
    if wanted is None and scope.pools:
        declared = desired.pool_index.get(scope.pools[0])
        wanted = declared.document.spec.product if declared is not None else None
    found = desired.products.get(wanted or _USUAL)
    return found.document if found is not None else None


def _text(value: object) -> str:
    return str(msgspec.to_builtins(value)).lower() if isinstance(value, bool) else str(value)
