"""``belay-evidence-<node>``: what the logs of failed pods on a node say, and ``belay-diagnosis``: the rules to match.

The node's ConfigMap holds the newest pods first; the engine's holds the rules of the repository, none for the shipped
ones. Both are bounded, and a value outside its bounds makes the whole ConfigMap count as absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from belay.engine.model.labels import MANAGED_BY
from belay.engine.model.log_evidence import (
    MAX_ALTERNATIVES,
    MAX_EVENTS,
    MAX_EXAMPLE,
    MAX_NAMED,
    MAX_PODS,
    MAX_RANKS,
    MAX_RULES,
    MAX_TEXTS,
    LogRule,
    PodEvidence,
)
from belay.engine.wire.errors import WireError
from belay.engine.wire.gojson import read_object
from belay.engine.wire.names import NODES, SYSTEM

PREFIX: Final = "belay-evidence-"
KEY: Final = "evidence.json"
RULES: Final = "belay-diagnosis"
RULES_KEY: Final = "rules.json"
#: Longest ConfigMap of a node in bytes of JSON; the oldest pods go first.
MAX_BYTES: Final = 256 << 10
_NAME: Final = 253


class _Evidence(msgspec.Struct):
    node: str
    pods: list[PodEvidence] = []


class _Rules(msgspec.Struct):
    rules: list[LogRule] = []


def build(node: str, pods: Iterable[PodEvidence]) -> dict[str, Any]:
    """The ConfigMap of a node's evidence; ``pods`` come newest first, and as many are kept as fit."""
    kept: list[PodEvidence] = []
    size = 0
    for pod in list(pods)[:MAX_PODS]:
        size += len(msgspec.json.encode(pod))
        if size > MAX_BYTES:
            break
        kept.append(pod)
    body = msgspec.json.encode(_Evidence(node, kept), order="deterministic").decode()
    metadata = {"name": PREFIX + node, "namespace": NODES, "labels": {MANAGED_BY: "belay"}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {KEY: body}}


def parse(config_map: Mapping[str, Any]) -> tuple[str, tuple[PodEvidence, ...]]:
    """The node and its evidence.

    Raises:
        WireError: not valid, beyond its bounds, or ``node`` differs from the ConfigMap's name.
    """
    where, data = _open(config_map)
    if len(str(data.get(KEY) or "")) > 2 * MAX_BYTES:
        raise WireError(where, f"data.{KEY}", f"is longer than {2 * MAX_BYTES} characters")
    value = read_object(where, f"data.{KEY}", data.get(KEY))
    try:
        found = msgspec.convert(value, _Evidence)
    except msgspec.ValidationError as error:
        raise WireError(where, f"data.{KEY}", str(error)) from error
    if not where.endswith(f"/{PREFIX}{found.node}"):
        raise WireError(where, f"data.{KEY}.node", f"says {found.node!r:.80}; it is ignored")
    for pod in found.pods:
        names = (pod.namespace, pod.pod, pod.uid, pod.owner, pod.group, pod.api_version, pod.kind, pod.template_hash)
        many = len(pod.events) > MAX_EVENTS or len(pod.ranks) > MAX_RANKS or len(pod.chips) > MAX_RANKS
        many = many or any(len(e.remotes) > MAX_NAMED or len(e.places) > MAX_NAMED for e in pod.events)
        long = any(len(text) > _NAME for text in names) or any(
            len(e.example) > MAX_EXAMPLE or len(e.code) > _NAME for e in pod.events
        )
        if many or long or len(found.pods) > MAX_PODS:
            raise WireError(where, f"data.{KEY}", f"pod {pod.pod!r:.80} exceeds the bounds of evidence; it is ignored")
    # a node speaks for itself only
    return found.node, tuple(msgspec.structs.replace(pod, node=found.node) for pod in found.pods)


def build_rules(rules: Iterable[LogRule]) -> dict[str, Any]:
    """The ConfigMap with the rules of the repository that agents match besides the shipped ones."""
    body = msgspec.json.encode(_Rules(list(rules)[:MAX_RULES]), order="deterministic").decode()
    metadata = {"name": RULES, "namespace": SYSTEM, "labels": {MANAGED_BY: "belay"}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {RULES_KEY: body}}


def parse_rules(config_map: Mapping[str, Any]) -> tuple[LogRule, ...]:
    """The rules in the engine's ConfigMap.

    Raises:
        WireError: not valid, or beyond its bounds.
    """
    where, data = _open(config_map)
    value = read_object(where, f"data.{RULES_KEY}", data.get(RULES_KEY))
    try:
        rules = msgspec.convert(value, _Rules).rules
    except msgspec.ValidationError as error:
        raise WireError(where, f"data.{RULES_KEY}", str(error)) from error
    for rule in rules:
        if len(rule.match) > MAX_ALTERNATIVES or any(not 0 < len(texts) <= MAX_TEXTS for texts in rule.match):
            raise WireError(where, f"data.{RULES_KEY}", f"rule {rule.code!r:.80} has too many or empty alternatives")
    return tuple(rules[:MAX_RULES])


def _open(config_map: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    metadata = config_map.get("metadata") or {}
    data = config_map.get("data")
    return f"ConfigMap/{metadata.get('namespace', '')}/{metadata.get('name', '')}", data if isinstance(
        data, dict
    ) else {}
