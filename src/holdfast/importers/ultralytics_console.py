"""What Ultralytics prints: a heading with the names of the losses, a bar for each epoch, a line of metrics after it.

Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size
 1/10      4.57G          0       3.37          0         23        640: 100%|██████████| 90/90 [04:12<00:00]
           Class     Images  Instances      Box(P          R      mAP50  mAP50-95): 100%|██████████| 12/12
             all        179        190          0          0          0          0
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from holdfast.importers.base import number, whole

_HEADING = re.compile(r"^\s*Epoch\s+GPU_mem\s+(?P<losses>(?:\S*loss\S*\s+)+)Instances\s+Size\s*$")
_BAR = re.compile(
    r"^\s*(?P<epoch>\d{1,7})/(?P<epochs>\d{1,7})\s+(?P<memory>\d\S*)\s+(?P<losses>(?:\S+\s+){1,12}?)\d+\s+\d+:\s+"
    r"(?P<percent>\d{1,3})%.*?\s(?P<batch>\d{1,9})/(?P<batches>\d{1,9})\b"
)
_ALL = re.compile(r"^\s*all\s+\d+\s+\d+\s+(?P<values>\S+(?:\s+\S+){2,11})\s*$")
_BANNER = re.compile(
    r"Ultralytics (?:YOLOv)?(?P<ultralytics>\d+(?:\.\d+)+).{0,20}?Python-(?P<python>\S+) torch-(?P<torch>\S+) (?P<device>.{0,60})"
)
_ELAPSED = re.compile(r"(?:\[|(?:it/s|s/it) )(?:(?P<clock>(?:\d{1,4}:)?\d{1,4}:\d\d)|(?P<seconds>\d{1,2}\.\d)s)")
_VALIDATING = re.compile(r"^\s*Class\s+Images\s+Instances\b")
_AT_THE_END = re.compile(r"^\s*Validating \S+\.pt\.\.\.")
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


@dataclass(frozen=True)
class Banner:
    torch: str
    device: str

    @property
    def on_mps(self) -> bool:
        return self.device.upper().startswith("MPS")


def banner_in(text: str) -> Banner | None:
    found = _BANNER.search(text)
    return Banner(found["torch"], found["device"].strip()) if found else None


@dataclass
class EpochSoFar:
    epoch: int
    epochs: int
    batch: int
    batches: int
    seconds: float = 0.0
    """As the bar says; 0 where it does not."""
    values: dict[str, float] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        return self.batch >= self.batches


class Console:
    """Follows the output. An epoch is given when its metrics are printed, or the next one begins."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self.now: EpochSoFar | None = None
        self.final: dict[str, float] | None = None
        """Metrics of best.pt, validated once more at the end."""
        self._at_the_end = False

    def take(self, line: str) -> tuple[bool, EpochSoFar | None]:
        """Whether the line is one of these, and an epoch that is now whole."""
        if heading := _HEADING.match(line):
            self._names = heading["losses"].split()
            return True, None
        if _AT_THE_END.match(line):
            self._at_the_end = True
            return True, self.rest()
        if _VALIDATING.match(line):
            return True, None
        if bar := _BAR.match(line):
            return self._bar(bar)
        if (row := _ALL.match(line)) and (self._names or self.now is not None):
            return True, self._metrics(row["values"].split())
        return False, None

    def rest(self) -> EpochSoFar | None:
        """The last epoch, where it is whole and was not given yet."""
        done, self.now = self.now, None
        return done if done is not None and done.whole else None

    def _bar(self, bar: re.Match[str]) -> tuple[bool, EpochSoFar | None]:
        epoch, epochs, batch, batches = (whole(bar[name]) or 0 for name in ("epoch", "epochs", "batch", "batches"))
        done = self.rest() if self.now is not None and self.now.epoch != epoch else None
        losses = [number(text) for text in bar["losses"].split()]
        names = self._names if len(self._names) == len(losses) else [f"loss_{n}" for n in range(1, len(losses) + 1)]
        values = {f"train/{name}": value for name, value in zip(names, losses, strict=True) if value is not None}
        self.now = EpochSoFar(epoch, epochs, batch, batches, _elapsed(bar.string[bar.end() :]), values)
        self._at_the_end = False
        return True, done

    def _metrics(self, cells: list[str]) -> EpochSoFar | None:
        numbers = [number(cell) for cell in cells]
        if None in numbers:
            return None
        values = {f"metrics/{name}": value for name, value in zip(_METRICS, numbers, strict=False) if value is not None}
        if self._at_the_end:
            self.final = values
            return None
        done = self.rest()
        if done is not None:
            done.values.update(values)
        return done


def _elapsed(rest: str) -> float:
    """The time that a bar shows behind its position: `[04:12<00:00, 1.4it/s]`, or newer `1.4it/s 4:12`."""
    found = _ELAPSED.search(rest)
    if found is None:
        return 0.0
    if found["seconds"]:
        return float(found["seconds"])
    seconds = 0
    for part in found["clock"].split(":"):
        seconds = seconds * 60 + int(part)
    return float(seconds)
