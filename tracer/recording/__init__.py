"""Runs the user's program and writes what it does to files. Knows no Trace."""
