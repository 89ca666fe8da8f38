"""Are the variables that torch reads at import set to something that works?

**What it asks.** The environment that the training would start in, and what the plan sets over it: MPS's fallback and memory
limits, the variable that avoids a wrong matrix product on M1 and M2, the one that hides a second OpenMP runtime, the number
of threads, hidden GPUs.

**Why.** They are read once, when torch is imported or first touches the device: set later, in the script or in another
terminal, they do nothing. Some values end the process: `PYTORCH_ENABLE_MPS_FALLBACK=true` (it must be a number), a low
watermark above the high one (`invalid low watermark ratio 1.4`, where only the high one was lowered).

**What to do.** `export NAME=VALUE` before the training starts, or `[environment]` in the plan.

Sources: torch's `MPSAllocator.mm` and `MPSFallback.mm`; kohya-ss/sd-scripts#603, pytorch#177116, pytorch#149201.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from holdfast.diagnosis.rules.openmp_duplicate import HIDES
from holdfast.diagnosis.rules.watermark_invalid import HIGH, LOW
from holdfast.diagnosis.versions import faults_of
from holdfast.preflight.case_contexts import linux, mac
from holdfast.preflight.checks.check import Answer, Case, Check, finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.preflight.checks.check import CheckContext
    from holdfast.schema.verdicts import Finding, Severity

ID = "environment-variables"
FALLBACK = "PYTORCH_ENABLE_MPS_FALLBACK"
THREADS = "OMP_NUM_THREADS"
VISIBLE = "CUDA_VISIBLE_DEVICES"
DEFAULT_HIGH, DEFAULT_LOW, HIGHEST = 1.7, 1.4, 2.0
SLOW = {
    "CUDA_LAUNCH_BLOCKING": "every kernel is waited for: training is several times slower",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "every tensor is allocated anew by the driver: training is many times slower",
}
_YES = ("1", "true", "yes", "on")
_LOOKED_AT = (FALLBACK, HIGH, LOW, HIDES, THREADS, VISIBLE, *SLOW)


def run(context: CheckContext) -> Answer:
    given = [name for name in _LOOKED_AT if name in context.environment]
    message = (
        f"{', '.join(given)} set, to something that works" if given else "none is set that torch would stumble over"
    )
    on_mps = context.on_mac and context.trains_on("mps") is not False
    findings = [*(_of_mps(context) if on_mps else ()), *_of_openmp(context), *_of_cuda(context)]
    return Answer(message, tuple(findings))


def _of_mps(context: CheckContext) -> Iterator[Finding]:
    severity: Severity = "fatal" if context.trains_on("mps") else "warn"
    fallback = context.environment.get(FALLBACK)
    if fallback is not None and not _is_whole(fallback):
        yield finding(
            ID,
            severity,
            f"{FALLBACK}={fallback} is not a number: torch ends the process when it is imported.",
            evidence=[f"{FALLBACK}={fallback}"],
            remedies=[
                f"export {FALLBACK}=1",
                f"or unset {FALLBACK}: it is only needed where an operator is missing on MPS",
            ],
        )
    yield from _watermarks(context)
    python = context.interpreter
    assert python is not None
    for fault in faults_of(python.versions):
        if fault.variable is None or context.environment.get(fault.variable) == "1":
            continue
        if python.chip is None or not fault.chips or python.chip.startswith(fault.chips):
            yield finding(
                ID,
                "warn",
                f"{fault.what}.",
                evidence=[
                    f"torch {python.packages.get('torch', '')} on {python.chip or 'a chip that is not known'}",
                    fault.sources,
                ],
                remedies=[f"export {fault.variable}=1", fault.remedy],
                confidence="possible",
            )


def _watermarks(context: CheckContext) -> Iterator[Finding]:
    given = [f"{name}={context.environment[name]}" for name in (HIGH, LOW) if name in context.environment]
    if not given:
        return
    senseless = [
        name for name in (HIGH, LOW) if name in context.environment and _ratio(context.environment[name]) is None
    ]
    if senseless:
        yield finding(
            ID,
            "warn",
            f"{senseless[0]}={context.environment[senseless[0]]} is not a number, and torch takes it for 0: no limit at all.",
            evidence=given,
            remedies=[f"export {HIGH}=1.0 {LOW}=0.9", f"or unset {senseless[0]}"],
        )
        return
    high = _number(context, HIGH, DEFAULT_HIGH)
    low = _number(context, LOW, DEFAULT_LOW)
    if 0.0 <= high <= HIGHEST and 0.0 <= low <= (high or HIGHEST):
        if high == 0.0:
            yield finding(
                ID,
                "warn",
                f"{HIGH}=0 takes away the limit of MPS memory: where memory ends, macOS swaps, stands still or kills.",
                evidence=given,
                remedies=[f"export {HIGH}=1.0 {LOW}=0.9: then torch raises an error that can be answered"],
            )
        return
    wrong = (
        f"{LOW} {low:g} is above {HIGH} {high:g}"
        if 0.0 <= high <= HIGHEST
        else f"{HIGH} {high:g} is not between 0 and 2"
    )
    fitting = (
        f"export {HIGH}={high:g} {LOW}={max(0.0, high - 0.1):g}" if 0.0 < high <= HIGHEST else f"unset {HIGH} {LOW}"
    )
    yield finding(
        ID,
        "fatal" if context.trains_on("mps") else "warn",
        f"torch refuses these limits of MPS memory at its first tensor: {wrong}{'' if LOW in context.environment else ' (its default)'}.",
        evidence=given,
        remedies=[
            f"set both, the low one below the high one: {fitting}",
            "or set neither: the defaults are 1.7 and 1.4",
        ],
    )


def _of_openmp(context: CheckContext) -> Iterator[Finding]:
    if context.environment.get(HIDES, "").lower() in _YES:
        yield finding(
            ID,
            "warn",
            f"{HIDES} is set: two OpenMP runtimes in one process are not reported any more, and may crash it or compute wrong numbers.",
            evidence=[f"{HIDES}={context.environment[HIDES]}"],
            remedies=[f"unset {HIDES}, and run the other library (FAISS, scikit-learn) in a process of its own"],
        )
    threads = context.environment.get(THREADS)
    if threads is None:
        return
    # A list of numbers is allowed: one for each level of nesting.
    first = threads.split(",")[0].strip()
    if not _is_whole(first) or int(first) < 1:
        problem = "is not a number of threads"
    elif int(first) > 2 * context.cores:
        problem = f"is more than twice the {context.cores} cores of this machine: threads wait for each other"
    else:
        return
    yield finding(
        ID,
        "warn",
        f"{THREADS}={threads} {problem}.",
        evidence=[f"{THREADS}={threads}"],
        remedies=[f"unset {THREADS}, or export {THREADS}={context.cores}"],
    )


def _of_cuda(context: CheckContext) -> Iterator[Finding]:
    hidden = context.environment.get(VISIBLE)
    if hidden is not None and hidden.strip() in ("", "-1") and context.trains_on("cuda"):
        yield finding(
            ID,
            "fatal",
            f"{VISIBLE}={hidden!r} hides every GPU, and the training is to run on one.",
            evidence=[f"{VISIBLE}={hidden}"],
            remedies=[f"unset {VISIBLE}"],
        )
    for name, costs in SLOW.items():
        if context.environment.get(name, "").lower() in _YES and context.trains_on("cuda") is not False:
            yield finding(
                ID,
                "warn",
                f"{name} is set: {costs}.",
                evidence=[f"{name}={context.environment[name]}"],
                remedies=[f"unset {name}, which is for finding faults"],
            )


def _is_whole(text: str) -> bool:
    return text.strip().lstrip("+-").isdigit()


def _ratio(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _number(context: CheckContext, name: str, default: float) -> float:
    value = _ratio(context.environment.get(name, ""))
    return default if value is None else value


CHECK = Check(
    id=ID,
    kind="environment",
    run=run,
    page=__doc__ or "",
    needs=("interpreter",),
    cases=(
        Case("only the high watermark was lowered", mac(environment={HIGH: "0.7"}), "fatal"),
        Case("both were set", mac(environment={HIGH: "0.7", LOW: "0.6"}), "passed"),
        Case("the low one above the high one", mac(environment={HIGH: "0.7", LOW: "0.8"}), "fatal"),
        Case("the same for the CPU", mac(device="cpu", environment={HIGH: "0.7"}), "passed"),
        Case("the same where nobody said which device", mac(device=None, environment={HIGH: "0.7"}), "warn"),
        Case("no limit at all", mac(environment={HIGH: "0.0"}), "warn"),
        Case("no number", mac(environment={HIGH: "high"}), "warn"),
        Case("more than torch allows", mac(environment={HIGH: "3"}), "fatal"),
        Case("a fallback that is not a number", mac(environment={FALLBACK: "true"}), "fatal"),
        Case("a fallback that is one", mac(environment={FALLBACK: "1"}), "passed"),
        Case("an M1 with a torch that multiplies wrongly", mac(torch="2.13.0", chip="Apple M1 Max"), "warn"),
        Case(
            "the same with the variable that avoids it",
            mac(torch="2.13.0", chip="Apple M1 Max", environment={"PYTORCH_MPS_PREFER_METAL": "1"}),
            "passed",
        ),
        Case("an M4 with the same torch", mac(torch="2.13.0"), "passed"),
        Case("a second OpenMP runtime is hidden", mac(environment={HIDES: "TRUE"}), "warn"),
        Case("a hundred threads on eight cores", linux(environment={THREADS: "100"}), "warn"),
        Case("no threads", linux(environment={THREADS: "0"}), "warn"),
        Case("one thread", linux(environment={THREADS: "1"}), "passed"),
        Case("GPUs are hidden", linux(device="cuda", environment={VISIBLE: "-1"}), "fatal"),
        Case("GPUs are hidden from a training on the CPU", linux(environment={VISIBLE: ""}), "passed"),
        Case("every kernel is waited for", linux(device="0", environment={"CUDA_LAUNCH_BLOCKING": "1"}), "warn"),
        Case("nothing is set", linux(), "passed"),
    ),
)
