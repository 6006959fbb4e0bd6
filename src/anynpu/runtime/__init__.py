"""Running artifacts: one small interface over every interpreter, simulator and device."""
