"""Checks that frozen weights do not change.

A parameter is frozen if it does not require a gradient and belongs to a model that an optimizer trains. Trainings with
several models freeze each other's parameters temporarily and on purpose. So a parameter in an optimizer counts as frozen
only if it is frozen during that optimizer's own steps. Finding that out takes a few steps, called a census. Pieces of the
frozen parameters are kept and compared after the next census. Each census comes eight times later than the previous one,
or sooner if another parameter was frozen.

The running statistics of a normalisation layer follow the data in training mode even if all its parameters are frozen.
"""

import functools
import time
import weakref

from ..param_names import join_names, live, modules_in, own_parameters, parameters_of, plain
from . import Inspector
from .tensors import as_bits, bits_type, to_local, trainable_parameters

CENSUS_STEPS = 4
FIRST_CENSUS = 2
"""The first census begins this many steps after the first step: by then the model is complete."""
MAX_POSTPONED_STEPS = 32
"""The longest delay of a census that the budget cannot pay for. There are few of them."""
FIRST_INTERVAL = 8
INTERVAL_FACTOR = 8
MAX_TENSORS = 48
MAX_NAMES = 8
COUNT_EVERY_MASK = 15
"""The frozen parameters are counted once every 16 steps: this mask plus one."""
PIECE_ROWS = 2
PIECE_ELEMENTS = 256
STATISTICS = ("running_mean", "running_var")
MOVED, STATISTICS_MOVED, LAYER_PARAMETER_MOVED, BY_OPTIMIZER = range(4)


class FrozenInspector(Inspector):
    name = "frozen weights"

    def __init__(self, probe, names):
        super().__init__(probe)
        self._names = names
        self._due = FIRST_CENSUS
        self._interval = FIRST_INTERVAL
        self._census = None
        self.eager = False
        self._pieces = None  # from the previous census
        self._before_step = ()
        self._frozen_counts = {}  # id of an optimizer -> how many of its parameters were frozen

    def step_begins(self, optimizer, is_primary):
        self._before_step = ()
        if not self.probe.step & COUNT_EVERY_MASK:
            self._update_frozen_count(optimizer)
        if self._census is None:
            if not is_primary or self.probe.step - self.probe.first_step < self._due:
                return
            budget = self.probe.budget
            postponed = self.probe.step - self.probe.first_step - self._due
            if postponed < MAX_POSTPONED_STEPS and not budget.allows(budget.expected(self.name)):
                return
            self._census = Census()
            self.eager = True
        self._census.step_begins(optimizer)
        parameters = parameters_of(optimizer)
        frozen = [p for p in parameters if not p.requires_grad]
        if len(frozen) < len(parameters):  # if all are frozen, the gradients are set by hand, on purpose
            torch = self.probe.torch
            with_grad = [p for p in frozen if p.grad is not None and _is_plain(torch, p)][:MAX_NAMES]
            with torch.no_grad():
                self._before_step = [(p, copy_piece(torch, p)) for p in with_grad]

    def _update_frozen_count(self, optimizer):
        """Count the frozen parameters. If the number changed, the next census is due now."""
        count = sum(not p.requires_grad for p in parameters_of(optimizer))
        if self._frozen_counts.setdefault(id(optimizer), count) != count:
            self._frozen_counts[id(optimizer)] = count
            self._due = min(self._due, max(FIRST_CENSUS, self.probe.step - self.probe.first_step))
            self._interval = FIRST_INTERVAL

    def step_ended(self, optimizer, is_primary):
        census = self._census
        if census is None:
            return
        torch = self.probe.torch
        for parameter, piece in self._before_step:
            with torch.no_grad():
                moved = (piece != copy_piece(torch, parameter)).any()
            census.around_steps.append(((BY_OPTIMIZER, weakref.ref(parameter)), moved))
        self._before_step = ()
        census.steps += is_primary
        if census.steps >= CENSUS_STEPS:
            self._census = None
            self.eager = False
            self._due = self.probe.step - self.probe.first_step + self._interval
            self._interval *= INTERVAL_FACTOR
            began = time.monotonic()
            with self.probe.budget.spending(self.name), torch.no_grad():
                self._finish_census(census)
            # A census is rare, so the inspectors do not pay for it: a large model would disable them for many steps.
            self.probe.budget.credit += time.monotonic() - began

    def step_over(self, optimizer_id):
        self._before_step = ()

    def forked(self):
        kept = (self._pieces, self._before_step, self._census)
        self._pieces, self._before_step, self._census, self.eager = None, (), None, False
        return kept

    def _finish_census(self, census):
        torch = self.probe.torch
        in_optimizer = set(map(id, parameters_of(*self.probe.optimizers)))
        modules = [pair for model in self._names.models() for pair in modules_in(model)]
        parameters, layers = find_frozen(torch, modules, census, in_optimizer)
        before, self._pieces = self._pieces, Pieces(torch, self.probe.step, parameters, layers)
        flags = census.around_steps + (before.moved(self._pieces) if before is not None else [])
        self.probe.see(self.name, "" if parameters or flags else "nothing is frozen")
        by_device = {}
        for key, flag in flags:
            by_device.setdefault(flag.device, []).append((key, flag))
        since = self.probe.step if before is None else before.step
        for pairs in by_device.values():
            stacked = torch.stack([flag for _, flag in pairs]).to(torch.float32)
            keys = [key for key, _ in pairs]
            self.probe.scalars.later(stacked, functools.partial(self._report, keys, since, self._pieces))

    def _report(self, keys, since, pieces, values):
        found = [key for key, value in zip(keys, values) if value]
        moved, statistics_moved, changed_layers, by_optimizer = (
            [name for kind, name in found if kind == which] for which in range(4)
        )
        self.probe.emit(
            "frozen",
            step=pieces.step,
            since=since,
            tensors=len(pieces.parameters),
            statistics=len(pieces.layers),
            moved=moved[:MAX_NAMES],
            moved_by_optimizer=self._names.several({id(p): p for p in live(by_optimizer)}.values(), MAX_NAMES),
            statistics_moved=[name for name in statistics_moved if name not in changed_layers][:MAX_NAMES],
        )


class Census(object):
    """A few steps that show which parameters are trained in the steps of their own optimizer."""

    def __init__(self):
        self.steps = 0
        self.around_steps = []
        self._trained = set()
        self._stepped = set()

    def step_begins(self, optimizer):
        self._trained.update(map(id, trainable_parameters(optimizer)))
        self._stepped.update(map(id, parameters_of(optimizer)))

    def is_frozen(self, parameter, in_optimizer):
        """Return whether a parameter is frozen. If its optimizer did not step during the census, it may be frozen only
        temporarily and does not count.
        """
        if parameter.requires_grad or id(parameter) in self._trained:
            return False
        return not in_optimizer or id(parameter) in self._stepped


def find_frozen(torch, modules, census, in_optimizer):
    """Return frozen parameters by name, and (parameter, statistics) of layers in which all of them are frozen."""
    parameters, layers = {}, {}
    for name, module in modules:
        own = own_parameters(module)
        frozen = [(n, p) for n, p in own if census.is_frozen(p, id(p) in in_optimizer) and _is_plain(torch, p)]
        if len(parameters) < MAX_TENSORS:
            parameters.update((plain(join_names(name, n)), p) for n, p in frozen)
        buffers = module.__dict__.get("_buffers") or {}
        statistics = next((buffers[key] for key in STATISTICS if buffers.get(key) is not None), None)
        if statistics is not None and own and len(frozen) == len(own) and len(layers) < MAX_TENSORS:
            layers[plain(name) or type(module).__name__] = (own[0][1], statistics)
    return parameters, layers


class Pieces(object):
    """Copies of parts of the frozen tensors at a step, on the tensors' own devices."""

    def __init__(self, torch, step, parameters, layers):
        self.step = step
        self.parameters = {name: (weakref.ref(p), copy_piece(torch, p)) for name, p in parameters.items()}
        self.layers = {
            name: (weakref.ref(statistics), copy_piece(torch, statistics), copy_piece(torch, parameter))
            for name, (parameter, statistics) in layers.items()
        }

    def moved(self, now):
        """Return ((kind, name), flag) for everything that is frozen both here and in `now`."""
        flags = []
        for name, (reference, piece) in self.parameters.items():
            later = now.parameters.get(name)
            if later is not None and later[0]() is reference() and later[1].shape == piece.shape:
                flags.append(((MOVED, name), (piece != later[1]).any()))
        for name, (_, statistics, parameter) in self.layers.items():
            later = now.layers.get(name)
            if later is not None and later[1].shape == statistics.shape:
                flags.append(((STATISTICS_MOVED, name), (statistics != later[1]).any()))
                flags.append(((LAYER_PARAMETER_MOVED, name), (parameter != later[2]).any()))
        return flags


def _is_plain(torch, tensor):
    return tensor.layout == torch.strided and bits_type(torch, tensor.dtype) is not None and tensor.numel() > 0


def copy_piece(torch, tensor):
    """Copy the bits of the tensor's first elements. A tensor that changes at all changes there too."""
    tensor = to_local(tensor)
    first = tensor[: PIECE_ROWS if tensor.dim() > 1 else PIECE_ELEMENTS] if tensor.dim() else tensor
    return as_bits(torch, first.reshape(-1)[:PIECE_ELEMENTS].clone())
