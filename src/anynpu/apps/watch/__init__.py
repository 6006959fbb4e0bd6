"""The fleet watcher: agents that measure, a collector that keeps, a detector that knows what is normal."""
