"""Each shipped rule finds a line as its software writes it, ordinary lines mean nothing, codes speak for themselves."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from belay.agents.node.diagnosis.matching import Findings, LogText
from belay.agents.node.diagnosis.rules import shipped_rules
from belay.agents.node.diagnosis.vocabulary import Vocabulary
from belay.engine.load import load
from belay.engine.model import log_codes
from belay.engine.model.chip_events import event_id
from belay.engine.model.log_evidence import EventRole, LogEvent, LogSource
from belay.engine.model.times import parse_rfc3339

HERE = Path(__file__).parent / "samples" / "diagnosis"
#: Code, source and line for each rule; source and line where nothing is wrong.
LINES = [line.split("\t") for line in (HERE / "lines.tsv").read_text(encoding="utf-8").splitlines()]
ORDINARY = [line.split("\t") for line in (HERE / "ordinary.tsv").read_text(encoding="utf-8").splitlines()]
RULES = shipped_rules()
WRITTEN = int(parse_rfc3339("2026-11-23T09:00:00Z") * 1000)


def events(source: str, line: str) -> dict[str, LogEvent]:
    findings = Findings(RULES, 0)
    text = f"an ordinary line before\n{line}\nand one after\n"
    findings.read(LogText(LogSource(source), "x.log", text.encode(), WRITTEN))
    return {event.code: event for event in findings.events()}


def test_every_shipped_rule_has_a_line_and_both_languages() -> None:
    rules = load({}).desired.diagnosis_rules
    assert sorted(rules) == sorted(code for code, _, _ in LINES)
    assert [code for code, rule in rules.items() if not (rule.title.zh and rule.advice.zh)] == []
    assert {rule.code for rule in RULES} == set(rules)


@pytest.mark.parametrize(("code", "source", "line"), LINES, ids=[code for code, _, _ in LINES])
def test_a_rule_finds_its_line(code: str, source: str, line: str) -> None:
    found = events(source, line)
    assert code in found
    assert found[code].example.startswith(line[:40])
    rule = load({}).desired.diagnosis_rules[code]
    others = [one for one in found.values() if one.code != code and one.role is EventRole.CAUSE]
    rules = load({}).desired.diagnosis_rules
    if found[code].role is EventRole.CAUSE:
        assert all(rules[one.code].priority < rule.priority for one in others), "a graver cause hides this one"
    else:
        assert others == [], "a line that follows from something else counts as a cause"


@pytest.mark.parametrize(("source", "line"), ORDINARY)
def test_an_ordinary_line_means_nothing(source: str, line: str) -> None:
    assert events(source, line) == {}


@pytest.mark.parametrize(
    ("source", "line", "code", "role", "says"),
    [
        ("device", "[ERROR] Event id=0x80c98008, AIC", "Chip.80C98008", "cause", "AI Core: multi-bit ECC error"),
        ("device", "event_id:  [0x80c98008]", "Chip.80C98008", "cause", "AI Core: multi-bit ECC error"),
        ("host", "ascend: event_id=0x80e0020b", "Chip.80E0020B", "cause", "HBM memory: fatally hot"),
        ("device", "Event: (Node Type=0x83; Node Id=0; Sensor Type=0xc3; Sensor Num=1; event_state=3)",
         "Chip.81078603", "symptom", "network port: the link went down"),
        ("component", "fault event_id=0x8C2FA009", "Chip.8C2FA009", "symptom", "the chip started"),
        ("component", "[ERROR] node error, code: 2C000031", "Bmc.2C000031", "cause", "the server had a fatal error"),
        ("bmc", "2026-11-23T16:00:00.1+08:00 [0x0000001D] CPU 1 Asserted", "Bmc.0000001D", "cause",
         "CPU: an error that cannot be corrected"),
        ("component", "[WARN] switch fault [0x00f103b0,155907,npu,na] Assertion", "Switch.00f103b0-npu", "cause",
         "a switch chip does not forward any more towards a chip"),
        ("switch", "alarmID=0x00f10509 raised", "Switch.00f10509", "symptom", "a port of a switch chip lost lanes"),
        ("inference", "[ERROR] MIE03E200306: x", "MIE03E200306", "cause",
         "MindIE Coordinator: a limit of resources is reached"),
        ("inference", "[ERROR] MIE05E01001b: x", "MIE05E01001B", "cause",
         "MindIE LLM: prefill and decode instances could not connect"),
        ("training", "EL9998: Inner", "Cann.EL9998", "symptom", "CANN (driver) reports error EL9998"),
    ],
)  # fmt: skip
def test_a_code_speaks_for_itself(source: str, line: str, code: str, role: str, says: str) -> None:
    found = events(source, line)
    assert (sorted(found), found[code].role.value) == ([code], role)
    meaning = log_codes.meaning_of(code)
    assert meaning is not None
    assert meaning.en == says
    assert meaning.zh
    assert all(log_codes.ADVICE[meaning.advice])


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("training", "Event id=0x80c98008"),  # scripts may print anything
        ("device", "Event id=0x12345678"),
        ("bmc", "[0x2C000031] Deasserted"),
        ("component", "[0x00f103b0,155907,na,na] Recover"),
        ("inference", "MIE99E000000"),
        ("host", "EL9998: Inner"),
    ],
)
def test_a_code_elsewhere_or_unknown_is_no_event(source: str, line: str) -> None:
    assert events(source, line) == {}


def test_a_code_of_a_rule_is_said_once() -> None:
    assert set(events("plog", "EI0002: The wait execution of the Notify register times out.")) == {"NotifyWaitTimeout"}


def test_parts_of_an_event_make_its_id() -> None:
    assert (event_id(0x64, 0xC0, 8), event_id(0x83, 0xC3, 3), event_id(0x610, 0x27, 0)) == (
        "80C98008", "81078603", "8C204E00",
    )  # fmt: skip


def test_codes_of_faults_in_the_table_have_a_meaning() -> None:
    """Three of ten codes of the table's chip events are left out on purpose: no public text says what they mean."""
    table = load({}).desired.fault_tables["chip"].document
    events_of_chips = [code for code in table.code_levels if len(code) == 8 and code[0] == "8" and code[:3] != "8F1"]
    known = [code for code in events_of_chips if log_codes.meaning_of(f"Chip.{code}") is not None]
    assert (len(events_of_chips), len(known)) == (294, 212)
    assert all(log_codes.meaning_of(f"Bmc.{code}") for code in ("0000001D", "2C000031", "6200000C"))


def test_the_vocabulary_never_hides_a_match() -> None:
    chance = random.Random(7)
    rules = [tuple(text.lower().encode() for text in texts) for rule in RULES for texts in rule.match]
    for _ in range(300):
        texts = chance.choice(rules)
        parts = [b"x" * chance.randrange(3) + text + b"y" * chance.randrange(3) for text in texts]
        line = b" ".join([b"before", *parts, b"after"])
        assert all(text in line for text in texts)
        assert Vocabulary(line).may_hold(texts)
    assert not Vocabulary(b"nothing of the kind").may_hold((b"kernel panic",))


def test_a_log_of_many_kinds_of_words_is_searched_in_time_that_follows_its_length() -> None:
    """Rules whose words are not there cost no search of the text: counted, not timed."""
    searched: list[bytes] = []

    class Counted(bytes):
        def find(self, *args: object) -> int:
            searched.append(args[0])  # type: ignore[arg-type]
            return super().find(*args)  # type: ignore[arg-type]

        def lower(self) -> Counted:
            return Counted(super().lower())

    findings = Findings(RULES, 0)
    findings.read(LogText(LogSource.PLOG, "x", Counted(b"an ordinary line of a log\n" * 1000), WRITTEN))
    assert len(searched) < 10
