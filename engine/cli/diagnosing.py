"""`belay diagnose`: why a job broke, from logs that people collected."""

from __future__ import annotations

import concurrent.futures
import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from belay.engine.cli.invocation import fails_clearly, output_option, seconds
from belay.engine.errors import InputError
from belay.engine.model.wording import counted

if TYPE_CHECKING:
    from belay.agents.node.diagnosis.collected import CollectedNode
    from belay.engine.documents import Desired
    from belay.engine.model.log_evidence import LogRule, PodEvidence

_ZONE: Final = re.compile(r"([+-])(\d\d):?(\d\d)\Z")
#: Nodes beyond which reading is worth several processes.
_FEW: Final = 2
_SHOWN: Final = 20


def _zone(context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    found = _ZONE.match(text)
    if found is None or int(found[2]) > 15 or int(found[3]) > 59:
        raise click.BadParameter("write a zone, as +08:00", context, parameter)
    size = (int(found[2]) * 60 + int(found[3])) * 60_000
    return -size if found[1] == "-" else size


@click.command(short_help="Why a job broke, from collected logs.")
@click.argument("folders", nargs=-1, required=True, metavar="FOLDER...", type=click.Path(path_type=Path))
@click.option("--policies", metavar="DIR", multiple=True, help="Rules of your own (policies/diagnosis), laid over.")
@click.option("--language", type=click.Choice(("en", "zh")), default="en", show_default=True)
@click.option("--window", default="3h", show_default=True, metavar="DURATION",
              help="Older lines than this before the last line of a process do not count; 0s: all count.")  # fmt: skip
@click.option("--timezone", callback=_zone, metavar="+HH:MM", help="Of times without a zone, where no log states it.")
@click.option("--hide-addresses", is_flag=True, help="Hide IP addresses in examples.")
@output_option()
@fails_clearly
def diagnose(
    folders: tuple[Path, ...], policies: tuple[str, ...], language: str, window: str, timezone: int | None,
    hide_addresses: bool, output: str,
) -> None:  # fmt: skip
    """Say which rank or node broke a job, and why, from logs in FOLDERs; nothing is written and no cluster is asked.

    A FOLDER holds the logs of one node, or one folder for each node, as MindCluster's FaultDiag collects them
    (process_log, device_log, dl_log, mindie, messages, environment_check, bmc_log, lcne_log, rank-0.txt ...), or the
    *.log.gz that agents keep. Exit code 0 also when nothing is found.

    Example: belay diagnose logs/node-1 logs/node-2
    """
    from belay.agents.node.diagnosis.collected import newest_line
    from belay.engine.cli import output as show
    from belay.engine.status.diagnoses import diagnosis_body

    nodes = _nodes(folders)
    desired = _desired(policies)
    rules = tuple(rule.log_rule() for rule in desired.diagnosis_rules.values())
    span = seconds(window, "--window") or 0.0
    newest = newest_line(nodes, timezone) if span else 0
    since = max(0, newest - int(span * 1000)) if newest else 0
    evidence = _read(nodes, rules, since, timezone, hide_addresses)
    body = diagnosis_body(evidence, desired).get("diagnosis")
    if body is not None:
        body = {name: value for name, value in body.items() if name != "next"}
    if output in ("json", "yaml"):
        show.document({"diagnosis": body, "nodes": _node_rows(nodes, evidence)}, output)
    else:
        _print(nodes, len(rules), body, language)


def _nodes(folders: Sequence[Path]) -> list[CollectedNode]:
    """The nodes of all folders; equal names differ by their folder."""
    from belay.agents.node.diagnosis.collected import nodes_in

    found: dict[str, CollectedNode] = {}
    for folder in folders:
        if not folder.is_dir():
            raise InputError("no such folder", where=str(folder), hint="Unpack archives first.")
        for node in nodes_in(folder):
            name, number = node.name, 2
            while name in found:
                name, number = f"{node.name}-{number}", number + 1
            found[name] = node._replace(name=name)
    if not found:
        hint = "docs/diagnosis.md lists the names of files and folders that are read."
        raise InputError("no logs of a known kind", where=", ".join(map(str, folders)), hint=hint)
    return [found[name] for name in sorted(found)]


def _desired(policies: Sequence[str]) -> Desired:
    from belay.engine.load import load
    from belay.engine.replay.offline import policies_of

    loaded = load({}, overlays=[policies_of(folder) for folder in policies])
    for one in loaded.diagnostics:
        if one.severity == "error":
            raise InputError(one.message, where=f"{one.file}:{one.line}:{one.column}")
    return loaded.desired


def _read(
    nodes: Sequence[CollectedNode], rules: Sequence[LogRule], since: int, zone: int | None, addresses: bool
) -> list[PodEvidence]:
    from belay.agents.node.diagnosis.collected import read_node

    work = partial(read_node, rules=rules, since_ms=since, zone=zone, addresses=addresses)
    workers = min(os.cpu_count() or 1, len(nodes))
    if len(nodes) <= _FEW or workers == 1:
        return [one for node in nodes for one in work(node)]
    with concurrent.futures.ProcessPoolExecutor(workers) as pool:
        return [one for found in pool.map(work, nodes) for one in found]


def _node_rows(nodes: Sequence[CollectedNode], evidence: Sequence[PodEvidence]) -> list[dict[str, Any]]:
    """Each node with its logs by source, and what was found in them."""
    from belay.engine.model.times import rfc3339

    rows = []
    for node in nodes:
        sources: dict[str, int] = {}
        for log in node.logs:
            sources[log.source.value] = sources.get(log.source.value, 0) + 1
        events = [
            {"code": event.code, "role": event.role.value, "rank": event.rank if event.rank >= 0 else None,
             "first": rfc3339(event.first_ms / 1000) if event.first_ms else None, "lines": event.count,
             "source": event.source.value, "example": event.example}
            for one in evidence if one.node == node.name for event in one.events
        ]  # fmt: skip
        rows.append({"node": node.name, "logs": sources, "skipped": node.skipped, "events": events})
    return rows


def _print(nodes: Sequence[CollectedNode], rules: int, body: Mapping[str, Any] | None, language: str) -> None:
    logs, skipped = sum(len(node.logs) for node in nodes), sum(node.skipped for node in nodes)
    rest = f", {counted(skipped, 'other file')} left out" if skipped else ""
    _say(f"{counted(len(nodes), 'node')}, {logs} logs read by {rules} rules{rest}")
    if body is None:
        _say("nothing found: no line is known as a cause, and none says that a rank waited for another")
        return
    zh = "Zh" if language == "zh" else ""
    _say(f"\nroot: {body['root' + zh]}")
    _say(f"  {body['figures']}")
    for root in body["roots"]:
        if root.get("code"):
            place = root["node"] or root["pod"]
            _say(f"  {place}: {root['code']}{_at(root.get('time'))}: {root.get('what' + zh, '')}")
        if root.get("advice" + zh):
            _say(f"    {'建议' if zh else 'do'}: {root['advice' + zh]}")
    _say("\nevents, causes first:")
    for event in body["events"][:_SHOWN]:
        where = f"{event['pods']} {'node' if event['pods'] == 1 else 'nodes'}, first {event['node']}"
        _say(f"  {event['code']} ({event['role']}): {event.get('what' + zh, '')}")
        _say(f"    {event['lines']} lines on {where}{_at(event['first'])}")
        _say(f"    {event['example']}")


def _at(time: str | None) -> str:
    return f" at {time}" if time else ""


def _say(text: str) -> None:
    from belay.engine.cli.output import plain

    click.echo("\n".join(plain(line) for line in text.split("\n")))


VERBS = (diagnose,)
