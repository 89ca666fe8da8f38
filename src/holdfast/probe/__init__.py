"""All that runs inside someone's training.

This folder itself goes on the child's Python path; from there Python finds `sitecustomize` and the package `holdfast_probe`,
which needs the standard library and the child's own torch and nothing else. The rest of Holdfast may import
`holdfast.probe.holdfast_probe.protocol` and `.heartbeat`, the two files that both sides share, and nothing more.
"""
