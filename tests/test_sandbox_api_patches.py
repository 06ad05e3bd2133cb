"""Patches, field sets, selectors and expiry of the sandbox's API server: pure rules, some of them as properties."""

from __future__ import annotations

import copy
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belay.engine.model.patches import merge_patch
from belay.engine.sandbox.api import fieldsets, schemagen
from belay.engine.sandbox.api.apply import apply, empty_fields, track_update
from belay.engine.sandbox.api.builtin import builtin_resources, model_of
from belay.engine.sandbox.api.durations import human_duration
from belay.engine.sandbox.api.errors import ApiError
from belay.engine.sandbox.api.expiry import MAX_EVENTS, expire_events
from belay.engine.sandbox.api.kinds import ServedResource, version_rank
from belay.engine.sandbox.api.patches import json_patch, strategic_merge
from belay.engine.sandbox.api.protobuf import MAGIC, parse
from belay.engine.sandbox.api.schema import builtin_node
from belay.engine.sandbox.api.selectors import label_selector, structured_selector
from belay.engine.sandbox.api.store import ClusterStore
from belay.engine.sandbox.api.tables import json_path

JSON = dict[str, Any]
FEW = settings(max_examples=150, deadline=timedelta(seconds=2))


def resource(plural: str) -> ServedResource:
    found = next(r for r in builtin_resources() if r.plural == plural)
    found.node = builtin_node(model_of(found))
    return found


PODS, CONFIGMAPS = resource("pods"), resource("configmaps")

values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["a", "b", ""]),
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "c/d", "e~f"]), children, max_size=3)
    ),
    max_leaves=12,
)
objects = st.dictionaries(st.sampled_from(["a", "b", "c"]), values, max_size=3)
data = st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), st.sampled_from(["1", "2"]), max_size=4)


# -- RFC 6902 and 7386


@pytest.mark.parametrize(
    "document, operations, result",
    [  # examples of RFC 6902, appendix A
        ({"foo": "bar"}, [{"op": "add", "path": "/baz", "value": "qux"}], {"baz": "qux", "foo": "bar"}),
        ({"foo": ["bar", "baz"]}, [{"op": "add", "path": "/foo/1", "value": "qux"}], {"foo": ["bar", "qux", "baz"]}),
        ({"foo": ["bar", "qux", "baz"]}, [{"op": "remove", "path": "/foo/1"}], {"foo": ["bar", "baz"]}),
        (
            {"foo": {"a": 1}, "qux": {}},
            [{"op": "move", "from": "/foo/a", "path": "/qux/b"}],
            {"foo": {}, "qux": {"b": 1}},
        ),
        ({"foo": ["all", "cows"]}, [{"op": "move", "from": "/foo/0", "path": "/foo/1"}], {"foo": ["cows", "all"]}),
        ({"/": 9, "~1": 10}, [{"op": "test", "path": "/~01", "value": 10}], {"/": 9, "~1": 10}),
        ({"foo": ["bar"]}, [{"op": "add", "path": "/foo/-", "value": ["abc"]}], {"foo": ["bar", ["abc"]]}),
        ({"a": {"b": 1}}, [{"op": "copy", "from": "/a", "path": "/c"}], {"a": {"b": 1}, "c": {"b": 1}}),
    ],
)
def test_json_patch_examples(document: JSON, operations: list[JSON], result: JSON) -> None:
    before = copy.deepcopy(document)
    assert json_patch(document, operations) == result
    assert document == before


@pytest.mark.parametrize(
    "operations",
    [
        [{"op": "test", "path": "/a", "value": 2}],
        [{"op": "remove", "path": "/nope"}],
        [{"op": "replace", "path": "/nope", "value": 1}],
        [{"op": "add", "path": "/x/y", "value": 1}],
        [{"op": "add", "path": "/l/9", "value": 1}],
        [{"op": "explode", "path": "/a"}],
        [{"path": "/a"}],
        [{"op": "add", "path": "a", "value": 1}],
    ],
)
def test_json_patches_that_do_not_apply_change_nothing(operations: list[JSON]) -> None:
    document = {"a": 1, "l": [1]}
    with pytest.raises(ApiError) as refused:
        json_patch(document, operations)
    assert refused.value.code == 422
    assert document == {"a": 1, "l": [1]}


@given(objects, objects)
@FEW
def test_a_merge_patch_is_idempotent_and_leaves_its_arguments(target: JSON, patch: JSON) -> None:
    before = copy.deepcopy((target, patch))
    once = merge_patch(target, patch)
    assert merge_patch(once, patch) == once
    assert (target, patch) == before


# -- strategic merge


def containers(*names: str) -> JSON:
    return {"spec": {"containers": [{"name": name, "image": f"{name}:1"} for name in names]}}


def merged(target: JSON, patch: JSON) -> list[str]:
    assert PODS.node is not None
    return [
        c["name"] + ":" + c.get("image", "") for c in strategic_merge(PODS.node, target, patch)["spec"]["containers"]
    ]


def test_strategic_lists_are_merged_by_name_and_ordered() -> None:
    base = containers("a", "b")
    assert merged(base, {"spec": {"containers": [{"name": "b", "image": "b:2"}]}}) == ["a:a:1", "b:b:2"]
    assert merged(base, {"spec": {"containers": [{"name": "a", "$patch": "delete"}]}}) == ["b:b:1"]
    replaced = {"spec": {"containers": [{"name": "z", "image": "z:1"}, {"$patch": "replace"}]}}
    assert merged(base, replaced) == ["z:z:1"]
    ordered = {
        "spec": {
            "$setElementOrder/containers": [{"name": "b"}, {"name": "c"}, {"name": "a"}],
            "containers": [{"name": "c"}],
        }
    }
    assert merged(base, ordered) == ["b:b:1", "c:", "a:a:1"]


def test_strategic_directives_on_maps_and_sets() -> None:
    node = PODS.node
    assert node is not None
    pod = {"metadata": {"finalizers": ["a/a", "b/b"], "labels": {"x": "1", "y": "2"}}}
    assert strategic_merge(node, pod, {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a/a"]}})["metadata"][
        "finalizers"
    ] == ["b/b"]
    assert strategic_merge(node, pod, {"metadata": {"finalizers": ["c/c"]}})["metadata"]["finalizers"] == [
        "c/c",
        "a/a",
        "b/b",
    ]
    assert strategic_merge(node, pod, {"metadata": {"labels": {"$patch": "replace", "z": "3"}}})["metadata"][
        "labels"
    ] == {"z": "3"}
    assert strategic_merge(node, pod, {"metadata": {"$retainKeys": ["labels"], "labels": {"x": None}}})["metadata"] == {
        "labels": {"y": "2"}
    }


def test_an_applied_empty_map_is_owned() -> None:
    """As kube-apiserver does since 1.21 (tests/e2e/test_api_differential.py, owners_of_empty_fields)."""
    given = {**config({"a": "1"}), "data": {}}
    assert empty_fields(CONFIGMAPS, given) == {"f:data": {}}
    live = apply(CONFIGMAPS, None, config({"a": "1"}), "one", empty={}, force=False, subresource="", now="t")
    bare = config({})
    joined = apply(CONFIGMAPS, live, bare, "two", empty={"f:data": {}}, force=False, subresource="", now="t")
    assert joined["data"] == {"a": "1"}
    assert {entry["manager"]: entry["fieldsV1"] for entry in joined["metadata"]["managedFields"]} == {
        "one": {"f:data": {"f:a": {}}},
        "two": {"f:data": {}},
    }
    pod_with_nothing = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {}}, "spec": "wrong"}
    assert empty_fields(PODS, pod_with_nothing) == {"f:metadata": {"f:labels": {}}}
    assert empty_fields(PODS, {"metadata": ["wrong"]}) == empty_fields(PODS, "wrong") == {}


# -- server-side apply as properties


def config(fields: dict[str, str]) -> JSON:
    made: JSON = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}
    return {**made, "data": fields} if fields else made


def applied(live: JSON | None, fields: dict[str, str], manager: str, *, force: bool = True) -> JSON:
    wanted = config(fields)
    empty = empty_fields(CONFIGMAPS, wanted)
    return apply(CONFIGMAPS, copy.deepcopy(live), wanted, manager, empty=empty, force=force, subresource="", now="t")


def owners(obj: JSON) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for entry in obj["metadata"].get("managedFields", ()):
        for path in fieldsets.paths(entry["fieldsV1"]):
            found.setdefault(path, set()).add(entry["manager"])
    return found


@given(st.lists(st.tuples(st.sampled_from(["one", "two", "three"]), data), min_size=1, max_size=6))
@FEW
def test_forced_applies_end_with_the_fields_of_their_owners(steps: list[tuple[str, dict[str, str]]]) -> None:
    live: JSON | None = None
    last: dict[str, dict[str, str]] = {}
    for manager, fields in steps:
        live = applied(live, fields, manager)
        last[manager] = fields
        shown = live.get("data") or {}
        assert fields.items() <= shown.items(), "what was applied by force is there"
        assert owners(live).keys() <= {f".data.{key}" for key in shown}, "only fields that exist are owned"
        assert set(shown) == {path.removeprefix(".data.") for path in owners(live)}, "a field without an owner is gone"
        for key in shown:
            assert owners(live)[f".data.{key}"] <= {name for name, said in last.items() if key in said}


@given(data, data)
@FEW
def test_an_apply_conflicts_exactly_on_changed_fields_of_others(first: dict[str, str], second: dict[str, str]) -> None:
    live = applied(None, first, "one")
    changed = {f".data.{key}" for key, value in second.items() if key in first and first[key] != value}
    if not changed:
        assert (applied(live, second, "two", force=False).get("data") or {}) == {**first, **second}
        return
    with pytest.raises(ApiError) as refused:
        applied(live, second, "two", force=False)
    assert {cause["field"] for cause in (refused.value.details or {})["causes"]} == changed


@given(data)
@FEW
def test_applying_the_same_again_changes_nothing(fields: dict[str, str]) -> None:
    live = applied(None, fields, "one")
    assert applied(live, fields, "one", force=False) == live


@given(data, data, data)
@FEW
def test_an_update_takes_over_what_it_changes(
    first: dict[str, str], second: dict[str, str], third: dict[str, str]
) -> None:
    live = applied(None, first, "one")
    new = {**config(second), "metadata": copy.deepcopy(live["metadata"])}
    track_update(CONFIGMAPS, live, new, "editor", "", "t")
    for key, value in second.items():
        expected = {"one"} if first.get(key) == value else {"editor"}
        assert owners(new)[f".data.{key}"] == expected
    assert set(owners(new)) == {f".data.{key}" for key in second}
    removed = set(first) & set(second) - set(third)
    gone = applied(new, third, "one")
    for key in removed:
        kept_by_editor = owners(new)[f".data.{key}"] == {"editor"}
        assert (key in (gone.get("data") or {})) == kept_by_editor


tries = st.recursive(
    st.just({}),
    lambda t: st.dictionaries(st.sampled_from(["f:a", "f:b", "."]), t, min_size=1, max_size=3),
    max_leaves=8,
).map(lambda trie: _tidy(trie))


def _tidy(trie: JSON) -> JSON:
    return {name: ({} if name == "." else _tidy(below)) for name, below in trie.items()}


@given(tries, tries)
@FEW
def test_field_sets_obey_the_laws_of_sets(a: JSON, b: JSON) -> None:
    def members(trie: JSON | None) -> set[str]:
        return set() if trie is None else set(fieldsets.paths(trie))

    assert members(fieldsets.union(a, b)) == members(a) | members(b)
    assert members(fieldsets.intersection(a, b)) == members(a) & members(b)
    assert members(fieldsets.difference(a, b)) == members(a) - members(b)


# -- selectors, columns, small things


LABELS = {"a": "1", "b": "x", "n": "7"}


@pytest.mark.parametrize(
    "text, selected",
    [
        ("a=1", True),
        ("a==1", True),
        ("a!=1", False),
        ("missing!=1", True),
        ("a in (1,2)", True),
        ("a notin (1,2)", False),
        ("missing notin (1)", True),
        ("a", True),
        ("!a", False),
        ("!missing", True),
        ("n>6", True),
        ("n<7", False),
        ("a=1,b in (y, x)", True),
        ("a=1,b=y", False),
        ("a=", False),
        ("", True),
    ],
)
def test_label_selectors(text: str, selected: bool) -> None:
    assert label_selector(text)({"metadata": {"labels": LABELS}}) is selected


@pytest.mark.parametrize("text", ["a b c", "a in 1", "a=(", "=1", "a>x", "in (1)"])
def test_wrong_label_selectors_are_refused(text: str) -> None:
    with pytest.raises(ApiError) as refused:
        label_selector(text)
    assert refused.value.code == 400


def test_structured_selectors() -> None:
    assert not structured_selector(None)({"a": "1"})
    assert structured_selector({})({"a": "1"})
    wanted = {"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "b", "operator": "NotIn", "values": ["y"]}]}
    assert structured_selector(wanted)(LABELS)
    assert not structured_selector(wanted)({**LABELS, "b": "y"})


@pytest.mark.parametrize(
    "path, found",
    [
        (".spec.a", 1),
        (".spec.list[0].name", "x"),
        (".spec.list[-1:].name", "y"),
        (".spec.list[*].name", "x"),
        (".spec.none", None),
        ('.spec.list[?(@.name=="y")].value', 5),
        (".spec.map.a\\.b/c", 7),
        (".spec['a']", 1),
        (".spec.list[9].name", None),
        ("(", None),
    ],
)
def test_printer_columns_paths(path: str, found: Any) -> None:
    obj = {"spec": {"a": 1, "list": [{"name": "x"}, {"name": "y", "value": 5}], "map": {"a.b/c": 7}}}
    assert json_path(obj, path) == found


@pytest.mark.parametrize(
    "seconds, text",
    [
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (150, "2m30s"),
        (599, "9m59s"),
        (600, "10m"),
        (10799, "179m"),
        (10800, "3h"),
        (12600, "3h30m"),
        (28800, "8h"),
        (172799, "47h"),
        (172800, "2d"),
        (180000, "2d2h"),
        (691200, "8d"),
        (63072000, "2y"),
        (-5, "<invalid>"),
    ],
)
def test_durations_read_like_kubectls(seconds: int, text: str) -> None:
    assert human_duration(seconds) == text


def test_versions_are_preferred_as_kubernetes_does() -> None:
    versions = ["v1alpha1", "v1", "v2beta1", "v2", "v1beta2", "v1beta1"]
    assert sorted(versions, key=version_rank) == ["v2", "v1", "v2beta1", "v1beta2", "v1beta1", "v1alpha1"]


def test_events_expire_by_age_and_count() -> None:
    store = ClusterStore()
    for i in range(MAX_EVENTS + 5):
        metadata = {"name": f"e{i}", "creationTimestamp": "2026-01-01T00:00:00Z"}
        store.put("events", ("n", f"e{i}"), {"metadata": metadata})
    touched = {
        "metadata": {"name": "late", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "lastTimestamp": "2026-01-01T01:30:00Z",
    }
    store.put("events", ("n", "late"), touched)
    begun = 1767225600.0
    assert expire_events(store, begun) == 6
    assert store.get("events", ("n", "e5")) is None
    assert expire_events(store, begun + 2 * 3600 + 60) == MAX_EVENTS - 1
    assert [entry.key[1] for entry in store.collection("events").entries()] == ["late"]


@given(st.binary(max_size=60))
@FEW
def test_nonsense_in_protobuf_is_refused_and_never_crashes(raw: bytes) -> None:
    known = b"\x0a\x0f\x0a\x02v1\x12\x09ConfigMap"
    for body in (raw, MAGIC + raw, MAGIC + known + b"\x12" + bytes([len(raw)]) + raw):
        try:
            parse(body)
        except ApiError as refused:
            assert refused.code in (400, 415)


def test_schemas_of_built_in_kinds_are_current() -> None:
    assert Path(schemagen.TARGET).read_bytes() == schemagen.generate(), (
        "run python -m belay.engine.sandbox.api.schemagen"
    )
