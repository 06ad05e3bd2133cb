"""`docs/reference/`, written from schemas, definitions, verbs, settings and flags: ``make reference``."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import click
import msgspec
import yaml

from belay.agents.daemon.__main__ import _parser as agent_parser
from belay.agents.exporter import settings as exporter
from belay.engine.cli import main
from belay.engine.documents import KINDS
from belay.engine.load.schemas import schemas
from belay.engine.model.codes import GROUPS, explained
from belay.engine.model.pending_reasons import INSUFFICIENT, REASONS
from belay.engine.model.remedies import MEANING, Step
from belay.engine.setting_meanings import FORMS, MEANINGS, OTHERS
from belay.engine.settings import _BOUNDS, _LEVELS, PREFIX, Settings
from tests import feature_pages, peer_tables

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "reference"
_MADE = "Written by `make reference`; a test fails when this page and the code differ.\n"
_CODE = re.compile(r"``?([^`]+)``?")
#: Deeper fields are those of Kubernetes (pod templates), or a condition that nests in itself.
_DEEPEST = 12
_WHOLE = (
    "Stored whole, with the fields of MindCluster's own definition; Belay reads those of the original's controllers."
)
_FIELDS = "| field | type | default | meaning |\n|---|---|---|---|\n"
_INDEX = """# Reference

{made}
- [Products, features and parts](features.md): what each product can do, and what of Belay does it
- [Commands](commands.md): every verb with its options
- [Settings](settings.md): every `BELAY_*` variable
- [Flags of agents](agent.md): agent, device plugin, exporter
- [Why a job waits](pending.md): every reason, what it means and what helps
- [Codes](codes.md): every error, finding, condition and Event, what it means and what to do
- [Metrics](../metrics.md)
- [Status, key by key](../status.md)

## Belay's kinds

| kind | declares |
|---|---|
{own}

## Kinds of MindCluster and Volcano

As Belay's definitions store them, for clusters in which the originals are not installed.

| kind | group |
|---|---|
{theirs}
"""
_AGENT = """# Flags of agents

{made}
`belay agent` takes these flags, and `belay exporter` those [below](#the-exporter). Flags with one dash keep
MindCluster's names and Go's forms: `-volcanoType`, `-volcanoType=true`.
"""
Json = Mapping[str, Any]


def plain(text: str) -> str:
    """A text as one cell of a table: docstrings' code as Markdown's, nothing read as HTML or emphasis."""
    parts = []
    for number, part in enumerate(_CODE.split(" ".join(text.split()))):
        parts.append(code(part) if number % 2 else re.sub(r"([*_<\[])", r"\\\1", part).replace("|", "\\|"))
    return "".join(parts)


def code(text: object) -> str:
    """A piece of code in a cell of a table."""
    shown = str(text)
    if "|" in shown:
        return "<code>" + shown.replace("&", "&amp;").replace("<", "&lt;").replace("|", "&#124;") + "</code>"
    return f"`{shown}`" if shown else ""


def kind_page(kind: str, schema: Json) -> str:
    """A kind with each of its fields."""
    rows = [row for row in fields(schema, schema) if not row.startswith(("| `apiVersion`", "| `kind`", "| `metadata."))]
    return (
        f"# {kind}\n\n{plain(schema.get('description', ''))}\n\n{_MADE}\n"
        f"`apiVersion: belay.dev/v1alpha1`, `kind: {kind}`; `metadata` takes `name`, `labels` and "
        f"`annotations`. A field that is\nnot listed is refused. Schema for editors: `belay schema {kind.lower()}`; "
        f"in a cluster: `kubectl explain {kind.lower()}.spec`.\n\n" + _FIELDS + "\n".join(rows) + "\n"
    )


def fields(root: Json, node: Json, path: str = "", seen: tuple[str, ...] = ()) -> Iterator[str]:
    """Every field below a schema as a row of the table; a definition that contains itself is described once."""
    node, seen = resolved(root, node, seen)
    if len(seen) > _DEEPEST or (seen and seen[-1] in seen[:-1]):
        return
    required = node.get("required", [])
    for name, field in node.get("properties", {}).items():
        whole, _ = resolved(root, field, ())
        default = "required" if name in required else written(whole.get("default", field.get("default")))
        text = field.get("description") or whole.get("description") or ""
        where = f"{path}.{name}" if path else name
        yield f"| `{where}` | {kind_of(root, field)} | {default} | {plain(text)} |"
        yield from below(root, field, where, seen)
    if isinstance(extra := node.get("additionalProperties"), dict):
        yield from below(root, extra, f"{path}.<name>", seen)


def below(root: Json, field: Json, where: str, seen: tuple[str, ...]) -> Iterator[str]:
    """The fields inside a field: of its object, of the items of its list, of each of its forms."""
    field, seen = resolved(root, field, seen)
    for form in field.get("anyOf", field.get("oneOf", [])):
        yield from below(root, form, where, seen)
    for pattern in field.get("patternProperties", {}).values():
        yield from below(root, pattern, f"{where}.<name>", seen)
    if "items" in field and isinstance(field["items"], dict):
        yield from below(root, field["items"], f"{where}[]", seen)
    elif "properties" in field or isinstance(field.get("additionalProperties"), dict):
        yield from fields(root, field, where, seen)


def resolved(root: Json, node: Json, seen: tuple[str, ...]) -> tuple[Json, tuple[str, ...]]:
    """The definition that a reference names, and the names on the way to it."""
    while "$ref" in node:
        name = str(node["$ref"]).rpartition("/")[2]
        node, seen = root["$defs"][name], (*seen, name)
    return node, seen


def kind_of(root: Json, field: Json) -> str:
    """What a field takes, in words."""
    field, _ = resolved(root, field, ())
    if "enum" in field:
        return ", ".join(code(one) for one in field["enum"])
    if "const" in field:
        return code(field["const"])
    if forms := field.get("anyOf", field.get("oneOf")):
        found = [kind_of(root, form) for form in forms if form.get("type") != "null"]
        return " or ".join(dict.fromkeys(found))
    if field.get("x-kubernetes-int-or-string"):
        return "integer or string"
    if field.get("type") == "array":
        return f"list of {kind_of(root, field['items'])}" if field.get("items") else "list"
    if field.get("type") == "object" and field.get("patternProperties"):
        return f"map of {kind_of(root, next(iter(field['patternProperties'].values())))}"
    if field.get("type") == "object" and isinstance(field.get("additionalProperties"), dict):
        return f"map of {kind_of(root, field['additionalProperties'])}"
    found = str(field.get("format") or field.get("type") or "any")
    low, high = field.get("minimum"), field.get("maximum")
    if low is not None or high is not None:
        found += f" ≥ {low}" if high is None else f" ≤ {high}" if low is None else f" {low}–{high}"
    return found


def written(default: Any) -> str:
    """A default as people write it; nothing where there is none."""
    if default is None or default in ("", [], {}):
        return ""
    return code(str(default).lower() if isinstance(default, bool) else yaml_line(default))


def yaml_line(value: Any) -> str:
    shown = yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False).strip()
    return shown.removesuffix("...").strip()


def definition_page(definition: Json) -> str:
    """A kind of MindCluster or Volcano as Belay's definition stores it."""
    spec = definition["spec"]
    version = next(one for one in spec["versions"] if one.get("storage"))
    schema = version["schema"]["openAPIV3Schema"]
    rows = [row for row in fields(schema, schema) if not row.startswith(("| `apiVersion`", "| `kind`", "| `metadata`"))]
    said = schema.get("description", "")
    short = spec["names"].get("shortNames", [])
    names = f" (`kubectl get {short[0]}`)" if short else ""
    return (
        f"# {spec['names']['kind']} ({spec['group']})\n\n{plain(said) + chr(10) + chr(10) if said else ''}{_MADE}\n"
        f"`apiVersion: {spec['group']}/{version['name']}`{names}, {spec['scope'].lower()}. "
        + ("Fields that are not listed are kept as they are.\n\n" + _FIELDS + "\n".join(rows) if rows else _WHOLE)
        + "\n"
    )


def commands_page() -> str:
    """Every verb of the command line, from click."""
    parts = ["# Commands\n", _MADE]
    for path, command in verbs(main, ("belay",)):
        context = click.Context(command, info_name=" ".join(path))
        parts.append(f"\n{'#' * min(len(path) + 1, 4)} {' '.join(path)}\n")
        parts.append(helped(command.help or command.short_help or ""))
        if not isinstance(command, click.Group):
            parts.append(f"\n```\n{' '.join([*path, *command.collect_usage_pieces(context)])}\n```\n")
        options = [one for one in command.params if isinstance(one, click.Option)]
        rows = [record for one in options if (record := one.get_help_record(context)) is not None]
        if rows:
            parts.append("\n| option | meaning |\n|---|---|")
            parts.append("\n".join(f"| {code(left)} | {plain(right)} |" for left, right in rows) + "\n")
    return "\n".join(parts)


def verbs(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Each verb with the words that lead to it, groups before their members."""
    yield path, command
    if isinstance(command, click.Group):
        for name, one in sorted(command.commands.items()):
            yield from verbs(one, (*path, name))


def helped(text: str) -> str:
    """A docstring of a verb: paragraphs that click keeps as they are (\\b) as a block, others as text."""
    shown = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        lines = [line.strip() for line in paragraph.splitlines()]
        if lines[0] == "\b":
            shown.append("```\n" + "\n".join(line.rstrip() for line in paragraph.splitlines()[1:]) + "\n```")
        else:
            shown.append(plain(" ".join(lines)))
    return "\n\n".join(shown) + "\n"


def settings_page() -> str:
    """Every ``BELAY_*`` variable: default, range and meaning, from the code."""
    rows = []
    for field in msgspec.structs.fields(Settings):
        default = str(int(field.default)) if isinstance(field.default, bool) else f"{field.default}".removesuffix(".0")
        shown = "the host's name" if field.name == "identity" else code(default)
        meaning = _from_reference(MEANINGS[field.name])
        rows.append(f"| `{PREFIX}{field.name.upper()}` | {shown} | {_allowed(field)} | {meaning} |")
    others = [f"| `{PREFIX}{name}` | {meaning} |" for name, meaning in OTHERS.items()]
    return (
        f"# Settings\n\n{_MADE}\nEnvironment variables of controller, worker and server; in `deploy/` the ConfigMap "
        "`belay-settings`.\nTimes are in seconds, sizes in bytes. A value that cannot be used ends the process "
        "with code 2 and names the\nvariable; a variable that looks misspelt is named in the log.\n\n"
        "| variable | default | range | meaning |\n|---|---|---|---|\n" + "\n".join(rows) + "\n\n"
        "## Read besides\n\n| variable | meaning |\n|---|---|\n" + "\n".join(others) + "\n"
    )


def _allowed(field: msgspec.structs.FieldInfo) -> str:
    """The values that a setting takes, as its type, its bounds or ``FORMS`` say them."""
    if isinstance(field.default, bool):
        return "0, 1"
    if field.name == "log_level":
        return ", ".join(_LEVELS)
    if get_origin(field.type) is Literal:
        return ", ".join(get_args(field.type))
    if field.name in _BOUNDS:
        low, high = _BOUNDS[field.name]
        return f"{low:g}–{high:.15g}"
    return FORMS.get(field.name, "")


def _from_reference(text: str) -> str:
    """The text with its links, which lead from docs/, as a page of the reference has them."""
    return re.sub(r"\]\((?!\w+://)", "](../", text).replace("](../reference/", "](")


def agent_page() -> str:
    """Every flag of the agent and of the exporter."""
    parts = [_AGENT.format(made=_MADE)]
    for group in agent_parser("belay agent")._action_groups:
        actions = [one for one in group._group_actions if one.option_strings and one.dest != "help"]
        if not actions:
            continue
        title = "Agent" if group.title in ("options", "optional arguments") else str(group.title).capitalize()
        parts.append(f"\n## {title}\n\n| flag | takes | default | meaning |\n|---|---|---|---|")
        parts += [_flag(one) for one in actions]
    parts.append("\n## The exporter\n\n| flag | default | meaning |\n|---|---|---|")
    defaults = {field.name: field.default for field in msgspec.structs.fields(exporter.ExporterSettings)}
    for flag, (name, _) in exporter._FLAGS.items():
        default = defaults[name]
        shown = str(default).lower() if isinstance(default, bool) else "" if default == () else f"{default}"
        parts.append(f"| `-{flag}` | {code(shown)} | {plain(exporter.MEANINGS[flag])} |")
    return "\n".join(parts) + "\n"


def pending_page() -> str:
    """Every reason for which a job waits, those of the job as a whole first."""
    rows = sorted(REASONS.items(), key=lambda item: (item[1].of_node, item[0]))
    parts = [
        "# Why a job waits",
        "",
        _MADE,
        "`belay explain job NAME`, `belay plan` and the console show for each waiting job a reason, a sentence of "
        "Belay's own with MindCluster's line for the same behind it, and the way out with values of the nearest node.",
        "",
        "| reason | state | what helps |",
        "|---|---|---|",
    ]
    for reason, row in rows:
        name = f"`{reason}…`" if reason == INSUFFICIENT else f"`{reason}`"
        subject = "the node" if row.of_node else "the job"
        parts.append(f"| {name} | {subject} {plain(row.state)} | {plain(row.way_out)} |")
    parts += [
        "",
        "## The way out as values",
        "",
        "`remedy` of a waiting job in `belay plan -o json` is its way out for programs: a `step`, with values in "
        "`node`, `name`, `count`, `values` and `remove`. Where people have to choose, it is left out.",
        "",
        "| step | what to do |",
        "|---|---|",
        *(f"| {code(step.value)} | {plain(MEANING[step])} |" for step in Step),
    ]
    return "\n".join(parts) + "\n"


def codes_page() -> str:
    """Every code, under the place where it is met first; another place adds a paragraph."""
    parts = [
        "# Codes", "", _MADE,
        "`belay explain CODE` prints what stands here. A code stays when the words of a message change.", "",
    ]  # fmt: skip
    done: set[str] = set()
    for group in GROUPS:
        parts += [f"## {group.title}", "", f"Seen {plain(group.seen)}.", ""]
        for name in sorted(str(one) for one in group.rows):
            if name not in done:
                done.add(name)
                parts += [f"### {name}", "", *_code_paragraphs(name)]
    return "\n".join(parts) + "\n"


def _code_paragraphs(name: str) -> Iterator[str]:
    rows = explained(name)
    for group, row in rows:
        seen = f"({group.title}) " if len(rows) > 1 else ""
        causes = f" Usual causes: {row.causes}" if row.causes else ""
        place = row.page.removeprefix("reference/") if row.page.startswith("reference/") else f"../{row.page}"
        link = f" See [{row.page}]({place})."
        yield plain(f"{seen}{row.meaning}{causes} {row.way_out}".rstrip()) + (link if row.page else "")
        yield ""


def _flag(action: argparse.Action) -> str:
    names = ", ".join(code(one) for one in dict.fromkeys(action.option_strings))
    takes = action.metavar or (", ".join(map(str, action.choices)) if action.choices else "")
    if not takes and action.nargs != 0:
        takes = "true, false" if action.nargs == "?" else "VALUE"
    default = "" if action.default in (None, argparse.SUPPRESS, False) or "$" in (action.help or "") else action.default
    text = (action.help or "").replace("%(default)s", str(action.default)).replace("%%", "%")
    return f"| {names} | {plain(str(takes))} | {code(default)} | {plain(text)} |"


def definitions() -> dict[str, Json]:
    """Definitions of kinds that are not Belay's own, by the name of their page."""
    found = {}
    for file in sorted((ROOT / "deploy" / "crds").glob("*.yaml")):
        if not file.name.startswith("belay.dev_"):
            found[file.stem.replace("_", "-").replace(".", "-")] = yaml.safe_load(file.read_text())
    return found


def pages() -> dict[str, str]:
    """Path below docs/reference → text of every page."""
    found = {
        "commands.md": commands_page(),
        "settings.md": settings_page(),
        "agent.md": agent_page(),
        "pending.md": pending_page(),
        "codes.md": codes_page(),
        **{f"kinds/{name}.md": definition_page(one) for name, one in definitions().items()},
    }
    schema = schemas()
    for kind in sorted(KINDS):
        found[f"kinds/{kind.lower()}.md"] = kind_page(kind, schema[f"{kind.lower()}.json"])
    own = [
        f"| [{kind}](kinds/{kind.lower()}.md) | {plain(schema[f'{kind.lower()}.json'].get('description', ''))} |"
        for kind in sorted(KINDS)
    ]
    theirs = [
        f"| [{d['spec']['names']['kind']}](kinds/{n}.md) | {d['spec']['group']} |" for n, d in definitions().items()
    ]
    found["features.md"] = feature_pages.page(_MADE)
    found["README.md"] = _INDEX.format(made=_MADE, own="\n".join(own), theirs="\n".join(theirs))
    return {name: re.sub(r"\n{3,}", "\n\n", text) for name, text in found.items()}


def write(folder: Path = FOLDER) -> None:
    """Write every page; a page of a kind that is gone is removed."""
    made = pages()
    for old in folder.rglob("*.md") if folder.is_dir() else ():
        if str(old.relative_to(folder)) not in made:
            old.unlink()
    for name, text in made.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
    peer_tables.write()
