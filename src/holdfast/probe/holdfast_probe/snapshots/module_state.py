"""The tensors of a module by name, as `state_dict` returns them, in a third of the time.

`state_dict` makes several calls for each of hundreds of modules. Which modules own tensors, and under which names,
hardly ever changes: this is determined once and then only verified. (Hooks and custom methods are searched for once.)
"""

STATE_METHODS = ("state_dict", "_save_to_state_dict", "get_extra_state")
STATE_HOOKS = ("_state_dict_hooks", "_state_dict_pre_hooks")


class ModuleTensors(object):
    def __init__(self, torch, module):
        self._torch = torch
        self._module = module
        self._submodules = None
        """All submodules and their names at the time the tensors were found."""
        self._holders = []
        """Modules that own tensors."""
        self._empty = []
        """Modules that do not."""
        self._names = []
        """The names of parameters and buffers in each holder, concatenated."""
        self._parameters = []
        """(index among all tensors, name) of each parameter."""
        self._buffers = []
        self._module_list = []
        """(name, module) of each; a shared module appears once per name."""
        self._non_persistent = []
        """The same for non-persistent buffers, which `state_dict` omits on purpose: they may still change during the
        training.
        """

    def get_tensors(self):
        """Return ({name: parameter}, {name: buffer}, {name: non-persistent buffer}), or None if the module needs its
        own `state_dict`.
        """
        submodules = _list_submodules(self._module)
        tensors, names = _list_tensors(self._holders)
        if (
            submodules != self._submodules
            or names != self._names
            or any(m._parameters or m._buffers for m in self._empty)
        ):
            self._build_index(submodules)
            tensors, _ = _list_tensors(self._holders)
        if self._submodules is None:
            return None
        found = (
            {name: tensors[n] for n, name in index} for index in (self._parameters, self._buffers, self._non_persistent)
        )
        parameters, buffers, non_persistent = ({k: v for k, v in group.items() if v is not None} for group in found)
        return parameters, buffers, non_persistent

    def modes(self):
        """Return whether the module is in training mode, and the names of submodules in the other mode. Call right
        after `get_tensors()`.
        """
        modules = self._list_modules() if self._submodules is None else self._module_list
        training = self._module.training
        return training, [name for name, module in modules if module.training is not training]

    def set_modes(self, training, others):
        # Not with `train()`: an override of it ran before the snapshot, and its effect is in the state.
        for name, module in self._list_modules():
            mode = training is not (name in others)
            if module.training is not mode:
                module.training = mode

    def _list_modules(self):
        return list(self._module.named_modules(remove_duplicate=False))

    def _build_index(self, submodules):
        self._holders, self._empty, self._parameters, self._buffers, self._non_persistent, count = [], [], [], [], [], 0
        self._submodules, self._module_list = None, []
        # A module with two names has its tensors under both.
        for prefix, module in self._module.named_modules(remove_duplicate=False):
            if self._has_custom_state(module):
                return
            self._module_list.append((prefix, module))
            dotted_prefix = prefix + "." if prefix else ""
            (self._holders if module._parameters or module._buffers else self._empty).append(module)
            for name in module._parameters:
                self._parameters.append((count, dotted_prefix + name))
                count += 1
            for name in module._buffers:
                non_persistent = name in module._non_persistent_buffers_set
                (self._non_persistent if non_persistent else self._buffers).append((count, dotted_prefix + name))
                count += 1
        self._submodules = submodules
        _, self._names = _list_tensors(self._holders)

    def _has_custom_state(self, module):
        usual, kind = self._torch.nn.Module, type(module)
        return (
            any(getattr(kind, name) is not getattr(usual, name) for name in STATE_METHODS)
            or any(name in vars(module) for name in STATE_METHODS)
            or any(getattr(module, name, None) for name in STATE_HOOKS)
            or not all(isinstance(vars(module).get(name), dict) for name in ("_parameters", "_buffers", "_modules"))
        )


def _list_submodules(module):
    found, names = [module], []
    for submodule in found:  # the list grows during the loop
        children = submodule._modules
        names.extend(children.keys())
        found.extend([child for child in children.values() if child is not None])
    return found, names


def _list_tensors(holders):
    tensors, names = [], []
    for module in holders:
        parameters, buffers = module._parameters, module._buffers
        tensors.extend(parameters.values())
        names.extend(parameters)
        names.append(None)  # a buffer may become a parameter of the same name
        tensors.extend(buffers.values())
        names.extend(buffers)
    return tensors, names
