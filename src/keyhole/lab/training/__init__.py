"""Training: models of a task found by gradient descent, many seeds at a time; torch is needed by its nets and loop."""
