"""From a request to artifacts: what is asked, which compilers it takes, the steps, and the build for many chips."""
