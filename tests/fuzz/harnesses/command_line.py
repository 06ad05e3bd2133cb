"""Arguments of `belay`: the verbs that read, in this process."""

from __future__ import annotations

import os
from functools import cache
from typing import Final

from belay.engine.cli.filters import conditions
from belay.engine.cli.measurements import of_answer, of_page
from belay.engine.errors import InputError
from tests.fuzz.harness import CORPUS, Form, Harness, scratch, text

VERBS: Final = (
    "validate",
    "plan",
    "diff",
    "replay",
    "simulate",
    "explain",
    "get",
    "policy",
    "status",
    "top",
    "verify",
    "version",
)
_FILES: Final = {
    "cluster.json": CORPUS / "cluster-file" / "cluster.json",
    "desired/a.yaml": CORPUS / "documents" / "pool",
    "timeline.yaml": CORPUS / "simulate-timeline" / "one",
}
_WORDS: Final = (
    b"--cluster\ncluster.json\n",
    b"--desired\n.\n",
    b"-o\njson\n",
    b"-o\nyaml\n",
    b"--now\n2026-09-01T08:00:00Z\n",
    b"--timeline\ntimeline.yaml\n",
    b"--explain\n",
    b"chips\n",
    b"pod\ndefault/a\n",
    b"--help\n",
    b"--\n",
    b"--for\n1h\n",
    b"-n\ndefault\n",
    b"chip\nnode-1/Ascend910-0\n",
    b"--policies\n.\n",
    b"node\nnode-1\n",
    b"--filter\nstate=isolated\n",
    b"--sort\nuse\n",
    b"--metrics\nnode-1=cluster.json\n",
)


@cache
def _place() -> None:
    """A folder with a small state repository and a cluster file; no cluster answers."""
    for name, origin in _FILES.items():
        folder = scratch(origin.read_bytes(), name).parent
        folder = folder.parent if "/" in name else folder
    os.chdir(folder)
    os.environ["KUBECONFIG"] = "/nowhere"
    for name in [name for name in os.environ if name.startswith("BELAY_")]:
        del os.environ[name]


def _command(data: bytes) -> None:
    """One argument a line, the verb first."""
    from click.testing import CliRunner

    from belay.engine.cli import main

    _place()
    arguments = [part.decode("utf-8", "surrogateescape").replace("\0", "") for part in data.split(b"\n") if part]
    if not arguments or arguments[0] not in VERBS or any(word in ("-w", "--watch") for word in arguments):
        return
    done = CliRunner().invoke(main, arguments[:40], input="")
    assert done.exit_code in (0, 1, 2), (done.exit_code, done.exception, done.output[-500:])
    assert "internal error" not in done.output and "Traceback" not in done.output, done.output[-1500:]


def _measured(found: str) -> None:
    """A page of an exporter, and the answer of Prometheus."""
    for parse in (of_page, of_answer):
        try:
            list(parse(found.encode("utf-8", "surrogateescape"), "http://a:1"))
        except InputError as error:
            assert len(str(error)) < 1500


def _filtered(found: str) -> None:
    """One condition a line, on rows of every type."""
    row = {"node": "a", "codes": ["x"], "chips": 3, "ready": "1/2", "since": "2026-09-01T08:00:00Z", "usedBy": None}
    for line in found.splitlines()[:20]:
        try:
            conditions([line], tuple(row), 1_788_249_600.0)(row)
        except InputError as error:
            assert len(str(error)) < 1500


HARNESSES: Final = (
    Harness(
        "measurements",
        text(_measured),
        ("engine/cli/measurements.py",),
        form=Form.TEXT,
        words=(b"npu_chip_info_power", b'{id="1"} ', b'"metric":{}', b"nan", b"1e999"),
    ),
    Harness(
        "filters",
        text(_filtered),
        ("engine/cli/filters.py",),
        form=Form.TEXT,
        words=(b">=", b"!=", b"[", b"*", b"10m", b"9d"),
    ),
    Harness(
        "command-line",
        _command,
        ("engine/cli/invocation.py",),
        form=Form.TEXT,
        words=_WORDS,
        steps=30_000_000,
        log_lines=100,
        tries=0.1,
    ),
)
