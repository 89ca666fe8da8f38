"""Parameter groups that an optimizer gets during the training (`add_param_group`), for example when layers are unfrozen
gradually.

A resumed program creates its optimizer without them and may add some of them itself before the resume point. So missing
groups are added only there, using the names of their parameters in the saved modules.
"""

import contextlib

from .restore import clone_tensors


class GroupsDiffer(ValueError):
    """An optimizer does not have the groups it had, and they cannot be added. The snapshot itself is good."""


def name_parameters(groups, names):
    """Return [object, name] of each parameter of each group. `names` maps ids to them; None for a parameter in no saved
    module.
    """
    return [[names.get(id(parameter)) for parameter in group["params"]] for group in groups]


def merge_first_groups(optimizer, state, count):
    """Return a state with the saved first groups, and otherwise what the optimizer has now."""
    saved, now = state["param_groups"], optimizer.state_dict()
    places = {place for group in saved[:count] for place in group["params"]}
    rows = {key: row for key, row in now["state"].items() if key not in places}
    rows.update((key, row) for key, row in state["state"].items() if key in places or not isinstance(key, int))
    return dict(state, state=rows, param_groups=saved[:count] + now["param_groups"][count:])


def add_missing_groups(torch, optimizer, saved, added, parameters):
    """Add the missing groups and put all groups in the order of `saved`. The last of these were `added` and are
    described by `name_parameters`. `parameters` maps (object, name) to the parameters of modules.
    """
    groups, first = optimizer.param_groups, len(saved) - len(added)
    names = {}
    for name, parameter in parameters.items():
        names.setdefault(id(parameter), list(name))
    current = list(zip(name_parameters(groups[first:], names), groups[first:]))
    found = [_pop_group(current, wanted) for wanted in added]
    if len(groups) == len(saved) and None in found:
        return  # created in another way by a changed program: `load_state_dict` reports whether they fit
    if len(groups) < first or current:
        raise _make_count_error(saved, groups)
    for n, group in enumerate(found):
        if group is None:
            found[n] = _add_group(torch, optimizer, first + n, saved[first + n], added[n], parameters)
    optimizer.param_groups[first:] = found


@contextlib.contextmanager
def report_group_count(optimizer, state):
    """If an optimizer rejects a state because it has another number of groups, raise GroupsDiffer."""
    try:
        yield
    except ValueError:
        saved = state.get("param_groups", ())
        if len(saved) != len(optimizer.param_groups):
            raise _make_count_error(saved, optimizer.param_groups) from None
        raise


def _make_count_error(saved, now):
    return GroupsDiffer("the snapshot has %d parameter groups, but the optimizer has %d now" % (len(saved), len(now)))


def _pop_group(current, wanted):
    for n, (names, group) in enumerate(current):
        if names == wanted:
            del current[n]
            return group
    return None


def _add_group(torch, optimizer, number, group, names, parameters):
    if not all(name is not None and tuple(name) in parameters for name in names):
        raise GroupsDiffer(
            "its group %d was added during the training and has parameters that are in none of the modules given "
            "to guard, so it cannot be added again" % number
        )
    options = {key: clone_tensors(torch, value) for key, value in group.items() if key != "params"}
    members = [parameters[tuple(name)] for name in names]
    if "param_names" in options:
        members = list(zip(options.pop("param_names"), members))
    try:
        optimizer.add_param_group(dict(options, params=members))
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise GroupsDiffer(
            "its group %d, which was added during the training, cannot be added again: %s" % (number, error)
        ) from error
    return optimizer.param_groups[-1]
