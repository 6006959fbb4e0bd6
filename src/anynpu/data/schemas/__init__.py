"""The published JSON Schema of every kind of record, one file each; `anynpu report --schema KIND` prints it."""
