"""Apply the CustomResourceDefinitions that Belay ships and wait until the API server serves them."""

from __future__ import annotations

import asyncio
from typing import Any

import yaml

from belay import SHIPPED
from belay.engine.errors import BelayError, InputError
from belay.engine.kube import Kube, resource_for, run_many

_CRD = resource_for("apiextensions.k8s.io/v1", "CustomResourceDefinition")
_SERVED_WITHIN_S = 20.0


def shipped() -> list[dict[str, Any]]:
    """The definitions in deploy/crds, from a source checkout or the installed package, by name.

    Raises:
        InputError: the installation lacks them.
    """
    folder = SHIPPED / "deploy" / "crds"
    if not folder.is_dir():
        raise InputError("the CustomResourceDefinitions are missing", where=str(folder), hint="Install Belay again.")
    found = []
    for file in sorted(folder.glob("*.yaml")):
        with file.open("rb") as stream:
            documents = yaml.load_all(stream, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
            found += [d for d in documents if d and d.get("kind") == "CustomResourceDefinition"]
    return found


async def ensure(kube: Kube) -> int:
    """Apply the definitions and return their number once all are served.

    Raises:
        BelayError: the API server does not serve them within 20 s.
    """
    wanted = shipped()
    async for outcome in run_many([lambda d=definition: kube.apply(d) for definition in wanted], 8):  # type: ignore[misc]
        if outcome.error is not None:
            raise outcome.error
    names = [str(definition["metadata"]["name"]) for definition in wanted]
    ends = asyncio.get_running_loop().time() + _SERVED_WITHIN_S
    while missing := [name for name in names if not _established(await kube.get(_CRD, name))]:
        if asyncio.get_running_loop().time() > ends:
            raise BelayError(f"the API server does not serve {', '.join(missing)[:200]}")
        await asyncio.sleep(0.05)
    return len(names)


def _established(definition: dict[str, Any] | None) -> bool:
    conditions = ((definition or {}).get("status") or {}).get("conditions") or ()
    return any(c.get("type") == "Established" and c.get("status") == "True" for c in conditions)
