"""Everything impure: jobs, records, targets, run directories, reports."""
