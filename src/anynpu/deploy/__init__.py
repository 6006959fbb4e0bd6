"""Getting a firmware onto a board: through a debug probe, or by copying it to the board's volume."""
