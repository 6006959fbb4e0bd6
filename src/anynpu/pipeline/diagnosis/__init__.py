"""Where a build loses the float model: the error of each tensor, made there or inherited, and the cause by name."""
