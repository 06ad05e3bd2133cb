"""Callers of the gRPC services: who they are, and that each speaks for its own job, namespace or node only."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from belay.agents.common import caller_token
from belay.agents.drivers.base import DriverError
from belay.agents.node.hardware.publicfaults import GrpcPublicFaults
from belay.engine.errors import InputError
from belay.engine.kube import CONFIGMAP, POD, Kube, KubeError
from belay.engine.model.plan_cache import PlanCache
from belay.engine.serve.grpc import token_reviews
from belay.engine.serve.grpc.access import METHODS, Grants, MethodScope
from belay.engine.serve.grpc.callers import RELAY_TOKEN, RELAYED, accounts_of
from belay.engine.serve.grpc.job_view import views
from belay.engine.serve.grpc.server import callers_of, serving
from belay.engine.serve.grpc.token_reviews import REVIEW_BURST, InvalidToken, TokenNotChecked, TokenReviews
from belay.engine.settings import Settings
from belay.engine.wire import publicinfo
from belay.engine.wire.clusterd import config_pb2, fault_pb2, job_pb2, profiling_pb2, pubfault_pb2, recover_pb2
from belay.engine.wire.clusterd import recover_pb2 as pb
from belay.engine.wire.training import training_pb2
from tests.grpc_world import NS, World, play, until

NOW_MS = 1_790_000_000_000


async def token(world: World, namespace: str, account: str = "default", pod: str = "", audience: str = "belay") -> str:
    """A token of the account, bound to the pod where one is named."""
    spec: dict[str, Any] = {"audiences": [audience], "expirationSeconds": 3600}
    if pod:
        found = await world.kube.get(POD, pod, namespace)
        assert found is not None
        spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": pod, "uid": found["metadata"]["uid"]}
    account_kind = await world.kube.resource("v1", "ServiceAccount")
    body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account, "namespace": namespace}}
    await world.kube.apply(body)
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    answer: Any = await world.kube._call("POST", account_kind, namespace, account, "token", body=review)
    return str(answer["status"]["token"])


class Calls:
    """Calls of one client; each answers with the code of its message, or the name of its gRPC status."""

    def __init__(self, port: int, given: str = "", **more: str) -> None:
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=(("grpc.use_local_subchannel_pool", 1),))
        rows = [("authorization", f"Bearer {given}")] if given else []
        self.metadata = (*rows, *more.items())
        self.said = ""

    async def __call__(self, path: str, request: Any, reply: Any = pb.Status) -> int | str:
        method = self.channel.unary_unary(
            path, request_serializer=type(request).SerializeToString, response_deserializer=reply.FromString
        )
        try:
            return int((await method(request, timeout=60, metadata=self.metadata)).code)
        except grpc.aio.AioRpcError as error:
            self.said = error.details() or ""
            return error.code().name

    async def init(self, job: str) -> int | str:
        return await self("/Recover/Init", pb.ClientInfo(jobId=job, role="r"))

    async def fault(self, job: str) -> int | str:
        rows = [pb.FaultRank(rankId="0", faultType="1")]
        return await self("/Recover/ReportProcessFault", pb.ProcessFaultRequest(jobId=job, faultRanks=rows))

    async def cluster_faults(self) -> int | str:
        request = fault_pb2.ClientInfo(jobId="", role="r")
        return await self("/fault.Fault/GetFaultMsgSignal", request, fault_pb2.FaultQueryResult)


async def two_jobs(world: World) -> tuple[str, str]:
    first = await world.job("first", pods=1)
    second = await world.job("second", pods=1, nodes=False)
    return first, second


def run(folder: Path, story: Callable[[World], Awaitable[None]]) -> None:
    play(folder, story)


def test_every_method_that_is_served_has_a_rule() -> None:
    modules = (config_pb2, fault_pb2, job_pb2, profiling_pb2, pubfault_pb2, recover_pb2, training_pb2)
    served = {
        f"/{service.full_name}/{method.name}": method.input_type
        for module in modules
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert set(served) == set(METHODS)
    for path, rule in METHODS.items():
        assert not rule.field or rule.field in served[path].fields_by_name, path
        assert bool(rule.field) == (rule.scope in (MethodScope.JOB, MethodScope.OPERATE)), path


def test_a_pod_of_a_job_speaks_for_no_other_job(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        first, second = await two_jobs(world)
        async with world.server(callers="known") as server:
            await until(lambda: len(server.cluster.jobs) == 2, "both jobs are seen")
            own = Calls(server.port, await token(world, NS, pod="second-worker-0"))
            assert await own.init(second) == 0 and await own("/Recover/Register", pb.ClientInfo(jobId=second)) == 0
            attacker = Calls(server.port, await token(world, NS, pod="first-worker-0"))
            assert await attacker.init(first) == 0, "its own job"
            assert await attacker.fault(second) == "PERMISSION_DENIED"
            assert f"pod {NS}/first-worker-0 belongs to job {first}, not to {second}" in attacker.said
            assert await attacker("/Recover/StressTest", pb.StressTestParam(jobID=first)) == "PERMISSION_DENIED"
            pod = await world.kube.get(POD, "second-worker-0", NS)
            assert pod is not None and "fault-type" not in pod["metadata"].get("labels", {})
            assert not server.registry.sessions[second].conversation.story
            stranger = Calls(server.port)
            assert await stranger.fault(second) == "UNAUTHENTICATED"
            assert "serviceAccountToken.audience belay" in stranger.said
            assert await stranger.cluster_faults() == "UNAUTHENTICATED"
            assert await stranger("/Recover/HealthCheck", pb.ClientInfo()) == 0
            for_others = Calls(server.port, await token(world, NS, pod="second-worker-0", audience="vault"))
            assert await for_others.fault(second) == "UNAUTHENTICATED"
            assert await own.fault(second) == 0

    run(tmp_path, story)


def test_accounts_speak_for_the_jobs_of_their_namespace_and_operators_for_all(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        first, _ = await two_jobs(world)
        await world.kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "platform"}})
        grants = Grants(operators=frozenset({("platform", "console")}))
        async with world.server(callers="known", grants=grants) as server:
            await until(lambda: first in server.cluster.jobs, "the job is seen")
            assert await Calls(server.port, await token(world, NS)).init(first) == 0
            neighbour = Calls(server.port, await token(world, "platform"))
            assert await neighbour.init(first) == "PERMISSION_DENIED"
            assert "BELAY_GRPC_OPERATORS" in neighbour.said
            assert await neighbour.cluster_faults() == 200, "a known caller may read"
            console = Calls(server.port, await token(world, "platform", "console"))
            assert await console.init(first) == 0

    run(tmp_path, story)


def message(node: str, name: str) -> dict[str, Any]:
    fault = {
        "faultId": "fault-0001", "faultType": "NPU", "faultCode": "220001001", "faultTime": NOW_MS,
        "assertion": "occur", "influence": [{"nodeName": node, "deviceIds": [0]}],
    }  # fmt: skip
    return {"id": name, "timestamp": NOW_MS, "version": "1.0", "resource": "CCAE", "faults": [fault]}


def test_an_agent_reports_public_faults_of_its_own_node_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        await two_jobs(world)
        for name, node in (("agent-a", "n0"), ("agent-b", "n1")):
            spec = {"nodeName": node, "serviceAccountName": "belay-agent", "containers": [{"name": "c", "image": "i"}]}
            metadata = {"name": name, "namespace": "belay-nodes"}
            await world.kube.create(POD, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        file = tmp_path / "token"
        monkeypatch.setenv(caller_token.VARIABLE, str(file))
        grants = Grants(fault_senders=frozenset({("mindx-dl", "noded")}))
        async with world.server(callers="known", grants=grants) as server:
            await until(lambda: "belay-nodes/agent-a" in server.cluster.observed.pods, "the agents are seen")

            async def send(as_whom: str, node: str, name: str) -> None:
                file.write_text(as_whom)
                sender = GrpcPublicFaults(f"127.0.0.1:{server.port}")
                try:
                    await sender.send(message(node, name))
                finally:
                    await sender.close()

            agent = await token(world, "belay-nodes", "belay-agent", "agent-a")
            await send(agent, "n0", "message-own")
            with pytest.raises(DriverError, match="is on node n0 and may not report faults of 'n1'"):
                await send(agent, "n1", "message-forged")
            with pytest.raises(DriverError, match=r"the node of .* is not known"):
                await send(await token(world, "belay-nodes", "belay-agent"), "n0", "message-unbound")
            with pytest.raises(DriverError, match="may not send public faults"):
                await send(await token(world, NS, pod="first-worker-0"), "n0", "message-job")
            await send(await token(world, "mindx-dl", "noded"), "n1", "message-granted")
            file.unlink()
            with pytest.raises(DriverError, match="does not say who it is"):
                await send("", "n0", "message-unknown")
            inbox = await world.kube.get(CONFIGMAP, publicinfo.MESSAGES, publicinfo.MESSAGES_NAMESPACE)
            assert inbox is not None
            assert set(inbox["data"]) == {f"{publicinfo.KEY}.message-own", f"{publicinfo.KEY}.message-granted"}

    run(tmp_path, story)


async def place(world: World, pod: str, address: str) -> None:
    await world.kube.patch_status(POD, pod, {"status": {"phase": "Running", "podIP": address}}, NS)


def test_by_address_a_pod_speaks_for_its_own_job_and_strangers_only_read(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        first, second = await two_jobs(world)
        await place(world, "second-worker-0", "10.2.0.9")
        async with world.server(callers="address") as server:
            plain = Calls(server.port)

            async def seen(address: str) -> None:
                await place(world, "first-worker-0", address)
                await until(
                    lambda: server.cluster.observed.pods[f"{NS}/first-worker-0"].pod_ip == address, "it is seen"
                )

            await seen("10.2.0.8")
            assert await plain.fault(first) == "UNAUTHENTICATED", "no pod has this address"
            assert await plain.cluster_faults() == 200
            await seen("127.0.0.1")
            assert await plain.init(first) == 0, "MindCluster's clients send no token"
            assert await plain.fault(second) == "PERMISSION_DENIED"
            await place(world, "second-worker-0", "127.0.0.1")
            await until(lambda: server.cluster.observed.pods[f"{NS}/second-worker-0"].pod_ip == "127.0.0.1", "seen")
            assert await plain.init(first) == "UNAUTHENTICATED", "two pods claim the address"

    run(tmp_path, story)


def test_the_address_of_a_relayed_call_is_believed_from_servers_only(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        first, second = await two_jobs(world)
        await place(world, "first-worker-0", "10.2.0.8")
        async with world.server(callers="address") as server:
            await until(lambda: len(server.cluster.jobs) == 2, "both jobs are seen")
            mine = await token(world, NS)
            for forged in ({}, {RELAY_TOKEN: "x.y.z"}, {RELAY_TOKEN: mine}):
                liar = Calls(server.port, **{RELAYED: "10.2.0.8", **forged})
                assert await liar.init(first) == "UNAUTHENTICATED"
            genuine = await token(world, "belay-system", "belay-server")
            relaying = Calls(server.port, **{RELAYED: "10.2.0.8", RELAY_TOKEN: genuine})
            assert await relaying.init(first) == 0
            assert await relaying.init(second) == "PERMISSION_DENIED"

            # a client's own token passes through a server that relays without a token of its own
            async with world.server("server-1", callers="address", own_token=lambda: "") as stands_by:
                through = Calls(stands_by.port, await token(world, NS, pod="second-worker-0"))
                assert await through.init(second) == 0
                assert await through.init(first) == "PERMISSION_DENIED"

    run(tmp_path, story)


def test_a_server_relays_only_what_it_would_admit_itself(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        first, second = await two_jobs(world)
        async with (
            world.server(callers="any") as serving_one,
            world.server("server-1", callers="known") as stands_by,
        ):
            await until(lambda: len(serving_one.cluster.jobs) == len(stands_by.cluster.jobs) == 2, "both jobs are seen")
            assert await Calls(serving_one.port).init(first) == 0, "the serving server admits everybody"
            stranger = Calls(stands_by.port)
            assert await stranger.fault(first) == "UNAUTHENTICATED"
            assert await stranger.cluster_faults() == "UNAUTHENTICATED"
            assert await stranger("/Recover/HealthCheck", pb.ClientInfo()) == 0

            pod = Calls(stands_by.port, await token(world, NS, pod="second-worker-0"))
            assert await pod.fault(first) == "PERMISSION_DENIED"
            assert await pod.init(second) == 0

            request = fault_pb2.ClientInfo(jobId="", role="r")
            method = stranger.channel.unary_stream(
                "/fault.Fault/SubscribeFaultMsgSignal",
                request_serializer=fault_pb2.ClientInfo.SerializeToString,
                response_deserializer=fault_pb2.FaultMsgSignal.FromString,
            )
            with pytest.raises(grpc.aio.AioRpcError, match="UNAUTHENTICATED"):
                await method(request, timeout=60).read()

    run(tmp_path, story)


def test_a_pod_that_names_another_jobs_uid_does_not_become_that_job(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        job = await world.job("first", pods=1)
        await world.kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "aaa"}})
        owner = {
            "apiVersion": "mindxdl.gitee.com/v1", "kind": "AscendJob", "name": "first", "uid": job, "controller": True,
        }  # fmt: skip
        body = {
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "evil", "namespace": "aaa", "ownerReferences": [owner]},
            "spec": {"nodeName": "n0", "containers": [{"name": "c", "image": "i"}]},
        }  # fmt: skip
        await world.kube.create(POD, body)
        async with world.server(callers="known") as server:
            await until(lambda: "aaa/evil" in server.cluster.observed.pods, "it is seen")
            view = views(server.cluster.observed, PlanCache())[job]
            assert view.namespace == NS and [pod.name for pod in view.pods] == ["first-worker-0"]
            evil = Calls(server.port, await token(world, "aaa", pod="evil"))
            assert await evil.init(job) == "PERMISSION_DENIED"

    run(tmp_path, story)


class Reviewer:
    """An API server that answers TokenReviews; ``answers`` by token."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked = 0

    async def create(self, resource: Any, body: Any) -> Any:
        self.asked += 1
        await asyncio.sleep(0)
        found = self.answers.get(body["spec"]["token"])
        if found is None:
            raise KubeError("down")
        return {"status": found}


def a_token(name: str, exp: float = 2e9, aud: Any = "belay") -> str:
    import base64

    claims = base64.urlsafe_b64encode(json.dumps({"sub": name, "exp": exp, "aud": aud}).encode()).decode().rstrip("=")
    return f"h.{claims}.s"


def good(name: str, **extra: str) -> dict[str, Any]:
    rows = {f"authentication.kubernetes.io/{key.replace('_', '-')}": [value] for key, value in extra.items()}
    user = {"username": f"system:serviceaccount:ns:{name}", "extra": rows}
    return {"authenticated": True, "audiences": ["belay"], "user": user}


def test_verdicts_are_kept_for_a_while_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_reviews, "MAX_KNOWN", 64)

    async def go() -> None:
        now = [1000.0]
        server = Reviewer()
        kube: Any = server
        reviews = TokenReviews(kube, clock=lambda: now[0], wall=lambda: now[0])
        one = a_token("a", exp=1090.0)
        server.answers[one] = good("a", pod_name="p", pod_uid="u", node_name="n1")
        found = await asyncio.gather(*(reviews.account(one, "10.0.0.1") for _ in range(20)))
        assert {(who.name, who.pod, who.pod_uid, who.node) for who in found} == {("a", "p", "u", "n1")}
        assert server.asked == 1, "calls share a review"
        now[0] += 59
        await reviews.account(one, "10.0.0.1")
        assert server.asked == 1
        server.answers[one] = {"authenticated": False, "error": "pod is gone"}
        now[0] += 2
        with pytest.raises(InvalidToken, match="pod is gone"):
            await reviews.account(one, "10.0.0.1")
        assert server.asked == 2
        now[0] = 1091.0
        with pytest.raises(InvalidToken, match="has expired"):
            await reviews.account(one, "10.0.0.1")
        with pytest.raises(TokenNotChecked):
            await reviews.account(a_token("no answer"), "10.0.0.1")
        for index in range(80):
            each = a_token(str(index))
            server.answers[each] = good(str(index))
            await reviews.account(each, f"10.1.0.{index}")
        assert len(reviews._known) == 64

    asyncio.run(go())


@pytest.mark.parametrize(
    "status",
    [
        None,
        [],
        {"authenticated": "true"},
        {**good("a"), "audiences": []},
        {**good("a"), "audiences": ["other"]},
        {**good("a"), "user": {"username": "admin"}},
        {**good("a"), "user": {"username": "system:serviceaccount:a:b:c"}},
        {"authenticated": True, "audiences": ["belay"]},
    ],
)
def test_what_is_no_verdict_for_this_audience_proves_nothing(status: Any) -> None:
    async def go() -> None:
        server = Reviewer()
        kube: Any = server
        server.answers[a_token("a")] = status
        with pytest.raises((InvalidToken, TokenNotChecked)):
            await TokenReviews(kube).account(a_token("a"), "10.0.0.1")

    asyncio.run(go())


@pytest.mark.parametrize("text", ["", "x", "a.b", "a.b.c", "a." + "A" * 20_000 + ".c", a_token("a", aud=["vault"])])
def test_texts_that_are_no_tokens_do_not_reach_the_api_server(text: str) -> None:
    async def go() -> None:
        server = Reviewer()
        kube: Any = server
        with pytest.raises(InvalidToken):
            await TokenReviews(kube).account(text, "10.0.0.1")
        assert not server.asked

    asyncio.run(go())


def test_one_address_cannot_have_the_api_server_check_tokens_without_end() -> None:
    async def go() -> None:
        server = Reviewer()
        kube: Any = server
        reviews = TokenReviews(kube, clock=lambda: 5.0)
        for index in range(REVIEW_BURST):
            server.answers[a_token(str(index))] = {"authenticated": False}
            with pytest.raises(InvalidToken):
                await reviews.account(a_token(str(index)), "10.0.0.1")
        with pytest.raises(TokenNotChecked, match="too many"):
            await reviews.account(a_token("one more"), "10.0.0.1")
        server.answers[a_token("another")] = good("another")
        assert (await reviews.account(a_token("another"), "10.0.0.2")).name == "another"

    asyncio.run(go())


@pytest.mark.parametrize(
    ("chosen", "host", "tls", "mode"),
    [
        ("auto", "127.0.0.1", False, "any"),
        ("auto", "127.0.0.1", True, "known"),
        ("auto", "10.0.0.7", False, "known"),
        ("auto", "0.0.0.0", False, "known"),
        ("known", "127.0.0.1", False, "known"),
        ("address", "::1", False, "address"),
    ],
)
def test_callers_are_trusted_by_default_only_where_no_other_machine_reaches(
    chosen: Any, host: str, tls: bool, mode: str
) -> None:
    settings = msgspec.structs.replace(Settings(), grpc_callers=chosen)
    assert callers_of(settings, host, tls=tls) == mode


def test_settings_name_accounts() -> None:
    assert accounts_of(" a/b, c/d ,") == {("a", "b"), ("c", "d")}
    settings = msgspec.structs.replace(Settings(), grpc_listen="127.0.0.1:0", grpc_operators="platform")
    kube: Any = Kube

    async def go() -> None:
        with pytest.raises(InputError, match=r"BELAY_GRPC_OPERATORS.*'platform' is not a ServiceAccount"):
            async with serving(settings, kube, {}):
                pass

    asyncio.run(go())


def test_the_token_of_a_process_is_read_again_and_never_waited_for(tmp_path: Path) -> None:
    import os

    environ = {caller_token.VARIABLE: str(tmp_path / "token")}
    assert caller_token.metadata(environ) == ()
    (tmp_path / "token").write_text("a.b.c\n")
    assert caller_token.metadata(environ) == (("authorization", "Bearer a.b.c"),)
    (tmp_path / "token").write_text("d.e.f")
    assert caller_token.metadata(environ) == (("authorization", "Bearer d.e.f"),)
    (tmp_path / "token").write_bytes(b"two\nlines\xff")
    assert caller_token.metadata(environ) == ()
    (tmp_path / "token").unlink()
    os.mkfifo(tmp_path / "token")
    assert caller_token.metadata(environ) == ()
