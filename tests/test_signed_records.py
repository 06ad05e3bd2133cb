"""Records of the engine that bear its signature: the log of accepted revisions, and orders for links."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from belay.engine.act import Edge, Fence
from belay.engine.act.objects import create_object, patch_object
from belay.engine.cli import key_sets
from belay.engine.controller.accepted_revisions import AcceptedRevisions
from belay.engine.controller.link_seals import seal_links
from belay.engine.controller.policies import policy_bodies
from belay.engine.errors import SourceError
from belay.engine.kube import CONFIGMAP
from belay.engine.kube.lease import shard_lease
from belay.engine.kube.order_keys import OrderKeys
from belay.engine.load import load
from belay.engine.model.actions import CreateObject, Evidence, PatchObject
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.links import EndOrders, LinkOrder
from belay.engine.model.seals import Entitlements
from belay.engine.observe.observed import observe
from belay.engine.source import Revision, SourceConfig
from belay.engine.wire import links, revisionlog
from belay.engine.wire.names import SYSTEM
from belay.engine.wire.policy import NodePolicy, build_policy, entitle, parse_entitlements
from belay.engine.wire.revisionlog import RevisionEntry, RevisionLog
from belay.engine.wire.seals import SEAL_KEY, seal_of
from tests.loop_world import Cluster

NOW = 1_800_000_000.0
LOG = "belay-revisions"


class Keys:
    """The engine's folder of keys; `now` moves with every reading so that changed files count at once."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._time = folder, 0.0
        folder.mkdir()
        self.set = key_sets.OrderKeySet({}, {})
        self.keys = OrderKeys(str(folder), self.later)

    def later(self) -> float:
        self._time += 100.0
        return self._time

    def make(self) -> OrderKeys:
        self.set = key_sets.created(NOW)
        return self.write()

    def write(self) -> OrderKeys:
        for path in self.folder.iterdir():
            path.unlink()
        for name, content in self.set.engine.items():
            (self.folder / name).write_bytes(content)
        assert self.keys.signing is not None
        return self.keys


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.close()


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path / "keys")


CONFIG = SourceConfig(url="ssh://git@git.example.com/platform/state.git")


def log_of(cluster: Cluster) -> dict[str, Any]:
    return cluster.get(CONFIGMAP, LOG, SYSTEM) or {"data": {}}


def accept(cluster: Cluster, accepted: AcceptedRevisions, *numbers: int) -> None:
    for number in numbers:
        cluster.run(accepted.record(Revision(sha=f"{number:040d}", files={}), CONFIG))


def loaded(cluster: Cluster, keys: OrderKeys) -> AcceptedRevisions:
    found = AcceptedRevisions(cluster.kube, "main", lambda: NOW, keys)
    cluster.run(found.load())
    return found


def name_log(cluster: Cluster, keys: OrderKeys, number: int) -> None:
    """A signed policy that names an entry of the log, as workers write it."""
    policy = NodePolicy("default")
    body = build_policy(policy)
    entitle(body, Entitlements(pool="default", policy_digest=policy.digest, log=number))
    keys.seal(body, int(NOW * 1000))
    cluster.run(cluster.kube.create(CONFIGMAP, body))


def test_the_log_is_signed_from_the_first_key_on_and_again_after_a_rotation(cluster: Cluster, keys: Keys) -> None:
    accept(cluster, loaded(cluster, keys.keys), 1)
    assert SEAL_KEY not in log_of(cluster)["data"]
    keys.make()
    accepted = loaded(cluster, keys.keys)
    assert accepted.problem == ""
    accept(cluster, accepted, 1)
    assert keys.keys.problem(log_of(cluster)) == "" and len(revisionlog.parse(log_of(cluster)).entries) == 1
    key_sets.rotated(keys.set, NOW, None)
    key_sets.rotated(keys.set, NOW + 5000, None)
    keys.write()
    accept(cluster, accepted, 1)
    seal = seal_of(log_of(cluster))
    assert seal is not None and keys.keys.signing is not None and seal.key == keys.keys.signing.key_id
    accept(cluster, accepted, 2)
    assert keys.keys.problem(log_of(cluster)) == "" and len(revisionlog.parse(log_of(cluster)).entries) == 2


@pytest.mark.parametrize(
    ("attack", "said"),
    [
        ("rewritten", "does not fit"),
        ("other key", "unknown key"),
        ("unsigned", "is not signed"),
        ("older", "ends with entry 2; a signed policy names entry 3"),
        ("gone", "is gone; a signed policy names entry 3"),
    ],
)
def test_a_forged_cut_or_deleted_log_is_refused_by_a_process_that_never_saw_it(
    cluster: Cluster, keys: Keys, attack: str, said: str, tmp_path: Path
) -> None:
    engine = keys.make()
    accepted = loaded(cluster, engine)
    accept(cluster, accepted, 1, 2)
    old = copy.deepcopy(log_of(cluster))
    accept(cluster, accepted, 3)
    name_log(cluster, engine, 3)
    live = log_of(cluster)
    forged = RevisionLog()
    for number in (7, 8, 9):
        forged = forged.appended(RevisionEntry(number=0, revision=f"{number:040d}", source=CONFIG.name))
    body = revisionlog.build(forged, "main", live["metadata"]["resourceVersion"])
    match attack:
        case "rewritten":
            body["data"][SEAL_KEY] = live["data"][SEAL_KEY]
        case "other key":
            Keys(tmp_path / "eve").make().seal(body, int(NOW * 1000))
        case "older":
            body["data"] = old["data"]
    if attack == "gone":
        cluster.run(cluster.kube.delete(CONFIGMAP, LOG, SYSTEM))
    else:
        cluster.run(cluster.kube.replace(CONFIGMAP, body))
    fresh = loaded(cluster, engine)
    assert said in fresh.problem
    with pytest.raises(SourceError, match="cannot be trusted"):
        accept(cluster, fresh, 4)
    # a forger's policy names no log, and an operator who starts again deletes the policies too
    cluster.run(cluster.kube.delete(CONFIGMAP, "belay-policy-default", SYSTEM))
    if attack == "gone":
        assert loaded(cluster, engine).problem == ""


def ordered(address: str) -> dict[str, Any]:
    end = EndOrders(9, "serve.d0", (LinkOrder(1, (address,), 3000, ("chat",)),))
    return links.orders_map("node-1", links.orders_text("node-1", [end]))


def test_orders_for_links_are_signed_when_written_and_what_others_wrote_only_when_declared(
    cluster: Cluster, keys: Keys
) -> None:
    epoch = cluster.run(shard_lease(cluster.kube, "main", "me").acquire())
    engine = keys.make()
    edge = Edge(cluster.kube, "main", Fence(cluster.kube, "main", epoch, seconds=0.0), now=lambda: NOW, keys=engine)
    why: dict[str, Any] = {
        "reason": "Test", "message": "a test", "evidence": Evidence(rule="links"), "api_version": "v1",
        "object_kind": "ConfigMap", "namespace": SYSTEM, "name": "belay-links-node-1",
    }  # fmt: skip

    def live() -> dict[str, Any]:
        return cluster.get(CONFIGMAP, "belay-links-node-1", SYSTEM) or {}

    def sealed(declared: str, actions: tuple[Any, ...] = ()) -> None:
        key = ObjectKey("v1", "ConfigMap", SYSTEM, "belay-links-node-1")
        plan: Any = SimpleNamespace(nodes=[SimpleNamespace(node="node-1")], actions=actions)
        documents: Any = SimpleNamespace(has_git=True, links=[SimpleNamespace(document=SimpleNamespace(name=declared))])
        observed: Any = SimpleNamespace(objects={key: live()})
        assert cluster.run(seal_links(edge, plan, observed, documents))

    cluster.run(create_object(edge, CreateObject(**why, object=ordered("10.0.0.1:1"))))
    assert engine.problem(live()) == "" and "10.0.0.1" in live()["data"]["links.json"]
    first = seal_of(live())
    cluster.run(patch_object(edge, PatchObject(**why, patch=ordered("10.0.0.2:1"))))
    second = seal_of(live())
    assert engine.problem(live()) == "" and first is not None and second is not None
    assert second.signed_at > first.signed_at, "an agent takes no older one"
    # a standing one that lost its signature
    body = live()
    del body["data"][SEAL_KEY]
    cluster.run(cluster.kube.replace(CONFIGMAP, body))
    sealed("another")
    assert engine.problem(live()), "a link that no KVLink declares is not signed"
    sealed("chat", (PatchObject(**why, patch={}),))
    assert engine.problem(live()), "what this pass changes is signed with the change"
    sealed("chat")
    assert engine.problem(live()) == "" and json.loads(live()["data"]["links.json"])["node"] == "node-1"
    before = live()["metadata"]["resourceVersion"]
    sealed("chat")
    assert live()["metadata"]["resourceVersion"] == before
    key_sets.rotated(keys.set, NOW, None)
    key_sets.rotated(keys.set, NOW + 5000, None)
    keys.write()
    sealed("another")
    seal = seal_of(live())
    assert seal is not None and engine.signing is not None and seal.key == engine.signing.key_id


def test_a_policy_that_came_before_the_log_or_its_signature_names_both_later(keys: Keys, tmp_path: Path) -> None:
    engine = keys.make()
    policies, desired = {"default": NodePolicy("default")}, load({}, revision="r1").desired
    log = revisionlog.build(
        RevisionLog().appended(RevisionEntry(number=0, revision="r1", source="s", signer="ada")), "main"
    )
    stranger = Keys(tmp_path / "stranger").make()

    def written(*live: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, int]]:
        (body,) = policy_bodies(policies, desired, observe(list(live)), "main", engine, NOW)
        body["metadata"]["resourceVersion"] = "1"
        found = parse_entitlements(body)
        assert found is not None and engine.problem(body) == ""
        return body, (found.signer, found.log)

    first, named = written()
    assert named == ("", 0)
    forged = copy.deepcopy(log)
    stranger.seal(forged, int(NOW * 1000))
    assert written(first, forged) == (first, ("", 0)), "nothing to name: it stays as it is"
    unsigned, named = written(first, log)
    assert named == ("ada", 0)
    assert written(unsigned, log) == (unsigned, named)
    engine.seal(log, int(NOW * 1000))
    signed, named = written(unsigned, log)
    assert named == ("ada", 1)
    for later in (log, forged):
        assert written(signed, later) == (signed, named), "what is named stays until the rules change"
