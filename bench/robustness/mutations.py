"""Mutated inputs of every kind, read by the real command line, which must give a result or an error message. See README.md.

Case number N of a seed is always the same: `run.py --only mutations --seed S --case N` repeats it and prints all details.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import pickle
import random
import re
import shlex
import shutil
import string
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import corpus
import isolation
import mutators

WORKERS = 2
REAL_SHARE = 0.01
"""Fraction of the cases that run as a separate program, without fork and audit hook."""
MAX_PEAK_MB = 500
REAL_PROGRAM = "import sys; sys.path[:] = [p for p in sys.path if p]; from holdfast.__main__ import main; main()"
"""Like the installed script, which does not import modules from the working directory."""
VICTIM = b"nobody may change this\n"
OTHER_USER = 54321
SHARED_FILES = ("report.md", "report.html", "summary.json", "plan.toml", "journal.jsonl")
OWN_FRAME = re.compile(r'File "[^"]*/holdfast/([^"]+)", line (\d+), in (\w+)')
OWN_FAULT = "internal error in Holdfast"


@dataclass
class Case:
    number: int
    seed: int
    kind: str
    reader: str
    target: str
    how: list[str]
    argv: list[str]
    content: bytes | None = None
    """The content of the target; None if something else replaces the file."""
    place: str = ""
    from_stdin: bool = False
    real: bool = False
    stranger: bool = False
    other_owner: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    secrets: list[str] = field(default_factory=list)


@dataclass
class Found:
    """A case that violated a guarantee."""

    number: int
    seed: int
    kind: str
    how: list[str]
    argv: list[str]
    what: str
    """traceback, hang, memory, outside, code, control character, secret, silent, stranger"""
    where: str
    detail: str
    stored: str = ""

    @property
    def group(self) -> str:
        return f"{self.what}: {self.where}"


@dataclass
class Result:
    cases: int = 0
    by_kind: dict[str, int] = field(default_factory=dict)
    seconds_by_kind: dict[str, float] = field(default_factory=dict)
    by_status: dict[str, int] = field(default_factory=dict)
    real: int = 0
    found: list[Found] = field(default_factory=list)
    peak_mb: int = 0
    slowest_s: float = 0.0
    seconds: float = 0.0

    @property
    def counts(self) -> dict[str, int]:
        return dict(Counter(one.what for one in self.found))


# --- a case -----------------------------------------------------------------------------------------------------------


def make_case(kinds: dict[str, corpus.Kind], seed: int, number: int) -> Case:
    """Make a case. The same seed and number always give the same case."""
    chance = random.Random(f"{seed}/{number}")
    kind = chance.choices(list(kinds.values()), [kind.weight for kind in kinds.values()])[0]
    if kind.reader == "secret":
        return _secret_case(kind, seed, number, chance)
    target = chance.choice(kind.targets)
    argv = list(chance.choice(kind.commands))
    case = Case(number, seed, kind.name, kind.reader, target, [], argv)
    if argv[-1] == "-":
        case.from_stdin = True
    elif kind.places and chance.random() < 0.08:
        case.place = chance.choice([how for how in mutators.PLACE if how not in _excluded_places(kind, argv)])
        case.how = [case.place]
    if not case.place:
        case.content, case.how = mutators.mutate_inside(kind.files[target], target, chance, kind.mutators)
    of_a_run = target.startswith(corpus.RUN)
    case.stranger = of_a_run and chance.random() < 0.03
    case.other_owner = of_a_run and chance.random() < 0.03
    # Without the hook, a mutated pid could be signalled. Commands that send signals therefore never run as a separate program.
    signals = argv[0] in ("resume", "run")
    case.real = kind.reader == "command" and not (case.from_stdin or signals) and chance.random() < REAL_SHARE * 2
    case.argv = [target if word == "{target}" else word for word in argv]
    if kind.reader == "command" and argv[0] == "diagnose" and chance.random() < 0.2:
        case.argv += ["--exit-code", str(chance.choice([0, 1, 134, 137, 139]))]
    return case


def _excluded_places(kind: corpus.Kind, argv: list[str]) -> tuple[str, ...]:
    """Return replacements to skip: Holdfast copies a large checkpoint and reads a named pipe on purpose."""
    if "checkpoint" in kind.name:
        return ("large",)
    return ("fifo", "link to /dev/zero", "link to /dev/tty") if "{target}" in argv else ()


def _secret_case(kind: corpus.Kind, seed: int, number: int, chance: random.Random) -> Case:
    secret = "".join(chance.choices(string.ascii_letters + string.digits, k=chance.randint(12, 40)))
    if chance.random() < 0.3:
        at = chance.randrange(1, len(secret))
        secret = secret[:at] + chance.choice("+/=.-_~!$^*()[]{}|é") + secret[at:]
    case = Case(
        number,
        seed,
        kind.name,
        "command",
        "secret",
        ["secret"],
        [],
        secrets=[secret],
        real=chance.random() < REAL_SHARE,
    )
    words = []
    if chance.random() < 0.3:
        value = secret if chance.random() < 0.4 else chance.choice(corpus.SECRET_VALUES)
        case.environment[chance.choice(corpus.ENVIRONMENT_FORMS)] = value
        case.secrets = [value] if len(value) > 10 else []
        case.how = [f"environment: {'secret' if case.secrets else value}"]
        words = [value] if case.secrets else []
    else:
        form = chance.choice(corpus.SECRET_FORMS)
        case.how = [" ".join(form)]
        words = [word.format(secret) for word in form]
    words = (
        chance.choice([[], ["--epochs", "3"], ["-v", "x.py"]])
        + words
        + chance.choice([[], ["--lr", "0.1"], ["data.yaml"]])
    )
    program = chance.choice(
        [["true"], ["sh", "-c", 'echo "$@" >&2; exit 3', "sh"], ["sh", "-c", 'echo "$@"; exit 3', "sh"]]
    )
    case.argv = ["run", "--dir", "run", "--max-attempts", "1", "--", *program, *words]
    return case


def lay_out(case: Case, kind: corpus.Kind, worker: Path, bystander: int) -> Path:
    """Create the folder of the case with all of its files."""
    folder = worker / "case"
    _remove(folder)
    folder.mkdir(parents=True)
    here = str(folder).encode()
    for name, content in kind.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.replace(corpus.PLACE, here))
    victim = worker / "outside" / "victim"
    victim.parent.mkdir(exist_ok=True)
    victim.write_bytes(VICTIM)
    target = folder / case.target
    if case.place:
        mutators.replace(target, case.place, victim)
    elif case.content is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(case.content.replace(corpus.PLACE, here))
    if case.stranger:
        for path in [*(folder / corpus.RUN).rglob("*.jsonl"), folder / corpus.RUN / "lock"]:
            if path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 20:
                path.write_bytes(re.sub(rb'("pid":|^)\d+', rb"\g<1>%d" % bystander, path.read_bytes()))
    if case.other_owner and os.geteuid() == 0:
        for path in [folder / ".holdfast", *(folder / ".holdfast").rglob("*")]:
            os.chown(path, OTHER_USER, OTHER_USER, follow_symlinks=False)
    return folder


def _remove(folder: Path) -> None:
    if folder.exists():
        for path in folder.rglob("*"):
            if path.is_dir() and not path.is_symlink():
                with contextlib.suppress(OSError):
                    path.chmod(0o700)
        shutil.rmtree(folder)


def make_work(case: Case, folder: Path):
    """Return the function that the forked process runs."""

    def command() -> None:
        os.environ.update(case.environment)
        sys.argv = ["holdfast", *case.argv]
        if case.real:
            os.execv(sys.executable, [sys.executable, "-c", REAL_PROGRAM, *case.argv])
        from holdfast.__main__ import main

        main()

    def checkpoint() -> None:
        from holdfast.probe.holdfast_probe import verify_checkpoint

        verify_checkpoint.MEMORY_BYTES = isolation.MEMORY_BYTES
        verify_checkpoint.main([json.dumps(str(folder / case.target))])

    def snapshot() -> None:
        import torch

        from holdfast.probe.holdfast_probe.snapshots.store import Store

        Store(str(folder / corpus.RUN / "snapshots"), 0, 1).read_newest(torch)

    def image() -> None:
        from holdfast.probe.holdfast_probe import image_scan

        scanner = image_scan.ImageScanner()
        for path in sorted((folder / "images").rglob("*.*")):
            label = Path(str(path).replace("/images/", "/labels/")).with_suffix(".txt")
            json.dumps(image_scan.answer(scanner, [0, str(path), str(label)], 2, None))

    return {"command": command, "checkpoint": checkpoint, "snapshot": snapshot, "image": image}[case.reader]


# --- checks of the result ----------------------------------------------------------------------------------------------------


Broken = tuple[str, str, str]
"""What, where and details of a violated guarantee."""


def judge(
    case: Case, outcome: isolation.Outcome, folder: Path, worker: Path, bystander: subprocess.Popen
) -> list[Broken]:
    printed = b"".join((worker / name).read_bytes() for name in ("stdout", "stderr") if (worker / name).exists())
    text = printed.decode("utf-8", "replace")
    return [
        *_find_bad_exit(case, outcome, text),
        *(_classify_violation(one) for one in outcome.violations),
        *_find_control_characters(case, text),
        *_find_leftovers(case, folder, worker, bystander),
        *_find_secrets(case, folder),
    ]


def _find_bad_exit(case: Case, outcome: isolation.Outcome, text: str) -> list[Broken]:
    found = []
    if outcome.hung:
        found.append(("hang", outcome.place, f"over {outcome.seconds:.0f} s"))
    if outcome.killed_by is not None:
        found.append(("traceback", f"killed by signal {outcome.killed_by}", text[-500:]))
    if outcome.error:
        what = "memory" if outcome.error == "MemoryError" else "traceback"
        found.append((what, f"{outcome.error} at {outcome.place}", outcome.trace))
    elif "Traceback (most recent call last)" in text and OWN_FRAME.search(
        text
    ):  # a log that is shown may contain the traceback of another program
        found.append(("traceback", find_printed_place(text), text[-3000:]))
    elif outcome.status == 1 and "holdfast: " not in text and not text.lstrip().startswith("{"):
        found.append(("silent", f"{case.argv[0]}: exit 1 without an error message", text[-500:]))
    if outcome.peak_mb > MAX_PEAK_MB and not outcome.error:
        found.append(("memory", f"{case.kind}: {case.argv[0]}", f"{outcome.peak_mb} MB"))
    if OWN_FAULT in text:
        found.append(("own fault", text[text.index(OWN_FAULT) :][:150].split("\n", maxsplit=1)[0], text[-800:]))
    return found


def _classify_violation(violation: str) -> Broken:
    if "unrelated process" in violation:
        what = "stranger"
    elif violation.startswith(("runs code", "imports", "unpickles", *isolation.PROGRAM_EVENTS)):
        what = "code"
    else:
        what = "outside"
    return what, re.sub(r"/[^' ]*/(?=case|outside)", "", violation)[:120], violation


def _find_control_characters(case: Case, text: str) -> list[Broken]:
    bad = re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", text)
    if bad is None:
        return []
    line = text[text.rfind("\n", 0, bad.start()) + 1 : bad.end() + 40]
    before = re.sub(r"[^A-Za-z: ]+", "", line[: max(0, len(line) - 40)])[:40]
    return [("control character", f"{case.argv[0]}: {before}", repr(line[-300:]))]


def _find_leftovers(case: Case, folder: Path, worker: Path, bystander: subprocess.Popen) -> list[Broken]:
    """Find marks of executed code, changed files outside the folder, and killed processes."""
    found = []
    canaries = [path for path in worker.rglob(corpus.CANARY) if not path.is_symlink()]
    for path in canaries:
        path.unlink()
        found.append(("code", f"{case.reader} {case.argv[0]}: code of the input was executed", str(path)))
    outside = worker / "outside"
    names = [path.name for path in outside.iterdir()]
    if names != ["victim"] or (outside / "victim").read_bytes() != VICTIM:
        found.append(("outside", f"{case.argv[0]}: a file outside the folder was changed", str(names)))
        shutil.rmtree(outside)
    if bystander.poll() is not None:
        found.append(("stranger", f"{case.argv[0]}: killed an unrelated process", ""))
    unnamed = case.argv[0] == "resume" and corpus.RUN not in case.argv
    if case.other_owner and os.geteuid() == 0 and unnamed and (folder / "marker").exists():
        found.append(("code", "resume: executed another user's command", ""))
    return found


def _find_secrets(case: Case, folder: Path) -> list[Broken]:
    found = []
    for secret in case.secrets:
        spelled = {secret.encode(), json.dumps(secret)[1:-1].encode(), secret.replace("&", "&amp;").encode()}
        # When the plan is written it is not known that an argument is the value of a variable, and users do not share the plan.
        for name in SHARED_FILES if not case.environment else SHARED_FILES[:3]:
            path = folder / "run" / name
            content = path.read_bytes() if path.is_file() else b""
            if any(one in content for one in spelled):
                found.append(("secret", f"{name}: {case.how[0]}", f"{shlex.join(case.argv)} left {secret} in {name}"))
    return found


def find_printed_place(text: str) -> str:
    lines = OWN_FRAME.findall(text)
    last = [line for line in text.strip().splitlines() if re.match(r"[A-Za-z_.]+(Error|Exception|Interrupt)\b", line)]
    where = f"{lines[-1][0]}:{lines[-1][1]} {lines[-1][2]}" if lines else "?"
    return f"{last[-1].split(':')[0] if last else 'Traceback'} at {where} (printed)"


# --- workers ----------------------------------------------------------------------------------------------------------


def run_worker(kinds_path: Path, worker: Path, seed: int, numbers: range, store: Path | None) -> None:
    """Run the cases of one worker. Print one JSON line per case."""
    kinds = pickle.loads(kinds_path.read_bytes())
    (worker / "home").mkdir(parents=True, exist_ok=True)
    (worker / "tmp").mkdir(exist_ok=True)
    _import_everything()
    cases = [make_case(kinds, seed, number) for number in numbers]
    plain = [case for case in cases if case.reader in ("command", "image")]
    with_torch = [case for case in cases if case.reader in ("checkpoint", "snapshot")]
    bystander = _start_bystander()
    for case in plain:
        bystander = _run_case(case, kinds[case.kind], worker, bystander, store)
    if with_torch:
        import torch

        torch.set_num_threads(1)
        torch.zeros(2).sum()
    for case in with_torch:
        bystander = _run_case(case, kinds[case.kind], worker, bystander, store)
    bystander.kill()


def _start_bystander() -> subprocess.Popen:
    return subprocess.Popen(["sleep", "100000"], start_new_session=True)


def _import_everything() -> None:
    import importlib
    import pkgutil

    importlib.import_module("holdfast.cli.app")
    for package in ("supervisor", "render", "diagnosis", "storage", "machine"):
        found = importlib.import_module(f"holdfast.{package}")
        for module in pkgutil.walk_packages(found.__path__, f"{found.__name__}."):
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)
    for name in (
        "PIL.Image",
        "rich.panel",
        "rich.table",
        "rich.live",
        "jinja2",
        "yaml",
        "tomllib",
        "zipfile",
        "shutil",
    ):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for argv in (
        ["status", "none"],
        ["rules"],
        ["resume", "none"],
        ["diagnose", str(corpus.FIXTURES / "phase2_killed")],
    ):
        _warm_up(argv)  # many modules are imported by the first command
    gc.collect()
    gc.freeze()


def _warm_up(argv: list[str]) -> None:
    from holdfast.__main__ import main

    sys.argv = ["holdfast", *argv]
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.suppress(SystemExit),
    ):
        main()


def _run_case(
    case: Case, kind: corpus.Kind, worker: Path, bystander: subprocess.Popen, store: Path | None
) -> subprocess.Popen:
    programs = case.argv[0] in ("run", "resume", "check", "init", "fit") or case.real
    for limit in (isolation.LIMIT_S, isolation.RETRY_S):
        folder = lay_out(case, kind, worker, bystander.pid)
        outcome = isolation.run_isolated(
            make_work(case, folder),
            folder=folder, place=worker, outside=worker / "outside", stdin=_stdin(case, folder), programs=programs,
            unpickle=case.reader == "checkpoint", limit_s=limit,
        )  # fmt: skip
        if not outcome.hung:
            break
    found = judge(case, outcome, folder, worker, bystander)
    line = {
        "number": case.number,
        "kind": case.kind,
        "status": outcome.status,
        "peak_mb": outcome.peak_mb,
        "seconds": outcome.seconds,
        "real": case.real,
    }
    line["found"] = [
        asdict(
            Found(
                case.number,
                case.seed,
                case.kind,
                case.how,
                case.argv,
                what,
                where,
                detail,
                _store_input(case, what, where, detail, store),
            )
        )
        for what, where, detail in found
    ]
    print(json.dumps(line), flush=True)
    if bystander.poll() is not None:
        return _start_bystander()
    return bystander


def _stdin(case: Case, folder: Path) -> Path | None:
    return folder / case.target if case.from_stdin else None


def _store_input(case: Case, what: str, where: str, detail: str, store: Path | None) -> str:
    """Store the mutated input and the command that repeats it, unless this group already has enough."""
    if store is None:
        return ""
    group = store / re.sub(r"[^A-Za-z0-9]+", "-", f"{what} {where}")[:100]
    if group.exists() and len(list(group.iterdir())) >= 6:
        return ""
    group.mkdir(parents=True, exist_ok=True)
    name = f"{case.seed}-{case.number}"
    if case.content is not None:
        (group / f"{name}-{Path(case.target).name}").write_bytes(case.content)
    repeat = f"python bench/robustness/run.py --only mutations --seed {case.seed} --case {case.number}"
    (group / f"{name}.txt").write_text(
        f"{repeat}\nholdfast {shlex.join(case.argv)}\n{case.kind}: {case.target}: {', '.join(case.how)}\n{what}: {where}\n\n{detail}\n",
        errors="replace",
    )
    return str(group / name)


# --- all cases ------------------------------------------------------------------------------------------------------


def run(
    count: int,
    seed: int,
    *,
    quick: bool = False,
    store: Path | None = None,
    workers: int = WORKERS,
    notify=lambda _: None,
) -> Result:
    import time

    began = time.monotonic()
    result = Result()
    with tempfile.TemporaryDirectory(prefix="holdfast-mutations-") as text:
        scratch = Path(text).resolve()
        kinds = corpus.make(scratch, quick=quick)
        (scratch / "kinds").write_bytes(pickle.dumps(kinds))
        threads = []
        for number in range(workers):
            process = _start_worker(scratch, seed, range(number, count, workers), store, number)
            threads.append(threading.Thread(target=_collect, args=(process, result, notify, count)))
            threads[-1].start()
        for thread in threads:
            thread.join()
    result.seconds = time.monotonic() - began
    if result.cases != count:
        raise RuntimeError(f"only {result.cases} of {count} cases finished: a worker crashed")
    return result


def _start_worker(scratch: Path, seed: int, numbers: range, store: Path | None, number: int) -> subprocess.Popen:
    worker = scratch / f"worker-{number}"
    worker.mkdir()
    environment = {
        **os.environ, "HOME": str(worker / "home"), "TMPDIR": str(worker / "tmp"), "PATH": "/usr/bin:/bin", "MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1",
        "YOLO_CONFIG_DIR": str(worker / "home"), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONFAULTHANDLER": "",
    }  # fmt: skip
    environment.pop("PYTHONPATH", None)
    arguments = [
        str(scratch / "kinds"),
        str(worker),
        str(seed),
        str(numbers.start),
        str(numbers.stop),
        str(numbers.step),
        str(store or ""),
    ]
    return subprocess.Popen(
        [sys.executable, __file__, *arguments], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )


_lock = threading.Lock()


def _collect(process: subprocess.Popen, result: Result, notify: Any, count: int) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        report = json.loads(line)
        with _lock:
            result.cases += 1
            result.by_kind[report["kind"]] = result.by_kind.get(report["kind"], 0) + 1
            result.seconds_by_kind[report["kind"]] = round(
                result.seconds_by_kind.get(report["kind"], 0.0) + report["seconds"], 2
            )
            status = str(report["status"])
            result.by_status[status] = result.by_status.get(status, 0) + 1
            result.real += report["real"]
            result.peak_mb = max(result.peak_mb, report["peak_mb"])
            result.slowest_s = max(result.slowest_s, report["seconds"])
            result.found += [Found(**one) for one in report["found"]]
            if result.cases % 500 == 0:
                notify(f"{result.cases} of {count} mutated inputs, {len(result.found)} violations")
    process.wait()


def repeat(seed: int, number: int) -> list[Found]:
    """Repeat one case and print its output."""
    with tempfile.TemporaryDirectory(prefix="holdfast-mutations-") as text:
        scratch = Path(text).resolve()
        kinds = corpus.make(scratch)
        case = make_case(kinds, seed, number)
        print(f"{case.kind}: {case.target}: {', '.join(case.how)}\nholdfast {shlex.join(case.argv)}\n", flush=True)
        (scratch / "kinds").write_bytes(pickle.dumps(kinds))
        result = Result()
        process = _start_worker(scratch, seed, range(number, number + 1), None, 0)
        _collect(process, result, lambda _: None, 1)
        for name in ("stdout", "stderr"):
            path = scratch / "worker-0" / name
            print(f"--- {name}\n{path.read_text(errors='replace') if path.exists() else ''}")
    for one in result.found:
        print(f"--- {one.group}\n{one.detail}")
    return result.found


if __name__ == "__main__":
    kinds_path, worker_path, seed_text, first, last, step, where = sys.argv[1:]
    run_worker(
        Path(kinds_path),
        Path(worker_path),
        int(seed_text),
        range(int(first), int(last), int(step)),
        Path(where) if where else None,
    )
