"""Lower a schedule to a plan (docs/formats/plan.md) and make the runtime module that executes it."""
