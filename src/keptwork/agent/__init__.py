"""The agent job's own decisions: what follows an outcome. Pure, like the lifecycle it is built on."""
