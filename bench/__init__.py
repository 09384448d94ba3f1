"""Measurements. `make bench` prints figures side by side in one run, as ratios, because machines are noisy."""
