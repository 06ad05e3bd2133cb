"""`belay policy add` and `belay policy edit`: what a fault means here, by flags."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import click

from belay.engine.cli.acts.verbs import act, act_options, pairs
from belay.engine.cli.invocation import fails_clearly

_FREQUENCY: Final = re.compile(r"([^:=]+):(\d{1,3})/([0-9.a-zµ]+)=([A-Za-z]+)(?:/([0-9.a-zµ]+))?")
_DURATION: Final = re.compile(r"([^:=]+):([0-9.a-zµ]+)(?:/([0-9.a-zµ]+))?=([A-Za-z]+)")
_OFTEN: Final = "80C98001:3/1h=ManuallySeparateNPU"
_LONG: Final = "81078603:30s/60s=PreSeparateNPU"


def _rules(command: Callable[..., None]) -> Callable[..., None]:
    """Rules of a policy, as flags."""
    for option in (
        click.option("--duration", "lasting", multiple=True, metavar="CODES:TIME[/RECOVER]=LEVEL",
                     help=f"A level for faults that last, such as {_LONG}: within half a minute nothing, and back "
                     "after one without. May be repeated."),
        click.option("--frequency", "often", multiple=True, metavar="CODES:N/WINDOW=LEVEL[/RELEASE]",
                     help=f"A level for faults that come back, such as {_OFTEN}. May be repeated."),
        click.option("--mode", type=click.Choice(("enforce", "shadow")),
                     help="shadow: only say what it would change (belay status)."),
        click.option("--level", "levels", multiple=True, metavar="CODE=LEVEL",
                     help="Such as 80C98001=RestartBusiness; may be repeated."),
    ):  # fmt: skip
        command = option(command)
    return command


@click.command(name="add", short_help="Add a fault policy, as a commit.")
@click.argument("name")
@_rules
@click.option("--pool", "pools", multiple=True, metavar="POOL", help="Where; may be repeated. Default: everywhere.")
@act_options
@fails_clearly
def add(
    name: str, levels: tuple[str, ...], mode: str | None, often: tuple[str, ...], lasting: tuple[str, ...],
    pools: tuple[str, ...], **options: Any,
) -> None:  # fmt: skip
    """Add a FaultPolicy: levels of fault codes, and rules for those that come back or last.

    The plan shows which chips, pods and jobs it touches now; `belay policy test` plays it on recorded history.

    Example: belay policy add tolerant --level 81078603=NotHandleFault --pool training
    """
    from belay.engine.cli.acts import drafts

    rules = [frequency_rule(text) for text in often], [duration_rule(text) for text in lasting]
    named = pairs(levels, "--level")
    act(options, lambda files: drafts.policy(files, name, named, pools, mode or "", *rules))


@click.command(name="edit", short_help="Change a fault policy, as a commit.")
@click.argument("name")
@_rules
@click.option("--drop", "dropped", multiple=True, metavar="CODE", help="Give a code the level of the table again.")
@act_options
@fails_clearly
def edit(
    name: str, levels: tuple[str, ...], mode: str | None, often: tuple[str, ...], lasting: tuple[str, ...],
    dropped: tuple[str, ...], **options: Any,
) -> None:  # fmt: skip
    """Change a FaultPolicy: levels, mode, one rule more. What the document says beside that stays, comments too.

    Example: belay policy edit training --level 80C98001=SeparateNPU --mode shadow
    """
    from belay.engine.cli.acts.fault_policies import change_policy

    named = pairs(levels, "--level")
    frequency, duration = [frequency_rule(text) for text in often], [duration_rule(text) for text in lasting]
    act(
        options,
        lambda files: change_policy(
            files, name, levels=named, dropped=dropped, mode=mode or "", frequency=frequency, duration=duration
        ),
    )


def frequency_rule(text: str) -> dict[str, Any]:
    """``80C98001:3/1h=ManuallySeparateNPU``: three times within an hour. Raises InputError."""
    found = _FREQUENCY.fullmatch(text)
    if found is None:
        raise _unreadable("--frequency", text, _OFTEN)
    codes, times, window, level, release = found.groups()
    rule: dict[str, Any] = {"codes": codes.split(","), "times": int(times), "window": window, "level": level}
    return rule | ({"releaseAfter": release} if release else {})


def duration_rule(text: str) -> dict[str, Any]:
    """``81078603:30s/60s=PreSeparateNPU``: longer than half a minute, until one minute without. Raises InputError."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise _unreadable("--duration", text, _LONG)
    codes, timeout, recover, level = found.groups()
    return {"codes": codes.split(","), "timeout": timeout, "recover": recover or timeout, "level": level}


def _unreadable(option: str, text: str, example: str) -> Exception:
    from belay.engine.errors import InputError

    return InputError("this is no rule", where=f"{option} {text[:80]}", hint=f"Write it like {example}")
