"""Small programs that `holdfast check` runs under the training's own interpreter, before there is a training.

Each is run as text, alone: it imports nothing of Holdfast, and prints JSON, an object a line, as it comes to know things. What
was printed before a crash is known all the same.
"""
