"""`belay migrate check` on clusters that run MindCluster as its manifests deploy it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from belay.engine.cli import main
from belay.engine.cli.migration import examine
from belay.engine.cli.mindcluster import COMPONENTS, CONFIG_MAPS, known_flags

Raw = dict[str, Any]


def pod(name: str, namespace: str, image: str, args: str = "", labels: Raw | None = None, **spec: Any) -> Raw:
    container: Raw = {"name": "main", "image": image, "command": ["/bin/bash", "-c", "--"], "args": [args]}
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels or {}},
        "spec": {"containers": [container], **spec},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }  # fmt: skip


LOG = "-logFile=/var/log/mindx-dl/x.log -logLevel=0 --enable-healthz=true --healthz-address=11251"
PLUGIN = f"device-plugin -volcanoType=true -presetVirtualDevice=true {LOG} -hotReset 2"
CLUSTER: list[Raw] = [
    pod("volcano-scheduler-0", "volcano-system", "volcanosh/vc-scheduler:v1.9.0-v26.1.0", "vc-scheduler --v=2"),
    pod("clusterd-0", "mindx-dl", "swr.example/clusterd:v26.1.0", f"/usr/local/bin/clusterd {LOG} -useProxy=false"),
    pod("dp-1", "kube-system", "ascend-k8sdeviceplugin:v26.1.0@sha256:00", f"umask 027;{PLUGIN}"),
    pod("dp-2", "kube-system", "ascend-k8sdeviceplugin:v26.0.0", PLUGIN),
    pod("noded-1", "mindx-dl", "registry.local:5000/renamed:v1", f"noded {LOG}", {"app": "noded"}),
    pod("other", "default", "example/noded-like:v1", "run -strange=1", {"app": "noded"}),
    {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mindx-dl-nodeinfo-n1", "namespace": "mindx-dl"}},
    {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "of-our-own", "namespace": "mindx-dl"}},
    {
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": {}},
        "status": {"capacity": {"huawei.com/Ascend910": "8"}},
    },
]  # fmt: skip


def test_each_component_is_named_with_its_versions_flags_and_step() -> None:
    found = examine(CLUSTER)
    rows = {row.component: row for row in found.components}
    assert set(rows) == {"volcano-scheduler", "clusterd", "ascend-device-plugin", "noded"}
    plugin = rows["ascend-device-plugin"]
    assert (plugin.pods, plugin.ready, plugin.versions) == (2, 2, ("v26.0.0", "v26.1.0"))
    flags = {use.flag: use for use in plugin.flags}
    assert flags["volcanoType"].state == "same" and flags["hotReset"].value == "2"
    assert flags["logFile"].state == "other" and "standard error" in flags["logFile"].note
    assert {use.flag for use in rows["noded"].flags} >= {"logFile", "logLevel"}, "known by its label, too"
    assert [(step.step, step.components) for step in found.steps] == [
        (1, ("volcano-scheduler",)), (2, ("clusterd",)), (3, ("ascend-device-plugin", "noded")),
    ]  # fmt: skip
    assert found.nodes == {"huawei.com/Ascend910": 1}


def test_what_is_not_understood_is_named() -> None:
    found = examine([*CLUSTER, pod("c", "mindx-dl", "clusterd:v27", "clusterd -newFlag=3 -also")])
    assert sorted(found.unknown) == [
        "ConfigMap mindx-dl/of-our-own", "flag -also of clusterd", "flag -newFlag of clusterd",
        "flag -v of volcano-scheduler",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "raw",
    [
        {"kind": "Pod"},
        {"kind": "Pod", "spec": {"containers": "x"}, "metadata": []},
        {"kind": "Pod", "metadata": {"labels": 3}, "spec": {"containers": [{"image": 7, "args": ["'"]}, 3]}},
        {"kind": "Node", "status": {"capacity": ["a"]}},
        {"kind": "ConfigMap"},
    ],
)
def test_odd_objects_break_nothing(raw: Raw) -> None:
    assert examine([raw]).components == ()


def test_the_command_prints_the_steps_and_ends_with_1_when_something_is_unknown(tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": CLUSTER}))
    done = CliRunner().invoke(main, ["migrate", "check", "--cluster", str(file)])
    assert done.exit_code == 1, done.output
    assert "Step 1: scheduling and jobs (volcano-scheduler)" in done.output and "  back: " in done.output
    assert "Not understood: flag -v of volcano-scheduler; ConfigMap mindx-dl/of-our-own" in done.output
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": CLUSTER[-1:]}))
    alone = CliRunner().invoke(main, ["migrate", "check", "--cluster", str(file), "-o", "json"])
    assert alone.exit_code == 0 and json.loads(alone.output)["components"] == []


def test_every_component_is_in_the_guide_with_its_flags() -> None:
    guide = (Path(__file__).parents[1] / "docs" / "migrating.md").read_text()
    for component in COMPONENTS:
        assert f"`{component.name}`" in guide, component.name
        for flag, note in known_flags(component).items():
            assert note == "same" or f"`-{flag}`" in guide, f"-{flag} of {component.name}"


def test_every_config_map_is_in_the_guide() -> None:
    guide = (Path(__file__).parents[1] / "docs" / "migrating.md").read_text()
    assert [name for name in CONFIG_MAPS if f"`{name}" not in guide] == []
