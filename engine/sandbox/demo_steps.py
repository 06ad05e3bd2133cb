"""The steps of the demo: each acts as a user and ends when the API shows the result.

The lines that a step returns were read from the API afterwards; none is part of the script.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from belay import IMPORT_ROOT
from belay.engine.errors import BelayError
from belay.engine.model.labels import ASCEND_910, ASCEND_REAL, HUAWEI_PREFIX
from belay.engine.model.wording import counted
from belay.engine.sandbox import git_repository
from belay.engine.sandbox.demo_training import TrainingSteps
from belay.engine.sandbox.up import STARTS_WITHIN_S, Sandbox
from belay.engine.wire import names

Json = dict[str, Any]

JOB: Final = "pretrain"
RESET_CODE: Final = "80C98001"
"""Level RestartNPU: the chip needs a reset (policies/faults/chip.yaml)."""
QUIET_CODE: Final = "80E18400"
"""Level NotHandleFault by the shipped table: reported without action."""
POLICY: Final = f"""apiVersion: belay.dev/v1alpha1
kind: FaultPolicy
metadata:
  name: careful
spec:
  scope:
    pools: [training]
  levels:
    "{QUIET_CODE}": SeparateNPU
"""
BROKEN: Final = """apiVersion: mindxdl.gitee.com/v1
kind: AscendJob
metadata:
  name: broken
  labels: {framework: pytorch}
spec:
  replicaSpecs:
    Master:
      replicas: two
      template:
        spec:
          containers:
            - name: ascend
              image: trainer:1
              resources: {limits: {huawei.com/Ascend910: 8}}
"""
PLAIN_JOB: Final = f"""apiVersion: apps/v1
kind: Deployment
metadata:
  name: {JOB}
  namespace: default
spec:
  replicas: 2
  selector:
    matchLabels: {{app: {JOB}}}
  template:
    metadata:
      labels: {{app: {JOB}, fault-scheduling: force}}
    spec:
      schedulerName: volcano
      nodeSelector: {{host-arch: huawei-arm, accelerator-type: module-910b-8}}
      containers:
        - name: main
          image: trainer:1
          resources:
            requests: {{huawei.com/Ascend910: 8}}
            limits: {{huawei.com/Ascend910: 8}}
"""
"""The job for API servers without custom resources."""
NOTICE: Final = """apiVersion: v1
kind: ConfigMap
metadata:
  name: notice
  namespace: default
data:
  text: the good documents of a commit do not wait for the bad ones
"""


class DemoSteps:
    """A user's actions on the sandbox and the expected results. Every method returns lines about what it observed."""

    def __init__(self, sandbox: Sandbox, folder: Path) -> None:
        self._sandbox = sandbox
        self._reader = sandbox.reader
        self._tree = folder / "state"
        self._kubectl = shutil.which("kubectl")
        self._plain = not sandbox.options.definitions

    # 1

    def cluster(self) -> list[str]:
        """The sandbox is up: count its nodes and chips."""
        nodes = self._until("the nodes are listed", lambda: self._reader.list("/api/v1/nodes"))
        chips = sum(_devices(node, "allocatable") for node in nodes)
        versions = sorted({node["status"]["nodeInfo"]["kubeletVersion"] for node in nodes})
        found = f"{counted(len(nodes), 'node')} with {counted(chips, 'chip')}"
        self._need(len(nodes) == self._sandbox.node_count and chips > 0, found)
        return [f"{len(nodes)} nodes are Ready with {chips} chips (kubelets {', '.join(versions)})"]

    # 2

    def job(self) -> list[str]:
        """A job is pushed, placed, and runs."""
        git_repository.git("clone", "--quiet", str(self._sandbox.folder.repository), str(self._tree))
        if self._plain:
            self._write("jobs/pretrain.yaml", PLAIN_JOB)
        else:
            self._take_sample("jobs/pretrain.yaml")
        out = [self._push("Train on two servers")]
        pods = self._until("both pods of the job run", self._job_runs)
        out += [f"{_name(pod)} runs on {_node(pod)} with {counted(len(_chips(pod)), 'chip')}" for pod in pods]
        if not self._plain:
            table = self._until("the rank table is complete", self._rank_table)
            out.append(f"rank table: {table['status']}, {table['server_count']} servers")
        return out

    # 3

    def policy(self) -> list[str]:
        """A pushed policy raises the level of a code that the shipped table ignores."""
        node, chip = self._idle_node(), "Ascend910-5"
        said = self._belay("inject", "fault", f"{node}/{chip}", QUIET_CODE)
        self._until("the fault is reported", lambda: QUIET_CODE in self._reported(node))
        before = self._chip(node, chip)
        self._need(
            before.get("state") not in ("isolated", "resetting"), f"{node}/{chip} is {before.get('state')} already"
        )
        self._write("faults/careful.yaml", POLICY)
        pushed = self._push("Take chips with this code out")
        after = self._until(f"{node}/{chip} is isolated", lambda: self._chip_in(node, chip, "isolated"))
        self._until("its node offers one chip less", lambda: self._offers(node, 7))
        self._belay("inject", "fault", f"{node}/{chip}", "--clear")
        self._until(f"{node}/{chip} is back", lambda: self._clean(node, chip) and self._offers(node, 8))
        was = before.get("level") or "no level"
        return [
            said,
            f"by the shipped table: {was}, {_free(before)}",
            pushed,
            f"now: {after['level']}, isolated",
            "cleared: back",
        ]

    # 4 to 6

    def fault(self) -> list[str]:
        """A chip of the running job breaks: it is isolated and the job moves."""
        before = self._job_pods()
        self._broken = (_node(before[0]), "Ascend910-3")
        node, chip = self._broken
        said = self._belay("inject", "fault", f"{node}/{chip}", RESET_CODE)
        state = self._until(
            f"{node}/{chip} is out of service", lambda: self._chip_in(node, chip, "isolated", "resetting")
        )
        old = {pod["metadata"]["uid"] for pod in before}
        pods = self._until("the job runs elsewhere", lambda: self._moved(old, node))
        out = [said, f"{node}/{chip}: {state['state']}, level {state['level']}"]
        return out + [
            f"{_name(pod)} runs again on {_node(pod)} with {counted(len(_chips(pod)), 'chip')}" for pod in pods
        ]

    def reset(self) -> list[str]:
        """The broken chip is idle now: it is reset and comes back."""
        node, chip = self._broken
        done = self._until(f"{node}/{chip} was reset", lambda: self._was_reset(node, chip))
        self._until(f"{node}/{chip} is back in service", lambda: self._clean(node, chip) and self._offers(node, 8))
        return [f"epoch {done['resetEpochDone']}: {done['resetResult']}", f"{node} offers 8 chips again"]

    # 7

    def layout(self) -> list[str]:
        """A vNPU layout is pushed: the chip is cut, and the parts are resources of the node."""
        self._take_sample("layouts/inference.yaml")
        self._take_sample("inference/chat.yaml")
        pushed = self._push("Cut a chip and serve from a whole one")
        wanted = {"huawei.com/Ascend310P-4c": "1", "huawei.com/Ascend310P-2c.1cpu": "2"}
        self._until(
            "the parts are resources of infer-1", lambda: wanted.items() <= self._allocatable("infer-1").items()
        )
        parts = self._report("infer-1")["vnpu"]["devices"]
        pods = self._until("the inference service runs", lambda: self._running("app=chat", 1))
        out = [pushed, "infer-1: " + ", ".join(f"{part['chip']} has {part['template']}" for part in parts)]
        return [*out, f"{pods[0]['metadata']['name']} runs on {', '.join(_chips(pods[0]))}, a whole chip"]

    # 8

    def refusal(self) -> list[str]:
        """An invalid document is rejected with its line; the rest of the commit is applied and jobs continue."""
        before = {pod["metadata"]["uid"] for pod in self._job_pods()}
        self._write("jobs/broken.yaml", BROKEN)
        self._write("notice.yaml", NOTICE)
        pushed = self._push("A mistake, and something good")
        found = self._until("the mistakes are named", self._diagnostics)
        self._until("the good document is applied", lambda: self._reader.config_map("default", "notice"))
        after = {pod["metadata"]["uid"] for pod in self._until("the job goes on", self._job_runs)}
        self._need(after == before, "the job's pods are not the same as before")
        self._need(self._reader.get(f"{_JOBS}/broken") is None, "the broken job was applied")
        out = [f"{row['file']}:{row['line']}:{row['column']} {row['message']}" for row in found]
        return [pushed, *out, "the other document of the commit is applied, the job goes on"]

    # 9

    def status(self) -> list[str]:
        """Everyone who can read ConfigMaps can read the status."""
        kind = "Deployment" if self._plain else "AscendJob"
        wanted = [names.SYNC, f"{names.POOL_PREFIX}training", names.job_config_map("default", kind, JOB)]
        if self._kubectl is None:
            text = self._belay("get", "jobs")
            self._need(JOB in text, "belay get jobs does not show the job")
            return ["kubectl is not on PATH, so this is `belay get jobs`:", *text.splitlines()]
        text = self._run([self._kubectl, "get", "configmaps", "-A"])
        missing = [name for name in wanted if name not in text]
        self._need(not missing, f"kubectl does not show {', '.join(missing)}")
        shown = [line for line in text.splitlines() if line.startswith(("NAMESPACE", f"{names.SYSTEM} "))]
        return ["$ kubectl get configmaps -A", *shown, f"… {len(text.splitlines()) - 1} in all"]

    # 10

    def training(self) -> list[str]:
        """A job trains for real while a rank is killed and a chip breaks."""
        return TrainingSteps(self._sandbox, self._tree, self._until, self._push, self._belay).run()

    # doing

    def _take_sample(self, path: str) -> None:
        self._write(path, (git_repository.sample() / path).read_text())

    def _write(self, path: str, text: str) -> None:
        file = self._tree / "desired" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def _push(self, message: str) -> str:
        """Commit, push, and wait until the revision is in force."""
        git_repository.git("add", "--all", cwd=self._tree)
        git_repository.git("commit", "--quiet", "--no-verify", "--no-gpg-sign", "--message", message, cwd=self._tree)
        git_repository.git("push", "--quiet", "origin", f"HEAD:{git_repository.BRANCH}", cwd=self._tree)
        tip = git_repository.git("rev-parse", "HEAD", cwd=self._tree)
        self._until(f"revision {tip[:12]} is in force", lambda: self._sandbox.applied() == tip)
        return f"$ git push   {tip[:12]} “{message}” is in force"

    def _belay(self, *arguments: str) -> str:
        return self._run([sys.executable, "-m", "belay.engine.cli", *arguments])

    def _run(self, command: list[str]) -> str:
        environment = os.environ | {
            "KUBECONFIG": str(self._sandbox.kubeconfig),
            "PYTHONPATH": str(IMPORT_ROOT),
            "NO_COLOR": "1",
        }
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        words = " ".join(Path(part).name if index == 0 else part for index, part in enumerate(command))
        if done.returncode:
            raise BelayError(f"{words} failed with exit code {done.returncode}: {done.stderr.strip()[-300:]}")
        return done.stdout.strip()

    def _until(self, what: str, find: Callable[[], Any], seconds: float = STARTS_WITHIN_S) -> Any:
        found: list[Any] = []

        def check() -> bool:
            found[:] = [find()]
            return bool(found[0])

        self._sandbox.wait(what, check, seconds=seconds)
        return found[0]

    @staticmethod
    def _need(holds: bool, otherwise: str) -> None:
        if not holds:
            raise BelayError(otherwise)

    # reading

    def _pods(self, selector: str) -> list[Json]:
        return self._reader.list(f"/api/v1/namespaces/default/pods?labelSelector={selector.replace('=', '%3D')}")

    def _running(self, selector: str, count: int) -> list[Json]:
        pods = [p for p in self._pods(selector) if not p["metadata"].get("deletionTimestamp")]
        return pods if len(pods) == count and all(p["status"].get("phase") == "Running" for p in pods) else []

    def _job_pods(self) -> list[Json]:
        selector = f"app={JOB}" if self._plain else f"job-name={JOB}"
        return sorted(self._running(selector, 2), key=lambda pod: str(pod["metadata"]["name"]))

    def _job_runs(self) -> list[Json]:
        """The job's pods if it runs: two pods on two nodes with eight chips each, and the job's status agrees."""
        pods = self._job_pods()
        path = f"{_DEPLOYMENTS}/{JOB}" if self._plain else f"{_JOBS}/{JOB}"
        conditions = ((self._reader.get(path) or {}).get("status") or {}).get("conditions") or ()
        word = "Available" if self._plain else "Running"
        running = any(c.get("type") == word and c.get("status") == "True" for c in conditions)
        apart = len({_node(pod) for pod in pods}) == 2 and all(len(_chips(pod)) == 8 for pod in pods)
        return pods if running and apart else []

    def _moved(self, old: set[str], node: str) -> list[Json]:
        """The pods after the job left the node; a training job moves as a whole, a Deployment moves affected pods."""
        pods = self._job_runs()
        fresh = [pod for pod in pods if pod["metadata"]["uid"] not in old]
        return pods if fresh and (self._plain or fresh == pods) and all(_node(p) != node for p in pods) else []

    def _rank_table(self) -> Json | None:
        data = self._reader.config_map("default", f"rings-config-{JOB}")
        table = json.loads(data.get("hccl.json") or "{}")
        return table if table.get("status") == "completed" else None

    def _idle_node(self) -> str:
        used = {_node(pod) for pod in self._job_pods()}
        training = sorted(str(n["metadata"]["name"]) for n in self._reader.list("/api/v1/nodes"))
        return [name for name in training if name.startswith("node-") and name not in used][-1]

    def _chip(self, node: str, chip: str) -> Json:
        """The chip's row in the pool's status; empty for a healthy chip without a row."""
        rows = json.loads(
            self._reader.config_map(names.SYSTEM, f"{names.POOL_PREFIX}training").get("chips.json") or "[]"
        )
        found: Json = next((row for row in rows if row["node"] == node and row["chip"] == chip), {})
        return found

    def _chip_in(self, node: str, chip: str, *states: str) -> Json | None:
        row = self._chip(node, chip)
        return row if row.get("state") in states else None

    def _clean(self, node: str, chip: str) -> bool:
        return not self._chip(node, chip) and bool(
            self._reader.config_map(names.SYSTEM, f"{names.POOL_PREFIX}training")
        )

    def _reported(self, node: str) -> str:
        return self._reader.config_map(names.DEVICE_NAMESPACE, names.DEVICE_PREFIX + node).get("DeviceInfoCfg", "")

    def _report(self, node: str) -> Json:
        data = self._reader.config_map(names.NODES, names.REPORT_PREFIX + node)
        return dict(json.loads(data.get("report.json") or "{}"))

    def _was_reset(self, node: str, chip: str) -> Json | None:
        entry = (self._report(node).get("chips") or {}).get(chip) or {}
        return dict(entry) if entry.get("resetEpochDone", 0) > 0 and entry.get("resetResult") == "ok" else None

    def _allocatable(self, node: str) -> dict[str, str]:
        return dict(((self._reader.get(f"/api/v1/nodes/{node}") or {}).get("status") or {}).get("allocatable") or {})

    def _offers(self, node: str, chips: int) -> bool:
        return self._allocatable(node).get(ASCEND_910) == str(chips)

    def _diagnostics(self) -> list[Json]:
        rows = json.loads(self._reader.config_map(names.SYSTEM, names.SYNC).get("diagnostics.json") or "[]")
        return [row for row in rows if row["file"].endswith("jobs/broken.yaml") and row["line"] > 0]


_DEPLOYMENTS: Final = "/apis/apps/v1/namespaces/default/deployments"
_JOBS: Final = "/apis/mindxdl.gitee.com/v1/namespaces/default/ascendjobs"


def _name(pod: Json) -> str:
    return str(pod["metadata"]["name"])


def _node(pod: Json) -> str:
    return str((pod.get("spec") or {}).get("nodeName") or "")


def _chips(pod: Json) -> list[str]:
    text = str((pod["metadata"].get("annotations") or {}).get(ASCEND_REAL) or "")
    return [name for name in text.split(",") if name]


def _devices(node: Json, part: str) -> int:
    counts = (node.get("status") or {}).get(part) or {}
    return sum(int(count) for resource, count in counts.items() if resource.startswith(HUAWEI_PREFIX))


def _free(chip: Json) -> str:
    return "in service" if not chip else f"state {chip['state']}"
