"""Files for viewers: a module offers `SUFFIX` and `write(trace, audit, path)`; names with an underscore are parts."""
