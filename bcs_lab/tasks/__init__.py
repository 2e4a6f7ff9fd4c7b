"""One module a task of the command line."""
