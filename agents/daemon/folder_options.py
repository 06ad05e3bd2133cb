"""Options of the parts that work on folders of the host: links, step times, logs of failed pods.

None of them has a default on simulated nodes, which share this machine's folders.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from belay.agents.node.diagnosis.files import ROOTS as LOG_ROOTS
from belay.agents.node.diagnosis.part import DiagnosisSettings
from belay.agents.node.linkfiles import ROOT as LINKS
from belay.agents.node.steptimes import ROOT as STEPS


def is_simulated(options: argparse.Namespace) -> bool:
    """Whether the node is simulated, or a fleet of nodes is."""
    return bool(options.fleet) or options.driver.startswith("simulated")


def add_links(parser: argparse.ArgumentParser) -> None:
    """Add the option for links between clusters."""
    parser.add_argument(
        "--links",
        default=None,
        metavar="DIR",
        help=f"folder for links between clusters (default {LINKS}), empty for none",
    )


def links(options: argparse.Namespace) -> Path | None:
    """The folder through which orders for links reach processes."""
    return _folder(options.links, LINKS, options)


def add_step_times(parser: argparse.ArgumentParser) -> None:
    """Add the option for step times of training jobs."""
    parser.add_argument(
        "--step-times",
        default=None,
        metavar="DIR",
        help=f"folder where training jobs write profiling (default {STEPS}), empty for none",
    )


def step_times(options: argparse.Namespace) -> Path | None:
    """The folder of profiling, whose step times are reported."""
    return _folder(options.step_times, STEPS, options)


def add_logs(parser: argparse.ArgumentParser) -> None:
    """Add the options for logs of failed pods."""
    parser.add_argument(
        "--log-roots",
        default=None,
        metavar="DIR[,DIR]",
        help="folders of the host below which logs of failed pods are read for belay explain job (default "
        f"{','.join(map(str, LOG_ROOTS))}), empty for none",
    )
    parser.add_argument(
        "--hide-addresses", action="store_true", help="hide IP addresses in what is kept and reported of logs"
    )


def logs(options: argparse.Namespace) -> DiagnosisSettings | None:
    """Which logs of failed pods are read. Raises ValueError for a folder that is not absolute."""
    text = options.log_roots
    if text is None:
        text = "" if is_simulated(options) else ",".join(map(str, LOG_ROOTS))

    roots = tuple(Path(part.strip()) for part in text.split(",") if part.strip())
    for root in roots:
        if not root.is_absolute() or ".." in root.parts or root == Path("/"):
            raise ValueError(f"--log-roots {str(root)!r} is no absolute folder such as /var/log")
    return DiagnosisSettings(roots, options.hide_addresses) if roots else None


def _folder(given: str | None, default: Path, options: argparse.Namespace) -> Path | None:
    """The given folder, else the default; None for an empty text."""
    if given is None:
        return None if is_simulated(options) else default
    return Path(given) if given else None
