"""Links as a node's agent handles them: ConfigMap to folders and back, orders that come, go and make no sense."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from belay.agents.node.link_trust import LinkTrust
from belay.agents.node.linkfiles import LinkPart
from belay.agents.node.trust import OrderTrust
from belay.engine.cli.key_sets import new_signing_key
from belay.engine.model.links import EndOrders, EndReport, LinkOrder, LinkReport
from belay.engine.wire import links as wire
from belay.engine.wire.names import NODES, SYSTEM
from belay.engine.wire.seals import SEAL_KEY, SigningKey, covered, text_of
from tests.agent_world import FakeCluster, VirtualClock

NODE = "node-a"
ENDS = (
    EndOrders(9, "serve.d0", (LinkOrder(1, ("10.0.0.1:26000",), 3000, ("chat",)),)),
    EndOrders(8, "cluster-8"),
)


class Part:
    """A part at work on a virtual clock; ``trust`` is a folder with keys."""

    def __init__(self, root: Path, trust: Path | None = None) -> None:
        self.root, self.clock, self.trust = root, VirtualClock(), trust
        self.cluster = FakeCluster(self.clock)
        self.start()

    def start(self) -> None:
        believed = None
        if self.trust is not None:
            state = self.trust.parent / "state"
            believed = LinkTrust(OrderTrust(str(self.trust), state, NODE), state)
        self.task = asyncio.create_task(LinkPart(NODE, self.cluster, self.root, self.clock, trust=believed).run())

    def order(self, *ends: EndOrders) -> None:
        self.cluster.set_map(wire.orders_map(NODE, wire.orders_text(NODE, ends)))

    async def until(self, condition: Callable[[], object]) -> None:
        """Time passes until something has come about; the disk is used by threads, so real time does too."""
        for _ in range(400):
            if condition():
                return
            await self.clock.advance(1.0)
            await asyncio.sleep(0.005)
        raise AssertionError("it did not happen")

    def report(self) -> tuple[EndReport, ...] | None:
        body: Any = self.cluster.maps.get((NODES, wire.name_of(NODE)))
        return wire.parse_report(body)[1] if body is not None else None

    def file(self, holder: str) -> Any:
        return json.loads((self.root / holder / wire.ORDERS_FILE).read_text())

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def play(root: Path, story: Callable[[Part], Any], trust: Path | None = None) -> None:
    async def whole() -> None:
        part = Part(root, trust)
        try:
            await story(part)
            assert not part.task.done(), part.task.exception()
        finally:
            await part.end()

    asyncio.run(whole())


def test_orders_reach_folders_and_answers_the_api_server(tmp_path: Path) -> None:
    async def story(part: Part) -> None:
        part.order(*ENDS)
        await part.until(lambda: part.report() is not None)
        assert part.file("serve.d0")["peers"] == {"1": ["10.0.0.1:26000"]} and part.file("cluster-8")["links"] == []
        assert [(end.holder, end.alive) for end in part.report() or ()] == [("cluster-8", False), ("serve.d0", False)]
        lock = os.open(tmp_path / "serve.d0" / wire.LOCK_FILE, os.O_RDWR | os.O_CREAT)
        fcntl.flock(lock, fcntl.LOCK_EX)
        told = EndReport(9, "anything", True, (LinkReport(1, "linked", 0.5, 7),))
        (tmp_path / "serve.d0" / wire.REPORT_FILE).write_text(wire.end_report_text(told))
        await part.until(lambda: (part.report() or (None, None))[1] == EndReport(9, "serve.d0", True, told.links))
        os.close(lock)
        await part.until(lambda: not (part.report() or (None, told))[1].alive)
        part.order(ENDS[1])
        await part.until(lambda: not (tmp_path / "serve.d0").exists())
        part.cluster.set_map(None, SYSTEM, wire.name_of(NODE))
        await part.until(lambda: part.report() == ())
        assert list(tmp_path.iterdir()) == []

    play(tmp_path, story)


def test_a_node_without_links_writes_nothing(tmp_path: Path) -> None:
    async def story(part: Part) -> None:
        await part.clock.advance(3600.0)
        part.order()
        for _ in range(20):
            await part.clock.advance(60.0)
            await asyncio.sleep(0.002)
        assert part.report() is None and list(tmp_path.iterdir()) == []

    play(tmp_path, story)


def test_senseless_orders_leave_the_last_good_ones_and_a_restart_cleans_up(tmp_path: Path) -> None:
    async def story(part: Part) -> None:
        part.order(*ENDS)
        await part.until(lambda: part.report() is not None)
        part.cluster.set_map(wire.orders_map(NODE, '{"node": "node-b"}'))
        await part.clock.advance(30.0)
        assert part.file("serve.d0")["cluster"] == 9

    async def later(part: Part) -> None:
        part.order(ENDS[0])
        await part.until(lambda: not (tmp_path / "cluster-8").exists())
        assert part.file("serve.d0")["cluster"] == 9

    play(tmp_path, story)
    play(tmp_path, later)


def test_a_folder_that_cannot_be_used_is_reported_and_the_others_are_used(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "serve.d0").symlink_to(tmp_path / "elsewhere")

    async def story(part: Part) -> None:
        part.order(*ENDS)
        await part.until(lambda: part.report() is not None)
        fine, bad = part.report() or ()
        assert fine.problem == "" and "symbolic link" in bad.problem and not bad.alive
        assert list((tmp_path / "elsewhere").iterdir()) == []

    play(tmp_path / "root", story)


def test_forged_older_and_deleted_orders_leave_the_last_good_ones_in_force(tmp_path: Path) -> None:
    key, eve = new_signing_key(), new_signing_key()
    trust = tmp_path / "trust"
    trust.mkdir()
    (trust / "a.pub").write_bytes(key.public_pem())

    def orders(at: int, address: str, by: SigningKey | None = key, name: str = "") -> dict[str, Any]:
        end = EndOrders(9, "serve.d0", (LinkOrder(1, (address,), 3000, ("chat",)),))
        body = wire.orders_map(NODE, wire.orders_text(NODE, [end]))
        if by is not None:
            body["data"][SEAL_KEY] = text_of(by.seal(name or body["metadata"]["name"], covered(body), at))
        return body

    def address(part: Part) -> str:
        return str(part.file("serve.d0")["peers"]["1"][0]) if (part.root / "serve.d0").exists() else ""

    def problem(part: Part) -> str:
        return " ".join(end.problem for end in part.report() or ())

    async def story(part: Part) -> None:
        part.cluster.set_map(orders(10, "10.6.6.6:1", None))
        part.cluster.set_map(orders(10, "10.0.0.1:1"))
        await part.until(lambda: address(part) == "10.0.0.1:1")
        changed = orders(20, "10.0.0.2:1")
        changed["data"]["links.json"] = changed["data"]["links.json"].replace("10.0.0.2", "10.6.6.6")
        for body, said in (
            (orders(20, "10.6.6.6:1", None), "is not signed"),
            (orders(20, "10.6.6.6:1", eve), "unknown key"),
            (orders(20, "10.6.6.6:1", key, "belay-links-other"), "does not fit"),
            (changed, "does not fit"),
            (orders(5, "10.6.6.6:1"), "older than the one"),
            (None, "is gone"),
        ):
            part.cluster.set_map(body, SYSTEM, wire.name_of(NODE))
            await part.until(lambda said=said: said in problem(part))
            assert address(part) == "10.0.0.1:1"
        # after a restart too
        await part.end()
        part.start()
        part.cluster.set_map(orders(5, "10.6.6.6:1"))
        await part.clock.advance(30)
        assert address(part) == "10.0.0.1:1"
        part.cluster.set_map(orders(30, "10.0.0.3:1"))
        await part.until(lambda: address(part) == "10.0.0.3:1" and not problem(part))

    play(tmp_path / "links", story, trust)
