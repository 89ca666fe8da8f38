"""From what was seen of a data set to what is wrong with it. Pure: a survey in, findings out.

readable, labels, classes and sizes ask one question each; alike finds images that look the same, frames finds videos in
names, groups puts both together and says what validation knows from training; splitting proposes a split without that.
"""
