"""Explanations by the cluster's own server, which has planned already; without one this process plans."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import click

from belay.engine.cli.inputs import LIVE, PlannedCluster, asks_of_now, plan_cluster
from belay.engine.cli.output import plain
from belay.engine.cli.server_client import NoServer, ask_server, server_address
from belay.engine.errors import BelayError, InputError
from belay.engine.kube.lister import Lister
from belay.engine.kube.one_shot import ask_once
from belay.engine.kube.resources import CONFIGMAP
from belay.engine.model.freshness import missing_pass
from belay.engine.model.labels import ABOUT_LABEL
from belay.engine.model.times import rfc3339
from belay.engine.wire import names, passinfo

#: Kinds that the server explains.
KINDS: Final = frozenset({"pod", "job", "chip", "node", "code"})


def served_explanation(kind: str, name: str, inputs: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the server says of an object of the live cluster; None if it is not asked, or cannot answer.

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


def fault_facts(code: str, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
    """What is known of a fault code, and the time of it: by the server, by a plan, or by the shipped tables alone where
    no cluster answers.

    Raises:
        BelayError: a file or folder that was named is not usable.
    """
    try:
        if (served := served_explanation("code", code, inputs)) is not None:
            return served, time.time()
        planned = plan_cluster(**inputs)
    except BelayError as error:
        if inputs["cluster"] != LIVE:
            raise
        planned = _without_cluster(inputs)
        note = f"no cluster answers ({error}): levels are those of the shipped tables and of --desired"
        click.echo(plain(note), err=True)

    from belay.engine.cli.fault_codes import explain_fault

    return explain_fault(code, planned.plan, planned.observed, planned.desired), planned.now


def _without_cluster(inputs: Mapping[str, Any]) -> PlannedCluster:
    from belay.engine.replay.offline import plan_offline

    clock = time.time()
    return PlannedCluster(
        *plan_offline((), tree=inputs["desired"], overlays=inputs["policies"], now=rfc3339(clock), clock=clock)
    )


def _passes_come(kubeconfig: str | None, context: str | None) -> bool:
    async def read(kube: Lister) -> list[dict[str, Any]]:
        return (await kube.list(CONFIGMAP, names.SYSTEM, f"{ABOUT_LABEL}={passinfo.ABOUT}")).items

    found = ask_once(kubeconfig, read, context=context)
    return bool(found) and not any(missing_pass(passinfo.parse(one), time.time()) for one in found)
