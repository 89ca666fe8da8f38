"""Small programs that `holdfast check` runs with the training's own interpreter, before the training starts.

Each is run as text on its own. It imports nothing from Holdfast and prints one JSON object per line as soon as a result
is known, so that results printed before a crash are not lost.
"""
