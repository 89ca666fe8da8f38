"""The line of Python code that called an operator."""

import os
import re
import sys

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIBRARIES = ("site-packages", "dist-packages")
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


class SourceLocation(object):
    def __init__(self, torch):
        self._torch = torch
        self._torch_folder = os.path.dirname(os.path.abspath(torch.__file__))
        self._node = getattr(torch._C, "_current_autograd_node", None)

    def find(self, phase):
        """Return `called`, the innermost line outside torch, and `yours`, the innermost line outside all libraries. Either may
        be missing.
        """
        if phase == "backward":
            return self._find_forward()
        frames = []
        frame = sys._getframe(1)
        while frame is not None:
            if not isinstance(frame.f_locals.get("self"), self._torch.Tensor):  # methods of a tensor are not user code
                frames.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
            frame = frame.f_back
        return self._select_frames(frames)

    def record_forward(self):
        """Let autograd record where each node was created. This is the only way from a backward to a line of the forward."""
        try:
            self._torch.autograd.set_detect_anomaly(True, check_nan=False)
        except TypeError:  # an old torch, which would also check for NaN
            pass

    def _find_forward(self):
        node = self._node() if self._node is not None else None
        if node is None:
            return {}
        lines = node.metadata.get("traceback_") or []
        found = [match for line in reversed(lines) for match in [_FRAME.search(line)] if match]
        location = self._select_frames([(match.group(1), int(match.group(2)), match.group(3)) for match in found])
        location["node"] = node.name()
        return location

    def _select_frames(self, frames):
        """Return `called` and `yours` of the frames, which are given innermost first."""
        location = {}
        for file, line, name in frames:
            if file.startswith((self._torch_folder, HERE, "<")):
                continue
            text = "%s:%d in %s" % (file, line, name)
            location.setdefault("called", text)
            if not any(library in file for library in LIBRARIES):
                location["yours"] = text
                break
        return location
