"""Everything that runs inside the user's training process.

This folder is put on the training's Python path, where Python finds `sitecustomize` and the package `holdfast_probe`.
The package needs only the standard library and the training's own torch. The rest of Holdfast may import only
`holdfast.probe.holdfast_probe.protocol` and `.heartbeat`, the two files that both sides share.
"""
