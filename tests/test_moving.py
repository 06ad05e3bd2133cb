"""The move from MindCluster on a real kube-apiserver: its short form; ``make moving`` takes more steps back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mindcluster import SCHEDULING
from tests.moving import Witness, moving, story
from tests.redis_server import redis_process, redis_url  # noqa: F401

RESOURCE = "huawei.com/Ascend910"


@pytest.mark.timeout(240)
def test_every_step_of_the_move_is_taken_and_taken_back_while_jobs_run(
    tmp_path: Path,
    kubeconfig: str,
    redis_url: str,  # noqa: F811
) -> None:
    with moving(tmp_path, kubeconfig, redis_url, nodes=2) as move:
        story(move)
        assert len(move.jobs) == 5 and SCHEDULING
        assert len(move.witness.uids) == 11


def seen(name: str, uid: str, chip: str) -> dict[str, object]:
    meta = {"name": name, "namespace": "default", "uid": uid, "annotations": {RESOURCE: chip}}
    return {"metadata": meta, "spec": {"nodeName": "node-1"}}


def test_the_witness_sees_a_second_owner_and_a_second_pod() -> None:
    witness = Witness()
    witness.look([seen("a", "1", "Ascend910-0"), seen("b", "2", "Ascend910-1")])
    assert not witness.broken
    witness.look([seen("a", "3", "Ascend910-1"), seen("b", "2", "Ascend910-1")])
    assert witness.broken == ["node-1/Ascend910-1 has two owners: a and b"] and witness.uids["a"] == {"1", "3"}
