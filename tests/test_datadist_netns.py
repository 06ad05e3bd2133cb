"""Links over a network that drops packets: real processes in namespaces of their own, this process links to them."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from belay.agents.datadist import (
    BlocksCacheKey,
    CacheDesc,
    DataType,
    LLMClusterInfo,
    LLMDataDist,
    LLMException,
    LLMRole,
    LLMStatusCode,
    Placement,
)
from belay.agents.datadist import ordered_links as keeping
from belay.agents.node.linkfiles import LinkFolders
from belay.engine.model.links import EndOrders, LinkOrder
from tests.netns import Host, Network, network  # noqa: F401

S = LLMStatusCode
PORT = 26000
PATIENCE = 150.0
BLOCKS, BLOCK = 64, 1 << 20
pytestmark = pytest.mark.xdist_group("netns")


class Server:
    """A process in a namespace that serves one tensor of 64 blocks of a MiB; cluster ``n`` fills it with byte ``n``."""

    def __init__(self, host: Host, cluster: int, folder: Path) -> None:
        self.host, self.cluster, self._folder = host, cluster, folder
        self._memory = folder / f"memory-{cluster}"
        self._memory.mkdir()
        (self._memory / "tensor-0").write_bytes(bytes([cluster]) * (BLOCKS * BLOCK))
        self.start()

    def start(self) -> None:
        with (self._folder / f"{self.cluster}.log").open("ab") as log:
            self._process = subprocess.Popen(
                self.host.command(
                    sys.executable, "-m", "belay.agents.datadist", "--cluster", str(self.cluster), "--listen",
                    f"{self.host.far}:{PORT}", "--folder", str(self._folder / "none"), "--tensors", "1",
                    "--blocks", str(BLOCKS), "--block-bytes", str(BLOCK), "--memory", str(self._memory),
                ),
                stdout=log, stderr=log,
            )  # fmt: skip

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE)

    def info(self) -> LLMClusterInfo:
        info = LLMClusterInfo()
        info.remote_cluster_id = self.cluster
        info.append_local_ip_info(self.host.near, 1)
        info.append_remote_ip_info(self.host.far, PORT)
        return info

    def listens(self) -> bool:
        return f":{PORT}" in self.host.exec("ss", "-Htln")


@pytest.fixture
def servers(network: Network, tmp_path: Path) -> Iterator[Callable[[int], list[Server]]]:  # noqa: F811
    made: list[Server] = []

    def start(count: int) -> list[Server]:
        made.extend(Server(network.host(), number, tmp_path) for number in range(1, count + 1))
        until(lambda: all(server.listens() for server in made))
        return made

    yield start
    for server in made:
        server.kill()


@pytest.fixture
def client() -> Iterator[LLMDataDist]:
    end = LLMDataDist(LLMRole.DECODER, 99)
    end.init({"llm.SyncKvCacheWaitTime": "5000"})
    yield end
    end.finalize()


def until(condition: Callable[[], object], what: str = "it") -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.02)


def test_peers_that_drop_packets_cost_only_their_own_links_the_time_out(
    servers: Callable[[int], list[Server]], client: LLMDataDist
) -> None:
    them = servers(6)
    them[1].host.drop()
    them[4].host.unplug()
    began = time.monotonic()
    overall, codes = client.link_clusters([server.info() for server in them], 5000)
    took = time.monotonic() - began
    assert overall is S.LLM_WAIT_PROC_TIMEOUT
    # a host that drops never answers, and one that is unplugged is not found
    assert codes[1] is S.LLM_WAIT_PROC_TIMEOUT and codes[4] in (S.LLM_WAIT_PROC_TIMEOUT, S.LLM_LINK_FAILED)
    assert [codes[i] for i in (0, 2, 3, 5)] == [S.LLM_SUCCESS] * 4
    assert 4.9 < took < 10.0, "two that drop are waited for at the same time"
    for index in (0, 2, 3, 5):
        client.check_link_status(them[index].cluster)
    them[1].host.pass_again()
    them[4].host.plug()
    assert client.link_clusters([them[1].info(), them[4].info()], 60_000)[0] is S.LLM_SUCCESS
    client.check_link_status(2)
    client.check_link_status(5)


def test_a_process_that_is_gone_is_refused_at_once_and_a_host_that_is_gone_is_not(
    servers: Callable[[int], list[Server]], client: LLMDataDist
) -> None:
    (one,) = servers(1)
    one.kill()
    began = time.monotonic()
    assert client.link_clusters([one.info()], 60_000) == (S.LLM_LINK_FAILED, [S.LLM_LINK_FAILED])
    assert time.monotonic() - began < 30.0
    one.host.drop()
    assert client.link_clusters([one.info()], 300) == (S.LLM_WAIT_PROC_TIMEOUT, [S.LLM_WAIT_PROC_TIMEOUT])


def test_a_drop_amid_a_pull_ends_that_link_and_a_new_one_pulls_it_all(
    servers: Callable[[int], list[Server]], client: LLMDataDist
) -> None:
    one, two = servers(2)
    assert client.link_clusters([one.info(), two.info()])[0] is S.LLM_SUCCESS
    desc = CacheDesc(1, [BLOCKS, BLOCK], DataType.DT_UINT8, Placement.HOST)
    mine, other = bytearray(BLOCKS * BLOCK), bytearray(BLOCKS * BLOCK)
    cache = client.cache_manager.register_blocks_cache(desc, [mine])
    beside = client.cache_manager.register_blocks_cache(desc, [other])
    every = list(range(BLOCKS))
    errors: list[LLMException] = []
    moved = threading.Event()

    def pull_for_ever() -> None:
        try:
            while True:
                client.cache_manager.pull_blocks(BlocksCacheKey(1), cache, every, every)
                moved.set()
        except LLMException as error:
            errors.append(error)

    pulling = threading.Thread(target=pull_for_ever)
    pulling.start()
    assert moved.wait(PATIENCE), errors
    one.host.drop()
    client.cache_manager.pull_blocks(BlocksCacheKey(2), beside, every, every)
    assert bytes(other[:1]) == b"\x02" and other.count(2) == len(other)
    pulling.join(PATIENCE)
    assert [error.status_code for error in errors] == [S.LLM_WAIT_PROC_TIMEOUT]
    with pytest.raises(LLMException, match="broken"):
        client.check_link_status(1)
    client.check_link_status(2)
    with pytest.raises(LLMException) as caught:
        client.cache_manager.pull_blocks(BlocksCacheKey(1), cache, [0], [0])
    assert caught.value.status_code is S.LLM_NOT_YET_LINK

    one.host.pass_again()
    mine[:] = bytes(len(mine))
    assert client.link_clusters([one.info()], 60_000)[0] is S.LLM_SUCCESS
    client.cache_manager.pull_blocks(BlocksCacheKey(1), cache, every, every)
    assert mine.count(1) == len(mine)


def test_kept_links_that_lose_the_network_are_mended_and_no_others_are_touched(
    servers: Callable[[int], list[Server]], client: LLMDataDist, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("PERIOD", 0.05), ("PING", 0.2), ("FIRST_PAUSE", 0.1), ("PAUSE_CEILING", 0.5)):
        monkeypatch.setattr(keeping, name, value)
    them, folders = servers(4), LinkFolders(tmp_path / "links")
    orders = EndOrders(
        99,
        "cluster-99",
        tuple(LinkOrder(server.cluster, (f"{server.host.far}:{PORT}",), 3000, ("chat",)) for server in them),
    )
    folders.order(orders)
    client.keep_links(tmp_path / "links" / "cluster-99")

    def states() -> dict[int, str]:
        return {link.cluster: link.state for link in folders.report(orders).links}

    def since() -> dict[int, int]:
        return {link.cluster: link.since_ms for link in folders.report(orders).links}

    until(lambda: set(states().values()) == {"linked"} and len(states()) == 4, "the links")
    before = since()
    them[0].host.drop()
    them[1].kill()
    until(lambda: states() == {1: "broken", 2: "broken", 3: "linked", 4: "linked"}, "the loss")
    told = {link.cluster: link for link in folders.report(orders).links}
    assert "no answer" in told[1].error or told[1].error == "LLM_WAIT_PROCESS_TIMEOUT"
    until(lambda: {n: link.tries for n, link in enumerate(folders.report(orders).links)}[0] >= 2, "tries")
    them[0].host.pass_again()
    them[1].start()
    until(lambda: set(states().values()) == {"linked"}, "the mending")
    assert {n: since()[n] for n in (3, 4)} == {n: before[n] for n in (3, 4)}
    for server in them:
        client.check_link_status(server.cluster)
