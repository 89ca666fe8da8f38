"""Numbers and words that nothing can be done with: a sentence and exit status 2, from options, plans and kept plans alike."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from holdfast import __main__ as way_in
from holdfast.schema.errors import HoldfastError, PlanInvalid, UsageError
from holdfast.schema.plan import Plan, from_toml
from holdfast.storage import folder
from holdfast.storage.plan.values import parse_bytes
from holdfast.storage.plan_copy import write_plan

README = Path(__file__).parents[1] / "README.md"


def called(monkeypatch, capsys, *words):
    """(exit status, what it printed) of the command line."""
    monkeypatch.setattr(sys, "argv", ["holdfast", *words])
    status = way_in._run()
    return status, capsys.readouterr().out


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.py").write_text("print(1)\n")


RUN = ("run", "--json")
TRAIN = ("--", sys.executable, "t.py")


@pytest.mark.parametrize(
    "words",
    [
        (*RUN, "--hang-after", "nan", *TRAIN),
        (*RUN, "--hang-after", "-1", *TRAIN),
        (*RUN, "--backoff", "1e999", *TRAIN),
        (*RUN, "--backoff", "nan", *TRAIN),
        (*RUN, "--max-lost-work", "inf", *TRAIN),
        (*RUN, "--max-attempts", "9" * 30, *TRAIN),
        (*RUN, "--max-attempts", "0", *TRAIN),
        (*RUN, "--resume-with", "'", "--checkpoint", "*.pt", *TRAIN),
        (*RUN, "--on-event", "'", *TRAIN),
        (*RUN, "--rule", "overfitting.epochs=nan", *TRAIN),
        ("check", "--json", "--seconds", "inf", *TRAIN),
        ("check", "--json", "--seconds", "nan", *TRAIN),
    ],
)
def test_an_option_that_makes_no_sense_starts_nothing(monkeypatch, capsys, tmp_path, words):
    """One JSON object that says so, and no run folder."""
    status, out = called(monkeypatch, capsys, *words)
    said = json.loads(out)
    assert (status, said["exit_status"], set(said)) == (2, 2, {"error", "kind", "next", "look_at", "exit_status"})
    assert not (tmp_path / ".holdfast").exists()


@pytest.mark.parametrize("hours", ["nan", "inf", "1e300"])
def test_hours_of_a_resume_are_a_number(monkeypatch, capsys, tmp_path, hours):
    """Over what the plan gave it."""
    run = folder.create(["x"], root=tmp_path, folder=tmp_path / "r")
    write_plan(run, Plan(cwd=str(tmp_path), command=["no-such-program"]))
    status, out = called(monkeypatch, capsys, "resume", "--json", "--hours", hours, "r")
    assert (status, json.loads(out)["exit_status"]) == (2, 2)
    assert "hours" in json.loads(out)["error"]


@pytest.mark.parametrize("amount", ["9" * 400 + " GB", "1" + "0" * 30 + " B", "0." + "1" * 400 + " GB"])
def test_an_amount_of_memory_has_an_end(amount):
    """Also one of which a float would be infinite."""
    assert "no machine has that much" in parse_bytes(amount, 1 << 34)


@pytest.mark.parametrize(
    "line",
    [
        "backoff_s = nan",
        "grace_s = 1e300",
        "sample_every_s = inf",
        "[budget]\nmemory = 99999999999999999999",
        "[budget]\nhours = -1.0",
        "[hang]\nfloor_s = nan",
        "[hang]\nfactor = 1e300",
    ],
)
def test_a_kept_plan_is_held_to_the_same(line):
    """Who changed it gets a sentence at `resume`."""
    with pytest.raises(PlanInvalid):
        from_toml(f"cwd = '/'\ncommand = ['x']\n{line}\n")


@pytest.mark.parametrize(
    "words",
    [
        ("status", "--json", "--no-such-option"),
        ("check", "--json", "--seconds", "many"),
        ("check", "--json", "--seconds", "0"),
        ("run", "--json"),
        ("diagnose", "--json"),
        ("run", "--json", "--on-finding", "panic", "--", "x"),
    ],
)
def test_usage_errors_are_json_where_json_is_asked_for(monkeypatch, capsys, words):
    """An unknown option, no number, out of range, missing, not a choice: in one line, with what to do."""
    status, out = called(monkeypatch, capsys, *words)
    said = json.loads(out)
    assert out.count("\n") == 1
    assert (status, said["exit_status"], said["kind"]) == (2, 2, "UsageError")
    assert said["error"]
    assert said["next"].endswith(f"holdfast {words[0]} --help")


def test_usage_errors_of_a_trainings_own_json_option_are_text(monkeypatch, capsys):
    """`--json` behind `--` is not ours."""
    status, out = called(monkeypatch, capsys, "run", "--no-such-option", "--", "x", "--json")
    assert (status, out) == (2, "")


def kinds(of: type[HoldfastError]) -> list[type[HoldfastError]]:
    return [of, *(kind for each in of.__subclasses__() for kind in kinds(each))]


def test_no_error_that_a_person_can_mend_is_a_fault_of_holdfasts_own():
    """As the README's list of exit statuses says: 1 is for faults of Holdfast's own, 2 for usage."""
    statuses = r"^\| 1 \| an internal error in Holdfast \|\n\| 2 \| a usage error"
    assert re.search(statuses, README.read_text(), re.MULTILINE)
    assert {kind.exit_status for kind in kinds(HoldfastError)} == {2}
    assert all(kind.__doc__ for kind in kinds(UsageError)), "each error says what it is about"
