"""Schedules, the input of the executor, with their verifier, simulator, lower bounds and timelines."""

from .indexed import ScheduleIndex, Times
from .model_latency import ModelLatency, model_latencies
from .residency import Requests, Resident, moved_parameters, requests_of, requests_of_part, resident_parameters
from .resolve import evaluate, in_scenarios, objective_ns, resolved, resolved_scenario, with_choice
from .rules import RULES, Violation
from .schedule import ENDED, INTERRUPTED, TIME_OVER, Certificate, Placement, RequestLatency, Schedule, Transfer
from .simulator import memory_profile, simulate
from .timeline import Event, Timeline
from .verifier import verify, violations

__all__ = [
    "ENDED",
    "INTERRUPTED",
    "RULES",
    "TIME_OVER",
    "Certificate",
    "Event",
    "ModelLatency",
    "Placement",
    "RequestLatency",
    "Requests",
    "Resident",
    "Schedule",
    "ScheduleIndex",
    "Timeline",
    "Times",
    "Transfer",
    "Violation",
    "evaluate",
    "in_scenarios",
    "memory_profile",
    "model_latencies",
    "moved_parameters",
    "objective_ns",
    "requests_of",
    "requests_of_part",
    "resident_parameters",
    "resolved",
    "resolved_scenario",
    "simulate",
    "verify",
    "violations",
    "with_choice",
]
