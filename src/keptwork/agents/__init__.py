"""Agent jobs: skills, routing, prices, redaction, validation, and the decision after each state."""
