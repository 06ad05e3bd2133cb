"""`belay keys`: keys of orders and batches are made, given to agents and rotated without a gap in what is trusted."""

from __future__ import annotations

import itertools
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from belay.agents.node.trust import OrderTrust
from belay.engine.cli import key_sets, main
from belay.engine.cli.key_sets import OrderKeySet, SignedObject
from belay.engine.errors import InputError
from belay.engine.kube import CONFIGMAP, resource_for
from belay.engine.kube.order_keys import OrderKeys
from belay.engine.model.cluster import AgentReport, Orders
from belay.engine.store.keyring import Keyring, read_keys
from belay.engine.wire.names import NODES, SYSTEM
from belay.engine.wire.orders import build_orders, build_report, parse_orders
from tests.loop_world import Cluster

NOW = 1_800_000_000.0
SECRET = resource_for("v1", "Secret")


def belay(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(main, ["keys", *arguments])
    assert done.exit_code == code, done.output
    return done.output


def sealed_orders(key: Path, node: str = "node-1", until: int = 0) -> dict[str, Any]:
    body = build_orders(Orders(node, "", 1, "r1", "d1", 1, until, {3: "SeparateNPU"}, {}, 0, {}), "Ascend910-")
    OrderKeys(str(key)).seal(body, 1)
    return body


def report(node: str = "node-1") -> dict[str, Any]:
    return build_report(AgentReport(node, "boot", 1, 1, 1, {}, 0, "", (), ()), "Ascend910-", {})


def test_made_keys_are_private_and_fit_engine_and_agent(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    said = belay("create", "orders", "--dir", str(folder)) + belay("create", "batch", "--dir", str(folder))
    files = {path.name: path for path in folder.rglob("*") if path.is_file()}
    for name in ("signing.pem", "keys"):
        assert stat.S_IMODE(files[name].stat().st_mode) == 0o600
        assert files[name].read_text().strip().splitlines()[-2 if name == "signing.pem" else 0] not in said
    trust = OrderTrust(str(folder / "order-trust"), tmp_path / "state", "node-1")
    assert trust.orders_problem(parse_orders(sealed_orders(folder / "order-keys"))) == ""
    assert len(read_keys(files["keys"])) == 1
    before = files["signing.pem"].read_bytes()
    assert "holds keys already" in belay("create", "orders", "--dir", str(folder), code=2)
    assert files["signing.pem"].read_bytes() == before
    listed = json.loads(belay("list", "--dir", str(folder), "-o", "json"))
    assert [(row["use"], row["role"], row["where"]) for row in listed] == [
        ("orders", "signs", "engine and agents"), ("batch", "signs", "engine"),
    ]  # fmt: skip
    shown = belay("show", "--dir", str(folder)) + belay("show", "--dir", str(folder), "--yaml")
    assert "BEGIN PUBLIC KEY" in shown and "PRIVATE" not in shown and "signing.pem" not in shown
    assert "say where" in belay("create", "orders", code=2)


def test_in_every_step_of_a_rotation_engine_and_agents_trust_what_the_other_holds() -> None:
    keys = key_sets.created(NOW, {"signers": b"ada@example.org\n"})
    old = key_sets.signing_key(keys).key_id
    seen = [copied(keys)]
    key_sets.rotated(keys, NOW, None)
    seen.append(copied(keys))
    assert key_sets.signing_key(keys).key_id == old
    with pytest.raises(InputError, match="may be taken from 2027-01-15T08:10:00Z"):
        key_sets.rotated(keys, NOW + 599, None)
    key_sets.rotated(keys, NOW + 601, None)
    seen.append(copied(keys))
    new = key_sets.signing_key(keys).key_id
    stands = [SignedObject("belay-orders-node-1", int((NOW + 9000) * 1000))]
    for at, standing, said in (
        (NOW + 1500, [], "may be taken from"),
        (NOW + 1600, stands, r"1 orders and policies .*\(belay-orders-node-1\); the last expires at 2027-01-15T10:30"),
        (NOW + 1600, None, "is not known"),
    ):
        with pytest.raises(InputError, match=said):
            key_sets.rotated(keys, at, standing)
    assert keys == seen[2], "what is refused changes nothing"
    key_sets.rotated(keys, NOW + 1600, [])
    seen.append(copied(keys))
    assert new != old and keys.rotation is None and keys.trust["signers"] == b"ada@example.org\n"
    assert [row.key for row in key_sets.order_rows(keys)] == [new]
    # processes and nodes that are one step behind agree with those ahead
    for before, after in itertools.pairwise(seen):
        for engine, other in ((before, after), (after, before)):
            signs = key_sets.signing_key(engine).key_id
            assert {row.key: row.where for row in key_sets.order_rows(other)}[signs] == "engine and agents"


def copied(keys: OrderKeySet) -> OrderKeySet:
    return OrderKeySet(dict(keys.engine), dict(keys.trust))


def test_a_key_that_agents_do_not_hold_never_signs() -> None:
    keys = key_sets.created(NOW)
    before = dict(keys.trust)
    key_sets.rotated(keys, NOW, None)
    keys.trust = dict(before)  # the second write did not arrive
    assert "again" in key_sets.rotated(keys, NOW + 5000, None)
    new = keys.rotation
    assert new is not None and any(row.key == new.new and "agents" in row.where for row in key_sets.order_rows(keys))
    with pytest.raises(InputError, match="may be taken from"):
        key_sets.rotated(keys, NOW + 5001, None)


def test_after_a_leak_only_the_new_key_counts() -> None:
    keys = key_sets.created(NOW, {"signers": b"ada@example.org\n"})
    key_sets.rotated(keys, NOW, None)
    old = {row.key for row in key_sets.order_rows(keys)}
    key_sets.replaced(keys, NOW)
    (row,) = key_sets.order_rows(keys)
    assert row.key not in old and row.where == "engine and agents" and "signers" in keys.trust and not keys.rotation


def test_the_keys_of_batches_rotate_and_each_step_accepts_the_neighbours(tmp_path: Path) -> None:
    content = key_sets.new_batch_keys()
    files = []
    for step in range(4):
        files.append(tmp_path / f"keys-{step}")
        files[-1].write_bytes(content)
        if step in (1, 2):
            with pytest.raises(InputError, match="may be taken from"):
                key_sets.rotated_batch(content, NOW + step * 1000 - 999)
        content, _ = key_sets.rotated_batch(content, NOW + step * 1000)
    for one, other in itertools.pairwise(files):
        here, there = Keyring(str(one)), Keyring(str(other))
        assert there.unwrap("a", here.wrap("a", "text")) == here.unwrap("a", there.wrap("a", "text")) == "text"
    assert Keyring(str(files[3])).unwrap("a", Keyring(str(files[0])).wrap("a", "text")) is None


def test_a_set_that_was_damaged_is_named() -> None:
    keys = key_sets.created(NOW)
    key_sets.rotated(keys, NOW, None)
    for change, said in (("next.pem", "next.pem is gone"), ("rotation.json", "cannot be read")):
        broken = OrderKeySet(dict(keys.engine), dict(keys.trust))
        if change == "next.pem":
            del broken.engine[change]
        else:
            broken.engine[change] = b"[]"
        with pytest.raises(InputError, match=said):
            key_sets.rotated(broken, NOW + 5000, None)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["a.pub", "allowed-signers"])
def test_a_pipe_or_device_among_the_keys_is_refused_at_once(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(ValueError, match=f"{name} is not a regular file"):
        OrderTrust(str(tmp_path), tmp_path / "state", "n0")
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("/dev/zero")
    with pytest.raises(ValueError, match=f"{name} is not a regular file"):
        OrderTrust(str(tmp_path), tmp_path / "state", "n0")


@pytest.mark.parametrize(
    ("content", "said"),
    [("ada@x ssh-ed25519\n", "line 1: is not a line"), ("# none\n", "names no key"), ("#" * 20_000, "is larger than")],
)
def test_a_list_of_signers_that_agents_could_not_use_is_refused(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "list").write_text(content)
    folder = tmp_path / "keys"
    options = ("--dir", str(folder), "--allowed-signers", str(tmp_path / "list"))
    assert said in belay("create", "orders", *options, code=2) and not folder.exists()


def test_orders_of_nodes_without_an_agent_do_not_keep_a_key_alive(tmp_path: Path) -> None:
    belay("create", "orders", "--dir", str(tmp_path))
    folder = tmp_path / "order-keys"
    key = json.loads(belay("list", "--dir", str(tmp_path), "-o", "json"))[0]["key"]
    items = [sealed_orders(folder, "node-1", 5), sealed_orders(folder, "node-2"), report("node-1")]
    assert key_sets.objects_signed_by(items, key) == [SignedObject("belay-orders-node-1", 5)]
    assert key_sets.objects_signed_by(items, "") == []


# ---- in a cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("api"))
    yield made
    made.close()


def test_secrets_of_the_cluster_are_made_pinned_and_rotated(cluster: Cluster, tmp_path: Path) -> None:
    where = ("--apply", "--kubeconfig", cluster.kubeconfig)

    def data(name: str) -> dict[str, Any]:
        return (cluster.get(SECRET, name, NODES if name.endswith("trust") else SYSTEM) or {"data": {}})["data"]

    belay("create", "orders", *where)
    assert data("belay-order-keys").keys() >= {"signing.pem"} and not data("belay-order-trust")
    assert "is there already" in belay("create", "orders", *where, code=2)
    # agents get the keys once everything is signed
    unsigned = build_orders(Orders("node-1", "", 1, "r1", "d1", 1, 0, {3: "SeparateNPU"}, {}, 0, {}), "Ascend910-")
    cluster.run(cluster.kube.create(CONFIGMAP, unsigned))
    cluster.run(cluster.kube.create(CONFIGMAP, report()))
    assert "are not signed (belay-orders-node-1)" in belay("pin", *where, code=2) and not data("belay-order-trust")
    cluster.run(cluster.kube.delete(CONFIGMAP, "belay-orders-node-1", SYSTEM))
    (tmp_path / "signers").write_text("ada@example.org\n")
    belay("pin", *where, "--signers", str(tmp_path / "signers"))
    first = set(data("belay-order-trust"))
    assert "signers" in first and len(first) == 2
    belay("rotate", "orders", *where)
    assert len(data("belay-order-trust")) == 3 and "next.pem" in data("belay-order-keys")
    assert "may be taken from" in belay("rotate", "orders", *where, code=2)
    belay("rotate", "orders", *where, "--spread", "0s")
    assert "next.pem" not in data("belay-order-keys") and "orders last for 15 minutes" in belay(
        "rotate", "orders", *where, "--spread", "0s", code=2
    )
    listed = json.loads(belay("list", "--kubeconfig", cluster.kubeconfig, "-o", "json"))
    assert {row["role"] for row in listed} == {"signs", "trusted"}
    # what `--yaml` prints is what kubectl creates
    made = yaml.safe_load(belay("create", "batch", "--yaml"))
    cluster.run(cluster.kube.create(SECRET, made))
    belay("rotate", "batch", *where)
    assert len(json.loads(belay("list", "--kubeconfig", cluster.kubeconfig, "-o", "json"))) == len(listed) + 2
