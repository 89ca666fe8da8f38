"""The models that optimizers train, and the names of parameters, found only when they are wanted.

Finding them means walking every object that Python tracks, a tenth of a second: so it is done once, and again only where
an optimizer holds something unknown; and not at all where an adapter has told all that is trained. Nobody's code is called on
the way: a module's children and parameters are read from its own dictionary.
"""

import gc
import time
import weakref

WRAPPERS = frozenset(("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"))
"""Components that a wrapper (DDP, compile, FSDP) adds and that say nothing about the model."""
MAX_WALKS = 5
SECONDS_BETWEEN_WALKS = 60.0
MAX_MODULES = 100000


def plain(name):
    """A name without the components that wrappers add."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


class ParamNames(object):
    def __init__(self, probe):
        self._probe = probe
        self._known = {}  # id of a parameter -> (weak reference to it, its name)
        self._trained = []  # name -> weak reference, for each model that optimizers train
        self._roots = []  # weak references to these models
        self._walks = 0
        self._walked_at = 0.0

    def of(self, tensor):
        """The tensor's name in its model, else its place in an optimizer."""
        name = self._lookup(tensor)
        if name is None and self._may_walk():
            self.learn(told_are_enough=not self._known)
            name = self._lookup(tensor)
        return name if name is not None else place(tensor, self._probe.optimizers)

    def several(self, tensors, most=8):
        return [self.of(tensor) for tensor in list(tensors)[:most]]

    def live(self):
        """Name -> parameter, of each model that optimizers train."""
        if not self._trained and self._may_walk():
            self.learn()
        models = [{name: reference() for name, reference in model.items()} for model in self._trained]
        return [model for model in models if all(parameter is not None for parameter in model.values())]

    def models(self):
        """The outermost module of each model that optimizers train."""
        held = (p for optimizer in self._probe.optimizers for group in optimizer.param_groups for p in group["params"])
        if any(self._lookup(parameter) is None for parameter in held) and self._may_walk():
            self.learn()
        return [root for root in (reference() for reference in self._roots) if root is not None]

    def learn(self, told_are_enough=True):
        """Walk once: name all parameters of the models that optimizers train, then those of models beside them."""
        began = time.monotonic()
        self._walks += 1
        self._learn(told_are_enough)
        self._walked_at = time.monotonic()
        # Few and far between, a walk is not paid for by the looks: it would blind them for hundreds of steps.
        self._probe.budget.credit += self._walked_at - began

    def _learn(self, told_are_enough):
        held = {id(p) for optimizer in self._probe.optimizers for g in optimizer.param_groups for p in g["params"]}
        listed = self._told(held) if told_are_enough else []
        if not listed:
            listed = [(root, list(parameters(root))) for root in outermost(all_of_type(self._probe.torch.nn.Module))]
        listed.sort(key=lambda pair: -sum(id(parameter) in held for _, parameter in pair[1]))
        trained, beside, covered = [], [], set()
        for root, pairs in listed:
            new = {id(parameter) for _, parameter in pairs} - covered
            (trained if new & held else beside).append((root, pairs))
            covered |= new
        self._known, self._trained = {}, []
        self._roots = [weakref.ref(root) for root, _ in trained]
        for root, pairs in trained:
            self._trained.append({name: weakref.ref(parameter) for name, parameter in pairs})
            prefix = type(root).__name__ + "." if len(trained) > 1 else ""
            for name, parameter in pairs:
                self._known.setdefault(id(parameter), (weakref.ref(parameter), prefix + name))
        for root, pairs in beside:
            for name, parameter in pairs:
                told = "%s.%s" % (type(root).__name__, name)
                self._known.setdefault(id(parameter), (weakref.ref(parameter), told))

    def _told(self, held):
        """(model, its parameters) of those that were told, where nothing else is trained."""
        models = [model for model in (reference() for reference in self._probe.told_models) if model is not None]
        listed = [(model, list(parameters(model))) for model in models]
        known = {id(parameter) for _, pairs in listed for _, parameter in pairs}
        return listed if held and held <= known else []

    def _lookup(self, tensor):
        known = self._known.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None

    def _may_walk(self):
        rested = time.monotonic() - self._walked_at > SECONDS_BETWEEN_WALKS
        return self._walks < MAX_WALKS and (self._walks == 0 or rested)


def place(tensor, optimizers):
    """Where an optimizer holds the tensor, for a tensor that no module names."""
    for number, optimizer in enumerate(optimizers):
        for group_number, group in enumerate(optimizer.param_groups):
            for position, parameter in enumerate(group["params"]):
                if parameter is tensor:
                    told = "group %d, tensor %d %s" % (group_number, position, list(tensor.shape))
                    return told if number == 0 else "optimizer %d, %s" % (number, told)
    return "a tensor %s" % (list(tensor.shape),)


def all_of_type(wanted):
    """Every object of a type that Python tracks, by the type of each object alone."""
    things = gc.get_objects()
    kinds = {kind for kind in set(map(type, things)) if issubclass(kind, wanted)}
    return [thing for thing in things if type(thing) in kinds]


def outermost(modules):
    """Modules that no other one holds."""
    inner = {id(child) for module in modules for child in _children(module).values()}
    return [module for module in modules if id(module) not in inner]


def parameters(root):
    """(plain name, parameter) of a module and all below it, each parameter once."""
    seen_modules = set()
    seen = set()
    waiting = [("", root)]
    while waiting and len(seen_modules) < MAX_MODULES:
        prefix, module = waiting.pop()
        if module is None or id(module) in seen_modules:
            continue
        seen_modules.add(id(module))
        for name, parameter in (module.__dict__.get("_parameters") or {}).items():
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                yield plain(prefix + name), parameter
        for name, child in reversed(list(_children(module).items())):
            waiting.append((prefix + name + ".", child))


def _children(module):
    return module.__dict__.get("_modules") or {}
