"""Pieces of weights that were live before, so that a checkpoint of them is known for what it is.

Many trainings copy their best weights (`best = copy.deepcopy(model.state_dict())`) and save the copy much later. Whoever
copies so calls `state_dict`: that is the moment at which a piece of a few weights is kept. The weights before the first
step are kept too, and models that were trained before the one at hand are remembered as long as they live.
"""

import functools
import weakref
from collections import deque

from .tensors import bits_type, local, trainable

MAX_MOMENTS = 64
TENSORS = 4
PIECE_ELEMENTS = 1024
MAX_MODELS = 32


class WeightHistory(object):
    name = "earlier weights"

    def __init__(self, probe):
        self._probe = probe
        self._moments = deque(maxlen=MAX_MOMENTS)
        self._models = deque(maxlen=MAX_MODELS)  # weak references to a few weights of each model that was trained
        self._known = {}  # id of an optimizer -> weak reference to it
        self._step = None
        self._wrap_state_dict(probe.torch.nn.Module)

    def _wrap_state_dict(self, module_class):
        original = module_class.state_dict
        if getattr(original, "_holdfast", False):
            return

        @functools.wraps(original)
        def state_dict(module, *args, **kwargs):
            # Every module calls those inside it, with a destination: only the outermost call is someone's.
            if not args and kwargs.get("destination") is None:
                self.copied()
            return original(module, *args, **kwargs)

        state_dict._holdfast = True
        module_class.state_dict = state_dict

    def copied(self):
        """Someone may be copying the live weights right now."""
        probe = self._probe
        if not probe.awake or probe.silent or probe.step == self._step or not probe.scalars.on_training_thread():
            return
        try:
            if probe.budget.allows(probe.budget.expected(self.name)):
                self._step = probe.step
                with probe.budget.spending(self.name), probe.torch.no_grad():
                    for optimizer in probe.optimizers:
                        self._keep(chosen_from(optimizer))
        except Exception as error:
            probe.failed("keeping a piece of the weights", error)

    def step_begins(self, optimizer):
        """The first step of an optimizer: its weights are still the initial ones."""
        known = self._known.get(id(optimizer))
        if known is None or known() is not optimizer:
            self._known[id(optimizer)] = weakref.ref(optimizer)
            chosen = chosen_from(optimizer)
            self._models.append([weakref.ref(parameter) for parameter in chosen])
            with self._probe.torch.no_grad():
                self._keep(chosen)

    def forked(self):
        kept, self._moments = self._moments, deque(maxlen=MAX_MOMENTS)
        return kept

    def _keep(self, parameters):
        if parameters:
            self._moments.append([(parameter.shape, piece_of(parameter).clone()) for parameter in parameters])

    def explains(self, group):
        """Whether the saved tensors of a group (saved name, saved tensor, live parameter) are weights of an earlier moment,
        or of a model that was trained earlier.
        """
        moments = list(reversed(self._moments))
        for references in self._models:
            alive = [parameter for parameter in (reference() for reference in references) if parameter is not None]
            if alive and len(alive) == len(references):
                moments.append([(parameter.shape, piece_of(parameter)) for parameter in alive])
        return any(self._is_like(moment, group) for moment in moments)

    def _is_like(self, moment, group):
        """Every piece is found in the group, and one of them at least is not what is live."""
        unlike_live = False
        for shape, piece in moment:
            twins = [
                live for _, saved, live in group if saved.shape == shape and _equal(self._probe.torch, piece, saved)
            ]
            if not twins:
                return False
            unlike_live = unlike_live or not any(_equal(self._probe.torch, piece, live) for live in twins)
        return unlike_live


def chosen_from(optimizer):
    """A few of the weights that an optimizer trains, matrices before vectors, from the first to the last."""
    weights = [p for p in trainable(optimizer) if p.is_floating_point() and p.numel()]
    several = [p for p in weights if p.dim() > 1] or weights
    if len(several) <= TENSORS:
        return several
    return [several[place * (len(several) - 1) // (TENSORS - 1)] for place in range(TENSORS)]


def piece_of(tensor):
    """Its first elements, as a view where that is possible."""
    tensor = local(tensor)
    if tensor.dim() > 1 and tensor.numel():
        rows = -(-PIECE_ELEMENTS * tensor.shape[0] // tensor.numel())
        tensor = tensor[:rows]
    return tensor.reshape(-1)[:PIECE_ELEMENTS]


def _equal(torch, piece, tensor):
    """Bit for bit, in the type of the tensor that is compared."""
    other = piece_of(tensor)
    if other.shape != piece.shape or not other.is_floating_point():
        return False
    piece = piece.to(other.dtype).to(other.device)
    bits = bits_type(torch, other.dtype)
    return torch.equal(piece, other) if bits is None else torch.equal(piece.view(bits), other.contiguous().view(bits))
