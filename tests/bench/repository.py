"""From a commit to the desired state: a repository of 10,000 documents, one file changed, beside a full reload.

A real Git repository, pushed to and fetched from over file://. Warm is an engine that has loaded the tree before; cold
one with neither clone nor cache, in a process whose modules are imported. The naive script pulls, parses every file
with PyYAML's C loader and checks it with pydantic; it finds no file:line:col and refuses no duplicate key.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict

from belay.engine.documents import KINDS, Desired
from belay.engine.load import LoadCache, load
from belay.engine.source import GitSource, Revision, SourceConfig
from tests.bench.measure import RUNS, Result
from tests.gitrepo import Repo, git

DOCUMENTS = 10_000
CHANGED = "desired/part-042/doc-04200.yaml"
SETUP = f"{DOCUMENTS:,} files of one document each: AscendJobs, Deployments, ConfigMaps, Isolations"


def run() -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="belay-bench-") as folder:
        root = Path(folder)
        repo = Repo(root / "repo")
        repo.commit({path(number): document(number, 0) for number in range(DOCUMENTS)})
        cold = Result("cold: clone, read and check everything", "s", 4, remark=SETUP)
        warm = Result("warm: one-file commit pushed → Desired updated (fetch, read, load)", "ms", 300)
        for number in range(RUNS):
            engine = _Engine(repo, root / f"mirror-{number}")
            cold.runs.append(_seconds(engine.update))
        for number in range(RUNS):
            commit(repo, number + 1)
            warm.runs.append(_seconds(engine.update) * 1000)
            assert engine.value(CHANGED) == f"version-{number + 1}", "the commit is not in the desired state"
        naive = _naive(repo, root / "clone")
        warm.remark = f"naive full reload: {naive.value:,.0f} ms, {naive.value / warm.value:.0f} times as long"
        return [warm, cold, naive]


@dataclass
class _Engine:
    """What controller and worker do with a repository, in one process."""

    repo: Repo
    mirror: Path
    revision: Revision | None = None
    desired: Desired | None = None

    def __post_init__(self) -> None:
        self._source = GitSource(SourceConfig(url=f"file://{self.repo.bare}"), self.mirror)
        self._cache = LoadCache()

    def update(self) -> None:
        """Fetch, read the files that are new, and load."""
        result = self._source.fetch(self.revision)
        assert result.revision is not None, result.conditions
        files = result.revision.files
        fresh = {blob for name, blob in files.items() if self._cache.get(name, blob) is None}
        loaded = load(
            _Files(files, self._source.read(fresh)),
            revision=result.revision.sha,
            blob_ids=files,
            cache=self._cache,
        )
        assert not loaded.diagnostics, loaded.diagnostics[0]
        self.revision, self.desired = result.revision, loaded.desired

    def value(self, file: str) -> str:
        """What the ConfigMap of a file holds in the desired state."""
        assert self.desired is not None
        found = next(item for item in self.desired.manifests if item.origin.file == file)
        return str(found.body["data"]["value"])


class _Files(Mapping[str, bytes]):
    """Every path of a revision; contents only of those that have to be read."""

    def __init__(self, files: Mapping[str, str], contents: Mapping[str, bytes]) -> None:
        self._files, self._contents = files, contents

    def __getitem__(self, name: str) -> bytes:
        return self._contents[self._files[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


class _Metadata(BaseModel):
    name: str
    namespace: str = "default"
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class _Manifest(BaseModel):
    model_config = ConfigDict(extra="allow")
    apiVersion: str
    kind: str
    metadata: _Metadata


def _naive(repo: Repo, clone: Path) -> Result:
    """What a plain script does after each commit."""
    subprocess.run(["git", "clone", "-q", str(repo.bare), str(clone)], check=True, capture_output=True)
    result = Result("naive: git pull, CSafeLoader and pydantic over every file", "ms")
    for number in range(RUNS):
        commit(repo, 100 + number)
        begin = time.perf_counter()
        git(clone, "pull", "-q")
        found = [_checked(body) for file in sorted(clone.rglob("*.yaml")) for body in _bodies(file)]
        result.runs.append((time.perf_counter() - begin) * 1000)
        assert len(found) == DOCUMENTS
    return result


def _bodies(file: Path) -> list[Any]:
    return list(yaml.load_all(file.read_bytes(), Loader=yaml.CSafeLoader))


def _checked(body: Any) -> BaseModel:
    model = KINDS.get(body["kind"]) if body["apiVersion"].startswith("belay.dev/") else None
    return (model or _Manifest).model_validate(body)


def commit(repo: Repo, version: int) -> None:
    """Change one file and push it."""
    (repo.work / CHANGED).write_text(document(4200, version))
    git(repo.work, "add", CHANGED)
    git(repo.work, "commit", "-q", "-m", f"version {version}")
    repo.push()


def path(number: int) -> str:
    return f"desired/part-{number // 100:03d}/doc-{number:05d}.yaml"


def document(number: int, version: int) -> str:
    kind = number % 10
    if kind < 4:
        return _CONFIG_MAP.format(number=number, version=version)
    if kind < 7:
        return _ASCEND_JOB.format(number=number)
    return _DEPLOYMENT.format(number=number) if kind < 9 else _ISOLATION.format(number=number)


def _seconds(work: Any) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


_CONFIG_MAP = """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: settings-{number}
  namespace: team-a
  labels: {{team: a, part: "{number}"}}
data:
  value: version-{version}
  text: |
    learning-rate = 0.001
    batch = 64
"""
_ASCEND_JOB = """\
apiVersion: mindxdl.gitee.com/v1
kind: AscendJob
metadata:
  name: train-{number}
  namespace: team-a
  labels: {{framework: pytorch, fault-scheduling: force}}
spec:
  schedulerName: volcano
  runPolicy: {{schedulingPolicy: {{minAvailable: 2, queue: default}}}}
  replicaSpecs:
    Master: &replica
      replicas: 1
      restartPolicy: Never
      template:
        spec:
          nodeSelector: {{host-arch: huawei-arm, accelerator-type: module-910b-8}}
          containers:
            - name: ascend
              image: registry.example.org/train:1
              command: [python, train.py]
              ports: [{{name: ascendjob-port, containerPort: 2222}}]
              resources:
                requests: {{huawei.com/Ascend910: 8}}
                limits: {{huawei.com/Ascend910: 8}}
    Worker: *replica
"""
_DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: chat-{number}
  namespace: team-a
  labels: {{app: chat-{number}}}
spec:
  replicas: 2
  selector: {{matchLabels: {{app: chat-{number}}}}}
  template:
    metadata: {{labels: {{app: chat-{number}}}}}
    spec:
      schedulerName: belay
      containers:
        - name: server
          image: registry.example.org/chat:1
          resources:
            requests: {{huawei.com/Ascend310P: 1}}
            limits: {{huawei.com/Ascend310P: 1}}
"""
_ISOLATION = """\
apiVersion: belay.dev/v1alpha1
kind: Isolation
metadata: {{name: isolation-{number}}}
spec:
  nodes: [node-{number}]
  reason: a fan is replaced
  until: "2026-12-01T08:00:00Z"
"""
