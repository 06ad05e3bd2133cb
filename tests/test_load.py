"""From files to the desired state: places, last good versions, layers, duplicates, references, cache."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from belay.engine.documents import SHIPPED
from belay.engine.errors import InputError
from belay.engine.load import LoadCache, Loaded, PriorState, load, load_directory, schemas, shipped_policies
from belay.engine.model.diagnostics import ObjectKey

CONFIG = "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{k: {value}}}\n"
POOL = """apiVersion: belay.dev/v1alpha1
kind: NodePool
metadata: {{name: {name}}}
spec:
  selector: {{matchLabels: {{a: b}}}}
  product: {product}
"""
BUDGET = """apiVersion: belay.dev/v1alpha1
kind: SafetyBudget
metadata: {{name: {name}}}
spec:
  limits: [{{actions: [EvictPod], per: cluster, max: {count}, window: 1h}}]
"""


def config(name: str, value: str = '"v"') -> bytes:
    return CONFIG.format(name=name, value=value).encode()


def pool(name: str = "train", product: str = "atlas-800t-a2") -> bytes:
    return POOL.format(name=name, product=product).encode()


def budget(count: object = 1, name: str = "default") -> bytes:
    return BUDGET.format(name=name, count=count).encode()


def lines(loaded: Loaded, severity: str = "error") -> list[str]:
    return [
        f"{found.file}:{found.line}:{found.column} {found.field}".strip()
        for found in loaded.diagnostics
        if found.severity == severity
    ]


def names(loaded: Loaded) -> list[str]:
    return [manifest.key.name for manifest in loaded.desired.manifests]


def test_a_tree_becomes_sorted_desired_state() -> None:
    files = {
        "desired/z.yaml": config("b"),
        "desired/a.yaml": config("c") + b"---\n" + config("a"),
        "desired/p.yaml": pool(),
    }
    loaded = load(files, revision="r1")
    assert loaded.diagnostics == ()
    assert names(loaded) == ["a", "b", "c"]
    assert loaded.desired.revision == "r1"
    assert [item.document.name for item in loaded.desired.pools] == ["train"]
    first = loaded.desired.manifests[0]
    assert (first.origin.file, first.origin.line, first.origin.column) == ("desired/a.yaml", 6, 1)
    assert first.key.namespace == "default"
    assert first.body["data"] == {"k": "v"}
    assert loaded.good == dict.fromkeys(files, True)


def test_the_digest_does_not_depend_on_order_or_layout() -> None:
    one = load({"desired/a.yaml": b"{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {x: '1', y: '2'}}"})
    two = load({"desired/b.yaml": b"kind: ConfigMap\ndata:\n  y: '2'\n  x: '1'\nmetadata: {name: a}\napiVersion: v1\n"})
    assert one.desired.manifests[0].digest == two.desired.manifests[0].digest
    assert len(one.desired.manifests[0].digest) == 64


def test_all_errors_of_all_documents_are_reported_with_their_places() -> None:
    files = {
        "desired/a.yaml": pool().replace(b"product:", b"prodct:") + b"---\n" + config("Bad_Name", "1"),
        "desired/b.yaml": b"apiVersion: belay.dev/v1alpha1\nkind: Isolation\nmetadata: {name: x}\n"
        b"spec:\n  nodes: [5]\n  until: tomorrow\n",
    }
    loaded = load(files)
    assert lines(loaded) == [
        "desired/a.yaml:6:3 spec.prodct",
        "desired/a.yaml:10:18 metadata.name",
        "desired/a.yaml:11:11 data.k",
        "desired/b.yaml:5:3 spec.reason",
        "desired/b.yaml:5:11 spec.nodes[0]",
        "desired/b.yaml:6:10 spec.until",
    ]
    assert "did you mean product?" in loaded.diagnostics[0].message
    assert loaded.good == {"desired/a.yaml": False, "desired/b.yaml": False}


def test_unknown_kinds_and_versions_say_what_is_accepted() -> None:
    loaded = load(
        {
            "desired/a.yaml": b"apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: a}\n",
            "desired/b.yaml": b"apiVersion: extensions/v1beta1\nkind: Deployment\nmetadata: {name: a}\n",
            "desired/c.yaml": b"apiVersion: v1\nkind: Secret\nmetadata: {name: a}\n",
            "desired/d.yaml": b"apiVersion: belay.dev/v1alpha1\nkind: Pool\nmetadata: {name: a}\n",
            "desired/e.yaml": b"apiVersion: belay.dev/v1alpha1\nkind: Source\nmetadata: {name: a}\nspec: {url: x}\n",
            "desired/f.yaml": b"just text\n",
            "desired/g.yaml": b"metadata: {name: a}\n",
        }
    )
    messages = [found.message for found in loaded.diagnostics]
    assert "AscendJob (mindxdl.gitee.com/v1)" in messages[0]
    assert "Deployment is accepted as apps/v1" in messages[1]
    assert "secrets do not belong in Git" in messages[2]
    assert "NodePool" in messages[3]
    assert "given to the controller" in messages[4]
    assert "a document is a mapping" in messages[5]
    assert lines(loaded)[6:] == ["desired/g.yaml:1:1 apiVersion", "desired/g.yaml:1:1 kind"]


def test_lists_are_expanded() -> None:
    text = b"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}\n"
    text += b"- {apiVersion: v1, kind: ConfigMap, metadata: {name: b}, data: {k: 1}}\n"
    typed = b"apiVersion: v1\nkind: ConfigMapList\nitems:\n- {metadata: {name: c}}\n"
    loaded = load({"desired/a.yaml": text, "desired/b.yaml": typed})
    assert names(loaded) == ["a", "c"]
    assert lines(loaded) == ["desired/a.yaml:5:68 items[1].data.k"]
    assert loaded.desired.manifests[0].origin.line == 4


def test_the_first_of_two_declarations_counts_and_both_places_are_named() -> None:
    loaded = load({"desired/b.yaml": config("a", '"second"'), "desired/a.yaml": config("a", '"first"')})
    (found,) = loaded.diagnostics
    assert (found.severity, found.file, found.line) == ("error", "desired/b.yaml", 1)
    assert "desired/a.yaml:1:1" in found.message
    assert loaded.desired.manifests[0].body["data"] == {"k": "first"}


def test_a_broken_document_keeps_its_newest_good_version_and_others_go_on() -> None:
    path = "desired/a.yaml"
    now = config("a", "1") + b"---\n" + config("b", '"new"')
    older = [config("a", "2") + b"---\n" + config("b"), config("a", '"good"') + b"---\n" + config("b"), config("a")]
    loaded = load({path: now}, before=PriorState.of({path: older}))
    bodies = {manifest.key.name: manifest.body["data"]["k"] for manifest in loaded.desired.manifests}
    assert bodies == {"a": "good", "b": "new"}
    assert loaded.fallbacks == {"ConfigMap/default/a": f"{path}~2"}
    assert loaded.desired.held == ("ConfigMap/default/a",)
    assert not loaded.desired.incomplete
    assert [found.message for found in loaded.diagnostics if found.severity == "info"] == [
        "the last good version stays in force (2 versions back)"
    ]


def test_a_file_that_is_not_yaml_keeps_all_documents_of_its_newest_good_version() -> None:
    path = "desired/a.yaml"
    older = [b"a: [\n", config("a") + b"---\n" + config("b")]
    loaded = load({path: b"a: 'x\n", "desired/b.yaml": config("b", '"moved"')}, before=PriorState.of({path: older}))
    assert {manifest.key.name: manifest.body["data"]["k"] for manifest in loaded.desired.manifests} == {
        "a": "v",
        "b": "moved",
    }
    assert not loaded.desired.incomplete
    assert set(loaded.fallbacks) == {"ConfigMap/default/a"}


def test_without_a_good_version_the_state_is_incomplete_and_what_is_known_is_held() -> None:
    loaded = load({"desired/a.yaml": b"a: 'x\n"})
    assert loaded.desired.incomplete
    loaded = load({"desired/a.yaml": config("a", "1")})
    assert loaded.desired.incomplete, "what the file declared before is unknown"
    loaded = load({"desired/a.yaml": config("a", "1")}, before=PriorState.of({}))
    assert not loaded.desired.incomplete, "it declared nothing before"
    assert loaded.desired.held == ("ConfigMap/default/a",)


def test_a_document_that_moved_and_broke_is_found_in_the_file_that_is_gone() -> None:
    loaded = load({"desired/new.yaml": config("a", "1")}, before=PriorState.of({"desired/old.yaml": [config("a")]}))
    assert names(loaded) == ["a"]
    assert loaded.fallbacks == {"ConfigMap/default/a": "desired/old.yaml~1"}


def test_a_budget_that_cannot_be_read_fails_closed_until_a_good_version_is_known() -> None:
    path = "policies/budget.yaml"
    assert load({path: budget("many")}).desired.budget_broken
    assert load({path: b"kind: SafetyBudget\n  x: [\n"}).desired.budget_broken
    assert load({path: budget().replace(b"name: default", b"nme: default")}).desired.budget_broken
    healed = load({path: budget("many")}, before=PriorState.of({path: [budget(7)]}))
    assert not healed.desired.budget_broken
    assert healed.desired.budgets[0].document.spec.limits[0].allowed(100) == 7
    assert load({}, overlays=[{"x.yaml": budget("many")}]).desired.budget_broken
    assert not load({"desired/a.yaml": b"a: [\n"}).desired.budget_broken


def test_layers_replace_by_kind_and_name_and_add_otherwise() -> None:
    shipped = {"policies/budget.yaml": budget(1)}
    tree = {"policies/b.yaml": budget(2), "desired/c.yaml": budget(3, "other")}
    loaded = load(tree, shipped=shipped)
    found = {
        item.document.name: (item.document.spec.limits[0].allowed(0), item.origin.file)
        for item in loaded.desired.budgets
    }
    assert found == {"default": (2, "policies/b.yaml"), "other": (3, "desired/c.yaml")}
    over = load(tree, shipped=shipped, overlays=[{"x.yaml": budget(4)}, {"y.yaml": budget(5)}])
    assert [item.document.spec.limits[0].allowed(0) for item in over.desired.budgets] == [5, 3]
    (alone,) = load({}, shipped=shipped).desired.budgets
    assert alone.origin.file == f"{SHIPPED}policies/budget.yaml"


def test_manifests_do_not_belong_among_policies() -> None:
    loaded = load({"policies/a.yaml": config("a")}, overlays=[{"b.yaml": config("b")}])
    assert names(loaded) == []
    assert lines(loaded) == ["b.yaml:1:1", "policies/a.yaml:1:1"]


def test_the_repositorys_own_settings_are_in_force() -> None:
    text = b"apiVersion: belay.dev/v1alpha1\nkind: SchedulingSettings\n"
    text += b"metadata: {name: %s}\nspec: {schedulerNames: [%s]}\n"
    loaded = load({"policies/s.yaml": text % (b"zone", b"mine")})
    assert loaded.desired.settings.scheduler_names == ("mine",)
    assert load({}).desired.settings.scheduler_names == ("belay", "volcano")
    two = load({"policies/s.yaml": text % (b"a", b"x") + b"---\n" + text % (b"b", b"y")})
    assert two.desired.settings.scheduler_names == ("x",)
    assert lines(two, "warning") == ["policies/s.yaml:6:1"]


LAYOUT = """apiVersion: belay.dev/v1alpha1
kind: VNPULayout
metadata: {{name: l}}
spec:
  pool: {pool}
  mode: {mode}
  chips:
    - {{chips: [{chip}], templates: [{templates}]}}
"""


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"pool": "nowhere"}, "desired/l.yaml:5:9 spec.pool"),
        ({"templates": "vir99"}, "desired/l.yaml:8:32 spec.chips[0].templates[0]"),
        ({"templates": "vir08"}, "desired/l.yaml:8:32 spec.chips[0].templates[0]"),
        ({"templates": "vir04, vir04"}, "desired/l.yaml:8:31 spec.chips[0].templates"),
        ({"chip": "63", "pool": "duo"}, "desired/l.yaml:8:15 spec.chips[0].chips"),
        ({}, ""),
    ],
)
def test_layouts_name_known_pools_and_templates_that_fit(change: dict[str, str], place: str) -> None:
    fields = {"pool": "cards", "mode": "static", "chip": "0", "templates": "vir04, vir04_3c", **change}
    files = {
        "desired/l.yaml": LAYOUT.format(**fields).encode(),
        "desired/p.yaml": pool("cards", "atlas-300i-pro") + b"---\n" + pool("duo", "atlas-300i-duo"),
    }
    loaded = load(files)
    assert lines(loaded) == ([place] if place else [])
    assert len(loaded.desired.layouts) == (0 if place else 1)


def test_a_pool_with_an_unknown_product_keeps_its_last_good_version() -> None:
    path = "desired/p.yaml"
    loaded = load({path: pool(product="nope")}, before=PriorState.of({path: [pool(product="neither"), pool()]}))
    assert lines(loaded) == [f"{path}:6:12 spec.product"]
    assert loaded.fallbacks == {"NodePool/train": f"{path}~2"}
    assert any("known are" in found.message and "atlas-800t-a2" in found.message for found in loaded.diagnostics)
    assert [item.document.spec.product for item in loaded.desired.pools] == ["atlas-800t-a2"]


def test_one_broken_pool_is_one_error() -> None:
    policy = b"apiVersion: belay.dev/v1alpha1\nkind: FaultPolicy\n"
    policy += b"metadata: {name: f}\nspec: {scope: {pools: [train, default]}}\n"
    loaded = load({"desired/f.yaml": policy, "desired/p.yaml": pool().replace(b"spec:", b"spce:")})
    assert {found.file for found in loaded.diagnostics if found.severity == "error"} == {"desired/p.yaml"}
    assert len(loaded.desired.fault_policies) == 2
    missing = load({"desired/f.yaml": policy})
    assert lines(missing) == ["desired/f.yaml:4:24 spec.scope.pools[0]"]


def test_uncertain_references_are_warnings() -> None:
    policy = b"apiVersion: belay.dev/v1alpha1\nkind: FaultPolicy\n"
    policy += b"metadata: {name: f}\nspec:\n  levels: {80E0180l: RestartNPU}\n"
    job = b"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec:\n  selector: {matchLabels: {a: b}}\n"
    job += b"  template:\n    metadata: {labels: {a: b}, annotations: {huawei.com/schedule_policy: chip9}}\n"
    job += b"    spec: {containers: [{name: c, image: i}]}\n"
    loaded = load({"desired/f.yaml": policy, "desired/j.yaml": job})
    assert lines(loaded) == []
    assert lines(loaded, "warning") == [
        "desired/f.yaml:5:12 spec.levels.80E0180l",
        "desired/j.yaml:7:74 spec.template.metadata.annotations.huawei.com/schedule_policy",
    ]
    assert all(loaded.good.values())


class Fetching(Mapping[str, bytes]):
    """A tree that remembers which files were fetched."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files, self.fetched = files, list[str]()

    def __getitem__(self, path: str) -> bytes:
        self.fetched.append(path)
        return self.files[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)


def test_unchanged_blobs_are_not_fetched() -> None:
    files = {f"desired/{number}.yaml": config(f"c{number}") for number in range(20)}
    ids = {path: f"id-{path}" for path in files}
    cache = LoadCache()
    tree = Fetching(files)
    first = load(tree, blob_ids=ids, cache=cache)
    assert len(tree.fetched) == 20
    files["desired/7.yaml"] = config("c7", '"changed"')
    ids["desired/7.yaml"] = "another"
    tree.fetched.clear()
    second = load(tree, blob_ids=ids, cache=cache)
    assert tree.fetched == ["desired/7.yaml"]
    assert load(dict(files)).desired.manifests == second.desired.manifests != first.desired.manifests
    assert second.desired.manifests[0] is first.desired.manifests[0]


def test_the_cache_forgets_what_a_load_did_not_use() -> None:
    cache = LoadCache()
    load({f"desired/{number}.yaml": config(f"c{number}") for number in range(50)}, shipped={}, cache=cache)
    load({"desired/1.yaml": config("c1")}, shipped={}, cache=cache)
    assert len(cache) == 1


def test_the_same_content_at_another_path_has_its_own_places() -> None:
    cache = LoadCache()
    files = {"desired/a.yaml": config("a", "1"), "desired/b.yaml": config("a", "1")}
    loaded = load(files, blob_ids=dict.fromkeys(files, "same"), cache=cache)
    assert {"desired/a.yaml:4:11 data.k", "desired/b.yaml:4:11 data.k"} <= set(lines(loaded))


def test_a_second_document_of_a_name_is_reported_beside_a_broken_first_and_counts() -> None:
    loaded = load({"desired/a.yaml": config("a", "1"), "desired/b.yaml": config("a")})
    messages = [d.message for d in loaded.diagnostics if d.file == "desired/b.yaml"]
    assert messages == ["declared twice: at desired/a.yaml:1:1 and here; the first one is broken"]
    assert [m.origin.file for m in loaded.desired.manifests] == ["desired/b.yaml"]


def test_a_missing_branch_is_named_in_full() -> None:
    text = b"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec: {selector: {matchLabels: {a: b}}}\n"
    fields = {d.field for d in load({"desired/a.yaml": text}).diagnostics}
    assert {"spec.template", "spec.template.spec"} <= fields


def test_a_tree_of_too_many_documents_is_refused_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("belay.engine.load.MAX_TREE_DOCUMENTS", 3)
    loaded = load({f"desired/{number}.yaml": config(f"c{number}") for number in range(4)})
    assert loaded.refused
    assert loaded.desired.incomplete and not loaded.desired.has_git


def test_a_flood_of_errors_is_cut_and_counted() -> None:
    rows = "".join(f"  k{number}: {number}\n" for number in range(500)).encode()
    loaded = load({"desired/a.yaml": b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n" + rows})
    assert len(loaded.diagnostics) == 101
    assert "400 more problems" in "".join(found.message for found in loaded.diagnostics)


def test_directories_hold_desired_and_policies_or_documents(tmp_path: Path) -> None:
    for name in ("desired/a.yaml", "desired/.hidden/b.yaml", "desired/.c.yaml", "desired/d.txt", "other/e.yaml",
                 "policies/f.yml", "policies/schemas/g.json", "desired/deep/h.json"):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x: 1\n")
    assert sorted(load_directory(tmp_path)) == ["desired/a.yaml", "desired/deep/h.json", "policies/f.yml"]
    assert sorted(load_directory(tmp_path / "desired")) == ["a.yaml", "deep/h.json"]
    (tmp_path / "desired" / "big.yaml").write_bytes(b"#" * (2 << 20))
    loaded = load(load_directory(tmp_path), shipped={})
    assert "larger than 1 MiB" in next(
        found.message for found in loaded.diagnostics if found.file == "desired/big.yaml"
    )


def test_links_must_stay_inside_the_directory(tmp_path: Path) -> None:
    (tmp_path / "secret.yaml").write_text("a: 1\n")
    (tmp_path / "repo" / "desired").mkdir(parents=True)
    (tmp_path / "repo" / "desired" / "link.yaml").symlink_to(tmp_path / "secret.yaml")
    with pytest.raises(InputError, match="leads out"):
        load_directory(tmp_path / "repo")
    (tmp_path / "repo" / "desired" / "link.yaml").unlink()
    for target, says in (("nowhere.yaml", "leads nowhere"), (tmp_path, "in place of a folder is not followed")):
        (tmp_path / "repo" / "desired" / "link.yaml").symlink_to(target)
        with pytest.raises(InputError, match=says):
            load_directory(tmp_path / "repo")
        (tmp_path / "repo" / "desired" / "link.yaml").unlink()
    with pytest.raises(InputError, match="no such directory"):
        load_directory(tmp_path / "missing")


def test_shipped_policies_come_with_the_package_or_the_checkout() -> None:
    assert "policies/budget.yaml" in shipped_policies()
    assert not any("schemas" in path for path in shipped_policies())
    assert "nodepool.json" in schemas()


def test_references_are_reported_at_their_place_though_the_file_is_not_fetched_again() -> None:
    files = {"desired/p.yaml": pool(product="nope")}
    ids, cache = {"desired/p.yaml": "id"}, LoadCache()
    first = load(Fetching(files), blob_ids=ids, cache=cache)
    tree = Fetching({"desired/p.yaml": b""})
    assert load(tree, blob_ids=ids, cache=cache).diagnostics == first.diagnostics
    assert tree.fetched == []


def test_only_objects_that_are_certainly_removed_may_be_pruned() -> None:
    gone = ObjectKey("v1", "ConfigMap", "default", "gone")
    broken = ObjectKey("v1", "ConfigMap", "default", "a")
    desired = load({"desired/a.yaml": config("a", "1")}, before=PriorState.of({})).desired
    assert desired.may_prune(gone)
    assert not desired.may_prune(broken)
    assert not load({"desired/a.yaml": b"a: [\n"}).desired.may_prune(gone)
    assert not load({}, has_git=False).desired.may_prune(gone)


def test_messages_say_what_to_do() -> None:
    text = b"""apiVersion: belay.dev/v1alpha1
kind: FaultPolicy
metadata: {name: f, namespace: x}
spec:
  mode: enforced
  frequency: [{codes: [81078603, "1"], times: 0, window: 1d, level: SeparateNPU, releaseAfter: 1h}]
  duration: [{codes: [], timeout: 5s, recover: 1h, level: SeparateNPU}]
  scope: {pools: [Big], nodes: [5], workload: [training]}
"""
    found = {
        f"{item.line}:{item.column} {item.field}": item.message for item in load({"desired/f.yaml": text}).diagnostics
    }
    assert found == {
        "3:21 metadata.namespace": "Belay's kinds have no namespace: remove it",
        "5:9 spec.mode": "'enforced' should be 'enforce' or 'shadow'",
        "6:24 spec.frequency[0].codes[0]": "81078603 is not a fault code: put it in quotes, "
        "as YAML reads it as a number otherwise",
        "6:47 spec.frequency[0].times": "0 should be greater than or equal to 1",
        "6:58 spec.frequency[0].window": "'1d' is not a duration: write a number with its unit, such as 90s, 10m or 6h",
        "7:22 spec.duration[0].codes": "must not be empty",
        "8:19 spec.scope.pools[0]": "'Big' is not an RFC 1123 name: lower-case letters, digits, '-' and '.'",
        "8:33 spec.scope.nodes[0]": "5 must be text: put it in quotes if it looks like a number or a boolean",
        "8:37 spec.scope.workload": "unknown field: did you mean workloads?",
    }


def test_json_may_write_a_character_as_two_surrogates_and_indent_by_tabs() -> None:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "\U0001f600 \\ud83d"}}
    loaded = load({"desired/a.json": json.dumps(body, indent="\t").encode()})
    assert loaded.diagnostics == ()
    assert loaded.desired.manifests[0].body["data"] == body["data"]


def test_a_mistake_on_a_line_that_begins_with_a_tab_is_not_blamed_on_the_tab() -> None:
    (found,) = load({"desired/a.json": b'{\n\t"a": 1\n\t"b": 2\n}'}).diagnostics
    assert (found.line, "did not find expected ','" in found.message) == (3, True)


def test_references_of_a_broken_document_are_checked_too() -> None:
    text = b"""apiVersion: belay.dev/v1alpha1
kind: FaultPolicy
metadata: {name: f}
spec:
  scope: {pools: [nowhere], products: [nothing]}
  mode: maybe
"""
    loaded = load({"policies/f.yaml": text})
    assert [(d.line, d.field) for d in loaded.diagnostics] == [
        (5, "spec.scope.pools[0]"),
        (5, "spec.scope.products[0]"),
        (6, "spec.mode"),
    ]
    assert not [p for p in loaded.desired.fault_policies if p.document.name == "f"]


def test_an_unreadable_file_named_budget_stops_disruption() -> None:
    assert load({"policies/our-budget.yaml": b"\t{{{"}).desired.budget_broken
    assert not load({"policies/pools.yaml": b"\t{{{"}).desired.budget_broken


def test_codes_that_no_table_lists_are_named_beside_other_mistakes() -> None:
    text = b"""apiVersion: belay.dev/v1alpha1
kind: FaultPolicy
metadata: {name: a}
spec:
  mode: nope
  levels:
    80C98OO1: RestartNPU
    80C98001: RestartNPU
    80C98002: Nonsense
  frequency:
    - {codes: ["80C98001", "80C99998"], times: 3, window: 24h, level: SeparateNPU, releaseAfter: 1h}
  duration:
    - {codes: ["80C99997"], timeout: 60s, recover: 60s, level: SeparateNPU}
---
apiVersion: belay.dev/v1alpha1
kind: FaultPolicy
metadata: {name: b}
spec:
  levels: {80C99996: SeparateNPU}
"""
    found = load({"policies/a.yaml": text}).diagnostics
    by_place = {(d.line, d.column, d.severity): d.message for d in found}
    assert [place for place in sorted(by_place) if place[2] == "error"] == [(5, 9, "error"), (9, 15, "error")]
    unknown = {7: "80C98OO1", 11: "80C99998", 13: "80C99997", 19: "80C99996"}
    columns = {7: 5, 11: 28, 13: 16, 19: 12}
    assert {place: text for place, text in by_place.items() if place[2] == "warning"} == {
        (line, columns[line], "warning"): f"no fault table lists code {code}: is it spelt right?"
        for line, code in unknown.items()
    }
