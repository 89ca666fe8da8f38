"""One operator call that has run on a device, and its second run on the CPU."""

from . import compare
from .cpu_mirror import CpuMirror, NotComparable, copy_strided, replace_tensors, tensors_in
from .findings import describe_tensor
from .index_ops import IndexOps
from .precision import MATRIX
from .tolerance import Tolerance

PLAIN_TYPES = (bool, int, float, str)


class Call(object):
    """One call that has run on the device, and its second run on the CPU."""

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
        """Return the pairs of device and CPU results, a function that runs the call on other memory, and the CPU results."""
        torch, copies = self._torch, self._copies
        returned, aliases = self._copy_results(result)
        written = [storage for storage in copies.storages if storage.written]
        reference = self.run()
        results, memories = reference[: len(reference) - len(written)], reference[len(reference) - len(written) :]
        if len(results) != len(aliases):
            raise NotComparable("it returns a different number of tensors on the CPU")
        # A tensor that was written in place is compared as memory, although it is also returned.
        keep = [index for index, alias in enumerate(aliases) if not alias]
        pairs = [compare.Pair("result %d" % index, returned[index], results[index]) for index in keep]
        for storage, memory in zip(written, memories):
            pairs.append(
                compare.Pair(self._get_name(storage), storage.after(torch), memory, storage, self._views(storage))
            )

        def run(perturbed):
            perturbed_results = self.run(perturbed)
            return [perturbed_results[index] for index in keep] + perturbed_results[len(results) :]

        return pairs, run, [pair.reference for pair in pairs]

    def judge(self, pairs, run, reference):
        torch = self._torch
        precision, name = self._precision, self.operator.name
        memories = [storage.before for storage in self._copies.storages]
        noise = Tolerance(
            torch, run, memories, lambda dtype: precision.spacing_for(name, dtype), reference, self._checker.generator
        )
        selection = IndexOps(torch, self.operator, self.cpu_arguments(), precision)
        judge = compare.Judge(torch, self.operator, pairs, noise, precision, self._count_terms(pairs), selection)
        return judge.find_mismatch()

    def run(self, memories=None):
        """Run on the CPU. Return all returned tensors, then the memory of each storage that the call writes to."""
        args, kwargs, memories = self._copies.arguments(memories)
        result = self._function(*args, **kwargs)
        results = [value.detach() for value in self._to_tensors(result)]
        return results + [memory for storage, memory in zip(self._copies.storages, memories) if storage.written]

    def _to_tensors(self, result):
        """Return the returned tensors. A number becomes a tensor."""
        torch = self._torch
        if isinstance(result, (bool, int, float, complex)):
            double = torch.complex128 if isinstance(result, complex) else torch.float64
            return [torch.tensor(result, dtype=double if isinstance(result, (float, complex)) else None, device="cpu")]
        return tensors_in(torch, result, [])

    def _copy_results(self, result):
        """Copy each returned tensor to the CPU. Return the copies, with None for a tensor that shares memory with a written
        argument, and a flag for each tensor that is true if it does.
        """
        torch = self._torch
        written = {storage.tensor.untyped_storage()._cdata for storage in self._copies.storages if storage.written}
        values, aliases = [], []
        for value in self._to_tensors(result):
            alias = bool(written) and bool(value.numel()) and value.untyped_storage()._cdata in written
            aliases.append(alias)
            values.append(None if alias else copy_strided(torch, value))
        return values, aliases

    def _get_name(self, storage):
        for _, name in self.operator.writes:
            for tensor in tensors_in(self._torch, self.bind_call_arguments().get(name), []):
                if self._copies.storage_of(tensor) is storage:
                    return name
        return "an argument"

    def _views(self, storage):
        """Return shape, strides and offset of the written tensors in this storage. The offset is in elements of the copy."""
        size = storage.tensor.element_size()
        written = tensors_in(self._torch, self.operator.written_arguments(self._args, self._kwargs), [])
        views = [
            (tensor.shape, tensor.stride(), tensor.storage_offset() - storage.start)
            for tensor in written
            if self._copies.storage_of(tensor) is storage and tensor.element_size() == size
        ]
        return views or [(storage.before.shape, (1,), 0)]

    def _count_terms(self, pairs):
        """Estimate the number of terms of the longest sum in this call from the shapes."""
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

    # --- reporting -----------------------------------------------------------------------------------------------

    def bind_call_arguments(self):
        return self.operator.bind_arguments(self._args, self._kwargs)

    def cpu_arguments(self):
        """Return the arguments by name, with the tensors on the CPU as they were before the call."""
        args, kwargs, _ = self._copies.arguments()
        return self.operator.bind_arguments(args, kwargs)

    def describe(self):
        tensors, scalars = [], {}
        for name, value in self.bind_call_arguments().items():
            contained = tensors_in(self._torch, value, [])
            tensors.extend(describe_tensor(name, tensor) for tensor in contained)
            if not contained and isinstance(value, PLAIN_TYPES):
                scalars[name] = value
            elif not contained and value is not None:
                scalars[name] = str(value)[:100]
        return tensors[:32], scalars

    def retry(self):
        """Return whether the device is right on contiguous tensors, and whether it is wrong again on the same tensors."""
        contiguous_helps = steady = None
        try:
            strided = [t for t in self._copies.tensors if not t.is_contiguous() or t.storage_offset()]
            if strided:
                contiguous_helps = self._is_right(contiguous=True)
            if not self.operator.writes:
                steady = not self._is_right(contiguous=False)
        except Exception:
            pass
        return contiguous_helps, steady

    def _is_right(self, contiguous):
        """Repeat the call on the device with its original arguments. Return True if the result is right."""
        torch, checker = self._torch, self._checker
        args, kwargs = self._args, self._kwargs
        if contiguous:
            by_id = {}
            for tensor in self._copies.tensors:
                storage = self._copies.storage_of(tensor)
                host = storage.view(torch, tensor, storage.before).contiguous() if storage else tensor
                by_id[id(tensor)] = host.clone().to(tensor.device)
            args = [replace_tensors(torch, value, by_id) for value in args]
            kwargs = {key: replace_tensors(torch, value, by_id) for key, value in kwargs.items()}
        copies = CpuMirror(torch, args, kwargs, checker._find_written(self.operator, args, kwargs))
        result = self._function(*args, **kwargs)
        call = Call(checker, self.operator, self._function, args, kwargs, copies, self._device)
        pairs, run, reference = call.pairs(result)
        return call.judge(pairs, run, reference) is None
