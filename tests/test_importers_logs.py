"""The reader of plain logs: bars, colours, encodings, last words, and logs that are too long to read whole."""

from __future__ import annotations

import pytest
from diagnosed import FIXTURES, of, read, written

from holdfast.importers import plain_log, text
from holdfast.importers.base import EpochProgress, Importer, framework_importers
from holdfast.importers.diagnose import diagnose
from holdfast.importers.log_lines import parse_line
from holdfast.schema import events


@pytest.mark.parametrize(
    ("line", "epoch", "epochs", "batch", "batches", "losses"),
    [
        ("Epoch 94/100", 94, 100, None, None, {}),
        ("Epoch [3/10], Step [200/600], Loss: 0.1234", 3, 10, 200, 600, {"loss": 0.1234}),
        ("epoch 7 of 20 train loss = 1.5e-3 val loss = nan", 7, 20, None, None, {"train_loss": 1.5e-3}),
        ("Epoch 1:  41%|████      | 927/2244 [03:12<04:32,  4.8it/s, loss=2.13]", 1, None, 927, 2244, {"loss": 2.13}),
        ("iteration 500/1000 | lm loss: 2.345E+00 |", None, None, 500, 1000, {"lm_loss": 2.345}),
        (
            "{'loss': 0.5, 'grad_norm': 1.2, 'learning_rate': 1e-05, 'epoch': 0.02}",
            None,
            None,
            None,
            None,
            {"loss": 0.5},
        ),
    ],
)
def test_lines_of_many_kinds(line, epoch, epochs, batch, batches, losses):
    said = parse_line(line)
    assert (said.epoch, said.epochs, said.batch, said.batches) == (epoch, epochs, batch, batches)
    assert losses.items() <= said.losses.items()


@pytest.mark.parametrize("line", ["", "hello", "Downloading model: done", "lossless compression", "epochs are long"])
def test_lines_that_say_nothing(line):
    assert parse_line(line) is None


def test_console_of_ultralytics():
    """Bars redrawn by carriage return and erased by escape codes; metrics join the losses of their epoch."""
    reading, found = read(FIXTURES / "logs" / "ultralytics_console.log")
    assert [(event.epoch, event.planned, event.batches, event.seconds) for event in of(events.Epoch, found)] == [
        (1, 3, 24, 24.0),
        (2, 3, 24, 24.0),
        (3, 3, 24, 24.0),
    ]
    metrics = of(events.Metrics, found)
    assert metrics[1].values == {
        "train/box_loss": 1.39,
        "train/cls_loss": 1.72,
        "train/dfl_loss": 1.23,
        "metrics/precision(B)": 0.70,
        "metrics/recall(B)": 0.55,
        "metrics/mAP50(B)": 0.61,
        "metrics/mAP50-95(B)": 0.37,
    }
    assert metrics[-1].epoch is None  # best.pt, validated once more
    assert of(events.TorchImported, found)[0].torch == "2.4.1"
    assert of(events.RunStarted, found)[0].platform == "macos"
    assert reading.end.finished
    assert reading.position == "epoch 3 of 3, batch 24 of 24"


def test_losses_beside_a_position_are_single_values_of_windows(tmp_path):
    lines = "\r".join(f"Epoch 1: {n}%|#| {n}/100 [00:01<00:01, loss={2 - n / 100:.2f}]" for n in range(10, 101, 10))
    _, found = read(written(tmp_path, "train.log", lines))
    steps = of(events.Steps, found)
    assert [(event.first, event.last, event.loss.n) for event in steps[:2]] == [(1, 10, 1), (11, 20, 1)]
    assert len(steps) == 10


def test_losses_of_the_trainer_belong_to_the_bar_before_them(tmp_path):
    lines = "".join(
        f"  {n}%|#| {n}/100 [00:01<00:01, 1.0it/s]\n{{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.{n}}}\n"
        for n in range(10, 100, 10)
    )
    _, found = read(written(tmp_path, "train.log", lines))
    assert [event.last for event in of(events.Steps, found)] == list(range(10, 100, 10))
    assert all(event.loss.nonfinite == 1 for event in of(events.Steps, found))


def test_epoch_summaries_are_metrics_by_epoch(tmp_path):
    lines = "".join(f"epoch {n}/5 loss: {1 / n:.3f} val_loss: {1.1 / n:.3f} acc: 0.{n}\n" for n in range(1, 6))
    _, found = read(written(tmp_path, "train.log", lines))
    assert [event.epoch for event in of(events.Epoch, found)] == [1, 2, 3, 4, 5]
    assert of(events.Metrics, found)[-1].values == {"train/loss": 0.2, "val/loss": 0.22, "acc": 0.5}
    assert not of(events.Steps, found)


@pytest.mark.parametrize(
    ("words", "signal", "code"),
    [
        ("zsh: killed     python train.py", "SIGKILL", None),
        ("Killed", "SIGKILL", None),
        ("Abort trap: 6", "SIGABRT", None),
        ("run.sh: line 3:  4242 Segmentation fault      (core dumped) python train.py", "SIGSEGV", None),
        ("memorystatus: killing largest compressed process python3.11 [512] 43350 MB", "SIGKILL", None),
        (
            "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.",
            "SIGKILL",
            None,
        ),
        ("slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2025-01-01T00:00:00 DUE TO TIME LIMIT ***", "SIGTERM", None),
        ("Traceback (most recent call last):\n  File 'a.py', line 1\nValueError: x", None, 1),
        ("10 epochs completed in 0.714 hours.", None, 0),
        ("see you", None, None),
    ],
)
def test_ends_by_last_words(tmp_path, words, signal, code):
    _, found = read(written(tmp_path, "train.log", f"epoch 1/3 loss: 1.0\n{words}\n"))
    ended = of(events.AttemptEnded, found)[0]
    assert (ended.signal, ended.code) == (signal, code)


def test_words_of_an_earlier_end_do_not_count(tmp_path):
    """Killed, resumed, finished: only what follows the last progress says how it ended."""
    lines = "epoch 1/3 loss: 1.0\nzsh: killed\nepoch 2/3 loss: 0.9\nepoch 3/3 loss: 0.8\nTraining complete\n"
    reading, found = read(written(tmp_path, "train.log", lines))
    assert of(events.AttemptEnded, found)[0].code == 0
    assert reading.end.finished


def test_several_trainings_in_one_log_are_noted(tmp_path):
    lines = "".join(f"fold {fold} epoch {n}/3 loss: {1 / n:.2f}\n" for fold in (1, 2) for n in (1, 2, 3))
    reading, found = read(written(tmp_path, "train.log", lines))
    assert any("in the log restart once" in note for note in reading.notes)
    assert [event.epoch for event in of(events.Metrics, found)] == [1, 2, 3, 1, 2, 3]


@pytest.mark.parametrize(
    "encoded",
    [
        lambda text: text.encode("utf-16"),
        lambda text: text.encode("utf-16-le"),
        lambda text: text.encode("utf-16-be"),
        lambda text: text.encode("utf-8-sig"),
        lambda text: text.encode("latin-1"),
        lambda text: text.encode("utf-8") + b"\xff\xfe\x80 spoiled\n",
        lambda text: text.replace("\n", "\r\n").encode(),
    ],
    ids=["utf-16", "utf-16-le", "utf-16-be", "utf-8 mark", "latin-1", "spoiled bytes", "crlf"],
)
def test_encodings(tmp_path, encoded):
    lines = "".join(f"époque: epoch {n}/5 loss: {1 / n:.3f}\n" for n in range(1, 6))
    _, found = read(written(tmp_path, "train.log", encoded(lines)))
    assert [event.epoch for event in of(events.Epoch, found)] == [1, 2, 3, 4, 5]


def test_log_with_a_hole(tmp_path):
    """Emptied while a program wrote to it: zeros up to where that program was."""
    _, found = read(written(tmp_path, "train.log", bytes(70_000) + b"epoch 8/9 loss: 0.3\nepoch 9/9 loss: 0.2\n"))
    assert of(events.Epoch, found)[-1].epoch == 9


def test_line_without_an_end(tmp_path):
    """A single line of many megabytes is no trouble."""
    found = diagnose(written(tmp_path, "train.log", "epoch 1/2 loss: 1.0\n" + "x" * (6 << 20) + "\nKilled\n"))
    assert found.state.attempt.ended.signal == "SIGKILL"


NMS = "WARNING ⚠️ NMS time limit 2.050s exceeded\n"


def test_two_gigabytes_are_read_by_their_ends(tmp_path):
    """Head and tail line by line, a bounded part between scanned, and what was not read is said."""
    path = tmp_path / "huge.log"
    with path.open("wb") as file:
        file.write(b"".join(b"epoch %d/100 loss: %.3f\n" % (n, 2 - n / 100) for n in range(1, 90)))
        file.seek(2 << 30)
        file.write(b"epoch 90/100 loss: 1.1\nzsh: killed     python train.py\n")
    found = diagnose(path)
    assert found.reading.position == "epoch 90 of 100"
    assert found.state.attempt.ended.signal == "SIGKILL"
    assert "2.0 GiB" in found.reading.notes[0]
    assert "was not read at all" in found.reading.notes[0]


def test_words_between_head_and_tail_are_heard(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "HEAD_BYTES", 4096)
    monkeypatch.setattr(text, "TAIL_BYTES", 4096)
    filler = "".join(f"epoch {n}/900 loss: {1 + 1 / n:.3f}\n" for n in range(1, 900))
    path = written(tmp_path, "train.log", filler[:9000] + "\n" + NMS + filler[9000:])
    reading, found = read(path)
    assert "nms-cut-short" in {event.rule for event in of(events.OutputMatched, found)}
    assert "was scanned for known messages" in reading.notes[0]


def test_stream_keeps_its_end(monkeypatch):
    import io

    monkeypatch.setattr(text, "HEAD_BYTES", 4096)
    monkeypatch.setattr(text, "TAIL_BYTES", 4096)
    monkeypatch.setattr(text, "CHUNK", 1000)
    whole = "".join(f"line {n}\n" for n in range(5000)).encode()
    source = text._from_stream(io.BytesIO(whole), "standard input", None)
    assert source.head.startswith("line 0\n")
    assert source.tail.endswith("line 4999\n")
    assert len(source.head) + source.between + len(source.tail) == len(whole)
    assert len(source.tail) < 6000


# --- frameworks -------------------------------------------------------------------------------------------------------


class OtherParser:
    """A framework that prints `tick EPOCH`, and nothing that a plain log would count."""

    source = "other"
    current = None
    final = None

    def take(self, line):
        word, _, number = line.partition(" ")
        return (True, EpochProgress(int(number), 2, 1, 1)) if word == "tick" else (False, None)

    def flush(self):
        return None


def test_every_framework_reads_its_lines_of_a_log(monkeypatch, tmp_path):
    other = Importer("Other", (), "", None, None, make_log_parser=OtherParser)
    importers = [*framework_importers(), other]
    monkeypatch.setattr(plain_log, "framework_importers", lambda: importers)
    _, found = read(written(tmp_path, "train.log", "tick 1\nloss: 3\ntick 2\n"))
    assert [(event.epoch, event.source) for event in of(events.Epoch, found)] == [(1, "other"), (2, "other")]
