"""Checks of a dataset. All functions are pure: a survey in, findings out.

readable, labels, classes and sizes each answer one question. near_duplicates finds images that look the same, and
video_frames finds videos by the names of images. groups combines both, leakage reports which validation images are known from
training, and splitting proposes a split without such leakage.
"""
