"""Signed orders: what the engine seals, and what an agent that holds the engine's keys refuses."""

from __future__ import annotations

import copy
import json
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from belay.agents.node.settings import Settings
from belay.agents.node.trust import OrderTrust
from belay.engine.act import Edge, Fence
from belay.engine.act.orders import order_chips, set_policy
from belay.engine.cli import main
from belay.engine.errors import InputError
from belay.engine.kube import CONFIGMAP
from belay.engine.kube.lease import shard_lease
from belay.engine.kube.order_keys import OrderKeys
from belay.engine.model.actions import Evidence, IsolateChip, ResetChips
from belay.engine.model.cluster import Orders, ResetOrder
from belay.engine.model.labels import POOL_LABEL
from belay.engine.model.seals import BUILT_IN_RULES, Entitlements, Warrant, reset_warrant
from belay.engine.wire import revisionlog
from belay.engine.wire.names import ORDERS_PREFIX, SYSTEM
from belay.engine.wire.orders import build_orders, parse_orders
from belay.engine.wire.policy import NodePolicy, build_policy, entitle, parse_entitlements, parse_policy
from belay.engine.wire.revisionlog import RevisionEntry, RevisionLog
from belay.engine.wire.seals import SEAL_KEY, SigningKey, TrustedKeys, covered, digests, seal_of, text_of
from tests.agent_world import FAULT, NODE, RULES, World, scenario
from tests.loop_world import Cluster, Loop, until
from tests.redis_server import redis_process, redis_url  # noqa: F401
from tests.test_agent_orders import ALL, faulty

pytestmark = pytest.mark.real_time

RULE = "Product/atlas-800t-a2#reset"
NOW = 1_800_000_000.0


def key_in(folder: Path, name: str = "signing.pem") -> SigningKey:
    """A key as docs/signed.md makes it."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(folder / name)], check=True)
    return SigningKey((folder / name).read_bytes())


class SignedWorld:
    """A node whose agent holds the engine's public key, and what the engine writes for it."""

    def __init__(self, folder: Path, world: World, signers: str = "") -> None:
        self.key = key_in(folder / "keys")
        self.trust = folder / "trust"
        self.trust.mkdir()
        (self.trust / "a.pub").write_bytes(self.key.public_pem())
        if signers:
            (self.trust / "signers").write_text(signers)
        self.world = world
        world.settings = Settings(order_trust=str(self.trust))
        self.policy = NodePolicy("default", RULES)
        self.at = world.clock.now_ms()
        self.generation = 0

    def sealed(self, body: dict[str, Any], key: SigningKey | None = None) -> dict[str, Any]:
        self.at += 1
        body["data"][SEAL_KEY] = text_of((key or self.key).seal(body["metadata"]["name"], covered(body), self.at))
        return body

    def put_policy(self, rules: tuple[str, ...] = (RULE,), key: SigningKey | None = None) -> None:
        body = build_policy(self.policy)
        signer = "ada@example.org (SHA256:abc)"
        entitle(body, Entitlements(pool="default", policy_digest=self.policy.digest, signer=signer, rules=rules))
        self.world.cluster.set_map(self.sealed(body, key))

    def orders(
        self, epoch: int, rule: str = RULE, isolate: dict[int, str] | None = None, revision: str = ""
    ) -> dict[str, Any]:
        self.generation += 1
        now, prefix = self.world.clock.now_ms(), self.world.driver.row.machine.prefix
        resets = {c: ResetOrder(epoch, tuple(ALL), "RestartNPU", 0) for c in ALL} if epoch else {}
        warrants = {reset_warrant(f"{prefix}{c}"): Warrant(rule=rule, epoch=epoch, revision=revision) for c in resets}
        orders = Orders(
            NODE, "", self.generation, "r1", self.policy.digest, now, now + 900_000, isolate or {}, resets, 0, {},
            pool="default", warrants=warrants,
        )  # fmt: skip
        return build_orders(orders, prefix)

    def put(self, body: dict[str, Any]) -> None:
        self.world.cluster.set_map(copy.deepcopy(body))

    @property
    def errors(self) -> str:
        return " ".join(self.world.report.errors)


def run(tmp_path: Path, act: Callable[[SignedWorld], Awaitable[None]], signers: str = "") -> None:
    async def story(world: World) -> None:
        signed = SignedWorld(tmp_path, world, signers)
        signed.put_policy()
        await faulty(world)
        await act(signed)

    scenario(tmp_path, story)


def test_a_sealed_order_of_the_signed_policy_is_carried_out(tmp_path: Path) -> None:
    async def act(signed: SignedWorld) -> None:
        signed.put(signed.sealed(signed.orders(1)))
        await signed.world.run(40)
        assert signed.world.driver.resets == [tuple(ALL)] and signed.world.result(3) == (1, "ok")
        assert signed.world.report.orders_trust == "Verified"

    run(tmp_path, act, "ada@example.org\n")


@pytest.mark.parametrize("attack", ["unsigned", "other key", "changed epoch", "other node", "older", "deleted"])
def test_a_forged_or_old_order_is_refused_and_takes_no_epoch(tmp_path: Path, attack: str) -> None:
    async def act(signed: SignedWorld) -> None:
        old = signed.sealed(signed.orders(1))
        signed.put(signed.sealed(signed.orders(0, isolate={3: "SeparateNPU"})))
        await signed.world.run(10)
        body: dict[str, Any] | None = signed.sealed(signed.orders(2))
        assert body is not None
        match attack:
            case "unsigned":
                del body["data"][SEAL_KEY]
            case "other key":
                body = signed.sealed(body, key_in(tmp_path / "eve"))
            case "changed epoch":
                body["data"]["orders.json"] = body["data"]["orders.json"].replace('"epoch":2', '"epoch":9')
            case "other node":
                seal = signed.key.seal(ORDERS_PREFIX + "another", covered(body), signed.at + 1)
                body["data"][SEAL_KEY] = text_of(seal)
            case "older":
                body = old
            case "deleted":
                body = None
        if body is None:
            signed.world.cluster.set_map(None, SYSTEM, ORDERS_PREFIX + NODE)
        else:
            signed.put(body)
        await signed.world.run(120)
        assert signed.world.driver.resets == [] and signed.world.result(3) == (0, "")
        assert "orders are refused" in " ".join(signed.world.report.errors)
        assert signed.world.report.orders_trust == "Refused"
        assert signed.world.agent.withheld(3) is not None, "the last good orders stay in force"
        # also after a restart, and the next good order is carried out
        await signed.world.restart()
        await signed.world.run(120)
        assert signed.world.driver.resets == []
        signed.put(signed.sealed(signed.orders(3)))
        await signed.world.run(120)
        assert signed.world.result(3) == (3, "ok")

    run(tmp_path, act)


def test_an_order_by_a_rule_that_the_policy_does_not_hold_is_refused_with_the_reason(tmp_path: Path) -> None:
    async def act(signed: SignedWorld) -> None:
        signed.put(signed.sealed(signed.orders(1, rule="made up")))
        await signed.world.run(120)
        epoch, result = signed.world.result(3)
        assert signed.world.driver.resets == [] and epoch == 1
        assert result == "refused: rule 'made up' is not in the policy that was signed"

    run(tmp_path, act)


def test_a_policy_of_a_signer_who_is_not_allowed_entitles_to_nothing(tmp_path: Path) -> None:
    async def act(signed: SignedWorld) -> None:
        signed.put(signed.sealed(signed.orders(1)))
        await signed.world.run(120)
        assert signed.world.driver.resets == [] and "is not allowed on this node" in signed.world.result(3)[1]

    run(tmp_path, act, "bob@example.org\n")


def test_a_forged_policy_is_ignored_and_acts_wait_for_the_one_that_orders_name(tmp_path: Path) -> None:
    async def act(signed: SignedWorld) -> None:
        signed.policy = NodePolicy("default", msgspec.structs.replace(RULES, table={}))
        signed.put_policy(key=key_in(tmp_path / "eve"))
        signed.put(signed.sealed(signed.orders(1)))
        await signed.world.run(120)
        assert signed.world.driver.resets == [] and "policy is ignored" in " ".join(signed.world.report.errors)

    run(tmp_path, act)


def test_keys_rotate_with_overlap_and_stay_pinned_when_the_secret_goes(tmp_path: Path) -> None:
    async def act(signed: SignedWorld) -> None:
        second = key_in(tmp_path / "second")
        (signed.trust / "b.pub").write_bytes(second.public_pem())
        signed.put(signed.sealed(signed.orders(1), second))
        await signed.world.run(60)
        assert signed.world.result(3) == (1, "ok")
        for file in signed.trust.iterdir():
            file.unlink()
        await signed.world.restart()
        signed.world.driver.inject(3, FAULT)
        signed.put(signed.orders(2))
        await signed.world.run(120)
        assert signed.world.report.orders_trust == "Refused" and len(signed.world.driver.resets) == 1

    run(tmp_path, act)


def test_without_keys_orders_are_carried_out_and_called_unsigned(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await faulty(world)
        world.order({3: 1})
        await world.run(40)
        assert world.result(3) == (1, "ok") and world.report.orders_trust == "Unsigned"

    scenario(tmp_path, story)


def test_a_key_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.pub").write_text("no key")
    with pytest.raises(ValueError, match=r"a\.pub is not a public key"):
        OrderTrust(str(tmp_path), tmp_path / "state", NODE)
    (tmp_path / "signing.pem").write_text("no key")
    with pytest.raises(InputError, match=r"a\.pub: is not a public key"):
        OrderKeys(str(tmp_path))


def export(signed: SignedWorld, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    body = {"apiVersion": "v1", "kind": "List", "items": list(signed.world.cluster.maps.values())}
    (folder / "all.json").write_text(json.dumps(body))


@pytest.mark.parametrize("there", [True, False])
def test_a_mistyped_folder_of_keys_does_not_turn_signing_off(tmp_path: Path, there: bool) -> None:
    path = tmp_path / "keys"
    if there:
        path.write_text("no folder")
    with pytest.raises(InputError, match=r"BELAY_ORDER_KEYS .*keys: is not a folder"):
        OrderKeys(str(path))


def test_a_worker_with_a_mistyped_folder_of_keys_ends_at_its_start(tmp_path: Path) -> None:
    found = CliRunner().invoke(main, ["worker"], env={"BELAY_ORDER_KEYS": str(tmp_path / "keys")})
    assert found.exit_code == 2
    assert f"BELAY_ORDER_KEYS {tmp_path}/keys: is not a folder" in found.stderr


def test_the_chain_of_an_order_is_explained_and_checked_offline(tmp_path: Path) -> None:
    async def act(signed: SignedWorld) -> None:
        signed.put(signed.sealed(signed.orders(1)))
        await signed.world.run(60)
        log = RevisionLog().appended(RevisionEntry(number=0, revision="r1", source="s main", signer="ada@example.org"))
        signed.world.cluster.set_map(signed.sealed(revisionlog.build(log, "main")))
        export(signed, tmp_path / "out")
        runner = CliRunner()
        where = ["--cluster", str(tmp_path / "out" / "all.json"), "-o", "json"]
        found = json.loads(runner.invoke(main, ["explain", "order", f"{NODE}/Ascend910-3", *where]).stdout)
        assert found["orders"][0]["rule"] == RULE and found["orders"][0]["signer"] == "ada@example.org"
        assert found["agent"]["resetResult"] == "ok" and found["agent"]["trust"] == "Verified"
        assert signed.key.key_id in found["signed"] and found["policy"]["signer"].startswith("ada@example.org")
        check = ["verify", str(tmp_path / "out"), "--keys", str(signed.trust)]
        good = runner.invoke(main, check)
        assert good.exit_code == 0, good.output
        # each forged link is found
        name = (SYSTEM, ORDERS_PREFIX + NODE)
        signed.world.cluster.maps[name]["data"]["orders.json"] += " "
        export(signed, tmp_path / "out")
        assert "does not fit" in runner.invoke(main, [*check, "-o", "json"]).stdout
        signed.put(signed.sealed(signed.orders(2, rule="made up")))
        export(signed, tmp_path / "out")
        bad = runner.invoke(main, [*check, "-o", "json"])
        assert bad.exit_code == 1 and "'made up' is not among them" in bad.stdout

    run(tmp_path, act)


# ---- the engine


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("api"))
    yield made
    made.close()


def test_the_engine_seals_orders_and_never_what_others_wrote(cluster: Cluster, tmp_path: Path) -> None:
    key = key_in(tmp_path)
    trusted = TrustedKeys([key.public_pem()])
    epoch = cluster.run(shard_lease(cluster.kube, "main", "me").acquire())
    fence = Fence(cluster.kube, "main", epoch, seconds=0.0)
    edge = Edge(cluster.kube, "main", fence, now=lambda: NOW, revision="c1", keys=OrderKeys(str(tmp_path)), plan="p1")
    why: dict[str, Any] = {"reason": "Test", "message": "a test", "evidence": Evidence(rule=RULE, codes=("80E0",))}

    def live() -> dict[str, Any]:
        return cluster.get(CONFIGMAP, "belay-orders-node-1", SYSTEM) or {}

    def problem() -> str:
        body = live()
        return trusted.problem("belay-orders-node-1", digests(covered(body)), seal_of(body))

    reset = ResetChips(**why, node="node-1", chips=("Ascend910-0",), epoch=1, out_of_band=False)
    assert cluster.run(order_chips(edge, "node-1", [reset])) == [True]
    assert cluster.run(set_policy(edge, "node-1", "default", "d1")) and problem() == ""
    found = parse_orders(live())
    warrant = found.warrants["Ascend910-0/reset"]
    assert (warrant.rule, warrant.epoch, warrant.plan, warrant.revision) == (RULE, 1, "p1", "c1")
    assert found.pool == "default" and not cluster.run(set_policy(edge, "node-1", "default", "d1"))
    # a reset written by another writer gets no seal: it is dropped, and isolations stay
    body = live()
    orders = json.loads(body["data"]["orders.json"])
    orders["chips"]["Ascend910-0"]["isolate"] = "SeparateNPU"
    orders["chips"]["Ascend910-5"] = {"isolate": None, "reset": orders["chips"]["Ascend910-0"]["reset"] | {"epoch": 99}}
    body["data"]["orders.json"] = json.dumps(orders)
    for write in ("policy", "isolation"):
        current = live()
        cluster.run(cluster.kube.replace(CONFIGMAP, body | {"metadata": current["metadata"]}))
        assert "does not fit" in problem()
        if write == "policy":
            assert cluster.run(set_policy(edge, "node-1", "default", "d1"))
        else:
            isolate = IsolateChip(**why, node="node-1", chips=("Ascend910-7",), level="SeparateNPU")
            assert cluster.run(order_chips(edge, "node-1", [isolate])) == [True]
        after = parse_orders(live())
        assert problem() == "" and after.resets == {} and after.isolate[0] == "SeparateNPU"
        assert after.seal is not None and POOL_LABEL in live()["metadata"]["labels"]


def test_a_worker_signs_policies_once_and_says_so(
    cluster: Cluster,
    redis_url: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    key = key_in(tmp_path / "keys")
    trusted = TrustedKeys([key.public_pem()])
    cluster.add_node("node-1")
    loop = Loop(cluster, redis_url, tmp_path / "data", order_keys=str(tmp_path / "keys"))
    try:

        def policy() -> dict[str, Any]:
            return cluster.get(CONFIGMAP, "belay-policy-default", SYSTEM) or {"metadata": {}, "data": {}}

        until(lambda: SEAL_KEY in policy()["data"], what="the sealed policy")
        body = policy()
        assert trusted.problem("belay-policy-default", digests(covered(body)), seal_of(body)) == ""
        held = parse_entitlements(body)
        assert held is not None and RULE in held.rules and set(BUILT_IN_RULES) <= set(held.rules)
        assert held.policy_digest == parse_policy(body).digest

        def condition() -> dict[str, str]:
            found = cluster.get(CONFIGMAP, "belay-sync", SYSTEM) or {"data": {}}
            rows = json.loads(found["data"].get("conditions.json", "[]"))
            return next((row for row in rows if row["type"] == "OrdersSigned"), {})

        until(lambda: condition().get("reason") == "Signed", what="the condition")
        # another worker keeps what this one sealed
        again = Loop(cluster, redis_url, tmp_path / "again", order_keys=str(tmp_path / "keys"), resync=0.2)
        try:
            loop.close()
            passes = len(again.sent)
            until(lambda: len(again.sent) > passes + 3, what="passes of the other worker")
            assert policy()["data"] == body["data"]
        finally:
            again.close()
    finally:
        loop.close()
