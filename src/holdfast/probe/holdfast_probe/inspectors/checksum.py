"""This rank's weights as one number, at the same steps on every rank, for the supervisor to compare.

Only weights that a DistributedDataParallel object holds are promised to be equal, so only those are summed. The steps are
fixed, never up to the budget: ranks that looked at different steps could not be compared.
"""

import functools
import weakref

from . import Inspector
from .tensors import bits_type, by_rows, local, row_slices

EVERY = 1000
MAX_ELEMENTS = 1 << 21
"""Summed at a time: the sum of one piece takes 16 MB on the way."""
PIECE_BITS = 16
PIECES = 4
MULTIPLIER = 0x9E3779B97F4A7C15 - (1 << 64)
"""An odd constant as a signed 64-bit number: tensors and rows in another order give another sum."""


def is_due(step):
    """1, 2, 4, 8, ... and every thousandth."""
    return step > 0 and (step % EVERY == 0 or (step < EVERY and step & (step - 1) == 0))


class ChecksumInspector(Inspector):
    name = "rank checksums"

    def __init__(self, probe):
        super().__init__(probe)
        self._replicas = []
        self._watch_replicas()

    def _watch_replicas(self):
        """Remember each DistributedDataParallel object when it is made; a module hook would cost the user's compile."""
        parallel = getattr(self.probe.torch.nn.parallel, "DistributedDataParallel", None)
        if parallel is None or getattr(parallel.__init__, "_holdfast", False):
            return
        original = parallel.__init__
        replicas = self._replicas

        @functools.wraps(original)
        def made(replica, *args, **kwargs):
            original(replica, *args, **kwargs)
            replicas.append(weakref.ref(replica))

        made._holdfast = True
        parallel.__init__ = made

    def step_ended(self, optimizer, clock):
        if not clock or self.probe.world_size <= 1 or not is_due(self.probe.step):
            return
        tensors = self._weights()
        if not tensors:
            self.probe.see(self.name, "not seen: no DistributedDataParallel object holds the weights")
            return
        self.probe.see(self.name)
        with self.probe.budget.spending(self.name):
            self._sum(tensors, self.probe.step)

    def _weights(self):
        replicas = [reference() for reference in self._replicas]
        return [
            parameter
            for replica in replicas
            if replica is not None
            for name, parameter in replica.module.named_parameters()
            if parameter.requires_grad and name not in (getattr(replica, "parameters_to_ignore", None) or ())
        ]

    def _sum(self, tensors, step):
        torch = self.probe.torch
        with torch.no_grad():
            number = fingerprint(torch, tensors)
            if number is None:
                return
            pieces = as_pieces(torch, number)

        def known(values):
            text = "".join("%04x" % int(value) for value in values)
            self.probe.emit("checksum", step=step, rank=self.probe.rank, value=text, tensors=len(tensors))

        self.probe.scalars.later(pieces, known)


def fingerprint(torch, tensors):
    """All bits of the tensors as one wrapping 64-bit number, on the first tensor's device. Exact, so that equal weights
    always give equal numbers.
    """
    total = None
    for tensor in tensors:
        whole = by_rows(torch, local(tensor))
        for start, stop in row_slices(whole, MAX_ELEMENTS):
            summed = piece_fingerprint(torch, whole[start:stop])
            total = summed if total is None else total * MULTIPLIER + summed.to(total.device)
    return total


def piece_fingerprint(torch, piece):
    bits = bits_type(torch, piece.dtype)
    piece = piece.contiguous()
    piece = piece if bits is None else piece.view(bits)
    sums = piece.reshape(piece.shape[0], -1).sum(1, dtype=torch.int64)
    weights = torch.arange(1, 2 * piece.shape[0], 2, dtype=torch.int64, device=sums.device) * MULTIPLIER
    return (sums * weights).sum()


def as_pieces(torch, number):
    """A 64-bit number as four floats, which carry 16 bits each exactly: the core fetches floats."""
    shifts = torch.arange(PIECE_BITS * (PIECES - 1), -1, -PIECE_BITS, dtype=torch.int64, device=number.device)
    return ((number >> shifts) & ((1 << PIECE_BITS) - 1)).to(torch.float32)
