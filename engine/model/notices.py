"""What notifications report, and what takes them."""

from __future__ import annotations

from enum import StrEnum


class ReceiverType(StrEnum):
    """What a receiver understands."""

    SLACK = "Slack"
    EMAIL = "Email"
    DINGTALK = "DingTalk"
    FEISHU = "Feishu"
    WECOM = "WeCom"
    ALERTMANAGER = "Alertmanager"


class NoticeEvent(StrEnum):
    """What can be reported. All but Eviction and IsolationEnd last, and their end is reported too."""

    FAULT = "Fault"
    RECOVERY = "Recovery"
    EVICTION = "Eviction"
    WAIT = "Wait"
    REFUSED_REVISION = "RefusedRevision"
    HELD_DELETION = "HeldDeletion"
    FINDING = "Finding"
    ISOLATION = "Isolation"
    ISOLATION_END = "IsolationEnd"
