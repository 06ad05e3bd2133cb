"""What a person sees who is not signed in: a page in a browser, JSON elsewhere."""

from __future__ import annotations

from html import escape
from typing import Final
from urllib.parse import quote

import msgspec
from aiohttp import web

_PAGE: Final = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Not signed in · Belay</title>
<style>
:root {{ color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }}
main {{ max-width: 36em; margin: 10vh auto; padding: 0 1em; overflow-wrap: anywhere; }}
</style></head>
<body><main>
<h1>Not signed in</h1>
<p role="alert">{text}.</p>
<p>{hint}</p>
<p><a href="{again}">Sign in again</a></p>
</main></body></html>
"""


def refusal(request: web.Request, status: int, text: str, hint: str = "", *, site: str, to: str = "") -> web.Response:
    """Why a person is not signed in, and how to try again; ``to`` is the place to which the person wanted."""
    headers = {"Cache-Control": "no-store"}
    if "text/html" not in request.headers.get("Accept", ""):
        body = msgspec.json.encode({"error": text, "hint": hint})
        return web.Response(status=status, body=body, headers=headers, content_type="application/json")

    again = f"{site}/login" + (f"?to={quote(to)}" if to else "")
    sentence = text[:1].upper() + text[1:]
    page = _PAGE.format(text=escape(sentence), hint=escape(hint), again=escape(again))
    return web.Response(status=status, text=page, headers=headers, content_type="text/html")
