"""pytest plugin: fails tests on implicit synchronisations."""
