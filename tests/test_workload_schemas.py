"""Rows of the table of workloads against the definitions of their kinds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from belay.engine.documents import WorkloadKind
from belay.engine.load import load, shipped_policies
from belay.engine.replay.workload_schemas import check_against_definitions
from tests.test_validate import findings

#: Of the definitions of Kubeflow's training operator 1.8 and KubeRay 1.5: the names and types of the fields along the
#: paths of the rows.
KNOWN = Path(__file__).parent / "samples" / "workload_definitions.json"
ROW: dict[str, Any] = {
    "group": "ray.io",
    "versions": ["v1", "v9"],
    "kind": "RayCluster",
    "plural": "rayclusters",
    "roles": [
        {
            "path": "spec.workerGroupSpecs.*",
            "replicas": [{"path": "replicas"}, {"path": "numOfHosts"}],
            "template": "template",
            "minimumWhen": {"path": "spec.enableInTreeAutoscaling", "values": ["true"]},
        }
    ],
}
TEXT = """apiVersion: belay.dev/v1alpha1
kind: WorkloadKind
metadata: {name: mine}
spec:
  group: ray.io
  versions: [v1]
  kind: RayCluster
  plural: rayclusters
  roles:
    - path: spec.workerGroupSpecs.*
      replicas: [{path: replica}]
      template: template
"""


def definitions() -> list[dict[str, Any]]:
    return [json.loads(line) for line in KNOWN.read_text().splitlines()]


def problems(**changes: Any) -> list[tuple[str, str]]:
    body = {"apiVersion": "belay.dev/v1alpha1", "kind": "WorkloadKind", "metadata": {"name": "mine"}}
    row = WorkloadKind.model_validate(body | {"spec": ROW | changes})
    return [(".".join(map(str, one.path)), one.message) for one in check_against_definitions(row, definitions())]


def role(**changes: Any) -> dict[str, Any]:
    return {"roles": [ROW["roles"][0] | changes]}


#: Changes of a sound row, where the problem is, and words of its message.
WRONG: dict[str, tuple[dict[str, Any], str, tuple[str, ...]]] = {
    "a role of another name": (
        role(path="spec.workerGroupSpec.*"), "spec.roles.0.path", ("no field 'workerGroupSpec' in spec", "Specs?"),
    ),
    "a number of another name": (
        role(replicas=[{"path": "numHosts"}]), "spec.roles.0.replicas.0.path",
        ("no field 'numHosts' in spec.workerGroupSpecs.*", "did you mean numOfHosts?"),
    ),
    "a number that is a text": (
        role(replicas=[{"path": "groupName"}]), "spec.roles.0.replicas.0.path", ("holds text", "not a whole number"),
    ),
    "a template that is a number": (role(template="replicas"), "spec.roles.0.template", ("a number", "an object")),
    "elements of an object": (role(path="spec.headGroupSpec.*", replicas=[]), "spec.roles.0.path", ("nor a map",)),
    "a condition on nothing": (
        role(minimumWhen={"path": "spec.autoscale", "values": ["true"]}), "spec.roles.0.minimumWhen.path",
        ("no field 'autoscale' in spec", "it has "),
    ),
    "a queue that is a list": ({"queue": "spec.workerGroupSpecs"}, "spec.queue", ("holds a list", "not one value")),
    "another plural": ({"plural": "rayclustres"}, "spec.plural", ("plural of RayCluster (ray.io) is rayclusters",)),
    "versions that are not served": ({"versions": ["v2", "v9"]}, "spec.versions", ("v2, v9", "write v1 or v1alpha1")),
    "another kind": ({"kind": "RayClusters"}, "spec.kind", ("no kind RayClusters", "did you mean RayCluster?")),
    "another group": ({"group": "rays.io"}, "spec.group", ("of group rays.io is there", "operator installed?")),
}  # fmt: skip


def test_a_sound_row_has_no_problem() -> None:
    assert problems() == []
    labelled = problems(annotations={"sp-block": "metadata.labels.[a.b/c]"})
    assert labelled == [], "metadata holds what Kubernetes says"
    assert problems(group="batch", kind="Job", plural="jobs") == [], "Kubernetes' own kinds have no definitions"


@pytest.mark.parametrize("case", WRONG)
def test_what_a_kind_does_not_have_is_named_at_its_place(case: str) -> None:
    changes, place, words = WRONG[case]
    found = problems(**changes)
    assert [where for where, _ in found] == [place], found
    assert all(word in found[0][1] for word in words), found


def test_rows_that_ship_lead_to_fields_of_their_kinds() -> None:
    files = {path: data for path, data in shipped_policies().items() if path.startswith("policies/workloads/")}
    rows = [declared.document for declared in load({}, shipped=files).desired.workloads.values()]
    described = {(one["spec"]["group"], one["spec"]["names"]["kind"]) for one in definitions()}
    checked = [row for row in rows if (row.spec.group, row.spec.kind) in described]
    assert len(checked) == len(described) == 8
    assert {row.name: found for row in checked if (found := check_against_definitions(row, definitions()))} == {}


def test_validate_names_file_line_and_column(tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "mine.yaml").write_text(TEXT)
    assert findings(str(tmp_path)) == (0, []), "nothing to check it against"

    of_operators = tmp_path / "operators"
    of_operators.mkdir()
    (of_operators / "crds.yaml").write_text(yaml.safe_dump_all(definitions()))
    (of_operators / "kustomization.yaml").write_text("resources: [crds.yaml]\n")
    code, found = findings(str(tmp_path), "--crds", str(of_operators))
    assert code == 1 and len(found) == 1, found
    (one,) = found
    assert (one["file"], one["line"], one["column"]) == ("policies/mine.yaml", 11, 25)
    assert one["code"] == "UnknownField", "what belay explain answers for"
    assert one["field"] == "spec.roles[0].replicas[0].path" and "did you mean replicas?" in one["message"]

    # a saved cluster that holds definitions serves as well, and one without them is silent
    cluster = tmp_path / "cluster.json"
    cluster.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": definitions()}))
    assert findings(str(tmp_path), "--cluster", str(cluster))[1] == found
    cluster.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": []}))
    assert findings(str(tmp_path), "--cluster", str(cluster)) == (0, [])
