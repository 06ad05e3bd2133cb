"""The API server's address and our credentials.

Service accounts and plain kubeconfigs are read by `belay.engine.kube.plain_access`, all else by the official client's
loader (`belay.engine.kube.library_access`): KUBECONFIG with several files, proxies, exec plugins. Whichever it is reads
them again whenever the server answers 401, so rotated tokens and plugin credentials are picked up; the token of a
service account, and one in a kubeconfig's ``tokenFile``, is read again every minute too, since API servers accept an
old one for long but complain of it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from belay.engine.errors import InputError
from belay.engine.kube.endpoint import Endpoint, Loader, is_address
from belay.engine.kube.plain_access import PlainAccess, from_file, in_cluster, plain_extension
from belay.engine.proxies import names_proxy

SERVICE_ACCOUNT_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
"""Where Kubernetes puts the token of a pod's service account."""

SERVER_EXTENSION = "belay.dev/server"
"""Extension of a cluster in a kubeconfig: ``url`` is where its `belay server` is reached."""


def loader(kubeconfig: str | None = None, context: str | None = None, variables: Sequence[str] = ()) -> Loader:
    """A loader for the given kubeconfig; without one: $KUBECONFIG, then ~/.kube/config, then the pod's service
    account. Errors name the ``variables`` that gave file and context.
    """

    def load() -> Endpoint:
        try:
            plain = _plain(kubeconfig, context)
            return _by_library(kubeconfig, context) if plain is None else plain
        except InputError as error:
            if not variables:
                raise
            where, hint = f"{', '.join(variables)} {error.where}", f"Correct {' and '.join(variables)}."
            raise InputError(error.message, where=where, hint=hint) from error

    return load


def _plain(kubeconfig: str | None, context: str | None) -> Endpoint | None:
    """The endpoint, if it needs no library; a proxy of the environment does."""
    if names_proxy():
        return None
    if _in_cluster(kubeconfig):
        found = in_cluster(SERVICE_ACCOUNT_TOKEN.parent)
    else:
        found = from_file(_paths(kubeconfig), context)
    if found is None or not is_address(found.host.rstrip("/")):
        return None
    return _endpoint(found)


def _by_library(kubeconfig: str | None, context: str | None) -> Endpoint:
    from belay.engine.kube import library_access

    return library_access.endpoint(_paths(kubeconfig), context, in_cluster=_in_cluster(kubeconfig))


def _endpoint(found: PlainAccess) -> Endpoint:
    return Endpoint(
        host=found.host.rstrip("/"),
        authorization=f"Bearer {found.token}" if found.token else "",
        tls=found.tls,
        server_name=found.server_name or None,
        rotates=found.rotates,
    )


def _paths(kubeconfig: str | None) -> str:
    return kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"


def server_of(kubeconfig: str | None = None, context: str | None = None) -> str:
    """Where the kubeconfig says that the cluster's `belay server` is; empty where it says nothing."""
    if (plain := plain_extension(_paths(kubeconfig), context, SERVER_EXTENSION)) is not None:
        return str(plain.get("url") or "")
    from belay.engine.kube import library_access

    return library_access.extension_url(_paths(kubeconfig), context, SERVER_EXTENSION)


def names_cluster(kubeconfig: str | None) -> bool:
    """Whether a person names a cluster: by the option, by ``$KUBECONFIG``, or by a file in the usual place."""
    return bool(kubeconfig or os.environ.get("KUBECONFIG")) or (Path.home() / ".kube" / "config").exists()


def _in_cluster(kubeconfig: str | None) -> bool:
    if names_cluster(kubeconfig):
        return False
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST")) and SERVICE_ACCOUNT_TOKEN.exists()
