"""Never stuck: whatever was lost, a chip whose newest full reports are clean returns within two report periods.

One seed, one history of one server: faults of every plane come and go, resets are ordered, refused, fail, are
forgotten; reports, orders, agent reports and the whole memory get lost, stand still or come back in an older version;
the clock jumps. Then the server reports that it is well, twice, a report period apart. A chip that is not free then
must be covered by a hold of the closed list (manual, frequency, duration, attempt budget, reset pending, bad boot, no
agent), and every hold that no person has to end must end by the clock alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

import msgspec

from belay.engine.documents import Desired
from belay.engine.model.actions import IsolateChip, ReleaseChip, ResetChips
from belay.engine.model.cluster import ChipFault, Observed, Orders, ResetOrder
from belay.engine.model.history import History
from tests.steps import Steps
from tests.worlds import NOW, agent, decide, desired, document, fault, node, observed, pod, report

PERIOD: Final = 300.0
"""A device plugin writes its report at least so often (faults.md: report on change, full every 5 minutes)."""
CHIPS: Final = 8
HOLDS: Final = frozenset({"manual", "frequency", "duration", "attempt-budget", "reset-pending", "bad-boot", "no-agent"})
BY_A_PERSON: Final = frozenset({"manual", "frequency"})
CODES: Final = (
    ("80C98001", "RestartNPU", "CardUnhealthy"), ("80E01801", "RestartBusiness", "CardUnhealthy"),
    ("80DF8402", "SeparateNPU", "CardUnhealthy"), ("8118043C", "PreSeparateNPU", "CardUnhealthy"),
    ("80DE0207", "SubHealthFault", "CardUnhealthy"), ("80E18005", "RestartNPU", "CardUnhealthy"),
    ("80C98009", "RestartNPU", "CardUnhealthy"), ("FFFF0001", "", "CardUnhealthy"),
    ("81078603", "NotHandleFault", "CardNetworkUnhealthy"), ("110001024", "PreSeparateNPU", "CardNetworkUnhealthy"),
    ("220001001", "SeparateNPU", "PublicFault"),
)  # fmt: skip
_INTENTS: list[Desired] = []


def _intents() -> list[Desired]:
    """The shipped policies, and a stricter one with short windows; made once per process."""
    if not _INTENTS:
        rule = {"codes": ["80C98001", "80DE0207"], "times": 2, "window": "10m", "level": "SeparateNPU"}
        lasting = {"timeout": "30s", "recover": "10m", "level": "SeparateNPU"}
        _INTENTS.append(desired())
        _INTENTS.append(
            desired(
                document(
                    "FaultPolicy", "p", frequency=[{**rule, "releaseAfter": "20m"}],
                    duration=[{"codes": ["80DE0207", "80E01801"], **lasting}],
                    attempts={"reset": {"max": 1, "window": "1h"}},
                )
            )
        )  # fmt: skip
    return _INTENTS


class Server:
    """One server, what it reports, and what the engine holds about it."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.desired = self.chance.choice(_intents())
        self.now = NOW
        self.faults: dict[tuple[int, str], ChipFault] = {}
        self.recovering: set[int] = set()
        self.unexplained: set[int] = set()
        self.reported = NOW
        self.done: dict[int, tuple[int, str]] = {}
        self.agent_at: float | None = NOW
        self.orders_seen = 0
        self.orders: Orders | None = None
        self.history = History()
        self.old: list[tuple[History, Orders | None]] = []
        self.busy: set[int] = set()

    def look(self) -> Observed:
        """What the engine sees now."""
        jobs = [pod("j", node="n", chips=sorted(self.busy), owner=("AscendJob", "j"))] if self.busy else []
        faults = list(self.faults.values())
        listed = {f.chip for f in faults if f.kind != "CardNetworkUnhealthy" and f.level not in ("SubHealthFault",)}
        told = report(
            "n", faults=faults, unhealthy=listed | self.unexplained, recovering=self.recovering,
            network={f.chip for f in faults if f.kind == "CardNetworkUnhealthy"}, update_time=self.reported,
        )  # fmt: skip
        agents = (
            [agent("n", done=self.done, orders_seen=self.orders_seen, at=self.agent_at)]
            if self.agent_at is not None
            else []
        )
        standing = [self.orders] if self.orders else []
        return observed([node("n")], [told], jobs, agents=agents, standing=standing, history=self.history)

    def step(self) -> Steps:
        """One pass; its memory and orders are written, unless they get lost."""
        scope = decide(self.look(), self.desired, now=self.now)
        self.old.append((self.history, self.orders))
        if self.chance.random() < 0.9:
            self.history = scope.memory.frozen("")
            for action in scope.actions:
                if isinstance(action, IsolateChip | ReleaseChip | ResetChips):
                    self._order(action)
        return scope

    def _order(self, action: IsolateChip | ReleaseChip | ResetChips) -> None:
        before = self.orders or Orders("n", "1", 0, "", "", 0, 0, {}, {}, 0, {})
        chips = [int(name.rpartition("-")[2]) for name in action.chips]
        isolate, resets = dict(before.isolate), dict(before.resets)
        if 0 < before.not_after_ms < self.now * 1000:
            resets = {}  # as the engine writes orders: dead ones do not come alive with the new date
        if isinstance(action, IsolateChip):
            isolate |= dict.fromkeys(chips, action.level)
        elif isinstance(action, ReleaseChip):
            isolate = {chip: level for chip, level in isolate.items() if chip not in chips}
        else:
            known = self.agent_at is not None  # else an agent refuses an epoch that it has run
            assert not known or all(action.epoch > self.done.get(c, (0, ""))[0] for c in chips), (
                "an epoch is used twice"
            )
            resets |= dict.fromkeys(chips, ResetOrder(action.epoch, tuple(chips), action.reason, 0))
        now_ms, fresh = int(self.now * 1000), isinstance(action, ResetChips) or not before.issued_ms
        self.orders = msgspec.structs.replace(
            before, isolate=isolate, resets=resets, generation=before.generation + 1,
            issued_ms=now_ms if fresh else before.issued_ms,
            not_after_ms=now_ms + 900_000 if fresh else before.not_after_ms,
        )  # fmt: skip

    # what happens

    def happen(self) -> None:
        """One thing, at random."""
        chance = self.chance
        things: tuple[Callable[[], None], ...] = (
            self._break, self._break, self._mend, self._answer, self._answer, self._lose_memory, self._go_back,
            self._lose_orders, self._silence, self._work, self._oddities,
        )  # fmt: skip
        chance.choice(things)()
        self.now += chance.choice((1.0, 20.0, 61.0, 400.0, 1000.0, -30.0))
        if chance.random() < 0.8:
            self.reported = self.now - chance.choice((0.0, 1.0, 30.0, -120.0))
        if self.agent_at is not None and chance.random() < 0.8:
            self.agent_at = self.now - 1

    def _break(self) -> None:
        code, level, kind = self.chance.choice(CODES)
        chip = self.chance.randrange(CHIPS)
        self.faults[(chip, code)] = fault(
            chip, code, level, kind=kind, at=self.now - self.chance.choice((0, 5, 90, 4000))
        )

    def _mend(self) -> None:
        if self.faults:
            del self.faults[self.chance.choice(sorted(self.faults))]

    def _answer(self) -> None:
        """The agent takes its orders, in one of the ways in which that can end."""
        if self.orders is None:
            return
        self.orders_seen = self.orders.generation
        for chip, order in self.orders.resets.items():
            if order.epoch > self.done.get(chip, (0, ""))[0] and self.chance.random() < 0.8:
                result = self.chance.choice(("ok", "ok", "failed: boot", "failed: interrupted", "refused: in use"))
                self.done |= dict.fromkeys(order.group, (order.epoch, result))
                if result == "ok":
                    self.faults = {key: f for key, f in self.faults.items() if key[0] not in order.group}
                    self.recovering = set(order.group) if self.chance.random() < 0.2 else set()

    def _lose_memory(self) -> None:
        self.history = History(policy_revision=self.history.policy_revision)

    def _go_back(self) -> None:
        """An older version of memory or orders comes back."""
        if self.old:
            memory, orders = self.chance.choice(self.old)
            if self.chance.random() < 0.5:
                self.history = memory
            elif orders is not None:
                self.orders = orders

    def _lose_orders(self) -> None:
        self.orders = None

    def _silence(self) -> None:
        self.agent_at = None if self.agent_at is not None else self.now

    def _work(self) -> None:
        self.busy = set() if self.busy else set(self.chance.sample(range(CHIPS), self.chance.choice((1, 4, 8))))

    def _oddities(self) -> None:
        """Lists of the report without a fault behind them."""
        chip = self.chance.randrange(CHIPS)
        self.chance.choice((self.recovering, self.unexplained)).symmetric_difference_update({chip})


def history(seed: int, *, events: int = 6) -> None:
    """Run one history; raises AssertionError with what stays stuck."""
    server = Server(seed)
    for _ in range(server.chance.randint(1, events)):
        server.happen()
        server.step()
    server.faults.clear()
    server.recovering.clear()
    server.unexplained.clear()
    server.busy.clear()
    server.now += PERIOD
    for _ in range(2):
        server.reported = server.now - 1
        if server.agent_at is not None:
            server.agent_at, server.orders_seen = server.now - 1, server.orders.generation if server.orders else 0
        scope = _written(server)
        server.now += PERIOD
    _covered(server, scope)
    _ends_alone(server, scope)


def _written(server: Server) -> Steps:
    """A pass whose memory and orders are not lost; a report period has many of them, two stand for them."""
    for _ in range(2):
        server.chance = _Faithful()
        scope = server.step()
        server.now += 1.0
    return scope


class _Faithful(random.Random):
    """Nothing gets lost any more."""

    def random(self) -> float:
        return 0.0


def _covered(server: Server, scope: Steps) -> None:
    view = scope.nodes["n"]
    memory = scope.memory.nodes.get("n")
    assert view.closed is None, f"the node is closed though its report is fresh and clean: {view.closed}"
    for chip in range(CHIPS):
        if view.free >> chip & 1:
            continue
        holds = memory.chips[chip].holds if memory and chip in memory.chips else ()
        kinds = {hold.kind for hold in holds} | ({"reset-pending"} if view.resetting >> chip & 1 else set())
        assert kinds and kinds <= HOLDS, f"chip {chip} is {view.chip_state.get(chip)} and nothing holds it: {kinds}"
        assert any(hold.until or hold.kind in BY_A_PERSON or hold.kind == "bad-boot" for hold in holds) or (
            "reset-pending" in kinds
        ), f"chip {chip}: no text says how its hold ends: {holds}"


def _ends_alone(server: Server, scope: Steps) -> None:
    """Past every hold's own end, only what a person must end is left."""
    rows = scope.memory.nodes["n"].chips.values() if "n" in scope.memory.nodes else ()
    ends = [hold.until / 1000 for row in rows for hold in row.holds if hold.until]
    ends += [server.orders.not_after_ms / 1000] if server.orders else []
    server.now = max([server.now, *ends]) + 2000.0
    for _ in range(3):
        server.reported = server.now - 1
        server.agent_at = server.now - 1 if server.agent_at is not None else None
        scope = _written(server)
        server.now += PERIOD
    view, memory = scope.nodes["n"], scope.memory.nodes.get("n")
    for chip in range(CHIPS):
        if not view.free >> chip & 1:
            holds = memory.chips[chip].holds if memory and chip in memory.chips else ()
            left = [hold for hold in holds if hold.kind in BY_A_PERSON and not hold.until]
            assert left, f"chip {chip} is still {view.chip_state.get(chip)} long after every hold's end: {holds}"
