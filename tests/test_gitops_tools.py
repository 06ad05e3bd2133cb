"""What deploy/gitops gives Argo CD and Flux leads to what is there: paths, values, patches, links.

Fields were checked against the definitions that these projects publish (docs/gitops-tools.md, "What was tried").
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart import CHART, ROOT, library
from tests.kustomize import kustomized

FOLDER = ROOT / "deploy" / "gitops"
FILES = sorted(FOLDER.glob("*.yaml"))


def documents(*kinds: str) -> list[dict[str, Any]]:
    found = [one for file in FILES for one in yaml.safe_load_all(file.read_text())]
    return [one for one in found if one["kind"] in kinds]


def test_values_for_the_chart_are_ones_it_takes() -> None:
    helm = library()
    (application,), (release,) = documents("Application"), documents("HelmRelease")
    assert (ROOT / application["spec"]["source"]["path"]).resolve() == CHART.resolve()
    with helm.Chart.load(CHART) as chart:
        for values in (application["spec"]["source"]["helm"]["valuesObject"], release["spec"]["values"]):
            chart.validate_schema(values)
            with pytest.raises(helm.HelmError, match="BELAY_SOURCE"):
                chart.validate_schema({**values, "settings": {"BELAY_SOURCE": "x"}})


def test_each_reference_leads_to_a_document_of_its_file() -> None:
    for file in FILES:
        here = {(one["kind"], one["metadata"]["name"]) for one in yaml.safe_load_all(file.read_text())}
        for one in yaml.safe_load_all(file.read_text()):
            spec = one["spec"]
            for named in (spec.get("sourceRef"), spec.get("chartRef")):
                assert named is None or (named["kind"], named["name"]) in here, file.name
            for named in spec.get("dependsOn", []):
                assert (one["kind"], named["name"]) in here, file.name


def test_what_flux_builds_of_the_overlay_is_whole(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    definitions, belay = documents("Kustomization")
    crds = ROOT / definitions["spec"]["path"]
    assert {d["kind"] for f in crds.glob("*.yaml") for d in yaml.safe_load_all(f.read_text())} == {
        "CustomResourceDefinition"
    }
    assert definitions["spec"]["prune"] is False, "pruning a definition deletes every object of its kind"
    own = tmp_path / "deploy" / "overlays" / "flux"
    own.mkdir()
    resources = [os.path.relpath(tmp_path / belay["spec"]["path"], own)]
    named = {field: belay["spec"][field] for field in ("images", "patches")}
    (own / "kustomization.yaml").write_text(yaml.safe_dump({"resources": resources, **named}))
    built = kustomized(own)
    (settings,) = [one for one in built if one["metadata"]["name"] == "belay-settings"]
    assert settings["data"]["BELAY_SOURCE_URL"].startswith("ssh://")
    images = {
        container["image"]
        for one in built
        if one["kind"] in ("Deployment", "StatefulSet", "DaemonSet")
        for container in one["spec"]["template"]["spec"]["containers"]
    }
    assert "registry.example.com/belay:0.2.0" in images and "belay:0.2.0" not in images


def test_links_of_the_chart_never_leave_the_repository() -> None:
    # Argo CD refuses a whole repository with one that does, even on its way to a place inside
    for link in [path for path in (ROOT / "deploy").rglob("*") if path.is_symlink()]:
        target = os.readlink(link)
        assert not os.path.isabs(target), link
        place = link.parent
        for part in target.split("/"):
            place = Path(os.path.normpath(place / part))
            assert place.is_relative_to(ROOT), link
        assert place.exists(), link
