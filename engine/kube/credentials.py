"""The API server's address and our credentials.

Service accounts and plain kubeconfigs are read by `belay.engine.kube.plain_access`, all else by the official client's
loader: KUBECONFIG with several files, proxies, exec plugins. Whichever it is reads them again whenever the server
answers 401, so rotated tokens and plugin credentials are picked up; the token of a service account, and one in a
kubeconfig's ``tokenFile``, is read again every minute too, since API servers accept an old one for long but complain of
it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import getproxies

from yarl import URL

from belay.engine.errors import InputError
from belay.engine.kube.plain_access import PlainAccess, from_file, in_cluster, plain_extension
from belay.engine.log import redact

SERVICE_ACCOUNT_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
"""Where Kubernetes puts the token of a pod's service account."""

SERVER_EXTENSION = "belay.dev/server"
"""Extension of a cluster in a kubeconfig: ``url`` is where its `belay server` is reached."""


_HINT = "Set KUBECONFIG or give --kubeconfig."


@dataclass(frozen=True)
class Endpoint:
    """One API server and our credentials; ``authorization`` is never printed."""

    host: str
    authorization: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    server_name: str | None = None
    proxy: str | None = field(default=None, repr=False)
    rotates: bool = False
    """Whether the token comes from a file that others renew."""

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": self.authorization} if self.authorization else {}


Loader = Callable[[], Endpoint]
"""Reads the credentials again; blocking, so it runs in a thread."""


def loader(kubeconfig: str | None = None, context: str | None = None, variables: Sequence[str] = ()) -> Loader:
    """A loader for the given kubeconfig; without one: $KUBECONFIG, then ~/.kube/config, then the pod's service
    account. Errors name the ``variables`` that gave file and context.
    """
    by_library = _by_library(kubeconfig, context)

    def load() -> Endpoint:
        try:
            plain = _plain(kubeconfig, context)
            return by_library() if plain is None else plain
        except InputError as error:
            if not variables:
                raise
            where, hint = f"{', '.join(variables)} {error.where}", f"Correct {' and '.join(variables)}."
            raise InputError(error.message, where=where, hint=hint) from error

    return load


def _plain(kubeconfig: str | None, context: str | None) -> Endpoint | None:
    """The endpoint, if it needs no library; a proxy of the environment does."""
    if getproxies().keys() - {"no"}:
        return None
    if _in_cluster(kubeconfig):
        found = in_cluster(SERVICE_ACCOUNT_TOKEN.parent)
    else:
        found = from_file(_paths(kubeconfig), context)
    if found is None or not _is_address(found.host.rstrip("/")):
        return None
    return _endpoint(found)


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


def _by_library(kubeconfig: str | None, context: str | None) -> Loader:
    def load() -> Endpoint:
        import yaml
        from kubernetes.client import Configuration
        from kubernetes.config import ConfigException, load_incluster_config, load_kube_config

        configuration, where = Configuration(), _paths(kubeconfig)
        try:
            if _in_cluster(kubeconfig):
                load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
            else:
                _refuse_absent(where)
                with _captured_errors() as complaints:
                    load_kube_config(  # type: ignore[no-untyped-call]
                        config_file=where, context=context, client_configuration=configuration, persist_config=False
                    )
                if complaints and not (configuration.api_key or configuration.cert_file):
                    raise ConfigException(f"the plugin of the kubeconfig gave none: {complaints[0]}")
            rotates = _in_cluster(kubeconfig) or _names_token_file(where, context)
            return _configured(configuration, rotates=rotates)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark
            place = f"{where}:{mark.line + 1}:{mark.column + 1}" if mark is not None else where
            raise InputError(f"is not valid YAML: {error.problem}", where=place, hint=_HINT) from error
        except UnicodeDecodeError as error:
            raise InputError("is not a kubeconfig: it is not UTF-8 text", where=where, hint=_HINT) from error
        except (TypeError, AttributeError) as error:
            raise InputError("is not a kubeconfig: a field has a wrong type", where=where, hint=_HINT) from error
        except (ConfigException, yaml.YAMLError, OSError, ValueError, KeyError) as error:
            text = f"no usable Kubernetes credentials: {redact(str(error))[:256]}"
            raise InputError(text, where=where, hint=_HINT) from error

    return load


class _ErrorCapture(logging.Handler):
    """Keeps messages instead of printing them."""

    def __init__(self, errors: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._errors, self._thread = errors, threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self._thread and len(self._errors) < 10:
            self._errors.append(record.getMessage())


@contextlib.contextmanager
def _captured_errors() -> Iterator[list[str]]:
    """Errors that this thread logs to the root logger: the client's loader only logs that an exec plugin failed, and
    continues without credentials.
    """
    errors: list[str] = []
    capture = _ErrorCapture(errors)
    logging.getLogger().addHandler(capture)
    try:
        yield errors
    finally:
        logging.getLogger().removeHandler(capture)


def _refuse_absent(paths: str) -> None:
    """Raise InputError when none of the files exists; of several, the loader skips missing ones."""
    files = [Path(path).expanduser() for path in paths.split(os.pathsep) if path]
    if any(file.is_file() or file.is_fifo() for file in files):
        return
    text = "is a folder, no kubeconfig" if any(file.is_dir() for file in files) else "does not exist"
    raise InputError(text, where=paths, hint=_HINT, code="NoClusterConfigured")


def server_of(kubeconfig: str | None = None, context: str | None = None) -> str:
    """Where the kubeconfig says that the cluster's `belay server` is; empty where it says nothing."""
    if (plain := plain_extension(_paths(kubeconfig), context, SERVER_EXTENSION)) is not None:
        return str(plain.get("url") or "")
    from kubernetes.config import ConfigException
    from kubernetes.config.kube_config import KubeConfigMerger

    try:
        merged = KubeConfigMerger(_paths(kubeconfig)).config  # type: ignore[no-untyped-call]
        chosen = merged["contexts"].get_with_name(context or merged["current-context"])["context"]
        cluster = merged["clusters"].get_with_name(chosen["cluster"])["cluster"]
        named = cluster["extensions"].get_with_name(SERVER_EXTENSION)
        return str(named["extension"]["url"])
    except (ConfigException, OSError, ValueError, KeyError, TypeError, AttributeError):
        return ""


def _names_token_file(paths: str, context: str | None) -> bool:
    """Whether the kubeconfig's user has its token in a file, which others renew."""
    from kubernetes.config import ConfigException
    from kubernetes.config.kube_config import KubeConfigMerger

    try:
        merged = KubeConfigMerger(paths).config  # type: ignore[no-untyped-call]
        chosen = merged["contexts"].get_with_name(context or merged["current-context"])["context"]
        return bool(merged["users"].get_with_name(chosen["user"])["user"].safe_get("tokenFile"))
    except (ConfigException, TypeError, AttributeError):
        return False  # it names no user


def names_cluster(kubeconfig: str | None) -> bool:
    """Whether a person names a cluster: by the option, by ``$KUBECONFIG``, or by a file in the usual place."""
    return bool(kubeconfig or os.environ.get("KUBECONFIG")) or (Path.home() / ".kube" / "config").exists()


def _in_cluster(kubeconfig: str | None) -> bool:
    if names_cluster(kubeconfig):
        return False
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST")) and SERVICE_ACCOUNT_TOKEN.exists()


def _is_address(host: str) -> bool:
    try:
        return host.startswith(("https://", "http://")) and bool(URL(host).host)
    except ValueError:  # a bad port, an open bracket
        return False


def _configured(configuration: Any, *, rotates: bool) -> Endpoint:
    host = str(configuration.host).rstrip("/")
    if not _is_address(host):
        raise ValueError(f"the server {host[:100]!r} is not an address such as https://10.0.0.1:6443")
    token = configuration.api_key.get("BearerToken") or configuration.api_key.get("authorization") or ""
    return Endpoint(
        host=host,
        authorization=str(token).strip(),
        tls=_tls(configuration) if host.startswith("https://") else None,
        server_name=configuration.tls_server_name or None,
        proxy=configuration.proxy or None,
        rotates=rotates,
    )


def _tls(configuration: Any) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert or None)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    return context
