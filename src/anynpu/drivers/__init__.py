"""NPUs of this machine: which are here, their drivers, and what is wrong with them."""
