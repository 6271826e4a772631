"""Pure functions from an Audit to text: a module offers `SUFFIX` and `render(audit) -> str`. None computes a number."""
