"""Writes version, commit and the commit's time into the packages, so that what is installed knows what it is.

Hatchling calls it. Installed packages and source archives have no Git.
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BUILT = "engine/build.json"
CONTRACT = "agents/training/packages/belay_training/src/belay_training"
"""What training scripts import: a package of its own in a wheel."""


class BuiltVersion(BuildHookInterface[Any]):
    """Adds ``engine/build.json`` to wheel and source archive; an editable installation reads Git instead."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the file, or take that of the source archive."""
        root = Path(self.root)
        if version == "editable":
            return
        included = build_data.setdefault("force_include", {})
        if self.target_name == "wheel":
            included[str(root / CONTRACT)] = "belay_training"
        if (root / BUILT).exists():
            included[str(root / BUILT)] = self._target()
            return
        self._folder = tempfile.TemporaryDirectory(prefix="belay-build-")
        file = Path(self._folder.name) / "build.json"
        file.write_text(built(root, self.metadata.version))
        included[str(file)] = self._target()

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what ``initialize`` wrote."""
        if folder := getattr(self, "_folder", None):
            folder.cleanup()

    def _target(self) -> str:
        """Where the file lies: a wheel holds all of Belay below one package."""
        return f"belay/{BUILT}" if self.target_name == "wheel" else BUILT


def built(root: Path, version: str) -> str:
    """The body of the file: this version, and commit and time as the tree says."""
    found = versions(root).of_tree(root)
    return json.dumps({"version": version, "commit": found.commit, "time": found.time}, sort_keys=True) + "\n"


def versions(root: Path) -> ModuleType:
    """``engine/versions.py`` of the tree that is built, which need not be the one that is installed."""
    spec = importlib.util.spec_from_file_location("belay_versions", root / "engine" / "versions.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
