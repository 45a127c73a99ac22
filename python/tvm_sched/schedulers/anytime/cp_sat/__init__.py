"""Parts of a schedule solved with CP-SAT."""
