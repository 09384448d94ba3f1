"""The worker: claims jobs, runs their handlers, keeps their leases and writes what came of them."""
