"""What is publicly known of operators that lie: a finding that fits one says so. `P#` is an issue of pytorch/pytorch.

Each entry asks about the operator, what was wrong with it, and how its tensors lie. What fits is a hint, not a proof.
"""

from .precision import MATRIX

LONG_REDUCTION = 32767


class Known(object):
    def __init__(self, name, issues, fits, remedy, layout=False):
        self.name = name
        self.issues = issues
        self.fits = fits
        self.remedy = remedy
        self.layout = layout
        """Whether it is gone on contiguous tensors."""

    def as_dict(self):
        return {"id": self.name, "issues": list(self.issues), "remedy": self.remedy}


def known_issue(case):
    """The first entry that fits, as a dictionary, or None. `case` is a `Case`."""
    for entry in ENTRIES:
        if entry.fits(case) and not (entry.layout and case.contiguous_helps is False):
            return entry.as_dict()
    return None


class Case(object):
    """What an entry may ask about a finding."""

    def __init__(self, name, kind, tensors, values, contiguous_helps=None, raised=""):
        self.name = name
        """The operator without namespace and overload."""
        self.kind = kind
        self.tensors = tensors
        """Descriptions of the arguments, as in the finding."""
        self.values = values
        """The arguments by name: tensors of the CPU's copy."""
        self.contiguous_helps = contiguous_helps
        self.raised = raised

    def first(self):
        return self.tensors[0] if self.tensors else {}

    def expanded(self):
        return any(
            stride == 0 and size > 1
            for tensor in self.tensors
            if "float" in tensor["dtype"]
            for size, stride in zip(tensor["shape"], tensor["stride"])
        )

    def argument(self, name):
        return next((tensor for tensor in self.tensors if tensor["argument"] == name), None)

    def reduction(self):
        """The longest dimension that a product sums over."""
        for name, dim in (("mat1", -1), ("self", -1), ("batch1", -1), ("input", -1)):
            tensor = self.argument(name)
            if tensor is not None and tensor["shape"] and (name != "self" or self.argument("mat1") is None):
                return tensor["shape"][dim]
        return 0


def _one_element_of_more(case):
    first = case.first()
    return bool(first) and first["elements"] == 1 and first["storage"] > 1


def _into_gaps(case):
    """In place, on a destination that is not contiguous."""
    return case.name.endswith("_") and bool(case.first()) and not case.first()["contiguous"]


def _has_boolean_index(case):
    return any(tensor["dtype"] == "bool" for tensor in case.tensors)


def _raises(text):
    return lambda case: case.kind == "raises" and text in case.raised


ENTRIES = (
    Known("F18", ["P#122602"], _raises("float64"), "use float32 on this device"),
    Known(
        "F19", ["P#77764"], _raises("not currently implemented"), "a newer torch, or PYTORCH_ENABLE_MPS_FALLBACK=1 before torch is imported"
    ),
    Known("F06", ["P#142344", "P#143196"], _raises("view size is not compatible"), "a newer torch; no channels_last"),
    Known(
        "F01",
        ["P#122016", "P#123385"],
        lambda case: case.name in ("copy_", "fill_", "index_put_") and _one_element_of_more(case),
        "torch 2.3 or newer",
    ),
    Known(
        "F04",
        ["P#181867", "P#178497"],
        lambda case: case.kind in ("count", "raises") and case.name in ("index", "nonzero", "masked_select", "index_put_") and (case.name == "nonzero" or _has_boolean_index(case)),
        "the newest torch; else index on the CPU",
    ),
    Known("F05", ["ultralytics#14658"], lambda case: "unique" in case.name, "a newer torch; else unique on the CPU"),
    Known(
        "F11",
        ["P#177116", "P#183535"],
        lambda case: case.name in MATRIX and case.reduction() >= LONG_REDUCTION,
        "torch 2.14 or newer, or PYTORCH_MPS_PREFER_METAL=1",
    ),
    Known(
        "F13",
        ["P#192212"],
        lambda case: case.name == "convolution" and bool(case.argument("weight")) and not case.argument("weight")["contiguous"],
        "weight.contiguous()",
        layout=True,
    ),
    Known(
        "F14",
        ["P#183631"],
        lambda case: case.name == "fill_" and case.first().get("dtype") == "bool" and case.first().get("offset", 0) > 0,
        "a newer torch; else fill a contiguous tensor and copy it",
    ),
    Known(
        "F13",
        ["P#118115", "P#165267"],
        _into_gaps,
        "make the destination contiguous; torch 2.4 or newer, macOS 15 or newer",
        layout=True,
    ),
    Known("F14", ["P#130295"], lambda case: case.name in ("argmax", "argmin", "max", "min") and case.kind == "selection", "a newer torch; else on the CPU"),
    Known("F14", ["P#183885"], lambda case: case.name in ("sort", "argsort") and case.values.get("dim") == 0, "a newer torch; else sort along the last dimension"),
    Known("F14", ["P#90635"], lambda case: case.name.startswith("cumsum") and case.first().get("dtype") == "int64", "a newer torch; else cumsum on the CPU"),
    Known("F12", ["P#180201"], lambda case: case.expanded(), ".contiguous() on the expanded tensor", layout=True),
    Known(
        "F02",
        ["P#139550", "P#189690"],
        lambda case: case.name in ("_to_copy", "copy_") and bool(case.values.get("non_blocking")),
        "no non_blocking copies to this device",
    ),
)  # fmt: skip
