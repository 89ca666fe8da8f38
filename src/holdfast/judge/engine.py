"""Asks the rules. Detection never acts: what comes out is findings, in the order in which they were made."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec

from holdfast.judge.rules import all_rules
from holdfast.words.verdicts import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.judge.picture import Picture
    from holdfast.judge.rule import Rule
    from holdfast.record.journal import Entry
    from holdfast.words.events import Event

_WEIGHT = {"note": 0, "warn": 1, "fatal": 2}


class Engine:
    """Folds entries into a picture and asks each rule after the events that concern it.

    A rule speaks once an attempt, and again only if what it has to say became more severe. A rule that raises is a note.
    """

    def __init__(self, picture: Picture, rules: Iterable[Rule] | None = None, *, off: Iterable[str] = ()) -> None:
        self.picture = picture
        silent = set(off)
        self._asked: dict[type[Event], list[Rule]] = defaultdict(list)
        for rule in all_rules() if rules is None else rules:
            if rule.id not in silent:
                for kind in rule.on:
                    self._asked[kind].append(rule)

    def take(self, entry: Entry) -> Iterator[Finding]:
        """Fold one entry and yield what follows from it."""
        self.picture.fold(entry)
        if not self.picture.attempts:
            return
        for rule in self._asked.get(type(entry.event), ()):
            finding = self._ask(rule)
            if finding is not None:
                yield finding

    def _ask(self, rule: Rule) -> Finding | None:
        attempt = self.picture.attempt
        try:
            finding = rule.judge(self.picture)
        except Exception as error:  # noqa: BLE001 - a faulty rule must not cost anybody a training
            finding = Finding(rule=rule.id, severity="note", message=f"This rule failed and was ignored: {error!r}")
        if finding is None:
            return None
        before = attempt.found(rule.id)
        if before is not None and _WEIGHT[before.severity] >= _WEIGHT[finding.severity]:
            return None
        step = finding.step if finding.step is not None else attempt.last_step
        epoch = finding.epoch if finding.epoch is not None else attempt.epoch
        return msgspec.structs.replace(finding, attempt=attempt.number, step=step, epoch=epoch)
