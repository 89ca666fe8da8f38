"""Ultralytics: everything that Holdfast knows about it, see `framework.py`."""

from holdfast.frameworks.ultralytics.framework import Ultralytics

FRAMEWORK = Ultralytics()
