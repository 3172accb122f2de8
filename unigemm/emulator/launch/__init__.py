"""Launches: devices that are not there, host code, grids and clusters."""
