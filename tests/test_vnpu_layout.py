"""The layout pass: declared vNPUs against existing ones, never touching one in use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from belay.engine.documents import Desired
from belay.engine.load import load
from belay.engine.model.actions import PartitionChip
from belay.engine.model.cluster import AgentReport, AgentVNPU, Observed, Orders
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.plan import Plan
from belay.engine.plan import plan
from belay.engine.status import conditions as conditions_module
from belay.engine.status.conditions import StatusCondition
from tests import worlds
from tests.worlds import NOW

POLICIES = Path(__file__).parents[1] / "policies"
LABELS = {
    "accelerator": "huawei-Ascend310P",
    "servertype": "Ascend310P-8",
    "host-arch": "huawei-arm",
    "node.kubernetes.io/npu.chip.name": "310P3",
}
RESOURCE, PREFIX = "huawei.com/Ascend310P", "Ascend310P-"


def declared(
    templates: str = "[vir04, vir02_1c]", *, busy: str = "wait", chips: str = "[0]", extra: str = ""
) -> Desired:
    text = f"""\
apiVersion: belay.dev/v1alpha1
kind: VNPULayout
metadata: {{name: a}}
spec:
  selector: {{matchLabels: {{accelerator: huawei-Ascend310P}}}}
  mode: static
  chips: [{{chips: {chips}, templates: {templates}}}]
  whenBusy: {busy}
"""
    return load({"desired/a.yaml": text.encode(), "desired/b.yaml": extra.encode()}, revision="r").desired


def cluster(
    *vnpus: tuple[int, str, str], done: int = 0, result: str = "ok", pods: Any = (), orders: Orders | None = None
) -> Observed:
    agent = AgentReport(
        "n0", "b", 1, int(NOW * 1000) - 1000, 0, {}, done, result,
        tuple(AgentVNPU(i, 0, template, used) for i, template, used in vnpus), (),
    )  # fmt: skip
    return worlds.observed(
        [worlds.node("n0", chips=4, resource=RESOURCE, prefix=PREFIX, labels=LABELS)],
        [worlds.report("n0", chips=4, resource=RESOURCE, prefix=PREFIX, network=None)],
        pods,
        agents=[agent],
        standing=[orders] if orders else (),
    )


def standing(epoch: int = 1, *, templates: tuple[str, ...] = ("vir04", "vir02_1c"), age: float = 10.0) -> Orders:
    issued = int((NOW - age) * 1000)
    return Orders("n0", "1", 1, "r", "", issued, issued + 900_000, {}, {}, epoch, {0: templates})


def cuts(result: Plan) -> list[PartitionChip]:
    return [action for action in result.actions if isinstance(action, PartitionChip)]


def test_a_product_without_static_vnpus_is_not_cut() -> None:
    product = yaml.safe_load((POLICIES / "products/atlas-300i-pro.yaml").read_text())
    product["spec"]["vnpu"] = {"family": "Ascend310P"}
    result = plan(declared(extra=yaml.safe_dump(product)), cluster(), NOW)
    assert cuts(plan(declared(), cluster(), NOW)) and not cuts(result)
    (found,) = [row for row in result.diagnostics if row.object == "VNPULayout/a"]
    assert found.message == (
        "node n0 chip 0: cannot be cut: Atlas 300I Pro, Atlas 300V, Atlas 300V Pro has no static vNPUs"
    )


def test_a_declared_chip_is_cut_largest_first_under_a_new_epoch() -> None:
    result = plan(declared("[vir02_1c, vir04]"), cluster((100, "vir01", ""), done=4), NOW)
    (cut,) = cuts(result)
    assert (cut.chip, cut.create, cut.destroy, cut.epoch) == ("Ascend310P-0", ("vir04", "vir02_1c"), ("100",), 5)
    assert (cut.evidence.file, cut.evidence.line, cut.evidence.revision) == ("desired/a.yaml", 1, "r")
    assert result.history.nodes["n0"].vnpu_epoch == 5


def test_a_chip_that_matches_its_layout_is_left_alone() -> None:
    assert cuts(plan(declared(), cluster((100, "vir04", "a/p"), (101, "vir02_1c", "")), NOW)) == []


@pytest.mark.parametrize(("busy", "severity"), [("wait", "info"), ("refuse", "error")])
def test_a_vnpu_in_use_is_never_in_the_way(busy: str, severity: str) -> None:
    result = plan(declared("[vir01]", busy=busy), cluster((100, "vir04", "a/p")), NOW)
    assert cuts(result) == []
    (complaint,) = [d for d in result.diagnostics if "is in use by" in d.message]
    assert complaint.severity == severity


def test_a_starting_pod_may_be_on_any_vnpu_of_its_size() -> None:
    pod = worlds.pod("p", node="n0", resource="huawei.com/Ascend310P-4c", count=1, phase="Pending")
    assert cuts(plan(declared("[vir01]"), cluster((100, "vir04", ""), pods=[pod]), NOW)) == []


def test_a_chip_used_whole_is_not_cut() -> None:
    pod = worlds.pod("p", node="n0", resource=RESOURCE, prefix=PREFIX, chips=[0], phase="Running")
    assert cuts(plan(declared(), cluster(pods=[pod]), NOW)) == []


def test_an_open_order_is_not_repeated_and_keeps_its_chip_out() -> None:
    result = plan(declared(), cluster(orders=standing()), NOW)
    assert cuts(result) == []
    assert [(c.chip, c.state) for c in result.chips] == [("Ascend310P-0", "resetting")]


def test_a_layout_is_in_force_once_the_agent_has_cut_its_chips() -> None:
    node, everything = ObjectKey("v1", "Node", "", "n0"), StatusCondition("Applied", "True", "Everything")
    ordering = plan(declared(), cluster(), NOW)
    assert cuts(ordering) and conditions_module.standing(ordering, cluster(), ()).waiting == (node,)

    ordered = cluster(orders=standing())
    unanswered = plan(declared(), ordered, NOW)
    stands = conditions_module.standing(unanswered, ordered, ())
    assert not cuts(unanswered) and stands.waiting == (node,)
    (applied,) = conditions_module.conditions([], everything, unanswered, stands)
    assert (applied.status, applied.reason) == ("False", "Applying") and "Node/n0" in applied.message

    done = cluster((100, "vir04", ""), (101, "vir02_1c", ""), done=1, orders=standing())
    assert conditions_module.standing(plan(declared(), done, NOW), done, ()).waiting == ()


def test_a_failed_cut_is_tried_again_after_a_while_only() -> None:
    failed = {"done": 1, "result": "failed: driver"}
    assert cuts(plan(declared(), cluster(orders=standing(age=10), **failed), NOW)) == []
    (again,) = cuts(plan(declared(), cluster(orders=standing(age=400), **failed), NOW))
    assert again.epoch == 2


def test_an_expired_order_waits_for_a_new_report() -> None:
    silent = msgspec.structs.replace(cluster(orders=standing(age=1000)), agents={})
    assert cuts(plan(declared(), silent, NOW)) == []
    assert len(cuts(plan(declared(), cluster(orders=standing(age=1000)), NOW))) == 1


def test_a_layout_that_is_gone_makes_its_chip_whole_again() -> None:
    seen = cluster((100, "vir04", ""), (101, "vir02_1c", ""), done=1, orders=standing())
    (cut,) = cuts(plan(load({}, revision="r").desired, seen, NOW))
    assert (cut.templates, cut.destroy, cut.reason) == ((), ("100", "101"), "LayoutRemoved")


def test_a_layout_that_cannot_be_read_makes_no_chip_whole() -> None:
    """Without an earlier version of the document, as in `belay plan --desired`."""
    seen = cluster((100, "vir04", ""), (101, "vir02_1c", ""), done=1, orders=standing())
    text = "apiVersion: belay.dev/v1alpha1\nkind: VNPULayout\nmetadata: {name: a}\nspec: {mode: Static}\n"
    desired = load({"desired/a.yaml": text.encode()}, revision="r").desired
    assert not desired.layouts
    assert cuts(plan(desired, seen, NOW)) == []


def test_a_layout_that_the_cluster_file_does_not_know_is_not_undone() -> None:
    seen = cluster((100, "vir04", ""), done=1, orders=standing(templates=("vir04",)))
    assert cuts(plan(load({}, has_git=False).desired, seen, NOW)) == []


@pytest.mark.parametrize(
    ("templates", "chips", "words"),
    [("[vir04, vir04]", "[0]", "8 AI CPUs"), ("[vir04]", "[9]", "does not exist"), ("[vir16]", "[0]", "vir16")],
)
def test_impossible_layouts_are_reported_and_not_ordered(templates: str, chips: str, words: str) -> None:
    desired = declared(templates, chips=chips)
    result = plan(desired, cluster(), NOW)
    assert cuts(result) == []
    if desired.layouts:  # what no node of the family could have is already refused when it is read
        assert any(words in d.message for d in result.diagnostics)


def test_a_chip_with_vnpus_takes_no_whole_chip_work() -> None:
    pod = worlds.pod("p", resource=RESOURCE, prefix=PREFIX, count=4)
    result = plan(load({}, has_git=False).desired, cluster((100, "vir04", ""), pods=[pod]), NOW)
    assert [a for a in result.actions if type(a).__name__ == "BindPod"] == []
    fits = plan(load({}, has_git=False).desired, cluster(pods=[pod]), NOW)
    assert len([a for a in fits.actions if type(a).__name__ == "BindPod"]) == 1


def modes(**layouts: str) -> Desired:
    """Layouts by name: mode, and chips in YAML where there are some."""
    files = {}
    for name, text in layouts.items():
        mode, _, chips = text.partition(" ")
        files[f"desired/{name}.yaml"] = (
            f"apiVersion: belay.dev/v1alpha1\nkind: VNPULayout\nmetadata: {{name: {name}}}\nspec:\n"
            f"  selector: {{matchLabels: {{accelerator: huawei-Ascend310P}}}}\n  mode: {mode}\n"
            + (f"  chips: {chips}\n" if chips else "")
        ).encode()
    return load(files, revision="r").desired


def messages(result: Plan) -> list[str]:
    return [d.message for d in result.diagnostics if d.object.startswith("VNPULayout")]


def test_the_first_of_two_layouts_for_a_chip_counts() -> None:
    result = plan(modes(a="dynamic [{chips: [0]}]", b="static [{chips: [0, 1], templates: [vir04]}]"), cluster(), NOW)
    assert [cut.chip for cut in cuts(result)] == ["Ascend310P-1"]
    assert messages(result) == ["node n0 chip 0: is already covered by another document; the first by name counts"]
    rest = plan(modes(a="static [{chips: [0, 1], templates: [vir04]}]", b="dynamic"), cluster(), NOW)
    assert [cut.chip for cut in cuts(rest)] == ["Ascend310P-0", "Ascend310P-1"] and messages(rest) == []


def test_unsupported_modes_are_reported_at_the_document() -> None:
    result = plan(modes(a="soft"), cluster(), NOW)
    assert messages(result) == ["node n0 chip 0: cannot be shared softly: chips of this node do not support it"]
    duo = cluster()
    node = duo.nodes["n0"]
    labels = {**node.labels, "infer-card-type": "card-300i-duo"}
    duo = msgspec.structs.replace(duo, nodes={"n0": msgspec.structs.replace(node, labels=labels)})
    assert "cannot be cut on demand" in messages(plan(modes(a="dynamic"), duo, NOW))[0]


@pytest.mark.parametrize("mode", ["dynamic", "dynamic [{chips: [0, 1, 2]}]"])
def test_chips_for_vnpus_take_no_whole_chip_pods(mode: str) -> None:
    pod = worlds.pod("p", resource=RESOURCE, prefix=PREFIX, count=2)
    result = plan(modes(a=mode), cluster(pods=[pod]), NOW)
    assert [a for a in result.actions if type(a).__name__ == "BindPod"] == []


def test_chips_cut_on_demand_become_whole_when_the_document_is_removed() -> None:
    seen = cluster((100, "vir04", ""), done=1, orders=standing(templates=("vir04",)))
    assert cuts(plan(modes(a="dynamic"), seen, NOW)) == []
    (cut,) = cuts(plan(modes(), seen, NOW))
    assert (cut.reason, cut.destroy) == ("LayoutRemoved", ("100",))


def test_a_chip_with_a_process_that_no_pod_explains_is_not_cut() -> None:
    seen = cluster()
    chip = worlds.AgentChip("s", 2, None, 0, "")
    seen = msgspec.structs.replace(seen, agents={"n0": msgspec.structs.replace(seen.agents["n0"], chips={0: chip})})
    result = plan(declared(), seen, NOW)
    assert cuts(result) == [] and "is in use by 2 processes" in messages(result)[0]
