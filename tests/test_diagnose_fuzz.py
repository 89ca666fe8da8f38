"""Any bytes give a diagnosis or a clear refusal, never anything else. Seeded: what fails once fails again."""

from __future__ import annotations

import io
import json
import random
import shutil

import pytest
from diagnosed import FIXTURES
from rich.console import Console

from holdfast.importers.diagnose import diagnose
from holdfast.render.diagnosis import as_builtins, panel
from holdfast.schema.errors import UsageError
from holdfast.schema.json_text import to_json

FILES = sorted(path for path in FIXTURES.rglob("*") if path.is_file() and path.name != "README.md")
CASES = 16
"""Of each fixture."""
NUMBERS = [b"nan", b"-inf", b"1e308", b"-1e308", b"9" * 5000, b"0x10", b"1_0", b"-1", b"", b"null", b"\xd9\xa3"]
INSERTED = [
    b"\0" * 50,
    b"\r" * 200,
    b"\x1b[31m\x1b]0;title",
    b"," * 3000,
    b'"' * 7,
    b"{" * 2000,
    b"[" * 2000,
    b"Epoch 999999999999/1 loss: 1e999 ",
    b"\xff\xfe\xfa",
    "🚀\u2028\u202e".encode(),
    b"x" * 100_000,
    b"\\ud800",
]


def mutated(data: bytes, chance: random.Random) -> bytes:
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data) + 1)
        how = chance.randrange(7)
        if how == 0:
            data = data[:at]
        elif how == 1:
            data = data[at:]
        elif how == 2 and data:
            corrupt = bytearray(data)
            for _ in range(chance.randint(1, 20)):
                corrupt[chance.randrange(len(corrupt))] ^= 1 << chance.randrange(8)
            data = bytes(corrupt)
        elif how == 3:
            data = data[:at] + chance.choice(INSERTED) + data[at:]
        elif how == 4:
            data = data[:at] + chance.randbytes(chance.randint(1, 200)) + data[at:]
        elif how == 5:
            end = min(len(data), at + chance.randint(1, 400))
            data = data[:at] + data[at:end] * chance.randint(2, 30) + data[end:]
        else:
            found = [n for n, byte in enumerate(data) if 48 <= byte <= 57]
            if found:
                at = chance.choice(found)
                data = data[:at] + chance.choice(NUMBERS) + data[at + 1 :]
    return data


def outcome(path, exit_code):
    """A diagnosis that can be shown in every form, or a refusal that says what to do."""
    try:
        found = diagnose(path, exit_code=exit_code)
    except UsageError as error:
        refused = error
    else:
        refused = None
    if refused is not None:
        assert refused.what
        assert refused.next_step
        return
    assert found.exit_status in (0, 3)
    assert found.explanation.story
    json.loads(to_json(as_builtins(found)))
    Console(file=io.StringIO(), width=120).print(panel(found))
    for finding in found.state.findings:
        assert "This rule failed" not in finding.message, finding.message


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(FIXTURES)))
def test_spoiled_records(tmp_path, file):
    """Cut, flipped, stuffed, repeated: alone, and among what belongs beside it."""
    chance = random.Random(str(file.relative_to(FIXTURES)))
    data = file.read_bytes()
    for _ in range(CASES):
        corrupt = mutated(data, chance)
        exit_code = chance.choice([None, None, 0, 1, 134, 137, 139, -9])
        if chance.random() < 0.5:
            folder = tmp_path / "folder"
            shutil.copytree(file.parent, folder)
            (folder / file.name).write_bytes(corrupt)
            outcome(folder, exit_code)
            shutil.rmtree(folder)
        else:
            (tmp_path / file.name).write_bytes(corrupt)
            outcome(tmp_path / file.name, exit_code)


JOURNAL = b"""{"event":"run-started","at":0.0,"schema":1,"run":"r-1","command":["python"],"cwd":"/","holdfast":"0","platform":"linux","python":"3","supervisor":1}
{"event":"attempt-started","at":1.0,"attempt":1,"pid":2,"command":["python"]}
{"event":"step","at":2.0,"step":1,"seconds":0.1,"loss":1.5}
{"event":"steps","at":3.0,"first":2,"last":9,"seconds":0.8,"loss":{"n":8,"mean":1.2,"low":1.0,"high":1.4,"first":1.4,"last":1.0}}
{"event":"metrics","at":4.0,"step":9,"epoch":1,"values":{"mAP":0.1,"val/loss":"nan"},"source":"u"}
{"event":"attempt-ended","at":5.0,"attempt":1,"code":137,"last_step":9,"seconds":4.0}
{"event":"run-ended","at":6.0,"verdict":"failed","reason":"x"}
"""


def test_spoiled_journals(tmp_path):
    """Windows that end before they begin, attempts out of order, values that make no sense."""
    chance = random.Random(7)
    lines = JOURNAL.splitlines(keepends=True)
    outcome_of = [JOURNAL, b"".join(reversed(lines)), lines[0] + b"".join(lines[1:] * 5)]
    outcome_of.append(JOURNAL.replace(b'"first":2', b'"first":10'))
    outcome_of += [mutated(JOURNAL, chance) for _ in range(60)]
    for data in outcome_of:
        path = tmp_path / "journal.jsonl"
        path.write_bytes(data)
        outcome(path, None)


def test_noise(tmp_path):
    """Bytes of no kind at all, under every name that a record can have."""
    chance = random.Random(3)
    for name in ("results.csv", "metrics.csv", "trainer_state.json", "journal.jsonl", "train.log", "args.yaml"):
        for _ in range(12):
            (tmp_path / name).write_bytes(chance.randbytes(chance.randrange(4000)))
            outcome(tmp_path / name, None)
            outcome(tmp_path, 137)
        (tmp_path / name).unlink()
