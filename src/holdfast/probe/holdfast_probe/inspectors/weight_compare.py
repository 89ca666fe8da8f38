"""How like the live weights the tensors of a saved object are.

A saved tensor is matched with a live parameter by the end of its name ("ema.model.0.weight" is "model.0.weight") and its
shape. A checkpoint may hold several copies of the weights (raw and averaged); the best one counts.
"""

from ..param_names import parameters, plain
from .tensors import bits_type, local

MAX_THINGS = 50000
MAX_DEPTH = 8
DEAR_ELEMENTS = 1 << 22
MAX_NAMES = 8
ORDER = ("equal", "cast", "average", "earlier", "near", "differs")
MIN_COSINE = 0.5
MAX_TIMES_LONGER = 3.0
"""Older weights and averages point the way that the live ones do, and are about as long. Other weights are not."""


def tensors_in(torch, thing):
    """(name, tensor) of all tensors in nested dictionaries, lists and modules."""
    found = []
    waiting = [("", thing, 0)]
    seen = 0
    while waiting and seen < MAX_THINGS:
        name, value, depth = waiting.pop()
        seen += 1
        kind = type(value)
        if issubclass(kind, torch.Tensor):
            found.append((plain(name), value))
        elif depth >= MAX_DEPTH:
            continue
        elif issubclass(kind, dict):
            items = [(_joined(name, key), item, depth + 1) for key, item in value.items()]
            waiting.extend(reversed(items))
        elif kind in (list, tuple):
            items = [(_joined(name, place), item, depth + 1) for place, item in enumerate(value)]
            waiting.extend(reversed(items))
        elif issubclass(kind, torch.nn.Module):
            found.extend((plain(_joined(name, inner)), parameter) for inner, parameter in parameters(value))
    return found


def _joined(name, key):
    return "%s.%s" % (name, key) if name else str(key)


def compare(torch, saved, models, averages, most, earlier=None):
    """The fields `tensors`, `compared`, `matches`, `differing` and `nonfinite` of a `saved` event. `earlier` knows weights that
    were live before.
    """
    answer = {"tensors": len(saved)}
    live = [Index(model) for model in models]
    pairs = [group for index in live for group in index.groups(saved)]
    if not pairs:
        return answer
    largest = max(len(group) for group in pairs)
    copies = [Copy(torch, group, most) for group in pairs if 2 * len(group) >= largest]
    for copy in copies:
        if copy.matches == "differs" and averages:
            copy.try_averages(torch, saved, [Index(dict(parameters(module))) for module in averages], most)
        if copy.matches == "differs":
            copy.explain(torch, earlier)
    best = min(copies, key=lambda copy: ORDER.index(copy.matches))
    answer.update(
        compared=sum(copy.compared for copy in copies),
        matches=best.matches,
        differing=best.differing[:MAX_NAMES],
        nonfinite=sum(copy.nonfinite for copy in copies),
    )
    return answer


class Index(object):
    """Live parameters by every ending of their names that is theirs alone."""

    def __init__(self, model):
        self._by_ending = {}
        for name, parameter in model.items():
            parts = name.split(".")
            for start in range(1, len(parts)):
                ending = ".".join(parts[start:])
                ours = ending not in self._by_ending and ending not in model
                self._by_ending[ending] = (parameter, ".".join(parts[:start])) if ours else None
        for name, parameter in model.items():
            self._by_ending[name] = (parameter, "")

    def groups(self, saved):
        """(saved name, saved tensor, live parameter) in lists, one for each copy of the weights."""
        groups = {}
        for name, tensor in saved:
            parts = name.split(".")
            for start in range(len(parts)):
                match = self._by_ending.get(".".join(parts[start:]))
                if match is not None and comparable(tensor, match[0]):
                    copy = (".".join(parts[:start]), match[1])
                    groups.setdefault(copy, []).append((name, tensor, match[0]))
                    break
        return list(groups.values())


class Copy(object):
    """One copy of the weights in a checkpoint, a few of its tensors compared with the live ones."""

    def __init__(self, torch, group, most):
        self.prefixless = group
        self._judge(torch, group, most)

    def _judge(self, torch, group, most):
        chosen = sample(group, most)
        found = [(name, likeness(torch, tensor, parameter)) for name, tensor, parameter in chosen]
        self.compared = len(found)
        self.matches = max((match for _, match in found), key=ORDER.index)
        self.differing = [name for name, match in found if match == "differs"]
        self._differing = [item for item, (_, match) in zip(chosen, found) if match == "differs"]
        self.nonfinite = sum(not is_finite(torch, tensor) for _, tensor, _ in chosen)

    def try_averages(self, torch, saved, averages, most):
        names = {name for name, _, _ in self.prefixless}
        ours = [(name, tensor) for name, tensor in saved if name in names]
        for index in averages:
            for group in index.groups(ours):
                if len(group) == len(self.prefixless) and Copy(torch, group, most).matches in ("equal", "cast"):
                    self.matches, self.differing = "average", []
                    return

    def explain(self, torch, earlier):
        """Weights that were live before, or that are near the live ones, differ from them for a reason."""
        if earlier is not None and earlier.explains(self.prefixless):
            self.matches, self.differing = "earlier", []
        elif not self.nonfinite and all_near(torch, self._differing):
            self.matches, self.differing = "near", []


def all_near(torch, group):
    """Vectors are left out where there are matrices: a bias that began at zero may point anywhere a little later."""
    judged = [item for item in group if item[1].dim() > 1] or group
    return all(is_near(torch, tensor, parameter) for _, tensor, parameter in judged)


def is_near(torch, saved, live):
    saved, live = local(saved), local(live)
    if live.is_complex():
        saved, live = torch.view_as_real(saved), torch.view_as_real(live)
    wide = torch.float64 if live.is_cpu else torch.float32
    # Cast where each one lies, then brought together: copies that also cast are wrong on some devices.
    saved = saved.to(torch.float64 if saved.is_cpu else torch.float32).to(live.device).to(wide).reshape(-1)
    live = live.to(wide).reshape(-1)
    product, lengths = float(saved @ live), (float(saved.norm()), float(live.norm()))
    if not min(lengths) * MAX_TIMES_LONGER >= max(lengths) > 0:
        return False
    return product >= MIN_COSINE * lengths[0] * lengths[1]


def comparable(saved, live):
    """Numbers that stand for others, as quantised ones do, are not compared."""
    return saved.shape == live.shape and saved.is_floating_point() == live.is_floating_point()


def sample(group, most):
    """At most so many, spread from the first to the last; dear ones only where there are no others."""
    cheap = [item for item in group if item[1].numel() <= DEAR_ELEMENTS] or group[:1]
    if len(cheap) <= most:
        return cheap
    return [cheap[place * (len(cheap) - 1) // (most - 1)] for place in range(most)]


def likeness(torch, saved, live):
    """Either "equal" bit for bit, "cast" when the live one becomes equal in the saved one's type, else "differs"."""
    saved, live = local(saved), local(live)
    if saved.shape != live.shape:
        return "differs"
    match = "equal" if saved.dtype == live.dtype else "cast"
    # The cast happens where the live weight lies, the copy afterwards: copies that also cast are wrong on some devices.
    other = live.to(saved.dtype).to(saved.device)
    return match if torch.equal(_bits(torch, saved), _bits(torch, other)) else "differs"


def _bits(torch, tensor):
    """The bits where a type has plain ones: a NaN equals itself there."""
    bits = bits_type(torch, tensor.dtype)
    return tensor if bits is None else tensor.view(bits)


def is_finite(torch, tensor):
    tensor = local(tensor)
    return not (tensor.is_floating_point() or tensor.is_complex()) or bool(torch.isfinite(tensor).all())
