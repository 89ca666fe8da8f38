"""Checks for operators that select elements (argmax, sort, topk, pooling): an index is right if its element is right.

Among equal elements, any may be selected. So indices are not compared directly: the element at the device's index is
compared with the element at the CPU's index.
"""

from .compare import FACTOR, Mismatch

PLANE_DIMS = {
    "max_pool2d_with_indices": 2,
    "max_pool3d_with_indices": 3,
    "adaptive_max_pool2d": 2,
    "adaptive_max_pool3d": 3,
}
"""For these operators, indices count within this many last dimensions of the input."""
PERMUTING = frozenset(["sort", "argsort", "topk"])


class IndexOps(object):
    def __init__(self, torch, operator, values, precision):
        """`values` has the call's arguments on the CPU, by name."""
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
            return Mismatch("selection", "indices out of range", pair.where)
        try:
            selected, expected = self._gather(source, pair.device), self._gather(source, pair.reference)
        except (RuntimeError, IndexError):
            return Mismatch("selection", "indices out of range", pair.where)
        bad = selected != expected
        if selected.is_floating_point():
            spacing = self._precision.spacing_for(self._name, selected.dtype)
            bad = (selected - expected).abs() > FACTOR * spacing * expected.abs()
            bad |= torch.isnan(selected) != torch.isnan(expected)
        count = int(bad.sum())
        if count:
            of = pair.reference.numel()
            nan_note = (
                "; the input contains NaN" if source.is_floating_point() and bool(torch.isnan(source).any()) else ""
            )
            message = "other elements selected than on the CPU (%d of %d%s)" % (count, of, nan_note)
            return Mismatch("selection", message, pair.where, wrong=count, of=of)
        if self._name in PERMUTING and self._has_duplicates(pair.device):
            return Mismatch("selection", "the same element was selected twice", pair.where)
        return None

    def _gather(self, source, indices):
        """Return the elements at these indices."""
        torch = self._torch
        if self._name in PLANE_DIMS:
            count = PLANE_DIMS[self._name]
            lead = tuple(source.shape[: source.dim() - count])
            return source.reshape((*lead, -1)).gather(-1, indices.reshape((*lead, -1)))
        dim = self._values.get("dim")
        if dim is None and self._name in ("argmax", "argmin"):
            return source.reshape(-1)[indices.reshape(-1)]
        dim = -1 if dim is None else dim
        if source.dim() == 0:
            return source.reshape(1).expand(max(1, indices.numel()))
        if indices.dim() < source.dim():
            indices = indices.unsqueeze(dim)
        return torch.gather(source, dim, indices)

    def _has_duplicates(self, indices):
        dim = self._values.get("dim")
        dim = -1 if dim is None else dim
        if indices.dim() == 0 or indices.shape[dim] < 2:
            return False
        ordered = indices.sort(dim).values
        return bool((ordered.diff(dim=dim) == 0).any())
