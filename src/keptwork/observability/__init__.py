"""Logs, spans and counted figures."""
