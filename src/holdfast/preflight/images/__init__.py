"""Reads the images and labels of a dataset in parallel, under the training's interpreter.

readers.py runs the processes, order.py defines the order of the images, survey.py combines the results.
"""
