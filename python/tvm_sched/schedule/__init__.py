"""What an executor is told, and what is known of it: schedules, their verifier, simulator, bounds and timelines."""

from .indexed import ScheduleIndex, Times
from .residency import Resident, moved_parameters, resident_parameters
from .resolve import resolved, with_choice
from .rules import RULES, Violation
from .schedule import ENDED, INTERRUPTED, Certificate, Placement, Schedule, Transfer
from .simulator import memory_profile, simulate
from .timeline import Event, Timeline
from .verifier import verify, violations

__all__ = [
    "ENDED",
    "INTERRUPTED",
    "RULES",
    "Certificate",
    "Event",
    "Placement",
    "Resident",
    "Schedule",
    "ScheduleIndex",
    "Timeline",
    "Times",
    "Transfer",
    "Violation",
    "memory_profile",
    "moved_parameters",
    "resident_parameters",
    "resolved",
    "simulate",
    "verify",
    "violations",
    "with_choice",
]
