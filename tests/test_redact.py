"""What is written down of commands and environments holds no secret, and is otherwise left as it was."""

from __future__ import annotations

import time

import pytest

from holdfast.render.text import printable
from holdfast.storage.redact import Redactor, allowed_environment


def redact_command(argv):
    return Redactor().command(argv)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["--api-key", "abc"], ["--api-key", "***"]),
        (["--api_key=abc"], ["--api_key=***"]),
        (["--wandb.token", "abc", "--lr", "0.1"], ["--wandb.token", "***", "--lr", "0.1"]),
        (["wandb.key=abc"], ["wandb.key=***"]),
        (["+logger.secret=abc"], ["+logger.secret=***"]),
        (["HF_TOKEN=abc", "python", "train.py"], ["HF_TOKEN=***", "python", "train.py"]),
        (["--dbPassword", "abc"], ["--dbPassword", "***"]),
        (["--passwd=a=b=c"], ["--passwd=***"]),
        (["-Dauth.token=abc"], ["-Dauth.token=***"]),
        (["-Dpassword=abc", "-Ptoken=abc"], ["-Dpassword=***", "-Ptoken=***"]),
        (["--set=model.token=abc"], ["--set=model.token=***"]),
        (["--override", "x.password=abc"], ["--override", "x.password=***"]),
        (["--credential", "-starts-with-dash"], ["--credential", "***"]),
        (["--secret", ""], ["--secret", "***"]),
    ],
)
def test_named_secrets_are_masked(given, kept):
    """In every form in which an argument can be named."""
    assert redact_command(given) == kept


@pytest.mark.parametrize(
    "argv",
    [
        ["--keypoints", "17"],
        ["--tokenizer", "gpt2"],
        ["--tokenizer=path/to/it"],
        ["monkey=1"],
        ["-Keypoints=17", "-Dkeypoints=17"],
        ["--max-tokens", "512"],
        ["--author", "me"],
        ["--pad-token", "<pad>"],
        ["--eos_token=</s>"],
        ["--turkey=1", "--secretary", "x", "--authentic=yes"],
        ["yolo", "train", "data=coco.yaml", "model=yolo11n.pt", "imgsz=640", "lr0=0.01"],
        ["--data", "https://example.com/a.zip?download=1&name=x"],
        ["git@github.com:u/r.git"],
        ["--expr=a==b"],
        ["-c", "print('hello = world')"],
    ],
)
def test_what_only_looks_alike_is_left_alone(argv):
    """Whole words decide: a masked keypoint count would be a lost fact."""
    assert redact_command(argv) == argv


def test_an_option_after_a_flag_is_not_its_value():
    """`--auth` without a value does not hide the next option."""
    assert redact_command(["--auth", "--epochs", "3"]) == ["--auth", "--epochs", "3"]
    assert redact_command(["--use-auth-token"]) == ["--use-auth-token"]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("https://user:pa%40ss@host/x", "https://user:***@host/x"),
        ("--db=postgres://me:p@ss@db:5432/runs", "--db=postgres://me:***@db:5432/runs"),
        ("redis://:secret@host", "redis://:***@host"),
        ("https://host/f?token=abc&x=1", "https://host/f?token=***&x=1"),
        ('{"api_key": "abc", "lr": "0.1"}', '{"api_key": "***", "lr": "0.1"}'),
        ("Authorization: Bearer abcdefghijk", "Authorization: Bearer ***"),
        ("hf_" + "a" * 34, "***"),
        ("--hub=hf_" + "a" * 34, "--hub=***"),
        ("sk-" + "a1" * 20, "***"),
        ("AKIA" + "A1" * 8, "***"),
    ],
)
def test_secrets_inside_a_value(given, kept):
    """Passwords in addresses, named ones in JSON and queries, and the shapes of well-known tokens."""
    assert redact_command([given]) == [kept]


def test_the_command_is_otherwise_the_same():
    """Length and order are kept, and the argument itself is not changed."""
    argv = ["python", "train.py", "--token", "t", "--epochs", "10"]
    assert redact_command(argv) == ["python", "train.py", "--token", "***", "--epochs", "10"]
    assert argv[3] == "t"


def test_the_environment_is_an_allow_list():
    """What changes a computation is kept; everything else, secret or not, is not written down."""
    env = {
        "OMP_NUM_THREADS": "1",
        "PYTORCH_MPS_HIGH_WATERMARK_RATIO": "0.0",
        "TORCH_HOME": "/x",
        "KMP_DUPLICATE_LIB_OK": "TRUE",
        "CUDA_VISIBLE_DEVICES": "0",
        "WORLD_SIZE": "2",
        "SLURM_JOB_ID": "7",
        "PYTHONHASHSEED": "0",
        "YOLO_OFFLINE": "true",
        "AWS_SECRET_ACCESS_KEY": "x",
        "HOME": "/home/me",
        "WANDB_API_KEY": "x",
        "SLURM_JWT": "x",
        "XTORCH": "x",
    }
    kept = allowed_environment(env)
    assert set(env) - set(kept) == {"AWS_SECRET_ACCESS_KEY", "HOME", "WANDB_API_KEY", "SLURM_JWT", "XTORCH"}
    assert kept["OMP_NUM_THREADS"] == "1"


def test_a_secret_under_an_allowed_name_is_masked():
    """By its name or by its look; and values are bounded."""
    kept = allowed_environment(
        {"YOLO_API_KEY": "x", "TORCH_HUB": "https://u:p@h/", "NCCL_NOTE": "hf_" + "a" * 30, "MKL_LONG": "x" * 5000}
    )
    assert (kept["YOLO_API_KEY"], kept["TORCH_HUB"], kept["NCCL_NOTE"]) == ("***", "https://u:***@h/", "***")
    assert len(kept["MKL_LONG"]) == 1000


def test_places_are_no_secrets(tmp_path):
    """PWD and SSH_AUTH_SOCK have names like secrets; masking them would take the paths out of every message."""
    places = {"PWD": str(tmp_path), "SSH_AUTH_SOCK": str(tmp_path)}
    assert Redactor((), {**places, "DB_PWD": "/not/a/path", "API_KEY": "hunter2hunter2"}).secrets == {
        "/not/a/path",
        "hunter2hunter2",
    }


@pytest.mark.parametrize(
    ("program", "kept"),
    [
        ("export WANDB_API_KEY=s3cr3t; python t.py", "export WANDB_API_KEY=***; python t.py"),
        ("env TOKEN=s3cr3t python t.py", "env TOKEN=*** python t.py"),
        ("sudo X_PASSWORD=s3cr3t python t.py", "sudo X_PASSWORD=*** python t.py"),
        ("python3 -u t.py token=s3cr3t", "python3 -u t.py token=***"),
        ("python t.py --password 's3 cr3t' --lr 0.1", "python t.py --password '***' --lr 0.1"),
        ("HF_TOKEN='s3 cr3t' python t.py", "HF_TOKEN='***' python t.py"),
        ("curl -H 'Authorization: Bearer s3cr3t' h", "curl -H 'Authorization: Bearer ***' h"),
        ('t.py --cfg "{\\"api_key\\": \\"s3cr3t\\"}"', 't.py --cfg "{\\"api_key\\": \\"***\\"}"'),
        ("t.py --key $KEY --token ${TOKEN}", "t.py --key $KEY --token ${TOKEN}"),
        ("t.py --num-key-value-heads 8 --pad-token x", "t.py --num-key-value-heads 8 --pad-token x"),
        ("t.py -p s3cr3t --tokenizer a --keypoints 3", "t.py -p s3cr3t --tokenizer a --keypoints 3"),
        ("print(sorted(rows, key=len), flush=True)", "print(sorted(rows, key=len), flush=True)"),
    ],
)
def test_secrets_inside_a_program_given_as_text(program, kept):
    """`bash -c`: the word before a pair does not swallow it, and only an option with a dash takes the next word."""
    assert redact_command(["bash", "-c", program]) == ["bash", "-c", kept]


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("could not reach postgres://me:s3cr3t@db/runs", "could not reach postgres://me:***@db/runs"),
        ("403 for https://h/f?token=s3cr3t&x=1", "403 for https://h/f?token=***&x=1"),
        ("sent Authorization: Bearer s3cr3t", "sent Authorization: Bearer ***"),
        ("invalid user token hf_" + "a1" * 15, "invalid user token ***"),
        ("wrote ckpt_ghp_" + "a1" * 18 + ".pt", "wrote ckpt_***.pt"),
        ("key eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.c2lnbmF0dXJl sent", "key *** sent"),
        ("login failed: password='s3cr3t'", "login failed: password='***'"),
        ("KeyError: 'lr'", "KeyError: 'lr'"),
        ("unexpected token: x, key: y, auth: failed", "unexpected token: x, key: y, auth: failed"),
        (
            "Basic training-loop of sk-learn-compatible-estimators",
            "Basic training-loop of sk-learn-compatible-estimators",
        ),
    ],
)
def test_secrets_in_a_line_of_output(line, kept):
    """What is known by its shape or by its name is replaced in last words too; ordinary sentences stay."""
    assert Redactor().text(line) == kept


def test_private_key_is_replaced_with_all_its_lines():
    """A key that is printed stands in several last words."""
    lines = ["before", "-----BEGIN RSA PRIVATE KEY-----", "MIIEpAIBAAKCAQEA", "-----END RSA PRIVATE KEY-----", "after"]
    assert Redactor().lines(lines) == ["before", "***", "after"]


def test_value_found_once_is_replaced_everywhere():
    """A password in an address of the command is gone from what the command prints, without the address around it."""
    redactor = Redactor([["t.py", "--db", "postgres://me:correct1horse@db/runs"]])
    assert redactor.text("wrong password correct1horse for me") == "wrong password *** for me"


def test_a_known_secret_is_removed_from_the_command_unless_it_is_an_ordinary_word():
    """Letters alone are no word if there are capitals inside."""
    environment = {"MY_TOKEN": "FkQUkgJzELRémMdZrwx", "DB_PASSWORD": "production"}
    command = ["train.py", "FkQUkgJzELRémMdZrwx", "production"]
    assert Redactor([command], environment).command(command) == ["train.py", "***", "production"]


PUMPED = ["a", "a-", "-", " ", "key=", "api_key=", "key:1", "x:y@", 'a="', '"a":\'', '\\"a', "--a ", "--key -", "a://",
          "a://:", "a://u:", "eyJabcdefghij-", "sk-", "bearer ", "?a", "a=b;", "-----BEGIN PRIVATE KEY-----", "key='a",
          "hooks.slack.com/services/", "hf_", "A=", "\x1b[", "\x1b]", "password ", 'api_key="', "api_key='\\'", "os['token']=", "('token', '", "'--api-keys','a',",
          "--api-keys a ", "<password>", "<password>a</", "cookie: a=b; ", "'cookie: a=", "login u password a ", "name=key value=",
          "curl -u a:b ", "curl ", "wandb login ", "redis://u:p@", "https://u:p/", "postgres://:@", "SG.a-", "dapi", "1:AA",
          "password:\n", "password | ", "passphrase: a ", "api_keys=[a,", "password=(", "password\t\t", "%3D", "api key: ", "echo a | ", "login('a',", "auth=('a', 'b", "password=A('", "--token\n- a", "key [a", "sqlplus a/b "]  # fmt: skip


@pytest.mark.parametrize("piece", PUMPED)
def test_time_grows_with_the_length_and_not_faster(piece):
    """A long word took minutes. Four times the text takes about four times the time; quadratic would be sixteen times."""

    def seconds(length):
        text = piece * (length // len(piece))
        best = float("inf")
        for _ in range(3):
            begun = time.process_time()
            Redactor([["python", "-c", text]]).text(text)
            printable(text, 1_000_000)
            best = min(best, time.process_time() - begun)
        return best

    assert seconds(32_000) < 10 * max(seconds(8_000), 0.002)


def test_long_text_is_cut():
    """What is searched has a bound, and what lies beyond it is not written unsearched."""
    redacted = Redactor().text("x" * 1_000_000 + " password=s3cr3t")
    assert len(redacted) < 300_000
    assert "s3cr3t" not in redacted
