"""Readers of tables and states: each gives what the record says, and nothing that it does not say."""

from __future__ import annotations

import json

import pytest
from diagnosed import FIXTURES, of, read, written

from holdfast.importers.exits import infer_end
from holdfast.importers.settings import parse_settings
from holdfast.schema import events
from holdfast.schema.errors import RecordUnknown

# --- Ultralytics ------------------------------------------------------------------------------------------------------


def test_one_epoch_and_one_metrics_event_a_row_and_no_steps():
    _, found = read(FIXTURES / "logs" / "resumed_ultralytics.csv")
    assert [event.epoch for event in of(events.Epoch, found)] == [1, 2, 3, 4, 5]
    assert [event.epoch for event in of(events.Metrics, found)] == [1, 2, 3, 4, 5]
    assert not of((events.Step, events.Steps), found)
    assert of(events.Metrics, found)[0].values["train/box_loss"] == 1.52


def test_time_starts_again_on_resume():
    """The seconds of an epoch come from the running total, also across a resume; the clock never goes back."""
    reading, found = read(FIXTURES / "logs" / "resumed_ultralytics.csv")
    epochs = of(events.Epoch, found)
    assert [round(event.seconds, 1) for event in epochs] == [61.2, 58.6, 59.1, 60.3, 58.4]
    assert [event.at for event in epochs] == sorted(event.at for event in epochs)
    assert reading.notes == ["The training was resumed after epoch 3: the time in the table restarts."]


def test_padded_columns_and_epochs_from_zero():
    reading, found = read(FIXTURES / "logs" / "old_ultralytics.csv")
    assert [event.epoch for event in of(events.Epoch, found)] == [1, 2, 3, 4]
    assert "metrics/mAP50-95(B)" in of(events.Metrics, found)[0].values
    assert any("from 0" in note for note in reading.notes)


def test_empty_cells_and_missing_epochs_are_not_filled_in():
    """Six of fifteen epochs: a cell that is empty is no value, and an epoch without a row is no event."""
    _, found = read(FIXTURES / "phase2_killed")
    assert [event.epoch for event in of(events.Epoch, found)] == [1, 3, 5, 6, 9, 12, 15]
    by_epoch = {event.epoch: event.values for event in of(events.Metrics, found)}
    assert 6 not in by_epoch
    assert "train/cls_loss" not in by_epoch[12]
    assert by_epoch[15]["val/cls_loss"] == 5.139
    seconds = {event.epoch: event.seconds for event in of(events.Epoch, found)}
    assert seconds[6] == 38343.0
    assert seconds[5] == pytest.approx(195.8)
    assert of(events.Epoch, found)[-1].at == pytest.approx(43908.0)


def test_numbers_that_are_none_become_words(tmp_path):
    path = written(tmp_path, "results.csv", "epoch,train/box_loss,train/cls_loss,val/box_loss\n1,nan,inf,1e300\n")
    _, found = read(path)
    assert of(events.Metrics, found)[0].values == {
        "train/box_loss": "nan",
        "train/cls_loss": "inf",
        "val/box_loss": "inf",
    }


def test_cut_row_is_counted_and_left_out(tmp_path):
    path = written(tmp_path, "results.csv", "epoch,time,train/box_loss\n1,10,1.5\n2,20,1.4\n3,3")
    reading, found = read(path)
    assert len(of(events.Epoch, found)) == 2
    assert any(note.startswith("1 row of results.csv could not be read") for note in reading.notes)


def test_patience_that_ran_out_is_an_orderly_end(tmp_path):
    rows = "".join(f"{n},{n * 10},1.0,{0.5 if n == 2 else 0.1}\n" for n in range(1, 8))
    written(tmp_path, "results.csv", "epoch,time,train/box_loss,metrics/mAP50-95(B)\n" + rows)
    written(tmp_path, "args.yaml", "epochs: 100\npatience: 5\n")
    reading, found = read(tmp_path)
    assert reading.end.finished
    assert of(events.ProbeNote, found)[0].code == "stopped-early"


def test_exit_code_wins_over_a_table_that_is_whole():
    reading, found = read(FIXTURES / "phase2_killed", 137)
    assert of(events.AttemptEnded, found)[0].code == 137
    assert not reading.end.finished


def test_folder_that_died_in_its_first_epoch(tmp_path):
    """No results.csv yet: the folder is still a run, and its log is read in full."""
    written(tmp_path, "args.yaml", "task: detect\nmode: train\nepochs: 3\ndevice: cpu\n")
    written(tmp_path, "nohup.out", (FIXTURES / "logs" / "ultralytics_console.log").read_bytes())
    reading, found = read(tmp_path)
    assert reading.what == "an Ultralytics run folder"
    assert [event.epoch for event in of(events.Epoch, found)] == [1, 2, 3]


def test_spoiled_settings_and_tables_hide_nothing_else(tmp_path):
    """A binary args.yaml is noted and the table is read; a binary table is noted and the log is read."""
    table = (FIXTURES / "logs" / "resumed_ultralytics.csv").read_bytes()
    written(tmp_path, "results.csv", table)
    written(tmp_path, "args.yaml", bytes(range(256)) * 20)
    reading, found = read(tmp_path)
    assert len(of(events.Epoch, found)) == 5
    assert "args.yaml is not a text file." in reading.notes
    written(tmp_path, "results.csv", bytes(range(256)) * 20)
    written(tmp_path, "train.log", (FIXTURES / "logs" / "ultralytics_console.log").read_bytes())
    reading, found = read(tmp_path)
    assert len(of(events.Epoch, found)) == 3
    assert "results.csv is not a text file." in reading.notes


def test_table_of_keras_is_a_table_of_epochs(tmp_path):
    path = written(
        tmp_path, "history.csv", "epoch,accuracy,loss,val_accuracy,val_loss\n0,0.3,2.1,0.31,2.0\n1,0.4,1.8,0.4,1.7\n"
    )
    _, found = read(path)
    assert of(events.Metrics, found)[1].values == {
        "accuracy": 0.4,
        "train/loss": 1.8,
        "val/accuracy": 0.4,
        "val/loss": 1.7,
    }


# --- Lightning --------------------------------------------------------------------------------------------------------


def test_sparse_rows_become_steps_and_epochs():
    reading, found = read(FIXTURES / "lightning" / "lightning_logs" / "version_1")
    steps = of(events.Steps, found)
    assert [(event.first, event.last) for event in steps[:2]] == [(1, 50), (51, 100)]
    assert steps[0].loss.n == 1
    assert steps[-1].last == 1000
    metrics = of(events.Metrics, found)
    assert [event.epoch for event in metrics] == [1, 2, 3, 4, 5]
    assert set(metrics[0].values) == {"val/acc", "val/loss", "train/loss"}
    assert of(events.Epoch, found)[-1].planned == 5
    assert reading.end.finished


def test_newest_version_is_read():
    reading, _ = read(FIXTURES / "lightning" / "lightning_logs")
    assert reading.name == "version_1"
    assert "only the newest was read: version_1" in reading.notes[0]


def test_loss_that_is_logged_once_an_epoch_is_no_step(tmp_path):
    path = written(
        tmp_path, "metrics.csv", "epoch,step,train_loss,val_loss\n0,99,2.0,\n0,99,,1.9\n1,199,1.5,\n1,199,,1.4\n"
    )
    _, found = read(path)
    assert all(event.loss is None for event in of(events.Steps, found))
    assert [event.values["train/loss"] for event in of(events.Metrics, found)] == [2.0, 1.5]


# --- Transformers -----------------------------------------------------------------------------------------------------


def test_history_becomes_windows_of_steps():
    _, found = read(FIXTURES / "transformers" / "checkpoint-300")
    steps = of(events.Steps, found)
    assert [(event.first, event.last) for event in steps[:2]] == [(1, 10), (11, 20)]
    assert steps[0].lr == [5e-5]
    assert of(events.Epoch, found)[-1].epoch == 3
    assert of(events.Epoch, found)[-1].planned == 10


def test_zero_with_a_gradient_of_nan_is_nan():
    """What `logging_nan_inf_filter` hides; a zero with a finite gradient stays a zero."""
    _, found = read(FIXTURES / "transformers" / "checkpoint-300")
    hidden = [event for event in of(events.Steps, found) if event.last > 100]
    assert all(event.loss.nonfinite == 1 and event.grad_norm.nonfinite == 1 for event in hidden)


def test_zero_with_a_finite_gradient_is_zero(tmp_path):
    state = {"log_history": [{"step": 10, "loss": 0.0, "grad_norm": 0.0, "epoch": 0.1}], "global_step": 10}
    _, found = read(written(tmp_path, "trainer_state.json", json.dumps(state)))
    assert of(events.Steps, found)[0].loss.zeros == 1


@pytest.mark.parametrize("part", [0.3, 0.6, 0.9, 0.99])
def test_truncated_state_gives_the_entries_that_are_whole(tmp_path, part):
    whole = (FIXTURES / "transformers" / "checkpoint-300" / "trainer_state.json").read_text()
    reading, found = read(written(tmp_path, "trainer_state.json", whole[: int(len(whole) * part)]))
    assert of(events.Steps, found)
    assert any("not valid JSON" in note for note in reading.notes)


def test_state_is_recognised_by_its_content(tmp_path):
    state = (FIXTURES / "transformers" / "checkpoint-300" / "trainer_state.json").read_bytes()
    reading, _ = read(written(tmp_path, "saved.txt", state))
    assert reading.what == "a Transformers trainer_state.json"


# --- settings ---------------------------------------------------------------------------------------------------------


def test_settings_are_read_without_yaml():
    read_back = parse_settings(
        'epochs: 10  # a comment\nmodel: "yolo11n.pt"\nnested:\n  imgsz: 384\nempty: null\n- item\n'
    )
    assert read_back == {"epochs": "10", "model": "yolo11n.pt", "nested": "", "imgsz": "384", "empty": "null"}


@pytest.mark.parametrize(
    ("text", "notes"),
    [
        ("val_period: 5\nepochs: 3\n", ["val_period is not an Ultralytics argument"]),
        ("accumulate: 4\nepochs: 3\n", ["accumulate is not an Ultralytics argument"]),
        ("epochs: 3\nval: true\n", []),
    ],
)
def test_names_that_ultralytics_does_not_know(tmp_path, text, notes):
    reading, _ = read(written(tmp_path, "args.yaml", text))
    assert [note.partition(":")[0] for note in reading.notes] == notes


# --- detection --------------------------------------------------------------------------------------------------------


def test_message_names_the_files_of_all_importers(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(RecordUnknown) as error:
        read(tmp_path / "empty")
    assert error.value.next_step.endswith(
        "results.csv and args.yaml (Ultralytics), metrics.csv (Lightning), trainer_state.json (Transformers), "
        "journal.jsonl (Holdfast), or a log"
    )


def test_table_without_epochs_names_the_tables(tmp_path):
    with pytest.raises(RecordUnknown) as error:
        read(written(tmp_path, "numbers.csv", "a,b\n1,2\n"))
    expected = "give the results.csv of Ultralytics, the metrics.csv of Lightning, or the training's log"
    assert error.value.next_step == expected


# --- how it ended -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "basis", "code"),
    [
        ({"exit_code": 3, "complete": "its table"}, "exit code", 3),
        ({"exit_code": None, "words": ["Traceback (most recent call last):"]}, "output", 1),
        ({"exit_code": None, "finished": "a line of its log", "complete": "its table"}, "output", 0),
        ({"exit_code": None, "complete": "its table"}, "planned work", 0),
        ({"exit_code": None}, None, None),
    ],
)
def test_end_says_what_it_is_known_from(given, basis, code):
    end = infer_end(**given)
    assert (end.basis, end.code, end.is_known) == (basis, code, basis is not None)
