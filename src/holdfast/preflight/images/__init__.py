"""Images and labels of a YOLO data set, looked at in parallel under the interpreter that trains.

readers.py runs the processes, order.py says which image comes when, survey.py puts what they say together.
"""
