"""The shipped data: complete, exact, current and consistent; the sample cluster."""

from __future__ import annotations

import hashlib
from pathlib import Path

import orjson
import pytest

from belay.engine.documents import ENDED_JOBS, FREED_CHIPS, Desired
from belay.engine.documents.descriptions import DESCRIPTIONS
from belay.engine.load import load, load_directory, schema_text, schemas, shipped_policies
from belay.engine.load.custom_resources import definition_text, definitions
from belay.engine.load.workload_rights import SHIPPED_ROLE, role_text
from belay.engine.observe.workload_watches import ListedKind, shipped_kinds
from tests.workload_pages import shipped_rows

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def shipped() -> Desired:
    loaded = load({})
    assert loaded.diagnostics == ()
    return loaded.desired


def test_schemas_are_current() -> None:
    """On failure write each `schema_text(schemas()[name])` to policies/schemas/NAME and commit it."""
    folder = ROOT / "policies" / "schemas"
    assert {file.name for file in folder.iterdir()} == set(schemas())
    for name, schema in schemas().items():
        assert (folder / name).read_bytes() == schema_text(schema), name


def test_definitions_are_current() -> None:
    """On failure: `belay schema --crds deploy/crds`."""
    folder = ROOT / "deploy" / "crds"
    assert {file.name for file in folder.glob("belay.dev_*")} == set(definitions())
    for name, definition in definitions().items():
        assert (folder / name).read_text() == definition_text(definition), name


def test_the_right_to_read_workloads_is_current() -> None:
    """On failure write `role_text(shipped_rows(), SHIPPED_ROLE)` to deploy/base/workloads.yaml and commit it."""
    assert (ROOT / "deploy" / "base" / "workloads.yaml").read_text() == role_text(shipped_rows(), SHIPPED_ROLE)


def test_kinds_are_watched_as_their_rows_say() -> None:
    rows = [ListedKind(row.group, row.versions, row.kind, row.plural) for row in shipped_rows()]
    assert list(shipped_kinds()) == rows


def test_every_field_says_what_it_means() -> None:
    fields = {
        (str(model["title"]), name): str(field.get("description"))
        for schema in schemas().values()
        for model in (schema, *schema.get("$defs", {}).values())
        for name, field in model.get("properties", {}).items()
    }
    written = {(model, name) for model, fields in DESCRIPTIONS.items() for name in fields}
    assert set(fields) == written, "engine/documents/descriptions.py: a field without meaning, or one that is gone"
    assert all(text.endswith(".") for text in fields.values())


def test_every_policy_and_sample_names_its_schema() -> None:
    for path, data in load_directory(ROOT).items():
        if b"\napiVersion: belay.dev/" in data:
            header = data.split(b"\n", 1)[0].decode()
            assert header.startswith("# yaml-language-server: $schema="), path
            target = (ROOT / path).parent / header.partition("=")[2]
            kind = (
                next(line for line in data.split(b"\n") if line.startswith(b"kind: ")).removeprefix(b"kind: ").decode()
            )
            assert target.resolve() == ROOT / "policies" / "schemas" / f"{kind.lower()}.json", path


def test_fault_tables_are_complete(shipped: Desired) -> None:
    counts = {
        plane: {level: sum(found == level for found in table.code_levels.values()) for level in table.spec.severity}
        for plane, table in shipped.tables.items()
    }
    assert counts["chip"] == {
        "NotHandleFault": 132, "SubHealthFault": 13, "RestartRequest": 33, "RestartBusiness": 24, "FreeRestartNPU": 23,
        "RestartNPU": 162, "PreSeparateNPU": 200, "SeparateNPU": 215, "ManuallySeparateNPU": 0,
    }  # fmt: skip
    assert counts["switch"] == {
        "NotHandleFault": 12, "SubHealthFault": 8, "RestartRequestFault": 1, "PreSeparateFault": 0, "SeparateFault": 9,
    }  # fmt: skip
    assert counts["node"] == {"NotHandleFault": 7, "PreSeparateFault": 51, "SeparateFault": 1}
    # one of them Belay's own
    assert counts["public"] == {"NotHandleFault": 6, "SubHealthFault": 10, "PreSeparateNPU": 2, "SeparateNPU": 13}


def test_fault_tables_are_exact(shipped: Desired) -> None:
    """A digest over every code and level: a slip of one digit in 921 codes shows here."""
    rows = sorted(
        f"{plane} {code} {level}"
        for plane, table in shipped.tables.items()
        for code, level in table.code_levels.items()
    )
    own = [row for row in rows if row.startswith("container ")]
    assert len(own) == 350
    assert hashlib.sha256("\n".join(own).encode()).hexdigest() == (
        "bdcc5aaceff5f0baa0bb0d0c70859ff1d8f950d54516939f00050aacfdecacc0"
    )
    # a code of Belay's own is none of the reference's
    rows = [row for row in rows if row not in {*own, "public 000001B01 NotHandleFault"}]
    assert len(rows) == 921
    assert hashlib.sha256("\n".join(rows).encode()).hexdigest() == (
        "4add0e9f284efa93362f63c917a24c7413915fd048377ff1f6733656fedc9734"
    )


def test_codes_are_found_in_any_case(shipped: Desired) -> None:
    chip, switch = shipped.tables["chip"], shipped.tables["switch"]
    assert chip.level_of("80e01801") == chip.level_of("80E01801") == "RestartBusiness"
    assert chip.level_of("A2301001") == "SeparateNPU"
    assert chip.level_of("81078603") == "NotHandleFault"
    assert chip.details["81078603"].plane == "network"
    assert switch.level_of("[0x00f1fef5,155914,NPU,na]") == "RestartRequestFault"
    assert chip.level_of("FFFFFFFF") is None


def test_unlisted_codes_follow_the_reference(shipped: Desired) -> None:
    said = shipped.tables["chip"].spec.unlisted
    assert (said.by_severity, said.otherwise, said.network) == (
        {"0": "NotHandleFault", "1": "NotHandleFault"}, "SeparateNPU", "PreSeparateNPU",
    )  # fmt: skip
    assert shipped.tables["node"].spec.unlisted.rule == shipped.tables["switch"].spec.unlisted.rule == "drop"
    assert shipped.tables["public"].spec.unlisted.rule == "reject"
    assert len(shipped.tables["public"].spec.senders) == 7


def test_frequency_and_duration_rules(shipped: Desired) -> None:
    chip = shipped.tables["chip"]
    rules = chip.frequency_rules
    assert len(rules) == 43
    assert (
        sum(rule.times == 2 and rule.window == 86_400 and rule.release_after is None for rule in rules.values()) == 41
    )
    assert {rule.level for rule in rules.values()} == {"ManuallySeparateNPU"}
    assert (rules["80E18005"].times, rules["80E18005"].release_after) == (3, None)
    assert (rules["81078603"].times, rules["81078603"].release_after) == (5, 172_800)
    (rule,) = chip.spec.duration
    assert (rule.codes, rule.timeout, rule.recover, rule.level) == (("81078603",), 20, 60, "PreSeparateNPU")


EVEN = tuple(range(2, 17, 2))
ALL8, ALL16, ALL64 = tuple(range(1, 9)), tuple(range(1, 17)), tuple(range(1, 65))
BOX = (*ALL8, 10, 12, 14, 16)
#: product: resource, chips, handler, max, network-aware, single, distributed, policies, accelerator types
MATRIX = {
    "atlas-800-9000": ("Ascend910", 8, "ring8", 8, True, (1, 2, 4, 8), (1, 2, 4, 8), (), ("module",)),
    "atlas-800-9000-half": ("Ascend910", 4, "half", 4, True, (1, 2, 4), (1, 2, 4), ("chip4-node4",), ("half",)),
    "atlas-300t": ("Ascend910", 2, "card", 8, False, (1, 2), (2,), ("chip1-node2",), ("card",)),
    "atlas-800t-a2": ("Ascend910", 8, "base", 8, True, ALL8, ALL8, ("chip8-node8",), ("module-910b-8",)),
    "atlas-800i-a2-card": ("Ascend910", 8, "card", 8, False, ALL8, ALL8, (), ("card-910b-infer", "card-910b-2")),
    "atlas-200t-a2-box16": ("Ascend910", 16, "box16", 16, True, BOX, BOX, ("chip8-node16",), ("module-910b-16",)),
    "atlas-800t-a3": (
        "Ascend910", 16, "a3", 16, True, (1, *EVEN), EVEN,
        ("chip2-node16", "module-a3-16"), ("module-a3-16",),
    ),
    "atlas-9000-a3": ("Ascend910", 8, "a3", 16, True, (1, *EVEN), EVEN, ("chip2-node8",), ()),
    "atlas-900-a3-superpod": (
        "Ascend910", 16, "superpod", 16, True, (1, *EVEN), (16,),
        ("chip2-node16-sp",), ("module-a3-16-super-pod",),
    ),
    "atlas-9000-a3-superpod": (
        "Ascend910", 8, "superpod", 8, True, (1, 2, 4, 6, 8), (8,),
        ("chip2-node8-sp",), ("module-a3-8-super-pod",),
    ),
    "atlas-300i": ("Ascend310", 64, "chip310", 64, False, ALL64, ALL64, (), ()),
    "atlas-300i-pro": ("Ascend310P", 64, "base", 64, False, ALL64, ALL64, (), ()),
    "atlas-200i-soc-a1": ("Ascend310P", 64, "base", 64, False, ALL64, ALL64, (), ()),
    "atlas-300i-duo": ("Ascend310P", 32, "duo-chip", 16, False, ALL16, ALL16, (), ()),
    "atlas-350-8": ("npu", 8, "base", 8, False, ALL8, ALL8, ("chip1-node8",), ("350-Atlas-8",)),
    "atlas-350-16": ("npu", 16, "base", 16, False, ALL16, ALL16, ("chip1-node16",), ("350-Atlas-16",)),
    "atlas-350-4p-8": ("npu", 8, "mesh4", 8, True, ALL8, ALL8, ("chip4-node8",), ("350-Atlas-4p-8",)),
    "atlas-350-4p-16": ("npu", 16, "mesh4", 16, True, ALL16, ALL16, ("chip4-node16",), ("350-Atlas-4p-16",)),
    "atlas-850": ("npu", 8, "base", 8, True, ALL8, ALL8, ("chip8-node8",), ("850-Atlas-8p-8",)),
    "atlas-850-superpod": (
        "npu", 8, "superpod850", 8, True, ALL8, (8,),
        ("chip8-node8-sp",), ("850-SuperPod-Atlas-8",),
    ),
    "atlas-950-superpod": (
        "npu", 8, "rack950", 8, False, ALL8, (8,),
        ("chip8-node8-ra64-sp",), ("950-SuperPod-Atlas-8",),
    ),
    "soft-sharing": (
        "*", 16, "softshare", 100, False, tuple(range(1, 101)), tuple(range(1, 101)),
        ("chip1-softShareDev",), (),
    ),
    "multilevel": ("*", 64, "multilevel", 64, True, (), (), ("multilevel",), ()),
    "dynamic-vnpu": ("npu-core", 64, "vnpu", 64, False, (), (), (), ()),
}  # fmt: skip


def test_the_product_matrix_is_complete_and_exact(shipped: Desired) -> None:
    found = {}
    for name, declared in shipped.products.items():
        spec = declared.document.spec
        place = spec.placement
        found[name] = (
            spec.resource.removeprefix("huawei.com/"), spec.chips_per_node, place.handler, place.max,
            place.network_aware, place.single, place.distributed, spec.schedule_policies, spec.accelerator_types,
        )  # fmt: skip
        if spec.resource.startswith("huawei.com/") and spec.node_labels:
            assert spec.device_prefix == spec.resource.removeprefix("huawei.com/") + "-"
    assert found == MATRIX


def test_reset_groups(shipped: Desired) -> None:
    groups = {name: declared.document.reset_groups for name, declared in shipped.products.items()}
    assert groups["atlas-800-9000"] == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert groups["atlas-800t-a2"] == (tuple(range(8)),)
    assert groups["atlas-200t-a2-box16"] == (tuple(range(16)),)
    assert groups["atlas-800t-a3"][0] == (0, 1, 2, 3)
    assert groups["atlas-9000-a3"][0] == (0, 1)
    assert groups["atlas-300i-duo"][1] == (2, 3)
    for name in (
        "atlas-800i-a2-card",
        "atlas-300i",
        "atlas-300i-pro",
        "atlas-350-4p-8",
        "atlas-850",
        "atlas-950-superpod",
    ):
        assert set(map(len, groups[name])) == {1}, name


@pytest.mark.parametrize(
    ("labels", "product"),
    [
        ({"accelerator": "huawei-Ascend910", "accelerator-type": "module"}, "atlas-800-9000"),
        ({"accelerator": "huawei-Ascend910", "node.kubernetes.io/npu.chip.name": "910B3"}, "atlas-800t-a2"),
        ({"accelerator-type": "module-910b-16", "node.kubernetes.io/npu.chip.name": "910B2C"}, "atlas-200t-a2-box16"),
        ({"accelerator-type": "module-a3-16-super-pod"}, "atlas-900-a3-superpod"),
        ({"accelerator": "huawei-Ascend310P", "node.kubernetes.io/npu.chip.name": "310P3"}, "atlas-300i-pro"),
        ({"accelerator": "huawei-Ascend310P", "infer-card-type": "card-300i-duo"}, "atlas-300i-duo"),
        ({"accelerator": "huawei-Ascend310P", "servertype": "soc"}, "atlas-200i-soc-a1"),
        ({"accelerator": "huawei-Ascend310"}, "atlas-300i"),
        ({"accelerator": "huawei-npu", "accelerator-type": "350-Atlas-4p-16"}, "atlas-350-4p-16"),
        ({"accelerator": "nvidia"}, None),
    ],
)
def test_nodes_are_recognised_by_their_labels(shipped: Desired, labels: dict[str, str], product: str | None) -> None:
    found = shipped.product_of(labels)
    assert (found.name if found else None) == product


def test_policies_select_products(shipped: Desired) -> None:
    def of(policy: str, resource: str) -> str | None:
        found = shipped.product_for_policy(policy, f"huawei.com/{resource}")
        return found.name if found else None

    assert of("chip8-node8", "Ascend910") == "atlas-800t-a2"
    assert of("chip8-node8", "npu") == "atlas-850"
    assert of("chip4-node8", "Ascend910") == "atlas-350-4p-8"
    assert of("chip1-softShareDev", "npu") == "soft-sharing"
    assert of("chip9", "npu") is None
    assert shipped.known_policies == {policy for row in MATRIX.values() for policy in row[7]}
    found = shipped.product_for_accelerator_type("half")
    assert found is not None and found.name == "atlas-800-9000-half"


def test_vnpu_templates(shipped: Desired) -> None:
    sizes = {
        family: {
            row.name: (row.suffix, row.aicore, row.aicpu, row.memory_mi_b, row.dvpp_flag)
            for row in found.spec.templates
        }
        for family, found in shipped.families.items()
    }
    assert {family: len(rows) for family, rows in sizes.items()} == {
        "Ascend910": 4, "Ascend310P": 7, "Ascend910B1": 3, "Ascend910B2": 3, "Ascend910B3": 2, "Ascend910B4": 4,
        "Ascend910B4-1": 2, "Ascend910A3-20": 2, "Ascend910A3-24": 2,
    }  # fmt: skip
    assert sizes["Ascend310P"]["vir04_4c_dvpp"] == ("4c.4cpu.dvpp", 4, 4, 12_288, "yes")
    assert sizes["Ascend910B4"]["vir10_3c_16g_nm"] == ("10c.3cpu.16g.ndvpp", 10, 3, 16_384, "no")
    assert sizes["Ascend910"]["vir16"] == ("16c", 16, 7, 17_476, None)
    assert shipped.families["Ascend910"].by_name["vir16"].memory_by_aicore == {"32": 16_384}
    card = shipped.families["Ascend310P"].totals(server_type="Ascend310P-10")
    assert (card.aicore, card.aicpu, card.memory_mi_b, card.max_vnpus) == (10, 7, 24_576, 7)
    assert {family for family, found in shipped.families.items() if not found.spec.dynamic} == {"Ascend910"}


@pytest.mark.parametrize(
    ("labels", "family"),
    [
        ({"node.kubernetes.io/npu.chip.name": "910B3"}, "Ascend910B3"),
        ({"node.kubernetes.io/npu.chip.name": "910B2C"}, "Ascend910B2"),
        ({"servertype": "Ascend910A3-24", "node.kubernetes.io/npu.chip.name": "910_9391"}, "Ascend910A3-24"),
        ({"servertype": "Ascend310P-8"}, "Ascend310P"),
        ({}, None),
    ],
)
def test_templates_follow_from_node_labels(shipped: Desired, labels: dict[str, str], family: str | None) -> None:
    found = shipped.templates_for(None, labels)
    assert (found.spec.family if found else None) == family


def test_the_shipped_budget(shipped: Desired) -> None:
    (budget,) = (declared.document for declared in shipped.budgets)
    rows = {
        (*limit.actions, limit.unit): (limit.per, limit.allowed(10), limit.allowed(1000), limit.window)
        for limit in budget.spec.limits
    }
    assert rows == {
        ("EvictPod", None): ("cluster", 10, 200, 600),
        ("ResetChips", None): ("pool", 4, 100, 3600),
        ("IsolateNode", None): ("superPod", 2, 250, 3600),
        ("DeleteObject", None): ("cluster", 10, 200, 3600),
        ("DeleteObject", "chips"): ("pool", 8, 100, 3600),
        ("DeleteObject", "jobs"): ("cluster", 1, 1, 600),
    }
    assert budget.spec.limits[-2:] == (FREED_CHIPS, ENDED_JOBS)


def test_the_shipped_policy_covers_every_level(shipped: Desired) -> None:
    (policy,) = (declared.document for declared in shipped.fault_policies)
    levels = {level for table in shipped.tables.values() for level in table.spec.severity}
    assert set(policy.spec.actions) == levels
    assert policy.spec.actions["PreSeparateNPU"].training == "keep"
    assert policy.spec.attempts.reset is not None and policy.spec.attempts.reset.max == 3


def test_settings_default_to_the_references_shipped_yaml(shipped: Desired) -> None:
    params = shipped.settings.init_params
    assert (params.grace_over_time, params.shared_tor_num, params.nslb_version) == (900, 2, "1.0")
    assert (params.preset_virtual_device, params.use_cluster_info_manager, params.force_enqueue) == (True, True, True)
    assert (params.self_maintain_available_card, params.prefer_previous_node) == (True, True)
    assert (params.super_pod_size, params.super_pod_nodes, params.reserved_nodes) == (48, 48, 2)
    beside = params.from_arguments({"nslb-version": "2.0"}, base=params)
    assert (beside.super_pod_size, beside.prefer_previous_node) == (None, False), "as the reference's code"
    assert beside.preset_virtual_device is False, "as the reference's code"


def test_the_sample_cluster_is_valid() -> None:
    loaded = load({path: data for path, data in load_directory(ROOT).items() if path.startswith("desired/")})
    assert loaded.diagnostics == ()
    desired = loaded.desired
    assert {(manifest.key.kind, manifest.key.name) for manifest in desired.manifests} == {
        ("AscendJob", "pretrain"), ("ConfigMap", "rings-config-pretrain"), ("Deployment", "chat"),
    }  # fmt: skip
    train = {"accelerator": "huawei-Ascend910", "accelerator-type": "module-910b-8", "host-arch": "huawei-arm",
             "servertype": "Ascend910B-20", "node.kubernetes.io/npu.chip.name": "910B3"}  # fmt: skip
    infer = {"accelerator": "huawei-Ascend310P", "node.kubernetes.io/npu.chip.name": "310P3",
             "servertype": "Ascend310P-8", "host-arch": "huawei-arm"}  # fmt: skip
    for labels, pool, product in ((train, "training", "atlas-800t-a2"), (infer, "inference", "atlas-300i-pro")):
        assert [found.document.name for found in desired.pools_of(labels)] == [pool]
        found = desired.product_of(labels)
        assert found is not None and found.name == product
    job = next(manifest for manifest in desired.manifests if manifest.key.kind == "AscendJob").body
    for role in ("Master", "Worker"):
        pod = job["spec"]["replicaSpecs"][role]["template"]["spec"]
        assert pod["containers"][0]["resources"]["limits"] == {"huawei.com/Ascend910": 8}
        assert pod["nodeSelector"].items() <= train.items()
    assert job["metadata"]["labels"]["fault-scheduling"] == "force"


def test_the_checkout_is_a_valid_state_repository() -> None:
    assert load(load_directory(ROOT)).diagnostics == ()
    assert shipped_policies().keys() == {path for path in load_directory(ROOT) if path.startswith("policies/")}


def test_schemas_know_the_fields_of_the_wire() -> None:
    spec = orjson.loads((ROOT / "policies" / "schemas" / "nodepool.json").read_bytes())["$defs"]["NodePoolSpec"]
    assert set(spec["properties"]) == {"selector", "product", "shard", "suspend"}
    assert spec["additionalProperties"] is False
