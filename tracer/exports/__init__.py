"""Files for viewers: a module offers `SUFFIX` and `write(trace, audit, path)`."""
