"""Fields of raw objects: a value of another type counts as absent, at every step of a path."""

from __future__ import annotations

from typing import Any

import pytest

from belay.engine.model.unstructured import nested_list, nested_map, string_map

RAW: dict[str, Any] = {"spec": {"template": {"labels": {"a": 1}}, "tasks": [{"name": "w"}, "no task"], "replicas": 2}}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (("spec", "template", "labels"), {"a": 1}),
        (("spec", "absent"), {}),
        (("absent", "template"), {}),
        (("spec", "replicas"), {}),
        (("spec", "replicas", "deeper"), {}),
        (("spec", "tasks", "deeper"), {}),
    ],
)
def test_a_map_is_found_by_its_path_or_empty(path: tuple[str, ...], found: dict[str, Any]) -> None:
    assert nested_map(RAW, *path) == found


def test_a_list_keeps_only_its_objects() -> None:
    assert nested_list(RAW, "spec", "tasks") == [{"name": "w"}]
    assert nested_list(RAW, "spec", "template") == nested_list(RAW, "tasks") == nested_list(RAW, "spec", "a", "b") == []


def test_keys_and_values_of_a_map_of_strings_become_text() -> None:
    assert string_map({"a": 1, 2: "b"}) == {"a": "1", "2": "b"}
    assert string_map(None) == string_map(["a"]) == {}
