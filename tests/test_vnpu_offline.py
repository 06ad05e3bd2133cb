"""vNPUs and shares as people and acceptance tests see them: a file of Kubernetes objects in, ``belay plan`` out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from belay.engine import cli
from belay.engine.wire import deviceinfo
from tests import listing
from tests.vnpuworld import CHIPS, CORE, SHARE

NOW = 1788249600


def node(name: str, labels: dict[str, str], counts: dict[str, str]) -> dict[str, Any]:
    status = {"cpu": "64", "memory": "512Gi", "pods": "110"} | counts
    return {
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
        "status": {"capacity": status, "allocatable": status,
                   "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-08-01T00:00:00Z"}]},
    }  # fmt: skip


def device(name: str, prefix: str, chips: int) -> dict[str, Any]:
    resource = f"huawei.com/{prefix[:-1]}"
    lists = {
        resource: ",".join(f"{prefix}{i}" for i in range(chips)),
        f"{resource}-Unhealthy": "",
        f"{resource}-Fault": "[]",
    }
    if prefix == "Ascend910-":
        lists |= {f"{resource}-NetworkUnhealthy": "", f"{resource}-Recovering": ""}
    return deviceinfo.build(name, device_list=lists, update_time=NOW)


def pod(name: str, resource: str, count: int, labels: dict[str, str], **more: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "train", "uid": f"u-{name}", "labels": labels,
                "creationTimestamp": "2026-08-31T00:00:00Z", "annotations": more.pop("annotations", {})}  # fmt: skip
    container = {
        "name": "main",
        "image": "x",
        "resources": {"limits": {resource: str(count)}, "requests": {resource: str(count)}},
    }
    spec = {"schedulerName": "volcano", "containers": [container]} | more.pop("spec", {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": spec,
        "status": more.pop("status", {"phase": "Pending"}),
    }


ON_DEMAND = """
apiVersion: belay.dev/v1alpha1
kind: SchedulingSettings
metadata: {name: on-demand}
spec: {initParams: {presetVirtualDevice: false}}
"""


def plan(path: Path, *items: dict[str, Any], files: dict[str, str] | None = None) -> dict[str, Any]:
    file = path / "cluster.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    more = []
    for name, text in (files or {}).items():
        (path / "state" / "desired").mkdir(parents=True, exist_ok=True)
        (path / "state" / "desired" / name).write_text(text)
        more = ["--desired", str(path / "state")]
    result = CliRunner().invoke(cli.main, ["plan", *more, "--cluster", str(file), "--explain", "-o", "json"])
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


@pytest.mark.parametrize("family", sorted(CHIPS))
def test_ai_cores_of_every_family(family: str, tmp_path: Path) -> None:
    labels, prefix, cores, kind = CHIPS[family]
    small = {"310P": 2, "310P-10": 2}.get(family, 6 if cores in (24, 25) else 5)
    template = {2: "vir02_1c", 6: "vir06_1c_16g", 5: "vir05_1c_8g" if family == "910B4" else "vir05_1c_16g"}[small]
    size = template.removeprefix("vir").split("_")[0].lstrip("0") + "c"
    held = pod(
        "held", CORE, small, {"ring-controller.atlas": kind},
        annotations={CORE: f"1-{template}", "huawei.com/AscendReal": f"{prefix}{size}-100-1"},
        spec={"nodeName": "n1"}, status={"phase": "Running"},
    )  # fmt: skip
    printed = plan(
        tmp_path,
        *(node(n, labels, {CORE: str(2 * cores)}) for n in ("n0", "n1")), *(device(n, prefix, 2) for n in ("n0", "n1")),
        held,
        pod("small", CORE, small, {"ring-controller.atlas": kind}),
        pod("whole", CORE, 2 * cores, {"ring-controller.atlas": kind}),
        pod("odd", CORE, 7, {"ring-controller.atlas": kind}),
        files={"settings.yaml": ON_DEMAND},
    )  # fmt: skip
    bound = {action["pod"]: action for action in printed["actions"] if action["kind"] == "BindPod"}
    assert set(bound) == {"small", "whole"}
    assert (bound["small"]["node"], bound["small"]["chips"], bound["small"]["template"]) == (
        "n1",
        [f"{prefix}1"],
        template,
    )
    assert bound["small"]["annotations"][CORE] == f"1-{template}"
    assert (bound["whole"]["node"], bound["whole"]["template"]) == ("n0", None)
    assert bound["whole"]["annotations"][CORE] == "0,1" and bound["whole"]["chips"] == [f"{prefix}0", f"{prefix}1"]
    assert printed["scores"]["train/small"] == {"n0": 0, "n1": 8}
    (entry,) = printed["pending"]
    assert (entry["name"], entry["reason"]) == ("odd", "InvalidRequest") and "InvalidResourceRequest" in entry[
        "message"
    ]


@pytest.mark.parametrize(
    ("resource", "count", "fits"),
    [
        ("huawei.com/Ascend310P-2c", 1, True), ("huawei.com/Ascend310P-4c.3cpu.ndvpp", 1, True),
        ("huawei.com/Ascend910-12c.3cpu.32g", 1, True), ("huawei.com/Ascend910-16c", 1, True),
        ("huawei.com/Ascend310P-2c", 2, False),
    ],
)  # fmt: skip
def test_sizes_by_name_are_counted(resource: str, count: int, fits: bool, tmp_path: Path) -> None:
    family = "310P" if "310P" in resource else "910B2"
    labels, prefix, _, kind = CHIPS[family]
    printed = plan(
        tmp_path, node("n0", labels, {resource: "2"}), device("n0", prefix, 1),
        pod("p", resource, count, {"ring-controller.atlas": kind}),
    )  # fmt: skip
    bound = [action for action in printed["actions"] if action["kind"] == "BindPod"]
    assert bool(bound) is fits
    if fits:
        assert (bound[0]["chips"], bound[0]["template"]) == ([], None)
    else:
        text = "request vnpu num <2> more than 1 virtual device, keep job pending "
        assert printed["pending"][0]["reason"] == "InvalidRequest" and text in printed["pending"][0]["message"]


@pytest.mark.parametrize(("want", "chips"), [(6, [0, 1, 2, 3, 4, 5]), (7, None)])
def test_whole_chips_beside_others_that_are_cut_beforehand(want: int, chips: Any, tmp_path: Path) -> None:
    """Chips 6 and 7 are cut: the device plugin offers their vNPUs by name, and lists six whole chips."""
    node = listing.node("n0", sizes={"huawei.com/Ascend910": "6", "huawei.com/Ascend910-4c": "2"})
    jobs = listing.job("w", 1, want, policy="chip8-node8") + listing.job("v", 2, 1, kind="Ascend910-4c")
    found = listing.plan([node, listing.report("n0", busy=[6, 7]), *jobs], tmp_path)
    assert {"v-0", "v-1"} <= found.bound.keys() and found.chips("v-0") == []
    if chips is None:
        assert found.pending["nodes"] == {"NPUResourceShortage": 1} and "req<7>, idle<6>" in found.pending["message"]
    else:
        assert found.chips("w-0") == chips and found.scores("w-0") == {"n0": 8 * 100 - 6}


def test_a_soft_share_in_a_file(tmp_path: Path) -> None:
    labels = CHIPS["910B3"][0] | {
        "mind-cluster/npu-chip-memory": "64G", "huawei.com/scheduler.chip1softsharedev.enable": "true",
    }  # fmt: skip
    quota = {f"{SHARE}aicoreQuota": "30", f"{SHARE}hbmQuota": "20480", f"{SHARE}policy": "elastic"}
    notes = {"huawei.com/schedule_policy": "chip1-softShareDev"}
    there = pod(
        "there", "huawei.com/Ascend910", 20, {}, spec={"nodeName": "n0"}, status={"phase": "Running"},
        annotations=notes | quota | {f"{SHARE}aicoreQuota": "20", "huawei.com/Ascend910": "Ascend910-1"},
    )  # fmt: skip
    printed = plan(
        tmp_path, node("n0", labels, {"huawei.com/Ascend910": "200"}), device("n0", "Ascend910-", 2), there,
        pod("p", "huawei.com/Ascend910", 30, quota, annotations=notes),
    )  # fmt: skip
    (bound,) = [action for action in printed["actions"] if action["kind"] == "BindPod"]
    assert (bound["chips"], bound["template"]) == (["Ascend910-1"], None)
    assert {key: bound["annotations"][key] for key in quota} == quota
    assert printed["scores"] == {"train/p": {"n0": 150 * 16}}


LAYOUT = """\
apiVersion: belay.dev/v1alpha1
kind: VNPULayout
metadata: {name: inference}
spec:
  selector: {matchLabels: {accelerator: huawei-Ascend310P}}
  mode: dynamic
"""


def test_a_layout_in_git_lets_a_chip_be_cut_for_a_waiting_pod(tmp_path: Path) -> None:
    labels, prefix, _, kind = CHIPS["310P"]
    items = (
        node("n0", labels, {"huawei.com/Ascend310P": "2"}), device("n0", prefix, 2),
        pod("p", "huawei.com/Ascend310P-4c", 1, {"ring-controller.atlas": kind}),
    )  # fmt: skip
    printed = plan(tmp_path, *items, files={"layout.yaml": LAYOUT})
    (cut,) = printed["actions"]
    assert (cut["kind"], cut["chip"], cut["templates"], cut["create"], cut["destroy"], cut["epoch"]) == (
        "PartitionChip", "Ascend310P-0", ["vir04"], ["vir04"], [], 1,
    )  # fmt: skip
    assert cut["evidence"]["file"] == "desired/layout.yaml" and cut["reason"] == "LayoutOnDemand"
    (entry,) = printed["pending"]
    assert entry["reason"] == "Fragmented" and "room is being made" in entry["unblock"]


@pytest.mark.parametrize(
    ("product", "mode", "words"),
    [
        ("atlas-300i-duo", "dynamic", "does not support dynamic vNPUs"),
        ("atlas-300i-duo", "soft", "does not support soft vNPUs"),
        ("atlas-300i-pro", "soft", "does not support soft vNPUs"),
        ("atlas-800-9000", "dynamic", "does not support dynamic vNPUs"),
        ("atlas-350-8", "dynamic", "does not support dynamic vNPUs"),
        ("atlas-350-8", "static", "does not support static vNPUs"),
        ("atlas-300i", "static", "does not support static vNPUs"),
        ("atlas-300i-pro", "dynamic", ""), ("atlas-800t-a2", "dynamic", ""), ("atlas-800t-a2", "soft", ""),
        ("atlas-800t-a3", "soft", ""), ("atlas-350-8", "soft", ""), ("atlas-800-9000", "static", ""),
        ("atlas-300i-duo", "static", ""), ("atlas-200i-soc-a1", "static", ""), ("atlas-800t-a3", "static", ""),
        ("atlas-900-a3-superpod", "static", ""), ("atlas-9000-a3-superpod", "static", ""),
        ("atlas-9000-a3", "static", ""), ("atlas-200i-soc-a1", "dynamic", "does not support dynamic vNPUs"),
    ],
)  # fmt: skip
def test_what_products_support_is_checked_at_its_place(product: str, mode: str, words: str, tmp_path: Path) -> None:
    known = {"atlas-800-9000": "vir02", "atlas-800t-a2": "vir05_1c_16g"}
    template = "vir12_3c_32g" if "-a3" in product else known.get(product, "vir02")
    chips = f"\n  chips: [{{chips: [0], templates: [{template}]}}]" if mode == "static" else ""
    (tmp_path / "desired").mkdir()
    (tmp_path / "desired" / "a.yaml").write_text(
        "apiVersion: belay.dev/v1alpha1\nkind: NodePool\nmetadata: {name: p}\n"
        f"spec: {{selector: {{matchLabels: {{a: b}}}}, product: {product}}}\n"
    )
    (tmp_path / "desired" / "b.yaml").write_text(
        "apiVersion: belay.dev/v1alpha1\nkind: VNPULayout\nmetadata: {name: l}\n"
        f"spec:\n  pool: p\n  mode: {mode}{chips}\n"
    )
    result = CliRunner().invoke(cli.main, ["validate", str(tmp_path), "-o", "json"])
    found = [row for row in json.loads(result.stdout)["diagnostics"] if "vNPU" in row["message"]]
    assert bool(found) is bool(words), result.stdout
    if words:
        assert words in found[0]["message"]
        assert (found[0]["file"], found[0]["line"], found[0]["column"]) == ("desired/b.yaml", 6, 9)
