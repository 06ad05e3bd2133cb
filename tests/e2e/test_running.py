"""docs/running.md, typed to the letter on a real control plane with a private remote, and compared with the code."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import msgspec
import pytest

from engine import settings
from engine.kube import NODE
from engine.sandbox.reader import ApiReader
from engine.sandbox.redis_process import start_redis
from engine.source.git import PASSED_ON
from tests.e2e.test_up import MARK, marked
from tests.kube_server import real_cluster
from tests.loop_world import Cluster, until
from tests.needs import assets
from tests.pods_as_processes import Pods
from tests.rights import Right, audited, granted
from tests.ssh_server import git_host
from tests.test_deploy import documents as base
from tests.walking import ROOT, blocks, folder, person, shell

PAGE = ROOT / "docs" / "running.md"


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_the_page_leads_from_nothing_to_a_bound_pod(tmp_path: Path) -> None:
    programs = assets("etcd", "kube-apiserver", "kubectl")
    copy = folder(tmp_path)
    remote = tmp_path / "state.git"
    subprocess.run(["git", "init", "-q", "--bare", "--initial-branch=main", str(remote)], check=True)
    (tmp_path / "kube").mkdir()
    with (
        real_cluster(programs, tmp_path / "kube") as kubeconfig,
        start_redis(tmp_path / "redis") as redis,
        git_host(tmp_path / "ssh", copy / "belay-git.pub") as host,
        Pods(kubeconfig, tmp_path, redis.url, {MARK: str(tmp_path)}) as pods,
    ):
        cluster = Cluster(tmp_path / "kube", kubeconfig)
        cluster.add_node("node-1")  # as kubelet and MindCluster's device plugin report it
        cluster.run(cluster.kube.patch(NODE, "node-1", {"spec": {"taints": None}}))  # as the node controller does
        cluster.close()
        script = "\n".join(["set -euo pipefail", *blocks(PAGE)["To the first bound pod"]])
        for placeholder, value in {
            "ssh://git@git.example.com/cluster/state.git": host.address(remote),
            "ssh-keyscan git.example.com": f"ssh-keyscan -p {host.port} 127.0.0.1",
        }.items():
            assert script.count(placeholder) == 1
            script = script.replace(placeholder, value)
        environment = person(tmp_path / "home")
        environment |= {
            "KUBECONFIG": str(kubeconfig), "GIT_SSH_COMMAND": host.command, "PATH": f"{programs}:{environment['PATH']}",
        }  # fmt: skip
        try:
            typed = shell(script, copy, environment, 150)
        except subprocess.TimeoutExpired as error:
            pytest.fail(
                f"{(error.stdout or b'')[-2000:]!r}\n{pods.story()}\n{host.log.read_text()[-1500:]}", pytrace=False
            )
        reader = ApiReader(kubeconfig)
        said = [
            one.get("data")
            for one in reader.list("/api/v1/namespaces/belay-system/configmaps?labelSelector=belay.dev/about")
        ]
        assert typed.returncode == 0, f"{typed.stdout[-3000:]}\n{pods.story()}\n{host.log.read_text()[-1500:]}\n{said}"
        pod = reader.get("/api/v1/namespaces/default/pods/hello-master-0")
        assert pod["spec"]["nodeName"] == "node-1"
        assert re.fullmatch(r"Ascend910-\d", pod["metadata"]["annotations"]["huawei.com/Ascend910"])
        told = reader.config_map("belay-system", "belay-source")
        assert told["url"].startswith("ssh://***@127.0.0.1") and told["branch"] == "main"
        accepted = host.log.read_text()
        assert accepted.count("Accepted publickey") > 2, "the remote was asked with keys"
        held = "".join(path.read_text() for path in tmp_path.glob("belay-*/log")) + str(
            reader.list("/api/v1/configmaps")
        )
        assert "BEGIN OPENSSH PRIVATE KEY" not in held
        assert "Forbidden" not in held and "forbidden" not in held, "the accounts may do what they do"
        everything = {"belay-admission", "belay-controller", "belay-worker", "belay-server"}
        until(lambda: set(pods.children) == everything or pods.problems, 60, what="the start of every process")
        assert not pods.problems
        log, served = tmp_path / "kube" / "audit.log", Right("create", "coordination.k8s.io", "leases", "belay-system")
        until(lambda: any(served.covers(one) for one in audited(log).get("belay-server", {})), 60, what="the server")
        given, asked = granted(base()), audited(log)
        assert len(asked["belay-engine"]) > 40 and len(asked["belay-server"]) >= 10
        for account, rights in asked.items():
            assert [right for right, status in rights.items() if status in (401, 403)] == []
            assert [right for right in rights if not any(one.covers(right) for one in given[account])] == []
    until(lambda: marked(tmp_path) == {}, 60, what="the end of all processes")


def rows() -> dict[str, tuple[str, str]]:
    """Variable → (default, range) as the page lists them."""
    found: dict[str, tuple[str, str]] = {}
    for line in PAGE.read_text().splitlines():
        if line.startswith("| `BELAY_"):
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            name, default, bounds = (line.split("|")[number].strip().strip("`") for number in (1, 2, 3))
            assert cells[0].strip("` ") == name and name not in found
            found[name] = (default, bounds)
    return found


def test_the_page_lists_every_setting_with_its_default_and_range() -> None:
    told = rows()
    fields = {settings.PREFIX + field.name.upper(): field for field in msgspec.structs.fields(settings.Settings)}
    assert list(told) == list(fields), "every setting, in the order of engine/settings.py"
    for variable, field in fields.items():
        default, bounds = told[variable]
        shown = f"{field.default:g}" if isinstance(field.default, float) else str(field.default)
        shown = str(int(field.default)) if isinstance(field.default, bool) else shown
        assert default == ("the host's name" if variable == "BELAY_IDENTITY" else shown), variable
        if field.name in settings._BOUNDS:
            least, most = settings._BOUNDS[field.name]
            assert bounds == f"{least:.12g}–{most:.12g}", variable
        elif isinstance(field.default, bool):
            assert bounds == "0, 1", variable
    assert told["BELAY_LOG_LEVEL"][1] == ", ".join(settings._LEVELS)
    assert told["BELAY_SOURCE_VERIFY"][1] == "none, ssh, gpg"
    assert all(f"`{name}`" in PAGE.read_text() for name in settings._OTHERS)


def test_the_page_names_what_git_is_passed_on() -> None:
    text = PAGE.read_text()
    assert [name for name in PASSED_ON if name.isupper() and f"`{name}`" not in text] == []
