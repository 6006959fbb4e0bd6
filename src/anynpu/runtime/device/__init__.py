"""Boards that run our firmware, reached over a line of text: a serial port, a program on a pty, an emulator."""
