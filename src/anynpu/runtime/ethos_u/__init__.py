"""An Arm Ethos-U in numpy: it executes the command stream that Vela wrote, value for value."""
