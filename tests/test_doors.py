"""What Belay's accounts may do is what docs/threat-model.md lists: the manifests say so, and a real API server does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from belay.agents.daemon.run import run_agent
from belay.agents.node.settings import Settings
from belay.engine.cli.rights import rendered
from tests import door_objects
from tests.doors import JOB, OTHER, OWN, Attempt, Cluster, Identity, special, tried
from tests.kube_server import NODE_OF_TOKEN, NODE_TOKEN, TOKEN, define
from tests.permits import (
    BOUNDS,
    DECLINED,
    EVERY_SERVICE_ACCOUNT,
    EVERYONE,
    PAGE,
    READS,
    Bound,
    bounds_of,
    declined_bounds_of,
    with_section,
)
from tests.ports import free_port
from tests.rights import AGENT_DRA, Right, granted, needed
from tests.test_deploy_nodes import built

ROOT = Path(__file__).resolve().parents[1]
Json = dict[str, Any]
WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet")
GUARDS = ("ValidatingWebhookConfiguration", "ValidatingAdmissionPolicyBinding")
AT_LEAST = 400
AT_LEAST_BY_NAME = 40
RBAC = ("Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding")
#: Who has no right by name.
NOBODY = "nobody"
#: What the installation without admission lists.
LISTED = {"<listed node>": "n[01]", "<namespace>": JOB, "<shard>": "main", "<super-pod>": "1"}
SYSTEM, HOST = "belay-system", "belay:agent"
#: Agents outside pods serve no claims.
DRA = frozenset(right for row in AGENT_DRA for right in row.rights())


def test_the_page_lists_the_rights_as_they_are() -> None:
    text = PAGE.read_text()
    assert text == with_section(text), "run make reference"


def test_every_right_to_write_has_its_bounds() -> None:
    rights = needed()
    for account, held in rights.items():
        for right in sorted(held):
            if right.verb not in READS:
                assert bounds_of(account, right), f"{account}: nothing in tests/permits.py says where {right} holds"
    for bound in (*BOUNDS, *DECLINED):
        named = {
            name for name in bound.resources.split() if any(bound.about(r) for r in _all(rights[bound.account], name))
        }
        assert named == set(bound.resources.split()), f"{bound}: a right that is not granted"


def _all(rights: set[Right], name: str) -> list[Right]:
    return [right for right in rights if name in (right.resource, f"{right.resource}.{right.group}")]


class Installation:
    """The manifests on a real API server, and the tokens of their processes."""

    def __init__(self, cluster: Cluster, documents: list[Json]) -> None:
        self.cluster, self.documents = cluster, documents
        self.rights = granted(documents)

    async def apply(self) -> None:
        for node in (OWN, OTHER):
            await self.cluster.make({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
        for document in sorted(self.documents, key=lambda one: one["kind"] != "Namespace"):
            if document["kind"] not in GUARDS:
                await self.cluster.make(document)
        for namespace in ("belay-system", "belay-nodes"):
            account = {"name": "default", "namespace": namespace}
            await self.cluster.make({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})

    async def guard(self) -> None:
        """Register what guards only now: the objects above are made without being asked about."""
        for document in self._guards():
            await self.cluster.make(document)

    async def unguard(self) -> None:
        """Take away what guards."""
        for document in self._guards():
            plural = f"{document['kind'].lower()}s"
            name = document["metadata"]["name"]
            await self.cluster.call("DELETE", f"/apis/{document['apiVersion']}/{plural}/{name}")

    def _guards(self) -> list[Json]:
        """What makes the API server ask; last what `_guarded` waits for, so that the others count by then."""
        found = [one for one in self.documents if one["kind"] in GUARDS]
        return sorted(found, key=lambda one: one["metadata"]["name"] == "belay-agent-configmaps")

    async def identities(self) -> list[Identity]:
        """One for each process, on node ``n0``; an agent whose token names no pod; an agent outside a pod."""
        found = []
        for document in self.documents:
            if document["kind"] in WORKLOADS:
                metadata, spec = document["metadata"], document["spec"]["template"]["spec"]
                account = spec.get("serviceAccountName", "default")
                pod = await self._pod(metadata, document["spec"]["template"], {**spec, "serviceAccountName": account})
                token = await self._token(metadata["namespace"], account, pod)
                found.append(Identity(metadata["name"], account, account, {"Authorization": f"Bearer {token}"}, OWN))
        loose = await self._token("belay-nodes", "belay-agent")
        found.append(
            Identity("belay-agent, no pod", "belay-agent", "belay-agent", {"Authorization": f"Bearer {loose}"})
        )
        acting = {"Impersonate-User": f"belay:agent:{OWN}", "Impersonate-Group": "belay:agents"}
        found.append(Identity(HOST, HOST, "belay-agent", {"Authorization": f"Bearer {TOKEN}", **acting}, OWN))
        return found

    async def _pod(self, metadata: Json, template: Json, spec: Json) -> str:
        name = f"{metadata['name']}-0"
        labels = template["metadata"]["labels"]
        about = {"name": name, "namespace": metadata["namespace"], "labels": labels}
        await self.cluster.make(
            {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": {**spec, "nodeName": OWN}}
        )
        return name

    async def _token(self, namespace: str, account: str, pod: str = "") -> str:
        spec: Json = {"expirationSeconds": 3600}
        if pod:
            _, found = await self.cluster.call("GET", f"/api/v1/namespaces/{namespace}/pods/{pod}")
            uid = found["metadata"]["uid"]
            spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": pod, "uid": uid}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        status, found = await self.cluster.call("POST", path, body)
        assert status == 201, (account, found.get("message"))
        return str(found["status"]["token"])


def _reached_at(documents: list[Json], port: int) -> None:
    """Have the API server reach the webhook's Service on loopback: no Service network is here."""
    for document in documents:
        if document["kind"] == "Service" and document["metadata"]["name"] == "belay-admission":
            document["spec"] = {"type": "ExternalName", "externalName": "localhost"}
        if document["kind"] == "ValidatingWebhookConfiguration":
            for hook in document["webhooks"]:
                hook["clientConfig"]["service"]["port"] = port
                hook["timeoutSeconds"] = 30  # a slow machine is no lost webhook


def _kubeconfig(server: str, token: str) -> str:
    return yaml.safe_dump(
        {
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": server, "insecure-skip-tls-verify": True}}],
            "users": [{"name": "c", "user": {"token": token}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        }
    )  # fmt: skip


@contextlib.contextmanager
def admission(folder: Path, server: str, token: str, port: int) -> Iterator[None]:
    """The process of the Deployment, with its own account and a certificate that it makes."""
    config = folder / "admission.kubeconfig"
    config.write_text(_kubeconfig(server, token))
    command = [sys.executable, "-m", "belay.engine.cli", "admission", "--listen", f"127.0.0.1:{port}"]
    environment = {**os.environ, "BELAY_KUBECONFIG": str(config)}
    with (folder / "admission.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=ROOT)
    try:
        yield
    finally:
        process.terminate()
        process.wait(20)


@contextlib.asynccontextmanager
async def installed(kubeconfig: str, folder: Path) -> AsyncIterator[tuple[Installation, list[Identity]]]:
    """deploy/base, agents of nodes and of hosts, guarded as this API server is: by policies, else by the webhook."""
    server = yaml.safe_load(Path(kubeconfig).read_text())["clusters"][0]["cluster"]["server"]
    limits = aiohttp.TCPConnector(limit=24)
    async with aiohttp.ClientSession(connector=limits) as session:
        cluster = Cluster(session, server, TOKEN)
        await cluster.discover()
        newer = any(one.name == "validatingadmissionpolicies" for one in cluster.resources)
        parts = ["super-pod", "host-agents", *(["admission-policy", "dra"] if newer else [])]
        documents = await asyncio.to_thread(built, folder, *parts)
        port = free_port()
        _reached_at(documents, port)
        installation = Installation(cluster, documents)
        await installation.apply()
        held = frozenset(right for rights in installation.rights.values() for right in rights)
        written = frozenset((one.group, one.resource.partition("/")[0]) for one in held if one.verb not in READS)
        await door_objects.make(cluster, written)
        identities = await installation.identities()
        with contextlib.ExitStack() as stack:
            await installation.guard()
            if not newer:
                own = await installation._token(SYSTEM, "belay-admission", "belay-admission-0")
                stack.enter_context(admission(folder, server, own, port))
            await _guarded(cluster, identities)
            yield installation, identities


async def _guarded(cluster: Cluster, identities: list[Identity]) -> None:
    """Wait until an agent cannot change another node's report."""
    (agent,) = (one for one in identities if one.name == "belay-agent")
    path = f"/api/v1/namespaces/kube-system/configmaps/mindx-dl-deviceinfo-{OTHER}?dryRun=All"
    ends = time.monotonic() + 90
    while True:
        status, said = await cluster.call("PATCH", path, {"data": {"x": "y"}}, agent.headers)
        if status == 403 or "denied request" in str(said.get("message")):
            return
        assert time.monotonic() < ends, f"the API server goes on as before: {status} {said.get('message')}"
        await asyncio.sleep(0.2)


async def _narrowed(cluster: Cluster, server: Identity) -> None:
    """Wait until the last right that is made by name counts, and so those before it."""
    path = "/api/v1/namespaces/cluster-system/configmaps/super-pod-1?dryRun=All"
    _, found = await cluster.call("GET", path)
    ends = time.monotonic() + 60
    while (await cluster.call("PUT", path, found, server.headers))[0] != 200:
        assert time.monotonic() < ends, "the API server does not know the rights by name"
        await asyncio.sleep(0.2)


async def _reports_as_its_node(cluster: Cluster, folder: Path) -> None:
    """Run an agent with kubelet's credential until it has written its reports and marked its Node."""
    # as the installation makes them: what stands there was made to try doors on
    await cluster.call("DELETE", f"/api/v1/namespaces/{SYSTEM}/configmaps/belay-orders-{NODE_OF_TOKEN}")
    for record in yaml.safe_load_all(rendered([NODE_OF_TOKEN], [], [])):
        if record["kind"] == "ConfigMap":
            path = f"/api/v1/namespaces/{record['metadata']['namespace']}/configmaps"
            await cluster.call("DELETE", f"{path}/{record['metadata']['name']}")
            await cluster.call("POST", path, record)

    config = folder / "node.kubeconfig"
    config.write_text(_kubeconfig(cluster.server, NODE_TOKEN))
    stop = asyncio.Event()
    work = run_agent(
        NODE_OF_TOKEN, journal_dir=folder / "journal", driver="simulated:atlas-800t-a2", kubeconfig=str(config),
        settings=Settings(scale=0.1), stop=stop,
    )  # fmt: skip
    agent = asyncio.create_task(work)
    ends = time.monotonic() + 60
    try:
        while not await _has_reported(cluster):
            assert not agent.done() and time.monotonic() < ends, "the agent does not report"
            await asyncio.sleep(0.2)
    finally:
        stop.set()
        await agent


async def _has_reported(cluster: Cluster) -> bool:
    for place, name, key in (
        ("kube-system", "mindx-dl-deviceinfo", "DeviceInfoCfg"), ("belay-nodes", "belay-report", "report.json"),
    ):  # fmt: skip
        _, found = await cluster.call("GET", f"/api/v1/namespaces/{place}/configmaps/{name}-{NODE_OF_TOKEN}")
        if key not in found.get("data", {}):
            return False
    _, node = await cluster.call("GET", f"/api/v1/nodes/{NODE_OF_TOKEN}")
    return "baseDeviceInfos" in (node["metadata"].get("annotations") or {})


async def _attempts(installation: Installation, identities: list[Identity]) -> list[Attempt]:
    named = needed()
    found = []
    # users with the same name have the same rights, whatever their process
    for user in sorted({one.user for one in identities}):
        sharing = [one for one in identities if one.user == user]
        rights = named.get(sharing[0].account, set())
        rights = rights - DRA if user == HOST else rights | EVERY_SERVICE_ACCOUNT
        found += await installation.cluster.attempts(sharing, rights | EVERYONE)
    return found


def _declined(right_of: str, right: Right) -> tuple[Bound, ...]:
    return declined_bounds_of(right_of, right, LISTED)


async def _decline(installation: Installation, folder: Path) -> None:
    """Have the installation be one without admission, for both nodes and the namespace of one job."""
    cluster = installation.cluster
    for document in installation.documents:
        if document["kind"] in RBAC:
            metadata = document["metadata"]
            place = f"/namespaces/{metadata['namespace']}" if "namespace" in metadata else ""
            path = f"/apis/{document['apiVersion']}{place}/{document['kind'].lower()}s/{metadata['name']}"
            await cluster.call("DELETE", path)

    named = rendered([OWN, OTHER], [JOB], ["main"], ["1"])
    documents = await asyncio.to_thread(built, folder, "super-pod", "host-agents", "dra", "without-admission")
    for document in (*documents, *yaml.safe_load_all(named)):
        if document["kind"] in RBAC or not document.get("data", document.get("spec")):
            await cluster.make(document)


async def _attempts_by_name(installation: Installation, identities: list[Identity]) -> list[Attempt]:
    """Every right to write of a default installation, by who has them there; an agent besides by its node's identity,
    and by those that it has no more.
    """
    named, found = needed(), []
    acting = {"Impersonate-User": f"system:node:{OWN}", "Impersonate-Group": "system:nodes"}
    headers = {"Authorization": f"Bearer {TOKEN}", **acting}
    node = Identity("agent as its node", f"system:node:{OWN}", "belay-agent", headers, OWN)
    former = [one._replace(account=NOBODY) for one in identities if one.account == "belay-agent"]
    others = [one for one in identities if one.account in ("belay-engine", "belay-server")]
    for identity in (node, *former, *others):
        rights = named["belay-agent" if identity.account == NOBODY else identity.account]
        found += await installation.cluster.attempts([identity], rights | EVERYONE, _declined, whole=False)
    return found


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_every_verb_on_every_resource_does_what_the_table_says(own_kubeconfig: str, tmp_path: Path) -> None:
    async def go() -> None:
        async with installed(own_kubeconfig, tmp_path) as (installation, identities):
            counts, wrong = await tried(installation.cluster, await _attempts(installation, identities))
            for identity in identities:
                if identity.user != HOST:
                    wrong += await special(installation.cluster, identity)
            assert wrong == [], "\n".join(wrong)
            assert min(counts.values()) >= AT_LEAST, counts

            # the check itself: a right that the table lacks, and one that is not granted, are found
            (agent,) = (one for one in identities if one.name == "belay-agent")
            read, ends = Right("get", "", "nodes"), Right("delete", "", "nodes")
            about = await installation.cluster.attempts([agent], {ends})
            chosen = [one for one in about if (one.right.verb, one.right.resource) in {read[:3:2], ends[:3:2]}]
            _, found = await tried(installation.cluster, chosen)
            assert [len([one for one in found if text in one]) for text in ("is a door", "is refused")] == [2, 2]

            # an installation that declines admission: rights by name alone
            await installation.unguard()
            await _decline(installation, tmp_path / "declined")
            server = next(one for one in identities if one.account == "belay-server")
            await _narrowed(installation.cluster, server)
            attempts = await _attempts_by_name(installation, identities)
            counts, wrong = await tried(installation.cluster, attempts)
            assert wrong == [], "\n".join(wrong)
            assert min(counts.values()) >= AT_LEAST_BY_NAME, counts
            await _reports_as_its_node(installation.cluster, tmp_path)

    define(Path(own_kubeconfig))
    asyncio.run(go())
