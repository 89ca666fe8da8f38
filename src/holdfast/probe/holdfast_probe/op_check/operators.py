"""Properties of an operator from its schema: whether it can be compared, what it writes, and what it returns."""

SKIPPED_NAMESPACES = frozenset(
    ["c10d", "_c10d_functional", "c10d_functional", "prim", "profiler", "debugprims", "inductor"]
)
WITHOUT_VALUES = ("empty", "new_empty", "_empty", "_efficientzerotensor")
"""Their results are uninitialized."""
ONLY_MEMORY = frozenset([
    "resize_", "resize_as_", "set_", "record_stream", "lift_fresh", "lift", "is_pinned", "_pin_memory", "pin_memory",
    "is_same_size", "_has_compatible_shallow_copy_type", "sym_size", "sym_numel", "sym_stride", "sym_storage_offset",
])  # fmt: skip
SELECTS = frozenset([
    "argmax", "argmin", "max", "min", "median", "nanmedian", "kthvalue", "mode", "cummax", "cummin", "sort", "argsort", "topk",
    "max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d", "adaptive_max_pool3d",
])  # fmt: skip
"""They return which element they selected. Among equal elements, any is right."""
COUNTS = frozenset([
    "nonzero", "masked_select", "index", "unique_dim", "_unique2", "unique_consecutive", "unique_dim_consecutive", "_unique",
])  # fmt: skip
"""The number of elements they return depends on values."""

UNDECLARED_WRITES = {
    "native_batch_norm": ("running_mean", "running_var"),
    "cudnn_batch_norm": ("running_mean", "running_var"),
    "miopen_batch_norm": ("running_mean", "running_var"),
}
"""Arguments that an operator writes to although its schema does not declare it."""


class Operator(object):
    """One overload of an operator."""

    def __init__(self, torch, function):
        schema = function._schema
        self.full_name = str(function)
        namespace, _, self.name = schema.name.partition("::")
        self._arguments = schema.arguments
        self.writes = [
            (index, argument.name)
            for index, argument in enumerate(schema.arguments)
            if (argument.alias_info is not None and argument.alias_info.is_write)
            or argument.name in UNDECLARED_WRITES.get(self.name, ())
        ]
        self.skip_reason = self._find_skip_reason(torch, function, namespace, schema)

    def _find_skip_reason(self, torch, function, namespace, schema):
        if namespace in SKIPPED_NAMESPACES:
            return "communication or internal"
        if torch.Tag.nondeterministic_seeded in getattr(function, "tags", ()):
            return "random"
        if self.name.startswith(WITHOUT_VALUES) or self.name in ONLY_MEMORY:
            return "no values"
        aliased = [result.alias_info for result in schema.returns if result.alias_info is not None]
        if not self.writes and aliased:
            return "a view"
        return None

    def bind_arguments(self, args, kwargs):
        """Return the arguments by name, with the schema's defaults."""
        values = {}
        for index, argument in enumerate(self._arguments):
            if index < len(args):
                values[argument.name] = args[index]
            elif argument.name in kwargs:
                values[argument.name] = kwargs[argument.name]
            else:
                values[argument.name] = argument.default_value
        return values

    def written_arguments(self, args, kwargs):
        """Return the values of the arguments that the operator writes to."""
        return [args[index] if index < len(args) else kwargs.get(name) for index, name in self.writes]
