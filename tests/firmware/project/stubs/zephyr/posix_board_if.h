void posix_exit(int status);
