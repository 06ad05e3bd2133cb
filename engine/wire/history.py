"""The memory's ConfigMaps: ``belay-history-<node>``, ``belay-history`` for the cluster, ``belay-job-*`` for jobs.

Shards beyond the main one keep what belongs to no node or job in ``belay-history.<shard>``.
A node without anything to remember has no ConfigMap; one whose memory became empty is blanked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from engine.model.history import History, JobMemory, NodeMemory
from engine.wire.errors import WireError
from engine.wire.names import HISTORY_PREFIX

NODE_KEY = "history.json"
CLUSTER_KEY = "cluster.json"
JOB_KEY = "memory.json"
JOB_NAME_KEY = "job"


class ClusterMemory(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What belongs to no single node or job: spent budget windows, not-ready waves, the policy in force."""

    budgets: dict[str, tuple[tuple[int, str, int], ...]] = {}
    ready_drops: dict[str, tuple[int, ...]] = {}
    policy_revision: str = ""


def parse_node(config_map: Mapping[str, Any]) -> tuple[str, NodeMemory]:
    """(node, memory) of a ``belay-history-<node>``.

    Raises:
        WireError: the memory cannot be read; the caller starts it anew and says so.
    """
    name = str((config_map.get("metadata") or {}).get("name", ""))
    return name.removeprefix(HISTORY_PREFIX), _read(config_map, NODE_KEY, NodeMemory) or NodeMemory()


def parse_cluster(config_map: Mapping[str, Any]) -> ClusterMemory:
    """The memory of the whole cluster from ``belay-history``."""
    return _read(config_map, CLUSTER_KEY, ClusterMemory) or ClusterMemory()


def parse_job(config_map: Mapping[str, Any]) -> tuple[str, JobMemory] | None:
    """(``namespace/Kind/name``, memory) of a ``belay-job-*``; None while it holds no memory.

    Raises:
        WireError: the memory cannot be read, or nobody can say whose it is.
    """
    key = str((config_map.get("data") or {}).get(JOB_NAME_KEY) or "")
    memory = _read(config_map, JOB_KEY, JobMemory)
    if not key or memory is None:
        return None
    if key.count("/") != 2 or not all(key.split("/")):
        raise _refusal(config_map, JOB_NAME_KEY, f"{key[:80]!r} names no job: write namespace/Kind/name")
    return key, memory


def node_data(memory: NodeMemory) -> dict[str, str]:
    """Data of a ``belay-history-<node>``."""
    return {NODE_KEY: _text(memory)}


def cluster_data(history: History) -> dict[str, str]:
    """Data of ``belay-history``."""
    return {CLUSTER_KEY: _text(ClusterMemory(history.budgets, history.ready_drops, history.policy_revision))}


def job_data(key: str, memory: JobMemory) -> dict[str, str]:
    """The memory's part of a ``belay-job-*``."""
    return {JOB_NAME_KEY: key, JOB_KEY: _text(memory)}


def _text(memory: msgspec.Struct) -> str:
    return msgspec.json.encode(msgspec.to_builtins(memory, str_keys=True), order="deterministic").decode()


def _read(config_map: Mapping[str, Any], key: str, shape: type[Any]) -> Any:
    text = (config_map.get("data") or {}).get(key)
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=shape)
    except (msgspec.DecodeError, msgspec.ValidationError, TypeError, RecursionError) as error:
        raise _refusal(config_map, key, f"is not a memory that this version wrote: {error}") from error


def _refusal(config_map: Mapping[str, Any], key: str, text: str) -> WireError:
    metadata = config_map.get("metadata") or {}
    return WireError(f"ConfigMap/{metadata.get('namespace', '')}/{metadata.get('name', '')}", f"data.{key}", text)
