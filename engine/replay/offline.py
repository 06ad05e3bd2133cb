"""A plan without a running engine: from folders and a cluster List, or from a live cluster read once.

`belay plan`, `diff`, `explain` and `validate` use it; the planner is the engine's own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import orjson

from belay.engine.documents import Desired, WorkloadKind
from belay.engine.errors import InputError
from belay.engine.load import UNKNOWN, FileVersion, Loaded, PriorState, load, load_directory
from belay.engine.load.cluster import all_documents, copies_from_git, foreign_documents, has_engine, with_places
from belay.engine.load.files import ROOTS
from belay.engine.load.locations import location_of
from belay.engine.model.cluster import Observed
from belay.engine.model.codes.findings import FindingCode
from belay.engine.model.diagnostics import Diagnostic, ObjectKey
from belay.engine.model.plan import Plan
from belay.engine.model.times import parse_rfc3339
from belay.engine.observe.observed import key_of, observe
from belay.engine.plan import emptied_layer, plan
from belay.engine.replay import validation
from belay.engine.replay.recording import LATEST
from belay.engine.replay.workload_schemas import DEFINITION, check_against_definitions
from belay.engine.simulate.rehearsal import rehearse
from belay.engine.source.confirmations import confirmed_in, declared_in
from belay.engine.source.tree import is_document_path, may_declare
from belay.engine.wire import names, sync
from belay.engine.wire.errors import WireError

_SYNC: Final = ObjectKey("v1", "ConfigMap", names.SYSTEM, names.SYNC)


def desired_from(
    tree: str | None,
    overlays: Sequence[str],
    cluster: Sequence[Mapping[str, Any]],
    *,
    live: bool = False,
    over: Sequence[Mapping[str, bytes]] = (),
) -> tuple[Desired, tuple[Diagnostic, ...]]:
    """Read the desired state from a tree, or from the cluster; shipped policies lie beneath, overlays on top.

    Where an engine is or was (``live``, or the objects hold its ``belay-sync``), the cluster's copies of Git's
    documents count, and others only where the settings name their kind. Any other List declares what it holds.
    ``over`` are documents laid on top of all.

    Raises:
        InputError: a folder does not exist, or an engine there would refuse the tree as a whole.
    """
    extra = [*(policies_of(folder) for folder in overlays), *over]
    if tree is not None:
        files, before = tree_of(tree), UNKNOWN
        if live or has_engine(cluster):
            _refuse_empty(files, tree)
            before = in_force(cluster)
        loaded = load(files, overlays=extra, foreign=foreign_documents(cluster), before=before)
        desired = with_confirmations(loaded.desired, tree, cluster)
        if not any(one.severity == "error" and one.file.startswith(f"{ROOTS[0]}/") for one in loaded.diagnostics):
            _refuse_emptied(desired, tree, cluster)
        return desired, loaded.diagnostics
    if live or has_engine(cluster):
        loaded = load(copies_from_git(cluster), overlays=extra, has_git=False, foreign=foreign_documents(cluster))
        return with_places(loaded.desired, cluster), loaded.diagnostics
    loaded = load(all_documents(cluster), overlays=extra, has_git=False)
    return loaded.desired, loaded.diagnostics


def _refuse_empty(files: Mapping[str, bytes], tree: str) -> None:
    """Refuse what an engine refuses: a tree that declares nothing (``EmptyTree``)."""
    if any(is_document_path(path) and may_declare(path) for path in files):
        return
    raise InputError(
        "EmptyTree: no YAML or JSON file below desired/ or policies/ that could declare anything; the engine refuses "
        "such a tree and the revision in force stays",
        where=tree,
        hint="To remove everything, keep one document; a big deletion then asks for its confirmation",
    )


def _refuse_emptied(desired: Desired, tree: str, cluster: Sequence[Mapping[str, Any]]) -> None:
    """Refuse what an engine refuses that knows the revision before: ``desired/`` had documents in the revision in force
    and declares nothing any more (``EmptyLayer``), unless commits of the tree confirm something.
    """
    status = next((item for item in cluster if key_of(item) == _SYNC), None)
    if status is None or desired.confirmed:
        return
    in_force = str((status.get("data") or {}).get(sync.APPLIED) or "")
    if not declared_in(Path(tree), in_force, ROOTS[0]):
        return
    try:
        inventory = sync.parse_inventory(status) or ()
    except WireError:
        return  # nothing is pruned then
    if emptied := emptied_layer(desired, inventory):
        raise InputError(
            f"EmptyLayer: {emptied}; the engine refuses such a tree and the revision in force stays",
            where=tree,
            hint="Was the folder renamed? Restore it, or keep one document in it; if all of it shall go, condition "
            "Accepted of belay-sync shows the line for a commit that confirms it",
        )


def in_force(cluster: Sequence[Mapping[str, Any]]) -> PriorState:
    """What the engine there has in force, as far as the cluster's copies of documents say it.

    What they do not say (which file declared a job) keeps everything from being pruned while a file is refused.
    """
    copies = copies_from_git(cluster)
    versions = {path: (FileVersion(path, "", data),) for path, data in copies.items()}
    return PriorState(in_force=versions, complete=False)


def with_confirmations(desired: Desired, tree: str, cluster: Sequence[Mapping[str, Any]]) -> Desired:
    """The same intent with the deletions that commits of the tree confirm, where it is checked out from Git."""
    status = next((item for item in cluster if key_of(item) == _SYNC), None)
    base = sync.prune_base(status) if status is not None else ""
    if not base:
        return desired
    return dataclasses.replace(desired, confirmed=confirmed_in(Path(tree), base))


def validated(
    tree: str,
    overlays: Sequence[str] = (),
    cluster: Sequence[Mapping[str, Any]] | None = None,
    now: float = 0.0,
    definitions: Sequence[Mapping[str, Any]] = (),
) -> Loaded:
    """A repository folder, loaded and checked, and the tests that its fault policies carry played.

    A failed expectation is an error at its place. Tests of shipped policies are not played: they expect the shipped
    tables, which the tree may change. With the objects of a ``cluster``, what is declared is compared with them, and
    with the clock ``now``. Rows of the table of workloads are compared with the CustomResourceDefinitions of their
    kinds: those of the cluster, and ``definitions``.
    """
    files, extra = tree_of(tree), [policies_of(folder) for folder in overlays]
    loaded = load(files, overlays=extra)
    texts = {path: data for layer in (files, *extra) for path, data in layer.items()}
    found = []
    for policy in loaded.desired.fault_policies:
        for failure in rehearse(loaded.desired, policy) if policy.origin.file in texts else ():
            line, column, field = location_of(texts, policy.origin, failure.path)
            name = f"FaultPolicy/{policy.document.name}"
            text, code = failure.message, FindingCode.TEST_FAILED
            found.append(Diagnostic("error", name, policy.origin.file, line, column, field, text, code))
    described = [item for item in (*definitions, *(cluster or ())) if item.get("kind") == DEFINITION]
    if described:
        found += _rows_against(described, loaded.desired, texts)
    found += validation.against_clock(loaded.desired, now)
    if cluster is None:
        found += validation.undeclared_queues(loaded.desired, None)
        found += validation.undeclared_priorities(loaded.desired, None)
    else:
        found += validation.against_cluster(loaded.desired, observe(list(cluster)))
    findings = sorted({*loaded.diagnostics, *found}, key=lambda item: (item.file, item.line, item.column, item))
    return dataclasses.replace(loaded, diagnostics=tuple(findings))


def _rows_against(
    definitions: Sequence[Mapping[str, Any]], desired: Desired, texts: Mapping[str, bytes]
) -> Iterator[Diagnostic]:
    """What the kinds of the repository's own rows of the table of workloads do not have."""
    for declared in desired.workloads.values():
        origin = declared.origin
        if origin.file not in texts:
            continue
        name = f"{WorkloadKind.KIND}/{declared.document.name}"
        for problem in check_against_definitions(declared.document, definitions):
            line, column, field = location_of(texts, origin, problem.path)
            text, code = problem.message, problem.coded
            yield Diagnostic(problem.severity, name, origin.file, line, column, field, text, code)


def tree_of(folder: str) -> Mapping[str, bytes]:
    """Documents of a state repository, or of a folder that is its ``desired/`` itself.

    Raises:
        InputError: the folder does not exist.
    """
    root = _folder(folder)
    files = load_directory(root)
    bare = root.resolve().name == "desired" and not any((root / room).is_dir() for room in ROOTS)
    return {f"desired/{path}": data for path, data in files.items()} if bare else files


def policies_of(folder: str) -> Mapping[str, bytes]:
    """Documents of a policies folder (or of a tree's ``policies/``).

    Raises:
        InputError: the folder does not exist.
    """
    root = _folder(folder)
    root = root / "policies" if (root / "policies").is_dir() else root
    return {f"policies/{path}": data for path, data in load_directory(root).items()}


def plan_offline(
    cluster: Sequence[Mapping[str, Any]],
    *,
    tree: str | None = None,
    overlays: Sequence[str] = (),
    now: str | None = None,
    clock: float | None = None,
    live: bool = False,
    about: str = "",
    shard: str = names.MAIN_SHARD,
) -> tuple[Plan, Observed, Desired]:
    """One pass over a List.

    Args:
        live: the objects were just read from a cluster; else Belay plays every role, whatever runs in the List.
        now: RFC 3339; without it the newest report time in the List, else ``clock``.
        about: the job or pod that is asked about.
        shard: which shard's nodes and jobs the pass decides.

    Raises:
        InputError: a folder or the time is not usable.
    """
    observed = observe(newest(cluster), shard)
    desired, found = desired_from(tree, overlays, cluster, live=live)
    if not live:
        desired = every_role(desired)
    observed = desired.reading(observed)
    result = plan(desired, observed, moment(now, observed, clock), shard=shard, about=about)
    named = validation.names_of_nothing(desired, observed) if tree is not None else ()
    diagnostics = tuple(sorted({*result.diagnostics, *found, *named}))
    return msgspec.structs.replace(result, diagnostics=diagnostics), observed, desired


def newest(items: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Each object once, so that the order of a List never matters: the highest resourceVersion, then by content."""
    best: dict[ObjectKey, Mapping[str, Any]] = {}
    for item in items:
        key = key_of(item)
        other = best.get(key)
        if other is None or _age(item) > _age(other):
            best[key] = item
    return list(best.values())


def _age(item: Mapping[str, Any]) -> tuple[int, bytes]:
    version = str((item.get("metadata") or {}).get("resourceVersion") or "")
    return int(version) if version.isdigit() and len(version) < 20 else 0, orjson.dumps(
        item, option=orjson.OPT_SORT_KEYS
    )


def every_role(desired: Desired) -> Desired:
    """The same desired state with every role assigned, as in a plan without a cluster; its documents stay unchanged."""
    return dataclasses.replace(desired, every_role=True)


def moment(now: str | None, observed: Observed, clock: float | None) -> float:
    """The time of a plan.

    Raises:
        InputError: not RFC 3339.
    """
    if now is not None:
        return given_time(now)
    return clock if clock is not None and not observed.newest_report else (observed.newest_report or 0.0)


def given_time(now: str) -> float:
    """The time that ``--now`` gives. Raises InputError where it is none."""
    try:
        given = parse_rfc3339(now)
    except (ValueError, OverflowError) as error:
        raise InputError(f"{now!r} is not a time", where="--now", hint="Write 2026-09-01T08:00:00Z.") from error
    if not 0 <= given < LATEST:
        raise InputError(f"{now!r} is out of range", where="--now", hint="Give a time from 1970 to 9998.")
    return given


def _folder(folder: str) -> Path:
    root = Path(folder)
    if not folder:
        raise InputError("the name of the folder is empty")
    if not root.is_dir():
        raise InputError("is not a folder" if root.exists() else "does not exist", where=folder)
    return root
