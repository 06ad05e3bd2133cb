"""Stands in for the kubelets of the nodes where Belay's own pods run: each Deployment and StatefulSet of Belay that is
applied to the cluster becomes one process of this machine, and a DaemonSet one for the node that its selector finds.

Everything is taken from the objects as they are in the cluster: arguments, environment, ConfigMaps, Secrets, volumes
and the account, whose token is the process' only right. What a machine has once and pods have each (ports, folders, the
name of the Service of Redis) is translated.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from belay import IMPORT_ROOT
from belay.engine.sandbox.processes import ChildProcess
from belay.engine.sandbox.reader import ApiReader

SPACE, AGENTS = "belay-system", "belay-nodes"
PART = "app.kubernetes.io/part-of=belay"
_KINDS = ((SPACE, "deployments"), (SPACE, "statefulsets"), (AGENTS, "daemonsets"))
#: Ports that pods of the host could not have twice.
_PORTS = {"BELAY_HEALTH_PORT": "0", "BELAY_GRPC_LISTEN": "127.0.0.1:0", "BELAY_GRPC_HEALTH_PORT": "0"}


class Pods:
    """Use it as a context manager: it starts what appears, until it ends."""

    def __init__(
        self,
        kubeconfig: Path,
        folder: Path,
        redis_url: str,
        marks: Mapping[str, str],
        host: Mapping[str, Path] | None = None,
    ) -> None:
        """``host``: folders of the node, as pods name them, and where they are on this machine."""
        self._reader, self._kubeconfig, self._folder = ApiReader(kubeconfig), kubeconfig, folder
        self._redis_url, self._marks, self._host = redis_url, dict(marks), dict(host or {})
        self.children: dict[str, ChildProcess] = {}
        self.problems: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pods", daemon=True)

    def __enter__(self) -> Pods:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # the children belong to that thread: the kernel ends them with it
        self._stop.set()
        self._thread.join(40)

    def story(self) -> str:
        """What the processes said last, and what could not be started."""
        return "\n".join([*self.problems, *(f"{c.name}: {c.log_end(1500)}" for c in self.children.values())])

    def _run(self) -> None:
        while not self._stop.wait(0.3):
            applied = self._applied()
            if applied is None:
                continue  # no answer; nothing follows from that
            for name, pod in applied.items():
                if name not in self.children and name not in self.problems:
                    try:
                        self._start(name, *pod)
                    except (KeyError, ValueError, AssertionError, subprocess.CalledProcessError) as error:
                        self.problems += [name, f"{name}: {type(error).__name__}: {error}"]
            self._end([name for name in self.children if name not in applied])
        self._end(list(self.children))

    def _applied(self) -> dict[str, tuple[str, dict[str, Any]]] | None:
        """The pods that the cluster's objects ask for, with their namespaces, by name."""
        asked = [f"/apis/apps/v1/namespaces/{space}/{kind}?labelSelector={PART}" for space, kind in _KINDS]
        lists = [self._reader.get(path) for path in asked]
        if None in lists:
            return None
        objects = [one for found in lists for one in found["items"]]
        pods = {
            one["metadata"]["name"]: (one["metadata"]["namespace"], one["spec"]["template"]["spec"]) for one in objects
        }
        return {name: pod for name, pod in pods.items() if "nodeSelector" not in pod[1] or self._node(pod[1])}

    def _node(self, pod: Mapping[str, Any]) -> str:
        """The node of a pod that chooses one by labels; empty while none has them."""
        chosen = ",".join(f"{key}={value}" for key, value in sorted(pod.get("nodeSelector", {}).items()))
        found = self._reader.list(f"/api/v1/nodes?labelSelector={chosen}") if chosen else []
        return str(found[0]["metadata"]["name"]) if found else ""

    def _end(self, names: Sequence[str]) -> None:
        """What is no longer applied ends, as its pods do."""
        for name in names:
            self.children[name].terminate()
        for name in names:
            self.children.pop(name).stop(10)

    def _start(self, name: str, space: str, pod: dict[str, Any]) -> None:
        (container,) = pod["containers"]
        place = self._folder / name
        place.mkdir()
        account, node = pod["serviceAccountName"], self._node(pod)
        mounts = {
            mount["mountPath"]: self._volume(space, pod, mount["name"], place) for mount in container["volumeMounts"]
        }
        fields = {"metadata.name": f"{name}-0", "status.podIP": "127.0.0.1", "status.hostIP": "127.0.0.1"}
        given = self._environment(container, fields | {"spec.nodeName": node}, mounts)
        # the token of an agent names its node, as that of its pod does
        kubeconfig = self._account(
            place, space, account, *(("--bound-object-kind=Node", f"--bound-object-name={node}") if node else ())
        )
        basics = {
            "PATH": os.environ["PATH"],
            "HOME": str(place),
            "PYTHONPATH": str(IMPORT_ROOT),
            "KUBECONFIG": str(kubeconfig),
        }
        arguments = [re.sub(r"^0\.0\.0\.0:\d+$", "127.0.0.1:0", text) for text in container["args"]]
        arguments = [re.sub(r"^(--healthz-address)=\d+$", r"\1=0", text) for text in arguments]
        arguments = [_translated(text, mounts) for text in arguments]
        if "--device-plugin" in arguments:
            arguments += [
                f"--kubelet-dir={mounts['/var/lib/kubelet/device-plugins']}",
                f"--pod-resources={mounts['/var/lib/kubelet/pod-resources'] / 'kubelet.sock'}",
            ]
        child = ChildProcess(
            name, [sys.executable, "-m", "belay.engine.cli", *arguments], basics | given | self._marks, place / "log"
        )
        child.start()
        self.children[name] = child

    def _volume(self, space: str, pod: dict[str, Any], name: str, place: Path) -> Path:
        (volume,) = (one for one in pod["volumes"] if one["name"] == name)
        if volume.get("hostPath", {}).get("path") in self._host:
            return self._host[volume["hostPath"]["path"]]
        folder = place / name
        folder.mkdir()
        if "emptyDir" in volume or "hostPath" in volume:
            return folder
        if "projected" in volume:
            for source in volume["projected"]["sources"]:
                wanted = source.get("serviceAccountToken", {})
                if "audience" in wanted:  # the others are the pod's account, which it has by its kubeconfig here
                    token = self._token(space, pod["serviceAccountName"], "--audience", wanted["audience"])
                    (folder / wanted["path"]).write_text(token)
            return folder
        if volume.get("secret", {}).get("optional"):
            contents: dict[str, bytes] = {}  # no Secret of that name is made here
        elif "secret" in volume:
            data = self._object("secrets", volume["secret"]["secretName"])["data"]
            contents = {key: base64.b64decode(value) for key, value in data.items()}
        else:
            data = self._object("configmaps", volume["configMap"]["name"])["data"]
            contents = {key: value.encode() for key, value in data.items()}
        for key, content in contents.items():
            (folder / key).write_bytes(content)
            (folder / key).chmod(0o600)  # in a pod they are root's, and the pod's group may read them
        return folder

    def _environment(
        self, container: dict[str, Any], fields: Mapping[str, str], mounts: Mapping[str, Path]
    ) -> dict[str, str]:
        given: dict[str, str] = {}
        for source in container.get("envFrom", ()):
            given |= self._object("configmaps", source["configMapRef"]["name"])["data"]
        for entry in container.get("env", ()):
            if entry.get("valueFrom", {}).get("secretKeyRef", {}).get("optional"):
                continue  # no Secret of that name is made here
            field = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            given[entry["name"]] = entry["value"] if field is None else fields[field]
        if not container.get("envFrom"):
            return given  # what guards the accounts has no settings, and no Redis
        assert "belay-redis:6379" in given["BELAY_REDIS_URL"]
        given = {key: _translated(value, mounts) for key, value in given.items()}
        # the Redis of this machine listens on a socket for our eyes only, without a password
        return given | {"BELAY_REDIS_URL": self._redis_url, "BELAY_REDIS_PASSWORD_FILE": ""} | _PORTS

    def _account(self, place: Path, space: str, name: str, *options: str) -> Path:
        """A kubeconfig with nothing but the account's token."""
        config = yaml.safe_load(self._kubeconfig.read_text())
        config["users"] = [{"name": config["users"][0]["name"], "user": {"token": self._token(space, name, *options)}}]
        file = place / "kubeconfig"
        file.write_text(json.dumps(config))
        return file

    def _token(self, space: str, account: str, *options: str) -> str:
        """A token of an account, as kubelet asks the API server for it."""
        done = subprocess.run(
            ["kubectl", "--kubeconfig", str(self._kubeconfig), "-n", space, "create", "token", account, *options],
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        return done.stdout.strip()

    def _object(self, kind: str, name: str) -> dict[str, Any]:
        found = self._reader.get(f"/api/v1/namespaces/{SPACE}/{kind}/{name}")
        assert found is not None, f"there is no {kind} {name}"
        return dict(found)


def _translated(text: str, mounts: Mapping[str, Path]) -> str:
    """The text with the paths of mounts as they are on this machine, in one go and the longest first: what takes a
    mount's place must not be taken for another mount.
    """
    paths = "|".join(re.escape(path) for path in sorted(mounts, key=len, reverse=True))
    return re.sub(rf"(?<![\w./-])({paths})(?=/|$)", lambda found: str(mounts[found[1]]), text)
