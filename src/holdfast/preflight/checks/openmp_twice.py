"""Are there two OpenMP runtimes in one process?

**What it asks.** torch is imported in the training's own Python together with the libraries that the script imports beside it
and that bring an OpenMP runtime of their own (FAISS, scikit-learn, xgboost, lightgbm); both work for a moment, and the
runtimes that are then loaded are counted.

**Why.** On macOS every wheel carries its own `libomp.dylib`, and two of them take each other's memory: `OMP: Error #15` and exit
134, or a segmentation fault at a moment of chance. Report 002 put that down to gradient accumulation. On Linux several copies
of GNU's runtime live together; Intel's beside GNU's may not.

**What to do.** Run the other library in a process of its own, or with one thread (`faiss.omp_set_num_threads(1)`). Not
`KMP_DUPLICATE_LIB_OK`, which only hides it.

**Confidence.** Fatal only where it crashed while it was tried; else a warning, because the crash is chance.

Sources: faiss-wheels#73, pytorch#149201.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

from holdfast.preflight.case_contexts import linux, mac
from holdfast.preflight.checks.check import Answer, Case, Check, NotChecked, finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.preflight.checks.check import CheckContext
    from holdfast.preflight.checks.interpreter import Interpreter
    from holdfast.schema.verdicts import Finding

ID = "openmp-twice"
APART = [
    "run the other library in a process of its own",
    "or give it one thread: faiss.omp_set_num_threads(1), OMP_NUM_THREADS=1",
    "or install both from one source (conda-forge), so that they share a runtime",
]


def run(context: CheckContext) -> Answer:
    python = context.interpreter
    assert python is not None
    culprit = _died_of(python)
    if not python.openmp and culprit is None:
        raise NotChecked("which runtimes are loaded could not be told")
    beside = [name for name in python.openmp if name != "torch"]
    files = sorted({file for found in python.openmp.values() for file in found})
    together = f"torch with {', '.join(beside)}" if beside else "torch"
    message = f"{together}: {_named(files)}"
    return Answer(message, tuple(_findings(context, python, culprit, files, together)))


def _findings(
    context: CheckContext, python: Interpreter, culprit: str | None, files: list[str], together: str
) -> Iterator[Finding]:
    families = {_family(file) for file in files}
    if culprit is not None:
        yield finding(
            ID,
            "fatal" if culprit in context.imports else "warn",
            f"{culprit} and torch crash in one process: {python.died.partition(': ')[2]} while both were tried.",
            evidence=[python.died, *([python.last_words] if python.last_words else []), *files],
            remedies=APART,
        )
    elif (python.on_mac and len(files) > 1) or len(families) > 1:
        yield finding(
            ID,
            "warn",
            f"{together}: {len(files)} OpenMP runtimes in one process. It may crash at any moment (signal 6 or 11), or compute wrong numbers.",
            evidence=files,
            remedies=APART,
            confidence="likely",
        )
    elif python.on_mac and python.faiss and "faiss" in context.imports:
        yield finding(
            ID,
            "warn",
            f"The script uses {python.faiss} and torch in one process, which is known to crash on macOS.",
            evidence=[python.faiss],
            remedies=APART,
            confidence="possible",
        )


def _died_of(python: Interpreter) -> str | None:
    """The library that the interpreter did not survive beside torch."""
    what = python.died.partition(":")[0]
    return what if what in ("faiss", "sklearn", "xgboost", "lightgbm") else None


def _named(files: list[str]) -> str:
    if not files:
        return "no OpenMP runtime is loaded"
    names = ", ".join(sorted({PurePath(file).name for file in files}))
    return (
        f"one OpenMP runtime ({names})" if len(files) == 1 else f"{len(files)} copies of one OpenMP runtime ({names})"
    )


def _family(file: str) -> str:
    """LLVM's libomp and Intel's libiomp5 are one and the same by origin, but not GNU's."""
    return "gnu" if PurePath(file).name.startswith("libgomp") else "llvm"


_SITE = "/Users/me/venv/lib/python3.11/site-packages"
_TORCHS = [f"{_SITE}/torch/lib/libomp.dylib"]
_BOTH = {"torch": _TORCHS, "faiss": [*_TORCHS, f"{_SITE}/faiss/.dylibs/libomp.dylib"]}
_GNU = {
    "torch": ["/v/torch/lib/libgomp.so.1"],
    "sklearn": ["/v/torch/lib/libgomp.so.1", "/v/sklearn.libs/libgomp-a34.so"],
}
_MIXED = {"torch": ["/v/torch/lib/libgomp.so.1"], "sklearn": ["/v/torch/lib/libgomp.so.1", "/c/lib/libiomp5.so"]}
_CRASH = {
    "openmp": {"torch": _TORCHS},
    "died": "faiss: it was ended by SIGABRT",
    "last_words": "OMP: Error #15: Initializing libomp.dylib, but found libomp.dylib already initialized.",
}
_USES = frozenset({"faiss", "torch"})

CHECK = Check(
    id=ID,
    kind="environment",
    run=run,
    page=__doc__ or "",
    needs=("torch",),
    cases=(
        Case("FAISS and torch crash when both are tried", mac(facts=_CRASH, imports=_USES), "fatal"),
        Case("the same where the script is not known to use FAISS", mac(facts=_CRASH), "warn"),
        Case("two libomp on a Mac", mac(facts={"openmp": _BOTH}, imports=_USES), "warn"),
        Case(
            "FAISS that shares torch's runtime, on a Mac",
            mac(facts={"openmp": {"torch": _TORCHS}}, packages={"faiss-cpu": "1.12.0"}, imports=_USES),
            "warn",
        ),
        Case("torch alone on a Mac", mac(), "passed"),
        Case("two copies of GNU's on Linux", linux(facts={"openmp": _GNU}), "passed"),
        Case("Intel's beside GNU's", linux(facts={"openmp": _MIXED}), "warn"),
        Case("not told", linux(facts={"openmp": {}}), "not checked"),
    ),
)
