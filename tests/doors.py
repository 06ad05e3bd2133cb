"""Every verb on every resource of a real API server, with the real tokens of Belay's accounts (`tests/test_doors.py`).

What there is to try comes from the server's discovery and from the manifests that were applied, never from a list: a
new resource, verb, account or right is tried without being named here. Objects to try it on are made for that.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import aiohttp

from tests.permits import EVERY_SERVICE_ACCOUNT, EVERYONE, READS, Bound, Target, bounds_of
from tests.rights import Right

Json = dict[str, Any]
#: What bounds a right of an account to write.
Limits = Callable[[str, Right], tuple[Bound, ...]]
JOB, OTHER_JOB = "team-a", "team-b"
#: Where every namespaced resource is tried.
PLACES = (JOB, OTHER_JOB, "kube-system", "belay-system", "belay-nodes")
OWN, OTHER = "n0", "n1"
VERBS = {"get": "GET", "list": "GET", "watch": "GET", "create": "POST", "update": "PUT", "patch": "PATCH"}
IN_FLIGHT = 12
DOOR = "door"
#: Names that mean something, beside ``door``, by resource and namespace.
_NAMES: Mapping[tuple[str, str], Sequence[str]] = {
    ("configmaps", JOB): (DOOR, "reset-config-door", "data-trace-door"),
    ("configmaps", "kube-system"): (DOOR, f"mindx-dl-deviceinfo-{OWN}", f"mindx-dl-deviceinfo-{OTHER}"),
    ("configmaps", "belay-system"): (f"belay-orders-{OWN}", "belay-recovery-1", "belay-policy-default", "belay-server"),
    ("configmaps", "belay-recovery"): ("belay-recovery-1",),
    ("configmaps", "belay-nodes"): (f"belay-report-{OWN}", f"belay-report-{OTHER}"),
    ("configmaps", "mindx-dl"): (
        f"mindx-dl-nodeinfo-{OWN}",
        f"mindx-dl-nodeinfo-{OTHER}",
        "mindx-dl-node-fault-config",
    ),
    ("configmaps", "cluster-system"): (f"pingmesh-fault-{OWN}", f"pingmesh-fault-{OTHER}", "super-pod-1", DOOR),
    ("leases", "belay-system"): ("belay-recovery", "belay-shard-main", "belay-controller-main", DOOR),
    ("leases", "kube-node-lease"): (OWN, OTHER),
    ("secrets", JOB): (DOOR, "door-ssh"),
    ("secrets", "mindx-dl"): ("door-ssh",),
    ("services", "belay-system"): ("belay-redis", "belay-admission"),
    ("deployments", "belay-system"): ("belay-admission", DOOR),
    ("daemonsets", "belay-nodes"): ("belay-agent",),
    ("serviceaccounts", "belay-system"): ("belay-engine", "belay-admission"),
    ("serviceaccounts", "belay-nodes"): ("belay-agent",),
    **{("pods", place): (f"on-{OWN}", f"on-{OTHER}") for place in (*PLACES, "mindx-dl")},
    ("nodes", ""): (OWN, OTHER),
    ("namespaces", ""): (JOB, "kube-system", "belay-system"),
    ("priorityclasses", ""): (DOOR, "belay-control"),
    ("clusterroles", ""): ("cluster-admin", "belay-agent"),
    ("clusterrolebindings", ""): ("cluster-admin", "belay-agent"),
    ("customresourcedefinitions", ""): ("nodepools.belay.dev",),
    ("validatingwebhookconfigurations", ""): ("belay-admission", DOOR),
    ("validatingadmissionpolicies", ""): ("belay-agent-pods",),
    ("validatingadmissionpolicybindings", ""): ("belay-agent-pods",),
    ("resourceslices", ""): (f"slice-{OWN}", f"slice-{OTHER}"),
}
#: An owner that is gone takes what it owns along.
_GONE: Json = {"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "00000000-0000-0000-0000-000000000000"}
#: Parts of an object that a write may change, as merge patches: all are tried where the account may patch at all.
_CHANGES: Mapping[str, Sequence[tuple[str, Json]]] = {
    "": (
        ("annotation door", {"metadata": {"annotations": {DOOR: "1"}}}),
        ("label door", {"metadata": {"labels": {DOOR: "1"}}}),
        ("finalizers", {"metadata": {"finalizers": ["belay.dev/door"]}}),
        ("ownerReferences", {"metadata": {"ownerReferences": [_GONE]}}),
    ),
    "pods": (
        ("spec", {"spec": {"activeDeadlineSeconds": 7}}),
        ("status", {"status": {"phase": "Failed", "reason": DOOR}}),
    ),
    "nodes": (
        ("spec", {"spec": {"unschedulable": True}}),
        ("status", {"status": {"capacity": {"huawei.com/Ascend910": "64"}}}),
        ("label servertype", {"metadata": {"labels": {"servertype": DOOR}}}),
        ("annotation ResetInfo", {"metadata": {"annotations": {"ResetInfo": DOOR}}}),
        ("annotation NodeHealthyStatus", {"metadata": {"annotations": {"NodeHealthyStatus": DOOR}}}),
    ),
    "podgroups": (("spec", {"spec": {"minMember": 7}}),),
}
#: Verbs of the authorizer that discovery does not list, asked by SelfSubjectAccessReview.
SPECIAL = (
    ("escalate", "rbac.authorization.k8s.io", "clusterroles"),
    ("bind", "rbac.authorization.k8s.io", "clusterroles"),
    ("escalate", "rbac.authorization.k8s.io", "roles"),
    ("bind", "rbac.authorization.k8s.io", "roles"),
    ("impersonate", "", "users"),
    ("impersonate", "", "groups"),
    ("impersonate", "", "serviceaccounts"),
    ("impersonate", "authentication.k8s.io", "userextras/scopes"),
    ("approve", "certificates.k8s.io", "signers"),
    ("sign", "certificates.k8s.io", "signers"),
    ("use", "policy", "podsecuritypolicies"),
    ("*", "*", "*"),
)
#: Paths that are no resources, and whether Kubernetes shows them to every account.
PATHS = {
    "/api": True, "/apis": True, "/version": True, "/healthz": True,
    "/metrics": False, "/logs/": False, "/configz": False, "/debug/pprof/": False, "/debug/flags/v": False,
}  # fmt: skip


class Resource(NamedTuple):
    """A resource, or a subresource, as discovery lists it."""

    version: str
    name: str
    kind: str
    namespaced: bool
    verbs: tuple[str, ...]

    @property
    def group(self) -> str:
        return self.version.rpartition("/")[0]

    @property
    def base(self) -> str:
        return self.name.partition("/")[0]

    def path(self, target: Target) -> str:
        root = "/apis" if "/" in self.version else "/api"
        place = f"/namespaces/{target.namespace}" if self.namespaced and target.namespace else ""
        name, _, sub = self.name.partition("/")
        parts = [f"{root}/{self.version}{place}/{name}", target.name, sub]
        return "/".join(part for part in parts if part)


class Identity(NamedTuple):
    """Whose token is used: a process of the manifests on a node, or an agent outside a pod. ``user`` is what the API
    server knows it by, ``account`` whose rights it has in the table.
    """

    name: str
    user: str
    account: str
    headers: Mapping[str, str]
    node: str = ""


class Attempt(NamedTuple):
    """One request, and what it would change; ``allowed`` is what the table says about it."""

    identity: Identity
    right: Right
    method: str
    path: str
    body: Json | None
    part: str
    allowed: bool
    before: Json

    def __str__(self) -> str:
        return f"{self.identity.name}: {self.method} {self.path} ({self.right.verb}{self.part and f': {self.part}'})"


class Cluster:
    """A real API server, its resources, and the objects that attempts are made on."""

    def __init__(self, session: aiohttp.ClientSession, server: str, admin: str) -> None:
        self._session, self.server = session, server
        self._admin = {"Authorization": f"Bearer {admin}"}
        self._gate = asyncio.Semaphore(IN_FLIGHT)
        self.resources: list[Resource] = []
        #: A status that fits, by group and resource.
        self.statuses: dict[tuple[str, str], Json] = {}
        self._evictions = ""
        self._live: dict[str, Json] = {}
        self._made: dict[str, Json] = {}

    async def call(
        self, method: str, path: str, body: Json | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Json]:
        """Status and answer of a request; of a watch that opens, the status alone."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        sent = {**(self._admin if headers is None else headers), "Content-Type": kind}
        data = None if body is None else json.dumps(body)
        async with (
            self._gate,
            self._session.request(method, self.server + path, data=data, headers=sent, ssl=False) as answer,
        ):
            if "watch=1" in path and answer.status == 200:
                answer.close()
                return 200, {}
            text = await answer.text()
        try:
            found = json.loads(text)
        except ValueError:
            found = {"message": text[:200]}
        return answer.status, found if isinstance(found, dict) else {}

    async def discover(self) -> None:
        """Learn every resource, each once, in the version that its group prefers."""
        _, groups = await self.call("GET", "/apis")
        versions = ["v1", *(group["preferredVersion"]["groupVersion"] for group in groups["groups"])]
        lists = await asyncio.gather(
            *(self.call("GET", f"/{'apis' if '/' in version else 'api'}/{version}") for version in versions)
        )
        self.resources = [
            Resource(version, row["name"], row["kind"], row["namespaced"], tuple(sorted(row["verbs"])))
            for version, (_, found) in zip(versions, lists, strict=True) for row in found["resources"]
        ]  # fmt: skip
        self._evictions = next(one.version for one in self.resources if one.name == "poddisruptionbudgets")

    async def make(self, obj: Json) -> None:
        """Have an object there; nothing where its kind is not served."""
        wanted = (obj["apiVersion"], obj["kind"])
        kind = next((r for r in self.resources if (r.version, r.kind) == wanted and "/" not in r.name), None)
        if kind is None:
            return
        metadata = obj["metadata"]
        target = Target(metadata.get("namespace", ""), "")
        path = kind.path(target._replace(name=metadata["name"]))
        self._made[path] = obj
        if (await self.call("GET", path))[0] == 200:
            return
        status, said = await self.call("POST", kind.path(target), obj)
        assert status in (201, 409), (obj["kind"], metadata, status, said.get("message"))

    async def live(self, resource: Resource, target: Target) -> Json:
        """The object as the administrator reads it, once; empty where there is none."""
        base = resource._replace(name=resource.base)
        path = base.path(target)
        if path not in self._live:
            status, found = await self.call("GET", path)
            found = {**found, "kind": base.kind, "apiVersion": base.version}
            self._live[path] = found if status == 200 else {}
        return self._live[path]

    async def attempts(
        self, sharing: Sequence[Identity], rights: Iterable[Right], limits: Limits = bounds_of, *, whole: bool = True
    ) -> list[Attempt]:
        """Every verb on every resource at every kind of target, by the identities of one account in turn; what
        ``rights`` have, by one on each node. ``limits`` say what is left of rights to write. Not the ``whole``: only
        the writes among the rights, one change each. Who has no right at all is tried in two places.
        """
        granted = frozenset(rights)
        turns, found = itertools.cycle(sharing), []
        on_nodes = [
            itertools.cycle([one for one in sharing if one.node == node]) for node in {one.node for one in sharing}
        ]
        few = (OTHER_JOB, "kube-system", "belay-nodes") if granted <= EVERYONE | EVERY_SERVICE_ACCOUNT else (OTHER_JOB,)
        for resource, verb in ((one, verb) for one in self.resources for verb in one.verbs):
            for target in _targets(resource, verb):
                right = Right(verb, resource.group, resource.name, target.namespace, target.name)
                held = [one for one in granted if one.covers(right)]
                if not held and (not whole or target.namespace in few):
                    continue
                if not whole and verb in READS:
                    continue
                for identity in [next(one) for one in on_nodes] if held else [next(turns)]:
                    tries = [one async for one in self._of(identity, resource, right, held, limits)]
                    found += tries if whole else tries[:1]
        return found

    async def _of(
        self, identity: Identity, resource: Resource, right: Right, held: Sequence[Right], limits: Limits
    ) -> AsyncIterator[Attempt]:
        writes = right.verb not in READS
        target = Target(right.namespace, right.name)
        known = await self.live(resource, target) if held and writes and target.name else {}
        if resource.base in ("pods", "resourceslices"):
            target = target._replace(node=(known.get("spec") or {}).get("nodeName", ""))
        bounds = limits(identity.account, held[0]) if held and writes else ()
        open_here = [bound for bound in bounds if bound.allows(target, identity.node)]
        allowed = bool(held) and (not bounds or bool(open_here))

        path = resource.path(target if right.verb != "create" or "/" in resource.name else target._replace(name=""))
        made = self._made.get(resource._replace(name=resource.base).path(target), known)
        for part, body in self._bodies(resource, right, made if right.verb == "create" else known):
            fits = allowed and (not part or any(bound.allows_change(part) for bound in open_here))
            yield Attempt(identity, right, _method(right.verb), f"{path}{_query(right)}", body, part, fits, known)

    def _bodies(self, resource: Resource, right: Right, known: Json) -> Iterator[tuple[str, Json | None]]:
        """What is sent for a verb, and the part of the object that it would change."""
        match right.verb:
            case "create":
                yield "", _creation(resource, right, known, self._evictions)
            case "update":
                changed = copy.deepcopy(known)
                changed.setdefault("metadata", {}).setdefault("annotations", {})[DOOR] = "1"
                yield "", changed
            case "patch" if known:
                yield from (*_CHANGES[""], *_CHANGES.get(resource.base, ()))
                status = self.statuses.get((resource.group, resource.base))
                if status is not None and resource.name.endswith("/status"):
                    yield "status", {"status": status}
            case "patch":
                yield _CHANGES[""][0]
            case _:
                yield "", None

    async def answer(self, attempt: Attempt) -> str:
        """What is wrong with the API server's answer; empty where it is what the table says."""
        status, said = await self.call(attempt.method, attempt.path, attempt.body, attempt.identity.headers)
        message = str(said.get("message", ""))
        if status == 403 or "ValidatingAdmissionPolicy" in message:
            return f"{attempt} is refused, though the table names it: {message[:300]}" if attempt.allowed else ""
        done = status < 300 or (attempt.right.verb, status) in (("create", 409), ("get", 404))
        if attempt.allowed:
            return "" if done else f"{attempt} could not be tried: {status} {message[:300]}"
        if done and attempt.part and not _changed(attempt.part, attempt.before, said):
            return ""
        return f"{attempt} is a door that the table does not name: {status} {message[:200]}"


def _targets(resource: Resource, verb: str) -> Iterator[Target]:
    """Where a verb on a resource is tried."""
    if not resource.namespaced:
        if verb in ("list", "watch", "deletecollection"):
            yield Target("", "")
        else:
            yield from (Target("", name) for name in _NAMES.get((resource.base, ""), (DOOR,)))
        return
    more = [place for name, place in _NAMES if name == resource.base and place not in PLACES]
    places = (*PLACES, *more)
    if verb in ("list", "watch", "deletecollection"):
        yield from (Target(place, "") for place in places)
        if verb != "deletecollection":
            yield Target("", "")
        return
    for place in places:
        yield from (Target(place, name) for name in _NAMES.get((resource.base, place), (DOOR,)))


def _method(verb: str) -> str:
    return VERBS.get(verb, "DELETE")


def _query(right: Right) -> str:
    if right.verb == "watch":
        return "?watch=1&timeoutSeconds=1"
    if right.verb == "list":
        return "?limit=1"
    return "" if right.verb == "get" else "?dryRun=All"


def _creation(resource: Resource, right: Right, known: Json, evictions: str) -> Json:
    """The body of a POST: the object that is there once more, or what the subresource takes."""
    metadata = {"name": right.name, **({"namespace": right.namespace} if right.namespace else {})}
    head: Json = {"apiVersion": resource.version, "kind": resource.kind}
    match resource.name:
        case "pods/binding":
            return {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": metadata,
                "target": {"kind": "Node", "name": OTHER},
            }
        case "pods/eviction":
            return {"apiVersion": evictions, "kind": "Eviction", "metadata": metadata}
        case "tokenreviews":
            return {**head, "spec": {"token": "t"}}
        case "subjectaccessreviews":
            asked = {"verb": "get", "resource": "pods", "namespace": JOB}
            return {**head, "spec": {"user": "u", "resourceAttributes": asked}}
        case "selfsubjectaccessreviews":
            return {**head, "spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}}
        case "selfsubjectrulesreviews":
            return {**head, "spec": {"namespace": JOB}}
        case "selfsubjectreviews":
            return head
    body = {key: value for key, value in copy.deepcopy(known).items() if key != "status"}
    kept = ("name", "namespace", "labels", "annotations")
    body["metadata"] = {key: value for key, value in (known.get("metadata") or metadata).items() if key in kept}
    return {**head, **body}


def _changed(part: str, before: Json, after: Json) -> bool:
    """Whether a part of the object is another after a write."""
    field, _, key = part.partition(" ")
    if field in ("spec", "status"):
        return bool(before.get(field) != after.get(field))
    plural = f"{field}s" if key else field  # labels, annotations
    one, two = ((obj.get("metadata") or {}).get(plural) or {} for obj in (before, after))
    return bool(one.get(key) != two.get(key)) if key else bool(one != two)


async def tried(cluster: Cluster, attempts: Iterable[Attempt]) -> tuple[dict[str, int], list[str]]:
    """How many attempts each identity made, and what was wrong with the answers."""
    counts: dict[str, int] = defaultdict(int)
    attempts = list(attempts)
    for attempt in attempts:
        counts[attempt.identity.name] += 1
    answers = await asyncio.gather(*(cluster.answer(attempt) for attempt in attempts))
    return dict(counts), [answer for answer in answers if answer]


async def special(cluster: Cluster, identity: Identity) -> list[str]:
    """Impersonation, verbs beyond discovery, and paths that are no resources."""
    wrong = []
    for header, value in (
        ("Impersonate-User", "admin"),
        ("Impersonate-User", "system:serviceaccount:belay-system:belay-engine"),
    ):
        status, _ = await cluster.call(
            "GET", "/api/v1/namespaces/team-a/pods", None, {**identity.headers, header: value}
        )
        if status != 403:
            wrong.append(f"{identity.name} may act as {value}: {status}")
    for path, shown in PATHS.items():
        status, _ = await cluster.call("GET", path, None, identity.headers)
        if (status < 400) is not shown:
            wrong.append(f"{identity.name}: GET {path} is answered {status}")
    for verb, group, resource in SPECIAL:
        name, _, sub = resource.partition("/")
        asked = {"verb": verb, "group": group, "resource": name, "subresource": sub}
        body: Json = {
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked},
        }  # fmt: skip
        status, said = await cluster.call(
            "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body, identity.headers
        )
        if status != 201 or said["status"].get("allowed"):
            wrong.append(f"{identity.name} may {verb} {resource} of {group or 'v1'}: {status}")
    return wrong
