"""`belay admission`: a validating webhook that applies `rules.py` in clusters without ValidatingAdmissionPolicy.

A process and an account of its own, so that what it guards against cannot approve itself. It keeps no state; any number
may run. Formats: Kubernetes documentation, "Dynamic Admission Control" (AdmissionReview v1).
"""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import msgspec
from aiohttp import web

from belay.engine import log
from belay.engine.errors import InputError, bounded
from belay.engine.kube import NODE, POD, Kube, KubeError, Object, Resource
from belay.engine.model.unstructured import nested_map
from belay.engine.serve.admission.certificates import Certificate, SelfMadeCertificate, ServingCertificate
from belay.engine.serve.admission.rules import WriteRequest, concerned, needs_node, refusal
from belay.engine.serve.http import UNREADABLE, address
from belay.engine.serve.slow_connections import SlowConnections
from belay.engine.settings import Settings, from_environment, kube_variables, warn

_log = log.get("admission")
CONFIGURATION: Final = "belay-admission"
CONFIGURATIONS: Final = Resource(
    "admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", False
)
SUBRESOURCES: Final = ("status", "eviction", "binding")
#: An AdmissionReview holds the object twice; etcd accepts objects of 1.5 MiB.
MAX_BODY: Final = 8 * 1024 * 1024
BODY_SECONDS: Final = 5.0
RENEW_SECONDS: Final = 30.0
POD_SECONDS: Final = 60.0
MAX_PODS: Final = 16_384
_EXTRA: Final = "authentication.kubernetes.io/"


class _User(msgspec.Struct, frozen=True):
    username: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, list[str]] | None = None


class _Kind(msgspec.Struct, frozen=True):
    resource: str = ""


_NULL: Final = msgspec.Raw(b"null")


class _Asked(msgspec.Struct, frozen=True, rename="camel"):
    uid: str
    operation: str
    resource: _Kind
    user_info: _User
    namespace: str = ""
    name: str = ""
    sub_resource: str = ""
    object: msgspec.Raw = _NULL
    old_object: msgspec.Raw = _NULL


class _Review(msgspec.Struct, frozen=True, rename="camel"):
    request: _Asked


class NodesOfPods:
    """Nodes as the API server has them: that of the pod that a token is bound to, asked once a minute, and live ones.
    ``clock`` is monotonic seconds.
    """

    def __init__(self, kube: Kube, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube = kube
        self._clock = clock
        self._known: OrderedDict[tuple[str, str, str], tuple[float, str]] = OrderedDict()

    async def node(self, user: str, extra: Mapping[str, list[str]]) -> str:
        """The node that the token of a user names, or the node of the pod that it names; empty without either.

        Raises:
            KubeError: the pod cannot be read.
        """
        named = extra.get(f"{_EXTRA}node-name") or ()
        if len(named) == 1:
            return named[0]
        pods, uids = extra.get(f"{_EXTRA}pod-name") or (), extra.get(f"{_EXTRA}pod-uid") or ()
        if len(pods) != 1 or len(uids) != 1:
            return ""
        key = (user.split(":")[2], pods[0], uids[0])
        found = self._known.get(key)
        if found is None or self._clock() > found[0]:
            pod = await self._kube.get(POD, key[1], key[0])
            same = pod is not None and pod["metadata"].get("uid") == key[2]
            node = str((pod.get("spec") or {}).get("nodeName") or "") if pod is not None and same else ""
            if not node:
                return ""
            found = self._known[key] = (self._clock() + POD_SECONDS, node)
            self._known.move_to_end(key)
            while len(self._known) > MAX_PODS:
                self._known.popitem(last=False)
        return found[1]

    async def live(self, name: str) -> Object:
        """The node as it is stored. API servers before 1.20.6 give webhooks the new labels, annotations and
        ``unschedulable`` of a Node as the old ones (CVE-2021-25735).

        Raises:
            KubeError: the node cannot be read.
        """
        return await self._kube.get(NODE, name) or {}


class AdmissionServer:
    """The HTTP handlers of the webhook and its probes."""

    def __init__(self, nodes: NodesOfPods) -> None:
        self._nodes = nodes
        self.ready = False

    def application(self) -> web.Application:
        """Return the application with the routes of webhook and probes."""
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_post("/validate", self.validate)
        app.router.add_get("/healthz", self.healthz)
        app.router.add_get("/readyz", self.readyz)
        return app

    async def healthz(self, request: web.Request) -> web.Response:
        """Answer 200: the process lives."""
        return web.Response(text="ok\n")

    async def readyz(self, request: web.Request) -> web.Response:
        """Answer 200 once the API server trusts the certificate."""
        return web.Response(text="ok\n") if self.ready else web.Response(status=503, text="not registered yet\n")

    async def validate(self, request: web.Request) -> web.Response:
        """Answer an AdmissionReview."""
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await request.read()
            asked = msgspec.json.decode(body, type=_Review).request
        except TimeoutError:
            return web.Response(status=408, text="the body did not arrive in time\n")
        except UNREADABLE:
            return web.Response(status=400, text="the body ended early or is not HTTP\n")
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            return web.Response(status=400, text=f"no AdmissionReview: {bounded(str(error), 200)}\n")
        code, why = await self.verdict(asked)
        answer: dict[str, Any] = {"uid": asked.uid, "allowed": not why}
        if why:
            answer["status"] = {
                "code": code,
                "reason": "Forbidden" if code == 403 else "ServiceUnavailable",
                "message": why,
            }
            _log.warning("write refused", user=asked.user_info.username, reason=why)
        return web.json_response({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer})

    async def verdict(self, asked: _Asked) -> tuple[int, str]:
        """HTTP code and reason of a refusal; an empty reason when the write is allowed."""
        user = asked.user_info.username
        groups = asked.user_info.groups
        if asked.sub_resource not in ("", *SUBRESOURCES) or not concerned(user, groups):
            return 200, ""
        node = ""
        if needs_node(user, asked.resource.resource):
            try:
                node = await self._nodes.node(user, asked.user_info.extra or {})
            except KubeError as error:
                return 503, f"the node of {user} is not known now: {bounded(str(error), 200)}; try again"
        try:
            old, new = (
                msgspec.json.decode(raw, type=dict[str, Any] | None) or {} for raw in (asked.old_object, asked.object)
            )
            if asked.resource.resource == "nodes":
                old = _as_it_was(await self._nodes.live(asked.name), old, new)
        except KubeError as error:
            return 503, f"node {bounded(asked.name, 80)} cannot be read now: {bounded(str(error), 200)}; try again"
        except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
            return 403, f"the object cannot be read: {bounded(str(error), 200)}"
        # a POST names its object only inside, and its generated name not yet
        metadata = new.get("metadata")
        name = asked.name or str((metadata if isinstance(metadata, dict) else {}).get("name") or "")
        return 403, refusal(
            WriteRequest(
                user=user, operation=asked.operation, resource=asked.resource.resource, namespace=asked.namespace,
                name=name, old=old, new=new, node=node, groups=groups, subresource=asked.sub_resource,
            )
        )  # fmt: skip


def _as_it_was(live: Object, old: Object, new: Object) -> Object:
    """A Node before the write: as it is stored, but for a status that kubelet has renewed since the write began."""
    same = nested_map(live, "metadata").get("resourceVersion") == nested_map(new, "metadata").get("resourceVersion")
    return live if same else {**live, "status": old.get("status")}


async def register(kube: Kube, certificate: Certificate) -> bool:
    """Have the API server trust our certificate for our webhooks; whether the configuration exists.

    Raises:
        KubeError: it cannot be read or written.
    """
    live = await kube.get(CONFIGURATIONS, CONFIGURATION)
    if live is None:
        return False
    hooks = live.get("webhooks") or []
    known = {str((hook.get("clientConfig") or {}).get("caBundle") or "") for hook in hooks}

    # Where hooks disagree, manifests were applied over ours: each authority that any of them names may still serve.
    trusted = b"".join(_decoded(text) for text in sorted(known))
    wanted = base64.b64encode(certificate.bundle(trusted)).decode()
    if known != {wanted}:
        for hook in hooks:
            hook["clientConfig"] = {**(hook.get("clientConfig") or {}), "caBundle": wanted}
        await kube.replace(CONFIGURATIONS, live)
        _log.info("registered with the API server", webhooks=len(hooks))
    return True


def _decoded(bundle: str) -> bytes:
    try:
        return base64.b64decode(bundle, validate=True)
    except ValueError:
        return b""


async def keep_registered(kube: Kube, certificate: Certificate, server: AdmissionServer) -> None:
    """Load renewed certificates and keep the registration, until cancelled."""
    while True:
        try:
            certificate.renew()
            server.ready = await register(kube, certificate)
            if not server.ready:
                _log.warning(f"there is no ValidatingWebhookConfiguration {CONFIGURATION}: nothing is guarded")
        except (InputError, KubeError) as error:
            _log.warning("not registered", reason=str(error))
        await asyncio.sleep(RENEW_SECONDS if server.ready else 2.0)


def main(listen: str, certificates: str) -> int:
    """Serve until SIGTERM or SIGINT, with the certificate in the folder ``certificates``, or where that is empty with
    one that the process makes for itself.

    Raises:
        InputError: the address, the certificates or a setting cannot be used.
    """
    host, port = address(listen)
    settings = from_environment()
    log.configure(settings.log_level, "admission")
    warn(_log)
    asyncio.run(_serve(host, port, certificates, settings))
    return 0


async def _serve(host: str, port: int, folder: str, settings: Settings) -> None:
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    certificate: Certificate = ServingCertificate(Path(folder)) if folder else SelfMadeCertificate(socket.gethostname())
    async with AsyncExitStack() as stack:
        named = kube_variables(settings)
        kube = await stack.enter_async_context(
            Kube.from_config(settings.kubeconfig or None, settings.context or None, named)
        )
        server = AdmissionServer(NodesOfPods(kube))
        runner = web.AppRunner(server.application(), access_log=None, handle_signals=False, shutdown_timeout=5.0)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        try:
            await web.TCPSite(runner, host, port, ssl_context=certificate.context).start()
        except OSError as error:
            raise InputError(
                f"cannot listen: {error.strerror or error}",
                where=f"--listen {host}:{port}",
                hint="Choose another port.",
            ) from error
        tasks = [
            asyncio.create_task(SlowConnections().run(lambda: runner.server.connections if runner.server else ())),
            asyncio.create_task(keep_registered(kube, certificate, server)),
        ]
        _log.info("serving", host=host, port=runner.addresses[0][1], pid=os.getpid())
        await stop.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


__all__ = ["CONFIGURATION", "AdmissionServer", "NodesOfPods", "main", "register"]
