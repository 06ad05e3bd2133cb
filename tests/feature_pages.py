"""`docs/reference/features.md`: which product has which feature, which part of Belay does it: ``make reference``.

Cells about products are the policies' own words; `tests/test_features.py` holds each of them against the loader and the
planner. Parts are named by the roles and flags of the code, and pages by their path.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from belay.agents.drivers.dcmi.family import family
from belay.agents.exporter import groups
from belay.agents.exporter.chips import Machine
from belay.agents.runtime.install import GENERAL, TYPES
from belay.engine.documents import Desired, Product, VNPUTemplates
from belay.engine.load import load

YES, NO = "yes", "–"
_HEAD = """# Products, features and parts

{made}
## Which product can do what

Whole chips, monitoring, faults, isolation, resets and rescheduling work on every product of this table. How a product
is recognised and where each value stands: `policies/products/`. *Reset together* is what one reset takes: its chips
must all be idle.

| product | resource | chips | {modes} | reset together |
|---|---|---|---|---|---|---|
{products}

MindCluster's overview allows static vNPUs on fewer products (not on A2 and A3 training servers), and dynamic ones on
the Atlas 300I Pro, 300V and 300V Pro only. Its newer device plugin and scheduler cut A2 and A3 chips too, and Belay
follows those. Features for training only and for inference only do not mix in one job.

## Which product has which metrics

Chips decide which groups of [metrics](../metrics.md) the exporter has; *some* depends on the server's board. Every
product has {always}. MindCluster's documentation leaves the Atlas 800I A3
out of its lists; its exporter goes by the chips, as Belay's does, so that server has what other A3 servers have.

| product | {groups} |
|---|{lines}
{metrics}

## Which product needs which container runtime

`belay runtime install --install-type TYPE` chooses the list of files of the host that containers get beside their
chips (`policies/runtime/`). Without it, the runtime is installed for every other product.

| type | products | list |
|---|---|---|
{types}

The types A500A2 and A200IA2 add the libraries of their system: Ubuntu or openEuler, by `/etc/os-release`.

## Resource names of vNPUs

A pod asks for one vNPU of a size by `<resource>: 1`. With dynamic vNPUs it asks for AI cores, `huawei.com/npu-core:
<cores>`, instead.

| chips | template → resource |
|---|---|
{sizes}

## Which part does what

Belay's engine and agent do what MindCluster's components do. A role is a switch in `SchedulingSettings.spec.roles`; a
flag is one of [`belay agent`](agent.md). What a feature needs and where it is explained:

| feature | engine's role | agent | in the container | instead of |
|---|---|---|---|---|
{features}
"""
MODES = {mode: f"[{mode} vNPU](../tasks/{mode}-vnpu.md)" for mode in ("static", "dynamic", "soft")}


class Feature(NamedTuple):
    """One feature: its page, and what of Belay does it. ``words`` stand on that page."""

    name: str
    page: str
    roles: tuple[str, ...]
    agent: str
    container: str
    instead: tuple[str, ...]
    words: tuple[str, ...]


_RUNTIME, _PLUGIN, _REPORTS = "the container runtime", "`--device-plugin`", "reports, `--hardware`"
FEATURES = (
    Feature(
        "whole chips", "tasks/whole-chips.md", ("schedule", "expandAscendJob", "expandVolcanoJob"),
        f"{_PLUGIN}, {_RUNTIME}", "", ("Volcano", "Ascend Operator", "Ascend Device Plugin", "Ascend Docker Runtime"),
        ("huawei.com/Ascend910", "minAvailable", "npu-310-strategy", "duo", "ring-controller.atlas"),
    ),
    Feature(
        "static vNPU", "tasks/static-vnpu.md", ("schedule",), f"{_PLUGIN}, {_RUNTIME}", "",
        ("Volcano (optional)", "Ascend Device Plugin", "npu-smi"), ("huawei.com/Ascend310P-4c.3cpu", "VNPULayout"),
    ),
    Feature(
        "dynamic vNPU", "tasks/dynamic-vnpu.md", ("schedule",), f"{_PLUGIN}, {_RUNTIME}", "",
        ("Volcano", "Ascend Device Plugin"),
        ("huawei.com/npu-core", "presetVirtualDevice", "vnpu-level", "vnpu-dvpp", "ring-controller.atlas"),
    ),
    Feature(
        "soft vNPU", "tasks/soft-vnpu.md", ("schedule",), _PLUGIN, "", ("Volcano", "Ascend Device Plugin"),
        ("huawei.com/scheduler.softShareDev.aicoreQuota", "huawei.com/scheduler.softShareDev.hbmQuota",
         "huawei.com/scheduler.softShareDev.policy", "chip1-softShareDev"),
    ),
    Feature(
        "resumable training: jobs, pods and processes", "tasks/resumable-training.md",
        ("schedule", "aggregate", "deviceReport", "expandAscendJob"), _REPORTS, "`taskd`, `mindio_ttp`, `mindio_acp`",
        ("Volcano", "ClusterD", "NodeD", "Ascend Device Plugin", "Ascend Operator", "TaskD", "MindIO"),
        ("fault-scheduling", "fault-retry-times", "pod-rescheduling", "process-recover-enable", "recover-strategy",
         "wait-reschedule-timeout", "subHealthyStrategy", "dump", "retry", "recover-in-place", "elastic-training"),
    ),
    Feature(
        "elastic training (pods)", "tasks/elastic-training.md", ("schedule", "expandVolcanoJob"), _REPORTS, "",
        ("Resilience Controller", "Volcano"), ("elastic-scheduling", "minReplicas", "fault-scheduling", "maxRetry"),
    ),
    Feature(
        "inference recovery and rescheduling", "tasks/inference-recovery.md", ("schedule", "deviceReport"),
        _REPORTS, "",
        ("Volcano", "Ascend Device Plugin"), ("fault-scheduling", "npu-310-strategy", "fault-retry-times"),
    ),
    Feature(
        "monitoring", "metrics.md", (), "`--exporter`", "", ("NPU Exporter",), ("npu_chip_info",),
    ),
    Feature(
        "containers without Kubernetes", "tasks/containers.md", (), "`belay containers`", "",
        ("Container Manager",), ("belay containers install",),
    ),
    Feature(
        "KV links", "kv-links.md", ("schedule",), "links of the node", "`llm_datadist`", (), ("keep_links",),
    ),
)  # fmt: skip


def servers(desired: Desired) -> list[Product]:
    """The products that are servers, by name: each is recognised by labels of its nodes."""
    found = [declared.document for declared in desired.products.values()]
    return sorted((one for one in found if one.spec.node_labels), key=lambda one: one.name)


def dynamic(desired: Desired, product: Product) -> bool:
    """Whether vNPUs of the product may be cut on demand: its own word, and that of its chips' templates."""
    excluded = {name for family in desired.families.values() for name in family.spec.rules.excluded_products}
    return product.spec.vnpu.dynamic and product.name not in excluded


def together(product: Product) -> str:
    """What one reset takes."""
    reset = product.spec.reset
    if reset.groups:
        return "chips " + " and ".join(f"{group[0]}-{group[-1]}" for group in reset.groups)
    if reset.group_size:
        return f"{reset.group_size} chips"
    return {"card": "the card", "a3-module": "the two modules of a pair (4 dies)", "chip": "the chip"}[str(reset.scope)]


def page(made: str) -> str:
    """The page."""
    desired = load({}, has_git=False).desired
    return _HEAD.format(
        made=made,
        modes=" | ".join(MODES.values()),
        products="\n".join(_product(desired, one) for one in servers(desired)),
        always=", ".join(f"`{name}`" for name in ALWAYS),
        groups=" | ".join(f"`{name}`" for name in by_chip()),
        lines="---|" * len(by_chip()),
        metrics="\n".join(_metrics(one) for one in servers(desired)),
        types="\n".join(install_types()),
        sizes="\n".join(f"| {_chips(one)} | {_sizes(one)} |" for _, one in sorted(desired.families.items())),
        features="\n".join(_row(one) for one in FEATURES),
    )


def _product(desired: Desired, one: Product) -> str:
    vnpu = (one.spec.vnpu.static, dynamic(desired, one), one.spec.vnpu.soft)
    cells = [f"{one.spec.title} (`{one.name}`)", f"`{one.spec.resource}`", str(one.spec.chips_per_node)]
    return _table_row(*cells, *(YES if can else NO for can in vnpu), together(one))


ALWAYS: Final = ("version", "utilization", "npu", "nodeBase", "text")
#: Boards and main boards of a family, one of each kind that the exporter distinguishes.
_A2_SERVER, _A2_CARD = (0x30, 0), (0x28, 0)
_BOARDS: Final[Mapping[str, tuple[tuple[int, int], ...]]] = {
    "atlas-800i-a2-card": (_A2_SERVER, _A2_CARD),
    "atlas-350-8": ((0, 0x68),),
    "atlas-350-16": ((0, 0x68),),
    "atlas-350-4p-8": ((0, 0x6C),),
    "atlas-350-4p-16": ((0, 0x6C),),
    "atlas-850": ((0, 0x07), (0, 0x23), (0, 0x44)),
    "atlas-850-superpod": ((0, 0x07), (0, 0x23), (0, 0x44)),
    "atlas-950-superpod": ((0, 0x07), (0, 0x23), (0, 0x44)),
}


def by_chip() -> list[str]:
    """The groups that not every product has."""
    return [group.name for group in groups.DEFAULTS if group.name not in ALWAYS]


def machines(product: Product) -> list[Machine]:
    """A server of a product with each kind of board that it may have."""
    chip = product.spec.chip_names[0]
    # chips of A3 servers are known by their board alone
    found = _BOARDS.get(product.name, ((0xB0 if chip.startswith("910_93") else 0x30, 0),))
    return [
        Machine(family=family(chip, board), board=board, mainboard=mainboard, driver="", chips=())
        for board, mainboard in found
    ]


def _metrics(product: Product) -> str:
    cells = [product.spec.title]
    for name in by_chip():
        answers = {groups.supported(name, one) for one in machines(product)}
        cells.append("some" if len(answers) > 1 else YES if answers == {True} else NO)
    return _table_row(*cells)


def install_types() -> list[str]:
    """The types of installations of the container runtime, and the one for all other products."""
    rows = [_table_row(f"`{kind}`", products, f"`base.list_{kind}`") for kind, products in TYPES.items()]
    return [*rows, _table_row(f"none, or `{GENERAL}`", "every other", "`base.list`")]


def _chips(templates: VNPUTemplates) -> str:
    names = {name for row in templates.spec.chips for name in row.chip_names}
    more = f" ({', '.join(sorted(names))})" if names - {templates.spec.family} else ""
    return f"{templates.spec.family}{more}"


def _sizes(templates: VNPUTemplates) -> str:
    prefix = templates.spec.resource_prefix
    return ", ".join(f"{one.name} → `{prefix}{one.suffix}`" for one in templates.spec.templates)


def _row(one: Feature) -> str:
    roles = _listed(f"`{role}`" for role in one.roles)
    link = f"[{one.name}](../{one.page})"
    return _table_row(link, roles, one.agent or NO, one.container or NO, _listed(one.instead))


def _table_row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _listed(words: Iterable[str]) -> str:
    return ", ".join(words) or NO
