"""One call that has run on a device, and its other run on the CPU."""

from . import compare
from .cpu_mirror import CpuMirror, NotComparable, as_it_lies, replaced, tensors_in
from .findings import described
from .index_ops import IndexOps
from .precision import MATRIX
from .tolerance import Tolerance

PLAIN_TYPES = (bool, int, float, str)


class Call(object):
    """One call that has run on the device, and its other run on the CPU."""

    def __init__(self, checker, operator, function, args, kwargs, copies, device):
        self._checker = checker
        self._torch = checker._torch
        self.operator = operator
        self._function = function
        self._args, self._kwargs = args, kwargs
        self._copies = copies
        self._device = device
        self._precision = checker.devices[device.type]

    def pairs(self, result):
        """What the call left behind, on the device and on the CPU; how to run it on other memory; and what the run gave."""
        torch, copies = self._torch, self._copies
        returned, aliases = self._returned(result)
        written = [storage for storage in copies.storages if storage.written]
        reference = self.run()
        results, memories = reference[: len(reference) - len(written)], reference[len(reference) - len(written) :]
        if len(results) != len(aliases):
            raise NotComparable("it returns another number of tensors on the CPU")
        # What was written in place is compared as memory, and comes back as a result too.
        keep = [place for place, alias in enumerate(aliases) if not alias]
        pairs = [compare.Pair("result %d" % place, returned[place], results[place]) for place in keep]
        for storage, memory in zip(written, memories):
            pairs.append(
                compare.Pair(self._name_of(storage), storage.after(torch), memory, storage, self._views(storage))
            )

        def run(moved):
            again = self.run(moved)
            return [again[place] for place in keep] + again[len(results) :]

        return pairs, run, [pair.reference for pair in pairs]

    def judged(self, pairs, run, reference):
        torch = self._torch
        precision, name = self._precision, self.operator.name
        memories = [storage.before for storage in self._copies.storages]
        noise = Tolerance(
            torch, run, memories, lambda dtype: precision.of(name, dtype), reference, self._checker.generator
        )
        selection = IndexOps(torch, self.operator, self.values(), precision)
        judge = compare.Judge(torch, self.operator, pairs, noise, precision, self._terms(pairs), selection)
        return judge.wrong()

    def run(self, memories=None):
        """On the CPU: all tensors that it returns, then the memory of each storage that it writes to."""
        args, kwargs, memories = self._copies.arguments(memories)
        result = self._function(*args, **kwargs)
        results = [value.detach() for value in self._values_of(result)]
        return results + [memory for storage, memory in zip(self._copies.storages, memories) if storage.written]

    def _values_of(self, result):
        """Returned tensors; a number becomes one."""
        torch = self._torch
        if isinstance(result, (bool, int, float, complex)):
            double = torch.complex128 if isinstance(result, complex) else torch.float64
            return [torch.tensor(result, dtype=double if isinstance(result, (float, complex)) else None, device="cpu")]
        return tensors_in(torch, result, [])

    def _returned(self, result):
        """Each returned tensor on the CPU, None for one that is memory of a written argument; and which are."""
        torch = self._torch
        written = {storage.tensor.untyped_storage()._cdata for storage in self._copies.storages if storage.written}
        values, aliases = [], []
        for value in self._values_of(result):
            alias = bool(written) and bool(value.numel()) and value.untyped_storage()._cdata in written
            aliases.append(alias)
            values.append(None if alias else as_it_lies(torch, value))
        return values, aliases

    def _name_of(self, storage):
        for _, name in self.operator.writes:
            for tensor in tensors_in(self._torch, self.values_given().get(name), []):
                if self._copies.storage_of(tensor) is storage:
                    return name
        return "an argument"

    def _views(self, storage):
        """The written tensors in this storage: shape, strides, offset within what was copied, in its elements."""
        size = storage.tensor.element_size()
        written = tensors_in(self._torch, self.operator.written(self._args, self._kwargs), [])
        views = [
            (tensor.shape, tensor.stride(), tensor.storage_offset() - storage.start)
            for tensor in written
            if self._copies.storage_of(tensor) is storage and tensor.element_size() == size
        ]
        return views or [(storage.before.shape, (1,), 0)]

    def _terms(self, pairs):
        """How many terms the longest sum in this call has, as far as shapes tell."""
        name = self.operator.name
        tensors = self._copies.tensors
        sizes = sorted((t.numel() for t in tensors if t.is_floating_point()), reverse=True)
        results = [
            pair.reference.numel() for pair in pairs if pair.reference.is_floating_point() and pair.reference.numel()
        ]
        if not sizes or not results:
            return 1.0
        smallest = min(results)
        if name in MATRIX and len(sizes) > 1:
            return max(1.0, (float(sizes[0]) * sizes[1] / smallest) ** 0.5)
        if name.startswith(("cum", "logcum")):
            return float(max(tensors[0].shape or (1,)))
        if any(word in name for word in ("scatter", "index_add", "index_put", "embedding", "index_reduce")):
            return float(max([1] + [t.numel() for t in tensors if not t.is_floating_point()]))
        if self.operator.writes and not name.startswith("native"):
            return 1.0
        return max(1.0, float(sizes[0]) / smallest)

    # --- telling -------------------------------------------------------------------------------------------------

    def values_given(self):
        return self.operator.bound(self._args, self._kwargs)

    def values(self):
        """Arguments by name, tensors on the CPU as they were before the call."""
        args, kwargs, _ = self._copies.arguments()
        return self.operator.bound(args, kwargs)

    def described(self):
        tensors, scalars = [], {}
        for name, value in self.values_given().items():
            held = tensors_in(self._torch, value, [])
            tensors.extend(described(name, tensor) for tensor in held)
            if not held and isinstance(value, PLAIN_TYPES):
                scalars[name] = value
            elif not held and value is not None:
                scalars[name] = str(value)[:100]
        return tensors[:32], scalars

    def tried_again(self):
        """Whether the device is right on contiguous tensors, and whether it is wrong again on the same."""
        helps = steady = None
        try:
            lie = [t for t in self._copies.tensors if not t.is_contiguous() or t.storage_offset()]
            if lie:
                helps = self._again(contiguous=True)
            if not self.operator.writes:
                steady = not self._again(contiguous=False)
        except Exception:
            pass
        return helps, steady

    def _again(self, contiguous):
        """The call once more on the device, from what its arguments were: True when it is right."""
        torch, checker = self._torch, self._checker
        args, kwargs = self._args, self._kwargs
        if contiguous:
            by_id = {}
            for tensor in self._copies.tensors:
                storage = self._copies.storage_of(tensor)
                host = storage.view(torch, tensor, storage.before).contiguous() if storage else tensor
                by_id[id(tensor)] = host.clone().to(tensor.device)
            args = [replaced(torch, value, by_id) for value in args]
            kwargs = {key: replaced(torch, value, by_id) for key, value in kwargs.items()}
        copies = CpuMirror(torch, args, kwargs, checker._written(self.operator, args, kwargs))
        result = self._function(*args, **kwargs)
        call = Call(checker, self.operator, self._function, args, kwargs, copies, self._device)
        pairs, run, reference = call.pairs(result)
        return call.judged(pairs, run, reference) is None
