"""Are two OpenMP runtimes loaded in one process?

**What it checks.** Imports torch with the Python interpreter of your script, together with the libraries that the script imports and
that include their own OpenMP runtime (FAISS, scikit-learn, xgboost, lightgbm). Each library runs a small computation. The check then
counts the loaded runtimes. If the script cannot be read, only FAISS is tried.

**Why.** On macOS every wheel includes its own `libomp.dylib`, and two of them corrupt each other's memory: the process fails with
`OMP: Error #15` and exit status 134, or with a segmentation fault at a random moment. This crash has been wrongly attributed to
gradient accumulation. On Linux, several copies of the GNU runtime can coexist, but the Intel and GNU runtimes can conflict.

**What to do.** Run the other library in a separate process, or with one thread (`faiss.omp_set_num_threads(1)`). Do not set
`KMP_DUPLICATE_LIB_OK`, which only hides the problem.

**Severity.** `fatal` if the process crashed during the test and the script imports the library; otherwise `warn`, because the crash
is random.

Sources: faiss-wheels#73, pytorch#149201.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

from holdfast.preflight.case_contexts import linux, mac
from holdfast.preflight.checks.check import Answer, Case, Check, CheckContext, NotChecked, finding, warn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.preflight.checks.interpreter import Interpreter
    from holdfast.schema.verdicts import Finding

REMEDIES = [
    "run the other library in a separate process",
    "or give it one thread: faiss.omp_set_num_threads(1), OMP_NUM_THREADS=1",
    "or install both from one source (conda-forge), so that they share a runtime",
]


def run(context: CheckContext) -> Answer:
    python = context.interpreter
    assert python is not None
    culprit = _find_crashed_library(python)
    if not python.openmp and culprit is None:
        raise NotChecked("the loaded runtimes could not be determined")
    others = [name for name in python.openmp if name != "torch"]
    files = sorted({file for found in python.openmp.values() for file in found})
    together = f"torch with {', '.join(others)}" if others else "torch"
    message = f"{together}: {_describe_runtimes(files)}"
    return Answer(message, tuple(_findings(context, python, culprit, files, together)))


def _findings(
    context: CheckContext, python: Interpreter, culprit: str | None, files: list[str], together: str
) -> Iterator[Finding]:
    families = {_family(file) for file in files}
    if culprit is not None:
        yield finding(
            "fatal" if culprit in context.imports else "warn",
            f"{culprit} and torch crash in one process: {python.died.partition(': ')[2]} when both were used.",
            evidence=[python.died, *([python.last_lines] if python.last_lines else []), *files],
            remedies=REMEDIES,
        )
    elif (python.on_mac and len(files) > 1) or len(families) > 1:
        yield warn(
            f"{together}: {len(files)} OpenMP runtimes in one process. It can crash at any moment (signal 6 or 11) or compute wrong results.",
            evidence=files,
            remedies=REMEDIES,
            confidence="likely",
        )
    elif python.on_mac and python.faiss and "faiss" in context.imports:
        yield warn(
            f"The script uses {python.faiss} and torch in one process, which is known to crash on macOS.",
            evidence=[python.faiss],
            remedies=REMEDIES,
            confidence="possible",
        )


def _find_crashed_library(python: Interpreter) -> str | None:
    """Return the library that crashed the interpreter when it was used together with torch."""
    what = python.died.partition(":")[0]
    return what if what in ("faiss", "sklearn", "xgboost", "lightgbm") else None


def _describe_runtimes(files: list[str]) -> str:
    if not files:
        return "no OpenMP runtime is loaded"
    names = ", ".join(sorted({PurePath(file).name for file in files}))
    return (
        f"one OpenMP runtime ({names})" if len(files) == 1 else f"{len(files)} copies of one OpenMP runtime ({names})"
    )


def _family(file: str) -> str:
    """Return the family of a runtime. LLVM's libomp and Intel's libiomp5 have the same origin; GNU's libgomp is different."""
    return "gnu" if PurePath(file).name.startswith("libgomp") else "llvm"


_SITE = "/Users/me/venv/lib/python3.11/site-packages"
_TORCH_OMP = [f"{_SITE}/torch/lib/libomp.dylib"]
_BOTH = {"torch": _TORCH_OMP, "faiss": [*_TORCH_OMP, f"{_SITE}/faiss/.dylibs/libomp.dylib"]}
_GNU = {
    "torch": ["/v/torch/lib/libgomp.so.1"],
    "sklearn": ["/v/torch/lib/libgomp.so.1", "/v/sklearn.libs/libgomp-a34.so"],
}
_MIXED = {"torch": ["/v/torch/lib/libgomp.so.1"], "sklearn": ["/v/torch/lib/libgomp.so.1", "/c/lib/libiomp5.so"]}
_CRASH = {
    "openmp": {"torch": _TORCH_OMP},
    "died": "faiss: it was killed by SIGABRT",
    "last_lines": "OMP: Error #15: Initializing libomp.dylib, but found libomp.dylib already initialized.",
}
_USES = frozenset({"faiss", "torch"})

CHECK = Check(
    kind="environment",
    run=run,
    needs=("torch",),
    cases=lambda: (
        Case("FAISS and torch crash when both are used", mac(facts=_CRASH, imports=_USES), "fatal"),
        Case("FAISS and torch crash, but it is unknown whether the script uses FAISS", mac(facts=_CRASH), "warn"),
        Case("two libomp files on a Mac", mac(facts={"openmp": _BOTH}, imports=_USES), "warn"),
        Case(
            "FAISS that shares torch's runtime, on a Mac",
            mac(facts={"openmp": {"torch": _TORCH_OMP}}, packages={"faiss-cpu": "1.12.0"}, imports=_USES),
            "warn",
        ),
        Case("torch alone on a Mac", mac(), "passed"),
        Case("two copies of the GNU runtime on Linux", linux(facts={"openmp": _GNU}), "passed"),
        Case("the Intel and the GNU runtime", linux(facts={"openmp": _MIXED}), "warn"),
        Case("the loaded runtimes are unknown", linux(facts={"openmp": {}}), "not checked"),
    ),
)
