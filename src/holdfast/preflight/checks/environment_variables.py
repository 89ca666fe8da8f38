"""Do the environment variables that torch reads have valid values?

**What it checks.** Checks these variables in the environment of the training process, including variables that the plan sets:

- `PYTORCH_ENABLE_MPS_FALLBACK`: runs operators that MPS lacks on the CPU
- `PYTORCH_MPS_HIGH_WATERMARK_RATIO`, `PYTORCH_MPS_LOW_WATERMARK_RATIO`: limits of MPS memory
- `PYTORCH_MPS_PREFER_METAL`: avoids a wrong matrix product on M1 and M2
- `KMP_DUPLICATE_LIB_OK`: hides a second OpenMP runtime
- `OMP_NUM_THREADS`: the number of threads
- `CUDA_VISIBLE_DEVICES`: can hide every GPU
- `CUDA_LAUNCH_BLOCKING`, `PYTORCH_NO_CUDA_MEMORY_CACHING`: slow training down

**Why.** torch reads most of these variables once, when it is imported or first uses the device. Setting them later in the script, or in
a different terminal, has no effect. Some values crash the process: `PYTORCH_ENABLE_MPS_FALLBACK=true` (it must be a number), or a low
watermark above the high watermark (`invalid low watermark ratio 1.4`, which occurs if only the high watermark was lowered).

**What to do.** Run `export NAME=VALUE` before you start training, or set the variable under `[environment]` in the plan.

Sources: torch's `MPSAllocator.mm` and `MPSFallback.mm`; kohya-ss/sd-scripts#603, pytorch#177116, pytorch#149201.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from holdfast.diagnosis.rules.openmp_duplicate import HIDES
from holdfast.diagnosis.rules.watermark_invalid import HIGH, LOW
from holdfast.diagnosis.versions import faults_of
from holdfast.preflight.case_contexts import linux, mac
from holdfast.preflight.checks.check import Answer, Case, Check, CheckContext, fatal, finding, warn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.schema.verdicts import Finding, Severity

FALLBACK = "PYTORCH_ENABLE_MPS_FALLBACK"
THREADS = "OMP_NUM_THREADS"
VISIBLE = "CUDA_VISIBLE_DEVICES"
DEFAULT_HIGH, DEFAULT_LOW, HIGHEST = 1.7, 1.4, 2.0
SLOW = {
    "CUDA_LAUNCH_BLOCKING": "each kernel launch waits for the kernel to finish, which makes training several times slower",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "the driver allocates every tensor anew, which makes training many times slower",
}
_YES = ("1", "true", "yes", "on")
_CHECKED = (FALLBACK, HIGH, LOW, HIDES, THREADS, VISIBLE, *SLOW)


def run(context: CheckContext) -> Answer:
    given = [name for name in _CHECKED if name in context.environment]
    message = (
        f"{', '.join(given)} set, with valid values"
        if given
        else "none of the variables that can cause problems is set"
    )
    on_mps = context.on_mac and context.trains_on("mps") is not False
    findings = [*(_check_mps(context) if on_mps else ()), *_check_openmp(context), *_check_cuda(context)]
    return Answer(message, tuple(findings))


def _check_mps(context: CheckContext) -> Iterator[Finding]:
    severity: Severity = "fatal" if context.trains_on("mps") else "warn"
    fallback = context.environment.get(FALLBACK)
    if fallback is not None and not _is_integer(fallback):
        yield finding(
            severity,
            f"{FALLBACK}={fallback} is not a number: torch crashes the process at import.",
            evidence=[f"{FALLBACK}={fallback}"],
            remedies=[
                f"export {FALLBACK}=1",
                f"or unset {FALLBACK}: it is only needed if an operator is missing on MPS",
            ],
        )
    yield from _check_watermarks(context)
    python = context.interpreter
    assert python is not None
    for fault in faults_of(python.versions):
        if fault.variable is None or context.environment.get(fault.variable) == "1":
            continue
        if python.chip is None or not fault.chips or python.chip.startswith(fault.chips):
            yield warn(
                f"{fault.what}.",
                evidence=[
                    f"torch {python.packages.get('torch', '')} on {python.chip or 'an unknown chip'}",
                    fault.sources,
                ],
                remedies=[f"export {fault.variable}=1", fault.remedy],
                confidence="possible",
            )


def _check_watermarks(context: CheckContext) -> Iterator[Finding]:
    given = [f"{name}={context.environment[name]}" for name in (HIGH, LOW) if name in context.environment]
    if not given:
        return
    invalid = [
        name for name in (HIGH, LOW) if name in context.environment and _parse_ratio(context.environment[name]) is None
    ]
    if invalid:
        yield warn(
            f"{invalid[0]}={context.environment[invalid[0]]} is not a number, and torch reads it as 0: there is no limit at all.",
            evidence=given,
            remedies=[f"export {HIGH}=1.0 {LOW}=0.9", f"or unset {invalid[0]}"],
        )
        return
    high = _get_ratio(context, HIGH, DEFAULT_HIGH)
    low = _get_ratio(context, LOW, DEFAULT_LOW)
    if 0.0 <= high <= HIGHEST and 0.0 <= low <= (high or HIGHEST):
        if high == 0.0:
            yield warn(
                f"{HIGH}=0 removes the limit of MPS memory: when memory runs out, macOS swaps, freezes or kills the process.",
                evidence=given,
                remedies=[f"export {HIGH}=1.0 {LOW}=0.9: torch then raises an error that can be handled"],
            )
        return
    wrong = (
        f"{LOW} {low:g} is above {HIGH} {high:g}"
        if 0.0 <= high <= HIGHEST
        else f"{HIGH} {high:g} is not between 0 and 2"
    )
    correction = (
        f"export {HIGH}={high:g} {LOW}={max(0.0, high - 0.1):g}" if 0.0 < high <= HIGHEST else f"unset {HIGH} {LOW}"
    )
    yield finding(
        "fatal" if context.trains_on("mps") else "warn",
        f"torch rejects these MPS memory limits at its first tensor: {wrong}{'' if LOW in context.environment else ' (the default)'}.",
        evidence=given,
        remedies=[
            f"set both, the low one below the high one: {correction}",
            "or set neither: the defaults are 1.7 and 1.4",
        ],
    )


def _check_openmp(context: CheckContext) -> Iterator[Finding]:
    if context.environment.get(HIDES, "").lower() in _YES:
        yield warn(
            f"{HIDES} is set: two OpenMP runtimes in one process are no longer reported, and can crash it or compute wrong results.",
            evidence=[f"{HIDES}={context.environment[HIDES]}"],
            remedies=[f"unset {HIDES}, and run the other library (FAISS, scikit-learn) in a separate process"],
        )
    threads = context.environment.get(THREADS)
    if threads is None:
        return
    # The value may be a list with one number per nesting level.
    first = threads.split(",")[0].strip()
    if not _is_integer(first) or int(first) < 1:
        problem = "is not a valid number of threads"
    elif int(first) > 2 * context.cores:
        problem = f"is more than twice the {context.cores} cores of this machine: threads wait for each other"
    else:
        return
    yield warn(
        f"{THREADS}={threads} {problem}.",
        evidence=[f"{THREADS}={threads}"],
        remedies=[f"unset {THREADS}, or export {THREADS}={context.cores}"],
    )


def _check_cuda(context: CheckContext) -> Iterator[Finding]:
    hidden = context.environment.get(VISIBLE)
    if hidden is not None and hidden.strip() in ("", "-1") and context.trains_on("cuda"):
        yield fatal(
            f"{VISIBLE}={hidden!r} hides every GPU, but training on CUDA was requested.",
            evidence=[f"{VISIBLE}={hidden}"],
            remedies=[f"unset {VISIBLE}"],
        )
    for name, cost in SLOW.items():
        if context.environment.get(name, "").lower() in _YES and context.trains_on("cuda") is not False:
            yield warn(
                f"{name} is set: {cost}.",
                evidence=[f"{name}={context.environment[name]}"],
                remedies=[f"unset {name}, which is meant for debugging"],
            )


def _is_integer(text: str) -> bool:
    return text.strip().lstrip("+-").isdigit()


def _parse_ratio(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _get_ratio(context: CheckContext, name: str, default: float) -> float:
    value = _parse_ratio(context.environment.get(name, ""))
    return default if value is None else value


CHECK = Check(
    kind="environment",
    run=run,
    needs=("interpreter",),
    cases=lambda: (
        Case("only the high watermark was lowered", mac(environment={HIGH: "0.7"}), "fatal"),
        Case("both watermarks were lowered", mac(environment={HIGH: "0.7", LOW: "0.6"}), "passed"),
        Case("the low watermark is above the high watermark", mac(environment={HIGH: "0.7", LOW: "0.8"}), "fatal"),
        Case(
            "only the high watermark was lowered, training on the CPU",
            mac(device="cpu", environment={HIGH: "0.7"}),
            "passed",
        ),
        Case(
            "only the high watermark was lowered, no device requested",
            mac(device=None, environment={HIGH: "0.7"}),
            "warn",
        ),
        Case("a high watermark of 0 (no limit)", mac(environment={HIGH: "0.0"}), "warn"),
        Case("a watermark that is not a number", mac(environment={HIGH: "high"}), "warn"),
        Case("a watermark above the maximum", mac(environment={HIGH: "3"}), "fatal"),
        Case("PYTORCH_ENABLE_MPS_FALLBACK is not a number", mac(environment={FALLBACK: "true"}), "fatal"),
        Case("PYTORCH_ENABLE_MPS_FALLBACK is a number", mac(environment={FALLBACK: "1"}), "passed"),
        Case(
            "an M1 with a torch that computes wrong matrix products", mac(torch="2.13.0", chip="Apple M1 Max"), "warn"
        ),
        Case(
            "the same M1 and torch, with PYTORCH_MPS_PREFER_METAL=1",
            mac(torch="2.13.0", chip="Apple M1 Max", environment={"PYTORCH_MPS_PREFER_METAL": "1"}),
            "passed",
        ),
        Case("an M4 with the same torch", mac(torch="2.13.0"), "passed"),
        Case("KMP_DUPLICATE_LIB_OK is set", mac(environment={HIDES: "TRUE"}), "warn"),
        Case("a hundred threads on eight cores", linux(environment={THREADS: "100"}), "warn"),
        Case("zero threads", linux(environment={THREADS: "0"}), "warn"),
        Case("one thread", linux(environment={THREADS: "1"}), "passed"),
        Case("GPUs are hidden, training on CUDA", linux(device="cuda", environment={VISIBLE: "-1"}), "fatal"),
        Case("GPUs are hidden, training on the CPU", linux(environment={VISIBLE: ""}), "passed"),
        Case(
            "CUDA_LAUNCH_BLOCKING is set, training on CUDA",
            linux(device="0", environment={"CUDA_LAUNCH_BLOCKING": "1"}),
            "warn",
        ),
        Case("no variable is set", linux(), "passed"),
    ),
)
