"""Options with which schedulers take little time."""

QUICK = {
    "anytime": {"work": 0.02},
    "sortinghat": {"time_limit": 0.1, "q": 2, "total_time_limit": 0.4},
    "efficient-mip": {"time_limit": 0.1, "q": 2, "total_time_limit": 0.4},
}
"""Options with which a scheduler takes little time; those of the others are their defaults."""
