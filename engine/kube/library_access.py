"""Addresses and credentials by the official client's loader: every kubeconfig that `plain_access` leaves to it."""

from __future__ import annotations

import contextlib
import difflib
import logging
import os
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from kubernetes.client import Configuration
from kubernetes.config import ConfigException, load_incluster_config, load_kube_config
from kubernetes.config.kube_config import KubeConfigMerger

from belay.engine.errors import InputError
from belay.engine.kube.endpoint import Endpoint, is_address
from belay.engine.log import redact

_HINT = "Set KUBECONFIG or give --kubeconfig."
_SHOWN = 12


def endpoint(where: str, context: str | None, *, in_cluster: bool) -> Endpoint:
    """The server and the credentials of the kubeconfigs at ``where``, or of the pod's service account.

    Raises:
        InputError: none are usable; it says why, and where.
    """
    configuration = Configuration()
    try:
        if in_cluster:
            load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            _refuse_absent(where)
            _refuse_unknown_context(where, context)
            with _captured_errors() as complaints:
                load_kube_config(  # type: ignore[no-untyped-call]
                    config_file=where, context=context, client_configuration=configuration, persist_config=False
                )
            if complaints and not (configuration.api_key or configuration.cert_file):
                raise ConfigException(f"the plugin of the kubeconfig gave none: {complaints[0]}")
        rotates = in_cluster or _names_token_file(where, context)
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


def _refuse_unknown_context(paths: str, context: str | None) -> None:
    """Raise InputError when a context was asked for that no file has."""
    if context is None:
        return
    rows = KubeConfigMerger(paths).config["contexts"].value  # type: ignore[no-untyped-call]
    known = [str(row["name"]) for row in rows]
    if context in known:
        return
    shown = ", ".join(known[:_SHOWN]) + (f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else "")
    has = f"it has {shown}" if known else "it has none"
    near = difflib.get_close_matches(context, known, 1)
    hint = f"Give --context {near[0]}" if near else "Give one of them" if known else "Give another --kubeconfig"
    raise InputError(
        f"there is no context {context[:80]!r}; {has}", where=paths, hint=f"{hint}, or none for the current one.",
        code="NoClusterConfigured",
    )  # fmt: skip


def extension_url(paths: str, context: str | None, name: str) -> str:
    """The ``url`` of an extension of the cluster; empty where the kubeconfig has none, or is none."""
    try:
        merged = KubeConfigMerger(paths).config  # type: ignore[no-untyped-call]
        chosen = merged["contexts"].get_with_name(context or merged["current-context"])["context"]
        cluster = merged["clusters"].get_with_name(chosen["cluster"])["cluster"]
        return str(cluster["extensions"].get_with_name(name)["extension"]["url"])
    except (ConfigException, OSError, ValueError, KeyError, TypeError, AttributeError):
        return ""


def _names_token_file(paths: str, context: str | None) -> bool:
    """Whether the kubeconfig's user has its token in a file, which others renew."""
    try:
        merged = KubeConfigMerger(paths).config  # type: ignore[no-untyped-call]
        chosen = merged["contexts"].get_with_name(context or merged["current-context"])["context"]
        return bool(merged["users"].get_with_name(chosen["user"])["user"].safe_get("tokenFile"))
    except (ConfigException, TypeError, AttributeError):
        return False  # it names no user


def _configured(configuration: Any, *, rotates: bool) -> Endpoint:
    host = str(configuration.host).rstrip("/")
    if not is_address(host):
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
