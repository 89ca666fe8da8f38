"""Aggregators: each folds the events about one subject into the values that rules need, in bounded memory.

The state of an attempt consists of them. An aggregator stores facts and draws no conclusions; a rule draws conclusions and
stores nothing.
"""
