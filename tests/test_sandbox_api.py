"""The sandbox's API server over HTTP: discovery, tables, deletion and its collector, custom kinds, events, faults."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.api_client import APPLY, JSON, MERGE, Client, Sandbox, at

CM = "/api/v1/~/configmaps"
PODS = "/api/v1/~/pods"
CRDS = Path(__file__).parents[1] / "deploy" / "crds"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    made = Sandbox()
    yield made
    made.close()


@pytest.fixture
def api(sandbox: Sandbox, request: pytest.FixtureRequest) -> Client:
    client = sandbox.client()
    client.namespace = f"t{abs(hash(request.node.name)) % 10**9}"
    assert client.send("POST", "/api/v1/namespaces", {"metadata": {"name": client.namespace}})[0] == 201
    return client


def configmap(name: str, **metadata: Any) -> JSON:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}, "data": {"a": "1"}}


def pod(name: str, **metadata: Any) -> JSON:
    spec = {"containers": [{"name": "c", "image": "busybox:1"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata}, "spec": spec}


def owned_by(owner: JSON, **more: Any) -> list[JSON]:
    metadata = owner["metadata"]
    return [
        {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": metadata["name"],
            "uid": metadata["uid"],
            **more,
        }
    ]


def names(listed: JSON) -> list[str]:
    return [item["metadata"]["name"] for item in listed["items"]]


# -- who may ask


def test_requests_without_the_token_are_refused(sandbox: Sandbox) -> None:
    stranger = Client(sandbox.loop, sandbox.server.url.rsplit("/", 1)[0], "wrong", sandbox.session)
    status, answer = stranger.send("GET", "/api/v1/nodes")
    assert (status, answer["reason"]) == (401, "Unauthorized")
    assert stranger.send("GET", "/readyz")[0] == 200
    assert stranger.send("GET", "/apis/apps/v1")[0] == 200
    assert stranger.send("GET", "/sandbox/faults")[0] == 401
    assert stranger.send("POST", "/sandbox/compact")[0] == 401
    bearer = Client(sandbox.loop, sandbox.server.url.rsplit("/", 1)[0], sandbox.server.token, sandbox.session)
    assert bearer.send("GET", "/api/v1/nodes")[0] == 200


def test_kubeconfig_is_for_its_owner_only(sandbox: Sandbox, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    sandbox.server.write_kubeconfig(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert yaml.safe_load(path.read_text())["clusters"][0]["cluster"]["server"] == sandbox.server.url


# -- discovery


def test_discovery_names_every_kind_in_both_forms(api: Client) -> None:
    _, groups = api.send("GET", "/apis")
    listed: set[tuple[str, str]] = set()
    for group in groups["groups"]:
        for version in group["versions"]:
            _, resources = api.send("GET", f"/apis/{version['groupVersion']}")
            assert resources["groupVersion"] == version["groupVersion"]
            listed |= {(version["groupVersion"], r["name"]) for r in resources["resources"] if "/" not in r["name"]}
    assert ("apps/v1", "deployments") in listed
    assert ("events.k8s.io/v1", "events") in listed
    _, core = api.send("GET", "/api/v1")
    by_name = {resource["name"]: resource for resource in core["resources"]}
    assert by_name["pods/eviction"]["group"] == "policy"
    assert by_name["pods"]["shortNames"] == ["po"]
    assert core["groupVersion"] == "v1"


def test_openapi_offers_field_validation(api: Client) -> None:
    _, index = api.send("GET", "/openapi/v3")
    assert {"api/v1", "apis/apps/v1"} <= set(index["paths"])
    _, document = api.send("GET", "/openapi/v3/apis/apps/v1")
    patch = document["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"]
    assert {"fieldValidation", "dryRun"} <= {parameter["name"] for parameter in patch["parameters"]}


@pytest.mark.parametrize("validation, status", [("Strict", 400), ("Warn", 201), ("Ignore", 201)])
def test_unknown_fields_are_refused_or_dropped_as_asked(api: Client, validation: str, status: int) -> None:
    body = pod("p")
    body["spec"]["nonsense"] = 1
    got, answer = api.send("POST", f"{PODS}?fieldValidation={validation}", body)
    assert got == status
    if status == 400:
        assert 'unknown field "spec.nonsense"' in answer["message"]
    else:
        assert "nonsense" not in answer["spec"]


# -- bytes and sizes


def test_an_object_beyond_the_limit_is_refused_and_nothing_changes(api: Client) -> None:
    big = {**configmap("big"), "data": {}, "binaryData": {}}
    big["data"] = {f"k{i}": "x" * 100_000 for i in range(11)}
    status, answer = api.send("POST", CM, big)
    assert (status, answer["reason"]) == (422, "Invalid")
    assert "Too long" in answer["message"]
    annotated = configmap("a", annotations={"k": "x" * 300_000})
    assert api.send("POST", CM, annotated)[0] == 422
    assert names(api.send("GET", CM)[1]) == []


def test_services_get_addresses_of_their_own(api: Client) -> None:
    made = []
    for i in range(5):
        service = {"metadata": {"name": f"s{i}"}, "spec": {"ports": [{"port": 80}]}}
        made.append(at(api.send("POST", "/api/v1/~/services", service)[1], "spec.clusterIP"))
    assert len(set(made)) == 5
    assert all(address.startswith("10.96.") for address in made)
    taken = {"metadata": {"name": "again"}, "spec": {"ports": [{"port": 80}], "clusterIP": made[0]}}
    assert api.send("POST", "/api/v1/~/services", taken)[0] == 422
    assert api.send("DELETE", "/api/v1/~/services/s0")[0] == 200
    assert api.send("POST", "/api/v1/~/services", taken)[0] == 201


def test_a_binding_means_one_pod_and_brings_annotations_only(api: Client) -> None:
    """As kube-apiserver 1.23 to 1.32 do: later ones merge labels, too (tests/e2e/test_api_differential.py)."""
    made = api.send("POST", PODS, pod("q"))[1]["metadata"]
    body = {"metadata": {"name": "q", "uid": "other"}, "target": {"kind": "Node", "name": "n1"}}
    status, refused = api.send("POST", f"{PODS}/q/binding", body)
    assert (status, refused["reason"]) == (409, "Conflict") and "Precondition failed: UID" in refused["message"]
    body["metadata"] |= {"uid": made["uid"], "labels": {"a": "b"}, "annotations": {"c": "d"}}
    assert api.send("POST", f"{PODS}/q/binding", body)[0] == 201
    bound = api.send("GET", f"{PODS}/q")[1]
    assert bound["spec"]["nodeName"] == "n1"
    assert (bound["metadata"].get("labels"), bound["metadata"]["annotations"]) == (made.get("labels"), {"c": "d"})


def test_every_namespace_has_the_account_that_pods_run_as(api: Client) -> None:
    assert api.send("GET", "/api/v1/~/serviceaccounts/default")[0] == 200
    made = api.send("POST", "/api/v1/~/serviceaccounts/default/token", {"spec": {"expirationSeconds": 600}})[1]
    assert made["status"]["token"].count(".") == 2


# -- tables


def table(api: Client, path: str) -> JSON:
    async def go() -> JSON:
        headers = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}
        url = api._base + path.replace("~", f"namespaces/{api.namespace}")
        async with api._session.get(url, headers=headers) as response:
            made: JSON = await response.json()
            return made

    found: JSON = api._run(go())
    return found


def test_pods_are_shown_as_kubectl_shows_them(api: Client) -> None:
    api.send("POST", PODS, pod("p"))
    api.send("POST", f"{PODS}/p/binding", {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}})
    waiting = {"name": "c", "ready": False, "restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    status = {"status": {"phase": "Running", "podIP": "10.0.0.9", "containerStatuses": [waiting]}}
    api.send("PATCH", f"{PODS}/p/status", status, MERGE)
    made = table(api, PODS)
    assert [c["name"] for c in made["columnDefinitions"] if not c["priority"]] == [
        "Name",
        "Ready",
        "Status",
        "Restarts",
        "Age",
    ]
    row = made["rows"][0]
    assert row["cells"][:4] == ["p", "0/1", "CrashLoopBackOff", "3"]
    assert row["cells"][5:7] == ["10.0.0.9", "n1"]
    assert row["object"]["kind"] == "PartialObjectMetadata"
    api.send("DELETE", f"{PODS}/p")
    assert table(api, PODS)["rows"][0]["cells"][2] == "Terminating"


# -- deletion and its collector


def test_dependents_go_with_their_owner_in_the_background(api: Client) -> None:
    owner = api.send("POST", CM, configmap("owner"))[1]
    child = api.send("POST", CM, configmap("child", ownerReferences=owned_by(owner)))[1]
    api.send("POST", CM, configmap("grandchild", ownerReferences=owned_by(child)))
    api.send("DELETE", f"{CM}/owner")
    assert api.until(CM, lambda _, listed: names(listed) == [])


def test_an_owner_waits_for_its_blocking_dependents_in_the_foreground(api: Client) -> None:
    owner = api.send("POST", CM, configmap("owner"))[1]
    api.send(
        "POST", CM, configmap("child", ownerReferences=owned_by(owner, blockOwnerDeletion=True), finalizers=["a.b/c"])
    )
    _, answer = api.send("DELETE", f"{CM}/owner", {"propagationPolicy": "Foreground"})
    assert answer["metadata"]["finalizers"] == ["foregroundDeletion"]
    assert api.until(f"{CM}/child", lambda _, o: "deletionTimestamp" in o["metadata"])
    assert api.send("GET", f"{CM}/owner")[0] == 200
    api.send("PATCH", f"{CM}/child", {"metadata": {"finalizers": None}}, MERGE)
    assert api.until(CM, lambda _, listed: names(listed) == [])


def test_orphans_stay_and_lose_their_owner(api: Client) -> None:
    owner = api.send("POST", CM, configmap("owner"))[1]
    api.send("POST", CM, configmap("child", ownerReferences=owned_by(owner)))
    api.send("DELETE", f"{CM}/owner?propagationPolicy=Orphan")
    assert api.until(f"{CM}/owner", lambda status, _: status == 404)
    assert "ownerReferences" not in api.send("GET", f"{CM}/child")[1]["metadata"]


def test_a_dependent_with_two_owners_stays_while_one_is_left(api: Client) -> None:
    one, two = (api.send("POST", CM, configmap(name))[1] for name in ("one", "two"))
    api.send("POST", CM, configmap("child", ownerReferences=owned_by(one) + owned_by(two)))
    api.send("DELETE", f"{CM}/one")
    assert api.until(f"{CM}/child", lambda _, o: len(o["metadata"]["ownerReferences"]) == 1)
    api.send("DELETE", f"{CM}/two")
    assert api.until(f"{CM}/child", lambda status, _: status == 404)


def test_a_job_deleted_without_a_policy_leaves_its_pods(api: Client) -> None:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]}}
    jobs = "/apis/batch/v1/~/jobs"
    job = api.send(
        "POST",
        jobs,
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {"template": template}},
    )[1]
    api.send("POST", PODS, pod("p", ownerReferences=owned_by(job)))
    api.send("DELETE", f"{jobs}/j")
    assert api.until(f"{jobs}/j", lambda status, _: status == 404)
    assert api.send("GET", f"{PODS}/p")[0] == 200


def test_a_namespace_is_emptied_before_it_goes(api: Client) -> None:
    path = f"/api/v1/namespaces/{api.namespace}"
    api.send("POST", CM, configmap("a", finalizers=["a.b/c"]))
    api.send("POST", PODS, pod("p"))
    assert at(api.send("DELETE", path)[1], "status.phase") == "Terminating"
    assert api.until(f"{PODS}/p", lambda status, _: status == 404)
    status, answer = api.send("POST", CM, configmap("late"))
    assert (status, answer["reason"]) == (403, "Forbidden")
    assert api.send("GET", path)[0] == 200
    api.send("PATCH", f"{CM}/a", {"metadata": {"finalizers": []}}, MERGE)
    assert api.until(path, lambda status, _: status == 404)


def test_an_eviction_respects_disruption_budgets(api: Client) -> None:
    budget = {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}}}
    assert api.send("POST", "/apis/policy/v1/~/poddisruptionbudgets", budget)[0] == 201
    ready = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    for name in ("p", "q"):
        api.send("POST", PODS, pod(name, labels={"app": "x"}))
        api.send("POST", f"{PODS}/{name}/binding", {"metadata": {"name": name}, "target": {"name": "n"}})
        api.send("PATCH", f"{PODS}/{name}/status", ready, MERGE)
    assert api.send("POST", f"{PODS}/p/eviction", {"metadata": {"name": "p"}})[0] == 201
    status, answer = api.send("POST", f"{PODS}/q/eviction", {"metadata": {"name": "q"}})
    assert (status, answer["reason"]) == (429, "TooManyRequests")
    assert at(answer, "details.causes[0].reason") == "DisruptionBudget"


def test_logs_come_from_the_annotation(api: Client) -> None:
    api.send("POST", PODS, pod("p", annotations={"sandbox.belay.dev/log": "one\ntwo\nthree"}))
    assert api.send("GET", f"{PODS}/p/log")[1]["text"] == "one\ntwo\nthree\n"
    assert api.send("GET", f"{PODS}/p/log?tailLines=1")[1]["text"] == "three\n"


# -- events of two groups


def test_an_event_is_seen_through_both_groups(api: Client) -> None:
    target = {"kind": "Pod", "name": "p", "namespace": api.namespace}
    event = {
        "metadata": {"name": "e"},
        "regarding": target,
        "note": "it broke",
        "reason": "Broke",
        "type": "Warning",
        "reportingController": "belay",
    }
    assert api.send("POST", "/apis/events.k8s.io/v1/~/events", event)[0] == 201
    core = api.send("GET", "/api/v1/~/events/e")[1]
    assert (core["message"], core["involvedObject"], core["reportingComponent"]) == ("it broke", target, "belay")
    _, listed = api.send("GET", "/api/v1/~/events?fieldSelector=involvedObject.name=p,type=Warning")
    assert names(listed) == ["e"]
    newer = api.send("GET", "/apis/events.k8s.io/v1/~/events")[1]["items"][0]
    assert (newer["note"], newer["apiVersion"]) == ("it broke", "events.k8s.io/v1")


# -- custom kinds


@pytest.fixture(scope="module")
def definitions(sandbox: Sandbox) -> list[JSON]:
    """The CRDs that Belay ships, established in the sandbox."""
    client = sandbox.client()
    found = [yaml.safe_load(path.read_text()) for path in sorted(CRDS.glob("*.yaml"))]
    for definition in found:
        status, answer = client.send("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        assert status == 201, answer
    return found


def test_every_shipped_kind_is_served_at_once(sandbox: Sandbox, definitions: list[JSON]) -> None:
    client = sandbox.client()
    for definition in definitions:
        spec = definition["spec"]
        version = spec["versions"][0]["name"]
        base = f"/apis/{spec['group']}/{version}"
        assert client.send("GET", f"{base}/{spec['names']['plural']}")[0] == 200
        listed = {resource["name"] for resource in client.send("GET", base)[1]["resources"]}
        plural, has = spec["names"]["plural"], spec["versions"][0].get("subresources") or {}
        assert {plural, *(f"{plural}/{name}" for name in has)} <= listed
    kinds = {d["spec"]["names"]["kind"] for d in definitions if d["spec"]["group"] == "belay.dev"}
    assert kinds == {
        "NodePool", "VNPULayout", "FaultPolicy", "Isolation", "SafetyBudget", "SchedulingSettings", "Source", "KVLink",
        "NotificationPolicy", "Product", "FaultTable", "VNPUTemplates", "DiagnosisRules", "WorkloadKind",
    }  # fmt: skip


def ascend_job(name: str, **run_policy: Any) -> JSON:
    template = {"spec": {"containers": [{"name": "ascend", "image": "train:1"}]}}
    spec = {"replicaSpecs": {"Master": {"replicas": 1, "template": template}}, "runPolicy": run_policy}
    return {"apiVersion": "mindxdl.gitee.com/v1", "kind": "AscendJob", "metadata": {"name": name}, "spec": spec}


def test_an_ascend_job_is_validated_counted_and_shown(api: Client, definitions: list[JSON]) -> None:
    path = "/apis/mindxdl.gitee.com/v1/~/ascendjobs"
    status, answer = api.send("POST", path, ascend_job("j", backoffLimit="3"))
    assert status == 422
    field = "spec.runPolicy.backoffLimit"
    text = f'{field}: Invalid value: "string": {field} in body must be of type integer: "string"'
    assert answer["message"] == f'AscendJob.mindxdl.gitee.com "j" is invalid: {text}'
    made = api.send("POST", path, ascend_job("j", backoffLimit=3))[1]
    assert made["metadata"]["generation"] == 1
    condition = {"type": "Running", "status": "True", "reason": "JobRunning"}
    running = {"status": {"conditions": [condition], "replicaStatuses": {"Master": {"active": 1}}}}
    status, shown = api.send("PATCH", f"{path}/j/status", running, MERGE)
    assert (status, shown["metadata"]["generation"]) == (200, 1)
    assert api.send("PATCH", f"{path}/j/status", {"status": {"conditions": None}}, MERGE)[0] == 422
    assert table(api, path)["rows"][0]["cells"][:2] == ["j", "Running"]


def test_the_scale_of_an_ascend_job_is_that_of_its_workers(api: Client, definitions: list[JSON]) -> None:
    """PodDisruptionBudgets with percentages or maxUnavailable ask a pod's controller for it."""
    path = "/apis/mindxdl.gitee.com/v1/~/ascendjobs"
    job = ascend_job("s")
    job["spec"]["replicaSpecs"]["Worker"] = {**job["spec"]["replicaSpecs"]["Master"], "replicas": 3}
    assert api.send("POST", path, job)[0] == 201
    status, scale = api.send("GET", f"{path}/s/scale")
    assert (status, scale["kind"], scale["spec"]["replicas"]) == (200, "Scale", 3)
    assert api.send("PATCH", f"{path}/s/scale", {"spec": {"replicas": 2}}, MERGE)[0] == 200
    assert api.send("GET", f"{path}/s")[1]["spec"]["replicaSpecs"]["Worker"]["replicas"] == 2


def test_metadata_of_custom_objects_is_typed_like_any_other(api: Client, definitions: list[JSON]) -> None:
    path = "/apis/mindxdl.gitee.com/v1/~/ascendjobs"
    wrong = ascend_job("j")
    wrong["metadata"]["labels"] = {"a": 1}
    status, answer = api.send("POST", path, wrong)
    assert (status, answer["reason"]) == (400, "BadRequest")
    empty = ascend_job("j")
    empty["metadata"] |= {"labels": None, "annotations": {}, "creationTimestamp": None}
    assert api.send("POST", path, empty)[0] == 201


def test_two_managers_of_a_custom_object_conflict(api: Client, definitions: list[JSON]) -> None:
    path = "/apis/belay.dev/v1alpha1/nodepools/p"

    def pool(product: str) -> JSON:
        return {
            "apiVersion": "belay.dev/v1alpha1",
            "kind": "NodePool",
            "metadata": {"name": "p"},
            "spec": {"product": product, "selector": {"matchLabels": {"a": "b"}}},
        }

    assert api.send("PATCH", f"{path}?fieldManager=belay", pool("a"), APPLY)[0] == 201
    status, answer = api.send("PATCH", f"{path}?fieldManager=other", pool("b"), APPLY)
    assert (status, at(answer, "details.causes[0].field")) == (409, ".spec.product")
    assert api.send("PATCH", f"{path}?fieldManager=other&force=true", pool("b"), APPLY)[1]["spec"]["product"] == "b"


def definition(plural: str, schema: JSON, *versions: str) -> JSON:
    group = "test.belay.dev"
    shared = {"served": True, "subresources": {"status": {}}, "schema": {"openAPIV3Schema": schema}}
    served = [{"name": name, "storage": i == 0, **shared} for i, name in enumerate(versions or ("v1",))]
    names = {"plural": plural, "kind": plural.capitalize()}
    return {
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": served},
    }


def test_custom_objects_are_defaulted_pruned_and_checked(api: Client) -> None:
    spec = {
        "type": "object",
        "required": ["mode"],
        "properties": {
            "mode": {"type": "string", "enum": ["a", "b"]},
            "count": {"type": "integer", "minimum": 1, "default": 2},
            "size": {"x-kubernetes-int-or-string": True},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        },
    }
    schema = {"type": "object", "properties": {"spec": spec, "status": {"type": "object"}}}
    api.send("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition("checked", schema))
    path = "/apis/test.belay.dev/v1/~/checked"
    made = api.send(
        "POST",
        path,
        {"metadata": {"name": "x"}, "spec": {"mode": "a", "size": "5%", "nonsense": 1, "free": {"y": [1]}}},
    )[1]
    assert made["spec"] == {"mode": "a", "count": 2, "size": "5%", "free": {"y": [1]}}
    for wrong, text in (
        ({}, "spec.mode: Required value"),
        ({"mode": "c"}, 'spec.mode: Unsupported value: "c": supported values: "a", "b"'),
        ({"mode": "a", "count": 0}, "spec.count in body should be greater than or equal to 1"),
        ({"mode": "a", "size": []}, "must be of type integer,string"),
    ):
        status, answer = api.send("POST", path, {"metadata": {"name": "y"}, "spec": wrong})
        assert status == 422
        assert text in answer["message"]


def test_a_kind_of_two_versions_is_one_collection(api: Client) -> None:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    api.send(
        "POST",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        definition("doubles", schema, "v1", "v1beta1"),
    )
    old = "/apis/test.belay.dev/v1beta1/~/doubles"
    made = api.send(
        "POST",
        old,
        {"apiVersion": "test.belay.dev/v1beta1", "kind": "Doubles", "metadata": {"name": "x"}, "spec": {"a": 1}},
    )[1]
    assert made["apiVersion"] == "test.belay.dev/v1beta1"
    new = api.send("GET", "/apis/test.belay.dev/v1/~/doubles/x")[1]
    assert (new["apiVersion"], new["spec"], new["metadata"]["uid"]) == (
        "test.belay.dev/v1",
        {"a": 1},
        made["metadata"]["uid"],
    )


def test_a_definition_takes_its_objects_with_it(api: Client) -> None:
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    api.send("POST", crds, definition("goners", schema))
    path = "/apis/test.belay.dev/v1/~/goners"
    api.send("POST", path, {"metadata": {"name": "x"}})
    api.send("DELETE", f"{crds}/goners.test.belay.dev")
    assert api.until(f"{crds}/goners.test.belay.dev", lambda status, _: status == 404)
    assert api.send("GET", path)[0] == 404
    api.send("POST", crds, definition("goners", schema))
    assert names(api.send("GET", path)[1]) == []


@pytest.mark.parametrize(
    "wrong, field",
    [
        ({"scope": "Everywhere"}, "spec.scope"),
        ({"names": {"plural": "others", "kind": "Other"}}, "metadata.name"),
        ({"versions": []}, "spec.versions"),
    ],
)
def test_a_wrong_definition_is_refused(api: Client, wrong: JSON, field: str) -> None:
    body = definition("wrongs", {"type": "object"})
    body["spec"].update(wrong)
    status, answer = api.send("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body)
    assert status == 422
    assert field in [cause["field"] for cause in at(answer, "details.causes")]
