"""Models behind HTTP: `engine` owns the devices, `app` speaks to clients."""
