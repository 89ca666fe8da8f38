"""What is known of an operator from its schema: whether it can be compared at all, what it writes, what it returns."""

SKIPPED_NAMESPACES = frozenset(
    ["c10d", "_c10d_functional", "c10d_functional", "prim", "profiler", "debugprims", "inductor"]
)
WITHOUT_VALUES = ("empty", "new_empty", "_empty", "_efficientzerotensor")
"""What they return has no values yet."""
ONLY_MEMORY = frozenset([
    "resize_", "resize_as_", "set_", "record_stream", "lift_fresh", "lift", "is_pinned", "_pin_memory", "pin_memory",
    "is_same_size", "_has_compatible_shallow_copy_type", "sym_size", "sym_numel", "sym_stride", "sym_storage_offset",
])  # fmt: skip
SELECTS = frozenset([
    "argmax", "argmin", "max", "min", "median", "nanmedian", "kthvalue", "mode", "cummax", "cummin", "sort", "argsort", "topk",
    "max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d", "adaptive_max_pool3d",
])  # fmt: skip
"""They say which element they chose. Of equal ones each is right."""
COUNTS = frozenset([
    "nonzero", "masked_select", "index", "unique_dim", "_unique2", "unique_consecutive", "unique_dim_consecutive", "_unique",
])  # fmt: skip
"""How many elements they return depends on values."""

WRITES_UNSAID = {
    "native_batch_norm": ("running_mean", "running_var"),
    "cudnn_batch_norm": ("running_mean", "running_var"),
    "miopen_batch_norm": ("running_mean", "running_var"),
}
"""Arguments that an operator writes to although its schema does not say so."""


class Operator(object):
    """One overload of an operator."""

    def __init__(self, torch, function):
        schema = function._schema
        self.full_name = str(function)
        namespace, _, self.name = schema.name.partition("::")
        self._arguments = schema.arguments
        self.writes = [
            (place, argument.name)
            for place, argument in enumerate(schema.arguments)
            if (argument.alias_info is not None and argument.alias_info.is_write)
            or argument.name in WRITES_UNSAID.get(self.name, ())
        ]
        self.why_not = self._why_not(torch, function, namespace, schema)

    def _why_not(self, torch, function, namespace, schema):
        if namespace in SKIPPED_NAMESPACES:
            return "it talks to others"
        if torch.Tag.nondeterministic_seeded in getattr(function, "tags", ()):
            return "random"
        if self.name.startswith(WITHOUT_VALUES) or self.name in ONLY_MEMORY:
            return "no values"
        aliased = [result.alias_info for result in schema.returns if result.alias_info is not None]
        if not self.writes and aliased:
            return "a view"
        return None

    def bound(self, args, kwargs):
        """Arguments by their names, with the schema's defaults."""
        values = {}
        for place, argument in enumerate(self._arguments):
            if place < len(args):
                values[argument.name] = args[place]
            elif argument.name in kwargs:
                values[argument.name] = kwargs[argument.name]
            else:
                values[argument.name] = argument.default_value
        return values

    def written(self, args, kwargs):
        """The values of arguments that it writes to."""
        return [args[place] if place < len(args) else kwargs.get(name) for place, name in self.writes]
