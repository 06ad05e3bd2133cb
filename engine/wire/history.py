"""ConfigMaps of the planner's memory: ``belay-history-<node>``, ``belay-history`` (cluster) and ``belay-job-*``.

Other shards than ``main`` store the memory of their cluster in ``belay-history.<shard>``. A node without memory has no
ConfigMap; when its memory becomes empty, the ConfigMap stays with empty content.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from belay.engine.model.history import HeldPrune, History, JobMemory, NodeMemory, PoolEdit
from belay.engine.wire import formats
from belay.engine.wire.errors import WireError
from belay.engine.wire.names import HISTORY, HISTORY_PREFIX

NODE_KEY = "history.json"
CLUSTER_KEY = "cluster.json"
JOB_KEY = "memory.json"
JOB_NAME_KEY = "job"
JOB_STATUS_KEY = "status.json"
"""What people and commands read of a job, beside its memory."""
JOB_PHASE_KEY = "phase"


class ClusterMemory(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Memory of no single node or job: spent budget windows, times when many nodes became not ready, the policy in
    force, pending deletions, times of repeated actions, the pools before an edit, jobs with pods of an
    older template.
    """

    budgets: dict[str, tuple[tuple[int, str, int], ...]] = {}
    ready_drops: dict[str, tuple[int, ...]] = {}
    policy_revision: str = ""
    prunes: tuple[HeldPrune, ...] = ()
    repeats: dict[str, tuple[int, ...]] = {}
    pool_edit: PoolEdit | None = None
    retemplated: dict[str, int] = {}


def parse_node(config_map: Mapping[str, Any]) -> tuple[str, NodeMemory]:
    """(node, memory) of a ``belay-history-<node>``.

    Raises:
        WireError: the memory cannot be read; the caller starts with an empty one and reports the error.
    """
    name = str((config_map.get("metadata") or {}).get("name", ""))
    return name.removeprefix(HISTORY_PREFIX), _read(config_map, NODE_KEY, NodeMemory) or NodeMemory()


def parse_cluster(config_map: Mapping[str, Any]) -> ClusterMemory:
    """The memory of the whole cluster from ``belay-history``."""
    return _read(config_map, CLUSTER_KEY, ClusterMemory) or ClusterMemory()


def parse_job(config_map: Mapping[str, Any]) -> tuple[str, JobMemory] | None:
    """(``namespace/Kind/name``, memory) of a ``belay-job-*``; None if it holds no memory.

    Raises:
        WireError: the memory cannot be read, or does not name its job.
    """
    key = str((config_map.get("data") or {}).get(JOB_NAME_KEY) or "")
    memory = _read(config_map, JOB_KEY, JobMemory)
    if not key or memory is None:
        return None
    if key.count("/") != 2 or not all(key.split("/")):
        raise _refusal(config_map, JOB_NAME_KEY, f"{key[:80]!r} names no job: write namespace/Kind/name")
    return key, memory


def node_data(memory: NodeMemory) -> dict[str, str]:
    """Return the data of ``belay-history-<node>`` for a node's memory."""
    return {NODE_KEY: _text(memory)}


def cluster_data(history: History) -> dict[str, str]:
    """Return the data of ``belay-history`` for the memory of no single node or job."""
    memory = ClusterMemory(
        history.budgets,
        history.ready_drops,
        history.policy_revision,
        history.prunes,
        history.repeats,
        history.pool_edit,
        history.retemplated,
    )
    return {CLUSTER_KEY: _text(memory)}


def job_data(key: str, memory: JobMemory) -> dict[str, str]:
    """The memory's part of a ``belay-job-*``."""
    return {JOB_NAME_KEY: key, JOB_KEY: _text(memory)}


def _text(memory: msgspec.Struct) -> str:
    return msgspec.json.encode(msgspec.to_builtins(memory, str_keys=True), order="deterministic").decode()


def _read(config_map: Mapping[str, Any], key: str, shape: type[Any]) -> Any:
    formats.check(config_map, HISTORY)
    text = (config_map.get("data") or {}).get(key)
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=shape)
    except (msgspec.DecodeError, msgspec.ValidationError, TypeError, RecursionError, UnicodeError) as error:
        raise _refusal(config_map, key, f"is not a memory that this version wrote: {error}") from error


def _refusal(config_map: Mapping[str, Any], key: str, text: str) -> WireError:
    metadata = config_map.get("metadata") or {}
    return WireError(f"ConfigMap/{metadata.get('namespace', '')}/{metadata.get('name', '')}", f"data.{key}", text)
