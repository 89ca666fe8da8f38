"""Asks the rules. Detection never acts: what comes out is findings, in the order in which they were made."""

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


def ask(rule: Rule, state: RunState) -> Finding | None:
    """What a rule says, within what the user lets it say."""
    most = state.most_severe(rule.id)
    if most == "off":
        return None
    try:
        finding = rule.judge(state)
    except Exception as error:  # noqa: BLE001 - a faulty rule must not cost anybody a training
        return Finding(rule=rule.id, severity="note", message=f"This rule failed and was ignored: {error!r}")
    if finding is not None and WEIGHT[finding.severity] > WEIGHT[most]:
        return msgspec.structs.replace(finding, severity=most)
    return finding


class Engine:
    """Folds entries into a run state and asks each rule after the events that concern it.

    A rule speaks once an attempt, and again only if what it has to say became more severe. At an attempt's end what it said is told
    with the numbers of then, and taken back where it is about the newest course and no longer so. A rule that raises is a note.
    """

    def __init__(self, state: RunState, rules: Iterable[Rule] | None = None) -> None:
        self.state = state
        self._rules = rules

    @cached_property
    def _by_id(self) -> dict[str, Rule]:
        """Found when the first attempt has begun, so that no training waits for it."""
        return {rule.id: rule for rule in (all_rules() if self._rules is None else self._rules)}

    @cached_property
    def _asked(self) -> dict[type[Event], list[Rule]]:
        asked = defaultdict(list)
        for rule in self._by_id.values():
            for kind in rule.on:
                asked[kind].append(rule)
        return asked

    def take(self, entry: Entry, *, asking: bool = True) -> Iterator[Finding]:
        """Fold one entry and yield what follows from it. Without `asking`, nothing is judged after it."""
        self.state.fold(entry)
        if not self.state.attempts or not asking:
            return
        yield from self.judge(type(entry.event))
        if isinstance(entry.event, AttemptEnded):
            yield from self._as_they_stand()

    def judge(self, kind: type[Event]) -> Iterator[Finding]:
        """Ask the rules that look at events of this kind."""
        for rule in self._asked.get(kind, ()):
            finding = self._ask(rule)
            if finding is not None:
                yield finding

    def _as_they_stand(self) -> Iterator[Finding]:
        """What was found while it ran, with its numbers as they are at the end, where the rule still says it."""
        attempt = self.state.attempt
        newest = {finding.rule: finding for finding in attempt.findings}
        for rule_id, before in newest.items():
            rule = self._by_id.get(rule_id)
            now = ask(rule, self.state) if rule is not None else None
            if now is not None and now.severity == before.severity and now.message != before.message:
                yield msgspec.structs.replace(
                    now, attempt=before.attempt, step=before.step, epoch=before.epoch, updated=True
                )
        yield from self._no_longer_so()

    def _no_longer_so(self) -> Iterator[Finding]:
        made = {finding.rule: finding for attempt in self.state.ancestry for finding in attempt.findings}
        for rule_id, before in made.items():
            rule = self._by_id.get(rule_id)
            if rule is not None and rule.retractable and before.severity != "fatal" and ask(rule, self.state) is None:
                yield msgspec.structs.replace(before, updated=True, retracted=True)

    def _ask(self, rule: Rule) -> Finding | None:
        attempt = self.state.attempt
        finding = ask(rule, self.state)
        if finding is None:
            return None
        before = attempt.found(rule.id)
        if before is not None and WEIGHT[before.severity] >= WEIGHT[finding.severity]:
            return None
        step = finding.step if finding.step is not None else attempt.last_step
        epoch = finding.epoch if finding.epoch is not None else attempt.epoch
        return msgspec.structs.replace(finding, attempt=attempt.number, step=step, epoch=epoch)
