"""Durations in kubectl's short format."""

from __future__ import annotations

from typing import Any

from belay.engine.sandbox.api.metadata import parse_time


def age(text: Any, now: float) -> str:
    """Return the time since a time, as kubectl writes durations; `<unknown>` without a time."""
    if not text:
        return "<unknown>"
    try:
        return human_duration(now - parse_time(str(text)))
    except ValueError:
        return "<invalid>"


def human_duration(seconds: float) -> str:
    """Return seconds as k8s.io/apimachinery/pkg/util/duration.HumanDuration does: two significant units."""
    whole = int(seconds)
    if whole < -1:
        return "<invalid>"
    if whole < 0:
        return "0s"
    if whole < 120:
        return f"{whole}s"
    minutes = whole // 60
    if minutes < 10:
        return f"{minutes}m{whole % 60}s" if whole % 60 else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    hours = minutes // 60
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    days = hours // 24
    if days < 8:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    if days < 730:
        return f"{days}d"
    years = days // 365
    return f"{years}y{days % 365}d" if years < 8 and days % 365 else f"{years}y"
