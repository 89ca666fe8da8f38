"""Groups of parameters that an optimizer is given while it trains (`add_param_group`), as when layers are unfrozen one after another.

A program that goes on makes its optimizer without them. On its way to the place of a snapshot it may add some of them itself: so only
there those that are still missing are added, by the names that their parameters have in the modules that are kept.
"""

import contextlib

from .restore import own


class GroupsDiffer(ValueError):
    """An optimizer has not the groups that it had, and they cannot be given to it. The snapshot is good all the same."""


def names_in(groups, names):
    """[object, name] of each parameter of each group, by `names` of their ids; None of one that is in no module that is kept."""
    return [[names.get(id(parameter)) for parameter in group["params"]] for group in groups]


def first_ones(optimizer, state, count):
    """A state in which only the first groups are of then, and all else is what the optimizer has now."""
    then, now = state["param_groups"], optimizer.state_dict()
    places = {place for group in then[:count] for place in group["params"]}
    rows = {key: row for key, row in now["state"].items() if key not in places}
    rows.update((key, row) for key, row in state["state"].items() if key in places or not isinstance(key, int))
    return dict(state, state=rows, param_groups=then[:count] + now["param_groups"][count:])


def make_as_then(torch, optimizer, then, added, parameters):
    """Adds the groups that are missing, and sets all in the order of `then`. The last of those were `added`: what `names_in` said of them.
    `parameters` are those of modules by (object, name).
    """
    groups, first = optimizer.param_groups, len(then) - len(added)
    names = {}
    for name, parameter in parameters.items():
        names.setdefault(id(parameter), list(name))
    here = list(zip(names_in(groups[first:], names), groups[first:]))
    found = [_taken(here, wanted) for wanted in added]
    if len(groups) == len(then) and None in found:
        return  # made by another program in another way: `load_state_dict` tells whether they fit
    if len(groups) < first or here:
        raise _as_many(then, groups)
    for n, group in enumerate(found):
        if group is None:
            found[n] = _added(torch, optimizer, first + n, then[first + n], added[n], parameters)
    optimizer.param_groups[first:] = found


@contextlib.contextmanager
def told_of_groups(optimizer, state):
    """What is the matter where an optimizer refuses a state, if it is the number of its groups."""
    try:
        yield
    except ValueError:
        then = state.get("param_groups", ())
        if len(then) != len(optimizer.param_groups):
            raise _as_many(then, optimizer.param_groups) from None
        raise


def _as_many(then, now):
    return GroupsDiffer("it had %d groups of parameters, and has %d now" % (len(then), len(now)))


def _taken(here, wanted):
    for n, (names, group) in enumerate(here):
        if names == wanted:
            del here[n]
            return group
    return None


def _added(torch, optimizer, number, group, names, parameters):
    if not all(name is not None and tuple(name) in parameters for name in names):
        raise GroupsDiffer(
            "its group %d was added while it trained, and has parameters that are in none of the modules given to guard: "
            "it cannot be added again from here" % number
        )
    options = {key: own(torch, value) for key, value in group.items() if key != "params"}
    members = [parameters[tuple(name)] for name in names]
    if "param_names" in options:
        members = list(zip(options.pop("param_names"), members))
    try:
        optimizer.add_param_group(dict(options, params=members))
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise GroupsDiffer(
            "its group %d, which was added while it trained, cannot be added again: %s" % (number, error)
        ) from error
    return optimizer.param_groups[-1]
