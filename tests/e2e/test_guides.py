"""The guides of docs/guides that need a sandbox, typed to the letter in one that has servers of two products."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.test_readme import checked
from tests.e2e.test_up import MARK, marked
from tests.needs import lacking
from tests.receivers import HttpReceiver
from tests.walking import ROOT, Heard, blocks, folder, gone, person, shell

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
DOCS = ROOT / "docs"
SERVERS = "3x800t-a2,1x300i-pro"


class Reader:
    """A person who types pages, in the clone of the sandbox's state repository."""

    def __init__(self, place: Path, environment: dict[str, str], said: str) -> None:
        self._place, self._environment, self._said = place, environment, said

    def types(self, page: Path, *, only: str = "") -> str:
        """What the commands of a page printed (of one section of it, with ``only``)."""
        sections = {name: texts for name, texts in blocks(page).items() if only in ("", name)}
        texts = [text for found in sections.values() for text in found if not text.startswith("export ")]
        assert texts, page
        # the first guide goes to the clone itself
        begun = [] if texts[0].startswith("cd state") else ["cd state"]
        typed = "\n".join([self._said, *begun, *map(checked, texts)])
        try:
            done = shell(typed, self._place, self._environment, 100)
        except subprocess.TimeoutExpired as late:
            output = late.output or b""
            pytest.fail(output.decode(errors="replace")[-4000:] if isinstance(output, bytes) else output[-4000:])
        assert done.returncode == 0, done.stdout[-6000:]
        self._said = "\n".join(line for line in self._said.splitlines() if "git clone" not in line)
        return done.stdout


@pytest.fixture(scope="module")
def chat() -> Iterator[HttpReceiver]:
    with HttpReceiver() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory, chat: HttpReceiver) -> Iterator[Reader]:
    if shutil.which("kubectl") is None:
        lacking("kubectl is not on PATH: make test-packages")
    place = tmp_path_factory.mktemp("guides")
    copy = folder(place)
    environment = person(place / "home") | {
        MARK: str(place), "BELAY_TIME_SCALE": "0.05", "TMPDIR": str(place),
        "BELAY_NOTIFY_HOSTS": chat.address, "BELAY_NOTIFY_CHAT": f"http://{chat.address}/hook",
    }  # fmt: skip
    up = subprocess.Popen(
        [".venv/bin/belay", "up", "--nodes", SERVERS, "--data", str(place / "data")], cwd=copy, env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    heard = Heard(up)
    try:
        printed = heard.until("Ctrl-C ends everything", 90)
        yield Reader(copy, environment, printed.partition("In another terminal:\n")[2].partition("\n\n")[0])
    finally:
        os.killpg(up.pid, signal.SIGINT)
        up.wait(60)
        gone(list(marked(place)), 30)


def test_a_first_job_runs_waits_and_leaves(reader: Reader) -> None:
    said = reader.types(DOCS / "guides" / "first-job.md")
    assert "plan: 1 job placed" in said
    assert re.search(r"^node-3 Ascend910-\d$", said, re.MULTILINE), "the pod has a node and a chip"
    assert "default/hello is Running" in said


def test_a_first_vnpu_is_cut_used_and_put_together(reader: Reader) -> None:
    said = reader.types(DOCS / "guides" / "first-vnpu.md")
    assert '"huawei.com/Ascend310P-4c.3cpu":"2"' in said
    # the wait for their end shows them once more with each look
    used = said.partition("$ until ! belay")[0]
    assert len(re.findall(r"vir04_3c +exists +default/small-", used)) == 2, said


def test_a_fault_policy_is_tried_on_its_own_history(reader: Reader) -> None:
    said = reader.types(DOCS / "guides" / "fault-policy.md")
    avoided = said.partition("actions avoided")[2].partition("new\n")[0]
    assert "ResetChips" in avoided, "the third reset would not have been"
    assert re.search(r"IsolateChip +node-3/Ascend910-6", said.partition("action new")[2])
    assert said.count("is in force: all of") == 2, "in shadow, then enforced"


def test_the_chat_hears_once_with_cause_way_out_and_link(reader: Reader, chat: HttpReceiver) -> None:
    before = len(chat.taken)
    reader.types(DOCS / "notifications.md", only="Try it")
    ends = time.monotonic() + 60

    def heard() -> str:
        return "\n".join(one.json["text"] for one in chat.taken[before:])

    while not ("80818C00" in heard() and "ticket 4711" in heard()) and time.monotonic() < ends:
        time.sleep(0.1)
    said = heard()
    assert said.count("• chip node-2/1 reports fault 80818C00, level SeparateNPU") == 1
    assert "way out: belay explain chip node-2/1" in said
    assert re.search(r"http://127\.0\.0\.1:\d+/console/#/map\?at=\S+select=chip/node-2/1", said)
    assert re.search(r"kept out of service by .*ticket 4711, desired/isolations\.yaml:\d+@[0-9a-f]+ by Ada", said), said


def test_a_lost_commit_comes_back_from_the_copy(reader: Reader) -> None:
    said = reader.types(DOCS / "guides" / "backup.md")
    assert "forced update" in said
    assert re.search(r"^applied +|is in force", said.partition("forced update")[2], re.MULTILINE)
