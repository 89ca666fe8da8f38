"""Pieces of earlier weights, used to recognize a checkpoint of earlier weights.

Many trainings copy their best weights (`best = copy.deepcopy(model.state_dict())`) and save the copy much later. Such a copy
calls `state_dict`, and at that moment pieces of a few weights are kept. The weights before the first step are kept too.
Models that were trained before the current one are remembered as long as they exist.
"""

import weakref
from collections import deque

from ..param_names import live
from . import wrap_function
from .tensors import as_bits, spread, to_local, trainable_parameters

MAX_MOMENTS = 64
MAX_TENSORS = 4
PIECE_ELEMENTS = 1024
MAX_MODELS = 32


class WeightHistory(object):
    name = "earlier weights"

    def __init__(self, probe):
        self._probe = probe
        self._moments = deque(maxlen=MAX_MOMENTS)
        self._models = deque(maxlen=MAX_MODELS)  # weak references to a few weights of each model that was trained
        self._seen_optimizers = {}  # id of an optimizer -> weak reference to it
        self._step = None
        wrap_function((probe.torch.nn.Module,), "state_dict", self._state_dict)

    def _state_dict(self, original, args, kwargs):
        # Every module calls its submodules with a destination. Only the outermost call comes from the user.
        if len(args) == 1 and kwargs.get("destination") is None:
            self.record_weights()
        return original(*args, **kwargs)

    def record_weights(self):
        """Keep pieces of the live weights, because the user may be copying them right now."""
        probe = self._probe
        if not probe.awake or probe.silent or probe.step == self._step or not probe.scalars.on_training_thread():
            return
        try:
            if probe.budget.allows(probe.budget.expected(self.name)):
                self._step = probe.step
                with probe.budget.spending(self.name), probe.torch.no_grad():
                    for optimizer in probe.optimizers:
                        self._keep(choose_weights(optimizer))
        except Exception as error:
            probe.failed("keeping a piece of the weights", error)

    def step_begins(self, optimizer):
        """Before the first step of an optimizer, keep pieces of its initial weights."""
        reference = self._seen_optimizers.get(id(optimizer))
        if reference is None or reference() is not optimizer:
            self._seen_optimizers[id(optimizer)] = weakref.ref(optimizer)
            chosen = choose_weights(optimizer)
            self._models.append([weakref.ref(parameter) for parameter in chosen])
            with self._probe.torch.no_grad():
                self._keep(chosen)

    def forked(self):
        kept, self._moments = self._moments, deque(maxlen=MAX_MOMENTS)
        return kept

    def _keep(self, parameters):
        if parameters:
            self._moments.append([(parameter.shape, view_piece(parameter).clone()) for parameter in parameters])

    def explains(self, group):
        """Return whether the saved tensors of a group are earlier weights, or weights of a model trained earlier."""
        moments = list(reversed(self._moments))
        for references in self._models:
            parameters = live(references)
            if parameters and len(parameters) == len(references):
                moments.append([(parameter.shape, view_piece(parameter)) for parameter in parameters])
        return any(self._is_in(moment, group) for moment in moments)

    def _is_in(self, moment, group):
        """Return True if the group contains every piece and at least one piece differs from the live weights."""
        differs_from_live = False
        for shape, piece in moment:
            matches = [
                live for _, saved, live in group if saved.shape == shape and _equal(self._probe.torch, piece, saved)
            ]
            if not matches:
                return False
            differs_from_live = differs_from_live or not any(_equal(self._probe.torch, piece, live) for live in matches)
        return differs_from_live


def choose_weights(optimizer):
    """Choose a few of the weights that an optimizer trains: matrices before vectors, spread from the first to the last."""
    weights = [p for p in trainable_parameters(optimizer) if p.is_floating_point() and p.numel()]
    return spread([p for p in weights if p.dim() > 1] or weights, MAX_TENSORS)


def view_piece(tensor):
    """Return the tensor's first elements, as a view if possible."""
    tensor = to_local(tensor)
    if tensor.dim() > 1 and tensor.numel():
        rows = -(-PIECE_ELEMENTS * tensor.shape[0] // tensor.numel())
        tensor = tensor[:rows]
    return tensor.reshape(-1)[:PIECE_ELEMENTS]


def _equal(torch, piece, tensor):
    """Compare bit for bit, in the dtype of `tensor`."""
    other = view_piece(tensor)
    if other.shape != piece.shape or not other.is_floating_point():
        return False
    piece = piece.to(other.dtype).to(other.device)
    return torch.equal(as_bits(torch, piece), as_bits(torch, other.contiguous()))
