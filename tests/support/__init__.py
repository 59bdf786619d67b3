"""What several test files use: faulty targets and services, commands as processes, measures."""
