"""Explanations by the cluster's own server, which has planned already; without one this process plans."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from engine.cli.inputs import asks_of_now
from engine.cli.server_client import NoServer, ask_server, server_address
from engine.errors import InputError
from engine.kube import CONFIGMAP, Kube
from engine.model.freshness import missing_pass
from engine.observe.live import with_kube
from engine.wire import names, passinfo

#: Kinds that the server explains.
KINDS: Final = frozenset({"pod", "job", "chip", "node"})


def served_explanation(kind: str, name: str, inputs: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the server says of an object of the live cluster; None where it is not asked, or cannot answer.

    Where it refuses the caller, knows no such object or no pass comes, the cluster itself is looked at, which says so
    and finds similar names.
    """
    kubeconfig, context = inputs["kubeconfig"], inputs["context"]
    if kind not in KINDS or not asks_of_now(inputs):
        return None
    address = server_address(kubeconfig, context)
    if not address or not _passes_come(kubeconfig, context):
        return None
    try:
        answer = ask_server(address, f"explain/{kind}/{quote(name, safe='/')}", {}, kubeconfig, context)
    except (NoServer, InputError):
        return None
    facts = answer.get("facts")
    return facts if isinstance(facts, dict) else None


def _passes_come(kubeconfig: str | None, context: str | None) -> bool:
    async def read(kube: Kube) -> list[dict[str, Any]]:
        return (await kube.list(CONFIGMAP, names.SYSTEM, f"{names.ABOUT_LABEL}={passinfo.ABOUT}")).items

    found = with_kube(kubeconfig, read, context=context)
    return bool(found) and not any(missing_pass(passinfo.parse(one), time.time()) for one in found)
