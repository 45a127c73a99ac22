"""Code that several schedulers share: partial schedules, list scheduling, searches, submodels, mixed-integer programs."""
