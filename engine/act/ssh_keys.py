"""Key pairs of Volcano's plugin ``ssh``: made here, at the edge, because a plan must be reproducible.

The private key goes from OpenSSH's generator straight into the job's Secret. It is in no plan, snapshot, message or
log: Secrets are not watched, so the job itself is marked (annotation ``belay.dev/ssh-keys``) once its Secret stands.
Source: github.com/volcano-sh/volcano/pkg/controllers/job/plugins/ssh (generateRsaKey: RSA, 2048 bits, PEM).
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import tempfile
from pathlib import Path
from typing import Final

from belay.engine.act.edge import Edge, Refused
from belay.engine.kube import Conflict, NotFound, resource_for
from belay.engine.model.actions import CreateObject, OwnerReference
from belay.engine.model.labels import SSH_KEYS

KEY_BITS: Final = 2048
#: Longest time in seconds for making a key pair.
LIMIT: Final = 60.0
_SECRET: Final = resource_for("v1", "Secret")


async def create_keys(edge: Edge, action: CreateObject, owner: OwnerReference) -> bool:
    """Create the Secret with a new key pair unless it exists, then annotate its job.

    Raises:
        Refused: the job is gone, or ``ssh-keygen`` (Debian: openssh-client) cannot make a key pair.
    """
    private, public = await key_pair()
    body = {**action.object, "data": {**action.object.get("data", {})}}
    for name, content in (("id_rsa", private), ("id_rsa.pub", public), ("authorized_keys", public)):
        body["data"][name] = base64.b64encode(content).decode()
    wrote = True
    try:
        await edge.kube.create(_SECRET, body)  # no snapshot shows Secrets, so no pass may wait for it
    except Conflict:
        wrote = False  # made by an earlier try or a user: keys in use are never replaced
    resource = await edge.kube.resource(owner.api_version, owner.kind)
    mark = {"annotations": {SSH_KEYS: action.name}} | ({"uid": owner.uid} if owner.uid else {})
    try:
        edge.wrote(await edge.kube.patch(resource, owner.name, {"metadata": mark}, action.namespace))
    except NotFound as error:
        raise Refused(f"{owner.kind} {action.namespace}/{owner.name} is gone") from error
    return wrote


async def key_pair() -> tuple[bytes, bytes]:
    """A private key in PEM and its public key as ``authorized_keys`` holds it.

    Raises:
        Refused: there is no ``ssh-keygen``, it failed, or it took longer than a minute.
    """
    with tempfile.TemporaryDirectory(prefix="belay-keys-") as folder:  # mode 0700
        path = Path(folder) / "id_rsa"
        command = ("ssh-keygen", "-q", "-t", "rsa", "-b", str(KEY_BITS), "-m", "PEM", "-N", "", "-C", "", "-f", path)
        quiet = asyncio.subprocess.DEVNULL
        try:
            process = await asyncio.create_subprocess_exec(*command, stdin=quiet, stdout=quiet, stderr=quiet)
        except OSError as error:
            raise Refused("no key pair can be made: ssh-keygen is missing, install openssh-client") from error
        try:
            async with asyncio.timeout(LIMIT):
                code = await process.wait()
        except TimeoutError as error:
            raise Refused(f"no key pair could be made: ssh-keygen took longer than {LIMIT:.0f} s") from error
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        if code:
            raise Refused(f"no key pair could be made: ssh-keygen ended with {code}")
        return path.read_bytes(), path.with_suffix(".pub").read_bytes()
