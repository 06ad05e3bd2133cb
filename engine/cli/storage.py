"""`belay migrate storage`: what is stored in which version, and rewriting it in the newest one."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from belay.engine.cli.invocation import fails_clearly, output_option

if TYPE_CHECKING:
    from belay.engine.kube import Kube

GROUPS: Final = ("belay.dev",)
"""API groups of which Belay owns the definitions; MindCluster's and Volcano's are migrated by their own tools."""
CURRENT, OLD, REWRITTEN, NEWER = "current", "to rewrite", "rewritten", "newer than this version"


@dataclass(frozen=True)
class StoredKind:
    """A kind, or a family of ConfigMaps: the versions (formats) that may be stored, the one that is written, and the
    number of objects. ``state``: current, to rewrite, rewritten, or newer than this version.
    """

    kind: str
    stored: tuple[str, ...]
    written: str
    objects: int
    state: str


@click.command(short_help="Rewrite what is stored in older versions.")
@click.option("--write", is_flag=True, help="Rewrite. Without: only say what is stored how.")
@click.option("--kubeconfig", metavar="FILE", help="Default: $KUBECONFIG, ~/.kube/config, in-cluster.")
@output_option()
@fails_clearly
def storage(write: bool, kubeconfig: str | None, output: str) -> None:
    """Say in which versions Belay's objects are stored, and rewrite older ones, before a release stops to read them.

    Custom resources are written back unchanged, so that the API server stores them in the storage version; then
    `.status.storedVersions` of their definition loses the older ones. ConfigMaps are rewritten by the engine itself.
    May be interrupted and run again. Exit 1 when something is left.

    Example: belay migrate storage --write
    """
    from belay.engine.cli import output as show
    from belay.engine.observe.live import with_kube

    async def work(kube: Kube) -> list[StoredKind]:
        return [*await _kinds(kube, write), *await _config_maps(kube)]

    rows = with_kube(kubeconfig, work, 30.0)
    if output in ("json", "yaml"):
        show.document(rows, output)
    else:
        columns = ("kind", "stored", "written", "objects", "state")
        show.table(columns, [[getattr(row, column) for column in columns] for row in rows])
    sys.exit(1 if any(row.state in (OLD, NEWER) for row in rows) else 0)


async def _kinds(kube: Kube, write: bool) -> list[StoredKind]:
    """Belay's custom resources."""
    from belay.engine.kube import Conflict, NotFound

    definitions = await kube.resource("apiextensions.k8s.io/v1", "CustomResourceDefinition")
    rows = []
    for found in sorted((await kube.list(definitions)).items, key=lambda item: str(item["metadata"]["name"])):
        spec = found["spec"]
        if spec.get("group") not in GROUPS:
            continue
        written = next((str(one["name"]) for one in spec["versions"] if one.get("storage")), "")
        stored = tuple(str(one) for one in (found.get("status") or {}).get("storedVersions") or ())
        kind = str(spec["names"]["kind"])
        resource = await kube.resource(f"{spec['group']}/{written}", kind)
        objects = (await kube.list(resource)).items
        state = CURRENT if stored in ((written,), ()) else OLD
        if state == OLD and write:
            for one in objects:
                try:
                    await kube.replace(resource, {"apiVersion": resource.api_version, "kind": kind, **one})
                except (Conflict, NotFound):
                    continue  # a write or deletion meanwhile leaves nothing in the older version
            patch: dict[str, Any] = {
                "metadata": {"resourceVersion": found["metadata"]["resourceVersion"]},
                "status": {"storedVersions": [written]},
            }
            await kube.patch_status(definitions, str(found["metadata"]["name"]), patch)
            state = REWRITTEN
        rows.append(StoredKind(kind, stored, written, len(objects), state))
    return rows


async def _config_maps(kube: Kube) -> list[StoredKind]:
    """Belay's own ConfigMaps, by the formats that their annotations name."""
    from belay.engine.kube import CONFIGMAP
    from belay.engine.wire import formats, names

    families: dict[str, list[Mapping[str, Any]]] = {prefix: [] for prefix in formats.NEWEST}
    for namespace in (names.SYSTEM, names.NODES):
        for item in (await kube.list(CONFIGMAP, namespace)).items:
            name = str(item["metadata"]["name"])
            prefix = next((one for one in families if name == one or name.startswith((one, f"{one}."))), "")
            if prefix:
                families[prefix].append(item)
    rows = []
    for prefix, items in families.items():
        newest = formats.NEWEST[prefix]
        found = tuple(sorted({formats.format_of(item) for item in items}))
        strange = any(not one.isdigit() or int(one) > newest for one in found)
        older = any(one.isdigit() and int(one) < newest for one in found)
        state = NEWER if strange else OLD if older else CURRENT
        rows.append(StoredKind(f"ConfigMap {prefix}", found, str(newest), len(items), state))
    return rows
