"""Reads the sandbox's API from the parent process: a few GETs without the weight of a client."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

_SECONDS = 5.0


class Reader:
    """GETs of one API server, by the kubeconfig that the sandbox wrote (JSON, token in the address)."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig

    def get(self, path: str) -> Any:
        """The JSON at ``path``; None when it is not there or the server does not answer."""
        try:
            config = json.loads(self._kubeconfig.read_text())
            server = config["clusters"][0]["cluster"]["server"]
            with urllib.request.urlopen(server + path, timeout=_SECONDS) as answer:
                return json.load(answer)
        except (OSError, ValueError, KeyError, IndexError):
            return None

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
