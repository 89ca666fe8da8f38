"""Parser for the output of Ultralytics: a header with the loss names, a bar for each epoch, a line of metrics after it.

Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size
 1/10      4.57G          0       3.37          0         23        640: 100%|██████████| 90/90 [04:12<00:00]
           Class     Images  Instances      Box(P          R      mAP50  mAP50-95): 100%|██████████| 12/12
             all        179        190          0          0          0          0
"""

from __future__ import annotations

import re

from holdfast.importers.base import Banner, EpochProgress, parse_float, parse_int

_HEADING = re.compile(r"^\s*Epoch\s+GPU_mem\s+(?P<losses>(?:\S*loss\S*\s+)+)Instances\s+Size\s*$")
_BAR = re.compile(
    r"^\s*(?P<epoch>\d{1,7})/(?P<epochs>\d{1,7})\s+(?P<memory>\d\S*)\s+(?P<losses>(?:\S+\s+){1,12}?)\d+\s+\d+:\s+"
    r"(?P<percent>\d{1,3})%.*?\s(?P<batch>\d{1,9})/(?P<batches>\d{1,9})\b"
)
_ALL = re.compile(r"^\s*all\s+\d+\s+\d+\s+(?P<values>\S+(?:\s+\S+){2,11})\s*$")
_BANNER = re.compile(r"Ultralytics (?:YOLOv)?\d+(?:\.\d+)+.{0,20}?Python-\S+ torch-(?P<torch>\S+) (?P<device>.{0,60})")
_ELAPSED = re.compile(r"(?:\[|(?:it/s|s/it) )(?:(?P<clock>(?:\d{1,4}:)?\d{1,4}:\d\d)|(?P<seconds>\d{1,2}\.\d)s)")
_VALIDATING = re.compile(r"^\s*Class\s+Images\s+Instances\b")
_FINAL_VALIDATION = re.compile(r"^\s*Validating \S+\.pt\.\.\.")
_METRICS = (
    "precision(B)",
    "recall(B)",
    "mAP50(B)",
    "mAP50-95(B)",
    "precision(M)",
    "recall(M)",
    "mAP50(M)",
    "mAP50-95(M)",
)


def find_banner(text: str) -> Banner | None:
    found = _BANNER.search(text)
    return Banner(found["torch"], found["device"].strip()) if found else None


class Console:
    """Parses the output. An epoch is returned when its metrics are printed or the next epoch starts."""

    source = "ultralytics"

    def __init__(self) -> None:
        self._names: list[str] = []
        self.current: EpochProgress | None = None
        self.final: dict[str, float] | None = None
        self._in_final_validation = False

    def take(self, line: str) -> tuple[bool, EpochProgress | None]:
        if heading := _HEADING.match(line):
            self._names = heading["losses"].split()
            return True, None
        if _FINAL_VALIDATION.match(line):
            self._in_final_validation = True
            return True, self.flush()
        if _VALIDATING.match(line):
            return True, None
        if bar := _BAR.match(line):
            return self._handle_bar(bar)
        if (row := _ALL.match(line)) and (self._names or self.current is not None):
            return True, self._handle_metrics(row["values"].split())
        return False, None

    def flush(self) -> EpochProgress | None:
        done, self.current = self.current, None
        return done if done is not None and done.is_complete else None

    def _handle_bar(self, bar: re.Match[str]) -> tuple[bool, EpochProgress | None]:
        epoch, epochs, batch, batches = (parse_int(bar[name]) or 0 for name in ("epoch", "epochs", "batch", "batches"))
        done = self.flush() if self.current is not None and self.current.epoch != epoch else None
        losses = [parse_float(text) for text in bar["losses"].split()]
        names = self._names if len(self._names) == len(losses) else [f"loss_{n}" for n in range(1, len(losses) + 1)]
        values = {f"train/{name}": value for name, value in zip(names, losses, strict=True) if value is not None}
        self.current = EpochProgress(epoch, epochs, batch, batches, _parse_elapsed(bar.string[bar.end() :]), values)
        self._in_final_validation = False
        return True, done

    def _handle_metrics(self, cells: list[str]) -> EpochProgress | None:
        numbers = [parse_float(cell) for cell in cells]
        if None in numbers:
            return None
        values = {f"metrics/{name}": value for name, value in zip(_METRICS, numbers, strict=False) if value is not None}
        if self._in_final_validation:
            self.final = values
            return None
        done = self.flush()
        if done is not None:
            done.values.update(values)
        return done


def _parse_elapsed(text: str) -> float:
    """Parse the time that a bar shows after its position: `[04:12<00:00, 1.4it/s]`, or newer `1.4it/s 4:12`."""
    found = _ELAPSED.search(text)
    if found is None:
        return 0.0
    if found["seconds"]:
        return float(found["seconds"])
    seconds = 0
    for part in found["clock"].split(":"):
        seconds = seconds * 60 + int(part)
    return float(seconds)
