"""The recipes of CONTRIBUTING.md: what a forgotten step makes fail, and that every path in the documents exists."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest

from belay.engine.documents import Desired
from belay.engine.documents.kinds import BudgetAction
from belay.engine.documents.products import Handler, Product
from belay.engine.documents.windows import WindowAction
from belay.engine.load import load
from belay.engine.model import actions as act
from belay.engine.model.actions import AnyAction
from belay.engine.model.generations import Generation
from belay.engine.plan.place.families import registry
from belay.engine.plan.place.handler import Refusal
from belay.engine.plan.safety.deferral import DISRUPTIVE
from belay.engine.plan.shadow import COMPARED_ACTIONS
from belay.engine.serve.grpc.config import ConfigService
from belay.engine.serve.grpc.fault import FaultService
from belay.engine.serve.grpc.jobs import JobService
from belay.engine.serve.grpc.profiling import TrainingDataTraceService
from belay.engine.serve.grpc.public_faults import PubFaultService
from belay.engine.serve.grpc.recovery.service import RecoverService
from belay.engine.serve.grpc.recovery.training import TrainingService
from belay.engine.status.events import ANNOUNCED
from belay.engine.wire.clusterd import config_pb2, fault_pb2, job_pb2, profiling_pb2, pubfault_pb2, recover_pb2
from belay.engine.wire.training import training_pb2
from tests.test_place_products import CASES, Case

ROOT = Path(__file__).resolve().parents[1]
KINDS = {kind.__name__ for kind in get_args(AnyAction)}
SERVICES = (
    (recover_pb2, "Recover", RecoverService),
    (config_pb2, "Config", ConfigService),
    (fault_pb2, "Fault", FaultService),
    (job_pb2, "Job", JobService),
    (profiling_pb2, "TrainingDataTrace", TrainingDataTraceService),
    (pubfault_pb2, "PubFault", PubFaultService),
    (training_pb2, "Training", TrainingService),
)
#: Where names of ConfigMap keys stand.
STATUS = ("status/sync_status.py", "status/jobs.py", "status/links.py", "wire/sync.py", "wire/history.py")
HIDDEN = {"state", "build", "dist"}
#: Handlers whose pods get parts of chips: they have candidates of their own instead of a family.
PARTS = {"softshare", "vnpu"}


@pytest.fixture(scope="module")
def shipped() -> Desired:
    return load({}).desired


def products_of(case: Case, shipped: Desired) -> set[str]:
    """The products that a case of ``test_place_products`` places a pod on."""
    resource = f"huawei.com/{case.kind}"
    found = (
        shipped.product_for_policy(case.policy, resource) if case.policy else None,
        shipped.product_for_accelerator_type(case.selector) if case.selector else None,
        shipped.product_of({"accelerator": f"huawei-{case.kind}", **case.node_labels}),
    )
    return {product.name for product in found if product is not None}


def test_every_product_is_placed_in_a_case(shipped: Desired) -> None:
    placed = set[str]().union(*(products_of(case, shipped) for case in CASES.values()))
    servers = {name for name, row in shipped.products.items() if row.document.spec.placement.handler not in PARTS}
    assert servers - placed == set(), "add a case to tests/test_place_products.py"


def test_every_generation_has_a_product(shipped: Desired) -> None:
    assert {row.document.spec.generation for row in shipped.products.values()} - {None} == set(Generation)


def test_every_generation_has_device_nodes() -> None:
    families = tomllib.loads((ROOT / "policies/runtime/nodes.toml").read_text())["families"]
    assert set(Generation) <= {family["name"] for family in families}


def test_every_handler_has_a_product_and_a_family(shipped: Desired) -> None:
    rows: dict[str, Product] = {row.document.spec.placement.handler: row.document for row in shipped.products.values()}
    for handler in get_args(Handler):
        product = rows.get(handler)
        if product is None:  # a family that only strategies or rows of users name
            some = rows["base"]
            spec = some.spec.model_copy(
                update={"placement": some.spec.placement.model_copy(update={"handler": handler})}
            )
            product = some.model_copy(update={"spec": spec})
        found = registry._of_product(product, product.spec.resource)
        assert isinstance(found, Refusal) == (handler in PARTS), handler


def test_disruptive_actions_can_be_limited_and_windowed() -> None:
    assert set(get_args(BudgetAction)) == set(get_args(WindowAction)) <= KINDS
    assert set(get_args(BudgetAction)) >= DISRUPTIVE


def test_every_action_is_compared_and_announced_or_knowingly_not() -> None:
    def names(kinds: tuple[type[act.Action], ...]) -> set[str]:
        return {kind.__name__ for kind in kinds}

    objects = {"CreateObject", "PatchObject", "DeleteObject", "CreatePod", "WriteRankTable"}
    assert names(COMPARED_ACTIONS) | objects == KINDS, "does a shadow policy announce this action?"
    routine = {"CreateObject", "PatchObject", "CreatePod", "WriteRankTable", "ScaleJob", "SignalJob"}
    assert names(ANNOUNCED) | routine == KINDS, "does an Event say that this was done?"


@pytest.mark.parametrize(("module", "name", "service"), SERVICES, ids=str)
def test_every_rpc_is_served(module: Any, name: str, service: type) -> None:
    methods = module.DESCRIPTOR.services_by_name[name].methods
    assert [method.name for method in methods if not callable(getattr(service, method.name, None))] == []


def test_every_service_of_the_wire_is_checked() -> None:
    protos = [*(ROOT / "engine/wire/clusterd").glob("*.proto"), *(ROOT / "engine/wire/training").glob("*.proto")]
    declared = {found for proto in protos for found in re.findall(r"^service (\w+)", proto.read_text(), re.MULTILINE)}
    assert declared - {name for _, name, _ in SERVICES} == {"TaskNet"}, "TaskNet is served in training containers"


def test_every_status_key_is_documented() -> None:
    page = (ROOT / "docs/status.md").read_text()
    nodes = [node for file in STATUS for node in ast.walk(ast.parse((ROOT / "engine" / file).read_text()))]
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    keys = {text for text in texts if re.fullmatch(r"\w+\.json", text)}
    assert len(keys) > 10
    assert {key for key in keys if f"`{key}`" not in page} == set()


def documents() -> list[Path]:
    found = [file.relative_to(ROOT) for file in ROOT.rglob("*.md")]
    own = [file for file in found if file.parts[0] not in HIDDEN and "node_modules" not in file.parts]
    return [ROOT / file for file in own if not file.parts[0].startswith(".")]


DOCUMENTS = documents()
FOLDERS = ("agents", "deploy", "desired", "docs", "engine", "policies", "tests")
FILES = [f"/{file.relative_to(ROOT)}" for folder in FOLDERS for file in (ROOT / folder).rglob("*.*")]
FILES += [f"/{file.name}" for file in ROOT.iterdir()]
NAMING = [one for one in DOCUMENTS if one.name in ("README.md", "CONTRIBUTING.md") or one.parent.name == "decisions"]


def name_of(value: object) -> str:
    return str(value.relative_to(ROOT)) if isinstance(value, Path) else getattr(value, "__name__", str(value))


@pytest.mark.parametrize("file", DOCUMENTS, ids=name_of)
def test_links_of_the_documents_lead_somewhere(file: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", file.read_text())
    assert [link for link in links if "://" not in link and not (file.parent / link).exists()] == []


@pytest.mark.parametrize("file", NAMING, ids=name_of)
def test_files_that_the_documents_name_exist(file: Path) -> None:
    named = re.findall(r"`([\w./-]+\.(?:py|proto|toml|yaml|c|md))`", file.read_text())
    assert [name for name in named if not any(known.endswith(f"/{name.removeprefix('../')}") for known in FILES)] == []


def test_each_recipe_names_what_a_forgotten_step_fails() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    known = set[str]()
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        known |= set(re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE))
    named = set(re.findall(r"`(test_\w+)`", text))
    assert named - known == set(), "tests that no longer have this name"
    recipes = re.findall(r"^## (To .*)\n((?:(?!^## ).*\n?)*)", text, re.MULTILINE)
    assert len(recipes) >= 17
    assert [title for title, body in recipes if not re.search(r"`(?:tests/)?test_|upgrade-test", body)] == []
