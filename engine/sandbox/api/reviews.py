"""Reviews of identity and access: in the sandbox, the token grants all rights."""

from __future__ import annotations

import base64

import orjson

from engine.sandbox.api.kinds import JSON, ServedResource
from engine.sandbox.api.metadata import timestamp

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
            shown["status"] = {"authenticated": True, "user": USER}
        case "SelfSubjectReview":
            del shown["spec"]
            shown["status"] = {"userInfo": USER}
        case _:
            shown["status"] = {"allowed": True, "reason": "the sandbox allows everything"}
    return shown


def token_request(namespace: str, name: str, obj: JSON, now: float) -> JSON:
    """Return a TokenRequest with an unsigned token that names the account."""
    spec = obj.get("spec") or {}
    seconds = int(spec.get("expirationSeconds") or 3600)
    claims = {"sub": f"system:serviceaccount:{namespace}:{name}", "exp": int(now) + seconds}

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
