"""How the probe stays out of torch.compile.

`torch.compiler.disable` would import dynamo, a second of work that a training may never need. So nothing happens until
the training itself imports it; then dynamo is told not to compile our files, and not to compile the doors when it meets
them outside a graph. Inside a graph it looks into the doors, finds the question whether it is tracing, and goes on with
the original.
"""

import os

HERE = os.path.dirname(os.path.abspath(__file__))
PATCHES = "torch_patches.py"


def tracing_test(torch):
    """The function of this torch that says whether a compiler is tracing: one that the compiler itself understands. It is asked
    several times in a step: the first of these calls nothing itself.
    """
    compiler = getattr(torch, "compiler", None)
    return getattr(compiler, "is_dynamo_compiling", None) or getattr(compiler, "is_compiling", None) or _never


def _never():
    return False


def keep_out(dynamo, codes):
    rules = getattr(dynamo, "trace_rules", None) or getattr(dynamo, "skipfiles", None)
    for entry in sorted(os.listdir(HERE)):
        path = os.path.join(HERE, entry)
        if entry != PATCHES and (entry.endswith(".py") or os.path.isdir(path)):
            rules.SKIP_DIRS.append(path)
    rules._recompile_re()
    for code in codes:
        dynamo.eval_frame.skip_code(code)
