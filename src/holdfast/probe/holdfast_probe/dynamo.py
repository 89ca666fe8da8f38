"""How the probe stays out of torch.compile.

`torch.compiler.disable` would import dynamo, which takes a second and may never be needed. So nothing happens until the
training itself imports dynamo. Then dynamo is configured not to compile the probe's files, and not to compile the
patched functions outside a graph. Inside a graph, dynamo traces into a patched function, evaluates its check whether a
compiler is tracing, and continues with the original. Before torch 2.3, the first torch.compile drops optimizer hooks.
"""

import os

HERE = os.path.dirname(os.path.abspath(__file__))
PATCHES = "torch_patches.py"


def find_is_compiling(torch):
    """Return torch's function that reports whether a compiler is tracing. It must be one that the compiler itself
    understands. It is called several times per step, so the first choice is the one that calls no other function.
    """
    compiler = getattr(torch, "compiler", None)
    return getattr(compiler, "is_dynamo_compiling", None) or getattr(compiler, "is_compiling", None) or bool


def exclude_probe(dynamo, codes):
    """Configure dynamo to skip the probe's files, and these code objects outside a graph."""
    rules = getattr(dynamo, "trace_rules", None) or getattr(dynamo, "skipfiles", None)
    for entry in sorted(os.listdir(HERE)):
        path = os.path.join(HERE, entry)
        if entry != PATCHES and (entry.endswith(".py") or os.path.isdir(path)):
            rules.SKIP_DIRS.append(path)
    rules._recompile_re()
    for code in codes:
        dynamo.eval_frame.skip_code(code)


def hooked_classes(optimizer_class):
    """Return the optimizer classes that have had an instance: torch marks their `step`."""
    found, kinds = [], [optimizer_class]
    while kinds:
        kind = kinds.pop()
        kinds.extend(kind.__subclasses__())
        if getattr(kind.__dict__.get("step"), "hooked", False):
            found.append(kind)
    return found


def calls_hooks(optimizer_class, kind):
    """Return True if `step` still goes through torch's wrapper that calls the hooks, or if this is unknown."""
    wrap = getattr(optimizer_class, "profile_hook_step", None)
    wrapper_codes = getattr(getattr(wrap, "__code__", None), "co_consts", None)
    if wrapper_codes is None:
        return True
    step = kind.__dict__.get("step")
    while step is not None:
        if getattr(step, "__code__", None) in wrapper_codes:
            return True
        step = getattr(step, "__wrapped__", None)
    return False
