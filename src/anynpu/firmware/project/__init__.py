"""Project trees: one application and a small board layer around a built model, ready for make or CMake."""
