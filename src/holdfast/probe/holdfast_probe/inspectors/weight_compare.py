"""Comparison of the tensors in a saved object with the live weights.

A saved tensor is matched with a live parameter by the end of its name ("ema.model.0.weight" is "model.0.weight") and its
shape. A checkpoint may contain several copies of the weights (raw and averaged); the best match counts.
"""

from ..param_names import join_names, parameters, plain
from .tensors import as_bits, spread, to_local

MAX_OBJECTS = 50000
MAX_DEPTH = 8
EXPENSIVE_ELEMENTS = 1 << 22
MAX_NAMES = 8
ORDER = ("equal", "cast", "average", "earlier", "near", "differs")
MIN_COSINE = 0.5
MAX_LENGTH_RATIO = 3.0
"""Older weights and averages have a similar direction and length as the live weights. Unrelated weights do not."""


def tensors_in(torch, obj):
    """Return (name, tensor) for all tensors in nested dictionaries, lists and modules."""
    results = []
    pending = [("", obj, 0)]
    seen = 0
    while pending and seen < MAX_OBJECTS:
        name, value, depth = pending.pop()
        seen += 1
        kind = type(value)
        if issubclass(kind, torch.Tensor):
            results.append((plain(name), value))
        elif depth >= MAX_DEPTH:
            continue
        elif issubclass(kind, torch.nn.Module):
            results.extend((plain(join_names(name, inner)), parameter) for inner, parameter in parameters(value))
        elif issubclass(kind, dict) or kind in (list, tuple):
            items = value.items() if issubclass(kind, dict) else enumerate(value)
            pending.extend(reversed([(join_names(name, key), item, depth + 1) for key, item in items]))
    return results


def compare(torch, saved, models, averages, max_compared, earlier=None):
    """Return the fields `tensors`, `compared`, `matches`, `differing` and `nonfinite` of a `saved` event. `earlier` is the
    history of earlier weights.
    """
    groups = [group for model in models for group in Index(model).groups(saved)]
    if not groups:
        return {"tensors": len(saved)}
    largest = max(map(len, groups))
    copies = [Copy(torch, group, max_compared) for group in groups if 2 * len(group) >= largest]
    for copy in copies:
        if copy.matches == "differs" and averages:
            copy.try_averages(torch, saved, [Index(dict(parameters(module))) for module in averages], max_compared)
        if copy.matches == "differs":
            copy.find_explanation(torch, earlier)
    best = min(copies, key=lambda copy: ORDER.index(copy.matches))
    return {
        "tensors": len(saved),
        "compared": sum(copy.compared for copy in copies),
        "matches": best.matches,
        "differing": best.differing[:MAX_NAMES],
        "nonfinite": sum(copy.nonfinite for copy in copies),
    }


class Index(object):
    """Live parameters by every suffix of their names that is unique."""

    def __init__(self, model):
        self._by_ending = {}
        for name, parameter in model.items():
            parts = name.split(".")
            for start in range(1, len(parts)):
                ending = ".".join(parts[start:])
                is_unique = ending not in self._by_ending and ending not in model
                self._by_ending[ending] = (parameter, ".".join(parts[:start])) if is_unique else None
        for name, parameter in model.items():
            self._by_ending[name] = (parameter, "")

    def groups(self, saved):
        """Return lists of (saved name, saved tensor, live parameter), one list for each copy of the weights."""
        groups = {}
        for name, tensor in saved:
            parts = name.split(".")
            for start in range(len(parts)):
                match = self._by_ending.get(".".join(parts[start:]))
                if match is not None and is_comparable(tensor, match[0]):
                    copy = (".".join(parts[:start]), match[1])
                    groups.setdefault(copy, []).append((name, tensor, match[0]))
                    break
        return list(groups.values())


class Copy(object):
    """One copy of the weights in a checkpoint. A few of its tensors are compared with the live ones."""

    def __init__(self, torch, group, max_compared):
        self.group = group
        # A large tensor is compared only if all are large.
        cheap = [item for item in group if item[1].numel() <= EXPENSIVE_ELEMENTS] or group[:1]
        chosen = spread(cheap, max_compared)
        results = [compare_tensors(torch, tensor, parameter) for _, tensor, parameter in chosen]
        self.compared = len(results)
        self.matches = max(results, key=ORDER.index)
        self._differing = [item for item, match in zip(chosen, results) if match == "differs"]
        self.differing = [name for name, _, _ in self._differing]
        self.nonfinite = sum(not is_finite(torch, tensor) for _, tensor, _ in chosen)

    def try_averages(self, torch, saved, averages, max_compared):
        names = {name for name, _, _ in self.group}
        own = [(name, tensor) for name, tensor in saved if name in names]
        for index in averages:
            for group in index.groups(own):
                if len(group) == len(self.group) and Copy(torch, group, max_compared).matches in ("equal", "cast"):
                    self.matches, self.differing = "average", []
                    return

    def find_explanation(self, torch, earlier):
        """Check for a legitimate difference: earlier weights, or weights that are near the live ones."""
        if earlier is not None and earlier.explains(self.group):
            self.matches, self.differing = "earlier", []
        elif not self.nonfinite and all_near(torch, self._differing):
            self.matches, self.differing = "near", []


def all_near(torch, group):
    """Return whether all saved tensors are near the live ones. Vectors are ignored if there are matrices: a bias that started
    at zero may point in any direction a little later.
    """
    relevant = [item for item in group if item[1].dim() > 1] or group
    return all(is_near(torch, tensor, parameter) for _, tensor, parameter in relevant)


def is_near(torch, saved, live):
    saved, live = to_local(saved), to_local(live)
    if live.is_complex():
        saved, live = torch.view_as_real(saved), torch.view_as_real(live)
    wide = torch.float64 if live.is_cpu else torch.float32
    # Cast each tensor on its own device, then copy: copies that also cast are wrong on some devices.
    saved = saved.to(torch.float64 if saved.is_cpu else torch.float32).to(live.device).to(wide).reshape(-1)
    live = live.to(wide).reshape(-1)
    product, lengths = float(saved @ live), (float(saved.norm()), float(live.norm()))
    if not min(lengths) * MAX_LENGTH_RATIO >= max(lengths) > 0:
        return False
    return product >= MIN_COSINE * lengths[0] * lengths[1]


def is_comparable(saved, live):
    """Return whether two tensors can be compared. Encoded values, such as quantised ones, cannot."""
    return saved.shape == live.shape and saved.is_floating_point() == live.is_floating_point()


def compare_tensors(torch, saved, live):
    """Return "equal" if equal bit for bit, "cast" if equal after a cast to the saved dtype, or "differs"."""
    saved, live = to_local(saved), to_local(live)
    if saved.shape != live.shape:
        return "differs"
    match = "equal" if saved.dtype == live.dtype else "cast"
    # Cast on the live weight's device, then copy: copies that also cast are wrong on some devices.
    other = live.to(saved.dtype).to(saved.device)
    return match if torch.equal(as_bits(torch, saved), as_bits(torch, other)) else "differs"


def is_finite(torch, tensor):
    tensor = to_local(tensor)
    return not (tensor.is_floating_point() or tensor.is_complex()) or bool(torch.isfinite(tensor).all())
