"""Formatting of the figures for the terminal and for README.md. The only input is the results file of run.py."""

from __future__ import annotations

import statistics
from typing import Any

RECALL = 0.95
RELATIONS = frozenset(
    (
        "checkpoint-unfaithful",
        "gradients-missing",
        "gradients-never-cleared",
        "replicas-diverging",
        "weights-frozen",
        "weights-outside-optimizer",
    )
)
"""Rules that check a relation which must be true at every step. They need no history."""
RELATION_STEPS = 3
Results = dict[str, Any]


def totals(results: Results) -> dict[str, Any]:
    faulty, healthy = results["faulty"], results["healthy"]
    found = [one for one in faulty if one.get("detected")]
    delays = [one["delay"] for one in found if one["delay"] is not None]
    return {
        "faulty": len(faulty),
        "found": len(found),
        "recall": len(found) / len(faulty) if faulty else None,
        "fatal": sum(one["by"]["severity"] == "fatal" for one in found),
        "delays": len(delays),
        "median_delay": statistics.median(delays) if delays else None,
        "worst_delay": max(delays, default=None),
        "healthy": len(healthy),
        "false_alarms": sum(bool(one.get("false_alarm", True)) for one in healthy),
        "learned": sum(one.get("verdict") == "learned" for one in healthy),
        "unproven": sum(one.get("verdict") == "unproven" for one in healthy),
    }


def unmet(results: Results) -> list[str]:
    """Return the requirements of `--check` that the results do not meet."""
    sums = totals(results)
    missed = []
    if sums["recall"] is not None and sums["recall"] < RECALL:
        missed.append(f"recall {sums['recall']:.1%}, at least {RECALL:.0%} required")
    if sums["false_alarms"]:
        missed.append(f"{sums['false_alarms']} false alarms, none allowed")
    found = [one for one in results["faulty"] if one.get("detected") and one["by"]["rule"] in RELATIONS]
    late = [one for one in found if (one["delay"] or 0) > RELATION_STEPS]
    return missed + [
        f"{one['name']}: found after {one['delay']} steps, at most {RELATION_STEPS} allowed" for one in late
    ]


def format_line(one: dict[str, Any], kind: str) -> str:
    """Return the progress line of a finished program."""
    if "error" in one:
        return f"BROKEN  {one['name']}: {one['error']}"
    if kind == "faulty":
        return f"{'found ' if one['detected'] else 'MISSED'}  {one['name']}: {describe_detection(one)}"
    mark = "ALARM " if one["false_alarm"] else "quiet "
    return f"{mark}  {one['name']}: {one['verdict']}{describe_alarms(one)}"


def describe_detection(one: dict[str, Any]) -> str:
    others = f"; also {', '.join(one['also'])}" if one["also"] else ""
    if one["by"] is None:
        return f"expected {' or '.join(one['expected'])}, verdict {one['verdict']}{others}"
    by = one["by"]
    return f"{by['rule']} ({by['severity']}) {describe_step(one)}, verdict {one['verdict']}{others}"


def describe_alarms(one: dict[str, Any]) -> str:
    return "".join(f"; {a['rule']} ({a['severity']}) at step {a['step']}: {a['message']}" for a in one["alarms"])


def describe_step(one: dict[str, Any]) -> str:
    by = one["by"]
    step = by["judged_at"] if by["judged_at"] is not None else by["step"]
    if one["delay"] is None:
        return "at the end" if step is None or step >= one["steps"] else f"at step {step}"
    return f"at step {step}, {one['delay']} after the first step that shows it"


def as_text(results: Results) -> str:
    lines = ["", "faulty programs"]
    lines += ["  " + format_line(one, "faulty") for one in results["faulty"]]
    lines += ["", "healthy programs"]
    lines += ["  " + format_line(one, "healthy") for one in results["healthy"]]
    peer = peer_lines(results)
    return "\n".join(
        [*lines, *(["", "TrainCheck", *("  " + one for one in peer)] if peer else []), "", *summary(results)]
    )


def summary(results: Results) -> list[str]:
    sums = totals(results)
    lines = []
    if sums["faulty"]:
        lines.append(
            f"recall {sums['recall']:.1%}: {sums['found']} of {sums['faulty']} faulty programs found and identified correctly, "
            f"{sums['fatal']} of them with a fatal finding"
        )
    if sums["delays"]:
        lines.append(
            f"steps from the first step that shows the fault to the finding: median {sums['median_delay']:g}, at most "
            f"{sums['worst_delay']} ({sums['delays']} programs; the faults of the others appear when the program exits)"
        )
    if sums["healthy"]:
        lines.append(
            f"false alarms: {sums['false_alarms']} of {sums['healthy']} healthy programs; verdicts: {sums['learned']} learned, "
            f"{sums['unproven']} unproven"
        )
    return [*lines, *peer_summary(results)]


def peer_lines(results: Results) -> list[str]:
    return [f"{one['name']}: {describe_peer(one)}" for one in results.get("traincheck", [])]


def describe_peer(one: dict[str, Any]) -> str:
    if "error" in one:
        return f"no result: {one['error']}"
    violations = f"{one['violations']} invariants violated that its healthy twin satisfies"
    return f"{'found' if one['detected'] else 'missed'}, {violations} (of {one['invariants']}; the twin, with another seed: {one['twin_violations']})"


def peer_summary(results: Results) -> list[str]:
    peer = results.get("traincheck", [])
    ran = [one for one in peer if "error" not in one]
    if not peer:
        return []
    ours = {one["name"]: one.get("detected", False) for one in results["faulty"]}
    both = [one for one in ran if one["name"] in ours]
    comparison = (
        f"; Holdfast, without a reference run: {sum(ours[one['name']] for one in both)} of the same {len(both)}"
        if both
        else ""
    )
    twins = {one["twin"]: one["twin_violations"] for one in ran}
    alarmed = sum(bool(violated) for violated in twins.values())
    return [
        (
            f"TrainCheck, with the healthy twin as its reference run: {sum(one['detected'] for one in ran)} of {len(ran)} found"
            f"{comparison} ({len(peer) - len(ran)} gave no result)"
        ),
        f"TrainCheck on the healthy twins, with another seed: violations on {alarmed} of {len(twins)}",
    ]


def as_markdown(results: Results) -> str:
    machine = results["machine"]
    where = f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}, torch {machine['torch']}, commit {machine['commit']}"
    lines = [
        f"{results['date']}, {where}.",
        "",
        *(f"- {text}" for text in summary(results)),
        "",
        "| faulty program | fault | found by | severity | steps | verdict | TrainCheck |",
        "|---|---|---|---|---|---|---|",
    ]
    peer = {one["name"]: one for one in results.get("traincheck", [])}
    lines += [_faulty_row(one, peer.get(one["name"])) for one in results["faulty"]]
    lines += ["", "| healthy program | resembles | verdict | alarms |", "|---|---|---|---|"]
    lines += [_healthy_row(one) for one in results["healthy"]]
    return "\n".join(lines)


def _faulty_row(one: dict[str, Any], peer: dict[str, Any] | None) -> str:
    if "error" in one:
        return f"| {one['name']} | {one.get('fault', '')} | no result: {one['error']} | | | | |"
    peer_result = "" if peer is None else "no result" if "error" in peer else "found" if peer["detected"] else "missed"
    by = one["by"]
    if by is None:
        return f"| {one['name']} | {one['fault']} | **missed** | | | {one['verdict']} | {peer_result} |"
    steps = one["delay"] if one["delay"] is not None else "at the end"
    return f"| {one['name']} | {one['fault']} | {by['rule']} | {by['severity']} | {steps} | {one['verdict']} | {peer_result} |"


def _healthy_row(one: dict[str, Any]) -> str:
    if "error" in one:
        return f"| {one['name']} | {one.get('looks_like', '')} | no result | {one['error']} |"
    alarms = ", ".join(f"**{a['rule']}** ({a['severity']})" for a in one["alarms"])
    return f"| {one['name']} | {one['looks_like']} | {one['verdict']} | {alarms} |"
