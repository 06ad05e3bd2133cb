"""``belay-policy-<pool>``: the fault rules that an agent applies without the planner.

One per pool. ``digest`` names the version; orders repeat it, so that an agent can check whether it has the newest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import msgspec

from belay.engine.model.faults import CodeRules
from belay.engine.model.labels import ABOUT_LABEL, MANAGED_BY, POLICY_DIGEST
from belay.engine.model.seals import Entitlements
from belay.engine.wire.errors import WireError
from belay.engine.wire.gojson import read_object
from belay.engine.wire.names import POLICY_PREFIX, SYSTEM

POLICY_KEY = "policy.json"
ENTITLEMENTS_KEY = "entitlements.json"
POLICY_ABOUT = "policy"
"""Value of the label ``belay.dev/about``."""


class NodePolicy(msgspec.Struct, frozen=True, dict=True):
    """The fault rules of one pool. Its text is made once: each pass asks for it three times, and it seldom changes."""

    pool: str
    rules: CodeRules = CodeRules()

    @cached_property
    def text(self) -> str:
        """The content as JSON; equal content has an equal text."""
        return msgspec.json.encode(self, order="deterministic").decode()

    @cached_property
    def digest(self) -> str:
        """Sixteen hex digits over the content; equal content has an equal digest."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]


def parse_policy(config_map: Mapping[str, Any]) -> NodePolicy:
    """Read a policy ConfigMap.

    Raises:
        WireError: not valid, or its ``pool`` differs from its name.
    """
    metadata = config_map.get("metadata") or {}
    name = str(metadata.get("name", ""))
    where = f"ConfigMap/{metadata.get('namespace', '')}/{name}"
    data = config_map.get("data")
    value = read_object(where, f"data.{POLICY_KEY}", data.get(POLICY_KEY) if isinstance(data, dict) else None)
    try:
        policy = msgspec.convert(value, NodePolicy)
    except msgspec.ValidationError as error:
        raise WireError(where, f"data.{POLICY_KEY}", str(error)) from error
    if name != POLICY_PREFIX + policy.pool:
        raise WireError(where, f"data.{POLICY_KEY}.pool", f"says {policy.pool!r}; it is ignored")
    return policy


def parse_entitlements(config_map: Mapping[str, Any]) -> Entitlements | None:
    """What a sealed policy entitles to; None for one without.

    Raises:
        WireError: not valid.
    """
    data = config_map.get("data")
    if not isinstance(data, dict) or ENTITLEMENTS_KEY not in data:
        return None
    metadata = config_map.get("metadata") or {}
    where = f"ConfigMap/{metadata.get('namespace', '')}/{metadata.get('name', '')}"
    value = read_object(where, f"data.{ENTITLEMENTS_KEY}", data[ENTITLEMENTS_KEY])
    try:
        return msgspec.convert(value, Entitlements)
    except msgspec.ValidationError as error:
        raise WireError(where, f"data.{ENTITLEMENTS_KEY}", str(error)) from error


def entitle(config_map: dict[str, Any], entitlements: Entitlements) -> None:
    """Put what a policy entitles to into its ConfigMap, to be sealed with it."""
    config_map["data"][ENTITLEMENTS_KEY] = msgspec.json.encode(entitlements, order="deterministic").decode()


def build_policy(policy: NodePolicy) -> dict[str, Any]:
    """Return the ConfigMap ``belay-policy-<pool>`` of a pool's rules."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": POLICY_PREFIX + policy.pool,
            "namespace": SYSTEM,
            "labels": {ABOUT_LABEL: POLICY_ABOUT, MANAGED_BY: "belay"},
            "annotations": {POLICY_DIGEST: policy.digest},
        },
        "data": {POLICY_KEY: policy.text},
    }
