"""`holdfast diagnose` on the field reports' own tables, and its manners: JSON, report, exit status, clear refusals."""

from __future__ import annotations

import json
import shutil
import zipfile

import pytest
from diagnosed import FIXTURES, judged, message_of, severities, written
from running import holdfast, holdfast_run, training

from holdfast.importers.diagnose import diagnose
from holdfast.schema.errors import UsageError

# --- the five field reports -------------------------------------------------------------------------------------------


def test_silent_zero_run_is_caught_by_its_first_epoch():
    """Report 000: box and dfl are 0 in epoch 1 while cls is not; then all is 0; the command ended well all the same."""
    found = judged("mps_silent_zero")
    assert severities(found)["loss-component-zero"] == "fatal"
    assert severities(found)["metrics-all-zero"] == "fatal"
    assert "train/box_loss and train/dfl_loss were exactly 0" in message_of(found, "loss-component-zero")
    assert (found.verdict.outcome.value, found.exit_status) == ("not-learned", 3)
    assert found.explanation.cause == "loss-component-zero"
    assert any("device=cpu" in step.text for step in found.explanation.next_steps)
    assert any("exit code" in question for question in found.explanation.unknown)


@pytest.mark.parametrize(("device", "blamed"), [("cpu", False), ("null", True), ("mps", True)])
def test_a_cpu_is_not_blamed_by_the_cpu(tmp_path, device, blamed):
    """Scores of 0 in five epochs, whose losses are well: nothing is gained by validating on the device that trained."""
    header = "epoch,train/box_loss,train/cls_loss,metrics/precision(B),metrics/mAP50(B),val/box_loss"
    rows = [f"{n},{3.1 - n / 10:.3f},{4.2 - n / 10:.3f},0,0,3.{n}" for n in range(1, 6)]
    written(tmp_path, "results.csv", "\n".join([header, *rows, ""]))
    written(tmp_path, "args.yaml", f"epochs: 5\ndevice: {device}\nbatch: 4\n")
    steps = [step.text for step in diagnose(tmp_path).explanation.next_steps]
    assert steps[0].startswith("train longer")
    assert any("device is the cause" in step for step in steps) == blamed


def test_slow_epoch_is_named_and_its_cause_is_not_guessed():
    """Report 001: epoch 6 took ten hours; the table cannot tell swapping from sleep, and says so."""
    found = judged("phase2_killed", 137)
    assert severities(found)["epoch-time-blowup"] == "warn"
    said = message_of(found, "epoch-time-blowup")
    assert "Epoch 6" in said
    assert "does not show the cause" in said
    assert "swapped" in said
    assert "slept" in said


def test_unstable_precision_and_best_epoch():
    """Report 001: precision jumps between 0.085 and 0.499; the best epoch is the 12th."""
    found = judged("phase2_killed", 137)
    assert "metrics/precision(B)" in message_of(found, "metrics-unstable")
    assert "Best epoch: 12, with metrics/mAP50-95(B) 0.045." in found.facts


def test_no_overfitting_from_a_single_epoch_of_losses():
    """Report 001 gives the losses of its last epoch only: that is too few, and is said to be."""
    found = judged("phase2_killed", 137)
    assert "overfitting" not in severities(found)
    assert any("1 of 6 epochs" in question for question in found.explanation.unknown)


def test_exit_137_without_a_word_of_the_system_is_likely_memory():
    """Report 001: killed with 137; nobody recorded the system's words, so memory is likely and not proven."""
    found = judged("phase2_killed", 137)
    assert (found.explanation.cause, found.explanation.confidence) == ("killed-out-of-memory", "likely")
    assert (found.verdict.outcome.value, found.exit_status) == ("failed", 3)


@pytest.mark.parametrize(("log", "batch"), [("attempt1.log", 927), ("attempt2.log", 117)])
def test_log_that_just_ends_gives_no_cause(log, batch):
    """Report 002: nothing is concluded from accumulation or cache clearing; how to record the signal is said."""
    found = judged(f"two_tower_log/{log}")
    assert found.explanation.cause is None
    assert found.explanation.confidence == "unknown"
    assert f"batch {batch} of 2244" in found.explanation.story[0]
    told = json.dumps([found.explanation.story, [step.text for step in found.explanation.next_steps]]).lower()
    assert "accumulation" not in told
    assert "empty_cache" not in told
    assert any("neither an exit code nor a signal" in question for question in found.explanation.unknown)
    commands = [step.command or "" for step in found.explanation.next_steps]
    assert any(command.startswith("holdfast run --") for command in commands)
    assert any("--exit-code N" in command for command in commands)
    assert (found.verdict.outcome.value, found.exit_status) == ("unproven", 0)


@pytest.mark.parametrize("exit_code", [134, None])
def test_two_openmp_runtimes_are_the_cause(exit_code):
    """Report 002's sequel: abort with OMP's own words, whether the code was kept or only `Abort trap: 6`."""
    found = judged("two_tower_log/openmp.log", exit_code)
    assert found.explanation.cause == "openmp-duplicate"
    assert found.exit_status == 3


def test_settings_alone_are_told_from_a_record():
    """Report 003 holds settings only: nothing ran. `val_period` of report 004 is no argument of Ultralytics."""
    found = judged("rdd2022_settings/training_stage1.yaml")
    assert (found.verdict, found.exit_status) == (None, 0)
    assert "nothing has run" in found.explanation.story[0]
    assert found.reading.notes == []
    assert any(
        note.startswith("val_period is not an Ultralytics argument")
        for note in judged("rdd2022_settings/lighter_validation.yaml").reading.notes
    )


def with_checkpoint(tmp_path, whole=True):
    run = tmp_path / "train 4"
    shutil.copytree(FIXTURES / "epoch_94_killed", run)
    (run / "weights").mkdir()
    with zipfile.ZipFile(run / "weights" / "last.pt", "w") as archive:
        archive.writestr("last/data.pkl", b"\x80\x02}." * 50)
    if not whole:
        data = (run / "weights" / "last.pt").read_bytes()
        (run / "weights" / "last.pt").write_bytes(data[: len(data) // 2])
    return run


def test_killed_at_epoch_94_of_100_can_go_on(tmp_path):
    """Report 004: `zsh: killed` in epoch 94 of 100; last.pt is whole, and the exact command goes on from it."""
    run = with_checkpoint(tmp_path)
    found = diagnose(run)
    assert "epoch 94 of 100" in found.explanation.story[0]
    assert "SIGKILL" in found.explanation.story[0]
    commands = [step.command for step in found.explanation.next_steps]
    assert f"holdfast run -- yolo train resume model='{run}/weights/last.pt'" in commands
    assert found.exit_status == 3


def test_killed_at_epoch_94_is_likely_memory(tmp_path):
    found = diagnose(with_checkpoint(tmp_path))
    assert (found.explanation.cause, found.explanation.confidence) == ("killed-out-of-memory", "likely")


def test_torn_checkpoint_is_not_offered(tmp_path):
    found = diagnose(with_checkpoint(tmp_path, whole=False))
    assert not any("resume" in (step.command or "") for step in found.explanation.next_steps)
    assert any("incomplete" in note for note in found.reading.notes)


# --- other records ----------------------------------------------------------------------------------------------------


def test_overfitting_is_named_by_component():
    found = judged("logs/overfitting_ultralytics.csv")
    assert severities(found)["overfitting"] in ("warn", "note")
    assert "val/cls_loss" in message_of(found, "overfitting")
    assert found.exit_status == 0


@pytest.mark.parametrize("name", ["lightning/lightning_logs", "logs/ultralytics_console.log"])
def test_healthy_runs_are_left_alone(name):
    found = judged(name)
    assert not {rule for rule, severity in severities(found).items() if severity != "note"}
    assert (found.verdict.outcome.value, found.exit_status) == ("learned", 0)


@pytest.mark.parametrize("name", ["logs/old_ultralytics.csv", "logs/resumed_ultralytics.csv"])
def test_healthy_tables_without_an_end_are_unproven(name):
    """A table does not say how the command ended; what it shows of learning is said."""
    found = judged(name)
    assert not severities(found)
    assert (found.verdict.outcome.value, found.exit_status) == ("unproven", 0)
    assert "metrics/mAP50-95(B) rose" in found.verdict.reason


def test_nan_that_transformers_hides_is_found():
    found = judged("transformers")
    assert severities(found)["loss-not-finite"] == "fatal"
    assert severities(found)["nan-logged-as-zero"] == "fatal"
    assert found.exit_status == 3
    assert any("20 entries log a loss of 0" in note for note in found.reading.notes)


def test_traceback_names_the_cause():
    found = judged("logs/traceback.log")
    assert found.explanation.cause == "python-exception"
    assert "ValueError" in message_of(found, "python-exception")
    assert found.exit_status == 3


def test_traceback_that_the_training_survived_is_no_end(tmp_path):
    lines = (FIXTURES / "logs" / "traceback.log").read_text()
    more = "".join(f"epoch {n}/20 | loss: {2 / n:.3f} | val_loss: {2 / n:.3f}\n" for n in range(4, 21))
    found = diagnose(written(tmp_path, "train.log", lines + more + "Training complete\n"))
    assert "python-exception" not in severities(found)
    assert found.exit_status == 0


def test_ctrl_c_is_no_failure(tmp_path):
    text = "epoch 1/9 loss: 1.0\n^CTraceback (most recent call last):\n  File 'train.py', line 3\nKeyboardInterrupt\n"
    found = diagnose(written(tmp_path, "train.log", text))
    assert (found.verdict.outcome.value, found.exit_status) == ("interrupted", 0)


def test_own_journal_is_judged_again(tmp_path):
    """A run folder and its journal.jsonl give the same verdict as the run itself gave."""
    ran = holdfast_run(tmp_path, *_python(training(tmp_path)))
    for path in (ran.run.path, ran.run.journal):
        found = diagnose(path)
        assert found.reading.what == "a Holdfast journal"
        assert found.verdict.outcome.value == ran.summary["verdict"]
        assert found.exit_status == 0
    copy = written(tmp_path, "copied.jsonl", ran.run.journal.read_bytes())
    assert any("supervisor's journal" in note for note in diagnose(copy).reading.notes)


def _python(script):
    import sys

    return sys.executable, script


# --- manners ----------------------------------------------------------------------------------------------------------


def test_json_has_the_shape_of_a_summary(tmp_path):
    ran = holdfast(tmp_path, "diagnose", FIXTURES / "mps_silent_zero", "--json")
    told = json.loads(ran.stdout)
    assert ran.code == 3
    assert told["exit_status"] == 3
    for finding in told["findings"]:
        assert {"rule", "severity", "attempt", "step", "epoch", "message", "evidence", "remedies"} <= set(finding)
        assert finding["step"] is None
    assert {"story", "cause", "confidence", "why", "unknown", "next_steps"} == set(told["explanation"])
    assert told["what"] == "an Ultralytics run folder"


def test_panel_says_cause_unknown_and_next(tmp_path):
    ran = holdfast(tmp_path, "diagnose", FIXTURES / "two_tower_log" / "openmp.log", "--exit-code", "134")
    assert ran.code == 3
    for label in ("failed", "fatal", "seen", "cause", "not known", "next"):
        assert label in ran.stdout
    assert "openmp-duplicate" in ran.stdout


def test_log_on_standard_input(tmp_path):
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "diagnose", "-", "--json"],
        input=(FIXTURES / "logs" / "traceback.log").read_bytes(),
        capture_output=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert json.loads(done.stdout)["explanation"]["cause"] == "python-exception"


def test_report_is_written(tmp_path):
    """The report has what only the diagnosis knows: what was read, and how to go on."""
    run = with_checkpoint(tmp_path)
    ran = holdfast(tmp_path, "diagnose", run, "--report", tmp_path / "out")
    assert ran.code == 3, ran.stderr
    page = (tmp_path / "out" / "report.md").read_text()
    assert "yolo train resume" in page
    assert "epoch 94 of 100" in page
    assert (tmp_path / "out" / "report.html").stat().st_size < 1_000_000


def test_nothing_at_the_path(tmp_path):
    ran = holdfast(tmp_path, "diagnose", "missing")
    assert (ran.code, "missing does not exist" in ran.stderr, "Next:" in ran.stderr) == (2, True, True)


def test_exit_code_out_of_range():
    with pytest.raises(UsageError, match="is not an exit code"):
        judged("mps_silent_zero", 4711)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.csv", b"", "is empty"),
        ("empty.log", b" \n\n", "is empty"),
        ("header.csv", b"epoch,train/box_loss\n", "without any epoch"),
        ("other.csv", b"name,age\nanna,3\n", "without a column called epoch or step"),
        ("last.pt", b"PK\x03\x04" + bytes(range(256)) * 40, "a zip archive, as torch.save writes"),
        ("old.pt", b"\x80\x02" + bytes(range(256)) * 40, "a pickle"),
        ("noise.bin", bytes(range(256)) * 64, "is not a text file"),
        ("zeros.log", bytes(100_000), "is not a text file"),
        ("story.txt", b"It was a dark and stormy night.\nNothing happened.\n", "has no known content"),
        ("trainer_state.json", b'{"log_history": [', "nothing was logged"),
    ],
)
def test_what_is_no_record_is_said_to_be_none(tmp_path, name, content, message):
    """What, why, what to do next; never a traceback."""
    with pytest.raises(UsageError) as refused:
        diagnose(written(tmp_path, name, content))
    assert message in refused.value.what
    assert refused.value.next_step


def test_folder_without_a_record(tmp_path):
    (tmp_path / "photo.png").write_bytes(b"\x89PNG" + bytes(range(256)))
    with pytest.raises(UsageError, match="Nothing in"):
        diagnose(tmp_path)
