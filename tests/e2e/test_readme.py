"""The tour of the README, typed to the letter."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from belay.engine.sandbox.reader import ApiReader
from belay.engine.sandbox.timeline import read
from tests.e2e.test_up import MARK, marked
from tests.needs import lacking
from tests.walking import ROOT, blocks, folder, person, shell

pytestmark = [pytest.mark.e2e]
#: Commands that end with 1 to say that there are differences.
TELL = ("belay diff", "belay policy test", "belay simulate", "belay validate")


def commands(block: str) -> list[str]:
    """The commands of a block, a line each; a here document belongs to the line that opens it."""
    found: list[str] = []
    end = ""
    for line in block.splitlines():
        if end:
            found[-1] += f"\n{line}"
        else:
            found.append(line)
        opened = re.search(r"<<'(\w+)'$", line)
        end = opened[1] if opened else "" if line == end else end
    return found


def checked(block: str) -> str:
    """Every line, and the end of the shell after the first that failed."""
    out = []
    for line in commands(block):
        most = 1 if line.startswith(TELL) else 0
        out += [f"echo {shlex.quote('$ ' + line)}", line, f"ended=$?; [ $ended -le {most} ] || exit $((100 + ended))"]
    return "\n".join(out)


@pytest.mark.timeout(900)
def test_the_tour_goes_as_written(tmp_path: Path) -> None:
    if shutil.which("kubectl") is None:
        lacking("kubectl is not on PATH: make test-packages")
    first, there, files = blocks(ROOT / "README.md")["The tour"]
    copy, home = folder(tmp_path), tmp_path / "home"
    environment = person(home) | {MARK: str(tmp_path), "BELAY_TIME_SCALE": "0.05", "TMPDIR": str(tmp_path)}
    log = tmp_path / "up.log"
    with log.open("wb") as output:
        up = subprocess.Popen(
            ["bash", "--norc", "-c", first], cwd=copy, env=environment, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
    try:
        ends = time.monotonic() + 120
        while "Ctrl-C ends everything" not in log.read_text():
            assert up.poll() is None and time.monotonic() < ends, log.read_text()
            time.sleep(0.1)
        told = log.read_text().partition("In another terminal:\n")[2].partition("\n\n")[0]
        assert len(told.splitlines()) == 3, "the README says three lines"
        typed = shell(
            "\n".join((told, checked(there), checked(files))), copy, environment, 580
        )  # 210 s of them for the faults
        assert typed.returncode == 0, typed.stdout[-6000:]
        kubeconfig = re.search(r"KUBECONFIG=(\S+)", told)
        assert kubeconfig is not None
        reader = ApiReader(Path(kubeconfig[1]))
        job = reader.get("/apis/mindxdl.gitee.com/v1/namespaces/default/ascendjobs/pretrain")
        assert job["spec"]["replicaSpecs"]["Worker"]["replicas"] == 2, "the push took effect"
        ended = [one["type"] for one in job["status"]["conditions"] if one["status"] == "True"]
        assert not {"Failed", "Succeeded"} & set(ended), "the job outlives the faults of the tour"
        assert not re.search(r"(?<!only )\b0 pods", typed.stdout) and "left out" not in typed.stdout
        named = 0
        for file in (copy / "state" / "desired").rglob("*.yaml"):
            for schema in re.findall(r"\$schema=(\S+)", file.read_text()):
                named += 1
                assert json.loads((file.parent / schema).read_text())["$schema"], f"{file} names {schema}"
        assert named >= 4
        assert "belay replay" in files and re.search(r"passes/\S+ .* (yes|true)$", typed.stdout, re.M)
    finally:
        os.killpg(up.pid, signal.SIGINT)
        up.wait(60)
    ends = time.monotonic() + 60
    while marked(tmp_path) and time.monotonic() < ends:
        time.sleep(0.05)
    assert marked(tmp_path) == {}


def test_the_story_is_as_long_as_the_readme_says() -> None:
    minutes = read(ROOT / "deploy/samples/faults-timeline.yaml")[-1].at / 60
    (line,) = [line for line in (ROOT / "README.md").read_text().splitlines() if "inject --timeline" in line]
    said = re.search(r"--speed (\d+).*: (\d+) minutes of them in (\d+) s", line)
    assert said is not None
    speed, whole, seconds = map(int, said.groups())
    assert (minutes, minutes * 60 / speed) == (whole, seconds)


def test_the_verbs_that_the_readme_names_exist() -> None:
    (block,) = blocks(ROOT / "README.md")["Two commands"]
    for line in block.splitlines():
        verb = line.partition("#")[0].split()
        assert verb[0] == "make"
        done = subprocess.run([*verb, "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
