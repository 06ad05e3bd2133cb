"""The move from MindCluster on a real kube-apiserver: its short form; ``make moving`` takes more steps back. Before it
the commands of docs/guides/beside.md are typed, while all of MindCluster runs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.mindcluster import SCHEDULING
from tests.moving import Move, Witness, moving, story
from tests.needs import assets
from tests.redis_server import redis_process, redis_url  # noqa: F401
from tests.walking import ROOT, blocks, person, shell

RESOURCE = "huawei.com/Ascend910"


def look(move: Move, home: Path) -> None:
    """What the guide has people look at first: who plays what."""
    for role in ("schedule", "expandAscendJob", "aggregate"):
        move.role(role, False)
    sections = blocks(ROOT / "docs" / "guides" / "beside.md")
    environment = person(home)
    programs = f"{Path(sys.executable).parent}:{assets('kubectl')}:{environment['PATH']}"
    environment |= {"PATH": programs, "KUBECONFIG": move.cluster.kubeconfig}
    examined = shell(sections["Look"][0], home, environment, 60)
    assert examined.returncode == 0 and "ascend-device-plugin" in examined.stdout, examined.stdout
    said = shell(sections["Who plays what"][0], home, environment, 60)
    roles = json.loads(said.stdout)
    page = (ROOT / "docs" / "guides" / "beside.md").read_text()
    for role, state in roles.items():
        assert state.startswith("off: ") and state.endswith(" runs"), (role, state)
        assert f"| `{role}` |" in page


@pytest.mark.timeout(240)
def test_every_step_of_the_move_is_taken_and_taken_back_while_jobs_run(
    tmp_path: Path,
    kubeconfig: str,
    redis_url: str,  # noqa: F811
) -> None:
    with moving(tmp_path, kubeconfig, redis_url, nodes=2) as move:
        look(move, tmp_path / "home")
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
