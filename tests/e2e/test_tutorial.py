"""docs/tutorial.md, typed to the letter in one sandbox."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from belay.engine.sandbox.reader import ApiReader
from tests.e2e.test_readme import checked
from tests.e2e.test_up import MARK, marked
from tests.needs import lacking
from tests.walking import ROOT, Heard, blocks, folder, gone, person, shell

pytestmark = pytest.mark.e2e
PAGE = ROOT / "docs" / "tutorial.md"


@pytest.mark.timeout(180)
def test_the_tutorial_goes_as_written(tmp_path: Path) -> None:
    if shutil.which("kubectl") is None:
        lacking("kubectl is not on PATH: make test-packages")
    sections = blocks(PAGE)
    (first,) = sections.pop("Start the cluster")
    copy, home = folder(tmp_path), tmp_path / "home"
    environment = person(home) | {MARK: str(tmp_path), "BELAY_TIME_SCALE": "0.05", "TMPDIR": str(tmp_path)}
    up = subprocess.Popen(
        ["bash", "--norc", "-c", first], cwd=copy, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True,
    )  # fmt: skip
    heard = Heard(up)
    try:
        printed = heard.until("Ctrl-C ends everything", 60)
        said = printed.partition("In another terminal:\n")[2].partition("\n\n")[0]
        typed = [said]
        for section, texts in sections.items():
            typed += [f"echo '## {section}'", *(checked(text) for text in texts)]
        try:
            done = shell("\n".join(typed), copy, environment, 120)
        except subprocess.TimeoutExpired as late:  # the page waits without an end, as people can see what it waits for
            pytest.fail(
                str(late.output or b"", "utf-8", "replace")[-3000:] if isinstance(late.output, bytes) else str(late)
            )
        assert done.returncode == 0, done.stdout[-6000:]
        told = re.split(r"^## (.*)$", done.stdout, flags=re.MULTILINE)
        shown = dict(zip(told[1::2], told[2::2], strict=True))
        assert "huawei.com/Ascend910" in shown["Look around"]
        assert "reset answered: epoch 1 ok" in shown["Break a chip"]
        assert "CardUnhealthy 80C98001: job recovery" in shown["Break a chip"], "the gang moved away and ran again"
        assert "node node-3 of pool training is manually-isolated" in shown["Take a node out by hand"]
        assert re.search(r"desired/jobs/pretrain\.yaml:\d+:\d+", shown["Make a mistake"]), "the mistake was found"
        assert "different" not in shown["Ask what would happen"].casefold()
        kubeconfig = re.search(r"KUBECONFIG=(\S+)", said)
        assert kubeconfig is not None
        job = ApiReader(Path(kubeconfig[1])).get("/apis/mindxdl.gitee.com/v1/namespaces/default/ascendjobs/pretrain")
        assert job["spec"]["replicaSpecs"]["Worker"]["replicas"] == 2
    finally:
        os.killpg(up.pid, signal.SIGINT)
        up.wait(60)
    gone(list(marked(tmp_path)), 30)
    assert marked(tmp_path) == {}
