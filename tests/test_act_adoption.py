"""`belay adopt`: the document is what a person would have written, and the cluster stays as it is."""

from __future__ import annotations

import copy
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from belay.engine.cli import main
from belay.engine.cli.acts.adoption import adopt, as_text, document_of
from belay.engine.cli.acts.ways_back import way_back
from belay.engine.errors import InputError
from belay.engine.load import load_directory
from belay.engine.model.actions import CreateObject, DeleteObject, PatchObject
from belay.engine.replay.offline import plan_offline
from belay.engine.workloads.defaults import set_defaults
from tests.golden.stories import sample_world

ROOT = Path(__file__).parent.parent
Json = dict[str, Any]
STORAGE = {
    "Deployment": "deployments.apps", "StatefulSet": "statefulsets.apps", "Job": "jobs.batch", "Service": "services",
    "PriorityClass": "priorityclasses.scheduling.k8s.io", "PersistentVolumeClaim": "persistentvolumeclaims",
}  # fmt: skip
DOCUMENTS = [
    pytest.param(body, id=f"{path.stem}-{body['kind']}-{body['metadata']['name']}")
    for path in sorted((ROOT / "desired").rglob("*.yaml"))
    for body in yaml.safe_load_all(path.read_text())
    if isinstance(body, dict) and not str(body["apiVersion"]).startswith("belay.dev/")
]


def quantities(value: Any) -> Any:
    """The same with amounts of resources as texts, as an API server stores them."""
    if isinstance(value, list):
        return [quantities(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        key: {name: str(amount) for name, amount in one.items()} if key in ("limits", "requests") else quantities(one)
        for key, one in value.items()
    }


def stored(document: Json, number: int = 7) -> Json:
    """The object as an API server shows it, made by `kubectl apply`."""
    live = quantities(copy.deepcopy(document))
    live["metadata"].setdefault("namespace", "default")
    set_defaults(STORAGE.get(live["kind"], ""), live)
    live["metadata"] |= {
        "uid": f"uid-{number}",
        "resourceVersion": str(number),
        "generation": 1,
        "creationTimestamp": "2026-09-01T08:00:00Z",
        "managedFields": [{"manager": "kubectl"}],
    }
    live["metadata"].setdefault("annotations", {}).update(
        {"kubectl.kubernetes.io/last-applied-configuration": "{}", "deployment.kubernetes.io/revision": "3"}
    )
    live["status"] = {"observedGeneration": 1}
    template = live.get("spec", {}).get("template")
    if template:
        template["metadata"]["creationTimestamp"] = None
    return live


def leaves(value: Any, path: tuple[Any, ...] = ()) -> set[tuple[Any, ...]]:
    if isinstance(value, dict) and value:
        return {leaf for key, one in value.items() for leaf in leaves(one, (*path, key))}
    if isinstance(value, list) and value:
        return {leaf for index, one in enumerate(value) for leaf in leaves(one, (*path, index))}
    return {path}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_document_says_what_the_person_had_said_and_no_more(document: Json) -> None:
    found = yaml.safe_load(as_text(document_of(stored(document))))
    assert leaves(found) <= leaves(document) | {("metadata", "namespace")}
    storage = STORAGE.get(document["kind"], "")
    full, whole = copy.deepcopy(found), quantities(copy.deepcopy(document))
    whole["metadata"].setdefault("namespace", "default")
    set_defaults(storage, full)
    set_defaults(storage, whole)
    assert full == whole


def test_an_adopted_object_stays_as_it_is(tmp_path: Path) -> None:
    world = sample_world()
    world.until_quiet()
    items = [dict(item) for item in world.objects.values()]
    chat = next(body for body in yaml.safe_load_all((ROOT / "desired/inference/chat.yaml").read_text())
                if body["kind"] == "Deployment")  # fmt: skip
    chat["metadata"]["name"] = "talk"
    chat["spec"]["selector"]["matchLabels"] = chat["spec"]["template"]["metadata"]["labels"] = {"app": "talk"}
    items.append(stored(chat, 900))
    files = {f"desired/{path}": data for path, data in load_directory(ROOT / "desired").items()}
    edit = adopt(files, items, ["default/deployment/talk"])
    assert list(edit.files) == ["desired/inference/talk.yaml"], "where the other Deployments lie"
    back = "kubectl -n default annotate deployment talk belay.dev/prune=disabled && git revert --no-edit 0a1b2c3d4e5f"
    assert way_back(edit, "0a1b2c3d4e5f" * 3, pushed=False) == back
    assert way_back(edit, "0a1b2c3d4e5f", pushed=True) == f"{back} && git push"
    elsewhere = adopt(files, items, ["default/deployment/talk"], "my clusters/prod")
    named = back.replace("kubectl", "kubectl --kubeconfig 'my clusters/prod'")
    assert way_back(elsewhere, "0a1b2c3d4e5f", pushed=False) == named, "the same cluster, not the one of this shell"
    for path, data in {**files, **edit.files}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data or b"")
    plan, _, _ = plan_offline(items, tree=str(tmp_path))
    mine = [action for action in plan.actions
            if isinstance(action, CreateObject | DeleteObject | PatchObject) and action.name == "talk"]  # fmt: skip
    (patch,) = mine
    assert isinstance(patch, PatchObject)
    patched = {**chat, "spec": copy.deepcopy(patch.patch["spec"])}
    set_defaults("deployments.apps", patched)
    chat = quantities(chat)
    set_defaults("deployments.apps", chat)
    assert patched["spec"]["template"] == chat["spec"]["template"], "no pod is rolled"
    assert patch.patch["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "belay"


def test_what_is_not_a_persons_to_declare_is_refused() -> None:
    deployment = stored({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a", "namespace": "x"},
                         "spec": {"template": {"metadata": {}}}})  # fmt: skip
    owner = {"controller": True, "kind": "Deployment", "name": "a"}
    owned = {**deployment, "kind": "ReplicaSet"}
    owned["metadata"] = {"name": "a-1", "namespace": "x", "ownerReferences": [owner]}
    system = {**deployment, "metadata": {"name": "dns", "namespace": "kube-system"}}
    items = [deployment, owned, system]
    with pytest.raises(InputError, match=r"Deployment a made it.*belay adopt x/Deployment/a"):
        adopt({}, items, ["x/ReplicaSet/a-1"])
    with pytest.raises(InputError, match="namespace kube-system is the system's"):
        adopt({}, items, ["kube-system/Deployment/dns"])
    with pytest.raises(InputError, match="no such object"):
        adopt({}, items, ["x/Deployment/b"])
    with pytest.raises(InputError, match="names no object"):
        adopt({}, items, ["b"])
    first = adopt({}, items, ["Deployment/x/a"])
    declared = {path: data for path, data in first.files.items() if data is not None}
    with pytest.raises(InputError, match=r"desired/jobs/a.yaml.*declares it already"):
        adopt(declared, items, ["x/deployments/a"])


def test_a_running_deployment_is_adopted_by_one_command(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", "--initial-branch=main", str(tmp_path / "state")], check=True)
    (tmp_path / "state/desired").mkdir()
    live = stored({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"script": "a\nb\n"}})
    (tmp_path / "cluster.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [live]}))
    done = CliRunner().invoke(main, ["adopt", "default/ConfigMap/c", "--repo", str(tmp_path / "state"), "--cluster",
                                     str(tmp_path / "cluster.json"), "--dry-run"])  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "+++ b/desired/objects/c.yaml" in done.output and "+  script: |\n+    a\n+    b\n" in done.output


def test_a_file_that_is_not_utf_8_is_named() -> None:
    live = stored({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "b"}})
    with pytest.raises(InputError, match=r"desired/objects/c\.yaml.*not UTF-8"):
        adopt({"desired/objects/c.yaml": b"# \xff\n"}, [live], ["default/ConfigMap/c"])
