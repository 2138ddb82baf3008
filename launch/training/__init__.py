"""Training: runs, evaluates, records, saves and resumes steps."""
