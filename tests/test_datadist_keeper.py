"""The keeper of links: it follows orders in a folder, mends what breaks, and ends only what it made."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from belay.agents.datadist import (
    BlocksCacheKey,
    CacheDesc,
    DataType,
    LLMDataDist,
    LLMException,
    LLMRole,
    LLMStatusCode,
    Placement,
)
from belay.agents.datadist import ordered_links as keeping
from belay.agents.datadist.links import MAX_LINKS, WarningLimiter
from belay.agents.node.linkfiles import LinkFolders
from belay.engine.model.links import EndOrders, EndReport, LinkOrder, LinkReport
from belay.engine.wire import links as wire
from tests.bench.links import LOGGER
from tests.link_ends import cluster_info, end_of, ends, port_of
from tests.ports import free_port

pytestmark = pytest.mark.real_time

__all__ = ["ends"]

PATIENCE = 150.0


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "PERIOD", 0.02)
    monkeypatch.setattr(keeping, "PING", 0.1)
    monkeypatch.setattr(keeping, "FIRST_PAUSE", 0.05)
    monkeypatch.setattr(keeping, "PAUSE_CEILING", 0.2)


def start(ends: list[LLMDataDist], cluster: int, port: int | None = None, **options: object) -> LLMDataDist:
    """A cluster for prefill and decode alike."""
    return end_of(ends, cluster, LLMRole.MIX, port, **options)


class Desk:
    """The agent's side of one process' folder."""

    def __init__(self, root: Path, cluster: int) -> None:
        self.folders, self.cluster, self.holder = LinkFolders(root), cluster, f"cluster-{cluster}"
        self.folder = root / self.holder
        self.last = EndOrders(cluster, self.holder)

    def order(self, *peers: tuple[int, int], timeout: int = 500) -> None:
        orders = [LinkOrder(number, (f"127.0.0.1:{port}",), timeout, ("chat",)) for number, port in peers]
        self.last = EndOrders(self.cluster, self.holder, tuple(orders))
        self.folders.order(self.last)

    def report(self) -> EndReport:
        return self.folders.report(self.last)

    def states(self) -> dict[int, str]:
        return {link.cluster: link.state for link in self.report().links}

    def link(self, number: int) -> LinkReport:
        return next(link for link in self.report().links if link.cluster == number)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def test_ordered_links_are_made_and_reported_with_their_latency(ends: list[LLMDataDist], tmp_path: Path) -> None:
    desk, one, two, me = Desk(tmp_path, 9), start(ends, 1, 0), start(ends, 2, 0), start(ends, 9)
    me.keep_links(desk.folder)
    desk.order((1, port_of(one)), (2, port_of(two)))
    until(lambda: desk.states() == {1: "linked", 2: "linked"})
    until(lambda: desk.link(1).latency_ms is not None)
    assert 0 < (desk.link(1).latency_ms or 0) < 1000 and desk.link(1).since_ms > 0
    me.check_link_status(1)
    assert set(one.linked()) == set(two.linked()) == {9}
    assert desk.report().alive and desk.report().cluster == 9


def test_nothing_is_written_while_nothing_changes(
    ends: list[LLMDataDist], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "TOLD_FACTOR", 1e9)  # a busy machine answers late, which is news
    desk, one, me = Desk(tmp_path, 9), start(ends, 1, 0), start(ends, 9)
    desk.order((1, port_of(one)))
    me.keep_links(desk.folder)
    until(lambda: desk.states() == {1: "linked"} and desk.link(1).latency_ms is not None)
    before = os.stat(desk.folder / wire.REPORT_FILE)
    time.sleep(0.4)  # four questions, twenty looks at the folder
    assert os.stat(desk.folder / wire.REPORT_FILE).st_mtime_ns == before.st_mtime_ns
    desk.folders.order(desk.last)
    assert not desk.folders.order(desk.last)


def test_a_peer_that_dies_is_linked_again_when_it_returns(ends: list[LLMDataDist], tmp_path: Path) -> None:
    desk, one, two, me = Desk(tmp_path, 9), start(ends, 1, 0), start(ends, 2, 0), start(ends, 9)
    port = port_of(one)
    desk.order((1, port), (2, port_of(two)))
    me.keep_links(desk.folder)
    until(lambda: desk.states() == {1: "linked", 2: "linked"})
    one.finalize()
    until(lambda: desk.states() == {1: "broken", 2: "linked"})
    assert desk.link(1).error
    start(ends, 1, port)
    until(lambda: desk.states() == {1: "linked", 2: "linked"})
    assert desk.link(1).tries == 0 and desk.link(1).error == ""
    me.check_link_status(1)


def test_a_peer_that_moves_is_linked_at_its_new_place(ends: list[LLMDataDist], tmp_path: Path) -> None:
    desk, old, me = Desk(tmp_path, 9), start(ends, 1, 0), start(ends, 9)
    desk.order((1, port_of(old)))
    me.keep_links(desk.folder)
    until(lambda: desk.states() == {1: "linked"})
    new = start(ends, 1, 0)
    desk.order((1, port_of(new)))
    until(lambda: set(new.linked()) == {9} and old.linked() == {})
    until(lambda: desk.states() == {1: "linked"})


def test_a_peer_that_is_not_there_is_tried_with_growing_pauses(ends: list[LLMDataDist], tmp_path: Path) -> None:
    desk, me, port = Desk(tmp_path, 9), start(ends, 9), free_port()
    desk.order((1, port))
    me.keep_links(desk.folder)
    began = time.monotonic()
    until(lambda: desk.states() == {1: "failed"} and desk.link(1).tries >= 4)
    assert desk.link(1).error == "LLM_LINK_FAILED"
    # four tries take three pauses of at least half of 50, 100 and 200 ms
    assert time.monotonic() - began >= 0.17
    start(ends, 1, port)
    until(lambda: desk.states() == {1: "linked"})


def test_withdrawn_links_are_ended_on_both_sides_and_others_left_alone(ends: list[LLMDataDist], tmp_path: Path) -> None:
    desk, one, two, mine, me = (Desk(tmp_path, 9), *(start(ends, n, 0) for n in (1, 2, 3)), start(ends, 9))
    info = cluster_info(3, port_of(mine))
    assert me.link_clusters([info])[0] is LLMStatusCode.LLM_SUCCESS
    desk.order((1, port_of(one)), (2, port_of(two)), (3, port_of(mine)))
    me.keep_links(desk.folder)
    until(lambda: desk.states() == {1: "linked", 2: "linked", 3: "linked"})
    desk.order((2, port_of(two)))
    until(lambda: set(me.linked()) == {2, 3} and one.linked() == {})
    assert desk.states() == {2: "linked"}
    desk.folders.withdraw(desk.holder)
    until(lambda: set(me.linked()) == {3} and two.linked() == {})
    me.check_link_status(3)


def test_a_process_that_dies_leaves_its_folder_to_the_next(ends: list[LLMDataDist], tmp_path: Path) -> None:
    desk, one, me = Desk(tmp_path, 9), start(ends, 1, 0), start(ends, 9)
    desk.order((1, port_of(one)))
    me.keep_links(desk.folder)
    until(lambda: desk.states() == {1: "linked"})
    second = start(ends, 9)
    second.keep_links(desk.folder)
    time.sleep(0.2)
    assert second.linked() == {}, "two processes keep the links of one folder"
    me.finalize()
    until(lambda: set(second.linked()) == {1})
    until(lambda: desk.report().alive and desk.states() == {1: "linked"})
    second.finalize()
    assert not desk.report().alive


def test_orders_that_are_not_for_this_process_or_cannot_be_read_do_no_harm(
    ends: list[LLMDataDist], tmp_path: Path
) -> None:
    desk, one, me = Desk(tmp_path, 9), start(ends, 1, 0), start(ends, 9)
    desk.order((1, port_of(one)))
    me.keep_links(desk.folder)
    until(lambda: desk.states() == {1: "linked"})
    for bad in ("{", '{"cluster": 9, "holder": "cluster-9", "links": [{"to": [5]}]}', "x" * (wire.MAX_FILE + 10)):
        (desk.folder / wire.ORDERS_FILE).write_text(bad)
        until(lambda: "orders are ignored" in desk.report().problem)
        assert set(me.linked()) == {1}
    text = wire.end_text(EndOrders(8, "cluster-9", (LinkOrder(1, ("127.0.0.1:1",), 100),)))
    (desk.folder / wire.ORDERS_FILE).write_text(text)
    until(lambda: "the orders are for cluster 8, this process is cluster 9" in desk.report().problem)
    until(lambda: me.linked() == {})


def test_an_invalid_address_is_reported_and_not_tried_again(ends: list[LLMDataDist], tmp_path: Path) -> None:
    desk, me = Desk(tmp_path, 9), start(ends, 9)
    desk.last = EndOrders(9, desk.holder, (LinkOrder(1, ("host.example:9",), 500),))
    desk.folders.order(desk.last)
    me.keep_links(desk.folder)
    until(lambda: desk.states() == {1: "failed"})
    assert "cannot be read" in desk.link(1).error and desk.link(1).tries == 0


def test_memory_registered_before_keeping_is_reached_and_later_memory_is_not(
    ends: list[LLMDataDist], tmp_path: Path
) -> None:
    desk, far, me = Desk(tmp_path, 9), start(ends, 1, 0), start(ends, 9)
    desc = CacheDesc(1, [4, 8], DataType.DT_UINT8, Placement.HOST)
    far.cache_manager.register_blocks_cache(desc, [bytearray(b"k" * 32)], BlocksCacheKey(1))
    mine = bytearray(32)
    cache = me.cache_manager.register_blocks_cache(desc, [mine])
    desk.order((1, port_of(far)))
    me.keep_links(desk.folder)
    until(lambda: desk.states() == {1: "linked"})
    me.cache_manager.pull_blocks(BlocksCacheKey(1), cache, [0], [3])
    assert bytes(mine) == b"\0" * 24 + b"k" * 8
    far.cache_manager.register_blocks_cache(desc, [bytearray(32)], BlocksCacheKey(1, 7))
    with pytest.raises(LLMException) as caught:
        me.cache_manager.pull_blocks(BlocksCacheKey(1, 7), cache, [0], [0])
    assert caught.value.status_code is LLMStatusCode.LLM_KV_CACHE_NOT_EXIST


def test_links_are_kept_once_and_only_after_init(ends: list[LLMDataDist], tmp_path: Path) -> None:
    with pytest.raises(LLMException, match="call init"):
        LLMDataDist(LLMRole.MIX, 9).keep_links(tmp_path)
    me = start(ends, 9)
    me.keep_links(tmp_path / "not-there-yet")
    with pytest.raises(LLMException, match="already"):
        me.keep_links(tmp_path)


def test_clients_that_died_make_room_for_new_ones(ends: list[LLMDataDist], monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_LINKS == 512
    monkeypatch.setattr("belay.agents.datadist.links.MAX_LINKS", 4)
    server = start(ends, 1, 0)
    info = cluster_info(1, port_of(server))
    clients = [start(ends, 10 + n) for n in range(4)]
    for client in clients:
        assert client.link_clusters([info])[0] is LLMStatusCode.LLM_SUCCESS
    until(lambda: len(server.linked()) == 4)
    assert start(ends, 20).link_clusters([info])[0] is LLMStatusCode.LLM_CLUSTER_NUM_EXCEED_LIMIT
    # pods that came and went under new names must not use up the server's links for ever
    clients[0].finalize()
    until(lambda: server.linked()[10] is not None)
    assert start(ends, 21).link_clusters([info])[0] is LLMStatusCode.LLM_SUCCESS
    until(lambda: set(server.linked()) == {11, 12, 13, 21})


def test_many_broken_links_are_reported_in_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    from belay.agents.datadist.links import WarningLimiter

    said, now = WarningLimiter(), [100.0]
    with pytest.MonkeyPatch.context() as patch, caplog.at_level("WARNING", "belay.datadist.links"):
        patch.setattr("belay.agents.datadist.links.time.monotonic", lambda: now[0])
        for number in range(512):
            said.warn("a link broke", cluster=number)
        assert len(caplog.records) == WarningLimiter.LINES
        now[0] += WarningLimiter.WINDOW
        said.warn("a link broke", cluster=1)
    assert caplog.records[-1].__dict__["belay_fields"]["left_out_before"] == 512 - WarningLimiter.LINES


# ---- the agent's side of the folder


def test_answers_of_hostile_containers_are_bounded_and_links_not_followed(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "root", 9)
    desk.order((1, 1))
    secret = tmp_path / "secret"
    secret.write_text('{"cluster": 9, "problem": "stolen"}')
    lock = os.open(desk.folder / wire.LOCK_FILE, os.O_RDWR | os.O_CREAT)

    fcntl.flock(lock, fcntl.LOCK_EX)
    (desk.folder / wire.REPORT_FILE).symlink_to(secret)
    assert "stolen" not in desk.report().problem and "refused" in desk.report().problem
    (desk.folder / wire.REPORT_FILE).unlink()
    os.mkfifo(desk.folder / wire.REPORT_FILE)
    assert "refused" in desk.report().problem
    (desk.folder / wire.REPORT_FILE).unlink()
    for bad in ("x" * (wire.MAX_FILE + 1), "[" * 10_000, '{"cluster": "x"}'):
        (desk.folder / wire.REPORT_FILE).write_text(bad)
        report = desk.report()
        assert not report.alive and report.links == () and len(report.problem) < 500
    rows = [{"cluster": n, "state": "s" * 999, "error": "e" * 999} for n in range(600)]
    (desk.folder / wire.REPORT_FILE).write_text(json.dumps({"cluster": 9, "links": rows})[: wire.MAX_FILE])
    assert not desk.report().alive
    (desk.folder / wire.REPORT_FILE).write_text(json.dumps({"cluster": 9, "links": rows[:100]}))
    assert {(len(link.state), len(link.error)) for link in desk.report().links} == {(16, wire.MAX_ERROR)}
    os.close(lock)
    assert not desk.report().alive


def test_a_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    root.mkdir()
    elsewhere.mkdir()
    (root / "cluster-9").symlink_to(elsewhere)
    with pytest.raises(OSError, match="symbolic link"):
        LinkFolders(root).order(EndOrders(9, "cluster-9"))
    assert list(elsewhere.iterdir()) == []


def test_folders_of_withdrawn_processes_go(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "root", 9)
    desk.order((1, 1))
    assert desk.folders.standing() == ["cluster-9"]
    assert os.stat(desk.folder).st_mode & 0o7777 == 0o1777
    desk.folders.withdraw("cluster-9")
    desk.folders.withdraw("cluster-9")
    assert desk.folders.standing() == []


def test_the_log_that_the_benchmark_silences_is_the_one_that_broken_links_write(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("ERROR", LOGGER)
    WarningLimiter().warn("a link broke")
    assert not caplog.records
    caplog.set_level("WARNING", LOGGER)
    WarningLimiter().warn("a link broke")
    assert [record.message for record in caplog.records] == ["a link broke"]
