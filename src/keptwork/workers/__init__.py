"""The worker: claims jobs, runs their handlers, renews their leases, and writes their outcomes."""
