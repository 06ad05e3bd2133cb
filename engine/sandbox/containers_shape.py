"""A container's command, environment and paths as those of a process. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Final

Json = dict[str, Any]
LOOPBACK: Final = "127.0.0.1"
_REFERENCE: Final = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
_KEYED: Final = re.compile(r"^metadata\.(annotations|labels)\['(.+)'\]$")


def command_of(pod: Json, env: Mapping[str, str] | None = None) -> list[str] | None:
    """The arguments of `belay train` in the pod's first container, references to variables replaced where ``env`` is
    given; None for a container with another command.
    """
    containers = (pod.get("spec") or {}).get("containers") or [{}]
    found = [*map(str, containers[0].get("command") or ()), *map(str, containers[0].get("args") or ())]
    name = PurePosixPath(found[0]).name if found else ""
    skipped = 1 if name == "belay-train" else 2 if name == "belay" and found[1:2] == ["train"] else 0
    if not skipped:
        return None
    rest = found[skipped:]
    return rest if env is None else [expanded(word, env) for word in rest]


def environment(pod: Json) -> dict[str, str]:
    """The variables of the first container, as a kubelet sets them: values with $(NAME) of earlier ones, and fields of
    the pod. A variable from a Secret, a ConfigMap's key or a resource is not set: the sandbox has no such thing.
    """
    out: dict[str, str] = {}
    containers = (pod.get("spec") or {}).get("containers") or [{}]
    for entry in containers[0].get("env") or ():
        source = entry.get("valueFrom") or {}
        if "fieldRef" in source:
            value = field(pod, str(source["fieldRef"].get("fieldPath") or ""))
        elif source:
            continue
        else:
            value = expanded(str(entry.get("value") or ""), out)
        out[str(entry["name"])] = value
    return out


def expanded(text: str, env: Mapping[str, str]) -> str:
    """Replace ``$(NAME)`` by the variable's value and ``$$`` by a dollar; unknown names stay."""

    def one(found: re.Match[str]) -> str:
        name = found.group(1)
        return "$" if name is None else env.get(name, found.group(0))

    return _REFERENCE.sub(one, text)


def field(pod: Json, path: str) -> str:
    """A field of the pod as the downward API gives it; empty for one that is not set."""
    metadata = pod.get("metadata") or {}
    if keyed := _KEYED.match(path):
        return str((metadata.get(keyed.group(1)) or {}).get(keyed.group(2)) or "")
    found: Any = pod
    for part in path.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return str(found) if isinstance(found, (str, int)) else ""


def mounted(text: str, places: Mapping[str, str]) -> str:
    """Map a path below a mount to this machine; other text is unchanged. The longest mount wins."""
    for path in sorted(places, key=len, reverse=True):
        if text == path or text.startswith(path + "/"):
            return places[path] + text[len(path) :]
    return text


__all__ = ["LOOPBACK", "command_of", "environment", "expanded", "field", "mounted"]
