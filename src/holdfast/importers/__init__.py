"""Importers for training records that Holdfast did not write. They return the events that Holdfast would have written.

There is one module per format: a Lightning CSV log, a Transformers `trainer_state.json`, a plain log, and Holdfast's own journal.
A framework brings its own importer (`Framework.importer`). `detect` determines the format of a path. Records are not trusted: no pickle is loaded, every read is
bounded, and what cannot be read is reported in a sentence.
"""
