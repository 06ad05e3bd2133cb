"""Settings of the DRA driver: the flags of MindCluster's driver, with its defaults.

Source: component/ascend-dynamic-resource-allocation/internal/flags/draoption.go.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

import msgspec

CDI_ROOT: Final = Path("/var/run/cdi")
REGISTRAR: Final = Path("/var/lib/kubelet/plugins_registry")
PLUGINS: Final = Path("/var/lib/kubelet/plugins")
MOUNT_LISTS: Final = Path("/etc/ascend-docker-runtime.d")


class DraSettings(msgspec.Struct, frozen=True, kw_only=True):
    """``cdi`` is the folder that container runtimes read device descriptions from, ``registrar`` and ``plugins`` are
    kubelet's folders for sockets, ``lists`` holds the runtime's mount lists. ``host_root`` is where the host's root is
    mounted in the agent's container, so that paths of the host can be looked at; empty on the host itself. ``dev``
    holds the device nodes. ``period`` is the pause between looks at the chips and the sockets (s).
    """

    cdi: Path = CDI_ROOT
    registrar: Path = REGISTRAR
    plugins: Path = PLUGINS
    lists: Path = MOUNT_LISTS
    host_root: str = ""
    dev: Path = Path("/dev")
    period: float = 1.0


def add(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the driver."""
    group = parser.add_argument_group("dynamic resource allocation (DRA)")
    group.add_argument("--dra", action="store_true", help="publish chips as ResourceSlices and prepare claims on them")
    group.add_argument("--cdi-root", default=str(CDI_ROOT), metavar="DIR", help="folder for CDI files (%(default)s)")
    group.add_argument(
        "--kubelet-registrar-directory-path", default=str(REGISTRAR), metavar="DIR", help="default %(default)s"
    )
    group.add_argument(
        "--kubelet-plugins-directory-path", default=str(PLUGINS), metavar="DIR", help="default %(default)s"
    )
    group.add_argument(
        "--dra-host-root", default="", metavar="DIR", help="where the host's root folder is mounted, empty on the host"
    )


def chosen(options: argparse.Namespace) -> DraSettings | None:
    """The settings, None without ``--dra``. Raises ValueError for a folder that is not an absolute path."""
    if not options.dra:
        return None
    folders = {
        "--cdi-root": options.cdi_root,
        "--kubelet-registrar-directory-path": options.kubelet_registrar_directory_path,
        "--kubelet-plugins-directory-path": options.kubelet_plugins_directory_path,
    }
    for flag, folder in folders.items():
        if not folder.startswith("/"):
            raise ValueError(f"{flag} {folder!r} is not an absolute path")
    return DraSettings(
        cdi=Path(options.cdi_root),
        registrar=Path(options.kubelet_registrar_directory_path),
        plugins=Path(options.kubelet_plugins_directory_path),
        host_root=options.dra_host_root.rstrip("/"),
    )
