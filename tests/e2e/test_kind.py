"""docs/guides/kind.md, typed to the letter on a plain Kubernetes with a real kubelet: from nothing of Belay's to a
container on a simulated chip."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from belay.engine.sandbox.redis_process import start_redis
from tests.control_planes import minor
from tests.e2e.test_up import MARK, marked
from tests.loop_world import until
from tests.node_server import IMAGE, NODE, RealNode, real_node
from tests.pods_as_processes import Pods
from tests.walking import ROOT, blocks, folder, person, shell

__all__ = ["real_node"]

PAGE = ROOT / "docs" / "guides" / "kind.md"
#: In the place of these the test has a repository of this machine, and the image that its node holds.
REPOSITORY, JOB_IMAGE = "https://git.example.com/you/state.git", "docker.io/library/busybox:1.36"

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("real-node"), pytest.mark.timeout(600)]


def test_the_page_leads_from_a_plain_cluster_to_a_running_container(real_node: RealNode, tmp_path: Path) -> None:
    if minor(real_node.assets / "kube-apiserver") < 30:
        pytest.skip("the page is about Kubernetes 1.30 and newer")
    copy, remote = folder(tmp_path), tmp_path / "state.git"
    subprocess.run(["git", "init", "-q", "--bare", "--initial-branch=main", str(remote)], check=True)
    sections = blocks(PAGE)
    steps = [text for name in ("Install", "The nodes", "The first pod") for text in sections[name]]
    typed = "\n".join(["set -euo pipefail", *steps])
    for placeholder, value in {REPOSITORY: f"file://{remote}", JOB_IMAGE: IMAGE}.items():
        assert typed.count(placeholder) == 1
        typed = typed.replace(placeholder, value)
    environment = person(tmp_path / "home")
    environment |= {"KUBECONFIG": str(real_node.kubeconfig), "PATH": f"{real_node.assets}:{environment['PATH']}"}
    host = {
        "/var/lib/kubelet/device-plugins": real_node.plugins,
        "/var/lib/kubelet/pod-resources": real_node.pod_resources.parent,
    }
    marks = {MARK: str(tmp_path)}
    with (
        start_redis(tmp_path / "redis") as redis,
        Pods(real_node.kubeconfig, tmp_path, redis.url, marks, host) as pods,
    ):
        try:
            done = shell(typed, copy, environment, 240)
        except subprocess.TimeoutExpired as late:
            pytest.fail(f"{(late.stdout or b'')[-3000:]!r}\n{pods.story()}", pytrace=False)
        assert done.returncode == 0, f"{done.stdout[-4000:]}\n{pods.story()}"
        pod = real_node.get("pod", "hello-master-0")
        inside = real_node.until("the container's first lines", lambda: real_node.environment(pod), 30)
    until(lambda: marked(tmp_path) == {}, 60, what="the end of all processes")
    assert re.search(rf"^{NODE} .*8", done.stdout, re.MULTILINE), "the node is listed with its chips"
    chip = done.stdout.strip().rpartition("\n")[2]
    assert re.fullmatch(r"Ascend910-\d", chip)
    assert pod["status"]["phase"] == "Running"
    assert inside["ASCEND_VISIBLE_DEVICES"].rpartition("-")[2] == chip.rpartition("-")[2]
