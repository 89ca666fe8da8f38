"""The models that optimizers train, and the names of their parameters, searched for only when they are needed.

Finding them means walking every object that Python tracks, which takes a tenth of a second. So it is done once, and
again only if an optimizer has an unknown parameter, and not at all if a framework has registered everything that is
trained. No user code is called: a module's children and parameters are read from its `__dict__`.
"""

import gc
import time
import weakref

WRAPPERS = frozenset(("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"))
"""Name components that a wrapper (DDP, compile, FSDP) adds and that are not part of the model."""
MAX_WALKS = 5
SECONDS_BETWEEN_WALKS = 60.0
MAX_MODULES = 100000


def plain(name):
    """Return a name without the components that wrappers add."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def join_names(name, key):
    return "%s.%s" % (name, key) if name else str(key)


def live(references):
    """Return the objects of these weak references that still exist."""
    return [item for item in (reference() for reference in references) if item is not None]


def parameters_of(*optimizers):
    return [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]


class ParamNames(object):
    def __init__(self, probe):
        self._probe = probe
        self._known = {}  # id of a parameter -> (weak reference to it, its name)
        self._trained = []  # for each model that optimizers train: name -> weak reference to the parameter
        self._roots = []  # weak references to these models
        self._walks = 0
        self._walked_at = 0.0

    def of(self, tensor):
        """Return the tensor's name in its model, or else its position in an optimizer."""
        name = self._lookup(tensor)
        if name is None and self._may_walk():
            self.learn(prefer_registered=not self._known)
            name = self._lookup(tensor)
        return name if name is not None else describe_position(tensor, self._probe.optimizers)

    def several(self, tensors, most=8):
        return [self.of(tensor) for tensor in list(tensors)[:most]]

    def live(self):
        """Return name -> parameter for each model that optimizers train."""
        if not self._trained and self._may_walk():
            self.learn()
        models = [{name: reference() for name, reference in model.items()} for model in self._trained]
        return [model for model in models if all(parameter is not None for parameter in model.values())]

    def models(self):
        """Return the outermost module of each model that optimizers train."""
        optimized = parameters_of(*self._probe.optimizers)
        if any(self._lookup(parameter) is None for parameter in optimized) and self._may_walk():
            self.learn()
        return live(self._roots)

    def learn(self, prefer_registered=True):
        """Name the parameters of the models that optimizers train, then those of other models. This walks all objects
        once. With `prefer_registered`, it does not walk if the registered models contain every trained parameter.
        """
        began = time.monotonic()
        self._walks += 1
        self._learn(prefer_registered)
        self._walked_at = time.monotonic()
        # A walk is rare and is not charged to the inspectors: it would disable them for hundreds of steps.
        self._probe.budget.credit += self._walked_at - began

    def _learn(self, prefer_registered):
        optimized = set(map(id, parameters_of(*self._probe.optimizers)))
        listed = self._list_registered(optimized) if prefer_registered else []
        if not listed:
            listed = [(root, list(parameters(root))) for root in outermost(all_of_type(self._probe.torch.nn.Module))]
        listed.sort(key=lambda pair: -sum(id(parameter) in optimized for _, parameter in pair[1]))
        trained, others, covered = [], [], set()
        for root, pairs in listed:
            new = {id(parameter) for _, parameter in pairs} - covered
            (trained if new & optimized else others).append((root, pairs))
            covered |= new
        self._known = {}
        self._trained = [{name: weakref.ref(parameter) for name, parameter in pairs} for _, pairs in trained]
        self._roots = [weakref.ref(root) for root, _ in trained]
        for root, pairs in trained + others:
            prefix = "" if len(trained) == 1 and root is trained[0][0] else type(root).__name__
            for name, parameter in pairs:
                self._known.setdefault(id(parameter), (weakref.ref(parameter), join_names(prefix, name)))

    def _list_registered(self, optimized):
        """Return (model, its parameters) of the registered models, if they contain every trained parameter."""
        listed = [(model, list(parameters(model))) for model in live(self._probe.registered_models)]
        known = {id(parameter) for _, pairs in listed for _, parameter in pairs}
        return listed if optimized and optimized <= known else []

    def _lookup(self, tensor):
        known = self._known.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None

    def _may_walk(self):
        is_due = time.monotonic() - self._walked_at > SECONDS_BETWEEN_WALKS
        return self._walks < MAX_WALKS and (self._walks == 0 or is_due)


def describe_position(tensor, optimizers):
    """Describe the tensor's position in an optimizer, for a tensor that is not in any module."""
    for number, optimizer in enumerate(optimizers):
        for group_number, group in enumerate(optimizer.param_groups):
            for position, parameter in enumerate(group["params"]):
                if parameter is tensor:
                    text = "group %d, tensor %d %s" % (group_number, position, list(tensor.shape))
                    return text if number == 0 else "optimizer %d, %s" % (number, text)
    return "a tensor %s" % (list(tensor.shape),)


def all_of_type(wanted):
    """Return every object of a type that Python tracks. Only the type of each object is read."""
    objects = gc.get_objects()
    kinds = {kind for kind in set(map(type, objects)) if issubclass(kind, wanted)}
    return [item for item in objects if type(item) in kinds]


def outermost(modules):
    """Return the modules that are not inside another one."""
    inner = {id(child) for module in modules for child in (module.__dict__.get("_modules") or {}).values()}
    return [module for module in modules if id(module) not in inner]


def parameters(root):
    """Yield (plain name, parameter) of a module and all its submodules, each parameter once."""
    seen = set()
    for prefix, module in modules_in(root):
        for name, parameter in own_parameters(module):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield plain(join_names(prefix, name)), parameter


def own_parameters(module):
    return [(name, p) for name, p in (module.__dict__.get("_parameters") or {}).items() if p is not None]


def modules_in(root):
    """Yield (name, module) for a module and all its submodules, each once."""
    seen = set()
    pending = [("", root)]
    while pending and len(seen) < MAX_MODULES:
        name, module = pending.pop()
        if module is None or id(module) in seen:
            continue
        seen.add(id(module))
        yield name, module
        children = module.__dict__.get("_modules") or {}
        pending.extend((join_names(name, key), child) for key, child in reversed(list(children.items())))
