"""Codes of errors, findings and reasons: each that the code base has is in the table, and each of the table is used."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_args

import pytest
import yaml
from click import Choice, Context
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from belay import engine
from belay.engine.cli import main
from belay.engine.cli.codes import KINDS, KindOrCode
from belay.engine.errors import BelayError
from belay.engine.model.actions import AnyAction
from belay.engine.model.codes import GROUPS, PAGE, canonical, codes, explained
from belay.engine.model.codes.actions import ACTIONS, EVENTS, NOTICES
from belay.engine.model.codes.alerts import ALERTS
from belay.engine.model.codes.conditions import CONDITIONS, TYPES
from belay.engine.model.codes.failures import FAILURES, SOURCE
from belay.engine.model.codes.findings import FINDINGS, FindingCode
from belay.engine.model.codes.levels import KINDS_OF_ACTION, LEVELS
from belay.engine.model.codes.passes import PASSES, PassCode
from belay.engine.model.levels import FaultLevel, NodeLevel, SwitchLevel, SwitchTableLevel
from belay.engine.model.notices import NoticeEvent
from belay.engine.model.reasons import ActionReason

ROOT = Path(engine.__file__).resolve().parents[1]
TABLES = ROOT / "engine" / "model" / "codes"
_SOURCE_CALLS = ("SourceError", "GitFailed")


@cache
def trees() -> dict[Path, ast.Module]:
    """Every module of the engine but the table itself."""
    files = sorted((ROOT / "engine").rglob("*.py"))
    return {file: ast.parse(file.read_text()) for file in files if TABLES not in file.parents}


def calls(*names: str) -> Iterator[ast.Call]:
    for tree in trees().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                function = node.func
                if (function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")) in names:
                    yield node


def words() -> set[str]:
    """Every CamelCase text of the engine."""
    texts = (node.value for tree in trees().values() for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return {text for text in texts if isinstance(text, str) and re.fullmatch(r"[A-Z][A-Za-z]+", text)}


def classes(base: type[BelayError] = BelayError) -> set[type[BelayError]]:
    return {base}.union(*(classes(one) for one in base.__subclasses__()))


def _is_error(base: ast.expr) -> bool:
    return ast.unparse(base).endswith(("Error", "Exception"))


def of_modules() -> set[str]:
    """Codes of the classes of errors, from the text of the modules: importing all of them would take long."""
    found = set()
    for tree in trees().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and any(_is_error(base) for base in node.bases):
                for line in node.body:
                    constant = isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant)
                    if constant and ast.unparse(line.targets[0]) == "code":
                        found.add(str(line.value.value))
    return found


def of_causes() -> set[str]:
    """Codes that a place gives an error of its own, and those of the last resort."""
    given = {
        one.value.value
        for call in calls("InputError", "BelayError")
        for one in call.keywords
        if one.arg == "code" and isinstance(one.value, ast.Constant)
    }
    last = re.findall(r'_fail\(.*, "(\w+)"\)', (ROOT / "engine/cli/invocation.py").read_text())
    return {str(one) for one in given}.union(last)


def test_every_error_has_a_code_and_every_row_an_error() -> None:
    assert of_modules() | of_causes() == set(FAILURES)
    for one in classes():
        assert one.code in FAILURES or one.code in SOURCE, one


def test_every_reason_of_the_source_has_a_row() -> None:
    raised = {call.args[0].value for call in calls(*_SOURCE_CALLS) if isinstance(call.args[0], ast.Constant)}
    files = (ROOT / "engine/source/tree.py").read_text()
    refused = set(re.findall(r'"([A-Z]\w+Refused|FileTooLarge|NotAFile)"', files))
    assert raised | refused == set(SOURCE)


def test_every_finding_action_condition_and_event_has_a_row() -> None:
    assert set(FINDINGS) == set(FindingCode)
    assert set(ACTIONS) == set(ActionReason)
    used = words()
    assert set(CONDITIONS) <= used and set(EVENTS) <= used
    texts = "".join(file.read_text() for file in trees())
    assert [one.name for one in FindingCode if f"FindingCode.{one.name}" not in texts] == []
    # reasons of conditions as they are made: the third argument
    given = {
        call.args[2].value
        for call in calls("StatusCondition")
        if len(call.args) > 2 and isinstance(call.args[2], ast.Constant)
    }
    assert given <= set(CONDITIONS)


def test_every_type_of_a_condition_has_a_row() -> None:
    given = {
        call.args[0].value
        for call in calls("StatusCondition", "_condition", "Condition")
        if call.args and isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, str)
    }
    # of definitions, as the sandbox's API server says them
    given -= {"Established", "NamesAccepted"}
    assert set(TYPES) <= words() and [one for one in sorted(given) if not explained(one)] == []


def test_every_alert_has_a_row_and_a_runbook() -> None:
    rules = yaml.safe_load((ROOT / "deploy/monitoring/alerts.yaml").read_text())
    names = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    runbooks = set(re.findall(r"(?m)^## (\w+)$", (ROOT / "docs/runbooks.md").read_text()))
    assert names == set(ALERTS) == runbooks


def test_every_reason_on_belays_own_kinds_has_a_row() -> None:
    said = {call.args[1].value for call in calls("_Verdict") if isinstance(call.args[1], ast.Constant)}
    foreign = (ROOT / "engine/plan/sync/foreign.py").read_text()
    said |= set(re.findall(r'return "([A-Z][A-Za-z]+)"', foreign))
    assert {"NotFromGit", "NotCut"} <= said
    assert [one for one in sorted(said) if not explained(one)] == []


def test_every_level_notice_and_kind_of_action_has_a_row() -> None:
    assert set(LEVELS) == {*FaultLevel, *NodeLevel, *SwitchLevel, *SwitchTableLevel}
    assert set(NOTICES) == set(NoticeEvent)
    assert set(KINDS_OF_ACTION) == {one.__struct_config__.tag for one in get_args(AnyAction)}


def test_the_kinds_that_rows_ask_for_exist() -> None:
    rows = [row for group in GROUPS for row in group.rows.values()]
    said = " ".join(f"{row.causes} {row.way_out}" for row in rows)
    get = main.get_command(Context(main), "get")
    assert get is not None and isinstance(get.params[0].type, Choice)
    kinds = {"get": {*get.params[0].type.choices, "lists"}, "explain": set(KINDS)}
    asked = set(re.findall(r"belay (get|explain) ([a-z]+)", said))
    assert ("get", "faults") in asked
    assert [f"belay {verb} {kind}" for verb, kind in sorted(asked) if kind not in kinds[verb]] == []


def _values(call: ast.Call) -> int:
    """How many values a call gives; ``*place`` stands for the three of file, line and column."""
    return sum(3 if isinstance(one, ast.Starred) else 1 for one in call.args) + len(call.keywords)


def test_every_diagnostic_is_made_with_a_code() -> None:
    uncoded = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Diagnostic"
        if not _names_a_code(node)
    ]
    assert uncoded == [], "give each a PassCode (engine/model/codes/passes.py) or a FindingCode"


def _names_a_code(call: ast.Call) -> bool:
    given = next((one.value for one in call.keywords if one.arg == "code"), call.args[-1] if call.args else None)
    return _values(call) >= 8 and not (isinstance(given, ast.Constant) and not given.value)


def test_every_code_of_a_pass_has_a_row_and_a_place_that_gives_it() -> None:
    assert set(PASSES) == set(PassCode)
    texts = "".join(file.read_text() for file in trees())
    assert [one.name for one in PassCode if f"PassCode.{one.name}" not in texts] == []


def test_every_code_has_its_place_on_the_page_and_a_page_that_exists() -> None:
    text = (ROOT / "docs" / PAGE).read_text()
    headings = re.findall(r"^### (\S+)$", text, re.M)
    assert sorted(headings) == codes(), "one anchor for each: make reference"
    assert len({one.lower() for one in headings}) == len(headings)
    for group in GROUPS:
        for name, row in group.rows.items():
            assert row.meaning.endswith(".") and (ROOT / "docs" / row.page).exists(), name


@pytest.mark.parametrize(
    ("said", "code"),
    [("topologynotmet", "TopologyNotMet"), ("InsufficientCpu", "Insufficient"), ("UnknownField", "UnknownField"),
     ("nonsense", "")],
)  # fmt: skip
def test_a_code_is_found_however_it_is_written(said: str, code: str) -> None:
    assert canonical(said) == code and bool(explained(said)) == bool(code)


def run(*args: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, list(args))
    return done.exit_code, done.output


def test_a_kind_may_be_written_as_get_names_it() -> None:
    kind = KindOrCode()
    assert [kind.convert(word, None, None) for word in ("jobs", "Policies", "chip")] == ["job", "policy", "chip"]


def test_explain_prints_a_code_as_text_and_as_a_document() -> None:
    status, text = run("explain", "ungodlyfield")
    assert status == 2 and "did you mean UnknownField" in text
    status, text = run("explain", "UNKNOWNFIELD")
    assert status == 0 and "what to do" in text and "docs/reference/codes.md#unknownfield" in text
    status, text = run("explain", "GangIncomplete", "-o", "json")
    rows = json.loads(text)
    assert status == 0 and [row["code"] for row in rows] == ["GangIncomplete"] * 2
    assert rows[0]["wayOut"].startswith("Create its others") and rows[0]["page"] == "docs/reference/pending.md"
    assert run("explain", "UnknownField", "x")[0] == run("explain", "pod")[0] == 2


def test_a_failure_ends_with_its_code_and_findings_carry_theirs(tmp_path: Path) -> None:
    status, text = run("drain", "node-1", "--repo", str(tmp_path))
    assert status == 2 and text.rstrip().endswith("[NotARepository]")
    files = tmp_path / "desired"
    files.mkdir()
    head = "apiVersion: belay.dev/v1alpha1\nkind: NodePool\nmetadata: {name: a}\n"
    (files / "a.yaml").write_text(f"{head}spec: {{selector: {{matchLabels: {{a: b}}}}, produkt: x, suspend: often}}\n")
    (files / "b.yaml").write_text(f"{head}spec: {{selector: {{matchLabels: {{a: b}}}}, product: x}}\n")
    (files / "c.yaml").write_text("a: [\n")
    status, text = run("validate", str(tmp_path), "-o", "json")
    found = {(row["file"], row["code"]) for row in json.loads(text)["diagnostics"]}
    assert status == 1 and found == {
        ("desired/a.yaml", "UnknownField"), ("desired/a.yaml", "WrongType"), ("desired/b.yaml", "DeclaredTwice"),
        ("desired/b.yaml", "UnknownName"), ("desired/c.yaml", "BadSyntax"),
    }  # fmt: skip
    assert "did you mean product? [UnknownField]" in run("validate", str(tmp_path))[1]


def test_the_shell_completes_codes() -> None:
    def offered(begun: str) -> list[str]:
        return [one.value for one in ShellComplete(main, {}, "belay", "X").get_completions(["explain"], begun)]

    assert offered("") == list(KINDS)
    assert offered("NodeR") == ["NodeRefused", "NodeReportMissing", "NodeReportRefused", "NodeReportStale"]
