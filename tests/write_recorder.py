"""Every write that Belay's own code asks of an API server in a test, compared with what its account may write.

A server that the admission rules keep from its own ConfigMap is found on a hardened cluster only; here each write of
each test is held against `tests.rights` (RBAC) and `belay.engine.serve.admission.rules` (webhook; the CEL policies name
the same, see `test_admission.py`). Processes that tests start are compared by the audit log of a real API server.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple
from unittest import mock

import pytest
import yaml

from belay.agents.common.client import KubeClient
from belay.engine.kube.transport import Transport
from belay.engine.serve.admission import rules
from belay.engine.serve.admission.rules import WriteRequest
from belay.engine.wire import evidence, links, names, pings, steptimes
from tests.rights import Right, granted

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"
RBAC = ("Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding")
VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
#: Rooms whose code runs with the rights of the person who types the command, or makes the world.
_PEOPLE = ("engine/cli/", "engine/sandbox/", "engine/migrate/", "engine/simulate/")
#: Clients of the API server, which write for their caller.
_CLIENTS = ("engine/kube/", "agents/common/client.py", "agents/daemon/shared_watches.py", "tests/write_recorder.py")
_ROOT = f"{Path(__file__).resolve().parents[1]}/"
_USERS = {"belay-agent": rules.AGENT, "belay-server": rules.SERVER, "belay-engine": rules.ENGINE}
#: Asked although deploy/ does not give it, because the process goes on without it.
WITHOUT_RIGHT = {
    Right("create", "", "namespaces", "", names.SYSTEM): "a server outside the cluster, before the manifests are there",
}
#: Injected states of simulated nodes, which only the sandbox has.
_SIMULATED = "belay-sim-"
_MOST_FRAMES = 60
#: What stands before the node's name in the names of an agent's ConfigMaps.
_REPORTS = (
    names.DEVICE_PREFIX, names.DPU_PREFIX, names.NODE_PREFIX, names.REPORT_PREFIX, links.name_of(""),
    steptimes.name_of(""), pings.name_of(""), evidence.PREFIX, *(f"{sender}-fault-" for sender in rules.SENDERS),
)  # fmt: skip


class Write(NamedTuple):
    """One write, by the account whose process asks for it."""

    account: str
    right: Right


def asked(account: str, method: str, path: str) -> Write | None:
    """The write that a request is; None where it only reads."""
    verb = VERBS.get(method)
    if verb is None:
        return None
    parts = path.partition("?")[0].strip("/").split("/")
    group, rest = ("", parts[2:]) if parts[0] == "api" else (parts[1], parts[3:])
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces":
        namespace, rest = rest[1], rest[2:]
    resource, name, *subresource = [*rest, ""][: max(2, len(rest))]
    return Write(account, Right(verb, group, "/".join([resource, *subresource]), namespace, name))


def broken_rule(write: Write) -> str:
    """Why the account may not do this; empty where it may."""
    right = write.right
    if any(known.covers(right) for known in WITHOUT_RIGHT) or right.name.startswith(_SIMULATED):
        return ""
    if not any(given.covers(right) for given in _given()[write.account]):
        return f"{write.account} has no right to {right}: deploy/ and tests/rights.py do not give it"
    if write.account not in _USERS or right.resource != "configmaps" or not right.name:
        return ""
    operation = "DELETE" if right.verb == "delete" else "UPDATE"
    node = _node_of(right.name) if write.account == "belay-agent" else ""
    request = WriteRequest(
        _USERS[write.account], operation, right.resource, right.namespace, right.name, node=node or "unknown"
    )
    # conversations are there only where nothing checks names (deploy/components/without-admission)
    return "" if write.right.namespace == names.RECOVERIES else rules.refusal(request)


@functools.cache
def _given() -> dict[str, set[Right]]:
    """What RBAC gives, the optional parts of deploy/ included."""
    files = [*DEPLOY.glob("base/*.yaml"), *DEPLOY.glob("overlays/nodes/*.yaml"), *DEPLOY.glob("components/*/*.yaml")]
    documents = [document for file in sorted(files) for document in yaml.safe_load_all(file.read_text())]
    return granted(one for one in documents if one and one["kind"] in RBAC)


def _node_of(name: str) -> str:
    prefixes = [prefix for prefix in _REPORTS if name.startswith(prefix)]
    return name.removeprefix(max(prefixes, key=len)) if prefixes else ""


def account_of(frame: FrameType | None) -> str:
    """The account of the process whose code calls; empty for tests, and for commands that people type."""
    places = [place for place in _places(frame) if not place.startswith(_CLIENTS)]
    if not places or places[0].startswith(("tests/", *_PEOPLE)):
        return ""
    if places[0].startswith("agents/"):
        return "belay-agent"

    # a room that several processes share, such as the status reader, writes for the process that calls it
    served = [place for place in places if place.startswith("engine/serve/")]
    if not served:
        return "belay-engine"
    return "belay-admission" if served[0].startswith("engine/serve/admission/") else "belay-server"


def _places(frame: FrameType | None) -> Iterator[str]:
    """The files of this project on the stack, from the call outwards, relative to its root."""
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return
        if frame.f_code.co_filename.startswith(_ROOT):
            yield frame.f_code.co_filename.removeprefix(_ROOT).removeprefix("src/belay/")
        frame = frame.f_back


@pytest.fixture(autouse=True)
def recorded_writes(request: pytest.FixtureRequest) -> Iterator[list[Write]]:
    """Fails a test in which a process of Belay asks for a write that its account may not do."""
    writes: list[Write] = []
    engine_call, agent_call = Transport.call, KubeClient._request

    async def call(self: Transport, method: str, path: str, **options: Any) -> Any:
        account = account_of(sys._getframe(1)) if method in VERBS else ""
        write = asked(account, method, path) if account else None
        if write is not None:
            if write.right.verb == "create" and not write.right.name:
                write = _named(write, options.get("body"))
            writes.append(write)
        return await engine_call(self, method, path, **options)

    async def agent_request(self: KubeClient, method: str, path: str, **options: Any) -> Any:
        account = account_of(sys._getframe(1)) if method in VERBS else ""
        write = asked(account, method, path) if account else None
        if write is not None:
            writes.append(write)
        return await agent_call(self, method, path, **options)

    with mock.patch.object(Transport, "call", call), mock.patch.object(KubeClient, "_request", agent_request):
        yield writes
    broken = sorted({text for write in set(writes) if (text := broken_rule(write))})
    assert not broken, "written in this test without the right to: " + "; ".join(broken[:5])


def _named(write: Write, body: Any) -> Write:
    metadata = body.get("metadata") if isinstance(body, dict) else None
    name = metadata.get("name", "") if isinstance(metadata, dict) else ""
    return write._replace(right=write.right._replace(name=name))
