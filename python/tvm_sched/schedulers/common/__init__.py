"""What several scheduling methods share: partial schedules, list scheduling, searches, submodels, solvers of programs."""
