"""pytest and trainer callbacks."""
