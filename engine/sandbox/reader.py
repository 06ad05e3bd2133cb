"""Read an API server from the parent process with plain GETs, without a full client."""

from __future__ import annotations

import json
import ssl
import urllib.request
from pathlib import Path
from typing import Any

_SECONDS = 5.0


class ApiReader:
    """GETs of one API server. Understands the kubeconfigs of the sandbox (JSON) and others with a bearer token."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig

    def get(self, path: str) -> Any:
        """The JSON at ``path``; None if it does not exist or the server does not answer."""
        try:
            server, token, trust = self._server()
            request = urllib.request.Request(server + path)
            if token:
                request.add_header("Authorization", f"Bearer {token}")
            with urllib.request.urlopen(request, timeout=_SECONDS, context=trust) as answer:
                return json.load(answer)
        except (OSError, ValueError, KeyError, IndexError, TypeError):
            return None

    def _server(self) -> tuple[str, str, ssl.SSLContext | None]:
        text = self.kubeconfig.read_text()
        if text.lstrip().startswith("{"):
            config = json.loads(text)
        else:
            import yaml

            config = yaml.safe_load(text)
        cluster = config["clusters"][0]["cluster"]
        token = str(config["users"][0].get("user", {}).get("token", "")) if config.get("users") else ""
        server = str(cluster["server"])
        if not server.startswith("https://"):
            return server, token, None
        trust = ssl.create_default_context(cafile=cluster.get("certificate-authority"))
        if cluster.get("insecure-skip-tls-verify"):
            trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
        return server, token, trust

    @property
    def answers(self) -> bool:
        """Whether the server serves its API."""
        return self.get("/api/v1/namespaces/default") is not None

    def list(self, path: str) -> list[dict[str, Any]]:
        """The items of a list, empty when it cannot be read."""
        return list((self.get(path) or {}).get("items") or ())

    def config_map(self, namespace: str, name: str) -> dict[str, str]:
        """The data of a ConfigMap, empty when there is none."""
        found = self.get(f"/api/v1/namespaces/{namespace}/configmaps/{name}") or {}
        return dict(found.get("data") or {})
