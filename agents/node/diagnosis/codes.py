"""Codes in lines of logs that say by themselves what happened (`belay.engine.model.log_codes`), by the source of the
log.

Forms of the lines: the driver's device log (``Node Type=0x64; … Sensor Type=0xc0; … event_state=8)``, ``Event
id=0x80c98008``), events in logs of NodeD and the BMC (``0x2C000031 … Asserted``), the device plugin's switch faults
(``[0x00f103b0,155907,na,na] … Assertion``), alarms of LingQu switches (``alarmID=0x00f103b0``), MindIE's codes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from belay.engine.model.chip_events import event_id
from belay.engine.model.log_codes import BMC, CANN, CHIP, SWITCH, meaning_of
from belay.engine.model.log_evidence import EventRole, LogSource

#: Codes of one log that are looked at; more are not counted.
_MOST: Final = 5000
_EVENT: Final = re.compile(rb"event[_ ]id {0,3}[:=]\s{0,4}\[?(?:0x)?([0-9a-f]{8})\b")
_PARTS: Final = re.compile(
    rb"node type=0x([0-9a-f]{1,3});[^\n]{0,120}?sensor type=0x([0-9a-f]{1,2});[^\n]{0,120}?event_state=(\d{1,3})\)"
)
_ASSERTED: Final = re.compile(rb"0x([0-9a-f]{8})\b[^\n]{0,400}?\basserted\b")
_NODED: Final = re.compile(rb"error[^\n]{0,60}?code[^\n]{0,20}?\b(?:0x)?([0-9a-f]{8})\b")
_TUPLE: Final = re.compile(
    rb"\[0x([0-9a-f]{8}),[0-9a-z]{0,8},([a-z0-9]{0,4}),[a-z0-9]{0,4}\][^\n]{0,200}?\bassertion\b"
)
_ALARM: Final = re.compile(rb"alarmid=0x([0-9a-f]{8})\b")
_CANN: Final = re.compile(rb"\b(e[1-9a-z]\d{4}):")
_MINDIE: Final = re.compile(rb"\bmie([0-9a-f]{2}e[0-9a-f]{6})\b")


def codes_in(source: LogSource, lowered: bytes) -> Iterator[tuple[str, EventRole, int]]:
    """Codes with their role and where they are, from a lower-case text. Unknown codes are left out."""
    for name, at in _found(source, lowered):
        meaning = meaning_of(name)
        if meaning is not None:
            yield name, EventRole.CAUSE if meaning.cause else EventRole.SYMPTOM, at


def _found(source: LogSource, lowered: bytes) -> Iterator[tuple[str, int]]:
    for pattern, anchor, name in _FORMS.get(source, ()):
        if anchor in lowered:
            for count, match in enumerate(pattern.finditer(lowered)):
                if count >= _MOST:
                    break
                yield name(match), match.start()


def _event_name(match: re.Match[bytes]) -> str:
    return CHIP + match[1].decode().upper()


def _parts_name(match: re.Match[bytes]) -> str:
    return CHIP + event_id(int(match[1], 16), int(match[2], 16), int(match[3]))


def _bmc_name(match: re.Match[bytes]) -> str:
    return BMC + match[1].decode().upper()


def _tuple_name(match: re.Match[bytes]) -> str:
    peer = match[2].decode()
    return SWITCH + match[1].decode() + (f"-{peer}" if peer in ("cpu", "npu", "l2") else "")


def _alarm_name(match: re.Match[bytes]) -> str:
    return SWITCH + match[1].decode()


def _cann_name(match: re.Match[bytes]) -> str:
    return CANN + match[1].decode().upper()


def _mindie_name(match: re.Match[bytes]) -> str:
    return "MIE" + match[1].decode().upper()


_Form = tuple[re.Pattern[bytes], bytes, Callable[[re.Match[bytes]], str]]
#: Patterns by source, each with bytes that a log must hold for it to be worth a look.
_CHIP_FORMS: Final = ((_EVENT, b"event", _event_name), (_PARTS, b"event_state=", _parts_name))
_CANN_FORM: Final = (_CANN, b"e", _cann_name)
_MINDIE_FORMS: Final = ((_MINDIE, b"mie0", _mindie_name),)
_FORMS: Final[Mapping[LogSource, tuple[_Form, ...]]] = {
    LogSource.DEVICE: _CHIP_FORMS,
    LogSource.HOST: _CHIP_FORMS,
    LogSource.COMPONENT: (*_CHIP_FORMS, (_NODED, b"code", _bmc_name), (_TUPLE, b"assertion", _tuple_name)),
    LogSource.BMC: ((_ASSERTED, b"asserted", _bmc_name),),
    LogSource.SWITCH: ((_ALARM, b"alarmid=", _alarm_name),),
    LogSource.INFERENCE: _MINDIE_FORMS,
    LogSource.TRAINING: (*_MINDIE_FORMS, _CANN_FORM),
    LogSource.PLOG: (_CANN_FORM,),
}
