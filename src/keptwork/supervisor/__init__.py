"""Supervision: worker processes started, watched and replaced on one machine. Commands come through the database."""
