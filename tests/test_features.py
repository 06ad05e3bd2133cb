"""Pages of tasks: every sample is pushed to a simulated cluster; tables of products are what loader and planner do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from belay.agents.daemon.__main__ import _parser as agent_parser
from belay.agents.runtime.install import TYPES, Host, InstallOptions
from belay.agents.runtime.install import _lists as shipped_lists
from belay.engine.documents import Desired, Product
from belay.engine.load import load
from belay.engine.model.actions import BindPod
from belay.engine.plan import plan
from tests import feature_pages, vnpusim, vnpuworld, worlds
from tests.feature_pages import FEATURES, NO, YES
from tests.simworld import A2, INFER, Node, World

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
TASKS = sorted(page.stem for page in (DOCS / "tasks").glob("*.md") if page.name != "README.md")
SHIPPED: Desired = load({}, has_git=False).desired
_NAMED = re.compile(r"# ([a-z: ]+)\n")
"""The first line of a block that only goes with another."""
_BLOCK = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def files_of(page: str) -> dict[str, bytes]:
    """The samples of a page that stand alone, as files of a state repository."""
    blocks = [block for block in _BLOCK.findall((DOCS / "tasks" / f"{page}.md").read_text()) if not _NAMED.match(block)]
    return {f"desired/{page}-{number}.yaml": block.encode() for number, block in enumerate(blocks)}


def modes() -> dict[str, str]:
    """What the page of resumable training shows for each mode, by the mode."""
    blocks = _BLOCK.findall((DOCS / "tasks/resumable-training.md").read_text())
    return {found[1]: block for block in blocks if (found := _NAMED.match(block))}


def job_of(mode: str) -> dict[str, bytes]:
    """The job of that page in one mode; its pods end at once."""
    documents = list(yaml.safe_load_all(files_of("resumable-training")["desired/resumable-training-0.yaml"]))
    metadata, own = documents[1]["metadata"], yaml.safe_load(modes()[mode])["metadata"]
    kept = {name: metadata["labels"][name] for name in ("framework", "ring-controller.atlas")}
    documents[1]["metadata"] |= {"labels": kept | own["labels"], "annotations": own.get("annotations", {})}
    for replicas in documents[1]["spec"]["replicaSpecs"].values():
        replicas["template"]["spec"].pop("terminationGracePeriodSeconds", None)
    return {"desired/job.yaml": yaml.safe_dump_all(documents).encode()}


def cluster(files: dict[str, bytes], training: int = 2) -> World:
    """Training servers and one of inference."""
    nodes = [Node(f"node-{number}", labels=A2) for number in range(1, training + 1)]
    return World(files, [*nodes, Node("infer-1", kind="Ascend310P", labels=INFER)])


def bound(world: World) -> dict[str, str]:
    """Pods and their nodes."""
    pods = [body for key, body in world.objects.items() if key.kind == "Pod"]
    return {pod["metadata"]["name"]: pod["spec"].get("nodeName", "") for pod in pods}


def chips_of(world: World) -> dict[str, str]:
    """Pods and the chips that they were given."""
    found = {}
    for key, body in world.objects.items():
        notes = body["metadata"].get("annotations") or {}
        if key.kind == "Pod":
            found[key.name] = next((v for k, v in notes.items() if re.fullmatch(r"huawei\.com/Ascend\d+P?", k)), "")
    return found


def served(world: vnpusim.VNPUWorld) -> int:
    """Pods that hold a vNPU."""
    return len({vnpu.used_by for node in world.nodes.values() for vnpu in node.vnpus if vnpu.used_by})


#: Groups beyond those that every product has, of one product of each kind; MindCluster's exporter decides so too.
METRICS = {
    "Atlas 200I SoC A1": {"ddr", "vnpu"},
    "Atlas 800 training server (model 9000/9010), half populated": {"ddr", "hbm", "roce", "optical", "network"},
    "Atlas 800T A2, Atlas 900 A2 PoD, Atlas 800I A2, A200I A2 Box": {
        "hbm",
        "hccs",
        "pcie",
        "roce",
        "optical",
        "network",
    },
    "Atlas 800T A3, Atlas 800I A3, A200T A3 Box8": {"sio", "hbm", "hccs", "roce", "optical", "network"},
    "Atlas 9000 A3 SuperPoD": {"sio", "hbm", "hccs", "roce", "optical", "network"},
    "Atlas 350 without interconnect, 8 cards": {"sio", "hbm", "pcie", "ub"},
    "Atlas 350 with 4P mesh, 16 cards": {"sio", "hbm", "pcie", "network", "ub"},
}


def table_of(head: str) -> list[dict[str, str]]:
    """The rows of the table whose first line begins so, by the words of that line."""
    lines = (DOCS / "reference/features.md").read_text().splitlines()
    at = next(number for number, text in enumerate(lines) if text.startswith(head))
    names, rows = _cells(lines[at]), []
    for text in lines[at + 2 :]:
        if not text.startswith("|"):
            break
        rows.append(dict(zip(names, _cells(text), strict=True)))
    return rows


def _cells(row: str) -> list[str]:
    return [cell.strip().strip("`") for cell in row.strip("|").split("|")]


def test_each_product_has_the_metrics_of_the_page() -> None:
    rows = {row["product"]: row for row in table_of("| product | `ddr`")}
    assert set(rows) == {one.spec.title for one in feature_pages.servers(SHIPPED)}
    for product, wanted in METRICS.items():
        assert {name for name, cell in rows[product].items() if cell == YES} == wanted, product
    cards = rows["Atlas 800I A2 variants and Atlas 300I A2 cards without HCCS"]
    assert {name for name, cell in cards.items() if cell == "some"} == {"roce", "optical", "network"}


def test_each_type_of_the_container_runtime_installs_the_list_of_the_page(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text("ID=ubuntu\n")
    rows = {row["type"]: row for row in table_of("| type | products")}
    assert {kind for kind in rows if not kind.startswith("none")} == set(TYPES)
    for kind, row in rows.items():
        options = InstallOptions(kind=None if kind.startswith("none") else kind)
        shipped = (ROOT / "policies/runtime" / row["list"]).read_bytes()
        assert shipped_lists(options, Host(tmp_path))["base.list"].startswith(shipped), kind
    (soc,) = [one for one in feature_pages.servers(SHIPPED) if one.name == "atlas-200i-soc-a1"]
    assert rows["A200ISoC"]["products"] == soc.spec.title
    assert "/etc/hdcBasic.cfg" in (ROOT / "policies/runtime" / rows["A200ISoC"]["list"]).read_text()


@pytest.mark.parametrize("page", TASKS)
def test_samples_are_without_a_finding(page: str) -> None:
    found = load(files_of(page), revision="r")
    assert [str(one) for one in found.diagnostics] == []


def test_whole_chips_go_to_the_jobs_of_the_page() -> None:
    world = cluster(files_of("whole-chips"), 3)
    world.until_quiet()
    placed = bound(world)
    training = [placed[name] for name in ("train-master-0", "train-worker-0", "batch-worker-0")]
    assert sorted(training) == ["node-1", "node-2", "node-3"]
    (serve,) = [name for name in placed if name.startswith("serve-")]
    assert placed[serve] == "infer-1" and len(chips_of(world)[serve].split(",")) == 2


def test_static_vnpus_of_the_page_are_cut_and_given_out() -> None:
    world = vnpusim.VNPUWorld(files_of("static-vnpu"), {"infer-1": 2})
    world.until_quiet()
    assert served(world) == 2
    cut = sorted(vnpu.template for vnpu in world.nodes["infer-1"].vnpus)
    assert cut == ["vir02_1c"] * 4 + ["vir04_3c"] * 2


def test_dynamic_vnpus_of_the_page_are_cut_as_pods_ask() -> None:
    world = vnpusim.VNPUWorld(files_of("dynamic-vnpu"), {"infer-1": 1}, on_demand=["infer-1"])
    world.until_quiet()
    assert served(world) == 2
    assert [vnpu.template for vnpu in world.nodes["infer-1"].vnpus] == ["vir04_3c"] * 2


def test_without_the_setting_of_the_page_a_dynamic_vnpu_is_refused() -> None:
    pod = vnpuworld.wants("p", 4)
    seen = worlds.observed([vnpuworld.node("n0")], [vnpuworld.report("n0")], [pod])
    (waits,) = plan(worlds.desired(), seen, worlds.NOW).pending
    assert "only support static vnpu" in waits.message


def test_soft_shares_of_the_page_share_one_chip() -> None:
    (template,) = [
        body["spec"]["template"]
        for body in yaml.safe_load_all(files_of("soft-vnpu")["desired/soft-vnpu-0.yaml"])
        if body["kind"] == "Deployment"
    ]
    limits = template["spec"]["containers"][0]["resources"]["limits"]
    ((resource, count),) = limits.items()
    meta = template["metadata"]
    pods = [
        worlds.pod(name, resource=resource, count=count, labels=meta["labels"], annotations=meta["annotations"])
        for name in ("a", "b")
    ]
    report = worlds.report("n0", chips=2)
    made = plan(worlds.desired(), worlds.observed([vnpuworld.soft_node("n0")], [report], pods), worlds.NOW)
    given = [action for action in made.actions if isinstance(action, BindPod)]
    assert [action.pod for action in given] == ["a", "b"] and len({action.chips for action in given}) == 1


def test_the_elastic_job_of_the_page_goes_on_smaller() -> None:
    world = cluster(files_of("elastic-training"))
    world.until_quiet()
    assert sorted(bound(world).values()) == ["node-1", "node-2"]
    world.fault("node-2", 3, level="SeparateNPU")
    world.until_quiet()
    assert list(bound(world).values()) == ["node-1"]


def test_the_server_of_the_page_heals() -> None:
    world = cluster(files_of("inference-recovery"))
    world.until_quiet()
    before = chips_of(world)
    victim = min(before)
    world.fault("infer-1", int(before[victim].rpartition("-")[2]), level="RestartBusiness")
    world.until_quiet()
    after = chips_of(world)
    assert len(after) == 2 and len(set(before) & set(after)) == 1 and victim not in after
    assert [group for _, group in world.nodes["infer-1"].reset_log] == [(int(before[victim].rpartition("-")[2]),)]


def test_the_resumable_job_of_the_page_has_its_variables_and_its_labels() -> None:
    world = cluster(files_of("resumable-training"))
    world.until_quiet()
    assert sorted(bound(world).values()) == ["node-1", "node-2"]
    pod = next(body for key, body in world.objects.items() if key.kind == "Pod")
    env = {one["name"]: one.get("value") for one in pod["spec"]["containers"][0]["env"]}
    assert env["PROCESS_RECOVER"] == "on" and env["ENABLE_RESTART_FAULT_PROCESS"] == "on"
    assert set(env["HIGH_AVAILABILITY"].split(",")) >= {"dump", "recover", "retry"}


def uids(world: World) -> set[str]:
    """The pods that there are."""
    return {body["metadata"]["uid"] for key, body in world.objects.items() if key.kind == "Pod"}


#: Mode → the level of the fault, what HIGH_AVAILABILITY offers training (None: no process is repaired), how many of the
#: two pods stay. The conversations in which processes stay alive are golden/test_conversations.py.
OUTCOMES = {
    "job": ("SeparateNPU", None, 0),
    "pod": ("SeparateNPU", None, 1),
    "process: dump": ("SeparateNPU", {"dump"}, 1),
    "process: recover": ("SeparateNPU", {"dump", "recover"}, 1),
    "process: recover in place": ("SeparateNPU", {"dump", "recover"}, 1),
    "process: retry": ("SeparateNPU", {"dump", "recover", "retry"}, 1),
    "process: elastic": ("SeparateNPU", {"dump", "recover", "elastic-training"}, 1),
    "process: exit": ("SeparateNPU", {"recover"}, 1),
    "hot switch": ("SubHealthFault", {"dump", "recover"}, 2),
}


def test_every_mode_of_the_table_has_its_sample() -> None:
    page = (DOCS / "tasks/resumable-training.md").read_text()
    table = page.partition("| mode |")[2].partition("\n\n")[0].splitlines()[2:]
    assert [line.split("|")[1].strip() for line in table] == list(modes()) == [*OUTCOMES, "graceful tolerance"]


@pytest.mark.parametrize("mode", OUTCOMES)
def test_each_mode_of_the_page_does_what_its_row_says(mode: str) -> None:
    level, offers, left = OUTCOMES[mode]
    files = job_of(mode)
    assert [str(one) for one in load(files, revision="r").diagnostics] == []
    world = cluster(files, 3)
    world.until_quiet()
    pod = next(body for key, body in world.objects.items() if key.kind == "Pod")
    env = {one["name"]: one.get("value") for one in pod["spec"]["containers"][0]["env"]}
    offered = set(env["HIGH_AVAILABILITY"].split(",")) if "HIGH_AVAILABILITY" in env else None
    assert offered == offers and ("ENABLE_RESTART_FAULT_PROCESS" in env) is (mode == "process: recover in place")

    hit, before = bound(world)["resumable-worker-0"], uids(world)
    world.fault(hit, 3, level=level)
    world.until_quiet()
    assert len(bound(world)) == 2 and (hit in bound(world).values()) is (left == 2)
    assert len(before & uids(world)) == left


def test_below_a_job_with_the_policy_of_the_page_a_chip_heals() -> None:
    policy = modes()["graceful tolerance"].encode()
    world = cluster({**job_of("pod"), "desired/heal.yaml": policy}, 3)
    world.until_quiet()
    hit, before = bound(world)["resumable-worker-0"], uids(world)
    world.fault(hit, 3, level="RestartNPU")
    world.until_quiet()
    assert world.nodes[hit].reset_log and uids(world) == before


# ---- the tables

A3_CHIPS = "Ascend910A3-20"
SERVERS = feature_pages.servers(SHIPPED)


def rows() -> dict[str, list[str]]:
    """Cells of the table of products as the page has them, by product."""
    page = (DOCS / "reference/features.md").read_text()
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if "(`" in line]
    return {row[0].partition("(`")[2].rpartition("`)")[0].split("`")[-1]: row for row in found if len(row) == 7}


def layout(product: Product, mode: str) -> bytes:
    """A pool of the product, and a layout of this mode on it."""
    names = set(product.spec.chip_names)
    family = next(
        (one for one in SHIPPED.families.values() if any(names & set(row.chip_names) for row in one.spec.chips)),
        SHIPPED.families[product.spec.vnpu.family or A3_CHIPS],
    )
    chips = f"  chips: [{{chips: '0', templates: [{family.spec.templates[0].name}]}}]\n" if mode == "static" else ""
    return (
        "apiVersion: belay.dev/v1alpha1\nkind: NodePool\nmetadata: {name: p}\n"
        f"spec: {{selector: {{matchLabels: {{a: b}}}}, product: {product.name}}}\n---\n"
        "apiVersion: belay.dev/v1alpha1\nkind: VNPULayout\nmetadata: {name: l}\n"
        f"spec:\n  pool: p\n  mode: {mode}\n{chips}"
    ).encode()


def test_every_server_has_a_row() -> None:
    assert list(rows()) == [product.name for product in SERVERS]


@pytest.mark.parametrize("product", SERVERS, ids=lambda product: product.name)
@pytest.mark.parametrize(("mode", "column"), [("static", 3), ("dynamic", 4), ("soft", 5)])
def test_a_cell_about_vnpus_is_what_the_loader_accepts(product: Product, mode: str, column: int) -> None:
    errors = [one for one in load({"desired/l.yaml": layout(product, mode)}).diagnostics if one.severity == "error"]
    assert rows()[product.name][column] == (NO if errors else YES), errors


@pytest.mark.parametrize("product", SERVERS, ids=lambda product: product.name)
def test_resource_chips_and_resets_of_a_row_are_the_policys(product: Product) -> None:
    row = rows()[product.name]
    assert row[1] == f"`{product.spec.resource}`" and int(row[2]) == product.spec.chips_per_node
    reset = product.spec.reset
    alone = not reset.groups and not reset.group_size and str(reset.scope) == "chip"
    assert (row[6] == "the chip") is alone


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.page)
def test_a_feature_names_parts_that_exist_and_a_page_with_its_words(feature: feature_pages.Feature) -> None:
    roles = {info.alias or name for name, info in type(SHIPPED.settings.roles).model_fields.items()}
    assert set(feature.roles) <= roles
    flags = {word for action in agent_parser()._actions for word in action.option_strings}
    assert set(re.findall(r"`(--[a-z-]+)`", feature.agent)) <= flags
    page = (DOCS / feature.page).read_text()
    assert [word for word in feature.words if word not in page] == []


def test_every_task_page_is_a_feature_and_is_listed() -> None:
    assert {f"tasks/{name}.md" for name in TASKS} == {one.page for one in FEATURES if one.page.startswith("tasks/")}
    index = (DOCS / "tasks/README.md").read_text()
    assert [name for name in TASKS if f"({name}.md)" not in index] == []
