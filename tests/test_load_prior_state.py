"""A mistake removes nothing: while a document cannot be used, all that was declared when it broke stays in force."""

from __future__ import annotations

import pytest

from belay.engine.load import Loaded
from tests.tree_steps import TreeSteps, declared

JOB = """apiVersion: mindxdl.gitee.com/v1
kind: AscendJob
metadata:
  name: pretrain
  namespace: default
  labels: {framework: pytorch}
spec:
  replicaSpecs:
    Master:
      replicas: 1
      template:
        spec:
          containers: [{name: ascend, image: "train:1", resources: {limits: {huawei.com/Ascend910: 8}}}]
"""
ISOLATION = """apiVersion: belay.dev/v1alpha1
kind: Isolation
metadata: {name: rack}
spec: {nodes: [node-1], reason: power}
"""
BUDGET = """apiVersion: belay.dev/v1alpha1
kind: SafetyBudget
metadata: {name: ours}
spec:
  limits: [{actions: [EvictPod], per: cluster, max: 1, window: 1h}]
"""
POOL = """apiVersion: belay.dev/v1alpha1
kind: NodePool
metadata: {name: cards}
spec: {selector: {matchLabels: {pool: cards}}, product: atlas-300i-pro}
"""
LAYOUT = """apiVersion: belay.dev/v1alpha1
kind: VNPULayout
metadata: {name: cut}
spec: {pool: cards, mode: static, chips: [{chips: "0", templates: [vir04, vir04_3c]}]}
"""
BROKEN = "kind: [\n"
TRAIN, ISOLATE, BUDGETS = "AscendJob/default/pretrain", "Isolation/rack", "SafetyBudget/ours"


def config(name: str, value: str = '"v"') -> str:
    return f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{k: {value}}}\n"


def joined(*documents: str) -> str:
    return "---\n".join(documents)


def maps(loaded: Loaded) -> dict[str, str]:
    return {one.key.name: one.body["data"]["k"] for one in loaded.desired.manifests if one.key.kind == "ConfigMap"}


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("kind: AscendJob", "kind: AscendJbo", "did you mean AscendJob?"),
        ("kind: AscendJob", "kind: ascendjob", "did you mean AscendJob?"),
        ("kind: AscendJob", "kind: CronJob", "is not accepted"),
        ("mindxdl.gitee.com/v1", "mindxdl.gitee.com/v2", "AscendJob is accepted as mindxdl.gitee.com/v1"),
        ("mindxdl.gitee.com/v1", "mindxld.gitee.com/v1", "AscendJob is accepted as mindxdl.gitee.com/v1"),
        ("name: pretrain", "name: Pretrain_", "RFC 1123"),
        ("namespace: default", "namespace: De fault", "namespace"),
        ("name: pretrain", "nmae: pretrain", "name"),
        ("kind: Isolation", "kind: Isolatoin", "did you mean Isolation?"),
        ("name: rack", "name: Rack!", "name"),
        ("kind: SafetyBudget", "kind: safetybudget", "did you mean SafetyBudget?"),
        ("max: 1", "max: lots", "max"),
        ("---\n", "", "desired/all.yaml:"),
        ("---\n", "--\n", ""),
    ],
)
def test_an_unreadable_document_keeps_in_force_what_its_file_declared(old: str, new: str, says: str) -> None:
    steps, text = TreeSteps(), joined(JOB, ISOLATION, BUDGET)
    good = steps.push({"desired/all.yaml": text, "desired/b.yaml": config("b")})
    bad = steps.push({"desired/all.yaml": text.replace(old, new, 1), "desired/b.yaml": config("b")})
    assert declared(bad) == declared(good) == {TRAIN, ISOLATE, BUDGETS, "ConfigMap/default/b"}
    assert bad.desired.isolations[0].document == good.desired.isolations[0].document
    assert not bad.desired.budget_broken and not bad.desired.incomplete
    assert any(says in str(one) for one in bad.diagnostics if one.severity == "error")
    assert declared(steps.push({"desired/all.yaml": ISOLATION, "desired/b.yaml": config("b")})) == {
        ISOLATE,
        "ConfigMap/default/b",
    }, "once nothing is refused, what is no longer declared goes"


DEPLOYMENT = """apiVersion: apps/v1
kind: Deployment
metadata:
  name: chat
  namespace: prod
spec:
  replicas: 4
  selector: {matchLabels: {a: b}}
  template:
    metadata: {labels: {a: b}}
    spec:
      schedulerName: belay
      containers: [{name: x, image: "x:1", resources: {limits: {huawei.com/Ascend910: 1}}}]
"""
VOLCANO = """apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata:
  name: train
  namespace: prod
spec:
  minAvailable: 2
  tasks: [{name: t, replicas: 2, template: {spec: {restartPolicy: Never, containers: [{name: x, image: "x:1"}]}}}]
"""


@pytest.mark.parametrize(
    ("text", "old", "new", "says"),
    [
        *(
            (text, "  namespace:", new, says)
            for text in (JOB.replace("namespace: default", "namespace: prod"), DEPLOYMENT, VOLCANO)
            for new, says in (
                ("  nmaespace:", "metadata.nmaespace - error: unknown field: did you mean namespace?"),
                ("  Namespace:", "did you mean namespace?"),
                ("  name space:", "did you mean namespace?"),
            )
        ),
        (DEPLOYMENT, "  namespace:", "namespace:", "namespace - error: belongs below metadata"),
        (VOLCANO, "  namespace:", "namespace:", "namespace - error: belongs below metadata"),
        (JOB, "  labels:", "  lables:", "did you mean labels?"),
        (JOB, "limits:", "limtis:", "did you mean limits?"),
        (JOB, "resources:", "resorces:", "did you mean resources?"),
        (JOB, "      replicas:", "      replica:", "did you mean replicas?"),
        (DEPLOYMENT, "  replicas:", "  replicsa:", "spec.replicsa - error: unknown field: did you mean replicas?"),
        (VOLCANO, "minAvailable", "minAvailabel", "did you mean minAvailable?"),
        (VOLCANO, "replicas:", "Replicas:", "spec.tasks[0].Replicas - error: unknown field: did you mean replicas?"),
    ],
)
def test_a_mistyped_field_never_makes_another_or_a_smaller_object(text: str, old: str, new: str, says: str) -> None:
    steps = TreeSteps()
    good = steps.push({"desired/a.yaml": text})
    assert not [one for one in good.diagnostics if one.severity != "info"]
    assert old in text
    bad = steps.push({"desired/a.yaml": text.replace(old, new, 1)})
    assert [(one.key, one.body) for one in bad.desired.manifests] == [
        (one.key, one.body) for one in good.desired.manifests
    ]
    assert any(says in str(one) for one in bad.diagnostics if one.severity == "error")


def test_other_unknown_fields_are_accepted_with_a_warning() -> None:
    text = DEPLOYMENT.replace("  name: chat\n", "  name: chat\n  clusterName: ours\n  zone: z\n")
    loaded = TreeSteps().push({"desired/a.yaml": text})
    assert declared(loaded) == {"Deployment/prod/chat"}
    (finding,) = loaded.diagnostics
    assert (finding.severity, finding.field) == ("warning", "metadata.zone")


def test_a_broken_file_protects_documents_moved_into_it_until_it_is_fixed() -> None:
    steps = TreeSteps()
    steps.push({"desired/a.yaml": joined(JOB, config("a")), "desired/c.yaml": ISOLATION})
    moved = {"desired/a.yaml": config("a"), "desired/b.yaml": JOB.replace("kind: AscendJob", "kind: AscendJbo")}
    assert TRAIN in declared(steps.push({**moved, "desired/c.yaml": ISOLATION}))
    later = {**moved, "desired/b.yaml": BROKEN}
    assert declared(steps.push(later)) >= {TRAIN, ISOLATE}, "in the step that broke it again, c.yaml went too"
    assert TRAIN in declared(steps.push({**later, "desired/d.yaml": config("d")}))
    assert declared(steps.push({**moved, "desired/b.yaml": JOB})) == {TRAIN, "ConfigMap/default/a"}
    assert declared(steps.push(moved | {"desired/b.yaml": config("b")})) == {
        "ConfigMap/default/a",
        "ConfigMap/default/b",
    }


def test_a_file_without_errors_prunes_while_another_has_been_broken_before() -> None:
    steps = TreeSteps()
    steps.push({"desired/a.yaml": joined(config("a"), config("b")), "desired/job.yaml": JOB})
    broken = JOB.replace("AscendJob", "AscendJbo")
    steps.push({"desired/a.yaml": joined(config("a"), config("b")), "desired/job.yaml": broken})
    assert declared(steps.push({"desired/a.yaml": config("a"), "desired/job.yaml": broken})) == {
        TRAIN,
        "ConfigMap/default/a",
    }
    assert declared(steps.push({"desired/job.yaml": broken})) == {TRAIN}, "a file that is gone prunes, too"


def test_a_renamed_and_broken_file_keeps_what_it_declared() -> None:
    steps = TreeSteps()
    steps.push({"desired/a.yaml": joined(config("a"), config("b"))})
    steps.push({"desired/a.yaml": joined(config("a", "1"), config("b", '"new"'), config("c"))})
    assert maps(steps.push({"desired/z.yaml": BROKEN})) == {"a": "v", "b": "new", "c": "v"}
    assert maps(steps.push({"desired/y.json": BROKEN})) == {"a": "v", "b": "new", "c": "v"}
    assert maps(steps.push({"desired/y.json": "{}", "desired/a.yaml": config("a")})) == {"a": "v", "b": "new", "c": "v"}
    assert maps(steps.push({"desired/a.yaml": config("a")})) == {"a": "v"}


def test_a_file_that_the_source_refuses_protects_as_a_broken_one() -> None:
    steps = TreeSteps()
    steps.push({"desired/a.yaml": JOB, "desired/c.yaml": config("c")})
    huge = {"desired/b.yaml": "2000000 bytes"}
    assert TRAIN in declared(steps.push({"desired/c.yaml": config("c")}, huge))
    assert TRAIN in declared(steps.push({"desired/d.yaml": config("d")}, huge))
    assert "ConfigMap/default/c" not in declared(steps.push({"desired/d.yaml": config("d")}, huge))
    assert declared(steps.push({"desired/d.yaml": config("d")})) == {"ConfigMap/default/d"}


def test_a_pool_that_a_layout_still_names_stays_while_the_layout_does() -> None:
    steps = TreeSteps()
    steps.push({"desired/pools.yaml": POOL, "desired/layout.yaml": LAYOUT})
    renamed = POOL.replace("name: cards", "name: crads")
    bad = steps.push({"desired/pools.yaml": renamed, "desired/layout.yaml": LAYOUT})
    assert declared(bad) == {"NodePool/cards", "NodePool/crads", "VNPULayout/cut"}
    assert any("unknown node pool 'cards'" in one.message for one in bad.diagnostics if one.severity == "error")
    mended = steps.push({"desired/pools.yaml": renamed, "desired/layout.yaml": LAYOUT.replace("cards", "crads")})
    assert declared(mended) == {"NodePool/crads", "VNPULayout/cut"}


def test_a_pool_stays_as_it_was_while_a_layout_does_not_fit_its_change() -> None:
    steps = TreeSteps()
    steps.push({"desired/pools.yaml": POOL, "desired/layout.yaml": LAYOUT})
    other = POOL.replace("product: atlas-300i-pro", "product: atlas-300i")
    bad = steps.push({"desired/pools.yaml": other, "desired/layout.yaml": LAYOUT})
    assert declared(bad) == {"NodePool/cards", "VNPULayout/cut"}
    assert [pool.document.spec.product for pool in bad.desired.pools] == ["atlas-300i-pro"]
    assert {one.file for one in bad.diagnostics if one.severity == "error"} == {"desired/layout.yaml"}
    (mended,) = steps.push({"desired/pools.yaml": other}).desired.pools
    assert mended.document.spec.product == "atlas-300i"


def test_of_two_documents_with_one_name_the_one_that_was_there_counts() -> None:
    steps = TreeSteps()
    steps.push({"desired/a.yaml": config("a"), "desired/b.yaml": config("b", '"b"')})
    bad = steps.push({"desired/a.yaml": config("b", '"a"'), "desired/b.yaml": config("b", '"b"')})
    assert maps(bad) == {"a": "v", "b": "b"}
    steps = TreeSteps()
    steps.push({"desired/a.yaml": joined(config("a", '"1"'), config("b", '"2"'))})
    assert maps(steps.push({"desired/a.yaml": joined(config("b", '"1"'), config("b", '"2"'))})) == {"a": "1", "b": "2"}


def test_a_remembered_version_that_is_lost_stops_pruning() -> None:
    steps = TreeSteps()
    steps.push({"desired/a.yaml": JOB, "desired/c.yaml": config("c")})
    known, steps.contents = dict(steps.contents), {}
    assert steps.push({"desired/a.yaml": BROKEN, "desired/c.yaml": config("c")}).desired.incomplete
    assert steps.push({"desired/a.yaml": BROKEN}).desired.incomplete
    steps.contents |= known
    healed = steps.push({"desired/a.yaml": BROKEN})
    assert declared(healed) >= {TRAIN} and not healed.desired.incomplete


@pytest.mark.parametrize("damage", [{"lastGood.json": "{"}, {"refused.json": "[]"}, {"inventory.json": "{}"}])
def test_without_a_memory_nothing_is_pruned_while_a_document_is_refused(damage: dict[str, str]) -> None:
    steps = TreeSteps()
    steps.push({"desired/a.yaml": JOB})
    steps.data = damage if "inventory.json" in damage else steps.data | damage
    assert steps.push({"desired/a.yaml": BROKEN}).desired.incomplete
    assert steps.push({"desired/a.yaml": BROKEN + " "}).desired.incomplete
    assert not steps.push({"desired/a.yaml": config("a")}).desired.incomplete
    assert not steps.push({"desired/a.yaml": BROKEN}).desired.incomplete


def test_a_file_is_read_whatever_the_case_of_its_ending() -> None:
    steps = TreeSteps()
    steps.push({"desired/job.yaml": JOB})
    assert declared(steps.push({"desired/job.YAML": JOB})) == {TRAIN}
