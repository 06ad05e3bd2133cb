"""Every parser has a harness, and its seeds and a few mutations of them break no rule (`make fuzz` tries for hours)."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from belay.agents.runtime.build import HERE as RUNTIME
from tests.fuzz import native
from tests.fuzz.execution import ROOT
from tests.fuzz.harness import CORPUS
from tests.fuzz.harnesses import HARNESSES, exempt
from tests.fuzz.parsers import parsers
from tests.fuzz.session import Report
from tests.fuzz.supervisor import death, supervise

TRIES = 20
"""Mutations per harness; each begins with the seeds."""
GROUPS = 6
"""Harnesses run one after the other in each of these tests, which may run side by side."""
NAMES = sorted(HARNESSES)
BYTES_OF_A_SEED = 64 << 10


@pytest.mark.timeout(600)
@pytest.mark.parametrize("group", range(GROUPS))
def test_parsers_survive_seeds_and_mutations(group: int, tmp_path: Path) -> None:
    names = NAMES[group::GROUPS]
    done = supervise(names, tmp_path, seed=1, tries=TRIES)
    broken = {
        f"{one.name}: {where}": _explained(tmp_path / one.name, file)
        for one in done
        for where, file in one.findings.items()
    }
    assert not broken, "\n\n".join(f"{where}\n{text}" for where, text in broken.items())
    assert [one.name for one in done] == names
    lacking = {one.name: sorted(set(HARNESSES[one.name].covers) - set(one.files)) for one in done}
    lacking = {name: modules for name, modules in lacking.items() if modules}
    assert not lacking, f"seeds do not reach what these harnesses claim to cover: {lacking}"
    assert all(one.runs > one.seeds > 0 for one in done)


def _explained(folder: Path, file: str) -> str:
    return (folder / "findings" / file).with_suffix(".txt").read_text(errors="replace")[-2500:]


def test_every_parser_has_a_harness() -> None:
    covered = {module for harness in HARNESSES.values() for module in harness.covers}
    found = parsers()
    missing = {module: sign for module, sign in found.items() if module not in covered and not exempt.exempt(module)}
    assert not missing, (
        f"write a harness (tests/README.md), or say in harnesses/exempt.py why none is needed: {missing}"
    )
    assert {"engine/wire/orders.py", "engine/load/parser.py", "agents/training/train/frames.py"} <= set(found)


def test_nothing_is_exempt_that_is_gone_or_covered() -> None:
    covered = {module for harness in HARNESSES.values() for module in harness.covers}
    found = parsers()
    for prefix, why in exempt.REASONS.items():
        assert len(why) > 20 and any(module.startswith(prefix) for module in found), prefix
        assert prefix not in covered, f"{prefix} has a harness"


def test_every_source_of_the_runtime_that_parses_has_a_target() -> None:
    """Sources in C that call a reader of JSON, text, numbers or layers."""
    readers = ("json_parse(", "json_string(", "strtol(", "strtoul(", "strsep(", "sscanf(", "tar_take(")
    found = {file.name for file in RUNTIME.glob("*.c") if any(reader in file.read_text() for reader in readers)}
    assert found - set(native.COVERS) == set(native.NOT_COVERED), "write a target in tests/fuzz/native/oci.c"
    assert all(len(why) > 20 for why in native.NOT_COVERED.values())


def test_every_harness_has_small_seeds() -> None:
    assert {folder.name for folder in CORPUS.iterdir()} == {*HARNESSES, *native.TARGETS}
    sizes = {file.relative_to(CORPUS): file.stat().st_size for file in CORPUS.glob("*/*")}
    assert not {file: size for file, size in sizes.items() if size > BYTES_OF_A_SEED}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return native.build(tmp_path_factory.mktemp("oci"))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", native.TARGETS)
def test_the_runtime_survives_seeds_and_mutations(program: Path, name: str, tmp_path: Path) -> None:
    done = native.check(program, name, tmp_path, 1, 150)
    assert not done.findings, (
        (tmp_path / "findings" / next(iter(done.findings.values()))).with_suffix(".txt").read_text()
    )
    assert done.runs == done.seeds + 150


# -- the engine itself

BROKEN = """
import logging, os, signal, sys
from tests.fuzz import session
from tests.fuzz.harness import Form, Harness

def feed(data):
    if data == b"raise": raise KeyError("x")
    if data == b"steps":
        from belay.engine.model.chip_masks import ids_of
        ids_of((1 << 200_000) - 1)
    if data == b"log": [logging.warning("x") for _ in range(1000)]
    if data == b"print": print("x" * 100_000)
    if data == b"memory": bytearray(64 << 30)
    if data == b"die": os.kill(os.getpid(), signal.SIGSEGV)

def broken(name):
    return Harness(name, feed, (), (), Form.TEXT, lambda: [b"fine", name.encode()])

session.HARNESSES = {name: broken(name) for name in sys.argv[2:]}
sys.exit(session.main(sys.argv[1], "1", "0", "3", *sys.argv[2:]))
"""


def test_a_broken_rule_is_found(tmp_path: Path) -> None:
    """An engine that finds nothing would pass every other test. The last input ends the process."""
    rules = {
        "raise": "KeyError at",
        "steps": "steps at engine/model/chip_masks.py",
        "log": "log lines",
        "print": "output",
        "memory": "MemoryError at",
    }
    with (tmp_path / "output").open("wb") as output:
        command = [sys.executable, "-c", BROKEN, str(tmp_path), *rules, "die"]
        code = subprocess.run(command, cwd=ROOT, stdout=output, stderr=output, timeout=100).returncode
    for name, said in rules.items():
        report = msgspec.json.decode((tmp_path / name / "result.json").read_bytes(), type=Report)
        assert [where for where in report.findings if where.startswith(said)], report
    assert code == -signal.SIGSEGV
    found = death("die", tmp_path / "die", code, "")
    assert found.findings and (tmp_path / "die/findings" / next(iter(found.findings.values()))).read_bytes() == b"die"


JSON_READERS = ("json.loads", "msgspec.json.decode", "tomllib.loads")


def test_readers_of_json_know_that_it_may_nest_deeply() -> None:
    """json and msgspec raise RecursionError, which is no ValueError, for a text of a few kilobytes."""
    missing = [
        place
        for room in ("engine", "agents")
        for file in sorted((ROOT / room).rglob("*.py"))
        for place in _careless(file)
    ]
    assert not missing, f"catch RecursionError beside the others: {missing}"


def _careless(file: Path) -> Iterator[str]:
    source = file.read_text()
    if not any(name in source for name in JSON_READERS):
        return
    tree = ast.parse(source)
    above = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in (
            "json.loads",
            "msgspec.json.decode",
            "tomllib.loads",
        ):
            caught = _caught(node, above)
            if caught & {"ValueError", "JSONDecodeError", "DecodeError", "TOMLDecodeError"} and not caught & {
                "RecursionError", "Exception", "BaseException",
            }:  # fmt: skip
                yield f"{file.relative_to(ROOT)}:{node.lineno}"


def _caught(node: ast.AST, above: dict[ast.AST, Any]) -> set[str]:
    """Names of the exceptions that the function around a call catches."""
    found: set[str] = set()
    while node in above and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        parent = above[node]
        if isinstance(parent, ast.Try) and node in parent.body:
            found |= {name.rpartition(".")[2] for one in parent.handlers if one.type for name in _names(one.type)}
        node = parent
    return found


def _names(kind: ast.expr) -> list[str]:
    return [ast.unparse(part) for part in kind.elts] if isinstance(kind, ast.Tuple) else [ast.unparse(kind)]
