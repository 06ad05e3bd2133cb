"""What Belay's own accounts may write: the rules, and the webhook before a real API server."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import json
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web
from cryptography import x509

from belay.agents.node import detect
from belay.engine.documents.scheduling import PUBLIC_FAULT_SOURCES
from belay.engine.errors import InputError
from belay.engine.kube import CONFIGMAP, LEASE, NAMESPACE, NODE, POD, Kube, KubeError, Object, resource_for
from belay.engine.model.labels import PUBLIC_FAULT_CONSUMER
from belay.engine.serve.admission.certificates import (
    LIFETIME,
    MOST_AUTHORITIES,
    SelfMadeCertificate,
    ServingCertificate,
)
from belay.engine.serve.admission.rules import (
    AGENT,
    ENGINE,
    GUARDED,
    HOST_AGENT,
    HOST_AGENTS,
    JOB_PREFIXES,
    NODE_ANNOTATIONS,
    NODE_LABELS,
    SENDERS,
    SERVER,
    SERVER_PREFIXES,
    SERVER_RECORDS,
    WriteRequest,
    concerned,
    refusal,
    reports_of,
)
from belay.engine.serve.admission.server import (
    CONFIGURATION,
    CONFIGURATIONS,
    AdmissionServer,
    NodesOfPods,
    register,
)
from belay.engine.wire import publicinfo
from tests.grpc_world import until
from tests.kube_server import TOKEN
from tests.test_grpc_tls import authority, certificate

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "deploy"
WEBHOOK = DEPLOY / "base" / "webhook.yaml"


def config_map(namespace: str, name: str, data: Mapping[str, str] | None = None, **labels: str) -> Object:
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": dict(data or {"a": "b"})}


def write(user: str, body: Object, *, old: Object | None = None, node: str = "n0", operation: str = "UPDATE") -> str:
    metadata = body["metadata"]
    resource = {"ConfigMap": "configmaps", "Node": "nodes", "Pod": "pods", "Secret": "secrets"}[body["kind"]]
    return refusal(
        WriteRequest(
            user=user, operation=operation, resource=resource, namespace=metadata.get("namespace", ""),
            name=metadata["name"], old=body if old is None else old, new=body, node=node,
        )
    )  # fmt: skip


def test_an_agent_writes_the_reports_of_its_node_only() -> None:
    assert {sender.lower() for sender, _, _ in detect.STORAGE.values()} | {"pingmesh"} == set(SENDERS)
    for namespace, name in reports_of("n0"):
        assert not write(AGENT, config_map(namespace, name))
        assert "node n1 may write the reports of its node only" in write(AGENT, config_map(namespace, name), node="n1")
    for namespace, name in (
        ("kube-system", "coredns"),
        ("kube-system", "mindx-dl-deviceinfo-n0-x"),
        ("cluster-system", "x-fault-n0"),
        ("belay-nodes", "mindx-dl-deviceinfo-n0"),
        ("belay-system", "belay-orders-n0"),
    ):
        assert write(AGENT, config_map(namespace, name)), name
    assert "does not say on which node" in write(AGENT, config_map("belay-nodes", "belay-report-n0"), node="")
    assert not write("belay:agent:n0", config_map("belay-nodes", "belay-report-n0"), node="")
    assert write("belay:agent:n1", config_map("belay-nodes", "belay-report-n0"), node="n0")
    assert not write("another", config_map("kube-system", "coredns"), node="")


def test_a_member_of_the_group_of_host_agents_writes_as_the_agent_of_a_node() -> None:
    def said(user: str, node: str) -> str:
        body = config_map("belay-nodes", f"belay-report-{node}")
        return refusal(
            WriteRequest(
                user=user, operation="UPDATE", resource="configmaps", namespace="belay-nodes",
                name=f"belay-report-{node}", old=body, new=body, groups=("system:authenticated", HOST_AGENTS),
            )
        )  # fmt: skip

    assert concerned("eve", (HOST_AGENTS,)) and not concerned("eve", ("system:authenticated",))
    assert not said(f"{HOST_AGENT}n0", "n0") and "of its node only" in said(f"{HOST_AGENT}n0", "n1")
    for user in ("eve", "belay:agent", HOST_AGENT):
        assert said(user, "n0"), user


def test_an_agent_deletes_only_the_report_that_it_may_delete() -> None:
    assert not write(AGENT, config_map("mindx-dl", "mindx-dl-nodeinfo-n0"), operation="DELETE")
    assert write(AGENT, config_map("mindx-dl", "mindx-dl-nodeinfo-n1"), operation="DELETE")
    assert write(AGENT, config_map("belay-nodes", "belay-report-n0"), operation="DELETE")


@pytest.mark.parametrize(
    ("influence", "allowed"),
    [
        ([{"nodeName": "n0"}], True),
        ([{"nodeName": "n0"}, {"nodeName": "n1"}], False),
        ([{"nodeSN": "sn-of-another"}], False),
        ([{"nodeName": "n0", "nodeSN": "sn-of-another"}], False),
        ([{}], False),
    ],
)
def test_public_faults_in_a_report_concern_the_agents_own_node(influence: Any, allowed: bool) -> None:
    for key in (publicinfo.KEY, f"{publicinfo.KEY}.one"):
        text = json.dumps({"faults": [{"influence": influence}]})
        for namespace, name in (("cluster-system", "pingmesh-fault-n0"), ("belay-nodes", "belay-report-n0")):
            body = config_map(namespace, name, {key: text}, **{PUBLIC_FAULT_CONSUMER: "true"})
            assert (not write(AGENT, body)) is allowed
    damaged = config_map(
        "cluster-system", "pingmesh-fault-n0", {publicinfo.KEY: "[" * 5000}, **{PUBLIC_FAULT_CONSUMER: "true"}
    )
    assert not write(AGENT, damaged), "readers refuse it"


def a_node(name: str = "n0", **changes: Any) -> Object:
    body: Object = {
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"a": "b", "servertype": "x"}, "annotations": {"c": "d"}},
        "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]},
    }  # fmt: skip
    for part, fields in changes.items():
        target = body["spec"] if part == "spec" else body["metadata"].setdefault(part, {})
        target.update(fields)
    return body


def test_an_agent_changes_what_device_plugins_write_on_its_own_node() -> None:
    allowed = a_node(labels={"servertype": "y", "huawei.com/driver.version": "1"}, annotations={"ResetInfo": "{}"})
    assert not write(AGENT, allowed, old=a_node())
    assert "may not change node n1" in write(AGENT, a_node("n1"), old=a_node("n1"))
    for change in (
        {"labels": {"node-role.kubernetes.io/control-plane": ""}},
        {"annotations": {"NodeHealthyStatus": "Healthy"}},
        {"spec": {"unschedulable": True}},
        {"spec": {"taints": []}},
    ):
        assert write(AGENT, a_node(**change), old=a_node()), change
    assert not write(SERVER, a_node(annotations={"NodeHealthyStatus": "UnHealthy"}), old=a_node())
    assert write(SERVER, a_node(labels={"huawei.com/x": "1"}), old=a_node())


def a_pod(node: str, image: str = "i", **notes: str) -> Object:
    metadata = {"name": "p", "namespace": "default", "annotations": notes, "labels": {"l": "1"}}
    spec = {"nodeName": node, "containers": [{"name": "c", "image": image}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def test_an_agent_annotates_pods_of_its_node() -> None:
    assert not write(AGENT, a_pod("n0", seen="1"), old=a_pod("n0"))
    assert "is on node 'n1'" in write(AGENT, a_pod("n1", seen="1"), old=a_pod("n1"))
    assert write(AGENT, a_pod("n0", image="evil"), old=a_pod("n0"))
    relabelled = a_pod("n0")
    relabelled["metadata"]["labels"] = {"l": "2"}
    assert write(AGENT, relabelled, old=a_pod("n0")) and not write(SERVER, relabelled, old=a_pod("n0"))
    assert write(SERVER, a_pod("n0", image="evil"), old=a_pod("n0"))


def test_a_server_writes_records_of_recovery_and_no_orders() -> None:
    for namespace, name in (
        ("belay-system", "belay-recovery-1"),
        ("belay-system", "belay-public-faults"),
        ("belay-system", "belay-slow-nodes"),
        ("belay-system", "belay-slow-networks"),
        ("belay-system", "belay-fault-subscribers"),
        ("cluster-system", "fault-job-info"),
        ("cluster-system", "super-pod-7"),
        ("team-a", "reset-config-job"),
        ("team-a", "data-trace-job"),
    ):
        assert not write(SERVER, config_map(namespace, name)), name
    for namespace, name in (
        ("belay-system", "belay-orders-n0"),
        ("belay-system", "belay-policy-default"),
        ("belay-nodes", "belay-report-n0"),
        ("kube-system", "reset-config-job"),
        ("kube-system", "super-pod-7"),
        ("cluster-system", "pingmesh-config"),
        ("team-a", "settings"),
    ):
        assert write(SERVER, config_map(namespace, name)), name


def test_the_engine_stays_out_of_kubernetes_own_namespaces() -> None:
    def secret(namespace: str, name: str, kind: str = "Opaque") -> Object:
        return {
            "apiVersion": "v1", "kind": "Secret", "type": kind, "metadata": {"name": name, "namespace": namespace},
        }  # fmt: skip

    assert write(ENGINE, config_map("kube-system", "coredns"))
    assert not write(ENGINE, config_map("team-a", "settings"))
    assert not write(ENGINE, secret("team-a", "job-ssh"), operation="CREATE")
    assert write(ENGINE, secret("kube-system", "job-ssh"), operation="CREATE")
    assert write(ENGINE, secret("team-a", "token"), operation="CREATE")
    assert write(ENGINE, secret("team-a", "job-ssh", "kubernetes.io/service-account-token"), operation="CREATE")
    inside = a_pod("n0")
    inside["metadata"]["namespace"] = "belay-system"
    assert write(ENGINE, inside, operation="CREATE")
    assert write(SERVER, inside), "no pod of a job"


@pytest.mark.parametrize(
    ("resource", "namespace", "name", "allowed"),
    [
        ("services", "belay-system", "belay-admission", False),
        ("horizontalpodautoscalers", "kube-system", "coredns", False),
        ("services", "team-a", "job", True),
        ("namespaces", "kube-system", "kube-system", False),
        ("namespaces", "team-a", "team-a", True),
        ("priorityclasses", "", "belay-control", False),
        ("priorityclasses", "", "urgent", True),
    ],
)
def test_the_engine_leaves_what_guards_it_alone(resource: str, namespace: str, name: str, allowed: bool) -> None:
    asked = WriteRequest(user=ENGINE, operation="UPDATE", resource=resource, namespace=namespace, name=name)
    assert (not refusal(asked)) is allowed


@pytest.mark.parametrize("body", ["", "[]", "{}", '{"request": 1}', '{"request": {"uid": 1}}', "[" * 100_000])
def test_what_is_no_review_is_answered_in_one_line(body: str) -> None:
    async def go() -> None:
        kube: Any = None
        application = AdmissionServer(NodesOfPods(kube)).application()
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            async with aiohttp.ClientSession() as session:
                url = f"http://127.0.0.1:{runner.addresses[0][1]}/validate"
                async with session.post(url, data=body) as answer:
                    assert answer.status == 400 and len(await answer.text()) < 300
        finally:
            await runner.cleanup()

    asyncio.run(go())


def test_certificates_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"tls\.crt, tls\.key and ca\.crt"):
        ServingCertificate(tmp_path)
    authority(tmp_path, "one")
    signed = certificate(tmp_path, "server", "one")
    for name, file in zip(("tls.crt", "tls.key", "ca.crt"), signed, strict=True):
        (tmp_path / name).write_bytes(file.read_bytes())
    loaded = ServingCertificate(tmp_path)
    (tmp_path / "tls.crt").write_text("no certificate")
    with pytest.raises(InputError):
        loaded.renew()
    assert loaded.authority == (tmp_path / "ca.crt").read_bytes(), "the last good one stays"


def trusted_by(bundle: bytes) -> list[str]:
    """The names of the authorities in a bundle."""
    return [cert.subject.rfc4514_string() for cert in x509.load_pem_x509_certificates(bundle)]


def test_processes_trust_each_others_certificates_and_forget_what_is_over() -> None:
    now = datetime.datetime(2026, 5, 1, tzinfo=datetime.UTC)
    one, two = (SelfMadeCertificate(name, now=lambda: now) for name in ("one", "two"))
    bundle = two.bundle(one.bundle(b"no certificate at all"))
    assert [name.split()[1] for name in trusted_by(bundle)] == ["one", "two"]
    assert two.bundle(bundle) == one.bundle(bundle) == bundle, "nothing to write, for neither"

    now += LIFETIME / 2
    two.renew()
    renewed = two.bundle(bundle)
    assert sorted(name.split()[1] for name in trusted_by(renewed)) == ["one", "two", "two"], "connections go on"
    now += LIFETIME / 2
    two.renew()
    assert [name.split()[1] for name in trusted_by(two.bundle(renewed))] == ["two", "two"], "one has ended long ago"


def test_processes_that_end_at_once_do_not_grow_the_bundle() -> None:
    bundle = b""
    for number in range(3 * MOST_AUTHORITIES):
        bundle = SelfMadeCertificate(f"pod-{number}").bundle(bundle)
    assert len(trusted_by(bundle)) == MOST_AUTHORITIES
    assert f"pod-{3 * MOST_AUTHORITIES - 1}" in trusted_by(bundle)[-1]


def test_the_policies_in_cel_name_what_the_rules_name() -> None:
    found = list(yaml.safe_load_all((DEPLOY / "components" / "admission-policy" / "policy.yaml").read_text()))
    policies = {one["metadata"]["name"]: one["spec"] for one in found if one["kind"] == "ValidatingAdmissionPolicy"}
    bound = [one["spec"] for one in found if one["kind"] == "ValidatingAdmissionPolicyBinding"]
    assert {one["policyName"] for one in bound} == set(policies)
    assert all(one["validationActions"] == ["Deny"] for one in bound)
    public = policies.pop("belay-public-faults")
    (listed,) = (row["expression"] for row in public["validations"])
    allowed = {source.namespace for source in PUBLIC_FAULT_SOURCES} | {publicinfo.MESSAGES_NAMESPACE}
    assert set(re.findall(r"'([^']+)'", listed)) == allowed
    assert public["matchConstraints"]["objectSelector"]["matchLabels"] == {PUBLIC_FAULT_CONSUMER: "true"}
    for name, spec in policies.items():
        (condition,) = spec["matchConditions"]
        account = "-".join(name.split("-")[:2])
        user = {"belay-agent": AGENT, "belay-server": SERVER, "belay-engine": ENGINE}[account]
        found = set(re.findall(r"'([^']+)'", condition["expression"]))
        assert found == ({AGENT, HOST_AGENT, HOST_AGENTS} if user == AGENT else {user})
        assert f"request.userInfo.username == '{user}'" in condition["expression"]
        names = [row["expression"] for row in spec.get("variables", ()) if row["name"] == "node"]
        assert all(f"username.substring({len(HOST_AGENT)})" in one for one in names)
        texts = [row[key] for part in ("validations", "variables") for row in spec.get(part, ()) for key in row]
        assert all(text.count(a) == text.count(b) for text in texts for a, b in ("()", "[]", "{}"))
        known = {row["name"] for row in spec.get("variables", ())}
        assert set(re.findall(r"variables\.(\w+)", " ".join(texts))) <= known
    (reports, _) = (row["expression"] for row in policies["belay-agent-configmaps"]["validations"])
    assert set(re.findall(r"'([^']+/[^']+)' \+ variables\.node", reports)) == {
        f"{namespace}/{name.removesuffix('NODE')}" for namespace, name in reports_of("NODE")
    }
    lists = [row["expression"] for row in policies["belay-agent-nodes"]["variables"] if row["name"].startswith("own")]
    assert set(re.findall(r"'([^']+)'", " ".join(lists))) == NODE_LABELS | NODE_ANNOTATIONS
    (guarded,) = (
        row["expression"] for row in policies["belay-server-configmaps"]["variables"] if row["name"] == "guarded"
    )
    assert set(re.findall(r"'([^']+)'", guarded)) == GUARDED
    (writes,) = (row["expression"] for row in policies["belay-server-configmaps"]["validations"])
    prefixes = set(re.findall(r"startsWith\('([^']+)'\)", writes))
    assert prefixes == {name for _, name in SERVER_PREFIXES} | set(JOB_PREFIXES)
    places = {namespace for namespace, _ in SERVER_RECORDS}
    assert set(re.findall(r"'([^']+)'", writes)) - prefixes - places == {name for _, name in SERVER_RECORDS}


class Cluster:
    """A real API server with Belay's rights; ``attempt`` writes with the token of an account."""

    def __init__(self, kube: Kube, session: aiohttp.ClientSession, server: str) -> None:
        self.kube, self.session, self.server = kube, session, server
        self.context = ssl.create_default_context()
        self.context.check_hostname, self.context.verify_mode = False, ssl.CERT_NONE

    async def prepare(self) -> None:
        rights = ("base/rbac.yaml", "overlays/nodes/rbac.yaml", "components/host-agents/rbac.yaml")
        for path in ("base/namespaces.yaml", *rights):
            for body in yaml.safe_load_all((DEPLOY / path).read_text()):
                await self.kube.apply(body)
        label = {"metadata": {"labels": {"kubernetes.io/metadata.name": "kube-system"}}}
        await self.kube.patch(NAMESPACE, "kube-system", label)  # as API servers from 1.21 on do themselves
        for node in ("n0", "n1"):
            await self.kube.create(NODE, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
            for namespace, name in (("belay-nodes", f"agent-{node}"), ("default", f"job-{node}")):
                account = {"serviceAccountName": "belay-agent"} if namespace == "belay-nodes" else {}
                spec = {"nodeName": node, "containers": [{"name": "c", "image": "i"}], **account}
                metadata = {"name": name, "namespace": namespace}
                await self.kube.create(POD, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        for name in ("coredns", "mindx-dl-deviceinfo-n1"):
            labels = {"mx-consumer-cim": "true"} if name != "coredns" else {}
            await self.kube.create(CONFIGMAP, config_map("kube-system", name, **labels))

    async def clean(self) -> None:
        with contextlib.suppress(KubeError):
            await self.kube.delete(CONFIGURATIONS, CONFIGURATION)
        for node in ("n0", "n1"):
            for namespace, name in (("belay-nodes", f"agent-{node}"), ("default", f"job-{node}")):
                await self.kube.delete(POD, name, namespace, grace=0)
            await self.kube.delete(NODE, node)
        written = (
            (CONFIGMAP, "kube-system", ("coredns", "mindx-dl-deviceinfo-n0", "mindx-dl-deviceinfo-n1")),
            (CONFIGMAP, "belay-system", RECORDS),
            (LEASE, "belay-system", ("belay-recovery", "belay-shard-main")),
        )
        for kind, namespace, names in written:
            for name in names:
                with contextlib.suppress(KubeError):  # a story that ended early did not make it
                    await self.kube.delete(kind, name, namespace)

    async def token(self, account: str, pod: str = "") -> str:
        spec: dict[str, Any] = {"expirationSeconds": 3600}
        namespace = "belay-nodes" if account == "belay-agent" else "belay-system"
        if pod:
            found = await self.kube.get(POD, pod, namespace)
            assert found is not None
            uid = found["metadata"]["uid"]
            spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": pod, "uid": uid}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        kind = resource_for("v1", "ServiceAccount")
        answer: Any = await self.kube._call("POST", kind, namespace, account, "token", body=body)
        return str(answer["status"]["token"])

    async def attempt(self, token: str, method: str, path: str, body: Any = None) -> tuple[int, str]:
        """Status and message of a request with a token, or as a user whose certificate names the group of agents."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
        if token.startswith(HOST_AGENT):
            named = {"Impersonate-User": token, "Impersonate-Group": HOST_AGENTS}
            headers |= {"Authorization": f"Bearer {TOKEN}", **named}
        root = "" if path.startswith("apis/") else "api/v1/"
        async with self.session.request(
            method, f"{self.server}/{root}{path}", data=json.dumps(body or {}), headers=headers, ssl=self.context
        ) as answer:
            found = await answer.json(content_type=None)
            return answer.status, str(found.get("message", "")) if answer.status >= 300 else ""


@contextlib.asynccontextmanager
async def guarded(kube: Kube) -> AsyncIterator[web.AppRunner]:
    """The webhook served on loopback and registered as deploy/ has it, but for where it is reached."""
    loaded = SelfMadeCertificate("webhook", [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    runner = web.AppRunner(AdmissionServer(NodesOfPods(kube)).application())
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=loaded.context).start()
        body = yaml.safe_load(WEBHOOK.read_text())
        for hook in body["webhooks"]:
            hook["clientConfig"] = {"url": f"https://127.0.0.1:{runner.addresses[0][1]}/validate"}
            hook["timeoutSeconds"] = 30  # a slow machine is no lost webhook
        await kube.create(CONFIGURATIONS, body)
        assert await register(kube, loaded)
        yield runner
    finally:
        await runner.cleanup()


RECORDS = ("belay-recovery-1", "belay-orders-n1")
API = "admissionregistration.k8s.io/v1"
LEASES = "apis/coordination.k8s.io/v1/namespaces/belay-system/leases"
LABELLED = {"metadata": {"labels": {"servertype": "x"}}}
FAILED = {"status": {"phase": "Failed"}}
EVIL = {"spec": {"containers": [{"name": "c", "image": "evil:1"}]}}
OF_AGENTS = "namespaces/belay-nodes/pods"
EVICTION = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": "agent-n1"}}


def lease(name: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "belay-system"}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}


NOTE = {"metadata": {"annotations": {"seen": "1"}}}
DATA = {"data": {"x": "y"}}


MAPS = "namespaces/kube-system/configmaps"
BOUND_LAST = ("ValidatingAdmissionPolicyBinding", "belay-agent-configmaps")
Attempt = tuple[str, str, str, Any, str]
"""Token, method, path, body, and a part of the refusal; empty where the write succeeds."""


async def attempts(cluster: Cluster) -> tuple[Attempt, ...]:
    """What each account may write, and what it may not."""
    agent, unbound = await cluster.token("belay-agent", "agent-n0"), await cluster.token("belay-agent")
    serving, engine = await cluster.token("belay-server"), await cluster.token("belay-engine")
    host, maps, system = f"{HOST_AGENT}n0", MAPS, "namespaces/belay-system/configmaps"
    record, orders = (config_map("belay-system", name) for name in ("belay-recovery-1", "belay-orders-n1"))
    own = config_map("kube-system", "mindx-dl-deviceinfo-n0", **{"mx-consumer-cim": "true"})
    return (
        (agent, "POST", maps, own, ""),
        (agent, "PATCH", f"{maps}/mindx-dl-deviceinfo-n0", DATA, ""),
        (agent, "PATCH", f"{maps}/mindx-dl-deviceinfo-n1", DATA, "reports of its node only"),
        (agent, "POST", maps, config_map("kube-system", "mine"), "reports of its node only"),
        (unbound, "PATCH", f"{maps}/mindx-dl-deviceinfo-n0", DATA, "does not say on which node"),
        (host, "PATCH", f"{maps}/mindx-dl-deviceinfo-n0", DATA, ""),
        (host, "PATCH", f"{maps}/mindx-dl-deviceinfo-n1", DATA, "reports of its node only"),
        (host, "PATCH", "namespaces/default/pods/job-n0/status", NOTE, ""),
        (host, "PATCH", "namespaces/default/pods/job-n1/status", NOTE, "which is on node 'n1'"),
        (host, "PATCH", "namespaces/default/pods/job-n0", NOTE, "cannot patch resource"),
        (host, "DELETE", "namespaces/default/pods/job-n0", None, "cannot delete"),
        (agent, "PATCH", "nodes/n0/status", {"metadata": {"labels": {"servertype": "x"}}}, ""),
        (agent, "PATCH", "nodes/n0", {"spec": {"unschedulable": True}}, "cannot patch resource"),
        (agent, "PATCH", "nodes/n0/status", {"status": {"phase": "Terminated"}}, "neither taints nor its spec"),
        (agent, "PATCH", "nodes/n0/status", {"metadata": {"labels": {"own": "x"}}}, "may not change label own"),
        (agent, "PATCH", "nodes/n1/status", LABELLED, "may not change node n1"),
        (agent, "PATCH", "namespaces/default/pods/job-n0/status", NOTE, ""),
        (agent, "PATCH", "namespaces/default/pods/job-n0/status", FAILED, "annotations of"),
        (agent, "PATCH", "namespaces/default/pods/job-n1/status", NOTE, "which is on node 'n1'"),
        (agent, "PATCH", "namespaces/default/pods/job-n0", EVIL, "cannot patch resource"),
        (serving, "PATCH", "namespaces/default/pods/job-n1/status", NOTE, ""),
        (serving, "PATCH", "namespaces/default/pods/job-n1/status", FAILED, "labels and annotations"),
        (serving, "PATCH", "namespaces/default/pods/job-n1", EVIL, "cannot patch resource"),
        (serving, "POST", LEASES, lease("belay-recovery"), ""),
        (serving, "PATCH", f"{LEASES}/belay-recovery", {"spec": {"holderIdentity": "x"}}, "cannot patch"),
        (serving, "POST", LEASES, lease("belay-shard-main"), "may write"),
        (serving, "GET", f"{LEASES}/belay-shard-main", None, "cannot get resource"),
        (engine, "POST", LEASES, lease("belay-shard-main"), ""),
        (engine, "POST", LEASES, lease("another"), "may write"),
        (engine, "DELETE", f"{OF_AGENTS}/agent-n1", None, "no workloads in namespace belay-nodes"),
        (engine, "POST", f"{OF_AGENTS}/agent-n1/eviction", EVICTION, "no workloads in namespace"),
        (serving, "POST", system, record, ""),
        (serving, "POST", system, orders, "those of recovery, not belay-system/belay-orders-n1"),
        (engine, "POST", system, orders, ""),
        (engine, "PATCH", f"{maps}/coredns", DATA, "writes nothing in namespace kube-system"),
    )


def play(kubeconfig: str, story: Callable[[Cluster], Awaitable[None]]) -> None:
    """A story in a cluster with Belay's rights, which is left as it was."""
    server = yaml.safe_load(Path(kubeconfig).read_text())["clusters"][0]["cluster"]["server"]

    async def go() -> None:
        async with Kube.from_config(kubeconfig) as kube, aiohttp.ClientSession() as session:
            cluster = Cluster(kube, session, server)
            try:
                await cluster.prepare()
                await story(cluster)
            finally:
                await cluster.clean()

    asyncio.run(go())


@pytest.mark.e2e
@pytest.mark.timeout(240)
def test_a_real_api_server_keeps_accounts_to_their_own(kubeconfig: str) -> None:
    async def story(cluster: Cluster) -> None:
        agent = await cluster.token("belay-agent", "agent-n0")
        async with guarded(cluster.kube):

            async def refused() -> bool:
                status, why = await cluster.attempt(agent, "PATCH", f"{MAPS}/coredns", DATA)
                return status == 403 and "reports of its node only, not ConfigMap kube-system/coredns" in why

            await until(refused, "the API server asks the webhook")
            for token, method, path, body, why in await attempts(cluster):
                status, said = await cluster.attempt(token, method, path, body)
                assert (status < 300 and not why) or (status == 403 and why in said), (method, path, status, said)
            await cluster.kube.patch(CONFIGMAP, "coredns", {"data": {"admin": "1"}}, "kube-system")

        # the webhook is lost: reports go on, and what agents must never change stays as it is
        assert await cluster.attempt(agent, "PATCH", f"{MAPS}/mindx-dl-deviceinfo-n0", DATA) == (200, "")
        relabelled = {**DATA, "metadata": {"labels": {"mx-consumer-cim": "true"}}}
        for body in (DATA, relabelled):
            status, said = await cluster.attempt(agent, "PATCH", f"{MAPS}/coredns", body)
            assert status >= 400 and "system-configmaps.admission.belay.dev" in said

    play(kubeconfig, story)


@pytest.mark.e2e
@pytest.mark.timeout(240)
def test_policies_of_a_newer_api_server_keep_accounts_to_their_own(kubeconfig: str) -> None:
    """The same attempts, answered by ValidatingAdmissionPolicies; sentences differ, verdicts do not."""
    documents = list(yaml.safe_load_all((DEPLOY / "components" / "admission-policy" / "policy.yaml").read_text()))
    # last what is waited for, so that the others count by then
    documents.sort(key=lambda one: (one["kind"], one["metadata"]["name"]) == BOUND_LAST)

    async def story(cluster: Cluster) -> None:
        try:
            kinds = {kind: await cluster.kube.resource(API, kind) for kind in {one["kind"] for one in documents}}
        except KubeError:
            pytest.skip("this API server is older than 1.30 and has no ValidatingAdmissionPolicy")
        agent = await cluster.token("belay-agent", "agent-n0")
        try:
            for document in documents:
                await cluster.kube.apply(document)

            async def refused() -> bool:
                return (await cluster.attempt(agent, "PATCH", f"{MAPS}/coredns", DATA))[0] >= 400

            await until(refused, "the API server knows the policies")
            for token, method, path, body, why in await attempts(cluster):
                status, said = await cluster.attempt(token, method, path, body)
                assert (status < 300) is (not why) and status != 500, (method, path, status, said)
        finally:
            for document in documents:
                await cluster.kube.delete(kinds[document["kind"]], document["metadata"]["name"])

    play(kubeconfig, story)
