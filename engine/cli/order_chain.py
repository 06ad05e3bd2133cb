"""From commit to chip: what entitles the orders of a node, and whether each link of that chain holds.

Works on objects alone, live or exported; it plans nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from belay.engine.cli.chain_checks import Check, Maps
from belay.engine.cli.commit_chain import commit_checks, proven_rules
from belay.engine.errors import InputError
from belay.engine.model.cluster import AgentReport, Orders
from belay.engine.model.seals import Entitlements, Warrant, isolation_warrant, layout_warrant, reset_warrant
from belay.engine.model.times import rfc3339
from belay.engine.wire import names, revisionlog, seals
from belay.engine.wire.errors import WireError
from belay.engine.wire.orders import parse_orders, parse_report
from belay.engine.wire.policy import parse_entitlements, parse_policy
from belay.engine.wire.revisionlog import RevisionEntry

_MAX_KEYS: Final = 64


def config_maps(items: Iterable[Mapping[str, Any]]) -> Maps:
    """The ConfigMaps among objects, by namespace and name."""
    found = {}
    for item in items:
        metadata = item.get("metadata")
        if item.get("kind") == "ConfigMap" and isinstance(metadata, Mapping):
            found[str(metadata.get("namespace", "")), str(metadata.get("name", ""))] = item
    return found


def explain_order(name: str, items: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The chain of the orders for a chip: commit and signer, policy, rule, report, plan, order, and the agent's answer.

    Raises:
        InputError: ``name`` is not NODE/CHIP, there are no orders for it, or an object cannot be read.
    """
    try:
        return _explain(name, items)
    except WireError as error:
        raise InputError(str(error), hint="`belay verify` checks every object") from error


def _explain(name: str, items: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    node, slash, chip = name.rpartition("/")
    if not slash or not chip.rpartition("-")[2].isdigit():
        raise InputError(f"{name!r} is not a chip", hint="Write NODE/CHIP, such as node-1/Ascend910-0.")
    maps = config_maps(items)
    body = maps.get((names.SYSTEM, names.ORDERS_PREFIX + node))
    if body is None:
        raise InputError(f"there are no orders for node {node!r}", hint="`belay get nodes` lists the nodes.")
    orders, number = parse_orders(body), int(chip.rpartition("-")[2])
    log, policy = _log(maps), maps.get((names.SYSTEM, names.POLICY_PREFIX + orders.pool))
    entitlements = parse_entitlements(policy) if policy is not None else None
    report_body = maps.get((names.NODES, names.REPORT_PREFIX + node))
    report = parse_report(report_body) if report_body is not None else None
    rows = [_row(kind, row, orders, log) for kind, row in _of_chip(orders, number)]
    if not rows:
        raise InputError(f"no order stands for chip {chip!r} of node {node}")
    return {
        "chip": name,
        "orders": rows,
        "generation": orders.generation,
        "notAfter": rfc3339(orders.not_after_ms / 1000) if orders.not_after_ms else None,
        "signed": f"by key {orders.seal.key} at {rfc3339(orders.seal.signed_at / 1000)}" if orders.seal else "Unsigned",
        "policy": {"pool": orders.pool, "digest": orders.policy_digest, **_policy_row(entitlements)},
        "agent": _agent_row(report, number),
    }


def verify(items: Iterable[Mapping[str, Any]], keys: Path | None, signers: Path | None = None) -> list[Check]:
    """Check every link that the objects hold: logs of revisions, commits, seals of policies and orders, rules.
    ``keys`` is a folder with ``*.pub``; None: seals are not checked, and unsigned objects are no finding. ``signers``
    is the list by which commits are verified (SSH or GnuPG); None: signatures of commits are not checked again.

    Raises:
        InputError: a key or the list cannot be read.
    """
    maps = config_maps(items)
    trusted = _trusted(keys) if keys is not None else None
    checks = commit_checks(maps, signers)
    proven = proven_rules(maps)
    revisions: set[str] = set()
    held: dict[str, tuple[Entitlements, str]] = {}
    for (space, name), body in sorted(maps.items()):
        if space != names.SYSTEM:
            continue
        what = f"ConfigMap/{space}/{name}"
        try:
            if name.split(".")[0] == names.REVISIONS:
                checks += _seal(what, name, body, trusted)
                revisions |= {entry.revision for entry in revisionlog.parse(body).entries}
                checks.append(Check(object=what, check="entries follow each other unchanged"))
            elif name.startswith(names.POLICY_PREFIX):
                checks += _seal(what, name, body, trusted)
                policy, entitlements = parse_policy(body), parse_entitlements(body)
                if entitlements is not None:
                    held[policy.pool] = entitlements, policy.digest
                    differ = entitlements.policy_digest != policy.digest
                    problem = f"says {entitlements.policy_digest}, its rules have {policy.digest}" if differ else ""
                    checks.append(Check(object=what, check="entitlements are of this policy", problem=problem))
        except WireError as error:
            checks.append(Check(object=what, check="can be read", problem=str(error)))
    for (space, name), body in sorted(maps.items()):
        if space == names.SYSTEM and name.startswith(names.ORDERS_PREFIX):
            what = f"ConfigMap/{space}/{name}"
            checks += _orders(what, name, body, trusted, held, revisions)
            checks += _documents(what, body, proven)
    return checks


def _documents(what: str, body: Mapping[str, Any], proven: Mapping[str, frozenset[str]]) -> list[Check]:
    """Whether the documents that destructive orders name are in the commit that is exported; only orders of that commit
    can be compared."""
    try:
        orders = parse_orders(body)
    except WireError:
        return []  # reported already
    return [
        Check(object=what, check=f"{key}: its document is in the commit or comes with Belay",
              problem="" if warrant.rule in proven[warrant.revision] else f"{warrant.rule!r} is in neither")
        for key, warrant in sorted(orders.warrants.items()) if warrant.epoch and warrant.revision in proven
    ]  # fmt: skip


def _orders(
    what: str, name: str, body: Mapping[str, Any], trusted: seals.TrustedKeys | None,
    held: Mapping[str, tuple[Entitlements, str]], revisions: set[str],
) -> list[Check]:  # fmt: skip
    try:
        orders = parse_orders(body)
    except WireError as error:
        return [Check(object=what, check="can be read", problem=str(error))]
    checks = _seal(what, name, body, trusted)
    entitlements, digest = held.get(orders.pool, (None, ""))
    if entitlements is not None and digest != orders.policy_digest:
        problem = f"name policy {orders.policy_digest}, pool {orders.pool} has {digest}"
        checks.append(Check(object=what, check="name the pool's policy", problem=problem))
    for key, warrant in sorted(orders.warrants.items()):
        if revisions and warrant.revision and not warrant.revision.startswith("worktree-"):
            problem = "" if warrant.revision in revisions else f"{warrant.revision[:12]} is in no log"
            checks.append(Check(object=what, check=f"{key}: its revision was accepted", problem=problem))
        if entitlements is not None and warrant.epoch:
            problem = "" if warrant.rule in entitlements.rules else f"{warrant.rule!r} is not among them"
            checks.append(Check(object=what, check=f"{key}: its rule is one of the policy's", problem=problem))
    return checks


def _seal(what: str, name: str, body: Mapping[str, Any], trusted: seals.TrustedKeys | None) -> list[Check]:
    if trusted is None:
        return []
    problem = trusted.problem(name, seals.digests(seals.covered(body)), seals.seal_of(body))
    return [Check(object=what, check="is signed by a given key", problem=problem)]


def _trusted(folder: Path) -> seals.TrustedKeys:
    pems = []
    for path in sorted(folder.glob("*.pub"))[:_MAX_KEYS]:
        try:
            with path.open("rb") as file:
                pem = file.read(seals.MAX_PEM)
            seals.TrustedKeys([pem])
        except ValueError as error:
            raise InputError(str(error), where=str(path)) from error
        pems.append(pem)
    if not pems:
        raise InputError("holds no *.pub", where=str(folder), hint="Name the folder of the engine's public keys")
    return seals.TrustedKeys(pems)


def _log(maps: Maps) -> dict[str, RevisionEntry]:
    found: dict[str, RevisionEntry] = {}
    for (space, name), body in sorted(maps.items()):
        if space == names.SYSTEM and name.split(".")[0] == names.REVISIONS:
            try:
                found |= {entry.revision: entry for entry in revisionlog.parse(body).entries}
            except WireError:
                continue  # `belay verify` reports it
    return found


def _of_chip(orders: Orders, chip: int) -> list[tuple[str, Warrant | None]]:
    def warrant(name: str) -> Warrant | None:
        wanted = name.partition("/")[2]
        return next(
            (row for key, row in orders.warrants.items() if key.endswith(f"-{chip}/{wanted}")),
            None,
        )

    rows: list[tuple[str, Warrant | None]] = []
    if chip in orders.isolate:
        rows.append((f"isolate {orders.isolate[chip]}", warrant(isolation_warrant(""))))
    if chip in orders.resets:
        rows.append((f"reset epoch {orders.resets[chip].epoch}", warrant(reset_warrant(""))))
    if chip in orders.vnpu_layout:
        rows.append((f"layout {', '.join(orders.vnpu_layout[chip]) or 'none'}", warrant(layout_warrant(""))))
    return rows


def _row(kind: str, warrant: Warrant | None, orders: Orders, log: Mapping[str, RevisionEntry]) -> dict[str, Any]:
    row: dict[str, Any] = {"order": kind}
    if warrant is None:
        return row | {"because": "the orders do not say (written by an older engine)"}
    entry = log.get(warrant.revision or orders.revision)
    return row | {
        "commit": warrant.revision or orders.revision or None,
        "signer": (entry.signer or "unsigned") if entry else "not in the log of accepted revisions",
        "rule": warrant.rule or None,
        "file": f"{warrant.file}:{warrant.line}" if warrant.file else None,
        "codes": list(warrant.codes),
        "report": warrant.report or None,
        "reportDigest": warrant.report_digest or None,
        "plan": warrant.plan or None,
    }


def _policy_row(entitlements: Entitlements | None) -> dict[str, Any]:
    if entitlements is None:
        return {}
    return {"revision": entitlements.revision or None, "signer": entitlements.signer or "unsigned"}


def _agent_row(report: AgentReport | None, chip: int) -> dict[str, Any] | str:
    if report is None:
        return "no report"
    row = report.chips.get(chip)
    return {
        "trust": report.orders_trust or "unknown (an older agent)",
        "generationSeen": report.orders_seen,
        "resetEpochDone": row.reset_epoch_done if row else 0,
        "resetResult": row.reset_result if row else "",
        "errors": list(report.errors),
    }
