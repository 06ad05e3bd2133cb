"""The command line as a person uses it: what it prints, where errors point, how it exits."""

from __future__ import annotations

import gzip
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner, Result

from belay.agents.kubelet.flags import FLAGS
from belay.engine import cli, versions
from belay.engine.cli import differences
from belay.engine.cli.phrases import ranges
from belay.engine.cli.verb_groups import GROUPS, examples_of
from belay.engine.errors import InputError
from belay.engine.kube import CONFIGMAP
from belay.engine.model.labels import ABOUT_LABEL
from belay.engine.model.plan import NodeState, Plan
from belay.engine.replay import recording
from belay.engine.replay.cluster_file import objects_of
from belay.engine.replay.offline import plan_offline
from belay.engine.status.sync_status import pool_bodies
from belay.engine.wire import names
from tests.bench import clusters
from tests.loop_world import Cluster

ROOT = Path(__file__).resolve().parents[1]
BAD = """apiVersion: belay.dev/v1alpha1
kind: NodePool
metadata:
  name: a2
spec:
  selector: {matchLabels: {a: b}}
  product: no-such-product
  sherd: main
---
apiVersion: belay.dev/v1alpha1
kind: SafetyBudget
metadata: {name: b}
spec:
  limits:
    - {actions: [EvictPod], per: cluster, max: -1, window: 1h}
"""
JOB = """apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: train}
data:
  a.txt: |
    one
    two
"""


def world() -> list[dict[str, Any]]:
    """Four servers, one job on two of them, one job that waits, one faulty chip."""
    items = clusters.cluster(4, 1)
    items = [item for item in items if item["metadata"]["name"] != "mindx-dl-deviceinfo-node-00003"]
    items.append(clusters.device("node-00003", faulty=3))
    waiting = clusters.pod("big", 0, "", 8)
    waiting["metadata"]["annotations"] = {}
    waiting["status"] = {"phase": "Pending"}
    waiting["spec"]["nodeSelector"] = {"nowhere": "yes"}
    return [*items, clusters.ascend_job("big", 1, 8), clusters.service("big"), waiting]


def as_list(items: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "List", "items": list(items)}


@pytest.fixture
def cluster_file(tmp_path: Path) -> str:
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps(as_list(world())))
    return str(file)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "state"
    (root / "desired" / "jobs").mkdir(parents=True)
    (root / "desired" / "jobs" / "settings.yaml").write_text(JOB)
    (root / "policies").mkdir()
    return root


def belay(*arguments: str, **options: Any) -> Result:
    return CliRunner().invoke(cli.main, list(arguments), **options)


def test_the_package_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "belay.engine", "version"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert found.returncode == 0 and found.stdout.startswith("belay ")


def process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "belay.engine.cli", *arguments]
    variables = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=variables, cwd=ROOT)


def refused(result: Result, *words: str) -> None:
    """One helpful line, exit code 2."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1 and result.stderr.startswith("belay: ")
    for word in words:
        assert word in result.stderr, result.stderr


# starting


def test_the_version_loads_nothing_heavy() -> None:
    code = (
        "import sys; from belay.engine.cli import main; main(['version'], standalone_mode=False)\n"
        "import json; print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    version, modules = done.stdout.splitlines()
    assert version == f"belay {versions.version()}"
    loaded = set(json.loads(modules))
    assert not loaded & {"celery", "kubernetes", "pydantic", "msgspec", "yaml", "aiohttp", "redis", "rich", "jinja2"}


@pytest.mark.parametrize("verb", sorted(cli.main.commands))
def test_every_command_explains_itself(verb: str) -> None:
    result = belay(verb, "-h")
    assert result.exit_code == 0 and len(result.stdout.splitlines()) > 3
    listed = result.stdout.partition("\nCommands:\n")[2].splitlines()
    assert not [line for line in listed if line.endswith("...")], "a sentence is cut off"


def test_the_verbs_stand_in_groups_each_once() -> None:
    listed = [name for names in GROUPS.values() for name in names]
    assert sorted(listed) == sorted(cli.main.commands), "engine/cli/verb_groups.py: a verb has one group"
    shown = belay("--help").stdout
    assert "\nRead:\n  status " in shown and "\nAct, each a commit:\n" in shown and "\nMore:" not in shown
    assert not [line for line in shown.splitlines()[1:] if line.endswith("...")], "a sentence is cut off"


def below(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """The commands that do something by themselves, with the words that lead to them."""
    if not isinstance(command, click.Group) or command.invoke_without_command:
        yield words, command
    if isinstance(command, click.Group):
        for name, one in sorted(command.commands.items()):
            yield from below(one, (*words, name))


def test_every_verb_has_an_example_that_it_understands(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[click.Command] = []
    # the command is found and its options are read; what it does is not done
    monkeypatch.setattr(click.Command, "invoke", lambda self, _: asked.append(self))
    monkeypatch.setattr(click.Path, "convert", lambda self, value, param, context: value)
    for words, command in below(cli.main, ()):
        examples = examples_of(command)
        assert examples, f"belay {' '.join(words)} has no example"
        for example in examples:
            asked.clear()
            given = shlex.split(example.partition(" > ")[0])[1:]
            result = CliRunner().invoke(cli.main, given)
            assert result.exit_code == 0, f"{example}: {result.output}"
            assert asked[-1] is command, f"{example} is an example of {asked[-1].name}"
            assert f"  {example}" in (command.help or "").splitlines(), "a line that can be copied"


# validate


def test_validate_accepts_the_sample() -> None:
    result = belay("validate", str(ROOT))
    assert result.exit_code == 0, result.output
    assert "0 errors" in result.stdout


def test_validate_without_a_folder_checks_the_repository_one_stands_in(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / "desired" / "cut.yaml").write_text("a: [1,\n")
    monkeypatch.chdir(repository / "desired")
    outside = belay("validate")
    assert outside.exit_code == 2 and "no clone of a Git repository" in outside.stderr, outside.output
    assert "belay validate DIR" in outside.stderr
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    result = belay("validate")
    assert result.exit_code == 1 and "desired/cut.yaml:2:1" in result.stdout, result.output


def test_validate_names_every_error_with_its_place(repository: Path) -> None:
    (repository / "policies" / "bad.yaml").write_text(BAD)
    (repository / "desired" / "cut.yaml").write_text("a: [1,\n")
    (repository / "desired" / "twice.yaml").write_text("kind: A\nkind: B\n")
    result = belay("validate", str(repository))
    assert result.exit_code == 1
    for place in ("policies/bad.yaml:8:3", "policies/bad.yaml:15:48", "desired/cut.yaml:2:1", "desired/twice.yaml:2:1"):
        assert place in result.stdout, result.stdout
    assert "errors" in result.stderr and "Traceback" not in result.output


def test_validate_prints_json(repository: Path) -> None:
    (repository / "policies" / "bad.yaml").write_text(BAD)
    result = belay("validate", str(repository), "-o", "json")
    body = json.loads(result.stdout)
    assert result.exit_code == 1 and body["errors"] == len(body["diagnostics"]) >= 2
    assert {"severity", "file", "line", "column", "field", "message"} <= body["diagnostics"][0].keys()


@pytest.mark.parametrize("command", [("validate",), ("plan", "--cluster", "CLUSTER", "-o", "json", "--desired")])
def test_unusual_files_in_a_repository_do_not_stop_a_command(
    command: tuple[str, ...], repository: Path, cluster_file: str
) -> None:
    arguments = [cluster_file if word == "CLUSTER" else word for word in command]
    os.mkfifo(repository / "desired" / "pipe.yaml")
    (repository / "desired" / "folder.yaml").mkdir()
    (repository / "desired" / "line\nbreak.yaml").write_text("x")
    result = belay(*arguments, str(repository))
    assert result.exit_code in (0, 1) and "break.yaml" in result.stdout
    loop = repository / "desired" / "loop.yaml"
    loop.symlink_to("loop.yaml")
    refused(belay(*arguments, str(repository)), "loop.yaml", "leads nowhere")
    loop.unlink()
    (repository / "desired" / "out.yaml").symlink_to("/etc/passwd")
    refused(belay(*arguments, str(repository)), "out.yaml", "leads out")
    (repository / "desired" / "out.yaml").unlink()
    Path(os.fsdecode(os.fsencode(repository / "desired") + b"/\xff.yaml")).write_text(JOB)
    refused(belay(*arguments, str(repository)), "not UTF-8")


def test_validate_of_no_folder() -> None:
    refused(belay("validate", ""), "empty")
    refused(belay("validate", "/no/such/folder"), "/no/such/folder", "does not exist")


# plan


def test_plan_prints_the_document_of_the_contract(cluster_file: str) -> None:
    result = belay("plan", "--cluster", cluster_file, "-o", "json")
    body = json.loads(result.stdout)
    assert result.exit_code == 0 and result.stderr == ""
    first = ["revision", "now", "actions", "deferred", "pending", "nodes", "chips", "scores", "diagnostics"]
    assert list(body) == [*first, "outcome"]
    once = json.loads(belay("plan", "--cluster", cluster_file, "-o", "json", "--now-only").stdout)
    assert list(once) == first and once == {key: body[key] for key in first}, "the outcome changes nothing of the plan"
    assert body["now"] == "2026-09-01T07:59:58Z"
    assert [a["chips"] for a in body["actions"] if a["kind"] == "IsolateChip"] == [["Ascend910-3"]]
    assert [p["name"] for p in body["pending"]] == ["big"]


def test_json_and_yaml_files_in_any_order_give_the_same_bytes(tmp_path: Path) -> None:
    items = world()
    outputs = set()
    for number in range(4):
        random.Random(number).shuffle(items)
        for suffix, text in (("json", json.dumps(as_list(items))), ("yaml", yaml.safe_dump(as_list(items)))):
            file = tmp_path / f"{number}.{suffix}"
            file.write_text(text)
            outputs.add(belay("plan", "--cluster", str(file), "--explain", "-o", "json").stdout)
    file.write_text("---\n".join(yaml.safe_dump(item) for item in items))
    outputs.add(belay("plan", "--cluster", str(file), "--explain", "-o", "json").stdout)
    assert len(outputs) == 1


def test_separate_processes_with_other_hash_seeds_agree(cluster_file: str) -> None:
    runs = [process("plan", "--cluster", cluster_file, "-o", "json", PYTHONHASHSEED=seed).stdout for seed in "17"]
    assert runs[0] == runs[1] != ""


def test_plan_reads_standard_input(cluster_file: str) -> None:
    text = Path(cluster_file).read_text()
    piped = belay("plan", "--cluster", "-", "-o", "json", input=text)
    assert piped.stdout == belay("plan", "--cluster", cluster_file, "-o", "json").stdout


def test_the_exit_code_shows_whether_there_is_work(cluster_file: str, tmp_path: Path) -> None:
    assert belay("plan", "--cluster", cluster_file).exit_code == 0
    assert belay("plan", "--cluster", cluster_file, "--exit-code").exit_code == 1
    idle = tmp_path / "idle.json"
    idle.write_text(json.dumps(as_list(clusters.cluster(2, 0))))
    assert belay("plan", "--cluster", str(idle), "--exit-code").exit_code == 0


def test_the_table_shows_actions_reasons_and_deferred_actions(cluster_file: str) -> None:
    text = belay("plan", "--cluster", cluster_file).stdout
    lines = text.splitlines()
    assert lines[0] == "revision -   now 2026-09-01T07:59:58Z"
    assert "ACTION        ON" in text and "IsolateChip   node-00003/Ascend910-3" in text and "ChipFault" in text
    assert "1 pending" in text and "train/big" in text
    assert "16 healthy chips in use by 2 pods" in text
    assert "node-00000   Ascend910-0" not in text
    assert not any(line != line.rstrip() for line in lines) and "\x1b" not in text
    wide = belay("plan", "--cluster", cluster_file, "-o", "wide").stdout
    assert "BECAUSE" in wide and "(80C98001)" in wide and "node-00000   Ascend910-0" in wide


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("Ascend910-0, Ascend910-1, Ascend910-2, Ascend910-5 of n", "Ascend910-0..2,5 of n"),
        ("(Ascend910-0, Ascend910-1)", "(Ascend910-0,1)"),
        ("npu-3, npu-4, npu-5", "npu-3..5"),
        ("Ascend910-7", "Ascend910-7"),
        (
            "node-1, node-2, Ascend310P-2c-100-0, Ascend310P-2c-101-0",
            "node-1, node-2, Ascend310P-2c-100-0, Ascend310P-2c-101-0",
        ),
    ],
)
def test_runs_of_chips_are_short_in_tables(text: str, short: str) -> None:
    assert ranges(text) == short


def test_yaml_and_json_say_the_same(cluster_file: str) -> None:
    as_json = json.loads(belay("plan", "--cluster", cluster_file, "-o", "json").stdout)
    as_yaml = yaml.safe_load(belay("plan", "--cluster", cluster_file, "-o", "yaml").stdout)
    as_json.pop("now"), as_yaml.pop("now")
    assert as_json == as_yaml


def test_now_is_taken_and_echoed(cluster_file: str) -> None:
    body = json.loads(
        belay("plan", "--cluster", cluster_file, "--now", "2026-09-01T10:00:00+02:00", "-o", "json").stdout
    )
    assert body["now"] == "2026-09-01T08:00:00Z"


@pytest.mark.parametrize(
    "now", ["yesterday", "2026-13-40T00:00:00Z", "", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"]
)
def test_a_wrong_now_is_refused(cluster_file: str, now: str) -> None:
    refused(belay("plan", "--cluster", cluster_file, "--now", now), "--now", repr(now))


BOMB = b"a0: &a0 [x]\n" + b"".join(
    b"a%d: &a%d [%s]\n" % (n, n, b",".join([b"*a%d" % (n - 1)] * 9)) for n in range(1, 15)
)
HOSTILE: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "empty": (b"", ("is empty",)),
    "blank": (b"\n \n", ("is empty",)),
    "cut": (b'{"kind": "List",\n "items": [', (":2:12: ", "not valid JSON", "complete?")),
    "text": (b"hello", ("holds a text", "kubectl get")),
    "numbers": (b"[1, 2]", ("holds a list",)),
    "a List of nothing": (b'{"kind": "List", "apiVersion": "v1"}', ("a List without items", "kubectl get")),
    "item": (b'{"kind": "List", "items": [1]}', ("items[0]", "a number")),
    "items": (b'{"kind": "List", "items": {}}x', ("not valid JSON",)),
    "no kind": (b'{"a": 1}', ("has no apiVersion",)),
    "no name": (b'{"kind": "List", "items": [{"apiVersion": "v1", "kind": "Pod"}]}', ("items[0]", "metadata.name")),
    "kind": (b'{"apiVersion": "v1", "kind": 5, "metadata": {"name": "x"}}', ("has no kind",)),
    "spec": (b'{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": [1]}', ("spec", "no mapping")),
    "labels": (b'{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", "labels": {"a": []}}}', ("labels.a",)),
    "yaml": (b"a: b: c\n", (":1:5: ", "not valid YAML")),
    "binary": (bytes(range(256)), ("is not UTF-8",)),
    "deep json": (b"[" * 300_000, ("not valid JSON",)),
    "deep yaml": (b"a: " + b"[" * 300_000, ("nested deeper",)),
    "deep blocks": (b"- " * 300_000, ("nested deeper",)),
    "aliases": (BOMB, ("aliases expand",)),
    "alias of itself": (b"a: &a [*a]\n", ("contains itself",)),
    "object": (b"a: !!python/object/apply:os.system [id]\n", ("not valid YAML",)),
    "surrogate": (b'{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "\\ud800"}}', ("not valid JSON",)),
    "bytes": (b"apiVersion: v1\nkind: Pod\nmetadata: {name: !!binary aGk=}\n", ("not valid YAML",)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_an_invalid_cluster_file_gives_one_line(name: str, tmp_path: Path) -> None:
    data, words = HOSTILE[name]
    file = tmp_path / "cluster"
    file.write_bytes(data)
    refused(belay("plan", "--cluster", str(file)), str(file), *words)


@pytest.mark.parametrize("path", ["/no/such/file", "/", "a\x1b[31mb", "a\nb", "a" * 300])
def test_files_that_cannot_be_read(path: str) -> None:
    result = belay("plan", "--cluster", path)
    refused(result, "cannot be read")
    assert "\x1b" not in result.stderr


def test_text_that_is_not_utf8_is_named_with_its_position(tmp_path: Path) -> None:
    file = tmp_path / "c"
    file.write_bytes(b"kind: List\nitems:\n- {a: \xe9}\n")
    refused(belay("plan", "--cluster", str(file)), f"{file}:3:7: is not UTF-8: byte 0xe9")
    file.write_bytes(b'{"kind":\n "\xc3\xa9\xe9"}')
    refused(belay("plan", "--cluster", str(file)), f"{file}:2:4: is not UTF-8: byte 0xe9")
    refused(belay("plan", "--cluster", ""), "--cluster: the name of the file is empty")


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    file = tmp_path / "huge"
    with file.open("wb") as stream:
        stream.truncate(2**40)
    refused(belay("plan", "--cluster", str(file)), "is larger than 1024 MiB")


def test_damaged_objects_never_end_in_a_traceback() -> None:
    """Any field of any object replaced by something else: a plan, or an error that names the place."""
    chance = random.Random(7)
    text = json.dumps(as_list(world()))
    values = [None, 5, -1, "", [], {}, "x", True, 1e300, [None], {"a": None}, "\x00\x1b[2J", "9" * 400]
    planned = 0
    for _ in range(150):
        damaged = json.loads(text)
        place: Any = damaged["items"]
        for _ in range(chance.randint(2, 7)):
            key = chance.choice(list(place) if isinstance(place, dict) else range(len(place)))
            if not isinstance(place[key], dict | list) or not place[key]:
                break
            place = place[key]
        key = chance.choice(list(place) if isinstance(place, dict) else range(len(place)))
        place[key] = chance.choice(values)
        try:
            plan, _, _ = plan_offline(objects_of(json.dumps(damaged).encode(), "f"))
            planned += bool(plan.digest())
        except InputError:
            continue
    assert planned > 50


# what is declared


def test_desired_may_be_a_repository_or_a_bare_folder(cluster_file: str, repository: Path, tmp_path: Path) -> None:
    loose = tmp_path / "loose"
    loose.mkdir()
    (loose / "settings.yaml").write_text(JOB)
    places = {}
    for folder in (repository, repository / "desired", loose):
        body = json.loads(belay("plan", "--cluster", cluster_file, "--desired", str(folder), "-o", "json").stdout)
        (created,) = (a for a in body["actions"] if a["kind"] == "CreateObject" and a["name"] == "settings")
        places[folder.name] = f"{created['evidence']['file']}:{created['evidence']['line']}"
    assert places == {
        "state": "desired/jobs/settings.yaml:1",
        "desired": "desired/jobs/settings.yaml:1",
        "loose": "settings.yaml:1",
    }


POOL = {"selector": {"matchLabels": {"accelerator": "huawei-Ascend910"}}, "product": "atlas-800t-a2"}


def pools_of(*arguments: str) -> set[str]:
    return {node["pool"] for node in json.loads(belay("plan", *arguments, "-o", "json").stdout)["nodes"]}


def test_policies_override_those_of_the_repository(cluster_file: str, repository: Path, tmp_path: Path) -> None:
    over = tmp_path / "over"
    over.mkdir()
    pool = {"apiVersion": "belay.dev/v1alpha1", "kind": "NodePool", "metadata": {"name": "training"}, "spec": POOL}
    (over / "pool.yaml").write_text(yaml.safe_dump(pool))
    assert pools_of("--cluster", cluster_file) == {"default"}
    assert pools_of("--cluster", cluster_file, "--policies", str(over)) == {"training"}
    assert pools_of("--cluster", cluster_file, "--desired", str(repository), "--policies", str(over)) == {"training"}


def test_a_plan_says_which_nodes_an_edit_takes_from_their_pool(tmp_path: Path, repository: Path) -> None:
    pool = {"apiVersion": "belay.dev/v1alpha1", "kind": "NodePool", "metadata": {"name": "training"}, "spec": POOL}
    kept = json.dumps({"faultPolicies": [], "nodePools": [pool]})
    memory = {
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"namespace": "belay-system", "name": "belay-history"},
        "data": {"cluster.json": json.dumps({"policyRevision": kept})},
    }  # fmt: skip
    file = tmp_path / "c.json"
    file.write_text(json.dumps(as_list([*world(), memory])))
    (repository / "policies" / "pool.yaml").write_text(yaml.safe_dump(pool))
    same = belay("plan", "--cluster", str(file), "--desired", str(repository))
    assert "left pool" not in same.stdout

    wrong = {**POOL, "selector": {"matchLabels": {"accelerator": "huawei-Ascend91O"}}}
    (repository / "policies" / "pool.yaml").write_text(yaml.safe_dump({**pool, "spec": wrong}))
    edited = belay("plan", "--cluster", str(file), "--desired", str(repository))
    assert "4 of 4 nodes left pool training" in edited.stdout and "node-00000" in edited.stdout
    assert "accelerator is huawei-Ascend910 there, not huawei-Ascend91O" in edited.stdout


def test_kinds_recorded_in_the_cluster_are_planned_without_a_repository(tmp_path: Path, repository: Path) -> None:
    """Applied copies carry what servers and appliers add; with --desired, Git alone counts."""
    applied = {
        "apiVersion": "belay.dev/v1alpha1",
        "kind": "NodePool",
        "metadata": {
            "name": "recorded",
            "uid": "u",
            "resourceVersion": "7",
            "generation": 2,
            "creationTimestamp": "2026-08-31T08:00:00Z",
            "labels": {"app.kubernetes.io/managed-by": "belay"},
            "annotations": {"belay.dev/applied-digest": "x", "kubectl.kubernetes.io/last-applied-configuration": "{}"},
            "managedFields": [{"manager": "belay", "operation": "Apply"}],
            "finalizers": ["x/y"],
            "ownerReferences": [],
        },
        "spec": POOL,
        "status": {"observedGeneration": 2},
    }
    file = tmp_path / "c.json"
    file.write_text(json.dumps(as_list([*world(), applied])))
    body = json.loads(belay("plan", "--cluster", str(file), "-o", "json").stdout)
    assert {node["pool"] for node in body["nodes"]} == {"recorded"}
    assert not [d for d in body["diagnostics"] if d["severity"] == "error"]
    assert pools_of("--cluster", str(file), "--desired", str(repository)) == {"default"}


def test_an_invalid_recorded_kind_is_named_and_the_plan_goes_on(tmp_path: Path) -> None:
    broken = {"apiVersion": "belay.dev/v1alpha1", "kind": "NodePool", "metadata": {"name": "../x"}, "spec": {"a": 1}}
    file = tmp_path / "c.json"
    file.write_text(json.dumps(as_list([*world(), broken])))
    body = json.loads(belay("plan", "--cluster", str(file), "-o", "json").stdout)
    assert any(d["severity"] == "error" for d in body["diagnostics"])
    assert [a for a in body["actions"] if a["kind"] == "IsolateChip"]


@pytest.mark.parametrize("option", ["--desired", "--policies"])
def test_folders_that_do_not_exist(cluster_file: str, option: str) -> None:
    refused(belay("plan", "--cluster", cluster_file, option, "/no/such"), "/no/such", "does not exist")
    refused(belay("plan", "--cluster", cluster_file, option, cluster_file), "is not a folder")


# diff


def test_diff_shows_what_git_would_change(cluster_file: str, repository: Path, tmp_path: Path) -> None:
    result = belay("diff", "--cluster", cluster_file, "--desired", str(repository))
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[:2] == ["--- /dev/null", "+++ git/ConfigMap/train/settings desired/jobs/settings.yaml:1"]
    assert lines[lines.index("+  a.txt: |") :][:3] == ["+  a.txt: |", "+    one", "+    two"]
    assert "applied-digest" not in result.stdout and "\x1b" not in result.stdout
    live = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings", "namespace": "train"}}
    file = tmp_path / "live.json"
    file.write_text(json.dumps(as_list([*world(), {**live, "data": {"a.txt": "one\ntwo\n"}}])))
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps(as_list([*world(), {**live, "data": {"a.txt": "one\n"}}])))
    result = belay("diff", "--cluster", str(changed), "--desired", str(repository))
    assert result.exit_code == 1
    assert "--- live/ConfigMap/train/settings" in result.stdout and "+    two" in result.stdout


def test_diff_of_an_applied_repository_is_empty(tmp_path: Path, repository: Path) -> None:
    first = tmp_path / "first.json"
    first.write_text(json.dumps(as_list(world())))
    plan = json.loads(belay("plan", "--cluster", str(first), "--desired", str(repository), "-o", "json").stdout)
    created = [a["object"] for a in plan["actions"] if a["kind"] == "CreateObject" and a["evidence"]["rule"] == "sync"]
    second = tmp_path / "second.json"
    second.write_text(json.dumps(as_list([*world(), *created])))
    result = belay("diff", "--cluster", str(second), "--desired", str(repository))
    assert (result.exit_code, result.stdout) == (0, "no differences\n")


def test_diff_is_one_document_for_programs(cluster_file: str, repository: Path) -> None:
    result = belay("diff", "--cluster", cluster_file, "--desired", str(repository), "-o", "json")
    assert result.exit_code == 1
    body = json.loads(result.stdout)
    (change,) = [row for row in body["changes"] if row["name"] == "settings"]
    assert (change["change"], change["kind"], change["before"]) == ("create", "ConfigMap", None)
    assert (change["file"], change["line"]) == ("desired/jobs/settings.yaml", 1)
    assert change["after"]["data"] == {"a.txt": "one\ntwo\n"} and "applied-digest" not in result.stdout
    same = belay("diff", "--cluster", cluster_file, "--desired", str(ROOT / "tests" / "samples"), "-o", "json")
    assert (same.exit_code, json.loads(same.stdout)["changes"]) == (0, [])


def test_get_and_explain_show_a_cordon(tmp_path: Path) -> None:
    items = world()
    for item in items:
        if item["kind"] == "Node" and item["metadata"]["name"] == "node-00001":
            item.setdefault("spec", {})["unschedulable"] = True
    file = tmp_path / "cordoned.json"
    file.write_text(json.dumps(as_list(items)))
    rows = json.loads(belay("get", "nodes", "--cluster", str(file), "-o", "json").stdout)
    assert [row["node"] for row in rows if row["cordoned"]] == ["node-00001"]
    assert "CORDONED" in belay("get", "nodes", "--cluster", str(file)).stdout
    node = json.loads(belay("explain", "node", "node-00001", "--cluster", str(file), "-o", "json").stdout)
    assert node["cordoned"] is True


def test_diff_needs_something_to_compare_with(cluster_file: str) -> None:
    refused(belay("diff", "--cluster", cluster_file), "--desired")


# get and explain


@pytest.mark.parametrize(
    ("what", "heading", "content"),
    [
        ("nodes", "NODE         POOL      STATE", "node-00003"),
        ("chips", "NODE         CHIP          STATE", "isolated"),
        ("jobs", "NAMESPACE   KIND        NAME", "job-00000"),
        ("faults", "NODE         CHIP          CODE", "80C98001"),
        ("pools", "POOL      NODES   HEALTHY   CHIPS   USED   FREE   OUT OF SERVICE", "default"),
    ],
)
def test_get_lists(cluster_file: str, what: str, heading: str, content: str) -> None:
    result = belay("get", what, "--cluster", cluster_file)
    assert result.exit_code == 0
    assert result.stdout.startswith(heading) and content in result.stdout
    rows = json.loads(belay("get", what, "--cluster", cluster_file, "-o", "json").stdout)
    assert len(rows) == len(result.stdout.splitlines()) - 1
    assert belay("get", what.removesuffix("s").upper(), "--cluster", cluster_file).stdout == result.stdout


def test_get_of_nothing_keeps_stdout_clean(cluster_file: str) -> None:
    result = belay("get", "vnpus", "--cluster", cluster_file)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "no vnpus found\n")
    assert json.loads(belay("get", "vnpus", "--cluster", cluster_file, "-o", "json").stdout) == []


def test_get_of_an_unknown_kind_lists_the_known_ones(cluster_file: str) -> None:
    result = belay("get", "frobs", "--cluster", cluster_file)
    assert result.exit_code == 2 and "vnpus" in result.stderr


def test_words_of_other_tools_and_beginnings_of_names_lead_on(cluster_file: str) -> None:
    assert "Did you mean explain?" in belay("describe", "node", "n").stderr
    wrong = belay("log", "job").stderr
    assert "Did you mean logs?" in wrong and wrong.count("Did you mean") == 1
    assert "'two' is not a valid whole number" in belay("scale", "pretrain", "two").stderr
    said = belay("explain", "pod", "big", "--cluster", cluster_file).stderr
    assert "Did you mean train/big-" in said


def test_explain_a_pod_and_its_job(cluster_file: str) -> None:
    for arguments in (
        ("pod", "big-master-0"),
        ("pod", "train/big-master-0"),
        ("job", "big"),
        ("job", "train/AscendJob/big"),
    ):
        result = belay("explain", *arguments, "--cluster", cluster_file, "-o", "yaml")
        body = yaml.safe_load(result.stdout)
        assert result.exit_code == 0 and body["pending"]["reason"]
    body = yaml.safe_load(belay("explain", "job", "job-00000", "--cluster", cluster_file, "-o", "yaml").stdout)
    assert [pod["node"] for pod in body["pods"]] == ["node-00000", "node-00001"]


def test_explain_a_chip_and_its_node(cluster_file: str) -> None:
    full = belay("explain", "chip", "node-00003/Ascend910-3", "--cluster", cluster_file, "-o", "json")
    body = json.loads(full.stdout)
    assert body["state"] == "isolated" and body["codes"] == ["80C98001"]
    assert body["next"][0]["action"] == "IsolateChip" and "80C98001" in body["next"][0]["because"]
    assert [(fault["code"], fault["what"]) for fault in body["faults"]] == [
        ("80C98001", "AI Core: it could not be reset")
    ]
    short = belay("explain", "CHIP", "node-00003/3", "--cluster", cluster_file, "-o", "json")
    assert short.stdout == full.stdout
    node = yaml.safe_load(belay("explain", "node", "node-00003", "--cluster", cluster_file, "-o", "yaml").stdout)
    assert [chip["chip"] for chip in node["chips"]] == ["Ascend910-3"]


def test_explain_a_node_lists_what_its_agent_still_has_to_do(tmp_path: Path) -> None:
    orders = {
        "node": "node-00003",
        "generation": 4,
        "revision": "",
        "policyDigest": "",
        "issued": 1,
        "notAfter": 2,
        "chips": {
            f"Ascend910-{chip}": {
                "isolate": None,
                "reset": {"epoch": 7, "group": ["Ascend910-0", "Ascend910-1"], "reason": "ChipFault", "notBefore": 0},
            }
            for chip in (0, 1)
        },
    }
    metadata = {"name": "belay-orders-node-00003", "namespace": names.SYSTEM, "resourceVersion": "1"}
    data = {"orders.json": json.dumps(orders)}
    file = tmp_path / "c.json"
    file.write_text(
        json.dumps(as_list([*world(), {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}]))
    )
    body = yaml.safe_load(belay("explain", "node", "node-00003", "--cluster", str(file), "-o", "yaml").stdout)
    assert body["orders"] == ["reset Ascend910-0, Ascend910-1: epoch 7 (ChipFault)"]


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        ("pod", "big-mastr-0", ("'big-mastr-0' is unknown", "Did you mean train/big-master-0?")),
        ("pod", "", ("is unknown",)),
        ("job", "other", ("'other' is unknown", "belay get jobs")),
        ("node", "node-3", ("'node-3' is unknown", "Did you mean node-0000")),
        ("chip", "Ascend910-3", ("NODE/CHIP",)),
        ("chip", "node-00003/Ascend910-8", ("no chip 'Ascend910-8'", "Ascend910-0, Ascend910-1")),
        ("chip", "node-00003/Other-3", ("no chip 'Other-3'",)),
        ("chip", "nowhere/3", ("'nowhere'", "belay get nodes")),
    ],
)
def test_explain_of_unknown_names_helps(cluster_file: str, kind: str, name: str, words: tuple[str, ...]) -> None:
    refused(belay("explain", kind, name, "--cluster", cluster_file), *words)


def test_a_name_in_two_namespaces_must_be_given_in_full(tmp_path: Path) -> None:
    twin = json.loads(json.dumps(world()[-1]).replace('"train"', '"other"').replace("pod-big", "pod-twin"))
    file = tmp_path / "c.json"
    file.write_text(json.dumps(as_list([*world(), twin])))
    refused(belay("explain", "pod", "big-master-0", "--cluster", str(file)), "ambiguous", "other/big-master-0")
    assert belay("explain", "pod", "other/big-master-0", "--cluster", str(file)).exit_code == 0


# replay


def record(folder: Path, digest: str | None = None) -> Path:
    items = world()
    plan, _, _ = plan_offline(items, now="2026-09-01T08:00:00Z")
    return recording.write(
        folder,
        version=versions.version(),
        shard="main",
        now=plan.now,
        revision="",
        files={},
        objects=items,
        digest=digest or plan.digest(),
        has_git=False,
    )


def test_replay_derives_the_same_plan_again(tmp_path: Path) -> None:
    file = record(tmp_path)
    result = belay("replay", str(file), "-o", "json")
    assert result.exit_code == 0, result.output
    assert [one["same"] for one in json.loads(result.stdout)] == [True]
    assert belay("replay", str(file)).stdout.startswith("FILE")


def test_replay_detects_a_tampered_recording(tmp_path: Path) -> None:
    good, bad = record(tmp_path), record(tmp_path, "0" * 64)
    result = belay("replay", str(good), str(bad), "-o", "json")
    assert result.exit_code == 1
    assert [one["same"] for one in json.loads(result.stdout)] == [True, False]


def test_replay_says_which_version_recorded_a_pass_that_differs(tmp_path: Path) -> None:
    file = record(tmp_path, "0" * 64)
    body = {**json.loads(gzip.decompress(file.read_bytes())), "version": "0.0.9"}
    file.write_bytes(gzip.compress(json.dumps(body).encode()))
    result = belay("replay", str(file))
    assert result.exit_code == 1
    assert f"recorded by Belay 0.0.9, derived by {versions.version()}" in result.stderr


def test_replay_of_another_format_names_the_version_that_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "x.belay.json.gz"
    file.write_bytes(gzip.compress(b'{"format": "belay-recording/2", "version": "9.1.0", "objects": "packed"}'))
    refused(
        belay("replay", str(file)), "recorded by Belay 9.1.0 as 'belay-recording/2'", "with the version that recorded"
    )


@pytest.mark.parametrize("content", [None, b"", b"hello", b"\x1f\x8b\x08\x00cut", "gzip of {}"])
def test_replay_of_something_else(tmp_path: Path, content: bytes | str | None) -> None:
    file = tmp_path / "x.belay.json.gz"
    if content is not None:
        file.write_bytes(gzip.compress(b"{}") if isinstance(content, str) else content)
    refused(belay("replay", str(file)), str(file))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"objects": [{}]}, "objects[0]"),
        ({"objects": [{"apiVersion": "v1", "kind": 5, "metadata": 3}]}, "objects[0]"),
        ({"objects": 5}, "is not a recording"),
        ({"now": 1e300}, "out of range"),
        ({"now": -1}, "out of range"),
        ({"format": "other/9"}, "other/9"),
    ],
)
def test_replay_of_a_damaged_recording(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    file = record(tmp_path)
    body = json.loads(gzip.decompress(file.read_bytes()))
    file.write_bytes(gzip.compress(json.dumps(body | change).encode()))
    refused(belay("replay", str(file)), str(file), words)


# the rest


def test_schemas(tmp_path: Path) -> None:
    kinds = belay("schema").stdout.split()
    assert "nodepool" in kinds
    assert json.loads(belay("schema", "NodePool").stdout)["$schema"].startswith("https://json-schema.org/")
    refused(belay("schema", "frob"), "'frob'", "belay schema")
    assert belay("schema", "--write", str(tmp_path / "new")).exit_code == 0
    for kind in kinds:
        assert (tmp_path / "new" / f"{kind}.json").read_text() == (
            ROOT / "policies" / "schemas" / f"{kind}.json"
        ).read_text()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    result = belay("completion", shell)
    assert result.exit_code == 0 and "_BELAY_COMPLETE" in result.stdout


def test_colours_appear_only_on_a_terminal_without_no_color(cluster_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from belay.engine.cli import output

    class Terminal:
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert output.coloured(Terminal())  # type: ignore[arg-type]
    monkeypatch.setenv("NO_COLOR", "1")
    assert not output.coloured(Terminal())  # type: ignore[arg-type]


def test_a_bug_is_one_line_and_a_traceback_only_on_request(cluster_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("some\nthing")

    monkeypatch.setattr("belay.engine.replay.offline.plan_offline", broken)
    monkeypatch.delenv("BELAY_DEBUG", raising=False)
    refused(belay("plan", "--cluster", cluster_file), "internal error: KeyError", "report", "BELAY_DEBUG=1")
    monkeypatch.setenv("BELAY_DEBUG", "1")
    result = belay("plan", "--cluster", cluster_file)
    assert result.exit_code == 2 and "Traceback" in result.stderr


def test_a_full_disk_and_a_reader_that_leaves(cluster_file: str) -> None:
    command = f"{sys.executable} -m belay.engine.cli get chips --cluster {cluster_file}"
    full = subprocess.run(f"{command} > /dev/full", shell=True, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert full.returncode == 2 and full.stderr == "belay: [Errno 28] No space left on device [SystemError]\n"
    left = subprocess.run(
        ["bash", "-c", f"{command} | true; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
    )
    assert left.returncode == 0 and left.stderr == ""


def test_without_a_cluster_the_error_names_the_options(tmp_path: Path) -> None:
    nowhere = process("plan", KUBECONFIG=str(tmp_path / "none"))
    assert nowhere.returncode == 2 and "KUBECONFIG" in nowhere.stderr and nowhere.stderr.count("\n") == 1


def test_a_cluster_that_does_not_answer_is_said_within_seconds_without_its_secrets(tmp_path: Path) -> None:
    cluster = {"name": "c", "cluster": {"server": "http://user:hidden@127.0.0.1:1/secret"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "c"}}
    body = {"apiVersion": "v1", "kind": "Config", "clusters": [cluster], "contexts": [context], "current-context": "c"}
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump({**body, "users": [{"name": "c", "user": {}}]}))
    began = time.monotonic()
    result = belay("get", "nodes", "--kubeconfig", str(tmp_path / "kubeconfig"))
    refused(result, "http://127.0.0.1:1 does not answer", "KUBECONFIG")
    assert "hidden" not in result.stderr and "/secret" not in result.stderr
    assert time.monotonic() - began < 20  # three seconds, on a machine that does nothing else


# status, against an API server


def test_status_of_a_cluster(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    try:
        refused(belay("status", "--kubeconfig", cluster.kubeconfig), "belay-system/belay-sync", "controller")
        metadata = {"name": names.SYNC, "namespace": names.SYSTEM, "labels": {ABOUT_LABEL: "sync"}}
        findings = [
            {"severity": "error", "file": "a.yaml", "line": 1, "column": 2, "field": "spec", "message": "bad\x1b[2J"}
        ]
        data = {"appliedRevision": "abc", "attemptedRevision": "abd", "diagnostics.json": json.dumps(findings)}
        cluster.ensure(CONFIGMAP, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
        pool = NodeState("node-7", "training", "pre-isolated", "PreSeparateNPU", ("81078603",))
        cluster.ensure(CONFIGMAP, pool_bodies(Plan("abc", 0.0, nodes=(pool,)))[0])
        result = belay("status", "--kubeconfig", cluster.kubeconfig)
        assert result.exit_code == 0, result.output
        assert "revision applied   abc" in result.stdout and "a.yaml:1:2" in result.stdout
        assert "node-7   pre-isolated   PreSeparateNPU   81078603" in result.stdout
        assert "\x1b" not in result.stdout
        body = json.loads(belay("status", "--kubeconfig", cluster.kubeconfig, "-o", "json").stdout)
        assert body["applied"] == "abc" and body["attempted"] == "abd"
        _watched(cluster, data)
    finally:
        cluster.close()


def _watched(cluster: Cluster, data: dict[str, str]) -> None:
    """`status -w` prints again on a change, waits while the cluster is away, and Ctrl-C ends it quietly."""
    command = [sys.executable, "-m", "belay.engine.cli", "status", "-w", "--kubeconfig", cluster.kubeconfig]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline() == "revision attempted abd\n"
        change = {"data": {**data, "attemptedRevision": "abe"}}
        cluster.run(cluster.kube.patch(CONFIGMAP, names.SYNC, change, names.SYSTEM))
        while (line := watching.stdout.readline()) != "revision attempted abe\n":
            assert line, "it ended"
        cluster.run(cluster.server.stop())
        assert watching.stderr is not None
        assert watching.stderr.readline().startswith("waiting for the cluster: ")
        watching.send_signal(signal.SIGINT)
        _, errors = watching.communicate(timeout=20)
    assert (watching.returncode, errors) == (130, "")


def test_diff_leaves_out_defaults_of_kubernetes_in_lists() -> None:
    live = {"containers": [{"name": "a", "image": "x:1", "terminationMessagePath": "/dev/log"}, {"name": "b"}],
            "args": [{"x": 1, "y": 2}]}  # fmt: skip
    patch = {"containers": [{"name": "a", "image": "x:2"}], "args": [{"x": 3}]}
    assert differences._projected(live, patch) == {
        "containers": [{"name": "a", "image": "x:1"}, {"name": "b"}],
        "args": [{"x": 1}],
    }


def test_an_object_given_twice_counts_once_whatever_the_order(tmp_path: Path) -> None:
    items = world()
    node = next(item for item in items if item["kind"] == "Node")
    newer = json.loads(json.dumps(node))
    newer["metadata"]["resourceVersion"] = "99"
    newer["spec"] = {"unschedulable": True}
    seen = set()
    for index, order in enumerate(([*items, newer], [newer, *items])):
        file = tmp_path / f"{index}.json"
        file.write_text(json.dumps(as_list(order)))
        seen.add(belay("plan", "--cluster", str(file), "--explain", "-o", "json").stdout)
    assert len(seen) == 1


def test_validate_counts_a_warning_as_a_finding(repository: Path) -> None:
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: d, namespace: a}\n"
    (repository / "desired" / "marked.yaml").write_text("\ufeff" + text, encoding="utf-8")
    result = belay("validate", str(repository))
    assert result.exit_code == 1
    assert "marked.yaml:1:1" in result.stdout and "0 errors, 1 warning" in result.output


def test_every_flag_of_the_device_plugin_reaches_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    monkeypatch.setattr("belay.agents.daemon.__main__.main", lambda given, prog: taken.extend(given) or 0)
    given = ["--node", "n", "--driver", "dcmi"]
    more = ["--device-plugin", *(f"-{flag.name}" for flag in FLAGS), "-hotReset=2", "--exporter=-ip=127.0.0.1"]
    result = belay("agent", *given, *more)
    assert result.exit_code == 0 and "Usage" not in result.output
    assert taken == [*given, "--state-dir", "/var/lib/belay", *more]


@pytest.mark.parametrize("flag", ["-version", "--version"])
def test_the_agent_says_its_version_without_a_node(flag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NODE_NAME", raising=False)
    result = belay("agent", flag)
    assert result.exit_code == 0 and result.output.startswith("belay agent ")


@pytest.mark.parametrize("name", ["UPPER", "a_b", "../x", "a-", "a..b", "a.", "x" * 231])
def test_an_agent_does_not_start_under_a_name_that_no_node_has(name: str) -> None:
    command = [sys.executable, "-m", "belay.agents.daemon", "--node", name, "--driver", "simulated"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "is not the name of a node: 1 to 230 lower-case letters" in json.loads(done.stderr.splitlines()[-1])["error"]


def test_ctrl_c_during_imports_ends_quietly() -> None:
    code = (
        "import os, signal, sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'belay.engine.cli':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "from belay.engine.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code, "version"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_diff_shows_the_keys_that_git_takes_out_of_a_template() -> None:
    from belay.engine.cli.differences import _projected

    old = {"limits": {"huawei.com/Ascend310P-4c": "1"}, "requests": {"huawei.com/Ascend310P-4c": "1"}}
    new = {"limits": {"huawei.com/Ascend310P": 1}, "requests": {"huawei.com/Ascend310P": 1}}

    def deployment(resources: dict[str, Any], **more: Any) -> dict[str, Any]:
        container = {"name": "c", "image": "i", "resources": resources, **more}
        return {"spec": {"template": {"spec": {"containers": [container], "restartPolicy": "Always"}}}}

    live = deployment(old, terminationMessagePath="/dev/termination-log")
    shown = _projected(live, deployment(new))
    assert shown["spec"]["template"]["spec"]["containers"] == [{"name": "c", "image": "i", "resources": old}]
