"""Whether anything is ever updated, where no optimizer has stepped yet.

Backwards without a step are nothing strange: gradients may be accumulated for long, or be all that is wanted. But an
optimizer that holds weights which the losses use, and a process that ends without a single step, were meant otherwise. As
long as no optimizer has stepped, a few weights are compared with what they were, more and more rarely. What was found is
told at the end.
"""

import time
import weakref

from ..names import all_of_type
from . import Look
from .earlier import piece_of
from .graph import leaves_behind
from .tensors import bits_type

FIRST = 64
"""After so many backwards it is looked for an optimizer that holds what the loss uses."""
TENSORS = 4


class UnsteppedLook(Look):
    name = "weights without a step"

    def __init__(self, probe, names):
        super().__init__(probe)
        self._names = names
        self._backwards = 0
        self._pieces = None
        self._unchanged_for = 0
        self._told = []

    def backward_begins(self, loss, first):
        if self._backwards < 0:
            return
        if self.probe.optimizers:
            self._stop()
            return
        self._backwards += 1
        count = self._backwards
        if count < FIRST or count & (count - 1):
            return
        with self.probe.torch.no_grad():
            if self._pieces is None:
                began = time.monotonic()
                self._keep(loss)
                self.probe.budget.credit += time.monotonic() - began  # once a run: it must not blind the other looks
            elif self._all_unchanged():
                self._unchanged_for = count
            else:
                self._stop()  # something updates them that is not seen

    def ends(self):
        if self._unchanged_for and not self.probe.optimizers:
            stuck = [dict(told, stuck=told["with_gradient"]) for told in self._told]
            self.probe.emit(
                "movement",
                step=self.probe.step,
                checked=len(stuck),
                of=len(stuck),
                moved=0,
                stuck=stuck,
                without_step=self._backwards,
            )

    def forked(self):
        kept = self._pieces
        self._stop()
        return kept

    def _stop(self):
        self._backwards, self._pieces, self._unchanged_for = -1, None, 0

    def _keep(self, loss):
        leaves, why_not = leaves_behind(loss)
        held = {
            id(parameter)
            for optimizer in all_of_type(self.probe.torch.optim.Optimizer)
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        wanted = [leaf for leaf in leaves if id(leaf) in held and bits_type(self.probe.torch, leaf.dtype) is not None]
        if why_not or not wanted:
            self._stop()
            return
        wanted = wanted[:TENSORS]
        self._pieces = [(weakref.ref(leaf), piece_of(leaf).clone()) for leaf in wanted]
        for leaf in wanted:
            rows = leaf.shape[0] if leaf.dim() else 1
            self._told.append({"name": self._names.of(leaf), "rows": rows, "with_gradient": rows})

    def _all_unchanged(self):
        torch = self.probe.torch
        for reference, piece in self._pieces:
            leaf = reference()
            if leaf is None:
                return False
            bits = bits_type(torch, piece.dtype)
            if not torch.equal(piece.view(bits), piece_of(leaf).contiguous().view(bits)):
                return False
        return True
