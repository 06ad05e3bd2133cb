"""`kubectl belay`, how its words go on, and the man pages."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import lacking

ROOT = Path(__file__).parents[1]
SCRIPTS = Path(sys.executable).parent


def call(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{SCRIPTS}:{os.environ['PATH']}"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, cwd=ROOT)


@pytest.fixture
def kubectl() -> str:
    if not (found := shutil.which("kubectl")):
        lacking("no kubectl on PATH: make test-packages")
    return str(found)


def test_kubectl_finds_the_plugin_and_its_usage_names_it(kubectl: str) -> None:
    assert call(kubectl, "belay", "version").stdout.startswith("belay ")
    listed = call(kubectl, "plugin", "list")
    assert str(SCRIPTS / "kubectl-belay") in listed.stdout, listed.stderr
    mistyped = call(kubectl, "belay", "stat")
    assert mistyped.returncode == 2
    assert mistyped.stderr.splitlines()[0].startswith("Usage: kubectl belay ") and "'status'" in mistyped.stderr


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["va"], ["validate\tCheck a state repository. Exit 1 on errors.", ":4"]),
        (["explain", "no"], ["node", ":4"]),
        (["get", "--kubec"], ["--kubeconfig\tDefault: $KUBECONFIG, ~/.kube/config, in-cluster.", ":4"]),
        (["validate", ""], [":0"]),
        (["zzz"], [":0"]),
    ],
)
def test_kubectl_learns_how_words_may_go_on(words: list[str], answer: list[str]) -> None:
    done = call("kubectl_complete-belay", *words)
    assert done.returncode == 0 and not done.stderr
    assert done.stdout.splitlines() == answer


def test_kubectl_itself_completes_the_plugins_words(kubectl: str) -> None:
    done = call(kubectl, "__complete", "belay", "expl")
    if "explain\t" not in done.stdout:  # kubectl before 1.26 does not ask plugins
        version = json.loads(call(kubectl, "version", "--client", "-o", "json").stdout)["clientVersion"]
        assert int(version["minor"].rstrip("+")) < 26, done
    else:
        assert "Say why" in done.stdout


def test_the_man_pages_say_what_the_verbs_say(tmp_path: Path) -> None:
    # in a process of its own: click-man leaves commands without their -h
    done = call(sys.executable, "-m", "tests.man_pages", str(tmp_path))
    assert done.returncode == 0, done.stderr
    fresh = {page.name: page.read_text() for page in tmp_path.iterdir()}
    kept = {page.name: page.read_text() for page in (ROOT / "docs" / "man").glob("*.1")}
    assert fresh == kept, "the verbs have changed: make reference"
    assert ".SH SYNOPSIS" in fresh["belay-explain.1"] and "belay-checkpoint-list.1" in fresh


def test_an_interrupt_at_any_moment_prints_no_traceback() -> None:
    said: set[str] = set()
    ends: set[int] = set()
    for number in range(40):
        process = subprocess.Popen(
            [str(SCRIPTS / "belay"), "version"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(number * 0.004)
        process.send_signal(signal.SIGINT)
        said.add(process.communicate(timeout=60)[1])
        ends.add(process.returncode)
    assert said == {""}, said
    assert ends <= {0, 130, -signal.SIGINT} and ends & {130, -signal.SIGINT}, ends


def test_modules_come_from_the_installation_not_from_the_folder_that_it_is_called_in(tmp_path: Path) -> None:
    for name in ("yaml.py", "click.py", "engine.py"):
        (tmp_path / name).write_text("raise SystemExit('the folder was imported')\n")
    for program in ("belay", "kubectl-belay"):
        done = subprocess.run([str(SCRIPTS / program), "version"], cwd=tmp_path, capture_output=True, timeout=60)
        assert (done.returncode, done.stdout[:6], done.stderr) == (0, b"belay ", b"")


def test_a_link_to_the_command_finds_its_own_python(tmp_path: Path) -> None:
    (tmp_path / "belay").symlink_to(SCRIPTS / "belay")
    (tmp_path / "python3").symlink_to("/bin/false")
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["belay", "version"], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout[:6], done.stderr) == (0, "belay ", "")
