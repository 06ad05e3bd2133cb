"""The recoveries of a job: estimates, alternatives, actual cost, and the training time left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from belay.engine.model.costs import RecoveryLevel, cost, so_far
from belay.engine.model.history import JobMemory, Recovery
from belay.engine.model.recovery import summary
from belay.engine.model.recovery.progress import RecoveryProgress
from belay.engine.model.times import rfc3339

_MAX_RANKS: Final = 64


def recovery_body(memory: JobMemory | None) -> dict[str, Any]:
    """``recoveries``, newest last, and ``lost``, the chip-seconds without progress per fault code; empty without any.

    ``by`` is ``cost`` where the level was chosen from the job's own times, ``ladder`` where it followed the order of
    levels. ``alternatives`` are the levels not chosen; ``lost`` holds the chips whose time was lost and
    the work that is done again; ``steps`` are the conversation with the job's processes, if there was one.
    """
    if memory is None or not memory.recoveries:
        return {}
    lost = {code: {"times": times, "chipSeconds": seconds} for code, (times, seconds) in sorted(memory.spent.items())}
    rows = [_row(one) | {"stages": stages(one)} for one in memory.recoveries]
    return {"recoveries": rows, **({"lost": lost} if lost else {})}


def stages(one: Recovery) -> list[dict[str, str]]:
    """What a recovery went through, in order of time; stages of which nothing is known are left out.

    ``seen`` (the first of its codes), ``graded`` and ``isolated`` (one pass does both), ``signalled`` (the job's
    processes were asked), ``evicted``, ``bound`` (kubelet accepted the last new pod), ``running`` (all pods run),
    ``repaired`` (the processes answered last), ``resumed`` (training at full size).
    """
    in_place = bool(one.steps) and not one.placed
    times = [
        ("seen", one.seen),
        ("graded", one.isolated),
        ("isolated", one.isolated),
        ("signalled", one.steps[0][0] if one.steps else 0),
        ("evicted", 0 if in_place else one.at),
        ("bound", one.placed),
        ("running", one.running),
        ("repaired", one.steps[-1][0] if in_place and one.back else 0),
        ("resumed", one.back),
    ]
    return [{"stage": name, "time": rfc3339(at / 1000)} for name, at in sorted(times, key=lambda row: row[1]) if at]


def effective(memory: JobMemory | None, created: float, now: float, chips: int) -> float | None:
    """The share of a job's chip-seconds since its creation in which training progressed; None without a recovery.

    A recovery under way counts with the time that it has taken so far.
    """
    if memory is None or not memory.recoveries or chips <= 0 or now <= created:
        return None
    spent = sum(seconds for _, seconds in memory.spent.values())
    last = memory.recoveries[-1]
    if not last.back:
        spent += so_far(last, round(now * 1000))
    return round(max(0.0, 1 - spent / (chips * (now - created))), 4)


def recovery_sentences(memory: JobMemory | None) -> list[str]:
    """The recoveries as sentences, each with the steps of its conversation."""
    return (
        [line for one in memory.recoveries for line in (_sentence(one), *_step_lines(one))]
        if memory is not None
        else []
    )


def _row(one: Recovery) -> dict[str, Any]:
    rows = [{"level": level, "seconds": seconds, "chipSeconds": price} for level, seconds, price in one.estimates]
    return {
        "time": rfc3339(one.at / 1000),
        "reason": one.reason,
        "codes": list(one.codes),
        "level": one.level,
        "by": "cost" if rows else "ladder",
        "chips": one.chips,
        # training goes on without the hit part, so only that is lost
        **({"hitChips": one.hit} if one.level == RecoveryLevel.SHRINK else {}),
        "estimate": {key: rows[0][key] for key in ("seconds", "chipSeconds")} if rows else None,
        "alternatives": rows[1:],
        "actual": {"seconds": (one.back - one.at) // 1000, "chipSeconds": cost(one)} if one.back else None,
        "lost": (
            {"chipSeconds": cost(one), "chips": one.chips, "hitChips": one.hit, "redoneSeconds": one.redone}
            if one.back
            else None
        ),
        **({"steps": _steps(one.steps)} if one.steps else {}),
    }


def conversation_body(standing: RecoveryProgress | None) -> dict[str, Any]:
    """``conversation``: the current one with the job's processes; empty without one."""
    if standing is None:
        return {}
    story = tuple((note.at, note.event, note.state, note.code) for note in summary.newest_conversation(standing.story))
    chosen = "recover-in-place" if standing.in_place and standing.chosen == "recover" else standing.chosen
    return {
        "conversation": {
            "state": standing.state.value,
            "begun": rfc3339(standing.begun / 1000),
            "since": rfc3339(standing.since / 1000),
            "strategy": chosen or None,
            "faultRanks": [rank.rank for rank in standing.ranks[:_MAX_RANKS]],
            "steps": _steps(story),
        }
    }


def _steps(steps: Sequence[tuple[int, str, str, int]]) -> list[dict[str, Any]]:
    """The steps with the seconds since the first."""
    return [
        {
            "time": rfc3339(at / 1000),
            "after": round((at - steps[0][0]) / 1000, 3),
            "event": event,
            "state": state,
            "code": code,
        }
        for at, event, state, code in steps
    ]


def _sentence(one: Recovery) -> str:
    why = f"{one.reason} {', '.join(one.codes)}".strip()
    how = "chosen by cost" if one.estimates else "by the ladder"
    guess = f", estimated {_time(one.estimates[0][1])}, {_hours(one.estimates[0][2])}" if one.estimates else ""
    others = ", ".join(f"{level} {_hours(price)}" for level, _, price in one.estimates[1:])
    instead = f" instead of {others}" if others else ""
    end = f"took {_time((one.back - one.at) // 1000)}, {_hours(cost(one))}" if one.back else "is under way"
    again = f", {_time(one.redone)} of work done again" if one.back and one.redone else ""
    return f"{rfc3339(one.at / 1000)} {why}: {one.level} recovery, {how}{guess}{instead}; {end}{again}"


def _step_lines(one: Recovery) -> list[str]:
    """The steps of its conversation, each with the seconds since the first."""
    begun = one.steps[0][0] if one.steps else 0
    # recoveries that training reports take milliseconds and have no states between the stages
    return [
        f"  +{(at - begun) / 1000:.1f} s {event} → {state.removesuffix('State')}{f' (code {code})' if code else ''}"
        if state
        else f"  +{(at - begun) / 1000:.3f} s {event}"
        for at, event, state, code in one.steps
    ]


def _time(seconds: int) -> str:
    minutes, rest = divmod(seconds, 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _hours(chip_seconds: int) -> str:
    return f"{chip_seconds / 3600:.2f} chip-hours"
