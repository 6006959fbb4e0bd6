"""Facts that ship with anynpu: chips, and the compilers' own configuration files."""
