"""What the API server refuses is said, backed off, remembered, and forgotten once it is accepted."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from belay.engine.cli.explanation import explain
from belay.engine.kube import CONFIGMAP, NAMESPACE
from belay.engine.kube.errors import from_answer
from belay.engine.model.actions import CreateObject, Evidence, PatchObject
from belay.engine.model.plan import Plan
from belay.engine.model.refusals import LONGEST_WAIT_MS, RefusalCause, RefusalKey, is_waiting, wait_ms
from belay.engine.model.refused_actions import content_digest, refusal_key, refused_again
from belay.engine.observe.observed import observe
from belay.engine.sandbox import definitions
from belay.engine.store import connect
from tests.gitrepo import Repo
from tests.loop_world import Cluster, Loop, cluster, until  # noqa: F401
from tests.redis_server import redis_process, redis_url  # noqa: F401

HEAD = "apiVersion: v1\nkind: ConfigMap\n"
HERE = f"{HEAD}metadata: {{name: here, namespace: default}}\ndata: {{a: b}}\n"
AWAY = f"{HEAD}metadata: {{name: away, namespace: defualt}}\ndata: {{a: b}}\n"


def status(code: int, message: str, **details: Any) -> bytes:
    return json.dumps({"kind": "Status", "code": code, "message": message, "details": details}).encode()


@pytest.mark.parametrize(
    ("code", "message", "details", "cause"),
    [
        (404, 'namespaces "x" not found', {"name": "x", "kind": "namespaces"}, RefusalCause.NAMESPACE_MISSING),
        (404, "the server could not find the requested resource", {}, RefusalCause.KIND_NOT_SERVED),
        (404, 'configmaps "x" not found', {"name": "x", "kind": "configmaps"}, None),
        (403, 'pods "x" is forbidden: exceeded quota: q, requested: pods=1', {}, RefusalCause.QUOTA_EXCEEDED),
        (403, 'pods is forbidden: User "u" cannot create resource "pods"', {"kind": "pods"}, RefusalCause.NOT_ALLOWED),
        (403, 'unable to create, namespace x is being terminated', {"causes": [{"reason": "NamespaceTerminating"}]},
         RefusalCause.NAMESPACE_TERMINATING),
        (403, 'admission webhook "w" denied the request: no', {}, RefusalCause.DENIED_BY_WEBHOOK),
        (400, 'admission webhook "w" denied the request: no', {}, RefusalCause.DENIED_BY_WEBHOOK),
        (500, 'Internal error occurred: failed calling webhook "w": EOF', {}, RefusalCause.WEBHOOK_FAILED),
        (500, "etcdserver: leader changed", {}, None),
        (422, "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no", {}, RefusalCause.DENIED_BY_POLICY),
        (422, 'AscendJob "x" is invalid: spec.replicas: must be >= 1', {}, RefusalCause.INVALID),
        (409, "Apply failed", {"causes": [{"reason": "FieldManagerConflict"}]}, RefusalCause.FIELD_CONFLICT),
        (409, "the object has been modified", {}, None),
        (401, "Unauthorized", {}, None),
        (429, "too many requests", {}, None),
        (503, "apiserver is shutting down", {}, None),
    ],
)  # fmt: skip
def test_an_answer_says_whether_the_object_itself_is_refused(
    code: int, message: str, details: dict[str, Any], cause: RefusalCause | None
) -> None:
    assert from_answer(code, status(code, message, **details), "PATCH /x").refusal is cause


def test_the_waits_double_up_to_a_bound_and_differ_between_objects() -> None:
    keys = [RefusalKey("CreateObject", "v1", "ConfigMap", "default", f"c-{n}") for n in range(50)]
    waits = [[wait_ms(key, attempts) for attempts in range(1, 20)] for key in keys]
    for row in waits:
        assert all(after > before for before, after in itertools.pairwise(row[:6]))
        assert max(row) <= 1.25 * LONGEST_WAIT_MS and row[0] >= 1500
        assert sum(row) > 1_000_000, "19 tries take more than a quarter of an hour"
    assert len({row[8] for row in waits}) > 40


def created(data: str) -> CreateObject:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": data}}
    return CreateObject(reason="Missing", message="m", api_version="v1", object_kind="ConfigMap", namespace="d",
                        name="c", object=body)  # fmt: skip


def test_another_content_starts_again_and_a_clock_that_ran_ahead_holds_nothing() -> None:
    action = created("1")
    key = refusal_key(action)
    assert key is not None
    first = refused_again(action, key, RefusalCause.INVALID, "no", None, 1_000)
    second = refused_again(action, key, RefusalCause.INVALID, "no", first, 5_000)
    assert (second.attempts, second.since) == (2, 1_000)
    other = refused_again(created("2"), key, RefusalCause.INVALID, "no", second, 9_000)
    assert (other.attempts, other.since) == (1, 9_000)
    assert content_digest(created("1")) == first.digest != other.digest
    assert is_waiting(second, 5_001) and not is_waiting(second, second.retry)
    assert not is_waiting(second, second.retry - 10 * LONGEST_WAIT_MS), "written by a clock that ran ahead"


def test_a_status_counts_by_its_object_since_it_holds_times() -> None:
    def patch(time: str) -> PatchObject:
        return PatchObject(reason="StatusChanged", message="m", api_version="belay.dev/v1alpha1",
                           object_kind="Isolation", namespace="", name="i", patch={"status": {"at": time}})  # fmt: skip

    assert content_digest(patch("1")) == content_digest(patch("2"))
    assert refusal_key(patch("1")) != refusal_key(created("1"))


def test_a_job_that_the_api_server_refuses_is_explained_by_its_answer() -> None:
    body = {"apiVersion": "mindxdl.gitee.com/v1", "kind": "AscendJob", "metadata": {"name": "n"}}
    action = CreateObject(
        reason="Missing", message="m", api_version="mindxdl.gitee.com/v1", object_kind="AscendJob",
        namespace="defualt", name="n", object=body, evidence=Evidence(rule="sync", file="desired/n.yaml", line=3),
    )  # fmt: skip
    key = refusal_key(action)
    assert key is not None
    row = refused_again(action, key, RefusalCause.NAMESPACE_MISSING, 'namespaces "defualt" not found', None, 1_000)
    said = explain("job", "defualt/n", Plan("r", 2.0, refusals=(row,)), observe([]))
    assert said["refused"]["cause"] == "NamespaceMissing" and "not found" in said["refused"]["answer"]
    assert (said["refused"]["file"], said["refused"]["line"], said["pods"]) == ("desired/n.yaml", 3, [])


class World:
    """The engine with a repository; the API server knows no namespace ``defualt``."""

    def __init__(self, cluster: Cluster, redis: str, folder: Path) -> None:  # noqa: F811
        self.cluster, self.redis, self.repo = cluster, redis, Repo(folder / "repo")
        cluster.run(definitions.ensure(cluster.kube))
        self.repo.commit({"desired/here.yaml": HERE, "desired/away.yaml": AWAY})
        self.folder, self.starts = folder, 0
        self.start()

    def start(self) -> None:
        self.starts += 1
        given: dict[str, Any] = {"source_url": str(self.repo.bare), "source_interval": 1.0}
        self.loop = Loop(self.cluster, self.redis, self.folder / f"data-{self.starts}", **given)

    def sync(self) -> dict[str, str]:
        found = self.cluster.get(CONFIGMAP, "belay-sync", "belay-system")
        return dict(found["data"]) if found else {}

    def condition(self, kind: str) -> dict[str, str]:
        rows: dict[str, dict[str, str]] = {
            row["type"]: row for row in json.loads(self.sync().get("conditions.json", "[]"))
        }
        return rows.get(kind, {"status": "", "reason": "", "message": ""})

    def refusals(self) -> list[dict[str, Any]]:
        return list(json.loads(self.sync().get("refusals.json", "[]")))

    def recorded(self) -> list[Any]:
        found = self.cluster.get(CONFIGMAP, "belay-refused", "belay-system")
        return list(json.loads(found["data"]["refusals.json"])) if found else []

    def tries(self) -> int:
        return sum(row["attempts"] for row in self.refusals())


@pytest.fixture
def world(cluster: Cluster, redis_url: str, tmp_path: Path) -> Iterator[World]:  # noqa: F811
    made = World(cluster, redis_url, tmp_path)
    yield made
    made.loop.close()


def test_a_document_in_a_missing_namespace_is_refused_and_not_in_force_until_the_namespace_exists(world: World) -> None:
    until(lambda: world.condition("Applied")["reason"] == "RefusedByServer", 60, "the refusal in the status")
    applied, ready = world.condition("Applied"), world.condition("Ready")
    assert applied["status"] == ready["status"] == world.sync()["ready"] == "False"
    assert "1 of 2 objects are in force, 1 refused by the API server" in applied["message"]
    (row,) = world.refusals()
    assert (row["object"], row["file"], row["line"], row["cause"]) == (
        "ConfigMap/defualt/away", "desired/away.yaml", 1, "NamespaceMissing",
    )  # fmt: skip
    assert 'namespaces \\"defualt\\" not found' in json.dumps(row["answer"])
    assert json.loads(world.sync()["objects.json"]) == {"inForce": 1, "waiting": 0, "heldBack": 0, "refused": 1}

    # a restart that loses Redis forgets nothing of it
    world.loop.close()
    connect(world.redis).flushall()
    before = world.tries()
    world.start()
    until(lambda: world.tries() > before, 60, "the next try")

    world.cluster.ensure(NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "defualt"}})
    until(lambda: world.condition("Applied")["reason"] == "Everything", 60, "what is mended")
    assert world.condition("Ready")["status"] == "True" and world.refusals() == []
    assert world.cluster.get(CONFIGMAP, "away", "defualt") is not None
    until(lambda: not world.recorded(), 30, "the record to be dropped")
