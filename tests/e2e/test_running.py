"""docs/running.md, typed to the letter on a real control plane with a private remote; and docs/guides/uninstall.md,
which takes everything out again under a running job."""

from __future__ import annotations

import contextlib
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from belay.engine.kube import NODE
from belay.engine.sandbox.reader import ApiReader
from belay.engine.sandbox.redis_process import start_redis
from belay.engine.source.git import PASSED_ON
from tests.control_planes import closed_ports
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
    programs = assets("etcd", "kube-apiserver", "kubectl", "kube-controller-manager")
    copy = folder(tmp_path)
    remote = tmp_path / "state.git"
    subprocess.run(["git", "init", "-q", "--bare", "--initial-branch=main", str(remote)], check=True)
    (tmp_path / "kube").mkdir()
    with (
        contextlib.ExitStack() as stack,
        real_cluster(programs, tmp_path / "kube") as kubeconfig,
        start_redis(tmp_path / "redis") as redis,
        git_host(tmp_path / "ssh", copy / "belay-git.pub") as host,
        Pods(kubeconfig, tmp_path, redis.url, {MARK: str(tmp_path)}) as pods,
    ):
        collecting(programs, tmp_path / "kube", kubeconfig, stack)
        reader = ApiReader(kubeconfig)
        cluster = Cluster(tmp_path / "kube", kubeconfig)
        cluster.add_node("node-2")
        cluster.add_node("node-1")  # as kubelet and MindCluster's device plugin report it
        cluster.run(cluster.kube.patch(NODE, "node-1", {"spec": {"taints": None}}))  # as the node controller does
        cluster.close()
        before = everything(reader)
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
        ours = {"belay-admission", "belay-controller", "belay-worker", "belay-server"}
        until(lambda: set(pods.children) == ours or pods.problems, 60, what="the start of every process")
        assert not pods.problems
        log, served = tmp_path / "kube" / "audit.log", Right("create", "coordination.k8s.io", "leases", "belay-system")
        until(lambda: any(served.covers(one) for one in audited(log).get("belay-server", {})), 60, what="the server")
        given, asked = granted(base()), audited(log)
        assert len(asked["belay-engine"]) > 40 and len(asked["belay-server"]) >= 10
        for account, rights in asked.items():
            assert [right for right, status in rights.items() if status in (401, 403)] == []
            assert [right for right in rights if not any(one.covers(right) for one in given[account])] == []
        leave(copy, environment, reader, pods, before)
    until(lambda: marked(tmp_path) == {}, 60, what="the end of all processes")


def collecting(programs: Path, place: Path, kubeconfig: Path, stack: contextlib.ExitStack) -> None:
    """Kubernetes' own controllers that empty namespaces and collect what has no owner any more."""
    program = programs / "kube-controller-manager"
    with (place / "controllers.log").open("wb") as log:
        child = subprocess.Popen(
            [str(program), "--kubeconfig", str(kubeconfig), "--leader-elect=false", "--bind-address=127.0.0.1",
             "--controllers=namespace,garbagecollector", *closed_ports(program)],
            stdout=log, stderr=log,
        )  # fmt: skip
    stack.callback(child.wait, 20)
    stack.callback(child.kill)


def everything(reader: ApiReader) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Every object of a cluster but Events, by kind, namespace and name."""
    found = {}
    groups = [(one["name"], one["preferredVersion"]["groupVersion"]) for one in reader.get("/apis")["groups"]]
    for group, version in [("", "v1"), *groups]:
        root = f"/apis/{version}" if group else "/api/v1"
        for resource in (reader.get(root) or {}).get("resources", ()):
            if "list" not in resource["verbs"] or resource["kind"] in ("Event", "ComponentStatus"):
                continue
            for one in reader.list(f"{root}/{resource['name']}"):
                about = one["metadata"]
                about.pop("managedFields", None)
                found[resource["kind"], about.get("namespace", ""), about["name"]] = one
    return found


def leave(
    copy: Path, environment: dict[str, str], reader: ApiReader, pods: Pods, before: dict[tuple[str, str, str], Any]
) -> None:
    """Type docs/guides/uninstall.md: nothing of Belay is left, and the job does not notice."""
    sections = blocks(ROOT / "docs" / "guides" / "uninstall.md")
    (look,) = sections["Look first"]
    take, namespaces = sections["Take it out"]

    def typed(text: str) -> str:
        done = shell(f"set -euo pipefail\n{text}", copy, environment, 100)
        assert done.returncode == 0, done.stdout[-4000:]
        return done.stdout

    running = reader.get("/api/v1/namespaces/default/pods/hello-master-0")
    full = everything(reader)
    assert "nothing was changed" in typed(look)
    assert set(everything(reader)) >= {key for key in full if key[0] != "Lease"}, "a look takes nothing away"
    typed(take)
    until(lambda: not pods.children, 60, what="the end of Belay's processes")
    # a cordon of Belay's ends with it, one by hand stays, also where Belay had its own before; what a process wrote
    # while it ended goes now
    typed(
        """kubectl patch node node-1 --field-manager=belay -p '{"spec": {"unschedulable": true}}'
        kubectl cordon node-2; kubectl annotate node node-1 node-2 belay.dev/cordoned=SeparateNPU"""
    )
    typed(take)
    typed(namespaces)
    left = everything(reader)
    # the API server notes the address of each Service, that of the job's among them
    addresses = {key for key, one in left.items() if key[0] == "IPAddress"}
    foreign = {key for key in addresses if left[key]["spec"]["parentRef"].get("namespace") != "default"}
    new = {key for key in left if key not in before} - (addresses - foreign)
    job = {("AscendJob", "default", "hello"), ("Pod", "default", "hello-master-0")}
    assert job <= new
    of_jobs = ("CustomResourceDefinition", "APIService", "Queue")
    assert [key for key in new - job if key[1] != "default" and key[0] not in of_jobs] == []
    assert not [key for key in new if key[2].endswith("belay.dev")]
    for (kind, space, name), one in left.items():
        marks = [*one["metadata"].get("annotations", {}), *one["metadata"].get("labels", {})]
        assert not [mark for mark in marks if "belay" in mark], (kind, space, name, marks)
        assert not name.startswith("belay"), (kind, space, name)
        assert not one["metadata"].get("finalizers") or kind in ("Namespace", "CustomResourceDefinition")
    assert left["Node", "", "node-1"]["spec"].get("unschedulable", False) is False
    assert left["Node", "", "node-2"]["spec"]["unschedulable"] is True
    same = left["Pod", "default", "hello-master-0"]
    assert same["metadata"]["uid"] == running["metadata"]["uid"] and same["spec"] == running["spec"]
    assert (
        "deletionTimestamp" not in same["metadata"]
        and "deletionTimestamp" not in left["AscendJob", "default", "hello"]["metadata"]
    )


def test_the_page_names_what_git_is_passed_on() -> None:
    text = (ROOT / "docs" / "connecting.md").read_text()
    assert [name for name in PASSED_ON if name.isupper() and f"`{name}`" not in text] == []
