"""What of a pod becomes a process in the sandbox: words, variables, paths."""

from __future__ import annotations

from typing import Any

import pytest

from belay.engine.errors import InputError
from belay.engine.sandbox import up
from belay.engine.sandbox.containers_shape import command_of, environment, mounted
from belay.engine.sandbox.demo_training import drawn


def pod(*command: str, env: list[dict[str, Any]] | None = None, args: tuple[str, ...] = ()) -> dict[str, Any]:
    container = {"name": "ascend", "command": list(command), "args": list(args), "env": env or []}
    metadata = {"name": "p-0", "annotations": {"huawei.com/Ascend910": "0,1"}, "labels": {"app": "x"}}
    return {"metadata": metadata, "spec": {"nodeName": "node-1", "containers": [container]}, "status": {}}


def test_only_belay_train_runs_as_a_real_process() -> None:
    assert command_of(pod("belay", "train", "--nproc", "2", args=("s.py",))) == ["--nproc", "2", "s.py"]
    assert command_of(pod("/usr/bin/belay-train", "s.py")) == ["s.py"]
    assert command_of(pod("sh", "-c", "belay train s.py")) is None
    assert command_of(pod("belay", "up")) is None
    assert command_of(pod()) is None
    assert command_of({"metadata": {}, "spec": {"containers": []}}) is None


def test_variables_refer_to_earlier_ones_and_to_fields_of_the_pod() -> None:
    found = environment(
        pod(
            "belay",
            env=[
                {"name": "A", "value": "1"},
                {"name": "B", "value": "$(A)-$(LATER)-$$(A)"},
                {"name": "LATER", "value": "2"},
                {
                    "name": "CHIPS",
                    "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['huawei.com/Ascend910']"}},
                },
                {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            ],
        )
    )
    assert found == {"A": "1", "B": "1-$(LATER)-$(A)", "LATER": "2", "CHIPS": "0,1", "NODE": "node-1", "IP": ""}


def test_arguments_refer_to_variables() -> None:
    assert command_of(pod("belay", "train", "--node-rank", "$(RANK)", "$(NONE)"), {"RANK": "1"}) == [
        "--node-rank",
        "1",
        "$(NONE)",
    ]


def test_paths_below_mounts_lead_to_folders_here_and_the_longest_mount_wins() -> None:
    places = {"/job": "/here/job", "/job/data": "/here/data"}
    assert mounted("/job/train.py", places) == "/here/job/train.py"
    assert mounted("/job/data/x", places) == "/here/data/x"
    assert mounted("/jobs/train.py", places) == "/jobs/train.py"
    assert mounted("relative/job", places) == "relative/job"


def test_training_without_pytorch_says_what_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="PyTorch is not installed") as refused:
        up.Sandbox(up.SandboxOptions(training=True), print).start()
    assert "make venv-training" in str(refused.value.hint)


def test_two_equal_curves_are_one_and_a_difference_shows() -> None:
    curve = {step: 1.0 / (step + 1) for step in range(100)}
    same = "".join(drawn(curve, curve)[:-1])
    assert "●" in same and "+" not in same and "○" not in same
    other = "".join(drawn({**curve, 99: 5.0}, curve)[:-1])
    assert "+" in other and "○" in other
    assert drawn({}, {}) == []
