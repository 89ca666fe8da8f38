"""How the probe stays out of torch.compile.

`torch.compiler.disable` would import dynamo, which takes a second and may never be needed. So nothing happens until the
training itself imports dynamo. Then dynamo is configured not to compile the probe's files, and not to compile the
patched functions outside a graph. Inside a graph, dynamo traces into a patched function, evaluates its check whether a
compiler is tracing, and continues with the original.
"""

import os

HERE = os.path.dirname(os.path.abspath(__file__))
PATCHES = "torch_patches.py"


def find_is_compiling(torch):
    """Return torch's function that reports whether a compiler is tracing.

    It must be one that the compiler itself understands. It is called several times per step, so the first choice is the
    one that calls no other function.
    """
    compiler = getattr(torch, "compiler", None)
    return getattr(compiler, "is_dynamo_compiling", None) or getattr(compiler, "is_compiling", None) or _never


def _never():
    return False


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
