"""What is written down of commands and environments holds no secret, and is otherwise left as it was."""

from __future__ import annotations

import pytest

from holdfast.record.masking import allowed_environment, mask_command, secrets_in


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
        (["--set=model.token=abc"], ["--set=model.token=***"]),
        (["--override", "x.password=abc"], ["--override", "x.password=***"]),
        (["--credential", "-starts-with-dash"], ["--credential", "***"]),
        (["--secret", ""], ["--secret", "***"]),
    ],
)
def test_named_secrets_are_masked(given, kept):
    """In every form in which an argument can be named."""
    assert mask_command(given) == kept


@pytest.mark.parametrize(
    "argv",
    [
        ["--keypoints", "17"],
        ["--tokenizer", "gpt2"],
        ["--tokenizer=path/to/it"],
        ["monkey=1"],
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
    assert mask_command(argv) == argv


def test_an_option_after_a_flag_is_not_its_value():
    """`--auth` without a value does not hide the next option."""
    assert mask_command(["--auth", "--epochs", "3"]) == ["--auth", "--epochs", "3"]
    assert mask_command(["--use-auth-token"]) == ["--use-auth-token"]


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
    assert mask_command([given]) == [kept]


def test_the_command_is_otherwise_the_same():
    """Length and order are kept, and the argument itself is not changed."""
    argv = ["python", "train.py", "--token", "t", "--epochs", "10"]
    assert mask_command(argv) == ["python", "train.py", "--token", "***", "--epochs", "10"]
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
    assert secrets_in([], {**places, "DB_PWD": "/not/a/path", "API_KEY": "hunter2hunter2"}) == {
        "/not/a/path",
        "hunter2hunter2",
    }
