"""The verbs in groups, as `belay --help` lists them, and the examples of each in lines that can be copied."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import Final

import click

#: By heading the verbs below it; both in the order in which people need them.
GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "Read": (
        "status", "get", "top", "explain", "events", "logs", "sync", "wait", "history", "report", "usage", "console",
    ),
    "Act, each a commit": (
        "isolate", "release", "drain", "suspend", "resume", "scale", "priority", "new", "adopt", "confirm", "rollback",
        "init",
    ),
    "Check before you push": ("validate", "plan", "diff", "simulate", "review", "policy", "schema"),
    "Prove and diagnose": ("replay", "verify", "diagnose", "check", "checkpoint"),
    "Try on this machine": ("up", "demo", "inject", "sim-driver"),
    "Run in a cluster": ("controller", "worker", "server", "agent", "exporter", "admission", "train"),
    "Run on one host": ("containers", "runtime"),
    "Administer": ("keys", "rights", "notify", "migrate", "import"),
    "This command line": ("completion", "mcp", "version"),
}  # fmt: skip
OTHERS: Final = "More"
_EXAMPLES: Final = re.compile(r"(?:^|\s)Examples?:\s+(belay .*)\Z", re.DOTALL)
_NEXT: Final = re.compile(r"(?:;|\n) +(?=belay )|;\s+(?=belay )")


class VerbTable(MutableMapping[str, click.Command]):
    """The verbs of a package by name. A verb's module, below ``package``, is imported once the verb is looked up, and
    lists it in its ``VERBS``.
    """

    def __init__(self, package: str, homes: Mapping[str, tuple[str, ...]]) -> None:
        self._package = package
        self._homes = {name: module for module, names in homes.items() for name in names}
        self._found: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._found and name in self._homes:
            for verb in import_module(f"{self._package}.{self._homes[name]}").VERBS:
                self[str(verb.name)] = verb
        return self._found[name]

    def __setitem__(self, name: str, verb: click.Command) -> None:
        lay_out_examples(verb)
        self._found[name] = verb

    def __delitem__(self, name: str) -> None:
        del self._found[name]

    def __contains__(self, name: object) -> bool:
        return name in self._homes or name in self._found

    def __iter__(self) -> Iterator[str]:
        own = [name for name in self._found if name not in self._homes]
        return iter([*own, *self._homes])

    def __len__(self) -> int:
        return len({**self._homes, **self._found})


class GroupedVerbs(click.Group):
    """A list of commands under headings."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for each heading."""
        listed = [name for names in GROUPS.values() for name in names]
        rest = tuple(name for name in self.list_commands(ctx) if name not in listed)
        width = max(map(len, self.commands))
        for heading, names in (*GROUPS.items(), (OTHERS, rest)):
            rows = [
                (name.ljust(width), command.get_short_help_str(formatter.width))
                for name in names
                if (command := self.get_command(ctx, name)) is not None and not command.hidden
            ]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)


def examples_of(command: click.Command) -> list[str]:
    """The examples with which the text of a command ends: ``Example: belay …; belay …``."""
    found = _EXAMPLES.search(command.help or "")
    return [" ".join(one.split()) for one in _NEXT.split(found[1])] if found else []


def lay_out_examples(command: click.Command) -> None:
    """Give each example of a command, and of those below it, a line of its own."""
    examples = examples_of(command)
    if examples and command.help:
        import inspect

        said = _EXAMPLES.sub("", inspect.cleandoc(command.help)).rstrip()
        heading = "Example:" if len(examples) == 1 else "Examples:"
        # click leaves the lines of a paragraph as they are that begins with a backspace
        command.help = "\n".join((said, "", "\b", heading, *(f"  {one}" for one in examples)))
    if isinstance(command, click.Group):
        for below in command.commands.values():
            lay_out_examples(below)
