"""How much a call's results move on the CPU when its inputs move by rounding: the measure of what may differ honestly."""


class Tolerance(object):
    """Of one call. Costs nothing until it is asked: results that agree need no tolerance."""

    def __init__(self, torch, run, memories, spacing_of, reference, generator):
        """`run` takes the memory of each storage and gives the call's results; `reference` is what it gave unmoved."""
        self._torch = torch
        self._run = run
        self._memories = memories
        self._spacing_of = spacing_of
        self._reference = reference
        self._generator = generator
        self.runs = 0
        self.failed = 0
        self.moved = [None] * len(reference)
        """For each result: the farthest that each element moved; for integers, whether it changed."""
        self.shapes = [set() for _ in reference]
        """Shapes that a result had when the inputs had moved, where it was another one."""
        self.has_floats = any(memory.is_floating_point() or memory.is_complex() for memory in memories)

    def widen(self, times):
        if not self.has_floats:
            return
        for _ in range(times):
            results = self._rounded_results() if not self.runs else self._moved_results()
            self.runs += 1
            if results is None:
                continue
            for place, (result, reference) in enumerate(zip(results, self._reference)):
                if result.shape != reference.shape:
                    self.shapes[place].add(tuple(result.shape))
                else:
                    self._note(place, result, reference)

    def _rounded_results(self):
        """With inputs rounded to what the device keeps: two numbers may be equal there and only there."""
        try:
            return self._run([self._round(memory) for memory in self._memories])
        except Exception:
            return None

    def _moved_results(self):
        for only_smaller in (False, True):  # a probability of 1 may not grow
            try:
                return self._run([self._move(memory, only_smaller) for memory in self._memories])
            except Exception:
                self.failed += 1
        return None

    def _note(self, place, result, reference):
        torch = self._torch
        if reference.is_floating_point() or reference.is_complex():
            move = distance(torch, result, reference).nan_to_num_(nan=0.0, posinf=0.0)
            known = self.moved[place]
            self.moved[place] = move if known is None else torch.maximum(known, move)
        else:
            changed = result != reference
            known = self.moved[place]
            self.moved[place] = changed if known is None else known | changed

    def _round(self, memory):
        torch = self._torch
        if memory.dtype != torch.float32:
            return memory
        steps = 1.0 / self._spacing_of(memory.dtype)
        part, exponent = torch.frexp(memory)
        rounded = torch.ldexp((part * (2 * steps)).round() / (2 * steps), exponent)
        return torch.where(torch.isfinite(memory), rounded, memory)

    def _move(self, memory, only_smaller):
        torch = self._torch
        if memory.is_complex():
            return torch.view_as_complex(self._move(torch.view_as_real(memory).contiguous(), only_smaller))
        if not memory.is_floating_point() or memory.element_size() == 1:
            return memory
        spacing = self._spacing_of(memory.dtype)
        wide = memory if memory.element_size() >= 4 else memory.float()
        signs = torch.empty(wide.shape, dtype=wide.dtype, device="cpu").bernoulli_(0.5, generator=self._generator)
        lowest, highest = 1.0 - spacing, 1.0 if only_smaller else 1.0 + spacing
        factor = signs.mul_(highest - lowest).add_(lowest)
        moved = wide * factor
        # A zero has no digits to round; moved by the smallest number, it still breaks ties.
        tiny = torch.finfo(memory.dtype).tiny
        moved = torch.where(wide == 0, (factor >= 1.0).to(wide.dtype) * tiny, moved)
        return moved.to(memory.dtype)


def distance(torch, one, other):
    """Between two results, element by element: 0 for equal ones (also both NaN), infinite where only one is finite."""
    if one.is_complex():
        one, other = torch.view_as_real(one), torch.view_as_real(other)
        return distance(torch, one, other).amax(-1)
    if one.element_size() < 4:
        one, other = one.float(), other.float()
    apart = (one - other).abs()
    if not bool(torch.isfinite(apart.sum())):
        same = (one == other) | (torch.isnan(one) & torch.isnan(other))
        apart = torch.where(same, torch.zeros((), dtype=apart.dtype, device="cpu"), apart.nan_to_num(nan=float("inf")))
    return apart
