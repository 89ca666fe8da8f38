"""Whether what is frozen stays as it was.

A parameter that asks for no gradient is frozen, in a model that an optimizer trains. Trainings of several models freeze
each other's parameters for a while and on purpose, so a parameter that an optimizer holds counts as frozen only where it
is so in that optimizer's own steps. That takes a few steps to find out: a census. Pieces of what is frozen are kept, and
compared after the next census, each one eight times later than the one before; sooner where something was frozen anew.

The running statistics of a normalisation layer follow the data in training mode even where all its parameters are frozen.
"""

import functools
import time
import weakref

from ..param_names import MAX_MODULES, plain
from . import Inspector
from .tensors import bits_type, local, trainable

CENSUS_STEPS = 4
FIRST_CENSUS = 2
"""So many steps after the first the first census begins: by then the model is what it will be."""
PATIENCE = 32
"""A census is postponed by so many steps where it cannot be paid for, and not more: there are few of them."""
AGAIN_AFTER = 8
TIMES_LATER = 8
MAX_TENSORS = 48
MAX_NAMES = 8
LOOK_AGAIN_MASK = 15
"""Once in so many steps, and one more, it is counted what is frozen."""
PIECE_ROWS = 2
PIECE_ELEMENTS = 256
STATISTICS = ("running_mean", "running_var")
MOVED, STATISTICS_MOVED, THEIR_PARAMETER, BY_OPTIMIZER = range(4)


class FrozenInspector(Inspector):
    name = "frozen weights"

    def __init__(self, probe, names):
        super().__init__(probe)
        self._names = names
        self._due = FIRST_CENSUS
        self._interval = AGAIN_AFTER
        self._census = None
        self.eager = False
        self._pieces = None  # as the census before found them
        self._before_step = ()
        self._counts = {}  # id of an optimizer -> how many of its parameters were frozen

    def step_begins(self, optimizer, clock):
        self._before_step = ()
        if not self.probe.step & LOOK_AGAIN_MASK:
            self._count(optimizer)
        if self._census is None:
            if not clock or self.probe.step - self.probe.first_step < self._due:
                return
            budget = self.probe.budget
            postponed = self.probe.step - self.probe.first_step - self._due
            if postponed < PATIENCE and not budget.allows(budget.expected(self.name)):
                return
            self._census = Census()
            self.eager = True
        self._census.step_begins(optimizer)
        everything = [p for group in optimizer.param_groups for p in group["params"]]
        frozen = [p for p in everything if not p.requires_grad]
        if len(frozen) < len(everything):  # where all are, gradients are made by hand, and so it is meant
            torch = self.probe.torch
            held = [p for p in frozen if p.grad is not None and _is_plain(torch, p)][:MAX_NAMES]
            with torch.no_grad():
                self._before_step = [(p, piece_of(torch, p)) for p in held]

    def _count(self, optimizer):
        """Where something was frozen or thawed since, the next census is due now."""
        count = sum(not p.requires_grad for group in optimizer.param_groups for p in group["params"])
        if self._counts.setdefault(id(optimizer), count) != count:
            self._counts[id(optimizer)] = count
            self._due = min(self._due, max(FIRST_CENSUS, self.probe.step - self.probe.first_step))
            self._interval = AGAIN_AFTER

    def step_ended(self, optimizer, clock):
        census = self._census
        if census is None:
            return
        torch = self.probe.torch
        for parameter, piece in self._before_step:
            with torch.no_grad():
                moved = (piece != piece_of(torch, parameter)).any()
            census.around_steps.append(((BY_OPTIMIZER, weakref.ref(parameter)), moved))
        self._before_step = ()
        census.steps += clock
        if census.steps >= CENSUS_STEPS:
            self._census = None
            self.eager = False
            self._due = self.probe.step - self.probe.first_step + self._interval
            self._interval *= TIMES_LATER
            began = time.monotonic()
            with self.probe.budget.spending(self.name), torch.no_grad():
                self._conclude(census)
            # Few and far between, it is not paid for by the looks: a large model would blind them for many steps.
            self.probe.budget.credit += time.monotonic() - began

    def step_over(self, optimizer_id):
        self._before_step = ()

    def forked(self):
        kept = (self._pieces, self._before_step, self._census)
        self._pieces, self._before_step, self._census, self.eager = None, (), None, False
        return kept

    def _conclude(self, census):
        torch = self.probe.torch
        parameters, layers = Models(self.probe, self._names.models()).frozen(torch, census)
        before, self._pieces = self._pieces, Pieces(torch, self.probe.step, parameters, layers)
        flags = census.around_steps + (before.moved(self._pieces) if before is not None else [])
        self.probe.see(self.name, "seen" if parameters or flags else "seen: nothing is frozen")
        by_device = {}
        for key, flag in flags:
            by_device.setdefault(flag.device, []).append((key, flag))
        for pairs in by_device.values():
            stacked = torch.stack([flag for _, flag in pairs]).to(torch.float32)
            keys = [key for key, _ in pairs]
            step = self.probe.step if before is None else before.step
            self.probe.scalars.later(
                stacked, functools.partial(self._tell, keys, (self.probe.step, step, self._pieces))
            )

    def _tell(self, keys, when, values):
        found = [key for key, value in zip(keys, values) if value]
        names = [[name for kind, name in found if kind == which] for which in (MOVED, STATISTICS_MOVED)]
        their = {name for kind, name in found if kind == THEIR_PARAMETER}
        tensors = {id(p): p for p in (reference() for kind, reference in found if kind == BY_OPTIMIZER)}
        step, since, pieces = when
        self.probe.emit(
            "frozen",
            step=step,
            since=since,
            tensors=len(pieces.parameters),
            statistics=len(pieces.layers),
            moved=names[0][:MAX_NAMES],
            moved_by_optimizer=self._names.several((p for p in tensors.values() if p is not None), MAX_NAMES),
            statistics_moved=[name for name in names[1] if name not in their][:MAX_NAMES],
        )


class Census(object):
    """A few steps in which it is found out what is trained in its own optimizer's steps."""

    def __init__(self):
        self.steps = 0
        self.around_steps = []
        self._trained = set()
        self._stepped = set()

    def step_begins(self, optimizer):
        self._trained.update(map(id, trainable(optimizer)))
        self._stepped.update(id(p) for group in optimizer.param_groups for p in group["params"])

    def finds_frozen(self, parameter, held):
        """What an optimizer holds that did not step meanwhile may be frozen for the time being only."""
        if parameter.requires_grad or id(parameter) in self._trained:
            return False
        return not held or id(parameter) in self._stepped


class Models(object):
    """Every module of the models that hold a parameter which some optimizer trains, and what optimizers hold."""

    def __init__(self, probe, roots):
        optimizers = probe.optimizers
        self._held = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
        self._modules = [inside for root in roots for inside in modules_in(root)]

    def frozen(self, torch, census):
        """Name -> parameter for what is frozen, and name -> (parameter, statistics) for layers with nothing else."""
        parameters, layers = {}, {}
        for name, module in self._modules:
            own = own_parameters(module)
            frozen = [(n, p) for n, p in own if census.finds_frozen(p, id(p) in self._held) and _is_plain(torch, p)]
            if len(parameters) < MAX_TENSORS:
                parameters.update((plain(_joined(name, n)), p) for n, p in frozen)
            buffers = module.__dict__.get("_buffers") or {}
            statistics = next((buffers[key] for key in STATISTICS if buffers.get(key) is not None), None)
            if statistics is not None and own and len(frozen) == len(own) and len(layers) < MAX_TENSORS:
                layers[plain(name) or type(module).__name__] = (own[0][1], statistics)
        return parameters, layers


class Pieces(object):
    """Parts of what is frozen at a step, copied where they lie."""

    def __init__(self, torch, step, parameters, layers):
        self.step = step
        self.parameters = {name: (weakref.ref(p), piece_of(torch, p)) for name, p in parameters.items()}
        self.layers = {
            name: (weakref.ref(statistics), piece_of(torch, statistics), piece_of(torch, parameter))
            for name, (parameter, statistics) in layers.items()
        }

    def moved(self, now):
        """((kind, name), flag) for all that is frozen here and in `now`."""
        flags = []
        for name, (reference, piece) in self.parameters.items():
            later = now.parameters.get(name)
            if later is not None and later[0]() is reference() and later[1].shape == piece.shape:
                flags.append(((MOVED, name), (piece != later[1]).any()))
        for name, (_, statistics, parameter) in self.layers.items():
            later = now.layers.get(name)
            if later is not None and later[1].shape == statistics.shape:
                flags.append(((STATISTICS_MOVED, name), (statistics != later[1]).any()))
                flags.append(((THEIR_PARAMETER, name), (parameter != later[2]).any()))
        return flags


def modules_in(root):
    """(name, module) of a module and all below it, each once."""
    seen = set()
    waiting = [("", root)]
    while waiting and len(seen) < MAX_MODULES:
        name, module = waiting.pop()
        if module is None or id(module) in seen:
            continue
        seen.add(id(module))
        yield name, module
        children = module.__dict__.get("_modules") or {}
        waiting.extend((_joined(name, key), child) for key, child in reversed(list(children.items())))


def own_parameters(module):
    return [(name, p) for name, p in (module.__dict__.get("_parameters") or {}).items() if p is not None]


def _joined(name, key):
    return "%s.%s" % (name, key) if name else key


def _is_plain(torch, tensor):
    return tensor.layout == torch.strided and bits_type(torch, tensor.dtype) is not None and tensor.numel() > 0


def piece_of(torch, tensor):
    """A copy of the bits of its first elements: what moves at all moves there too."""
    tensor = local(tensor)
    first = tensor[: PIECE_ROWS if tensor.dim() > 1 else PIECE_ELEMENTS] if tensor.dim() else tensor
    piece = first.reshape(-1)[:PIECE_ELEMENTS].clone()
    bits = bits_type(torch, piece.dtype)
    return piece if bits is None else piece.view(bits)
