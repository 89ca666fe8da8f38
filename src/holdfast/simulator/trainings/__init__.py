"""Small trainings for drills. They do not know about Holdfast; their faults are injected."""
