"""Ten tasks in a terminal, each in one or two commands, as docs/sessions.md shows them. `python -m tests.sessions`.

Nothing is made up but the cluster: the commands run on the sample repository, its cluster and a history. What changes
with every edit of the sample (commits) is shown as the same commit always.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from click.testing import CliRunner

from belay.engine.cli import main as belay
from belay.engine.model.times import rfc3339
from tests.golden.stories import sample_world
from tests.history_world import BEGIN, HistoryWorld

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "sessions.md"
LLM: Final = "default/AscendJob/llm"
NIGHT: Final = rfc3339(BEGIN - 3600)
_AUTHOR: Final = {
    **{f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER")
       for what, value in (("NAME", "Ann Lee"), ("EMAIL", "ann@example.org"), ("DATE", "2026-11-27T18:00:00Z"))},
    "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, "COLUMNS": "110", "NO_COLOR": "1",
}  # fmt: skip
#: Task, and its commands: one, or at most two.
TASKS: Final = (
    ("Who waits, and why", ("belay get jobs --filter phase=Pending", "belay explain job default/big")),
    ("Isolate a chip until Friday",
     ("belay isolate node-1/3 --reason 'ECC, ticket 4711' --until 2026-12-04T18:00:00Z",)),
    ("Drain a node", ("belay drain node-2 --reason 'new fan' --until 2026-12-04T20:00:00Z",)),
    ("Who caused this eviction", (f"belay history job default/llm --since {NIGHT}",)),
    ("What happened last night", (f"belay history --since {NIGHT}",)),
    ("Raise a priority", ("belay priority pretrain high",)),
    ("Roll back", ("belay rollback",)),
    ("A vNPU layout, and a job on it",
     ("belay new layout halves --pool inference --cut 4-7=vir04,vir02",
      "belay new job tokens --template vir02 --kind Job --product atlas-300i-pro")),
    ("Adopt a running Deployment", ("belay adopt default/deployment/talk",)),
    ("Usage of a month", ("belay usage --by user --month 2026-09",)),
)  # fmt: skip


class SessionWorld:
    """The sample repository with a remote, its cluster with a job that waits, and a night in the history."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = f"sqlite:///{folder / 'history.db'}"
        self.repository = self._repository()
        self.cluster = self._cluster()
        self._history()

    def _repository(self) -> Path:
        remote, clone = self.folder / "state.git", self.folder / "state"
        self._git("init", "-q", "--bare", "--initial-branch=main", str(remote))
        self._git("clone", "-q", str(remote), str(clone))
        subprocess.run(["cp", "-r", str(ROOT / "desired"), str(clone)], check=True)
        self._git("-C", str(clone), "checkout", "-q", "-B", "main")
        self._git("-C", str(clone), "add", "--all")
        self._git("-C", str(clone), "commit", "-qm", "Begin")
        self._git("-C", str(clone), "push", "-q", "-u", "origin", "main")
        return clone

    def _git(self, *words: str) -> None:
        subprocess.run(["git", *words], check=True, capture_output=True, env={**os.environ, **_AUTHOR})

    def _cluster(self) -> Path:
        world = sample_world()
        world.until_quiet()
        items = json.loads(json.dumps(list(world.objects.values())))
        pods = next(item for item in items if item["kind"] == "Pod" and item["metadata"]["name"].startswith("pretrain"))
        items += [self._waiting(pods, number) for number in range(9)]
        items += [_pod_group("big", 9), _deployment()]
        file = self.folder / "cluster.json"
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        return file

    def _waiting(self, like: Mapping[str, Any], number: int) -> dict[str, Any]:
        """A pod of a gang of nine servers, which the cluster has no room for."""
        pod: dict[str, Any] = json.loads(json.dumps(like))
        about = pod["metadata"]
        about |= {
            "name": f"big-{number}",
            "uid": f"big-{number}",
            "resourceVersion": "1",
            "annotations": {"scheduling.k8s.io/group-name": "big"},
        }
        about["ownerReferences"] = [
            {"apiVersion": "mindxdl.gitee.com/v1", "kind": "AscendJob", "name": "big", "uid": "big", "controller": True}
        ]
        about["labels"] = {name: value.replace("pretrain", "big") for name, value in about.get("labels", {}).items()}
        pod["spec"].pop("nodeName", None)
        pod["status"] = {"phase": "Pending"}
        return pod

    def _history(self) -> None:
        world = HistoryWorld(self.database)
        world.commit("a" * 40, "Ann Lee <ann@example.org>", "Start llm")
        world.submit(LLM, user="Ann Lee <ann@example.org>")
        world.look()
        world.passes(65)
        world.place(LLM, "node-1")
        world.look()
        world.passes(36_000)
        world.commit("b" * 40, "Bo Chen <bo@example.org>", "Isolate chips of 80C98001 at once")
        world.look()
        world.passes(600)
        world.fault("node-1", 3)
        rule = "desired/faults/training.yaml:7@bbbbbbbbbbbb"
        world.act("IsolateChip", "ChipFault", "node-1", f"Ascend910-3 of node-1: level SeparateNPU by 80C98001, {rule}",
                  {"kind": "FaultPolicy", "revision": "b" * 40, "author": "Bo Chen <bo@example.org>"})  # fmt: skip
        world.evict(LLM)
        world.recovery(LLM)
        world.says(LLM, f"rescheduled: CardUnhealthy: 80C98001 on node-1/Ascend910-3, {rule}")
        world.look()
        world.passes(30)
        world.place(LLM, "node-2")
        world.recovery(LLM, back=30)
        world.look()
        world.passes(7_200)
        world.finish(LLM)
        world.look()

    def run(self, command: str) -> tuple[int, str]:
        """Exit code and what a terminal shows."""
        words = shlex.split(command)[1:]
        if words[0] in ("get", "explain"):
            words += ["--cluster", str(self.cluster), "--desired", str(self.repository)]
        elif words[0] in ("history", "usage"):
            words += ["--database", self.database]
        else:
            words += ["--repo", str(self.repository), "--cluster", str(self.cluster)]
        with patch.dict(os.environ, _AUTHOR):
            ended = CliRunner().invoke(belay, words)
        return ended.exit_code, self._plain(ended.output)

    def _plain(self, text: str) -> str:
        text = text.replace(f" --repo {self.repository}", "").replace(f"git -C {self.repository}", "git")
        text = text.replace(str(self.repository), "state").replace(str(self.folder), "…")
        text = re.sub(r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,40}\b", "3f2a9c1", text)
        return "\n".join(line.rstrip() for line in text.splitlines())


def _pod_group(name: str, least: int) -> dict[str, Any]:
    about = {"name": name, "namespace": "default", "uid": f"group-{name}", "resourceVersion": "1"}
    spec = {"minMember": least, "queue": "default", "minResources": {"huawei.com/Ascend910": str(8 * least)}}
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": about, "spec": spec,
        "status": {"phase": "Inqueue"},
    }  # fmt: skip


def _deployment() -> dict[str, Any]:
    about = {"app": "talk"}
    container = {"name": "talk", "image": "talk:1"}
    return {
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "talk", "namespace": "default", "uid": "talk", "resourceVersion": "1", "generation": 1},
        "spec": {"replicas": 1, "selector": {"matchLabels": about},
                 "template": {"metadata": {"labels": about}, "spec": {"containers": [container]}}},
        "status": {"replicas": 1},
    }  # fmt: skip


def page() -> tuple[str, dict[str, int]]:
    """The page, and each command with its exit code."""
    lines = [
        "# Ten tasks in a terminal",
        "",
        "Each is one command, or two. They ran in a clone of the sample repository, with the tutorial's cluster:",
        "what each prints is what it printed (`make sessions` writes this page; commits are shown as one).",
        "In the console each is at most two clicks away:",
        "[the console](console.md).",
    ]
    codes = {}
    with tempfile.TemporaryDirectory(prefix="belay-sessions-") as folder:
        world = SessionWorld(Path(folder))
        for task, commands in TASKS:
            lines += ["", f"## {task}", "", "```console"]
            for command in commands:
                codes[command], shown = world.run(command)
                lines += [f"$ {command}", *shown.splitlines()]
            lines.append("```")
    return "\n".join(lines) + "\n", codes


if __name__ == "__main__":
    PAGE.write_text(page()[0])
