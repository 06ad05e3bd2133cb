"""What an API server answers, tokens of callers, kubeconfigs, and the settings of a process."""

from __future__ import annotations

import json
from typing import Any, Final

import orjson

from belay.agents.common import credentials
from belay.agents.training.checkpoint import sets
from belay.engine.errors import InputError
from belay.engine.kube import KubeError
from belay.engine.kube.errors import from_answer
from belay.engine.kube.pod_protobuf import event
from belay.engine.observe.watch_events import essence, own_output, slimmed, wanted
from belay.engine.serve.grpc import token_reviews
from belay.engine.settings import from_environment, misspelt
from belay.engine.status.status_reader import read_status
from tests.fuzz.harness import Form, Harness, objects, scratch, text


def _events(data: bytes) -> None:
    """An event of a watch, in protobuf and in JSON, and the body of an error."""
    for packed in (True, False):
        try:
            event(data, packed=packed, where="WATCH pods")
        except KubeError as error:
            assert len(str(error)) < 4000
    for status in (409, 410, 422, 429, 500):
        assert len(str(from_answer(status, data, "GET /a", retry_after=data[:20].decode("latin-1")))) < 4000


def _watched(obj: Any) -> None:
    """Objects as an API server checked them: of the kinds that are watched, with the types of their schemas."""
    obj.setdefault("kind", "ConfigMap")
    if isinstance(obj["kind"], str) and _typed(obj):
        wanted(obj)
        own_output(obj)
        essence(slimmed(obj))


def _typed(obj: Any) -> bool:
    fields = obj["metadata"].get("managedFields") or []
    conditions = obj.get("status", {}).get("conditions") or [] if isinstance(obj.get("status", {}), dict) else None
    rows = [*fields, *conditions] if isinstance(fields, list) and isinstance(conditions, list) else [0]
    return all(isinstance(row, dict) for row in rows) and isinstance(obj.get("data") or {}, dict)


def _status(obj: Any) -> None:
    data = obj.get("data")
    if isinstance(data, dict) and all(isinstance(value, str) for value in data.values()):
        read_status([obj])


def _token(found: str) -> None:
    assert len(token_reviews._shape(found, 1_788_249_600.0)) < 400
    token_reviews._expiry(f"a.{found}.c")
    try:
        token_reviews.verdict(json.loads(found))
    except (ValueError, RecursionError):
        return


def _kubeconfig(data: bytes) -> None:
    credentials.load(str(scratch(data)))


def _settings(found: str) -> None:
    """One variable a line."""
    given = dict(line.replace("\0", "").partition("=")[::2] for line in found.split("\n"))
    environ = {f"BELAY_{name}": value for name, value in given.items() if name != "SOURCE_FILE"}
    misspelt(environ)
    from_environment(environ)


def _folder(found: str) -> None:
    """Names of files below a folder of checkpoints."""
    root = scratch(b"", "tree/.keep").parent
    made = []
    for name in found.split("\n")[:20]:
        parts = [
            part
            for part in name.replace("\0", "").split("/")
            if part not in ("", ".", "..") and len(part.encode("utf-8", "surrogateescape")) < 200
        ]
        if parts and len(parts) < 8:
            path = root.joinpath(*parts)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(b"x")
            except OSError:
                continue
            made.append(path)
    sets.scan(root)
    for path in made:
        path.unlink(missing_ok=True)


def _review(data: bytes) -> None:
    try:
        body = orjson.loads(data)
    except ValueError:
        return
    token_reviews.verdict(body)


HARNESSES: Final = (
    Harness("watch-events", _events, ("engine/kube/pod_protobuf.py", "engine/kube/errors.py"), form=Form.BYTES),
    Harness("watched-objects", objects(_watched), ("engine/observe/watch_events.py",)),
    Harness("status", objects(_status), ("engine/status/status_reader.py",)),
    Harness("tokens", text(_token), ("engine/serve/grpc/token_reviews.py",), form=Form.TEXT),
    Harness("token-review", _review, ("engine/serve/grpc/token_reviews.py",)),
    Harness("kubeconfig", _kubeconfig, ("agents/common/credentials.py",), (credentials.CredentialsError,), Form.TEXT),
    Harness("settings", text(_settings), ("engine/settings.py",), (InputError,), Form.TEXT),
    Harness("checkpoint-folder", text(_folder), ("agents/training/checkpoint/sets.py",), form=Form.TEXT),
)
