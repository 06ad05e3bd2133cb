"""Signed orders on a real kube-apiserver: a signed commit leads to a reset; forged, old and foreign orders do not."""

from __future__ import annotations

import asyncio
import copy
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from belay.agents.daemon.run import run_agent
from belay.agents.drivers.server_models import SERVER_MODELS
from belay.agents.drivers.simulated import SimulatedDriver
from belay.agents.node.settings import Settings
from belay.engine.cli import main
from belay.engine.cli.key_sets import new_signing_key
from belay.engine.kube import CONFIGMAP
from belay.engine.model.cluster import AgentReport, ResetOrder
from belay.engine.model.seals import Warrant, reset_warrant
from belay.engine.sandbox import definitions
from belay.engine.wire import commitproof
from belay.engine.wire.names import NODES, SYSTEM
from belay.engine.wire.orders import build_orders, parse_orders, parse_report
from belay.engine.wire.seals import SEAL_KEY, SigningKey, covered, seal_of, text_of
from tests.gitrepo import Repo
from tests.kube_server import real_cluster
from tests.loop_world import Cluster, Loop, until
from tests.needs import assets
from tests.redis_server import redis_process, redis_url  # noqa: F401
from tests.signing import allow, ssh_key, ssh_options

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]
NODE = "node-1"
FAULT = "80C98001"
PRODUCT = Path(__file__).parents[2] / "policies/products/atlas-800t-a2.yaml"
RULE = "Product/atlas-800t-a2#reset"
PATIENCE = 90.0


def now_ms() -> int:
    return int(time.time() * 1000)


class Agent:
    """A real node agent on a simulated driver, in a thread with an event loop of its own."""

    def __init__(self, kubeconfig: str, folder: Path, trust: Path) -> None:
        row = SERVER_MODELS["atlas-800t-a2"]
        self.driver = SimulatedDriver(NODE, row, now_ms=now_ms, sleep=asyncio.sleep, scale=0.01)
        self._loop, self._stop = asyncio.new_event_loop(), asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        settings = Settings(order_trust=str(trust), scale=0.02)
        work = run_agent(
            NODE, journal_dir=folder, driver=self.driver, kubeconfig=kubeconfig, settings=settings, stop=self._stop
        )
        self._running = asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._running.result(PATIENCE)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with real_cluster(assets("etcd", "kube-apiserver"), tmp_path) as kubeconfig:
        made = Cluster(tmp_path, kubeconfig)
        try:
            made.run(definitions.ensure(made.kube))
            made.add_node(NODE)
            yield made
        finally:
            made.close()


def belay(*arguments: str) -> str:
    done = CliRunner().invoke(main, list(arguments))
    assert done.exit_code == 0, done.output
    return done.output


def test_only_what_a_signed_commit_and_the_engine_entitle_to_is_carried_out(
    cluster: Cluster,
    redis_url: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    repo, ada = Repo(tmp_path / "git"), ssh_key(tmp_path, "ada")
    signers, keys = allow(tmp_path / "allowed-signers", ada=ada), tmp_path / "keys"
    belay("keys", "create", "orders", "--dir", str(keys), "--allowed-signers", str(signers))
    key = SigningKey((keys / "order-keys" / "signing.pem").read_bytes())
    commit = repo.commit({"policies/products/atlas-800t-a2.yaml": PRODUCT.read_bytes()}, *ssh_options(ada))
    loop = Loop(
        cluster, redis_url, tmp_path / "data", order_keys=str(keys / "order-keys"), source_url=str(repo.bare),
        source_interval=1.0, source_verify="ssh", source_signers=str(signers),
    )  # fmt: skip
    agent = Agent(cluster.kubeconfig, tmp_path / "agent", keys / "order-trust")
    try:
        first = carried_out(cluster, agent, commit)
        loop.close()
        refused(cluster, agent, key, first, commit)
    finally:
        loop.close()
        agent.close()


def report(cluster: Cluster) -> AgentReport | None:
    found = cluster.get(CONFIGMAP, f"belay-report-{NODE}", NODES)
    return parse_report(found) if found else None


def orders(cluster: Cluster) -> dict[str, Any]:
    return cluster.get(CONFIGMAP, f"belay-orders-{NODE}", SYSTEM) or {"metadata": {}, "data": {}}


def carried_out(cluster: Cluster, agent: Agent, commit: str) -> dict[str, Any]:
    """The engine follows the signed commit, signs, and the agent resets; returns the signed orders."""

    def trusted() -> bool:
        found = report(cluster)
        return found is not None and found.orders_trust == "Verified"

    until(trusted, PATIENCE, "orders that the agent believes")
    first = copy.deepcopy(orders(cluster))
    agent.driver.inject(3, FAULT)

    def done() -> bool:
        found = report(cluster)
        return found is not None and found.chips[3].reset_result == "ok"

    until(done, PATIENCE, "the reset that the engine orders")
    warrant = parse_orders(orders(cluster)).warrants["Ascend910-3/reset"]
    assert (warrant.rule, warrant.revision, warrant.epoch) == (RULE, commit, 1) and len(agent.driver.resets) == 1
    proof = commitproof.parse(cluster.get(CONFIGMAP, "belay-commit", SYSTEM) or {})
    assert proof.revision == commit and RULE in proof.rules()
    log = cluster.get(CONFIGMAP, "belay-revisions", SYSTEM) or {}
    assert seal_of(log) is not None, "the log of accepted revisions is signed too"
    return first


def refused(cluster: Cluster, agent: Agent, key: SigningKey, first: dict[str, Any], commit: str) -> None:
    """No order that another wrote is carried out; the report says why, and the next good one still is."""
    good = parse_orders(orders(cluster))
    assert good.seal is not None
    at, eve = good.seal.signed_at, new_signing_key()
    agent.driver.inject(3, FAULT)

    def ordered(epoch: int, rule: str = RULE, life_ms: int = 600_000) -> dict[str, Any]:
        now, group = now_ms(), tuple(range(8))
        warrants = {reset_warrant(f"Ascend910-{c}"): Warrant(rule=rule, epoch=epoch, revision=commit) for c in group}
        changed = msgspec.structs.replace(
            good, generation=good.generation + epoch, issued_ms=now, not_after_ms=now + life_ms, isolate={},
            resets={c: ResetOrder(epoch, group, "RestartNPU", 0) for c in group}, warrants=warrants,
        )  # fmt: skip
        return build_orders(changed, "Ascend910-")

    def sealed(body: dict[str, Any], by: SigningKey, name: str = "") -> dict[str, Any]:
        nonlocal at
        at += 1000
        body["data"][SEAL_KEY] = text_of(by.seal(name or body["metadata"]["name"], covered(body), at))
        return body

    def put(body: dict[str, Any]) -> None:
        body["metadata"].pop("resourceVersion", None)
        cluster.run(cluster.kube.replace(CONFIGMAP, body))

    def says(text: str) -> None:
        def said() -> bool:
            found = report(cluster)
            return found is not None and text in " ".join((*found.errors, found.chips[3].reset_result))

        until(said, PATIENCE, f"the reason {text!r} in the report")
        assert len(agent.driver.resets) == 1, text

    changed = sealed(ordered(2), key)
    changed["data"]["orders.json"] = changed["data"]["orders.json"].replace('"epoch":2', '"epoch":3')
    for body, reason in (
        (ordered(2), "is not signed"),
        (sealed(ordered(2), eve), "unknown key"),
        (changed, "does not fit"),
        (sealed(ordered(2), key, "belay-orders-node-2"), "does not fit"),
        (copy.deepcopy(first), "is older than the one"),
    ):
        put(body)
        says(reason)
        found = report(cluster)
        assert found is not None and found.orders_trust == "Refused" and found.chips[3].reset_epoch_done == 1
    # who holds the engine's key still cannot go beyond the policy and the commit
    put(sealed(ordered(4, life_ms=-1000), key))
    says("refused: the order has expired")
    put(sealed(ordered(5, "made up"), key))
    says("refused: rule 'made up' is not in the policy that was signed")
    proof = cluster.get(CONFIGMAP, "belay-commit", SYSTEM) or {}
    forged = copy.deepcopy(proof)
    name = commitproof.parse(proof).revision
    objects = commitproof.parse(proof).objects | {name: commitproof.git_object("commit", b"tree " + b"0" * 40)}
    forged["data"] = commitproof.build(
        msgspec.structs.replace(commitproof.parse(proof), objects=objects), "main"
    )["data"]  # fmt: skip
    put(forged)
    put(sealed(ordered(6), key))
    says("the commit is not believed")
    put(proof)
    until(lambda: len(agent.driver.resets) == 2, PATIENCE, "the good order")
