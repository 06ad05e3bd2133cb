"""Collects the light package: `belay_training`, what ranks, agents and managers run, and the packages of scripts.

Hatchling calls it. In the repository those files lie above this folder; the source archive holds them by their
places in the repository, so that a wheel made from it equals one made here.
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PARTS = (
    "agents/__init__.py",
    "agents/common/__init__.py",
    "agents/common/caller_token.py",
    "agents/common/hostfiles.py",
    "agents/common/log.py",
    "agents/datadist",
    "agents/training",
    "engine/__init__.py",
    "engine/model/__init__.py",
    "engine/model/labels.py",
    "engine/model/links.py",
    "engine/versions.py",
    "engine/wire/__init__.py",
    "engine/wire/clusterd",
    "engine/wire/errors.py",
    "engine/wire/gojson.py",
    "engine/wire/links.py",
    "engine/wire/names.py",
    "engine/wire/training",
    "src/belay/__init__.py",
)
"""From the repository: folders with all their Python files, and typed stubs of messages."""
PACKAGES = "agents/training/packages"
DROP_INS = ("taskd", "mindio_ttp", "mindio_acp", "mindx_elastic", "llm_datadist")
BUILT = "engine/build.json"
LICENCE = "LICENSE"
SUFFIXES = (".py", ".pyi", ".c", ".h")


class LightPackage(BuildHookInterface[Any]):
    """Adds the files to wheel and source archive."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name each file and its place."""
        if version == "editable":
            raise ValueError("belay-training is not installed as editable: install Belay itself (make venv) instead")
        own = Path(self.root)
        base = own if (own / BUILT).exists() else own.parents[3]
        included = build_data.setdefault("force_include", {})
        for place in parts(base):
            included[str(base / place)] = self._target(place)
        if self.target_name == "wheel":
            included[str(base / LICENCE)] = f"belay_training/{LICENCE}"
        if base == own:
            if self.target_name == "wheel":
                included[str(own / BUILT)] = self._target(BUILT)
            return
        self._folder = tempfile.TemporaryDirectory(prefix="belay-build-")
        file = Path(self._folder.name) / "build.json"
        found = versions(base).of_tree(base)
        body = {"version": self.metadata.version, "commit": found.commit, "time": found.time}
        file.write_text(json.dumps(body, sort_keys=True) + "\n")
        included[str(file)] = self._target(BUILT)
        if self.target_name == "sdist":
            included[str(base / LICENCE)] = LICENCE

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what ``initialize`` wrote."""
        if folder := getattr(self, "_folder", None):
            folder.cleanup()

    def _target(self, place: str) -> str:
        """Where a file lies in the wheel; the source archive keeps the places of the repository."""
        if self.target_name != "wheel":
            return place
        if place.startswith(f"{PACKAGES}/"):
            return place.removeprefix(f"{PACKAGES}/")
        return f"belay/{place.removeprefix('src/belay/')}"


def parts(base: Path) -> Iterator[str]:
    """The files, as places in the repository, in an order that never changes."""
    for part in (*PARTS, *(f"{PACKAGES}/{name}" for name in DROP_INS)):
        path = base / part
        if not path.exists():
            raise FileNotFoundError(f"{path} is missing, and the package needs it")
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            place = file.relative_to(base).as_posix()
            if file.suffix not in SUFFIXES or "__pycache__" in file.parts:
                continue
            if place.startswith(f"{PACKAGES}/") and part == "agents/training":
                continue
            yield place


def versions(base: Path) -> Any:
    """``engine/versions.py`` of the tree that is built."""
    spec = importlib.util.spec_from_file_location("belay_versions", base / "engine" / "versions.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
