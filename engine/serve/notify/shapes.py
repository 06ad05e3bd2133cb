"""What each receiver takes by HTTP: bodies, signatures, sizes, and what its answer means. Pure.

Sources: Slack developer documentation, "Sending messages using incoming webhooks" and "Formatting message text";
DingTalk open platform, "Custom robot access" (markdown messages, signature, 20 messages a minute or ten minutes of
silence; the 20,000 bytes of a message are not confirmed by a page at hand); Feishu open platform, "Custom bot usage
guide" (post messages, signature, 20 KB, 100 messages a minute, code 11232 when there are more); WeCom developer center,
"Group robot configuration" (markdown, 4096 bytes); Prometheus documentation, "Alerts API".
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Mapping
from typing import Any, Final, assert_never
from urllib.parse import urlencode, urlsplit, urlunsplit

import msgspec

from belay.engine.errors import bounded
from belay.engine.model.notices import ReceiverType
from belay.engine.model.times import rfc3339
from belay.engine.serve.notify.messages import Message, MessageItem

MOST_BYTES: Final[Mapping[ReceiverType, int]] = {
    ReceiverType.SLACK: 3_900,  # advised; beyond 40,000 characters Slack cuts
    ReceiverType.DINGTALK: 19_000,
    ReceiverType.FEISHU: 19_000,
    ReceiverType.WECOM: 4_000,
}
"""Largest body, below what the receivers take; e-mail and Alertmanager take all that one message can hold."""
_LONGEST_ITEM: Final = 700


class HttpRequest(msgspec.Struct, frozen=True):
    """One POST of JSON."""

    url: str
    body: bytes
    headers: Mapping[str, str] = {}


def request(kind: ReceiverType, url: str, message: Message, *, key: str = "", token: str = "") -> HttpRequest:
    """What is sent to a receiver other than e-mail; ``key`` signs it, ``token`` proves who sends it."""
    match kind:
        case ReceiverType.SLACK:
            return HttpRequest(url, _fitted(message, kind, _slack))
        case ReceiverType.DINGTALK:
            return HttpRequest(_signed_url(url, key, message.time), _fitted(message, kind, _dingtalk))
        case ReceiverType.FEISHU:
            return HttpRequest(url, _fitted(message, kind, lambda m, n: _feishu(m, n, key)))
        case ReceiverType.WECOM:
            return HttpRequest(url, _fitted(message, kind, _wecom))
        case ReceiverType.ALERTMANAGER:
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            return HttpRequest(_alerts_url(url), _json([_alert(message, one) for one in message.items]), headers)
        case ReceiverType.EMAIL:
            raise ValueError("an e-mail is no HTTP request")
        case _:
            assert_never(kind)


def refusal(kind: ReceiverType, status: int, body: bytes) -> str:
    """Why a receiver did not take a message; empty when it did."""
    if not 200 <= status < 300:
        return f"it answers {status}: {_said(body)}"
    if kind not in (ReceiverType.DINGTALK, ReceiverType.FEISHU, ReceiverType.WECOM):
        return ""
    try:
        answer = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return "its answer is not JSON: is the address the one of a robot?"
    found = answer if isinstance(answer, dict) else {}
    code = next((found[name] for name in ("errcode", "code", "StatusCode") if name in found), None)
    return "" if code == 0 else f"it answers code {bounded(str(code), 40)}: {_said(body)}"


def _said(body: bytes) -> str:
    text = body[:600].decode("utf-8", "replace")
    return bounded(" ".join("".join(char if char.isprintable() else " " for char in text).split()), 200)


def _fitted(message: Message, kind: ReceiverType, shape: Callable[[Message, int], Any]) -> bytes:
    """The body with as many notices as fit."""
    for count in range(len(message.items), 0, -1):
        body = _json(shape(message, count))
        if len(body) <= MOST_BYTES[kind]:
            return body
    first = message.items[0]
    short = msgspec.structs.replace(first, text=bounded(first.text, 200), cause=bounded(first.cause, 100))
    return _json(shape(msgspec.structs.replace(message, items=(short, *message.items[1:])), 1))


def rest(message: Message, count: int) -> str:
    """What a message says of notices that it does not list; empty when it lists all."""
    left = len(message.items) - count + message.more
    return f"and {left} more: belay history, or the console" if left else ""


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value)


# Slack and what takes the same


def _slack(message: Message, count: int) -> dict[str, Any]:
    parts = [f"*{_escaped(bounded(message.title, 150))}*"]
    for item in message.items[:count]:
        lines = [f"• {_escaped(bounded(item.text, _LONGEST_ITEM))}", *(f"   {_escaped(line)}" for line in _more(item))]
        if item.link:
            lines.append(f"   <{_escaped(item.link)}|console>")
        parts.append("\n".join(lines))
    parts += [_escaped(text) for text in (rest(message, count),) if text]
    return {"text": "\n".join(parts)}


def _more(item: MessageItem) -> list[str]:
    found = [f"cause: {bounded(item.cause, 300)}"] if item.cause else []
    return found + ([f"way out: {bounded(item.way_out, 300)}"] if item.way_out and not item.ended else [])


def _escaped(text: str) -> str:
    """The three characters that mean something to Slack; so no text from a cluster makes a link or calls people."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


# DingTalk


def _signed_url(url: str, key: str, now: int) -> str:
    """The address with time and signature, where the robot checks one."""
    if not key:
        return url
    text = f"{now}\n{key}"
    sign = base64.b64encode(hmac.new(key.encode(), text.encode(), hashlib.sha256).digest()).decode()
    parts = urlsplit(url)
    query = "&".join(part for part in (parts.query, urlencode({"timestamp": now, "sign": sign})) if part)
    return urlunsplit(parts._replace(query=query))


def _dingtalk(message: Message, count: int) -> dict[str, Any]:
    text = f"#### {_plain(bounded(message.title, 150))}\n\n{_markdown(message, count)}"
    return {"msgtype": "markdown", "markdown": {"title": _plain(bounded(message.title, 100)), "text": text}}


def _markdown(message: Message, count: int) -> str:
    parts = []
    for item in message.items[:count]:
        lines = [f"- {_plain(bounded(item.text, _LONGEST_ITEM))}", *(f"  {_plain(line)}" for line in _more(item))]
        if item.link:
            lines.append(f"  [console]({item.link})")
        parts.append("  \n".join(lines))
    parts += [_plain(text) for text in (rest(message, count),) if text]
    return "\n".join(parts)


def _plain(text: str) -> str:
    """The text with the characters that begin markup escaped."""
    return "".join(f"\\{char}" if char in "\\`*[]<>#|" else char for char in text)


# Feishu


def _feishu(message: Message, count: int, key: str) -> dict[str, Any]:
    rows: list[list[dict[str, str]]] = []
    for item in message.items[:count]:
        rows.append([{"tag": "text", "text": f"• {bounded(item.text, _LONGEST_ITEM)}"}])
        rows += [[{"tag": "text", "text": f"   {line}"}] for line in _more(item)]
        if item.link:
            rows.append([{"tag": "text", "text": "   "}, {"tag": "a", "text": "console", "href": item.link}])
    rows += [[{"tag": "text", "text": text}] for text in (rest(message, count),) if text]
    post = {"title": bounded(message.title, 150), "content": rows}
    seconds = message.time // 1000
    proof = {"timestamp": str(seconds), "sign": _feishu_sign(key, seconds)} if key else {}
    return proof | {"msg_type": "post", "content": {"post": {"en_us": post}}}


def _feishu_sign(key: str, seconds: int) -> str:
    """Feishu takes time and key together as the key of the signature, of an empty text."""
    return base64.b64encode(hmac.new(f"{seconds}\n{key}".encode(), b"", hashlib.sha256).digest()).decode()


# WeCom


def _wecom(message: Message, count: int) -> dict[str, Any]:
    title = f"**{_plain(bounded(message.title, 100))}**"
    return {"msgtype": "markdown", "markdown": {"content": f"{title}\n{_markdown(message, count)}"}}


# Alertmanager


def _alerts_url(url: str) -> str:
    return url if url.endswith("/api/v2/alerts") else f"{url.rstrip('/')}/api/v2/alerts"


def _alert(message: Message, item: MessageItem) -> dict[str, Any]:
    labels = {"alertname": f"Belay{item.event}", "belay_notice": item.key, "belay_rule": message.rule}
    if item.level:
        labels["level"] = item.level
    texts = {
        "summary": item.text, "cause": item.cause, "way_out": item.way_out, "console": item.link,
    }  # fmt: skip
    ends = item.ended or message.until
    return {
        "labels": labels,
        "annotations": {name: bounded(text, 1000) for name, text in texts.items() if text},
        "startsAt": rfc3339(min(item.begun, message.time) / 1000),
        # what happens once stays for its repetition's time, or it would be over before it is seen
        **({"endsAt": rfc3339(ends / 1000)} if ends and (item.over or not item.ended) else {}),
        **({"generatorURL": item.link} if item.link else {}),
    }  # fmt: skip
