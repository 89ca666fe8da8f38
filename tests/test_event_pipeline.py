"""The pipeline of events: findings reach the attempt that they are about."""

from __future__ import annotations

from holdfast.diagnosis.engine import Engine
from holdfast.diagnosis.rules import by_id
from holdfast.diagnosis.run_state import RunState
from holdfast.storage.journal import Entry, JournalWriter
from holdfast.supervisor.event_pipeline import EventPipeline
from holdfast.testing.histories import ended, losses, started, trains


def test_finding_at_the_end_of_an_attempt_does_not_stop_the_next(tmp_path):
    """A rule may report again while an attempt ends. By then nobody asks; the next attempt must not be stopped for it."""
    pipeline = EventPipeline(
        JournalWriter(tmp_path / "journal.jsonl"), Engine(RunState(), [by_id()["loss-all-zero"]]), [], lambda: 0.0
    )
    first, second = started(), started(attempt=2)[-1]
    for event in first:
        pipeline.record(event)
    pipeline.take_probe_entries([Entry(event, 1, 0) for event in (*trains(), *losses(*[0.0] * 30))])
    for event in ended(signal="SIGTERM"):
        pipeline.record(event)
    pipeline.record(second)
    assert [finding.attempt for finding in pipeline.state.findings] == [1]
    assert pipeline.pop_new_findings() == []
