"""The dry run: the first steps of the user's own training, in a scratch copy of its folder, with trackers off.

scratch      the copy of the working folder, and a list of files of the original that changed
environment  the environment variables: the probe, no trackers, few images
landlock     prevents writes outside some folders
run          one dry run from start to end, and its results
findings     the findings of the rules for its steps
cache        one dry run that all checks share

The code that runs inside the training is in `probe/holdfast_probe/dry_run`.
"""
