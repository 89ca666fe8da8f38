"""Records that Holdfast did not write, read as the events that it would have written.

One reader a file: a run folder of Ultralytics, a Lightning CSV log, a Transformers `trainer_state.json`, a plain log, and
Holdfast's own journal. `recognise` finds out which of them a path is. Nothing in a record is trusted: no pickle is loaded,
no file is read whole without a bound, and what cannot be read is said in a sentence.
"""
