"""Reviews of identity and access: in the sandbox, the token grants all rights.

Tokens of ServiceAccounts are not signed: they say whose they are, which is enough on one's own machine.
"""

from __future__ import annotations

import base64
import binascii

import orjson

from belay.engine.sandbox.api.kinds import JSON, ServedResource
from belay.engine.sandbox.api.metadata import timestamp

AUDIENCE = "https://kubernetes.default.svc"
USER: JSON = {"username": "sandbox-admin", "groups": ["system:masters", "system:authenticated"]}


def answer(resource: ServedResource, obj: JSON) -> JSON:
    """Return a review with its status filled in: allowed, authenticated."""
    shown: JSON = {
        "kind": resource.kind,
        "apiVersion": resource.api_version,
        "metadata": {},
        "spec": obj.get("spec") or {},
    }
    match resource.kind:
        case "SelfSubjectRulesReview":
            everything = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
            shown["status"] = {
                "resourceRules": [everything],
                "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
                "incomplete": False,
            }
        case "TokenReview":
            shown["status"] = _reviewed(obj.get("spec") or {})
        case "SelfSubjectReview":
            del shown["spec"]
            shown["status"] = {"userInfo": USER}
        case _:
            shown["status"] = {"allowed": True, "reason": "the sandbox allows everything"}
    return shown


def _reviewed(spec: JSON) -> JSON:
    """Return the status of a TokenReview; the sandbox's own token and others that it did not make are the admin's."""
    token, audiences = str(spec.get("token") or ""), list(spec.get("audiences") or [AUDIENCE])
    try:
        body = token.split(".")[1] if token.count(".") == 2 else ""
        claims = orjson.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))) if body else None
    except (ValueError, binascii.Error):
        claims = None
    if not isinstance(claims, dict):
        return {"authenticated": True, "user": USER}
    shared = [one for one in audiences if one in (claims.get("aud") or ())]
    if not shared:
        return {"authenticated": False, "error": "the token is for another audience"}
    account = str(claims.get("sub", ""))
    user: JSON = {"username": account, "groups": ["system:serviceaccounts", "system:authenticated"]}
    pod = claims.get("pod")
    if isinstance(pod, list) and len(pod) == 2:
        prefix = "authentication.kubernetes.io/pod-"
        user["extra"] = {prefix + key: [value] for key, value in zip(("name", "uid"), pod, strict=True)}
    return {"authenticated": True, "user": user, "audiences": shared}


def token_request(namespace: str, name: str, obj: JSON, now: float) -> JSON:
    """Return a TokenRequest with an unsigned token that names the account."""
    spec = obj.get("spec") or {}
    seconds = int(spec.get("expirationSeconds") or 3600)
    claims: JSON = {"sub": f"system:serviceaccount:{namespace}:{name}", "exp": int(now) + seconds}
    claims["aud"] = spec.get("audiences") or [AUDIENCE]
    bound = spec.get("boundObjectRef") or {}
    if bound.get("kind") == "Pod":
        claims["pod"] = [str(bound.get("name", "")), str(bound.get("uid", ""))]

    def part(value: JSON) -> str:
        return base64.urlsafe_b64encode(orjson.dumps(value)).decode().rstrip("=")

    token = f"{part({'alg': 'none', 'typ': 'JWT'})}.{part(claims)}."
    return {
        "kind": "TokenRequest",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {**spec, "expirationSeconds": seconds},
        "status": {"token": token, "expirationTimestamp": timestamp(now + seconds)},
    }
