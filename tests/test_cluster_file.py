"""A cluster file whose parts have the wrong shape: a clear error or a plan, never a traceback."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from belay.engine.errors import InputError
from belay.engine.replay.cluster_file import objects_of
from belay.engine.replay.offline import plan_offline
from belay.engine.wire import publicinfo
from tests.test_cli import as_list, belay, world

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"data": ["a"]}, "items[0]: data: is a list, no mapping of keys to texts, in ConfigMap c"),
    ({"data": "a"}, "items[0]: data: is a text, no mapping"),
    ({"data": []}, "items[0]: data: is a list, no mapping"),
    ({"data": 1.5}, "items[0]: data: is a number, no mapping"),
    ({"binaryData": ["a"]}, "items[0]: binaryData: is a list, no mapping"),
    ({"data": {"a": {"b": "c"}}}, "items[0]: data.a: is a mapping, no text"),
    ({"metadata": ["a"]}, "items[0]: metadata: is a list, no mapping"),
    ({"metadata": {"name": "c", "labels": ["a"]}}, "items[0]: metadata.labels: is a list, no mapping"),
    ({"metadata": {"name": "c", "labels": ""}}, "items[0]: metadata.labels: is a text, no mapping"),
    ({"metadata": {"name": "c", "annotations": {"a": []}}}, "items[0]: metadata.annotations.a: is a list, no text"),
    ({"metadata": {"name": "c", "namespace": 0}}, "items[0]: metadata.namespace: is a number, no text"),
    ({"metadata": {"name": "c", "resourceVersion": 7}}, "items[0]: metadata.resourceVersion: is a number, no text"),
    ({"metadata": {"name": "c", "ownerReferences": {}}}, "items[0]: metadata.ownerReferences: is a mapping, no list"),
    ({"metadata": {"name": ["c"]}}, "items[0]: a ConfigMap without metadata.name"),
    ({"spec": []}, "items[0]: spec: is a list, no mapping"),
    ({"status": "a"}, "items[0]: status: is a text, no mapping"),
]


@pytest.mark.parametrize(("change", "said"), REFUSED, ids=[json.dumps(change) for change, _ in REFUSED])
def test_a_part_of_the_wrong_shape_is_named(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    item = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, **change}
    with pytest.raises(InputError) as refused:
        objects_of(json.dumps(as_list([item])).encode(), "f.json")
    assert f"f.json: {said}" in str(refused.value)


@pytest.mark.parametrize("items", ["{}", '""', "0", "false", '"x"'])
def test_items_are_a_list(items: str) -> None:
    with pytest.raises(InputError, match=r"f\.json: items: is .*, no list"):
        objects_of(f'{{"apiVersion": "v1", "kind": "List", "items": {items}}}'.encode(), "f.json")


def test_the_command_says_it_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    broken = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "d"}, "data": ["a"]}
    file.write_text(json.dumps(as_list([*world(), broken])))
    result = belay("plan", "--cluster", str(file))
    assert result.exit_code == 2 and "Traceback" not in result.output
    assert f"items[{len(world())}]: data: is a list, no mapping of keys to texts, in ConfigMap c" in result.stderr


def test_empty_lists_and_absent_parts_are_fine() -> None:
    assert objects_of(b'{"apiVersion": "v1", "kind": "List", "items": null}', "f") == []
    item = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "labels": None}, "data": None}
    (read,) = objects_of(json.dumps(as_list([item])).encode(), "f")
    assert read["metadata"]["labels"] == {}
    item = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"port": 80}}
    (read,) = objects_of(json.dumps(as_list([item])).encode(), "f")
    assert read["data"] == {"port": "80"}


def test_no_part_of_any_object_crashes_the_planner() -> None:
    """60 of the 7,000 changes of one part to another shape; all of them were tried once."""
    items = list({(item["kind"], item["metadata"]["name"][:12]): item for item in world()}.values())
    for namespace, name in (
        ("belay-system", "belay-sync"),
        ("belay-nodes", "belay-report-node-00000"),
        ("mindx-dl", "mindx-dl-nodeinfo-node-00000"),
        (publicinfo.STATISTICS_NAMESPACE, publicinfo.STATISTICS),
        ("volcano-system", "volcano-scheduler-configmap"),
    ):
        metadata = {"name": name, "namespace": namespace}
        items.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": "{}"}})
    values = (None, 1, "x", [], {}, [1], {"a": 1}, True, 1.5, [None], [{}])
    every = [(at, path, value) for at, item in enumerate(items) for path in _paths(item) if path for value in values]
    ended = {"refused": 0, "planned": 0}
    for at, path, value in random.Random(7).sample(every, 60):
        changed = [*items[:at], _changed(items[at], path, value), *items[at + 1 :]]
        try:
            plan_offline(objects_of(json.dumps(as_list(changed)).encode(), "f"), now="2026-11-23T00:00:00Z")
            ended["planned"] += 1
        except InputError:
            ended["refused"] += 1
    assert all(count > 5 for count in ended.values()), ended


def _paths(part: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield above
    rows = part.items() if isinstance(part, dict) else enumerate(part[:2]) if isinstance(part, list) else ()
    for key, value in rows:
        yield from _paths(value, (*above, key))


def _changed(part: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = part.copy()
    copy[path[0]] = _changed(part[path[0]], path[1:], value)
    return copy
