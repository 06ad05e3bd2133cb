"""The agent's option that switches the exporter on; light, because every agent imports it."""

from __future__ import annotations

import argparse
import shlex

from belay.agents.exporter.settings import TELEGRAF, ExporterSettings, parse


def add(parser: argparse.ArgumentParser) -> None:
    """Add the option that switches the part on."""
    parser.add_argument(
        "--exporter", default="", metavar="FLAGS",
        help="show NPU metrics to Prometheus: the exporter's flags as one text, --exporter='-ip=0.0.0.0 -port=8082'; "
        "empty for no exporter",
    )  # fmt: skip


def chosen(options: argparse.Namespace) -> ExporterSettings | None:
    """The part's settings; None when it is off. Raises FlagError, a ValueError, for invalid flags."""
    if not options.exporter:
        return None
    settings = parse(shlex.split(options.exporter))
    if settings.platform == TELEGRAF:
        raise ValueError("--exporter: Telegraf reads standard output; run belay exporter -platform=Telegraf on its own")
    return settings
