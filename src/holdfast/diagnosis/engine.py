"""The rule engine. It only detects and never acts: it yields findings in the order in which they were made."""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from holdfast.diagnosis.rules import all_rules
from holdfast.schema.events import AttemptEnded
from holdfast.schema.verdicts import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.diagnosis.rule import Rule
    from holdfast.diagnosis.run_state import RunState
    from holdfast.schema.events import Event
    from holdfast.storage.journal import Entry

WEIGHT = {"note": 0, "warn": 1, "fatal": 2}


def evaluate(rule: Rule, state: RunState) -> Finding | None:
    """Return the finding of a rule, limited to the severity that the user allows."""
    most = state.most_severe(rule.id)
    if most == "off":
        return None
    try:
        finding = rule.judge(state)
    except Exception as error:  # noqa: BLE001 - a faulty rule must never stop a training
        return Finding(rule=rule.id, severity="note", message=f"This rule failed and was ignored: {error!r}")
    if finding is None:
        return None
    severity = most if WEIGHT[finding.severity] > WEIGHT[most] else finding.severity
    return msgspec.structs.replace(finding, rule=rule.id, severity=severity)


class Engine:
    """Folds entries into a run state and evaluates each rule after the events that concern it.

    A rule reports once per attempt, and again only if its finding became more severe. At the end of an attempt, its findings
    are updated with the final numbers. Findings of retractable rules that no longer apply are retracted. If a rule raises,
    the finding is a note.
    """

    def __init__(self, state: RunState, rules: Iterable[Rule] | None = None) -> None:
        self.state = state
        self._rules = rules

    @cached_property
    def _by_id(self) -> dict[str, Rule]:
        """Loaded after the first attempt has started, so that no training waits for it."""
        return {rule.id: rule for rule in (all_rules() if self._rules is None else self._rules)}

    @cached_property
    def _by_event(self) -> dict[type[Event], list[Rule]]:
        by_event = defaultdict(list)
        for rule in self._by_id.values():
            for kind in rule.on:
                by_event[kind].append(rule)
        return by_event

    def take(self, entry: Entry, *, evaluate_rules: bool = True) -> Iterator[Finding]:
        """Fold one entry and yield the findings that follow from it. Without `evaluate_rules`, only fold it."""
        self.state.fold(entry)
        if not self.state.attempts or not evaluate_rules:
            return
        yield from self.judge(type(entry.event))
        if isinstance(entry.event, AttemptEnded):
            yield from self._update_findings()

    def judge(self, kind: type[Event]) -> Iterator[Finding]:
        """Evaluate the rules that depend on events of this kind."""
        for rule in self._by_event.get(kind, ()):
            finding = self._find_new(rule)
            if finding is not None:
                yield finding

    def _update_findings(self) -> Iterator[Finding]:
        """Yield the findings of the attempt that still apply, with the numbers at its end. Then yield the retracted ones."""
        attempt = self.state.attempt
        newest = {finding.rule: finding for finding in attempt.findings}
        for rule_id, before in newest.items():
            rule = self._by_id.get(rule_id)
            now = evaluate(rule, self.state) if rule is not None else None
            if now is not None and now.severity == before.severity and now.message != before.message:
                yield msgspec.structs.replace(
                    now, attempt=before.attempt, step=before.step, epoch=before.epoch, updated=True
                )
        yield from self._retract_findings()

    def _retract_findings(self) -> Iterator[Finding]:
        made = {finding.rule: finding for attempt in self.state.ancestry for finding in attempt.findings}
        for rule_id, before in made.items():
            rule = self._by_id.get(rule_id)
            if (
                rule is not None
                and rule.retractable
                and before.severity != "fatal"
                and evaluate(rule, self.state) is None
            ):
                yield msgspec.structs.replace(before, updated=True, retracted=True)

    def _find_new(self, rule: Rule) -> Finding | None:
        """Return the finding of a rule if it is new in this attempt, or more severe than before."""
        attempt = self.state.attempt
        finding = evaluate(rule, self.state)
        if finding is None:
            return None
        before = attempt.find_finding(rule.id)
        if before is not None and WEIGHT[before.severity] >= WEIGHT[finding.severity]:
            return None
        step = finding.step if finding.step is not None else attempt.last_step
        epoch = finding.epoch if finding.epoch is not None else attempt.epoch
        return msgspec.structs.replace(finding, attempt=attempt.number, step=step, epoch=epoch)
