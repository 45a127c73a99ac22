"""Schedules, the input of the executor, with their verifier, simulator, lower bounds and timelines."""

from .indexed import ScheduleIndex, Times
from .models import ModelLatency, model_latencies
from .residency import Requests, Resident, moved_parameters, requests_of, requests_of_part, resident_parameters
from .resolve import counted, in_requests, priced, resolved, with_choice
from .rules import RULES, Violation
from .schedule import ENDED, INTERRUPTED, Certificate, Placement, Request, Schedule, Transfer
from .simulator import memory_profile, simulate
from .timeline import Event, Timeline
from .verifier import verify, violations

__all__ = [
    "ENDED",
    "INTERRUPTED",
    "RULES",
    "Certificate",
    "Event",
    "ModelLatency",
    "Placement",
    "Request",
    "Requests",
    "Resident",
    "Schedule",
    "ScheduleIndex",
    "Timeline",
    "Times",
    "Transfer",
    "Violation",
    "counted",
    "in_requests",
    "memory_profile",
    "model_latencies",
    "moved_parameters",
    "priced",
    "requests_of",
    "requests_of_part",
    "resident_parameters",
    "resolved",
    "simulate",
    "verify",
    "violations",
    "with_choice",
]
