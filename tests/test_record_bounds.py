"""Records that are longer than anybody's: what is read, judged and kept of them is bounded, and what was left out is said."""

from __future__ import annotations

import json
import os
import threading

import pytest
from diagnosed import judged, severities, written

from holdfast.diagnosis.engine import Engine
from holdfast.diagnosis.run_state import MAX_FINDINGS, load_run_state
from holdfast.importers import plain_log, table, text, transformers
from holdfast.render.status import print_status, status_of
from holdfast.schema import events
from holdfast.schema.errors import RecordUnknown
from holdfast.schema.verdicts import Finding
from holdfast.storage import folder, journal
from holdfast.storage.journal import Entry, replay


@pytest.fixture
def asked(monkeypatch):
    """How often rules were asked."""
    counted = []
    real = Engine._find_new
    monkeypatch.setattr(Engine, "_find_new", lambda self, rule: (counted.append(rule.id), real(self, rule))[1])
    return counted


def results(rows, value=lambda row: 1 / row):
    lines = [f"{row},{row},{1 / row:.6f},{value(row):.6f}" for row in range(1, rows + 1)]
    return "\n".join(["epoch,time,train/box_loss,val/box_loss", *lines, ""])


def test_a_table_is_read_from_both_ends(tmp_path, monkeypatch):
    """The newest row counts, those in the middle are left out, and a sentence says how many."""
    monkeypatch.setattr(table, "MAX_ROWS", 100)
    diagnosis = judged(written(tmp_path, "results.csv", results(350)))
    assert "epoch 350" in diagnosis.reading.position
    assert any(
        "Only the first and last 50 rows of results.csv were read; 250 rows between were not" in note
        for note in diagnosis.reading.notes
    )
    assert len(diagnosis.state.attempt.metrics.history) == 100


def test_rules_are_not_asked_after_every_row_of_a_long_table(tmp_path, asked):
    """Of 3,000 rows the last 2,000 cost a thirtieth of the questions of the first 1,000 each."""
    judged(written(tmp_path, "results.csv", results(1000)))
    of_few = len(asked)
    asked.clear()
    judged(written(tmp_path, "results.csv", results(3000)))
    assert len(asked) < 1.2 * of_few


def test_what_comes_late_in_a_long_table_is_found(tmp_path):
    """After its last row all rules have been asked: here the validation loss rises in the last hundred rows."""
    late = results(2050, value=lambda row: 1.0 / row if row < 1950 else 0.001 * (row - 1940))
    assert "overfitting" in severities(judged(written(tmp_path, "results.csv", late)))


def test_a_history_of_transformers_is_read_from_both_ends(tmp_path, monkeypatch):
    """As a table."""
    monkeypatch.setattr(transformers, "MAX_ENTRIES", 40)
    history = [{"step": step, "epoch": step / 100, "loss": 1 / step} for step in range(1, 201)]
    state = json.dumps({"global_step": 200, "max_steps": 400, "log_history": history})
    diagnosis = judged(written(tmp_path, "trainer_state.json", state))
    assert diagnosis.reading.position == "step 200 of 400"
    assert any("160 entries between were not" in note for note in diagnosis.reading.notes)


def test_states_of_a_bar_count_as_lines(tmp_path, monkeypatch):
    """One line of many states is read from both ends; words that a rule knows are found in between all the same."""
    monkeypatch.setattr(plain_log, "MAX_LINES", 100)
    taken = []
    real = plain_log.parse_line
    monkeypatch.setattr(plain_log, "parse_line", lambda line: (taken.append(line), real(line))[1])
    bar = "".join(f"\rEpoch 1: step {n}/5000 loss=0.{n:04d}" for n in range(1, 5001))
    middle = bar.replace("step 2500/5000", "No labels found in x.cache, training may not work correctly")
    diagnosis = judged(written(tmp_path, "train.log", middle), exit_code=1)
    assert len(taken) <= 101
    assert "batch 5000 of 5000" in diagnosis.reading.position
    assert any("4,901 lines between" in note or "4,900 lines between" in note for note in diagnosis.reading.notes)
    assert diagnosis.state.attempt.printed


def finding(number):
    made = Finding(rule=f"rule-{number}", severity="warn", message=f"number {number}", attempt=1, step=number)
    return events.FindingMade(at=3.0 + number / 1000, finding=made)


def run_of(tmp_path, *more):
    made = folder.create(["x"], root=tmp_path, name="run")
    started = events.RunStarted(
        at=1.0, schema=1, run="run-1", command=["x"], cwd="/", holdfast="0", platform="", python="", supervisor=1
    )
    lines = [started, events.AttemptStarted(at=2.0, attempt=1, pid=4194304, command=["x"]), *more]
    made.journal.write_bytes(b"".join(events.encode(event) + b"\n" for event in lines))
    return made


def test_findings_are_kept_from_both_ends(tmp_path, capsys):
    """The first and the last thousand of an attempt together; status says how many are not."""
    run = run_of(tmp_path, *map(finding, range(1, MAX_FINDINGS + 301)))
    status = status_of(run)
    steps = [made["step"] for made in status["findings"]]
    assert (len(steps), steps[0], steps[-1], status["findings_left_out"]) == (MAX_FINDINGS, 1, MAX_FINDINGS + 300, 300)
    print_status(status, as_json=False)
    assert "300 further findings are not shown" in capsys.readouterr().out


def test_events_that_are_kept_one_by_one_are_bounded(tmp_path):
    """Processes, signals and read-back files of one attempt."""
    began = events.AttemptStarted(at=2.0, attempt=1, pid=1, command=["x"])
    several = [events.Reloaded(at=3.0, path=str(number), loads=True) for number in range(1200)]
    several += [events.Signalled(at=3.0, signal="SIGINT", action="stop") for _ in range(1200)]
    attempt = load_run_state(Entry(event, 1) for event in (began, *several)).attempt
    assert len(attempt.reloaded) <= 1000
    assert len(attempt.signals) <= 1000


def test_the_supervisors_own_events_have_a_bound_of_their_own(tmp_path, monkeypatch):
    """Beyond it only those are read of which sums are kept; those of a training's steps are not concerned."""
    monkeypatch.setattr(journal, "MAX_SUPERVISOR_BYTES", 1000)
    run = run_of(
        tmp_path, *map(finding, range(1, 100)), events.RunEnded(at=9.0, verdict="failed", reason="", exit_status=4)
    )
    read = [entry.event for entry in replay(run)]
    assert 2 < len(read) < 20
    assert isinstance(read[-1], events.RunEnded)


def test_a_fifo_that_nobody_writes_to_is_not_waited_for(tmp_path, monkeypatch):
    """Named by the user: it has some seconds to begin, then a sentence."""
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(text, "FIRST_BYTE_S", 0.05)
    with pytest.raises(RecordUnknown, match="no data arrived from it"):
        judged(tmp_path / "pipe")


def test_a_fifo_is_read_to_its_end(tmp_path):
    """As `holdfast diagnose <(zcat train.log.gz)` has one: also what comes after the first piece."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def write():
        with pipe.open("w") as file:
            for epoch in range(1, 4):
                file.write(f"Epoch {epoch}/3 loss: {1 / epoch:.3f}\n")
                file.flush()

    writer = threading.Thread(target=write)
    writer.start()
    diagnosis = judged(pipe)
    writer.join()
    assert diagnosis.reading.position == "epoch 3 of 3"
