"""A real kube-apiserver for tests, from the binaries in $KUBEBUILDER_ASSETS (etcd and kube-apiserver).

`kubeconfig` is a fixture of every test (conftest.py); it skips where there are none.
$BELAY_TEST_KUBECONFIG names a running one to use instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from belay.engine.kube import CONFIGMAP, LEASE, NODE, POD, Kube, KubeError, NotFound, Resource, resource_for
from belay.engine.sandbox import definitions
from tests.needs import assets

TOKEN = "admin-token"
#: Of kubelet of one node.
NODE_TOKEN, NODE_OF_TOKEN = "node-token", "n0"
#: Who asked for what, without bodies: accounts of Belay and certificates of agents; nothing of others.
AUDIT = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
    userGroups: ["system:serviceaccounts:belay-system", "system:serviceaccounts:belay-nodes"]
  - level: None
"""
#: ConfigMaps that Kubernetes itself keeps.
KEPT = ("kube-root-ca.crt", "extension-apiserver-authentication", "cluster-info")
WEBHOOK = "ValidatingWebhookConfiguration"
#: What a module may leave that another would take for its own.
LEFT = (
    POD,
    NODE,
    CONFIGMAP,
    LEASE,
    resource_for("v1", "PersistentVolume"),
    resource_for("storage.k8s.io/v1", "StorageClass"),
    Resource("admissionregistration.k8s.io/v1", WEBHOOK, f"{WEBHOOK.lower()}s", False),
)


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The path of a kubeconfig of a real API server, one for all modules."""
    with real_cluster(assets("etcd", "kube-apiserver"), tmp_path_factory.mktemp("kube")) as path:
        yield str(path)


@pytest.fixture(scope="module")
def kubeconfig(request: pytest.FixtureRequest) -> str:
    """The path of a kubeconfig of a real API server, without what earlier modules left there."""
    given = os.environ.get("BELAY_TEST_KUBECONFIG")
    if given:
        return given
    path: str = request.getfixturevalue("api_server")
    asyncio.run(_wiped(path))
    return path


@pytest.fixture
def own_kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The path of a kubeconfig of an API server for one test, whose definitions would be news to others."""
    with real_cluster(assets("etcd", "kube-apiserver"), tmp_path_factory.mktemp("kube")) as path:
        yield str(path)


async def _wiped(kubeconfig: str) -> None:
    async with Kube.from_config(kubeconfig) as kube:
        await wipe(kube, LEFT)


async def wipe(kube: Kube, kinds: Iterable[Resource]) -> None:
    """Remove every object of these kinds that Kubernetes does not keep itself."""
    for kind in kinds:
        for one in (await kube.list(kind)).items:
            metadata = one["metadata"]
            if metadata["name"] not in KEPT:
                grace = 0 if kind is POD else None
                with contextlib.suppress(NotFound):
                    await kube.delete(kind, metadata["name"], metadata.get("namespace"), grace=grace)


@contextlib.contextmanager
def real_cluster(assets: Path, folder: Path) -> Iterator[Path]:
    """Start etcd and kube-apiserver on loopback; yields the kubeconfig and ends both.

    What Belay's accounts ask for is in ``audit.log`` of the folder (`tests.rights` reads it).
    """
    port, client_port, peer_port = _free_ports(3)
    key = folder / "sa.key"
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True, timeout=30)
    (folder / "tokens.csv").write_text(
        f'{TOKEN},admin,admin,"system:masters"\n{NODE_TOKEN},system:node:{NODE_OF_TOKEN},node,"system:nodes"\n'
    )
    (folder / "audit.yaml").write_text(AUDIT)
    etcd_url, peer_url = f"http://127.0.0.1:{client_port}", f"http://127.0.0.1:{peer_port}"
    with contextlib.ExitStack() as stack:
        _start(
            stack,
            folder / "etcd.log",
            assets / "etcd",
            f"--data-dir={folder / 'etcd'} --listen-client-urls={etcd_url} --advertise-client-urls={etcd_url}"
            f" --listen-peer-urls={peer_url} --initial-advertise-peer-urls={peer_url} --unsafe-no-fsync"
            f" --initial-cluster=default={peer_url}",
        )
        _start(
            stack,
            folder / "apiserver.log",
            assets / "kube-apiserver",
            f"--etcd-servers={etcd_url} --secure-port={port} --bind-address=127.0.0.1 --cert-dir={folder / 'certs'}"
            f" --service-account-key-file={key} --service-account-signing-key-file={key}"
            f" --service-account-issuer=https://kubernetes.default.svc --token-auth-file={folder / 'tokens.csv'}"
            " --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction"
            " --allow-privileged=true --service-cluster-ip-range=10.0.0.0/24"
            " --disable-admission-plugins=ServiceAccount"
            f" --audit-policy-file={folder / 'audit.yaml'} --audit-log-path={folder / 'audit.log'}",
        )
        path = folder / "kubeconfig"
        path.write_text(
            "apiVersion: v1\nkind: Config\ncurrent-context: real\n"
            f'clusters: [{{name: k, cluster: {{server: "https://127.0.0.1:{port}",insecure-skip-tls-verify: true}}}}]\n'
            f"users: [{{name: admin, user: {{token: {TOKEN}}}}}]\n"
            "contexts: [{name: real, context: {cluster: k, user: admin}}]\n"
        )
        _wait(port, folder)
        yield path


def stores_custom_objects(kubeconfig: Path) -> bool:
    """Whether the API server survives custom resources, by trying one.

    Kubernetes before 1.23 built with Go 1.18 or newer, as Debian packages 1.20, crashes on the first one: its
    modern-go/reflect2 (before 1.0.2) calls a runtime function whose signature Go 1.18 changed. Rebuilt with a newer
    reflect2 the same version does not.
    """
    return asyncio.run(_try_one(kubeconfig))


async def _try_one(kubeconfig: Path) -> bool:
    names = {"kind": "Trial", "plural": "trials", "singular": "trial", "listKind": "TrialList"}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "trials.tests.belay.dev"},
        "spec": {"group": "tests.belay.dev", "scope": "Cluster", "names": names, "versions": [version]},
    }  # fmt: skip
    one = {"apiVersion": "tests.belay.dev/v1", "kind": "Trial", "metadata": {"name": "one"}, "spec": {"a": 1}}
    kind = resource_for("apiextensions.k8s.io/v1", "CustomResourceDefinition")
    trials = Resource("tests.belay.dev/v1", "Trial", "trials", False)
    async with Kube.from_config(str(kubeconfig)) as kube:
        await kube.apply(definition)
        try:
            ends = time.monotonic() + 30
            while True:
                try:
                    await kube.create(trials, one)
                    return (await kube.get(trials, "one") or {}).get("spec") == {"a": 1}
                except NotFound:  # it is not served yet
                    if time.monotonic() > ends:
                        return False
                    await asyncio.sleep(0.1)
        except KubeError:
            return False
        finally:
            with contextlib.suppress(KubeError):
                await kube.delete(kind, "trials.tests.belay.dev")


def define(kubeconfig: Path) -> None:
    """Let the API server serve every kind that Belay ships a definition of."""

    async def work() -> None:
        async with Kube.from_config(str(kubeconfig)) as kube:
            await definitions.ensure(kube)

    asyncio.run(work())


def _start(stack: contextlib.ExitStack, log: Path, program: Path, options: str) -> None:
    with log.open("wb") as output:
        process = subprocess.Popen([str(program), *options.split()], stdout=output, stderr=subprocess.STDOUT)

    def end() -> None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    stack.callback(end)


def _wait(port: int, folder: Path, seconds: float = 150.0) -> None:
    ends = time.monotonic() + seconds
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    for path in ("/readyz", "/api/v1/namespaces/default"):
        request = urllib.request.Request(
            f"https://127.0.0.1:{port}{path}", headers={"Authorization": f"Bearer {TOKEN}"}
        )
        while True:
            try:
                with urllib.request.urlopen(request, timeout=2, context=context):
                    break
            except (urllib.error.URLError, OSError):
                assert time.monotonic() < ends, f"kube-apiserver did not come up: see {folder}"
                time.sleep(0.2)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
