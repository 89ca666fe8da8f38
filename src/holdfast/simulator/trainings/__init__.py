"""Small trainings for drills. They know nothing of Holdfast; what is wrong with them is injected."""
