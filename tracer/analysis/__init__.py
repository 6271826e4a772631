"""Pure functions from a Trace to tables: no printing, no files, no clock, no state."""
