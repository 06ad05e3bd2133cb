"""What kustomize builds of deploy/: by rules of its own for the fields that deploy/ uses, and by kubectl's kustomize
where that knows them. Debian 12's kubectl, 1.20, holds one that knows neither components nor `patches`; where a newer
kubectl is on PATH, every build is made by both and must be the same.

Source: the kustomization file's reference (kubectl.docs.kubernetes.io/references/kustomize), RFC 6902 and RFC 6901.
"""

from __future__ import annotations

import copy
import functools
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

Document = dict[str, Any]
Key = tuple[str, str, str, str]
_KNOWN = {"apiVersion", "kind", "resources", "components", "images", "patches"}


class KustomizeError(Exception):
    """A kustomization that cannot be built; the text names its folder."""


def kustomized(folder: Path) -> list[Document]:
    """The objects of an overlay.

    Raises:
        KustomizeError: it cannot be built, or kubectl builds something else.
    """
    found = list(_built(folder, []).values())
    if _kubectl_knows_components():
        done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise KustomizeError(f"{folder}: {done.stderr}")
        theirs = {_key(one): one for one in yaml.safe_load_all(done.stdout)}
        ours = {_key(one): one for one in found}
        if differ := [key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key)]:
            raise KustomizeError(f"{folder}: kubectl builds something else of {sorted(differ)}")
    return found


@functools.cache
def _kubectl_knows_components() -> bool:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        return False
    done = subprocess.run([kubectl, "version", "--client", "-o", "json"], capture_output=True, text=True, timeout=60)
    match = re.search(r'"gitVersion": "v1\.(\d+)', done.stdout)
    # kustomize 4.2, the first one in kubectl that knows both, came with 1.22
    return match is not None and int(match[1]) >= 22


def _key(document: Document) -> Key:
    metadata = document["metadata"]
    return document["apiVersion"], document["kind"], metadata.get("namespace", ""), metadata["name"]


def _built(folder: Path, under: list[Document]) -> dict[Key, Document]:
    """The objects of a folder by key; a component begins from those of what lists it."""
    own = yaml.safe_load((folder / "kustomization.yaml").read_text())
    if unknown := set(own) - _KNOWN:
        raise KustomizeError(f"{folder}: {sorted(unknown)} are fields that tests/kustomize.py does not know")
    kind, version = own.get("kind", "Kustomization"), own.get("apiVersion", "kustomize.config.k8s.io/v1beta1")
    if (kind == "Component") != version.endswith("v1alpha1"):
        raise KustomizeError(f"{folder}: {kind} in {version}")
    found = {_key(one): one for one in under}
    for name in own.get("resources", []):
        path = folder / name
        more = _built(path, []).values() if path.is_dir() else yaml.safe_load_all(path.read_text())
        for one in more:
            if _key(one) in found:
                raise KustomizeError(f"{folder}: {_key(one)} is there twice")
            found[_key(one)] = one
    for name in own.get("components", []):
        found = _built(folder / name, list(found.values()))
    for patch in own.get("patches", []):
        _patch(folder, found, patch)
    for image in own.get("images", []):
        for one in found.values():
            _rename(one, image)
    return found


def _patch(folder: Path, found: dict[Key, Document], patch: Document) -> None:
    target = patch["target"]
    if set(target) - {"kind", "name"}:
        raise KustomizeError(f"{folder}: only kind and name of a target are known here, not {sorted(target)}")
    change = yaml.safe_load(patch["patch"])
    chosen = [
        key for key in found if key[1] == target["kind"] and re.fullmatch(target.get("name", ".*"), key[3]) is not None
    ]
    for key in chosen:
        if isinstance(change, dict):
            if change.get("$patch") != "delete":
                raise KustomizeError(f"{folder}: only $patch: delete and lists of operations are known here")
            del found[key]
            continue
        changed = copy.deepcopy(found[key])
        for operation in change:
            try:
                _operation(changed, operation)
            except (KeyError, IndexError, ValueError, TypeError) as error:
                raise KustomizeError(f"{folder}: {operation} does not fit {key}") from error
        found[key] = changed


def _operation(document: Any, operation: Document) -> None:
    """One operation of RFC 6902. Raises what a lookup raises where its path leads nowhere."""
    *way, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
    for part in way:
        document = document[int(part)] if isinstance(document, list) else document[part]
    value, kind = copy.deepcopy(operation.get("value")), operation["op"]
    if isinstance(document, list):
        if kind == "add":
            document.insert(len(document) if last == "-" else int(last), value)
            return
        place = int(last)
        if kind == "replace":
            document[place] = value
        elif kind == "remove":
            del document[place]
        else:
            raise ValueError(kind)
        return
    if kind not in ("add", "replace", "remove"):
        raise ValueError(kind)
    if kind != "add" and last not in document:
        raise KeyError(last)
    if kind == "remove":
        del document[last]
    else:
        document[last] = value


def _rename(value: Any, image: dict[str, str]) -> None:
    """Every container's image of that name, wherever containers are listed."""
    if isinstance(value, list):
        for one in value:
            _rename(one, image)
    elif isinstance(value, dict):
        for field, one in value.items():
            if field in ("containers", "initContainers") and isinstance(one, list):
                for container in one:
                    _rename_one(container, image)
            else:
                _rename(one, image)


def _rename_one(container: Document, image: dict[str, str]) -> None:
    match = re.fullmatch(r"(?P<name>.+?)(:(?P<tag>[^:/@]+))?(@(?P<digest>.+))?", container.get("image", ""))
    if match is None or match["name"] != image["name"]:
        return
    name = image.get("newName", image["name"])
    tag = str(image["newTag"]) if "newTag" in image else match["tag"]
    container["image"] = f"{name}:{tag}" if tag else name
