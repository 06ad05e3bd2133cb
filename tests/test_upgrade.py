"""What an older version wrote is read, and what a newer one wrote is refused by name."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from belay.engine import cli, versions
from belay.engine.controller.status_writer import StatusWriter
from belay.engine.kube import CONFIGMAP, Conflict, Invalid, Kube, KubeError, NotFound
from belay.engine.model.labels import FORMAT_ANNOTATION
from belay.engine.observe.observed import observe
from belay.engine.replay.recording import read, replay
from belay.engine.wire import formats, history, ledger, names, orders, revisionlog, sync
from belay.engine.wire.errors import WireError
from tests.kube_server import stores_custom_objects
from tests.upgrade import newest_release

ROOT = Path(__file__).resolve().parents[1]
SAMPLES = sorted((ROOT / "tests" / "samples" / "upgrade").iterdir())


@pytest.fixture(params=SAMPLES, ids=[folder.name for folder in SAMPLES])
def sample(request: pytest.FixtureRequest) -> Path:
    """What one released version wrote."""
    folder: Path = request.param
    return folder


def written(sample: Path) -> dict[str, dict[str, Any]]:
    items = json.loads((sample / "objects.json").read_text())["items"]
    return {item["metadata"]["name"]: item for item in items}


def test_every_released_version_has_left_samples() -> None:
    released = [entry.version for entry in versions.changelog(ROOT) if entry.date != "unreleased"]
    assert {folder.name for folder in SAMPLES} >= set(released)


def test_what_a_released_version_wrote_is_read_without_a_finding(sample: Path) -> None:
    found = written(sample)
    observed = observe(found.values())
    assert observed.problems == {}
    assert not [one for one in observed.diagnostics if one.severity == "error"], observed.diagnostics
    assert observed.reports and observed.inventory
    assert ledger.parse(found["belay-ledger-main"]) is not None
    assert revisionlog.parse(found[names.REVISIONS]).entries


def test_orders_of_a_released_engine_are_taken_and_reports_of_its_agents_count(sample: Path) -> None:
    found = written(sample)
    taken = [orders.parse_orders(item) for name, item in found.items() if name.startswith(names.ORDERS_PREFIX)]
    assert any(chip.epoch for one in taken for chip in one.resets.values()), "one of them holds a reset"
    reports = [orders.parse_report(item) for name, item in found.items() if name.startswith(names.REPORT_PREFIX)]
    assert len(reports) == 6


def test_the_memory_of_a_released_version_survives_being_written_again(sample: Path) -> None:
    """An upgrade and a downgrade in a row lose no epoch and no hold: what this version writes holds what it read."""
    for name, item in written(sample).items():
        if name.startswith(names.HISTORY_PREFIX):
            node, memory = history.parse_node(item)
            again = {**item, "data": history.node_data(memory)}
            assert history.parse_node(again) == (node, memory)


def test_a_pass_of_a_released_version_is_replayed_or_says_why_not(sample: Path) -> None:
    file = sample / "pass.belay.json.gz"
    found = replay(file)
    assert found.version == read(file).version
    assert found.same or f"recorded by Belay {found.version}" in found.why


READERS: list[tuple[str, str, Callable[[dict[str, Any]], object]]] = [
    ("belay-ledger-main", names.LEDGER_PREFIX, ledger.parse),
    ("belay-history", names.HISTORY, history.parse_cluster),
    ("belay-orders-node-1", names.ORDERS_PREFIX, orders.parse_orders),
    ("belay-report-node-1", names.REPORT_PREFIX, orders.parse_report),
    (names.REVISIONS, names.REVISIONS, revisionlog.parse),
    (names.SYNC, names.SYNC, sync.parse_inventory),
]


@pytest.mark.parametrize(("name", "prefix", "parse"), READERS, ids=[row[0] for row in READERS])
@pytest.mark.parametrize("format_", ["2", "0", "-1", "x", "", "99999"])
def test_a_newer_format_is_refused_by_name(name: str, prefix: str, parse: Any, format_: str) -> None:
    (item,) = [one for key, one in written(SAMPLES[-1]).items() if key == name]
    parse(item)
    parse({**item, "metadata": {**item["metadata"], "annotations": {FORMAT_ANNOTATION: "1"}}})
    newer = {**item, "metadata": {**item["metadata"], "annotations": {FORMAT_ANNOTATION: format_}}}
    with pytest.raises(WireError, match="reads up to 1: a newer Belay wrote it"):
        parse(newer)
    assert prefix in formats.NEWEST


def test_what_a_newer_version_wrote_is_not_overwritten_and_a_pass_without_its_memory_does_not_act() -> None:
    sent: list[str] = []

    class Api:
        async def apply(self, body: dict[str, Any]) -> dict[str, Any]:
            sent.append(body["metadata"]["name"])
            return {**body, "metadata": {"uid": "u", "resourceVersion": "2", **body["metadata"]}}

    def config_map(name: str, **annotations: str) -> dict[str, Any]:
        metadata = {"namespace": names.SYSTEM, "name": name, "resourceVersion": "1", "annotations": annotations}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": "1"}}

    writer = StatusWriter(Api())  # type: ignore[arg-type]
    for name in (names.SYNC, names.HISTORY):
        writer.receive({(names.SYSTEM, name): config_map(name, **{FORMAT_ANNOTATION: "2"})})
    asyncio.run(writer.write_status([config_map(names.SYNC), config_map("belay-pool-a")]))
    assert sent == ["belay-pool-a"]
    with pytest.raises(KubeError, match=f"a newer Belay wrote ConfigMap {names.SYSTEM}/{names.HISTORY}"):
        asyncio.run(writer.write_memories([config_map(names.HISTORY)]))
    # migrated back, or deleted
    writer.receive({(names.SYSTEM, names.SYNC): config_map(names.SYNC), (names.SYSTEM, names.HISTORY): None})
    asyncio.run(writer.write_memories([config_map(names.HISTORY)]))
    assert sent == ["belay-pool-a", names.HISTORY]


def test_every_format_has_its_reader_here() -> None:
    assert {prefix for _, prefix, _ in READERS} == formats.NEWEST.keys()


def test_the_newest_release_is_the_commit_or_tag_that_the_changelog_dates() -> None:
    assert newest_release((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    head = "# C\n\n## 0.3.0 (unreleased)\n\n- a\n\n## 0.2.0 (2026-11-23)\n\n"
    assert newest_release(f"{head}- b\n\n## 0.1.0 (2026-11-22)\n\nCommit `e82a1fe14d55`.\n") == "v0.2.0"
    assert newest_release(f"{head}The second: commit `e82a1fe14d55`.\n") == "e82a1fe14d55"
    with pytest.raises(ValueError, match="dates no version"):
        newest_release("# C\n\n## 0.3.0 (unreleased)\n")


# storage versions, on the real API server


def definition(*rows: tuple[str, bool]) -> dict[str, Any]:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "migrations.belay.dev"},
        "spec": {
            "group": "belay.dev",
            "scope": "Cluster",
            "names": {
                "kind": "Migration",
                "plural": "migrations",
                "singular": "migration",
                "listKind": "MigrationList",
            },
            "versions": [{"name": name, "served": True, "storage": kept, "schema": schema} for name, kept in rows],
        },
    }


@pytest.fixture
def migrating(kubeconfig: str) -> Iterator[str]:
    """A cluster with a kind of Belay whose objects were stored in a version that is older than the newest."""
    if not stores_custom_objects(Path(kubeconfig)):
        pytest.skip("this kube-apiserver keeps no custom objects")
    asyncio.run(_prepare(kubeconfig))
    yield kubeconfig
    asyncio.run(_remove(kubeconfig))


async def _prepare(kubeconfig: str) -> None:
    async with Kube.from_config(kubeconfig) as kube:
        await kube.apply(definition(("v1alpha0", True)))
        ends = time.monotonic() + 30
        for number in range(3):
            body = {"apiVersion": "belay.dev/v1alpha0", "kind": "Migration", "metadata": {"name": f"m{number}"}}
            while True:
                try:
                    await kube.apply({**body, "spec": {"number": number}})
                    break
                except (NotFound, Conflict):
                    assert time.monotonic() < ends, "the kind is not served"
                    kube._missing.clear()
                    await asyncio.sleep(0.1)
        await kube.apply(definition(("v1alpha0", False), ("v1alpha1", True)))
        while not await kube.served(await _resource(kube, "v1alpha1")):
            assert time.monotonic() < ends
            await asyncio.sleep(0.1)


async def _resource(kube: Kube, version: str) -> Any:
    from belay.engine.kube import Resource

    return Resource(f"belay.dev/{version}", "Migration", "migrations", False)


async def _remove(kubeconfig: str) -> None:
    async with Kube.from_config(kubeconfig) as kube:
        kind = await kube.resource("apiextensions.k8s.io/v1", "CustomResourceDefinition")
        await kube.delete(kind, "migrations.belay.dev")


def migrate(kubeconfig: str, *words: str) -> tuple[int, dict[str, Any]]:
    done = CliRunner().invoke(cli.main, ["migrate", "storage", "--kubeconfig", kubeconfig, "-o", "json", *words])
    assert done.exit_code in (0, 1), done.output
    return done.exit_code, {row["kind"]: row for row in json.loads(done.stdout)}


def test_objects_stored_in_an_older_version_are_rewritten_before_it_goes(migrating: str) -> None:
    code, rows = migrate(migrating)
    assert code == 1
    assert (rows["Migration"]["stored"], rows["Migration"]["state"]) == (["v1alpha0", "v1alpha1"], "to rewrite")
    assert rows["Migration"]["objects"] == 3

    async def drop() -> None:
        async with Kube.from_config(migrating) as kube:
            await kube.apply(definition(("v1alpha1", True)))

    with pytest.raises(Invalid, match="storedVersions"):
        asyncio.run(drop())

    code, rows = migrate(migrating, "--write")
    assert (code, rows["Migration"]["state"]) == (0, "rewritten")
    assert migrate(migrating)[1]["Migration"]["stored"] == ["v1alpha1"]
    asyncio.run(drop())

    async def numbers() -> list[int]:
        async with Kube.from_config(migrating) as kube:
            found = (await kube.list(await _resource(kube, "v1alpha1"))).items
            return sorted(item["spec"]["number"] for item in found)

    assert asyncio.run(numbers()) == [0, 1, 2]


def test_config_maps_of_a_newer_format_are_named(kubeconfig: str) -> None:
    async def make() -> None:
        async with Kube.from_config(kubeconfig) as kube:
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": names.SYSTEM}}
            await kube.apply(namespace)
            meta = {"name": "belay-ledger-main", "namespace": names.SYSTEM, "annotations": {FORMAT_ANNOTATION: "7"}}
            await kube.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {}})

    asyncio.run(make())
    try:
        code, rows = migrate(kubeconfig)
        assert code == 1
        assert rows["ConfigMap belay-ledger-"]["state"] == "newer than this version"
    finally:

        async def remove() -> None:
            async with Kube.from_config(kubeconfig) as kube:
                await kube.delete(CONFIGMAP, "belay-ledger-main", names.SYSTEM)

        asyncio.run(remove())
