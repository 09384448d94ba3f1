"""Jobs: enqueue, complete, results, schedules, limits, breakers."""
