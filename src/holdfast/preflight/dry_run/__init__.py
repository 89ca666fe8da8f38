"""The user's own training for its first steps: in a scratch copy of its folder, with trackers off, ended after them.

scratch     the copy of the working folder, and what of the original changed all the same
surroundings  the environment that it runs in: the probe, no trackers, few images
run         one dry run from its start to its end, and what it said
judging     what the rules say of its steps
cache       one dry run for all checks that ask about it

What happens inside of it is `probe/holdfast_probe/dry_run`.
"""
