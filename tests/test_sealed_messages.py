"""What Redis says has an effect only behind a seal: keys, their rotation, messages and records of passes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from belay.engine.act.batch import decode, split
from belay.engine.controller.broker import cleaned
from belay.engine.controller.messages import configuration
from belay.engine.controller.queues import ACT, RECONCILE
from belay.engine.controller.worker import Worker
from belay.engine.errors import InputError
from belay.engine.kube import CONFIGMAP
from belay.engine.kube.lease import shard_lease
from belay.engine.model import actions as act
from belay.engine.model.actions import AnyAction
from belay.engine.sandbox.folder import DataFolder
from belay.engine.settings import Settings
from belay.engine.store import BatchResult, Keyring, PassRecord, PassStore, connect
from tests.loop_world import Cluster, Loop, cluster, until
from tests.redis_server import redis_process, redis_url  # noqa: F401
from tests.test_redis_hostile import message

__all__ = ["cluster"]

WHY: dict[str, Any] = {"reason": "Test", "message": "a test"}
OLD, NEW = "0" * 63 + "1", "0" * 63 + "2"
BINDING: dict[str, Any] = {
    "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "mine"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
}  # fmt: skip


def keyring(folder: Path, *keys: str, clock: Any = None) -> Keyring:
    file = folder / "keys"
    file.write_text("".join(f"{key}\n" for key in keys))
    return Keyring(str(file), clock) if clock else Keyring(str(file))


@pytest.fixture
def worker(cluster: Cluster, redis_url: str, tmp_path: Path) -> Iterator[Worker]:  # noqa: F811
    """A worker whose shard has an epoch, without a controller: no pass comes between."""
    keyring(tmp_path, OLD)
    settings = Settings(
        redis_url=redis_url, kubeconfig=cluster.kubeconfig, identity="test", batch_key_file=str(tmp_path / "keys")
    )
    made = Worker(settings, lambda task, text: None)
    cluster.run(shard_lease(cluster.kube, "main", "test").acquire())
    yield made
    made.close()


def create(name: str, namespace: str = "default") -> act.CreateObject:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}}
    return act.CreateObject(
        **WHY, api_version="v1", object_kind="ConfigMap", namespace=namespace, name=name, object=body
    )


def batch(worker: Worker, *actions: AnyAction, epoch: int = 1) -> str:
    """A batch of the shard's newest pass, as an engine writes it."""
    now = worker.passes.now()
    record = PassRecord("main-pass", "main", epoch, "d", 2, now, now + 30)
    (text,) = split(record, list(enumerate(actions)), "c1", 100, 512 * 1024)
    return text


def test_controller_and_worker_with_keys_place_pods(cluster: Cluster, redis_url: str, tmp_path: Path) -> None:  # noqa: F811
    keyring(tmp_path, OLD)
    loop = Loop(cluster, redis_url, tmp_path / "data", batch_key_file=str(tmp_path / "keys"))
    cluster.add_node("node-1")
    cluster.add_pod("train", 1)
    until(lambda: cluster.bound() == {"train"}, what="a binding by sealed messages")
    loop.close()
    keys = Keyring(str(tmp_path / "keys"))
    assert loop.failures == [] and all(keys.unwrap(task, text) is not None for task, text in loop.sent)
    assert not any(Keyring().unwrap(task, text) == text for task, text in loop.sent), "every message bears a seal"


def test_a_forged_batch_has_no_effect_and_a_sealed_one_has(cluster: Cluster, worker: Worker, tmp_path: Path) -> None:
    forged = batch(worker, create("forged"))
    (tmp_path / "other").mkdir()
    other = keyring(tmp_path / "other", NEW)
    for text in (forged, other.wrap(ACT, forged), worker.keys.wrap(RECONCILE, forged)):
        assert worker.act(text) == "not sealed by a key of ours"
    sealed = worker.keys.wrap(ACT, forged)
    assert worker.act(sealed.replace("forged", "taken!")) == "not sealed by a key of ours"
    assert cluster.get(CONFIGMAP, "forged", "default") is None and cluster.get(CONFIGMAP, "taken!", "default") is None
    assert worker.act(sealed) == "1 outcomes"
    assert cluster.get(CONFIGMAP, "forged", "default") is not None


def test_a_batch_is_carried_out_once(cluster: Cluster, worker: Worker, redis_url: str) -> None:  # noqa: F811
    sealed = worker.keys.wrap(ACT, batch(worker, create("once")))
    assert worker.act(sealed) == "1 outcomes"
    cluster.run(cluster.kube.delete(CONFIGMAP, "once", "default"))
    worker._carried_out.clear()
    assert worker.act(sealed) == "carried out already", "as Redis says, to another worker"
    worker._carried_out["main-pass", 1] = None
    connect(redis_url).flushall()
    assert worker.act(sealed) == "carried out already", "as this worker remembers"
    assert cluster.get(CONFIGMAP, "once", "default") is None


def test_a_batch_of_an_older_pass_is_refused_by_the_lease(
    cluster: Cluster,
    worker: Worker,
    redis_url: str,  # noqa: F811
) -> None:
    sealed = worker.keys.wrap(ACT, batch(worker, create("stale")))
    cluster.run(shard_lease(cluster.kube, "main", "test").acquire())  # the next pass begins
    connect(redis_url).flushall()
    assert worker.act(sealed) == "1 outcomes"
    state = worker.passes.state("main")
    assert state is None and cluster.get(CONFIGMAP, "stale", "default") is None


def test_a_sealed_batch_holds_only_what_plans_contain(cluster: Cluster, worker: Worker) -> None:
    api, kind = BINDING["apiVersion"], BINDING["kind"]
    evil = act.CreateObject(**WHY, api_version=api, object_kind=kind, namespace="", name="mine", object=BINDING)
    text = batch(worker, evil, create("after"))
    worker.passes.start(decode(text).record)
    assert worker.act(worker.keys.wrap(ACT, text)) == "2 outcomes"
    state = worker.passes.state("main")
    assert state is not None and [one.result for one in state.outcomes] == ["refused", "done"]
    assert state.outcomes[0].message == (
        "not carried out: a plan writes no ClusterRoleBinding of rbac.authorization.k8s.io/v1"
    )
    assert cluster.get(CONFIGMAP, "after", "default") is not None


def test_a_shard_named_by_a_stranger_gets_no_pass(worker: Worker) -> None:
    worker.triggers.mark("strange")
    assert worker.reconcile("strange") == "not sealed by a key of ours"
    assert "strange" not in worker._busy


def test_keys_are_replaced_without_a_stop(tmp_path: Path) -> None:
    time = [0.0]
    both = keyring(tmp_path, OLD, clock=lambda: time[0])
    before = both.wrap(ACT, "text")
    keyring(tmp_path, NEW, OLD)
    time[0] += 60.0
    after = both.wrap(ACT, "text")
    assert before != after and both.unwrap(ACT, before) == both.unwrap(ACT, after) == "text"
    keyring(tmp_path, NEW)
    time[0] += 60.0
    assert both.unwrap(ACT, before) is None and both.unwrap(ACT, after) == "text"
    (tmp_path / "keys").write_text("short\n")
    time[0] += 60.0
    assert both.unwrap(ACT, after) == "text", "a file that cannot be used leaves the keys as they were"
    (tmp_path / "keys").unlink()
    time[0] += 60.0
    assert both.unwrap(ACT, after) == "text"


def test_without_keys_a_sealed_message_is_read_and_with_keys_an_unsealed_one_is_not(tmp_path: Path) -> None:
    keys = keyring(tmp_path, OLD)
    assert Keyring().wrap(ACT, "text") == "text" and Keyring().unwrap(ACT, "text") == "text"
    assert Keyring().unwrap(ACT, keys.wrap(ACT, "text")) == "text"
    assert keys.unwrap(ACT, "text") is None and keys.unwrap(ACT, "") is None
    first, second = keys.seal("a", b"b", b"c"), keys.seal("a", b"bc", b"")
    assert first != second and not keys.holds(first, "a", b"bc", b"") and keys.holds(first, "a", b"b", b"c")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "is not a file"),
        ("", "holds no key"),
        ("# a note\n\n", "holds no key"),
        (f"{OLD}\nsecret-but-short\n", "line 2 has 16 characters"),
        ("".join(f"{number:064d}\n" for number in range(9)), "holds 9 keys"),
        ("x" * 20_000, "is larger than"),
    ],
)
def test_a_bad_key_file_is_named_and_not_shown(content: str | None, said: str, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_text(content)
    with pytest.raises(InputError) as caught:
        Keyring(str(file))
    text = str(caught.value)
    assert said in text and f"BELAY_BATCH_KEY_FILE {file}" in text and "secret" not in text and OLD not in text


def test_records_of_another_hand_count_as_lost(redis_url: str, tmp_path: Path) -> None:  # noqa: F811
    client: Any = connect(redis_url)
    keys = keyring(tmp_path, OLD)
    sealed, open_ = PassStore(client, keys=keys), PassStore(client)
    record = PassRecord("p", "main", 1, "d", 1, 5.0, 30.0)
    sealed.start(record)
    sealed.finish(record, BatchResult(0))
    assert sealed.current("main") == record and (state := sealed.state("main")) and state.finished
    open_.finish(record, BatchResult(1))
    assert len(sealed.state("main").results) == 1  # type: ignore[union-attr]
    client.hset("belay:{main}:pass", "record", msgspec.json.encode(record))
    assert sealed.current("main") is None and sealed.state("main") is None
    client.hset("belay:{other}:pass", "record", keys.wrap("PassRecord/main", msgspec.json.encode(record).decode()))
    assert sealed.current("other") is None, "a record of another shard"


def test_the_broker_takes_sealed_shards_and_no_remote_control(tmp_path: Path) -> None:
    sealed = keyring(tmp_path, OLD).wrap(RECONCILE, "main")
    assert json.loads(json.dumps(cleaned(message(RECONCILE, sealed), "plan")))["headers"]["task"] == RECONCILE
    assert configuration(Settings())["worker_enable_remote_control"] is False


def test_a_sandbox_makes_its_own_key(tmp_path: Path) -> None:
    folder = DataFolder(str(tmp_path / "data"))
    folder.open()
    file = folder.batch_keys
    assert file.stat().st_mode & 0o777 == 0o600 and Keyring(str(file)).signing is not None
    before = file.read_text()
    assert folder.batch_keys.read_text() == before
    folder.close()


def test_a_flood_without_seals_is_one_log_line_a_second(worker: Worker, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(500):
        assert worker.act(f"forged {number}") == "not sealed by a key of ours"
    lines = [one for one in caplog.records if "no key of BELAY_BATCH_KEY_FILE sealed it" in one.getMessage()]
    assert 1 <= len(lines) < 100 and worker._unsealed == 500
