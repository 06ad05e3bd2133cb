"""The Helm chart of deploy/chart: its values' schema (`make chart` writes it), and what Helm makes of it.

Helm is Helm's own Go library, 4.2, in the wheel helm-python-sdk (`make venv-helm`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from belay.engine import settings
from tests.needs import lacking

ROOT: Final = Path(__file__).resolve().parents[1]
CHART: Final = ROOT / "deploy" / "chart" / "belay"
SCHEMA: Final = CHART / "values.schema.json"
#: What only the chart adds to an object: Helm's word that an uninstallation keeps it, and the digest by which pods
#: start again when settings change.
OF_THE_CHART: Final = frozenset({"helm.sh/resource-policy", "belay.dev/settings"})


def components() -> list[str]:
    """The folders of deploy/components."""
    return sorted(path.name for path in (ROOT / "deploy" / "components").iterdir() if path.is_dir())


def schema() -> dict[str, Any]:
    """The JSON Schema (draft 7) of values.yaml; settings and components come from the code and the folders."""
    text, truth, names = {"type": "string"}, {"type": "boolean"}, {"type": "string", "enum": components()}
    name, tag = "[A-Za-z0-9][A-Za-z0-9._:/-]*", "[A-Za-z0-9_][A-Za-z0-9._-]{0,127}"
    image = closed(
        {
            "repository": {"type": "string", "pattern": f"^(|{name})$"},
            # a number would lose its zeros: 0.20 is 0.2
            "tag": {"type": "string", "pattern": f"^(|{tag})$"},
            "digest": {"type": "string", "pattern": "^(|sha256:[0-9a-f]{64})$"},
            "pullPolicy": {"enum": ["", "Always", "IfNotPresent", "Never"]},
        }
    )
    strings = {"type": "object", "additionalProperties": text}
    objects = {"type": "array", "items": {"type": "object"}}
    quantities = {"type": "object", "additionalProperties": {"type": ["string", "number"]}}
    role = {
        "replicas": {"type": "integer", "minimum": 0, "maximum": 1000},
        "image": image,
        "resources": closed({"requests": quantities, "limits": quantities, "claims": objects}),
        "nodeSelector": strings,
        "tolerations": objects,
        "affinity": {"type": "object"},
        "topologySpreadConstraints": objects,
        "priorityClassName": text,
        "env": {"type": "array", "items": {"type": "object", "required": ["name"]}},
        "args": {"type": "array", "items": text},
        "volumes": {"type": "array", "items": {"type": "object", "required": ["name"]}},
        "volumeMounts": {"type": "array", "items": {"type": "object", "required": ["name", "mountPath"]}},
        "podLabels": strings,
        "podAnnotations": strings,
    }
    no_replicas = {name: part for name, part in role.items() if name != "replicas"}
    some = {"type": "array", "items": names, "uniqueItems": True}
    label = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?$"}
    redis = closed(
        {
            **role,
            "replicas": {"type": "integer", "minimum": 0, "maximum": 1},
            "url": {"type": "string", "pattern": "^(|(rediss?|rediss?[+]sentinel)://[^@]+)$"},
            "passwordSecret": closed({"name": text, "key": text}),
            "tlsSecret": text,
            "ports": {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 65535}},
        }
    )
    create = closed({"create": truth})
    agent_set = closed({**no_replicas, "name": label, "components": some}) | {"required": ["name"]}
    modes = {"enum": ["none", "simulated", "npu", "npu-alone"]}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the chart belay",
        **closed(
            {
                "image": closed({**image["properties"], "repository": {"type": "string", "pattern": f"^{name}$"}}),
                "imagePullSecrets": {"type": "array", "items": closed({"name": text})},
                "settings": closed(
                    {
                        settings.PREFIX + field.name.upper(): _setting(field)
                        for field in msgspec.structs.fields(settings.Settings)
                    }
                )
                # what the SDK of OpenTelemetry reads (docs/tracing.md)
                | {"patternProperties": {"^OTEL_[A-Z_]+$": {"type": ["string", "number", "boolean"]}}},
                "restartOnSettings": truth,
                "admissionControl": {"enum": ["auto", "webhook", "policy", "none"]},
                "withoutAdmission": closed(
                    {
                        "nodes": _several("^[a-z0-9]([-a-z0-9.]{0,218}[a-z0-9])?$"),
                        "namespaces": _several("^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"),
                        "shards": _several("^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"),
                        "superPods": _several("^[0-9]{1,9}$"),
                        "kubeletConfig": {"type": "string", "pattern": "^/.+$"},
                        "kubeletCertificates": {"type": "string", "pattern": "^/.+$"},
                    }
                ),
                "components": some,
                "namespaces": create,
                "definitions": create,
                "networkPolicies": create,
                **{name: closed(role) for name in ("controller", "worker", "server", "admission")},
                "redis": redis,
                "agents": closed({**no_replicas, "mode": modes, "sets": {"type": "array", "items": agent_set}})
                | {"required": ["mode"]},
                "exporter": closed({**no_replicas, "enabled": truth}),
                "monitoring": closed({"rules": truth, "labels": strings}),
                "extraObjects": objects,
                "global": {"type": "object"},
            }
        ),
    }


def closed(properties: Mapping[str, Any]) -> dict[str, Any]:
    """An object with these fields and no others."""
    return {"type": "object", "additionalProperties": False, "properties": dict(properties)}


def _several(pattern: str) -> dict[str, Any]:
    """A list of names."""
    return {"type": "array", "items": {"type": "string", "pattern": pattern}, "uniqueItems": True}


def _setting(field: msgspec.structs.FieldInfo) -> dict[str, Any]:
    """The values of a BELAY_ variable: as text, or where it is a number or a switch, as one."""
    if field.name in settings._BOUNDS:
        least, most = settings._BOUNDS[field.name]
        number = "number" if isinstance(field.default, float) else "integer"
        pattern = r"^[0-9]+(\.[0-9]+)?$" if number == "number" else "^[0-9]+$"
        return {"anyOf": [{"type": number, "minimum": least, "maximum": most}, {"type": "string", "pattern": pattern}]}
    if isinstance(field.default, bool):
        return {"enum": [True, False, 0, 1, "0", "1", "true", "false"]}
    choices = getattr(field.type, "__args__", ())
    if choices:
        return {"enum": list(choices)}
    if field.name == "log_level":
        return {"enum": [word for level in settings._LEVELS for word in (level, level.lower())]}
    return {"type": "string"}


def render(values: Mapping[str, Any] | None = None, chart: Path = CHART) -> list[dict[str, Any]]:
    """The objects that Helm makes of the chart without a cluster, in the order of its files."""
    helm = library()
    with helm.Chart.load(chart) as loaded:
        texts = loaded.render(dict(values or {}), name="belay", namespace="belay-system")
    return [
        one
        for path, text in sorted(texts.items()) if not path.endswith("NOTES.txt")
        for one in yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)) if one
    ]  # fmt: skip


def library() -> Any:
    """Helm as a library; without it the test ends."""
    try:
        import helm_python
    except ImportError:
        lacking("Helm's library is not installed: run make venv-helm")
    return helm_python


def plain(document: Mapping[str, Any]) -> dict[str, Any]:
    """An object without what only the chart adds."""
    copy: dict[str, Any] = json.loads(json.dumps(document))
    for metadata in (copy["metadata"], copy.get("spec", {}).get("template", {}).get("metadata", {})):
        left = {name: text for name, text in (metadata.get("annotations") or {}).items() if name not in OF_THE_CHART}
        metadata.pop("annotations", None)
        if left:
            metadata["annotations"] = left
    return copy


if __name__ == "__main__":
    SCHEMA.write_text(json.dumps(schema(), indent=2) + "\n")
