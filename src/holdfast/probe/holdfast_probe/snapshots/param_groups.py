"""Parameter groups that an optimizer gets during the training (`add_param_group`), for example when layers are unfrozen gradually.

A resumed program creates its optimizer without them and may add some of them itself before the resume point. So missing groups are added
only there, using the names of their parameters in the saved modules.
"""

import contextlib

from .restore import own


class GroupsDiffer(ValueError):
    """An optimizer does not have the groups it had, and they cannot be added. The snapshot itself is good."""


def names_in(groups, names):
    """Return [object, name] of each parameter of each group. `names` maps ids to them; None for a parameter in no saved module."""
    return [[names.get(id(parameter)) for parameter in group["params"]] for group in groups]


def first_ones(optimizer, state, count):
    """Return a state with the saved first groups, and otherwise what the optimizer has now."""
    then, now = state["param_groups"], optimizer.state_dict()
    places = {place for group in then[:count] for place in group["params"]}
    rows = {key: row for key, row in now["state"].items() if key not in places}
    rows.update((key, row) for key, row in state["state"].items() if key in places or not isinstance(key, int))
    return dict(state, state=rows, param_groups=then[:count] + now["param_groups"][count:])


def make_as_then(torch, optimizer, then, added, parameters):
    """Add the missing groups and put all groups in the order of `then`. The last of these were `added` and are described by `names_in`.
    `parameters` maps (object, name) to the parameters of modules.
    """
    groups, first = optimizer.param_groups, len(then) - len(added)
    names = {}
    for name, parameter in parameters.items():
        names.setdefault(id(parameter), list(name))
    here = list(zip(names_in(groups[first:], names), groups[first:]))
    found = [_taken(here, wanted) for wanted in added]
    if len(groups) == len(then) and None in found:
        return  # created in another way by a changed program: `load_state_dict` reports whether they fit
    if len(groups) < first or here:
        raise _as_many(then, groups)
    for n, group in enumerate(found):
        if group is None:
            found[n] = _added(torch, optimizer, first + n, then[first + n], added[n], parameters)
    optimizer.param_groups[first:] = found


@contextlib.contextmanager
def told_of_groups(optimizer, state):
    """If an optimizer rejects a state, report a different number of groups as the reason if it is."""
    try:
        yield
    except ValueError:
        then = state.get("param_groups", ())
        if len(then) != len(optimizer.param_groups):
            raise _as_many(then, optimizer.param_groups) from None
        raise


def _as_many(then, now):
    return GroupsDiffer("the snapshot has %d parameter groups, but the optimizer has %d now" % (len(then), len(now)))


def _taken(here, wanted):
    for n, (names, group) in enumerate(here):
        if names == wanted:
            del here[n]
            return group
    return None


def _added(torch, optimizer, number, group, names, parameters):
    if not all(name is not None and tuple(name) in parameters for name in names):
        raise GroupsDiffer(
            "its group %d was added during the training and has parameters that are in none of the modules given to guard, so "
            "it cannot be added again" % number
        )
    options = {key: own(torch, value) for key, value in group.items() if key != "params"}
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
