"""Plan files: what they come to, and all of their mistakes at once, each with its line and what to write instead."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from holdfast.frameworks.ultralytics import install
from holdfast.frameworks.ultralytics.plan_settings import check_settings
from holdfast.frameworks.ultralytics.setting_values import SETTINGS
from holdfast.schema import plan as words
from holdfast.schema.errors import PlanInvalid
from holdfast.schema.plan_keys import BY_NAME, GATE, STAGE, TABLES, TOP
from holdfast.storage.plan.load import ReadContext, read
from holdfast.storage.plan.text import MAX_VALUE, tomllib
from holdfast.storage.plan.toml_lines import locate_keys

ROOT = Path(__file__).resolve().parent.parent
GB = 10**9
NEEDED = '[settings]\nmodel = "yolo11n.yaml"\ndata = "data.yaml"\n'


def plan_of(folder, text, **known):
    path = folder / "plan.toml"
    path.write_text(text)
    return read(path, ReadContext(**{"memory": lambda: 10 * GB, **known}))


def mistakes_of(folder, text, **known):
    """Line -> what was said of it, of a plan that must have some."""
    with pytest.raises(PlanInvalid) as caught:
        plan_of(folder, text, **known)
    told = re.findall(r"^  line (\d+): (.*)$", caught.value.what, re.MULTILINE)
    assert told, caught.value.what
    return [(int(line), message) for line, message in told]


def only_mistake(folder, text, **known):
    found = mistakes_of(folder, text, **known)
    assert len(found) == 1, found
    return found[0]


FULL = """
name = "cells"
python = "env/bin/python"
[settings]
model = "yolo11n.yaml"
data = "sets/data.yaml"
device = 0
optimizer = "adamw"
lr0 = 0.01
[[stage]]
settings = { imgsz = 64, epochs = 2 }
[[stage]]
name = "large"
from = "last"
skip_if_oom = true
[stage.settings]
imgsz = 96
[stage.gate]
metric = "mAP50"
at_least = 0.25
[budget]
memory = "50%"
hours = 1.5
attempts = 2
[policy]
devices = ["mps", "cpu"]
never_change = ["imgsz", "validation.every", "environment.X"]
[validation]
every = 5
best_by = "F2"
[clear_cache]
epochs = 1
[environment]
OMP_NUM_THREADS = 1
[rules]
overfitting = { severity = "off", epochs = 5 }
[hang]
floor_s = 60
"""


def test_full_plan(tmp_path):
    """Every part comes to its place; what was left out follows from the rest."""
    plan = plan_of(tmp_path, FULL)
    assert (plan.trainer, plan.name, plan.cwd) == ("ultralytics", "cells", str(tmp_path))
    assert plan.python == str(tmp_path / "env/bin/python")
    assert plan.settings["data"] == "sets/data.yaml"
    assert [stage.name for stage in plan.stages] == ["1", "large"]
    assert (plan.stages[1].start, plan.stages[1].skip_if_oom, plan.stages[1].gate.at_least) == ("last", True, 0.25)
    assert plan.budget == words.Budget(attempts=2, hours=1.5, memory=5 * GB)
    assert plan.environment == {"OMP_NUM_THREADS": "1"}
    assert (plan.validation.every, plan.clear_cache.epochs, plan.hang.floor_s) == (5, 1, 60)
    assert words.from_toml(words.to_toml(plan)) == plan


def test_command_plan(tmp_path):
    """A command is a text split like a shell does, or a list; `cwd` counts from the plan's folder."""
    (tmp_path / "x").mkdir()
    plan = plan_of(tmp_path, "command = \"python 'my train.py' --bs 3\"\ncwd = 'x'\nflags = { batch = '--bs' }")
    assert (plan.trainer, plan.command) == ("command", ["python", "my train.py", "--bs", "3"])
    assert (plan.cwd, plan.name) == (str(tmp_path / "x"), "plan")
    assert plan_of(tmp_path, 'command = ["a", "b c"]').command == ["a", "b c"]
    assert plan_of(tmp_path, "[[stages]]\ncommand = 'a 1'\n[[stages]]\ncommand = 'a 2'").stages[1].command == ["a", "2"]


@pytest.mark.parametrize(
    ("memory", "amount"),
    [
        ("12 GB", 12 * GB),
        ("11.5GiB", int(11.5 * (1 << 30))),
        ("800 mb", 8 * 10**8),
        ("80%", 8 * GB),
        ("100 %", 10 * GB),
    ],
)
def test_memory_with_its_unit(tmp_path, memory, amount):
    assert plan_of(tmp_path, f'command = "x"\n[budget]\nmemory = "{memory}"').budget.memory == amount


def test_all_mistakes_are_told_at_once(tmp_path):
    """Unknown, misplaced, mistyped and impossible, from the top to the last table, in the order of their lines."""
    text = f"""batch = 4
nme = "x"
overrides = {{ batch = 2 }}
{NEEDED}mosic = 0.5
epochs = -3
workers = "8"
[[stages]]
from = "best"
[[stages]]
name = "a b"
settings = {{ imgsz = 0 }}
[budgets]
attempts = 2
[validation]
evry = 2
"""
    found = mistakes_of(tmp_path, text)
    assert [line for line, _ in found] == [1, 2, 3, 7, 8, 9, 11, 13, 14, 15, 18]
    wanted = [
        "move it to [settings]",
        "name?",
        "use [settings]",
        "mosaic?",
        "1 or more",
        "quotes: 8",
        "no stage before the first",
    ]
    wanted += ["letters", "32 or more", "[budget]?", "every?"]
    for (_, message), part in zip(found, wanted, strict=True):
        assert part in message


@pytest.mark.parametrize(
    ("text", "line", "parts"),
    [
        ("val_period = 5\n" + NEEDED, 1, ["val_period", "[validation] every"]),
        (NEEDED + "val_period = 5", 4, ["settings.val_period", "[validation] every"]),
        (NEEDED + "val_batch = 5", 4, ["[validation] batch"]),
        (NEEDED + "attempts = 5", 4, ["move it to [budget]"]),
        (NEEDED + "lr0 = 0.01", 4, ["ignored", 'optimizer = "AdamW"']),
        (NEEDED + 'optimizer = "auto"\nmomentum = 0.9', 5, ["momentum", "ignored"]),
        (NEEDED + 'optimizer = "adanw"', 4, ['did you mean "AdamW"?']),
        (NEEDED + "resume = true", 4, ["resumes a crashed training automatically"]),
        (NEEDED + "time = 2.0\nepochs = 5", 4, ["epochs", "[budget] hours"]),
        (NEEDED + "exist_ok = true", 4, ["next free folder"]),
        (NEEDED + "save = false", 4, ["no weights"]),
        (NEEDED + 'source = "x"', 4, ["has no effect on training"]),
        (NEEDED + "accumulate = 4", 4, ["nbs"]),
        (NEEDED + "mosaic = 2.0", 4, ["is 2.0", "between 0 and 1"]),
        (NEEDED + "batch = 0", 4, ["1 or more images"]),
        (NEEDED + "batch = 1.5", 4, ["1 or more images"]),
        (NEEDED + "epochs = 1e2", 4, ["write 100"]),
        (NEEDED + "degrees = nan", 4, ["between -180 and 180"]),
        (NEEDED + "plots = 1", 4, ["true or false"]),
        (NEEDED + 'device = "gpu:0"', 4, ['is "gpu:0"']),
        (NEEDED + 'device = "cup"', 4, ['did you mean "cpu"?']),
        (NEEDED + '[[stages]]\n[[stages]]\nsettings.model = "b.pt"', 6, ["stages.2.settings.model", 'from = "scratch"']),
        (NEEDED + '[[stages]]\nname = "a"\n[[stages]]\nname = "A"', 7, ["stage 1", "names must be different"]),
        (NEEDED + '[[stages]]\nname = "../x"', 5, ["a valid folder name"]),
        (NEEDED + '[[stages]]\nname = "2"\n[[stages]]\nfrom = "best"', 6, ["stages.2.name", "names must be different"]),
        (NEEDED + "[[stages]]\nepochs = 3", 5, ["settings of this stage"]),
        (NEEDED + '[[stages]]\ngate = { metric = "map50" }', 5, ['did you mean "mAP50"?']),
        (NEEDED + "stages = 3", 4, ["settings.stages", "move it to the top"]),
        (NEEDED + "[stages]\nname = 'x'", 4, ["[[stages]], with two brackets"]),
        (NEEDED + "[budget]\nmemory = 12", 5, ["unit"]),
        (NEEDED + '[budget]\nmemory = "12 bananas"', 5, ["unit"]),
        (NEEDED + '[budget]\nmemory = "12 MB"', 5, ["no training fits"]),
        (NEEDED + '[budget]\nmemory = "120%"', 5, ["100%"]),
        (NEEDED + "[budget]\nattempts = 0", 5, ["between 1 and 10000"]),
        (NEEDED + "[budget]\nhours = -1", 5, ["between 0.0001 and 1e+06"]),
        (NEEDED + "[policy]\nnever_change = ['imgsz', 'mosaik']", 5, ["never_change.2", 'did you mean "mosaic"?']),
        (NEEDED + "[policy]\ndevices = ['mpss']", 5, ['did you mean "mps"?']),
        (NEEDED + "[policy]\nmay_change = ['batch']\nnever_change = ['batch']", 6, ["keep one of them"]),
        (NEEDED + "[rules]\nloss-all-zeros = { severity = 'off' }", 5, ["did you mean loss-all-zero?"]),
        (NEEDED + "[rules]\nloss-all-zero = 'off'", 5, ['{ severity = "off" }']),
        (NEEDED + "[rules]\nloss-all-zero = { stepz = 3 }", 5, ["did you mean steps?"]),
        (NEEDED + "[environment]\nHOLDFAST_X = '1'", 5, ["reserved for Holdfast: delete it"]),
        (NEEDED + "[flags]\nbatch = '--bs'", 4, ["trainer is Ultralytics"]),
        ('command = "x"\nresume_with = "--resume"', 2, ["add checkpoint"]),
        ('command = "x"\ncheckpoint = "*"\nresume_with = "-r {file}"', 3, ["{checkpoint}"]),
        ("command = \"python 'x\"", 1, ["not closed"]),
        ('command = ""', 1, ["is empty"]),
        ('trainer = "comand"', 1, ['did you mean "command"?']),
        ('trainer = "command"', 1, ["has no command"]),
        ('command = "x"\ntrainer = "ultralytics"\n' + NEEDED, 1, ["is not used"]),
        ('[settings]\nmodel = "x.yaml"', 1, ["has no data", "holdfast init"]),
        ("xyzzy = 1\n" + NEEDED, 1, ["the keys allowed here are trainer"]),
    ],
)  # fmt: skip
def test_one_mistake(tmp_path, text, line, parts):
    found_at, message = only_mistake(tmp_path, text, rules={"loss-all-zero": ("steps",)})
    assert found_at == line
    for part in parts:
        assert part in message


def test_lr0_counts_where_its_own_stage_names_an_optimizer(tmp_path):
    """The second stage may set both; the first is still told of what it would ignore."""
    own = NEEDED + "[[stages]]\n[[stages]]\nsettings = { optimizer = 'SGD', lr0 = 0.1 }"
    assert plan_of(tmp_path, own).stages[1].settings["lr0"] == 0.1
    line, message = only_mistake(tmp_path, NEEDED + "lr0 = 0.1\n[[stages]]\n[[stages]]\nsettings.optimizer = 'SGD'")
    assert line == 4
    assert "ignored" in message


def test_settings_of_a_newer_version_are_taken_where_it_is_installed(tmp_path, monkeypatch):
    """The interpreter of the plan is asked, and only where a name is not known."""
    asked = []

    def settings_of(python):
        asked.append(python)
        return {"sparkle"}

    monkeypatch.setattr(install, "find_settings", settings_of)
    assert plan_of(tmp_path, NEEDED)
    assert asked == []
    plan = plan_of(tmp_path, f"python = './env/bin/python'\n{NEEDED}sparkle = 1")
    assert plan.settings["sparkle"] == 1
    assert asked == [str(tmp_path / "env/bin/python")]
    assert "sparkel" in only_mistake(tmp_path, NEEDED + "sparkel = 1")[1]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a = 1\nepochs: 3", ["line 2", "key = value", "epochs: 3"]),
        ("a = True", ["line 1", "lowercase"]),
        ("a = None", ["line 1", "delete the key"]),
        ("a = yolo.pt", ["line 1", "in quotes"]),
        ("a = { b = 1,\nc = 2 }", ["line 1", "on one line"]),
        ("a = 1\na = 2", ["line 2"]),
        ('a = "x', ["line 1"]),
        ("a = [1, 2", ["not closed"]),
        ("a = " + "[" * 100_000, ["nested too deeply"]),
    ],
)
def test_broken_toml_is_told_with_its_line(tmp_path, text, parts):
    with pytest.raises(PlanInvalid) as caught:
        plan_of(tmp_path, text)
    for part in parts:
        assert part in caught.value.what


def test_what_is_no_plan_file(tmp_path):
    """A folder, nothing, bytes, something huge, a pipe: one sentence each, and never a wait."""
    (tmp_path / "plan.toml").write_text(NEEDED)
    (tmp_path / "bytes.toml").write_bytes(b"a = 1\nb = '\xff'")
    (tmp_path / "huge.toml").write_bytes(b"#" * (MAX_VALUE + 1))
    os.mkfifo(tmp_path / "pipe.toml")
    for name, part in [
        (".", str(tmp_path / "bytes.toml")),
        ("pan.toml", "did you mean"),
        ("none/x.toml", "holdfast init"),
        ("bytes.toml", "line 2"),
        ("huge.toml", "larger than 1 MB"),
        ("pipe.toml", "not a regular file"),
    ]:
        with pytest.raises(PlanInvalid) as caught:
            read(tmp_path / name)
        assert part in str(caught.value)


def test_windows_line_ends_and_byte_order_mark(tmp_path):
    (tmp_path / "plan.toml").write_bytes(b"\xef\xbb\xbf" + NEEDED.replace("\n", "\r\n").encode())
    assert read(tmp_path / "plan.toml").settings["model"] == "yolo11n.yaml"


LINES = '''# a comment with [brackets] and key = value
"quoted key".b = """
[not a table]
x = 1
"""
c = [ 1, # one ]
  [2, 3], { d = 1, "e.f" = 'g' } ]
h.i.j = 'it''' + "'" + '''
[ t . u ]
k = '\\n' # it's
"l\\u0041" = 1979-05-27 07:32:00
[[arr]]
m = """a\\"""b"""
[arr.sub]
n = 1
[[arr]]
m = 2
[[arr.deep]]
o = 1
[[arr.deep]]
o = 2
'''  # fmt: skip


def test_lines_of_every_form():
    """Tables, arrays of tables, inline tables, dotted and quoted keys, strings over several lines."""
    lines = locate_keys(LINES)
    assert lines[("quoted key", "b")] == 2
    assert (lines[("c", 0)], lines[("c", 1)], lines[("c", 1, 1)], lines[("c", 2, "e.f")]) == (6, 7, 7, 7)
    assert lines[("h", "i", "j")] == 8
    assert (lines[("t", "u", "k")], lines[("t", "u", "lA")]) == (10, 11)
    assert (lines[("arr", 0, "m")], lines[("arr", 0, "sub", "n")], lines[("arr", 1, "m")]) == (13, 15, 17)
    assert (lines[("arr", 1, "deep", 0, "o")], lines[("arr", 1, "deep", 1, "o")]) == (19, 21)
    assert ("not a table",) not in lines
    assert ("x",) not in lines


def paths_in(value, at=()):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*at, key)
        yield from paths_in(item, (*at, key))


@pytest.mark.parametrize("seed", range(30))
def test_lines_know_exactly_the_keys_that_the_reader_knows(seed):
    """On texts made at random of all forms, shuffled: the same paths as tomllib's, none more and none less."""
    random_ = random.Random(seed)
    values = [
        "1",
        "-1.5e3",
        "true",
        "'a#b'",
        '"q\\"]"',
        '"""\nx = 1\n[y]\n"""',
        "'''\n'it''s'''",
        "[]",
        "[1,\n 2, # ]\n]",
    ]
    values += ["{}", "{ a = 1, b.c = [ { d = '}' } ] }", "07:32:00", "[[1, 2], ['a', \"b\"]]", "inf"]
    text = ["# begin"]
    for n in range(random_.randrange(1, 12)):
        text.append(random_.choice([f"[t{n}]", f"[ t{n} . 'x y' ]", "[[many]]", f"[[deep.many{n % 2}]] # [z]", ""]))
        keys = [f"a{n}", f"'b {n}'", f'"d{n}"', f"e{n}.f", f"g{n} . 'h.h' .i"]
        text += [f"{key} = {random_.choice(values)}  # c = 1" for key in random_.sample(keys, random_.randrange(4))]
    known = tomllib.loads("\n".join(text))
    assert set(locate_keys("\n".join(text))) == set(paths_in(known))


def test_list_of_keys_is_that_of_the_plan():
    """What a user may write is what a plan has, with the same defaults; only what remedies write is not for users."""
    tables = {table.name: table for table in TABLES}
    fields = {field.encode_name: field for field in msgspec.structs.fields(words.Plan)}
    top = {key.name for key in TOP.keys}
    assert top | {name for name in tables if "." not in name} == set(fields) - {"overrides"}
    for table, struct in [
        (STAGE, words.Stage), (GATE, words.Gate), (TOP, words.Plan), (tables["validation"], words.Validation),
        (tables["clear_cache"], words.ClearCache), (tables["budget"], words.Budget), (tables["policy"], words.Policy),
        (tables["hang"], words.HangSettings),
    ]:  # fmt: skip
        fields = {field.encode_name: field for field in msgspec.structs.fields(struct)}
        assert struct is words.Plan or {key.name for key in table.keys} == set(fields)
        for key in table.keys:
            default = fields[key.name].default
            if default not in (msgspec.NODEFAULT, None, "") and key.name not in ("trainer", "gate"):
                assert key.holds.default == default, key.name


def test_every_example_is_a_plan(tmp_path):
    """What the docs and `holdfast init` show can be written as it stands."""
    from holdfast.diagnosis.rules import by_id

    rules = {name: tuple(rule.limits) for name, rule in by_id().items()}
    for_command = {"command", "checkpoint", "resume_with"}
    for name, table in BY_NAME.items():
        for key in table.keys or ():
            head = f"[{name}]\n" if name not in ("", "stages", "stages.gate") else ""
            if name == "stages":
                head = "[[stages]]\n[[stages]]\n"
            elif name == "stages.gate":
                head = "[[stages]]\n[stages.gate]\n"
            base = 'command = "x"\n' if key.name in for_command and key.name != "command" else NEEDED
            extra = 'checkpoint = "x"\n' if key.name == "resume_with" else ""
            text = f"{key.example}\n{extra}{base}" if not name else f"{base}{head}{key.example}\n"
            if key.name == "command":
                text = f"{head}{key.example}\n" if not name else f"[[stages]]\ncommand = 'x'\n[[stages]]\n{key.example}"
            assert plan_of(tmp_path, text, rules=rules), text
        if table.keys is None and name != "settings":
            base = 'command = "x"\n' if name == "flags" else NEEDED
            assert plan_of(tmp_path, f"{base}[{name}]\n{table.example}", rules=rules)


def test_plans_of_the_docs_are_plans(tmp_path):
    shown = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "plans.md").read_text(), re.DOTALL)[:2]
    assert [plan_of(tmp_path, text).trainer for text in shown] == ["ultralytics", "command"]


def test_settings_are_those_of_the_installed_version():
    """The list is made by a tool; after an upgrade it has to be made again."""
    tool = ROOT / "tools" / "write_ultralytics_settings.py"
    done = subprocess.run([sys.executable, tool, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


REFERENCE = """
import json, sys
from ultralytics.cfg import check_cfg
rejected = []
for name, value in json.load(sys.stdin):
    try:
        check_cfg({name: value})
    except (TypeError, ValueError):
        rejected.append([name, value])
print(json.dumps(rejected))
"""


def test_what_ultralytics_rejects_is_a_mistake():
    """Its own check is asked about every setting with values of every kind: none that it refuses passes here."""
    values = [-3, -1, 0, 1, 2, 70, -0.5, 0.0, 0.3, 1.5, 100.0, True, "x", "true", "fp16", [0.5, 2.0], [1, 2, 3, 4], []]
    asked = [(name, value) for name in SETTINGS for value in values]
    done = subprocess.run(
        [sys.executable, "-c", REFERENCE], input=json.dumps(asked), capture_output=True, text=True, check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "YOLO_VERBOSE": "false"},
    )  # fmt: skip
    rejected = json.loads(done.stdout.strip().splitlines()[-1])
    assert len(rejected) > 500
    missed = [pair for pair in rejected if not list(check_settings(dict([pair]), (), tuple))]
    assert not missed


def test_whatever_is_in_the_file_it_is_a_plan_or_a_sentence(tmp_path):
    """Cut, doubled and swapped at random, values of the wrong kind anywhere: no other error ever comes out."""
    random_ = random.Random(0)
    wrong = [
        "1",
        '"x"',
        "[]",
        "{}",
        "true",
        "[[1]]",
        "-1",
        "nan",
        "[{ a = 1 }]",
        "1979-05-27",
        '"\\u0000"',
        "{ a = { b = [1] } }",
    ]
    outcomes = []
    for _ in range(300):
        lines = FULL.split("\n")
        for _ in range(random_.randrange(1, 4)):
            at = random_.randrange(len(lines))
            if "=" in lines[at]:
                lines[at] = f"{lines[at].partition('=')[0]}= {random_.choice(wrong)}"
            elif random_.random() < 0.3:
                lines[at] = random_.choice(
                    ["", "[stage]", "[[settings]]", "[[budget]]", "[a.b]", "stage = 1", "x = [1"]
                )
        try:
            plan_of(tmp_path, "\n".join(lines))
            outcomes.append("")
        except PlanInvalid as error:
            outcomes.append(error.what)
    assert "" in outcomes
    told = [outcome for outcome in outcomes if outcome]
    assert len(told) > 100
    assert not [
        message for message in told if "cannot be used" in message
    ]  # what the frozen types alone would have found
