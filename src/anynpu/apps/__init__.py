"""Applications on top of models: the server, search, the fleet watcher."""
