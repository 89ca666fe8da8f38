"""Operators that choose elements (argmax, sort, topk, pooling): a choice is right if what was chosen is right.

Of equal elements each may be chosen, so places are not compared with places: what lies at the device's place is compared
with what lies at the CPU's.
"""

from .compare import FACTOR, Wrong

PLANES = {
    "max_pool2d_with_indices": 2,
    "max_pool3d_with_indices": 3,
    "adaptive_max_pool2d": 2,
    "adaptive_max_pool3d": 3,
}
"""Places count within the last dimensions of the input."""
WHOLE_LANES = frozenset(["sort", "argsort", "topk"])


class IndexOps(object):
    def __init__(self, torch, operator, values, precision):
        """`values`: the call's arguments on the CPU, by name."""
        self._torch = torch
        self._name = operator.name
        self._values = values
        self._precision = precision

    def __call__(self, pair):
        torch = self._torch
        source = self._values.get("self")
        if source is None:
            source = self._values.get("input")
        if bool((pair.device < 0).any()) or bool((pair.device >= max(1, source.numel())).any()):
            return Wrong("selection", "places that do not exist", pair.where)
        try:
            chosen, rightly = self._at(source, pair.device), self._at(source, pair.reference)
        except (RuntimeError, IndexError):
            return Wrong("selection", "places that do not exist", pair.where)
        bad = chosen != rightly
        if chosen.is_floating_point():
            spacing = self._precision.of(self._name, chosen.dtype)
            bad = (chosen - rightly).abs() > FACTOR * spacing * rightly.abs()
            bad |= torch.isnan(chosen) != torch.isnan(rightly)
        count = int(bad.sum())
        if count:
            of = pair.reference.numel()
            had = "; the input has NaN" if source.is_floating_point() and bool(torch.isnan(source).any()) else ""
            message = "other elements chosen than the CPU chooses (%d of %d%s)" % (count, of, had)
            return Wrong("selection", message, pair.where, wrong=count, of=of)
        if self._name in WHOLE_LANES and self._repeats(pair.device):
            return Wrong("selection", "one element chosen twice", pair.where)
        return None

    def _at(self, source, places):
        """What lies there."""
        torch = self._torch
        if self._name in PLANES:
            count = PLANES[self._name]
            lead = tuple(source.shape[: source.dim() - count])
            return source.reshape((*lead, -1)).gather(-1, places.reshape((*lead, -1)))
        dim = self._values.get("dim")
        if dim is None and self._name in ("argmax", "argmin"):
            return source.reshape(-1)[places.reshape(-1)]
        dim = -1 if dim is None else dim
        if source.dim() == 0:
            return source.reshape(1).expand(max(1, places.numel()))
        if places.dim() < source.dim():
            places = places.unsqueeze(dim)
        return torch.gather(source, dim, places)

    def _repeats(self, places):
        dim = self._values.get("dim")
        dim = -1 if dim is None else dim
        if places.dim() == 0 or places.shape[dim] < 2:
            return False
        ordered = places.sort(dim).values
        return bool((ordered.diff(dim=dim) == 0).any())
