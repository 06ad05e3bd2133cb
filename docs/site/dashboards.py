"""Whether Grafana understands every field of the dashboards in deploy/monitoring: ``make docs``.

They are read by the models that Grafana generates from its schemas, and written again: a field that Grafana does not
know, or reads as another value, is lost on that way and named.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "monitoring" / "dashboards"


def lost(given: Any, kept: Any, path: str = "") -> Iterator[str]:
    """What is not kept of a document, by its path."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for key, value in given.items():
            yield from lost(value, kept[key], f"{path}.{key}") if key in kept else (f"{path}.{key} is not a field",)
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for number, (one, other) in enumerate(zip(given, kept, strict=True)):
            yield from lost(one, other, f"{path}[{number}]")
    elif given != kept:
        yield f"{path} is read as {str(kept)[:60]!r}"


def main() -> int:
    """Check every dashboard; 1 when anything is lost."""
    register_default_plugins()
    found = []
    for file in sorted(FOLDER.glob("*.json")):
        raw = json.loads(file.read_text(encoding="utf-8"))
        kept = json.loads(JSONEncoder().encode(Dashboard.from_json(raw)))
        found += [f"{file.name}: {one}" for one in lost(raw, kept)]
    sys.stdout.write("".join(f"{one}\n" for one in found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
