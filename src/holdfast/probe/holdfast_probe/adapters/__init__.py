"""Adapters: what a framework knows and torch does not (loss components, metrics, epochs, checkpoints), one file each.

An adapter waits until the training itself imports the framework, and reports what it cannot find there.
"""


def install(probe):
    from . import torchvision, ultralytics

    torchvision.install(probe)
    ultralytics.install(probe)
