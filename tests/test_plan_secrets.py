"""What is said about a mistake in a plan quotes no secret of it."""

from __future__ import annotations

import pytest

from holdfast.schema.errors import PlanInvalid
from holdfast.schema.plan import Plan
from holdfast.storage.plan.load import read
from holdfast.supervisor.notify import split_command

SECRET = "ZqKw83mdLp20xs"


@pytest.mark.parametrize(
    "text",
    [
        f'api_key = "{SECRET}\n',
        f'api_key = "{SECRET}" x\n',
        f"hf_token: {SECRET}\n",
        f'command = "python t.py --token \'{SECRET}"\n',
        f'command = "bash -c \'PGPASSWORD={SECRET} psql"\n',
        f'command = ["python", "t.py", "--api-key", "{SECRET}", 5]\n',
        f'command = ["python", "t.py", "--api-key",\n  "{SECRET}\n',
        f'command = "true"\n[environment]\nHF_TOKEN = ["{SECRET}"]\n',
        f'command = "true"\n[environment]\nX = {{ DB_PASSWORD = "{SECRET}" }}\n',
        f'command = "true"\n[flags]\ntoken = "a {SECRET}"\n',
        f'command = "true"\n[budget]\nmemory = "token={SECRET}"\n',
        f'command = "true"\nname = "postgres://u:{SECRET}@host/db"\n',
        f'command = "true"\ncheckpoint = "x.pt"\nresume_with = "--auth-token {SECRET} {{checkpoin}}"\n',
        f'command = "true"\non_event = "notify --token \'{SECRET}"\n',
        f'password = "{SECRET}"\napi_key = 5\n',
    ],
)
def test_mistake_in_a_plan_quotes_no_secret(tmp_path, text):
    """Open quotes, wrong types, unknown keys: the line and the value are quoted without it."""
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(PlanInvalid) as raised:
        read(path)
    assert SECRET not in str(raised.value)
    assert "line " in str(raised.value)


def test_line_without_secrets_is_quoted_as_it_is(tmp_path):
    """With the mark under the place of the mistake."""
    path = tmp_path / "plan.toml"
    path.write_text('command = "python t.py --tokenizer bert\n')
    with pytest.raises(PlanInvalid) as raised:
        read(path)
    assert 'command = "python t.py --tokenizer bert\n' in str(raised.value)
    assert str(raised.value).splitlines()[2].strip().startswith("^")


def test_options_of_the_command_line_are_quoted_without_secrets():
    """--on-event and --resume-with, where they cannot be used."""
    with pytest.raises(PlanInvalid) as raised:
        split_command(f"notify --token '{SECRET}")
    assert SECRET not in str(raised.value)
    with pytest.raises(PlanInvalid) as raised:
        Plan(command=["true"], cwd="/", checkpoint="x", resume_with=f"--auth-token {SECRET} {{x}}")
    assert SECRET not in str(raised.value)
