"""A checksum of this rank's weights, taken at the same steps on every rank, so that the supervisor can compare ranks.

Only the weights inside a DistributedDataParallel module are guaranteed to be equal, so only those are summed. The steps are
fixed and do not depend on the budget: checksums from different steps could not be compared.
"""

import weakref

from ..param_names import live
from . import Inspector, wrap_function
from .tensors import as_bits, as_rows, row_slices, to_local

EVERY = 1000
MAX_ELEMENTS = 1 << 21
"""Elements summed at a time. The sum of one piece needs 16 MB of temporary memory."""
PIECE_BITS = 16
PIECES = 4
MULTIPLIER = 0x9E3779B97F4A7C15 - (1 << 64)
"""An odd constant as a signed 64-bit number. It makes the sum depend on the order of tensors and rows."""


def is_due(step):
    """Return True for steps 1, 2, 4, 8, ... and every thousandth step."""
    return step > 0 and (step % EVERY == 0 or (step < EVERY and step & (step - 1) == 0))


class ChecksumInspector(Inspector):
    name = "rank checksums"

    def __init__(self, probe):
        super().__init__(probe)
        self._replicas = []
        ddp = getattr(probe.torch.nn.parallel, "DistributedDataParallel", None)
        if ddp is not None:  # a module hook would interfere with torch.compile
            wrap_function((ddp,), "__init__", self._create_replica)

    def _create_replica(self, original, args, kwargs):
        original(*args, **kwargs)
        self._replicas.append(weakref.ref(args[0]))

    def step_ended(self, optimizer, is_primary):
        if not is_primary or self.probe.world_size <= 1 or not is_due(self.probe.step):
            return
        tensors = self._weights()
        if not tensors:
            self.probe.miss(self.name, "no DistributedDataParallel object contains the weights")
            return
        self.probe.see(self.name)
        with self.probe.budget.spending(self.name):
            self._sum(tensors, self.probe.step)

    def _weights(self):
        return [
            parameter
            for replica in live(self._replicas)
            for name, parameter in replica.module.named_parameters()
            if parameter.requires_grad and name not in (getattr(replica, "parameters_to_ignore", None) or ())
        ]

    def _sum(self, tensors, step):
        torch = self.probe.torch
        with torch.no_grad():
            total = fingerprint(torch, tensors)
            if total is None:
                return
            pieces = split_into_floats(torch, total)

        def emit_checksum(values):
            text = "".join("%04x" % int(value) for value in values)
            self.probe.emit("checksum", step=step, rank=self.probe.rank, value=text, tensors=len(tensors))

        self.probe.scalars.later(pieces, emit_checksum)


def fingerprint(torch, tensors):
    """Return all bits of the tensors as one wrapping 64-bit sum, on the first tensor's device. The sum is exact."""
    total = None
    for tensor in tensors:
        rows = as_rows(torch, to_local(tensor))
        for start, stop in row_slices(rows, MAX_ELEMENTS):
            piece_sum = fingerprint_piece(torch, rows[start:stop])
            total = piece_sum if total is None else total * MULTIPLIER + piece_sum.to(total.device)
    return total


def fingerprint_piece(torch, piece):
    piece = as_bits(torch, piece.contiguous())
    sums = piece.reshape(piece.shape[0], -1).sum(1, dtype=torch.int64)
    weights = torch.arange(1, 2 * piece.shape[0], 2, dtype=torch.int64, device=sums.device) * MULTIPLIER
    return (sums * weights).sum()


def split_into_floats(torch, total):
    """Split a 64-bit number into four floats of 16 bits each, because the probe core fetches floats. This is exact."""
    shifts = torch.arange(PIECE_BITS * (PIECES - 1), -1, -PIECE_BITS, dtype=torch.int64, device=total.device)
    return ((total >> shifts) & ((1 << PIECE_BITS) - 1)).to(torch.float32)
