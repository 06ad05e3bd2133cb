"""`belay explain CODE`: what a code means, what usually leads to it, what to do, and where that is documented."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

#: Kinds that are explained by what the engine publishes.
PUBLISHED_KINDS: Final = ("queue", "pool", "policy", "revision")
KINDS: Final = ("pod", "job", "chip", "node", "link", "order", *PUBLISHED_KINDS)
#: As `belay get` names them.
_PLURALS: Final = {"policies" if kind == "policy" else f"{kind}s": kind for kind in KINDS}
#: A fault code of a switch: alarm, fault, who is at the other end, port.
SWITCH_CODE: Final = re.compile(r"\[\s*0x([0-9a-f]{1,8})\s*,[^\[\],]{1,20},([^\[\],]{1,20}),[^\[\],]{1,20}\]", re.I)
_FAULT_CODE: Final = re.compile(r"(?:0x)?(?=[a-f]*\d)[0-9a-f]{5,10}", re.I)


class KindOrCode(click.ParamType[str]):
    """A kind of object whose name follows, or a code alone."""

    name = "kind"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from belay.engine.model.codes import canonical, near

        text = str(value)
        if text.lower() in KINDS:
            return text.lower()
        if text.lower() in _PLURALS:
            return _PLURALS[text.lower()]
        if code := canonical(text) or canonical_fault(text):
            return code
        meant = near(text)
        hint = f"did you mean {' or '.join(meant)}?" if meant else "belay explain InvalidInput shows what a code is."
        self.fail(f"{text!r:.80} is neither of {', '.join(KINDS)} nor a code; {hint}", param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Kinds, or codes where a capital begins the word: there are too many to offer them beside kinds."""
        from belay.engine.model.codes import codes

        known = codes() if incomplete[:1].isupper() else KINDS
        return [CompletionItem(one) for one in known if one.lower().startswith(incomplete.lower())]


def canonical_fault(text: str) -> str:
    """The code of a fault as it is shown: upper case without ``0x``, a switch's in brackets. Empty: it is none."""
    from belay.engine.model.faults import HEARTBEAT

    if text.casefold() == HEARTBEAT.casefold():
        return HEARTBEAT
    if SWITCH_CODE.fullmatch(text):
        return re.sub(r"\s", "", text)
    return text.upper().removeprefix("0X") if _FAULT_CODE.fullmatch(text) else ""


def code_rows(code: str) -> list[dict[str, str]]:
    """What is known of a code, one row for each place where it is met."""
    from belay.engine.model.codes import PAGE, explained

    return [
        {
            "code": code, "seen": group.seen, "meaning": row.meaning, "causes": row.causes, "wayOut": row.way_out,
            "page": f"docs/{row.page}" if row.page else "", "reference": f"docs/{PAGE}#{code.lower()}",
        }
        for group, row in explained(code)
    ]  # fmt: skip


def code_lines(rows: Sequence[dict[str, str]]) -> Iterator[str]:
    """The same as text."""
    for row in rows:
        yield f"{row['code']}, {row['seen']}"
        yield f"  means       {row['meaning']}"
        for name, key in (("causes", "causes"), ("what to do", "wayOut"), ("see", "page")):
            if row[key]:
                yield f"  {name:<11} {row[key]}"
    if rows:
        yield f"  all codes   {rows[0]['reference']}"
