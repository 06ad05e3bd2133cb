"""The Headlamp plugin reads what the engine writes now. What it makes of it, `make headlamp` tests (it needs npm)."""

from __future__ import annotations

import json
import re

from belay.engine.model.labels import ABOUT_LABEL
from belay.engine.wire import names
from tests.headlamp_status import FILE, ROOT, recorded, status_maps

PLUGIN = ROOT / "console/headlamp"


def test_the_recorded_status_is_what_the_engine_writes() -> None:
    assert FILE.read_text() == recorded(), "run python -m tests.headlamp_status and commit what it writes"


def test_the_plugin_asks_for_the_maps_that_it_reads() -> None:
    source = (PLUGIN / "src/status.ts").read_text()
    assert f"NAMESPACE = '{names.SYSTEM}'" in source
    found = re.search(rf"SELECTOR = '{re.escape(ABOUT_LABEL)} in \((.*)\)'", source)
    assert found is not None
    about = {str(one["metadata"]["labels"][ABOUT_LABEL]) for one in status_maps()}
    assert about == set(found[1].split(","))


def test_the_lock_is_of_the_package_and_names_digests() -> None:
    package, lock = (json.loads((PLUGIN / name).read_text()) for name in ("package.json", "package-lock.json"))
    root = lock["packages"].pop("")
    assert (root["version"], root["devDependencies"]) == (package["version"], package["devDependencies"])
    assert not [name for name, one in lock["packages"].items() if not one.get("integrity") or "resolved" in one]
