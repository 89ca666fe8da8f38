"""TrainCheck on the same faults. It needs a reference run, which is the healthy twin of each program.

The bench uses TrainCheck's own commands: trace the twin, infer invariants, trace the faulty program, check. A fault counts as
found if an invariant is violated that the twin satisfies when it runs again with another seed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cases import PROGRAMS, Faulty
from running import environment

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from harness import RESULTS, ensure_peer, scratch, terminate

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = 20
"""Tracing makes a step ten to a hundred times slower. All faults with a twin appear in the first few steps."""
PART_LIMIT_S = 300
EVERY_STEP = ("--sampling-interval", "1", "--warm-up-steps", "1")


class NoResult(Exception):
    """A TrainCheck command failed or took too long."""


class TrainCheck:
    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self.bin = ensure_peer("traincheck", say)
        self._references: dict[tuple[str, tuple[str, ...]], Reference | NoResult] = {}

    def run(self, case: Faulty) -> dict[str, Any]:
        began = time.monotonic()
        result: dict[str, Any] = {"name": case.name, "twin": case.twin}
        try:
            reference = self.reference(str(case.twin), case.track)
            with scratch() as folder:
                trace = self.collect(case.path, case.track, folder, invariants=reference.invariants)
                violated = self.check(trace, reference.invariants, folder)
        except NoResult as error:
            return {**result, "error": str(error), "seconds": round(time.monotonic() - began, 1)}
        new = sorted(violated - reference.violated)
        return {
            **result,
            "detected": bool(new),
            "violations": len(new),
            "examples": new[:3],
            "invariants": reference.count,
            "twin_violations": len(reference.violated),
            "seconds": round(time.monotonic() - began, 1),
        }

    def reference(self, twin: str, track: tuple[str, ...]) -> Reference:
        """Return the invariants of a twin. They are inferred once per twin."""
        key = (twin, track)
        if key not in self._references:
            self.say(f"TrainCheck: reference run and inference on {twin}")
            try:
                self._references[key] = self._infer(PROGRAMS / "healthy" / f"{twin}.py", track)
            except NoResult as error:
                self._references[key] = NoResult(f"reference: {error}")
        known = self._references[key]
        if isinstance(known, NoResult):
            raise known
        return known

    def _infer(self, program: Path, track: tuple[str, ...]) -> Reference:
        invariants_file = RESULTS / f"traincheck-{program.stem}.json"
        invariants_file.parent.mkdir(exist_ok=True)
        with scratch() as folder:
            trace = self.collect(program, track, folder)
            self._part("traincheck-infer", ["-f", str(trace), "-o", str(invariants_file)], folder)
        if not invariants_file.exists():
            raise NoResult("no invariants")
        with scratch() as folder:
            trace = self.collect(program, track, folder, seed=1, invariants=invariants_file)
            violated = self.check(trace, invariants_file, folder)
        return Reference(invariants_file, len(invariants_file.read_text().splitlines()), violated)

    def collect(
        self, program: Path, track: tuple[str, ...], folder: Path, seed: int = 0, invariants: Path | None = None
    ) -> Path:
        copied = shutil.copy(program, folder)  # TrainCheck writes next to the script
        trace = folder / "trace"
        words = ["-p", str(copied), "--models-to-track", *track, "--output-dir", str(trace)]
        if invariants is not None:
            words += ["--invariants", str(invariants), *EVERY_STEP]
        self._part("traincheck-collect", words, folder, SEED=str(seed), STEPS=str(STEPS))
        if not any(trace.glob("trace_*")) and not any(trace.glob("proxy_log*")):
            raise NoResult(f"traincheck-collect wrote no trace: {last_output(folder / 'traincheck-collect.log')}")
        return trace

    def check(self, trace: Path, invariants: Path, folder: Path) -> set[str]:
        """Return the violated invariants as JSON texts."""
        out = folder / "checked"
        words = ["-f", str(trace), "-i", str(invariants), "-o", str(out), "--no-html-report"]
        self._part("traincheck-check", words, folder)
        violated: set[str] = set()
        for log in out.rglob("failed.log"):
            violated.update(json.dumps(one["invariant"], sort_keys=True) for one in parse_objects(log.read_text()))
        return violated

    def _part(self, program: str, words: list[str], folder: Path, **more: str) -> None:
        with (folder / f"{program}.log").open("wb") as sink:
            process = subprocess.Popen(
                [str(self.bin / program), *words], cwd=folder, env={**environment(), **more}, stdin=subprocess.DEVNULL,
                stdout=sink, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                code = process.wait(PART_LIMIT_S)
            except subprocess.TimeoutExpired:
                raise NoResult(f"{program} not finished after {PART_LIMIT_S} s") from None
            finally:
                terminate(process)
        if code and program != "traincheck-collect":  # a faulty program may crash while it is traced
            raise NoResult(f"{program} exit {code}: {last_output(folder / f'{program}.log')}")


def last_output(log: Path) -> str:
    """Return the last error in a log. Error lines contain the exception's name; advice follows them."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "Error: " in line]
    return (errors or lines or ["no output"])[-1].strip()[:160]


class Reference:
    def __init__(self, invariants: Path, count: int, violated: set[str]) -> None:
        self.invariants, self.count, self.violated = invariants, count, violated


def parse_objects(text: str) -> list[dict[str, Any]]:
    """Parse a log of consecutive JSON objects, each of which spans many lines."""
    decoder = json.JSONDecoder()
    found, place = [], 0
    while place < len(text):
        if text[place] in " \r\n":
            place += 1
            continue
        one, place = decoder.raw_decode(text, place)
        found.append(one)
    return found
