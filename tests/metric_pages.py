"""`docs/metrics.md`, written from the tables of the engine's and the exporter's metrics: ``make reference``."""

from __future__ import annotations

from pathlib import Path

from belay.agents.exporter.table import LABELS
from belay.agents.exporter.table import METRICS as EXPORTED
from belay.engine.metrics import METRICS

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"
_HEAD = """# Metrics

Written from the tables in the code (`make reference`); a test fails when they differ.

## The engine: `belay server`, `GET /metrics`

Counters and histograms live in Redis and survive workers; a flushed Redis starts them at zero, as a restart does.
Counters end in `_total`; histograms have `_bucket`, `_sum` and `_count`.

| metric | type | labels | meaning |
|---|---|---|---|
"""
_QUERIES = {
    "recoveries, 99th percentile by cause": "histogram_quantile(0.99, sum by (cause, le) "
    '(rate(belay_recovery_seconds_bucket{stage="resumed"}[1d])))',
    "goodput, the share of held chip-seconds in which training progressed": "1 - "
    "sum(rate(belay_lost_chip_seconds_total[1d])) / sum(rate(belay_held_chip_seconds_total[1d]))",
    "wait for chips, median by resource": "histogram_quantile(0.5, sum by (resource, le) "
    "(rate(belay_queue_wait_seconds_bucket[1h])))",
    "passes, 99th percentile": "histogram_quantile(0.99, sum by (le) (rate(belay_pass_duration_seconds_bucket[10m])))",
    "budgets that are used up": "belay_budget_left == 0",
}
_NODES = """
## Nodes: `belay exporter`, or the agent with `--exporter`

MindCluster's names, labels and units.

| metric | group | labels | unit | meaning |
|---|---|---|---|---|
"""


def text() -> str:
    """The page."""
    engine = [
        f"| `{one.name}{'_total' if one.type == 'counter' else ''}` | {one.type} | {_labels(one.labels)} | {one.text} |"
        for one in METRICS
    ]
    nodes = [
        f"| `{one.name}` | {one.group.replace('|', ', ')} | {_node_labels(one.labels)} | {one.unit} | {one.meaning} |"
        for one in EXPORTED
    ]
    useful = ["", "Useful expressions:", "", "| what | expression |", "|---|---|"]
    useful += [f"| {what} | `{query}` |" for what, query in _QUERIES.items()]
    return _HEAD + "\n".join([*engine, *useful]) + "\n" + _NODES + "\n".join(nodes) + "\n"


def _node_labels(kinds: str) -> str:
    return "; or ".join(_labels(LABELS[kind]) for kind in kinds.split("|"))


def _labels(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
