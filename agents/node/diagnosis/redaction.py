"""Takes secrets and control characters out of text from logs before it leaves a file of the pod's.

Everything here is linear in the length of a line, and lines come cut.
"""

from __future__ import annotations

import re
from typing import Final

HIDDEN: Final = "***"
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;?]{0,16}[ -/]{0,4}[@-~]|\x1b[@-_]")
_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
_NAMED: Final = re.compile(
    r"(?i)([\w.-]{0,40}(?:passw(?:or)?d|passwd|pwd|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credential"
    r"|authorization|passphrase|cookie|signature)[\w.-]{0,40}[\"']?\s{0,4}[:=]\s{0,4}[\"']?(?:(?:bearer|basic)\s+)?)"
    r"(?:(?<=\")[^\"]{1,512}|(?<=')[^']{1,512}|[^\s\"',;&]{1,512})"
)
_OPTION: Final = re.compile(
    r"(?i)(?<!\S)(--?[\w-]{0,40}(?:passw(?:or)?d|passwd|passphrase|secret|token|api-?key)\s{1,4})[^\s-]\S{0,511}"
)
_QUERY: Final = re.compile(r"(?i)([?&]sig=)[^\s&]{1,512}")
_BEARER: Final = re.compile(r"(?i)\b(bearer|basic)\s{1,4}[\w.~+/=-]{8,512}")
_IN_URL: Final = re.compile(r"(://[^\s/:@]{0,128}:)[^\s/@]{1,256}@")
_SHAPES: Final = re.compile(
    r"\beyJ[\w-]{8,512}\.[\w-]{1,1024}(?:\.[\w-]{0,512})?|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bgh[pousr]_\w{20,255}\b"
    r"|\bhf_[A-Za-z0-9]{20,64}\b|\bsk-[\w-]{16,255}|\bglpat-[\w-]{16,64}|\b[A-Za-z0-9+/]{48,1024}={0,2}"
)
_ADDRESSES: Final = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b|\b(?:[0-9a-fA-F]{1,4}:){3,7}[0-9a-fA-F]{1,4}\b")
_PEM: Final = re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----")


def redacted(text: str, *, addresses: bool = False) -> str:
    """The text without terminal codes, control characters and what looks like a secret.

    Args:
        addresses: also hide IP addresses.
    """
    clean = _CONTROLS.sub(" ", _ESCAPES.sub("", text))
    if _PEM.search(clean):
        return HIDDEN
    clean = _NAMED.sub(rf"\g<1>{HIDDEN}", clean)
    clean = _QUERY.sub(rf"\g<1>{HIDDEN}", _OPTION.sub(rf"\g<1>{HIDDEN}", clean))
    clean = _BEARER.sub(rf"\g<1> {HIDDEN}", clean)
    clean = _SHAPES.sub(HIDDEN, _IN_URL.sub(rf"\g<1>{HIDDEN}@", clean))
    return _ADDRESSES.sub("<address>", clean) if addresses else clean
