"""The tolerance for a call: how much its results change on the CPU when its inputs are perturbed by rounding."""


class Tolerance(object):
    """The tolerance for one call. Computed only on demand: results that agree need no tolerance."""

    def __init__(self, torch, run, memories, spacing_of, reference, generator):
        """`run` takes the memory of each storage and returns the call's results. `reference` has the unperturbed results."""
        self._torch = torch
        self._run = run
        self._memories = memories
        self._spacing_of = spacing_of
        self._reference = reference
        self._generator = generator
        self.runs = 0
        self.failed = 0
        self.max_changes = [None] * len(reference)
        """For each result: the largest change of each element. For integers: whether it changed."""
        self.shapes = [set() for _ in reference]
        """For each result: the other shapes it had when the inputs were perturbed."""
        self.has_floats = any(memory.is_floating_point() or memory.is_complex() for memory in memories)

    def add_runs(self, times):
        if not self.has_floats:
            return
        for _ in range(times):
            results = self._run_rounded() if not self.runs else self._run_perturbed()
            self.runs += 1
            if results is None:
                continue
            for index, (result, reference) in enumerate(zip(results, self._reference)):
                if result.shape != reference.shape:
                    self.shapes[index].add(tuple(result.shape))
                else:
                    self._record_change(index, result, reference)

    def _run_rounded(self):
        """Run with the inputs rounded to the device's precision: two numbers may be equal only there."""
        try:
            return self._run([self._round(memory) for memory in self._memories])
        except Exception:
            return None

    def _run_perturbed(self):
        for only_smaller in (False, True):  # a probability of 1 may not grow
            try:
                return self._run([self._perturb(memory, only_smaller) for memory in self._memories])
            except Exception:
                self.failed += 1
        return None

    def _record_change(self, index, result, reference):
        torch = self._torch
        if reference.is_floating_point() or reference.is_complex():
            change = distance(torch, result, reference).nan_to_num_(nan=0.0, posinf=0.0)
            previous = self.max_changes[index]
            self.max_changes[index] = change if previous is None else torch.maximum(previous, change)
        else:
            changed = result != reference
            previous = self.max_changes[index]
            self.max_changes[index] = changed if previous is None else previous | changed

    def _round(self, memory):
        torch = self._torch
        if memory.dtype != torch.float32:
            return memory
        steps = 1.0 / self._spacing_of(memory.dtype)
        mantissa, exponent = torch.frexp(memory)
        rounded = torch.ldexp((mantissa * (2 * steps)).round() / (2 * steps), exponent)
        return torch.where(torch.isfinite(memory), rounded, memory)

    def _perturb(self, memory, only_smaller):
        torch = self._torch
        if memory.is_complex():
            return torch.view_as_complex(self._perturb(torch.view_as_real(memory).contiguous(), only_smaller))
        if not memory.is_floating_point() or memory.element_size() == 1:
            return memory
        spacing = self._spacing_of(memory.dtype)
        wide = memory if memory.element_size() >= 4 else memory.float()
        signs = torch.empty(wide.shape, dtype=wide.dtype, device="cpu").bernoulli_(0.5, generator=self._generator)
        lowest, highest = 1.0 - spacing, 1.0 if only_smaller else 1.0 + spacing
        factor = signs.mul_(highest - lowest).add_(lowest)
        perturbed = wide * factor
        # A zero has no digits to round. Changing it by the smallest number still breaks ties.
        tiny = torch.finfo(memory.dtype).tiny
        perturbed = torch.where(wide == 0, (factor >= 1.0).to(wide.dtype) * tiny, perturbed)
        return perturbed.to(memory.dtype)


def distance(torch, one, other):
    """Return the elementwise difference of two results: 0 if equal or both NaN, infinite if only one is finite."""
    if one.is_complex():
        one, other = torch.view_as_real(one), torch.view_as_real(other)
        return distance(torch, one, other).amax(-1)
    if one.element_size() < 4:
        one, other = one.float(), other.float()
    difference = (one - other).abs()
    if not bool(torch.isfinite(difference.sum())):
        same = (one == other) | (torch.isnan(one) & torch.isnan(other))
        difference = torch.where(
            same, torch.zeros((), dtype=difference.dtype, device="cpu"), difference.nan_to_num(nan=float("inf"))
        )
    return difference
